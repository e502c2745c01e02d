"""An S3 store of any number of objects that keeps none: it computes keys, listings and bodies for
each request.

Keys are runs of names made from a number, in their order; an object's bytes are its key. It has
ListObjectsV2 with prefix, delimiter and both forms of continuation, HEAD, and GET with ranges. It
accepts any signature, and requests without one. A page of a thousand takes about 2 ms.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from email.utils import formatdate
from itertools import accumulate, islice
from typing import overload
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from tests.servers.http11 import Answer, HttpServer, Request
from tests.servers.scripted import parse_range

BUCKET = "b"
_LAST = "\U0010ffff"
_NAMESPACE = "http://s3.amazonaws.com/doc/2006-03-01/"
_XML = {"Content-Type": "application/xml"}


class Keys(Sequence[str]):
    """The keys of several runs, all in order; a run is a number of keys and the function that makes
    one.
    """

    def __init__(self, *runs: tuple[int, Callable[[int], str]]) -> None:
        self._runs = runs
        self._starts = [0, *accumulate(count for count, _ in runs)]
        edges = [key for count, name in runs for key in dict.fromkeys((name(0), name(count - 1)))]
        assert edges == sorted(edges), "the runs must be in the order of their keys"

    def __len__(self) -> int:
        return self._starts[-1]

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[each] for each in range(*index.indices(len(self)))]
        if not 0 <= index < len(self):
            raise IndexError(index)
        run = bisect_right(self._starts, index) - 1
        return self._runs[run][1](index - self._starts[run])

    def find(self, key: str) -> int | None:
        index = bisect_left(self, key)
        return index if index < len(self) and self[index] == key else None


class VastStore(HttpServer):
    """A store whose bucket is called `b`; `keys` may be replaced."""

    def __init__(self, keys: Keys) -> None:
        super().__init__()
        self.keys = keys

    def listings(self) -> list[dict[str, str]]:
        """The queries of all listings so far."""
        return [query for request in self.requests if "list-type" in (query := _query(request))]

    def looked_up(self) -> list[str]:
        """The keys of all HEADs so far."""
        return [request.key.removeprefix(f"{BUCKET}/") for request in self.requests if request.method == "HEAD"]

    async def answer(self, request: Request) -> Answer:
        bucket, _, key = unquote(urlsplit(request.target).path).removeprefix("/").partition("/")
        if bucket != BUCKET:
            return Answer(404, _XML, b"<Error><Code>NoSuchBucket</Code></Error>")
        return self._object(request, key) if key else self._listing(_query(request))

    def _object(self, request: Request, key: str) -> Answer:
        index = self.keys.find(key)
        if index is None:
            return Answer(404, _XML, b"" if request.method == "HEAD" else b"<Error><Code>NoSuchKey</Code></Error>")
        body = key.encode()
        headers = {
            "ETag": _etag(index),
            "Last-Modified": formatdate(1_700_000_000, usegmt=True),
            "Date": formatdate(usegmt=True),
            "Accept-Ranges": "bytes",
        }
        if request.method == "HEAD":
            return Answer(200, {**headers, "Content-Length": str(len(body))})
        span = parse_range(request.headers["range"], len(body)) if "range" in request.headers else None
        if span is None:
            return Answer(200, headers, body)
        headers["Content-Range"] = f"bytes {span.start}-{span.stop - 1}/{len(body)}"
        return Answer(206, headers, body[span.start : span.stop])

    def _listing(self, query: dict[str, str]) -> Answer:
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        limit = min(int(query.get("max-keys", "1000")), 1000)
        after = query.get("continuation-token") or query.get("start-after", "")
        found = list(islice(self._entries(prefix, delimiter, after), limit + 1))
        token = found[limit - 1][0] if len(found) > limit else ""
        entries = [entry for _, entry in found[:limit]]
        body = (
            f"<?xml version='1.0' encoding='UTF-8'?><ListBucketResult xmlns='{_NAMESPACE}'><Name>{BUCKET}</Name>"
            f"<Prefix>{quote(prefix)}</Prefix><EncodingType>url</EncodingType><KeyCount>{len(entries)}</KeyCount>"
            f"<IsTruncated>{str(bool(token)).lower()}</IsTruncated>"
            f"{f'<NextContinuationToken>{token}</NextContinuationToken>' if token else ''}{''.join(entries)}"
            "</ListBucketResult>"
        )
        return Answer(200, {**_XML, "Date": formatdate(usegmt=True)}, body.encode())

    def _entries(self, prefix: str, delimiter: str, after: str) -> Iterator[tuple[str, str]]:
        """The keys and common prefixes behind `after`, each with its element."""
        keys = self.keys
        if delimiter and after.endswith(delimiter):
            after += _LAST  # A common prefix: go on after all keys below it.
        index = max(bisect_left(keys, prefix), bisect_right(keys, after) if after else 0)
        while index < len(keys) and (key := keys[index]).startswith(prefix):
            cut = key.find(delimiter, len(prefix)) if delimiter else -1
            if cut < 0:
                yield key, _CONTENTS % (quote(key), _etag(index), len(key.encode()))
                index += 1
            else:
                common = key[: cut + 1]
                yield common, f"<CommonPrefixes><Prefix>{quote(common)}</Prefix></CommonPrefixes>"
                index = bisect_left(keys, common + _LAST, index)


_CONTENTS = (
    "<Contents><Key>%s</Key><LastModified>2023-11-14T22:13:20.000Z</LastModified><ETag>%s</ETag><Size>%d</Size>"
    "<StorageClass>STANDARD</StorageClass></Contents>"
)


def _etag(index: int) -> str:
    return f'"{index:032x}"'


def _query(request: Request) -> dict[str, str]:
    return dict(parse_qsl(urlsplit(request.target).query, keep_blank_values=True))
