"""The false answers of stores, gateways and captive portals, as far as a client can detect them.

A lie that no client can detect is left out: other bytes under all the right headers. An encoding is
no lie, because the object may have it. Each lie has a name, which `--without` takes.
"""

from __future__ import annotations

import gzip
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from tests.fuzz.reply import Reply, Span, error, plain, size_of

if TYPE_CHECKING:
    from tests.fuzz.store import Store

_PAGE = (
    b"<!DOCTYPE html>\n<html><head><title>Sign in</title></head><body>Please sign in to the network.</body></html>\n"
)
_XHTML = (
    b'<?xml version="1.0" encoding="UTF-8"?>\n<html xmlns="http://www.w3.org/1999/xhtml"><body>Sign in.</body></html>\n'
)
_AGAIN_S = 5.0
"""Seconds: within this time the store refuses a key only once, because the client signs anew only
once.
"""


def page(size_bytes: int) -> bytes:
    """An HTML page of that size."""
    return (_PAGE * (size_bytes // len(_PAGE) + 1))[:size_bytes]


def _without(reply: Reply, *names: str) -> dict[str, str]:
    return {name: value for name, value in reply.headers.items() if name not in names}


class Liar:
    """A liar that picks lies and tells them in `store`'s replies."""

    def __init__(self, store: Store, without: frozenset[str]) -> None:
        self._store = store
        self._refused: dict[str, float] = {}
        self._of_data: dict[str, Callable[[random.Random, str, Mapping[str, str], Reply], Reply | None]] = {
            name.removeprefix("_data_").replace("_", "-"): getattr(self, name)
            for name in dir(self)
            if name.startswith("_data_")
        }
        self._of_listings: dict[str, Callable[[random.Random, str, Mapping[str, str], Reply], Reply | None]] = {
            name.removeprefix("_list_").replace("_", "-"): getattr(self, name)
            for name in dir(self)
            if name.startswith("_list_")
        }
        for lies in (self._of_data, self._of_listings):
            for name in without & lies.keys():
                del lies[name]

    def spoil(
        self, rng: random.Random, method: str, key: str, headers: Mapping[str, str], reply: Reply
    ) -> tuple[str, Reply]:
        """The lie's name and the reply that replaces `reply`; an empty name if the lie would change
        nothing.
        """
        if not key or method == "HEAD":
            lies = self._of_listings
        elif reply.status in (200, 206):
            lies = self._of_data
        else:
            return "", reply
        if not lies:
            return "", reply
        name = rng.choice(list(lies))
        told = lies[name](rng, key, headers, reply)
        return ("", reply) if told is None else (name, told)

    # --- pages of something else ---

    def _data_page(self, rng: random.Random, key: str, headers: Mapping[str, str], reply: Reply) -> Reply:
        return plain(200, page(rng.choice([0, 1, 500, 5000, 100_000])), Content_Type="text/html")

    def _data_page_of_right_size(
        self, rng: random.Random, key: str, headers: Mapping[str, str], reply: Reply
    ) -> Reply | None:
        found = self._store.get(key)
        size = rng.choice([size_of(reply.body), found.size_bytes if found else 0])
        return plain(200, page(size), Content_Type="text/html")

    def _data_page_until_the_end(self, rng: random.Random, key: str, headers: Mapping[str, str], reply: Reply) -> Reply:
        size = rng.choice([300, 4000, size_of(reply.body)])
        return Reply(200, {"Content-Type": "text/html", "Connection": "close"}, page(size), hangs_up=True)

    def _data_page_chunked(self, rng: random.Random, key: str, headers: Mapping[str, str], reply: Reply) -> Reply:
        size = rng.choice([300, 4000, size_of(reply.body)])
        return Reply(200, {"Content-Type": "text/html", "Transfer-Encoding": "chunked"}, page(size), is_chunked=True)

    def _data_page_as_range(self, rng: random.Random, key: str, headers: Mapping[str, str], reply: Reply) -> Reply:
        size = size_of(reply.body)
        return Reply(206, {**_without(reply, "ETag"), "Content-Type": "text/html"}, page(size))

    def _data_page_below_500(self, rng: random.Random, key: str, headers: Mapping[str, str], reply: Reply) -> Reply:
        return plain(rng.choice([201, 202, 203, 204, 226, 304, 400, 407, 418]), b"", Content_Type="text/html")

    # --- other objects, versions and ranges ---

    def _data_other_version(
        self, rng: random.Random, key: str, headers: Mapping[str, str], reply: Reply
    ) -> Reply | None:
        """Ignore If-Match: send another object's bytes, under its own ETag or without one."""
        if "if-match" not in headers or not isinstance(reply.body, Span):
            return None
        other = self._store.get(rng.choice(self._store.settings.keys))
        if other is None or other.size_bytes < reply.body.offset + reply.body.size_bytes:
            return None
        if other.serial == reply.body.serial:
            return None
        said = {"ETag": other.etag} if rng.random() < 0.5 else {}
        about = {"Content-Range": f"bytes {reply.body.offset}-{reply.body.offset + size_of(reply.body) - 1}"}
        total = other.size_bytes if rng.random() < 0.5 else self._total(reply)
        about["Content-Range"] += f"/{total}"
        body = replace(reply.body, serial=other.serial)
        return Reply(206, {**_without(reply, "ETag"), **about, **said}, body)

    def _data_whole_other(self, rng: random.Random, key: str, headers: Mapping[str, str], reply: Reply) -> Reply | None:
        """Ignore Range and If-Match: send another object of the same size, without a validator."""
        if not isinstance(reply.body, Span):
            return None
        size = rng.choice([size_of(reply.body), self._total(reply)])
        sent = Span(1, 0, min(size, 18 << 20))
        return Reply(200, {"Content-Length": str(sent.size_bytes), "Content-Type": "application/octet-stream"}, sent)

    def _data_whole(self, rng: random.Random, key: str, headers: Mapping[str, str], reply: Reply) -> Reply | None:
        """Ignore the Range only: the client may use this reply."""
        if not isinstance(reply.body, Span):
            return None
        size = self._total(reply)
        said = {**_without(reply, "Content-Range"), "Content-Length": str(size)}
        return Reply(200, said, Span(reply.body.serial, 0, size))

    def _data_shifted(self, rng: random.Random, key: str, headers: Mapping[str, str], reply: Reply) -> Reply | None:
        """Send another range, with a correct Content-Range."""
        if not isinstance(reply.body, Span) or reply.status != 206:
            return None
        total = self._total(reply)
        start = rng.randint(0, total - 1)
        size = min(rng.choice([size_of(reply.body), rng.randint(1, total)]), total - start)
        if start == reply.body.offset:
            return None
        said = {"Content-Range": f"bytes {start}-{start + size - 1}/{total}", "Content-Length": str(size)}
        return Reply(206, {**reply.headers, **said}, Span(reply.body.serial, start, size))

    def _data_wrong_total(self, rng: random.Random, key: str, headers: Mapping[str, str], reply: Reply) -> Reply | None:
        if "Content-Range" not in reply.headers:
            return None
        about = reply.headers["Content-Range"].partition("/")[0]
        total = rng.choice([str(self._total(reply) + rng.choice([-1, 1, 4096])), "*", "", "-1", "0x10", "1e3"])
        return replace(reply, headers={**reply.headers, "Content-Range": f"{about}/{total}"})

    def _data_wrong_range(self, rng: random.Random, key: str, headers: Mapping[str, str], reply: Reply) -> Reply | None:
        """Send a Content-Range that does not fit the Content-Length, or is malformed."""
        if not isinstance(reply.body, Span) or reply.status != 206:
            return None
        start, stop, total = reply.body.offset, reply.body.offset + reply.body.size_bytes, self._total(reply)
        about = rng.choice(
            [
                f"bytes {start + 1}-{stop}/{total}",
                f"bytes {start}-{stop}/{total}",
                f"bytes {stop}-{start}/{total}",
                f"bytes */{total}",
                f"items {start}-{stop - 1}/{total}",
                "",
                "nonsense",
            ]
        )
        return replace(
            reply, headers={**_without(reply, "Content-Range"), **({"Content-Range": about} if about else {})}
        )

    def _data_wrong_etag(self, rng: random.Random, key: str, headers: Mapping[str, str], reply: Reply) -> Reply:
        """Send a wrong ETag: one such reply is no proof that the version was replaced."""
        etag = rng.choice([f'"{rng.getrandbits(128):032x}"', '""', "", '"', "*", reply.headers["ETag"][:-2] + '"'])
        return replace(reply, headers={**reply.headers, "ETag": etag})

    def _data_weak_etag(self, rng: random.Random, key: str, headers: Mapping[str, str], reply: Reply) -> Reply:
        etag = rng.choice([f"W/{reply.headers['ETag']}", reply.headers["ETag"].strip('"')])
        return replace(reply, headers={**reply.headers, "ETag": etag})

    def _data_no_etag(self, rng: random.Random, key: str, headers: Mapping[str, str], reply: Reply) -> Reply:
        """Send the right bytes without an ETag."""
        return replace(reply, headers=_without(reply, "ETag"))

    # --- bodies that are cut, too long, coded or framed otherwise ---

    def _data_truncated(self, rng: random.Random, key: str, headers: Mapping[str, str], reply: Reply) -> Reply:
        return replace(reply, stop_after=rng.randint(0, max(size_of(reply.body) - 1, 0)))

    def _data_short(self, rng: random.Random, key: str, headers: Mapping[str, str], reply: Reply) -> Reply | None:
        """Send a complete reply with less than the client asked for; its Content-Range may admit
        that.
        """
        if not isinstance(reply.body, Span) or reply.body.size_bytes < 2 or reply.status != 206:
            return None
        body = replace(reply.body, size_bytes=rng.randint(1, reply.body.size_bytes - 1))
        said = {"Content-Length": str(body.size_bytes)}
        if rng.random() < 0.5:
            stop = body.offset + body.size_bytes
            said["Content-Range"] = f"bytes {body.offset}-{stop - 1}/{self._total(reply)}"
        return Reply(206, {**reply.headers, **said}, body)

    def _data_surplus(self, rng: random.Random, key: str, headers: Mapping[str, str], reply: Reply) -> Reply:
        """Send more bytes than Content-Length on a kept connection: the client must not parse the
        surplus as a reply.
        """
        other = Reply(206, reply.headers, page(size_of(reply.body)) if size_of(reply.body) < 1 << 16 else b"")
        extra = rng.choice([b"\0", b"x" * 70_000, page(300), b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"])
        if rng.random() < 0.3:
            extra = b"".join(replace(other, headers=_without(other, "ETag")).chunks(without_body=False))
        return replace(reply, after=extra)

    def _data_chunked(self, rng: random.Random, key: str, headers: Mapping[str, str], reply: Reply) -> Reply:
        """Send the right bytes in chunked framing: the client may use this reply."""
        said = {**_without(reply, "Content-Length"), "Transfer-Encoding": "chunked"}
        return replace(reply, headers=said, is_chunked=True)

    def _data_chunked_cut(self, rng: random.Random, key: str, headers: Mapping[str, str], reply: Reply) -> Reply:
        said = {**_without(reply, "Content-Length"), "Transfer-Encoding": "chunked"}
        stop = rng.randint(0, size_of(reply.body))
        return replace(reply, headers=said, is_chunked=True, stop_after=stop)

    def _data_until_the_end(self, rng: random.Random, key: str, headers: Mapping[str, str], reply: Reply) -> Reply:
        """Send no length: the connection's end is the body's, and may come early."""
        stop = rng.choice([None, rng.randint(0, size_of(reply.body))])
        return replace(reply, headers=_without(reply, "Content-Length"), hangs_up=True, stop_after=stop)

    def _data_gzip(self, rng: random.Random, key: str, headers: Mapping[str, str], reply: Reply) -> Reply | None:
        if size_of(reply.body) > 1 << 20:
            return None
        body = gzip.compress(reply.whole(), 1)
        said = {**reply.headers, "Content-Encoding": rng.choice(["gzip", "GZIP", "x-gzip", "br"])}
        said["Content-Length"] = str(len(body))
        return Reply(reply.status, said, body)

    def _data_multipart(self, rng: random.Random, key: str, headers: Mapping[str, str], reply: Reply) -> Reply | None:
        if size_of(reply.body) > 1 << 20:
            return None
        part = f"--X\r\nContent-Range: {reply.headers.get('Content-Range', '')}\r\n\r\n".encode()
        body = part + reply.whole() + b"\r\n--X--\r\n"
        said = {**_without(reply, "Content-Range"), "Content-Type": "multipart/byteranges; boundary=X"}
        return Reply(206, {**said, "Content-Length": str(len(body))}, body)

    # --- heads ---

    def _data_garbage(self, rng: random.Random, key: str, headers: Mapping[str, str], reply: Reply) -> Reply:
        length = size_of(reply.body)
        good = reply._head()[:-2]
        head = rng.choice(
            [
                rng.randbytes(rng.randint(1, 4000)),
                b"",
                b"HTTP/1.1\r\n\r\n",
                b"HTTP/1.1 206\r\n",
                b"HTTP/9.9 206 Partial Content\r\n\r\n",
                b"HTTP/1.1 2O6 Partial\r\nContent-Length: 3\r\n\r\n",
                good.replace(b"Content-Length: ", b"Content-Length: -") + b"\r\n",
                good.replace(b"Content-Length: ", b"Content-Length: +") + b"\r\n",
                good + b"Content-Length: %d\r\n\r\n" % (length + 1),
                good + b"Transfer-Encoding: chunked\r\n\r\n",
                good + b"Transfer-Encoding: gzip\r\n\r\n",
                good + b"Content-Range: bytes 0-0/1\r\n\r\n",
                good + b'ETag: "another"\r\n\r\n',
                good + b"X: " + b"y" * 200_000 + b"\r\n\r\n",
                good + b"Broken header\r\n\r\n",
                good + b"\0: \0\r\n\r\n",
                good[:-2] + b"\r\n folded: yes\r\n\r\n",
            ]
        )
        return replace(reply, head=head, hangs_up=rng.random() < 0.7)

    def _data_informed(self, rng: random.Random, key: str, headers: Mapping[str, str], reply: Reply) -> Reply:
        """Send interim replies before the right one: the client may use this reply."""
        early = b"HTTP/1.1 103 Early Hints\r\nLink: </style.css>; rel=preload\r\n\r\n"
        return replace(reply, before=rng.choice([early, b"HTTP/1.1 100 Continue\r\n\r\n", early * 30]))

    def _data_lower_case(self, rng: random.Random, key: str, headers: Mapping[str, str], reply: Reply) -> Reply:
        """Send lower-case header names. This is no lie: header names have no case."""
        return replace(reply, headers={name.lower(): value for name, value in reply.headers.items()})

    def _data_redirect(self, rng: random.Random, key: str, headers: Mapping[str, str], reply: Reply) -> Reply:
        other = rng.choice(self._store.settings.keys)
        there = rng.choice([f"/b/{other}", "/b/sign-in", "http://127.0.0.1:1/x", "", "//"])
        return plain(rng.choice([301, 302, 303, 307, 308]), page(rng.choice([0, 200])), Location=there)

    # --- refusals and short failures ---

    def _data_busy(self, rng: random.Random, key: str, headers: Mapping[str, str], reply: Reply) -> Reply:
        code = rng.choice([408, 429, 500, 502, 503, 504, 509, 520])
        refusal = error(code, rng.choice(["SlowDown", "InternalError", "ServiceUnavailable", "RequestTimeout"]))
        if rng.random() < 0.3:
            refusal.headers["Retry-After"] = rng.choice(["0", "1", "-1", "soon", "Wed, 21 Oct 2015 07:28:00 GMT"])
        return refusal

    def _data_refused(self, rng: random.Random, key: str, headers: Mapping[str, str], reply: Reply) -> Reply | None:
        now = time.monotonic()
        if now - self._refused.get(key, 0) < _AGAIN_S:
            return None
        self._refused[key] = now
        return error(403, rng.choice(["SignatureDoesNotMatch", "RequestTimeTooSkewed", "ExpiredToken", "AccessDenied"]))

    def _data_gone(self, rng: random.Random, key: str, headers: Mapping[str, str], reply: Reply) -> Reply:
        """Claim that the version is gone. One such reply is no proof: a further request to the
        store is answered truthfully.
        """
        return error(*rng.choice([(404, "NoSuchKey"), (412, "PreconditionFailed")]))

    # --- listings and HEAD ---

    def _list_busy(self, rng: random.Random, key: str, headers: Mapping[str, str], reply: Reply) -> Reply:
        return self._data_busy(rng, key, headers, reply)

    def _list_page(self, rng: random.Random, key: str, headers: Mapping[str, str], reply: Reply) -> Reply:
        return plain(200, page(rng.choice([0, 1, 500, 5000])), Content_Type="text/html")

    def _list_xhtml(self, rng: random.Random, key: str, headers: Mapping[str, str], reply: Reply) -> Reply:
        return plain(200, _XHTML, Content_Type="text/html")

    def _list_truncated(self, rng: random.Random, key: str, headers: Mapping[str, str], reply: Reply) -> Reply:
        return replace(reply, stop_after=rng.randint(0, max(size_of(reply.body) - 1, 0)))

    def _list_cut_short(self, rng: random.Random, key: str, headers: Mapping[str, str], reply: Reply) -> Reply | None:
        """Send a part of the XML, under a length that fits it, or until the connection's end."""
        if key:
            return None
        part = reply.whole()[: rng.randint(0, max(size_of(reply.body) - 1, 0))]
        if rng.random() < 0.5:
            return Reply(200, {"Content-Type": "application/xml"}, part, hangs_up=True)
        return plain(200, part, Content_Type="application/xml")

    def _list_garbage(self, rng: random.Random, key: str, headers: Mapping[str, str], reply: Reply) -> Reply:
        return Reply(200, head=rng.randbytes(rng.randint(0, 400)), hangs_up=True)

    def _list_wrong_checksum(
        self, rng: random.Random, key: str, headers: Mapping[str, str], reply: Reply
    ) -> Reply | None:
        """Send a wrong checksum: the daemon drops right bytes and fetches them again."""
        if "x-amz-checksum-crc32c" not in reply.headers:
            return None
        return replace(reply, headers={**reply.headers, "x-amz-checksum-crc32c": "AAAAAA=="})

    def _list_half_head(self, rng: random.Random, key: str, headers: Mapping[str, str], reply: Reply) -> Reply:
        """End the connection in the middle of the head, often in the middle of the length."""
        head = reply._head()
        at = head.find(b"Content-Length: ") + len("Content-Length: ") + rng.randint(0, 4)
        if rng.random() < 0.5:
            at = rng.randint(0, len(head) - 3)
        return replace(reply, head=head[:at], body=b"", hangs_up=True)

    def _list_empty(self, rng: random.Random, key: str, headers: Mapping[str, str], reply: Reply) -> Reply | None:
        return None if key else plain(200, b"", Content_Type="application/xml")

    def _list_no_token(self, rng: random.Random, key: str, headers: Mapping[str, str], reply: Reply) -> Reply | None:
        """Send a truncated listing without a continuation token."""
        if key or b"<IsTruncated>" not in reply.whole():
            return None
        body = reply.whole().replace(b"<IsTruncated>false", b"<IsTruncated>true")
        at = body.find(b"<NextContinuationToken>")
        if at >= 0:
            body = body[:at] + body[body.find(b"</NextContinuationToken>") + len(b"</NextContinuationToken>") :]
        return plain(200, body, Content_Type="application/xml")

    def _list_refused(self, rng: random.Random, key: str, headers: Mapping[str, str], reply: Reply) -> Reply | None:
        return self._data_refused(rng, key, headers, reply)

    def _list_no_bucket(self, rng: random.Random, key: str, headers: Mapping[str, str], reply: Reply) -> Reply | None:
        return None if key else error(404, "NoSuchBucket")

    @staticmethod
    def _total(reply: Reply) -> int:
        about = reply.headers.get("Content-Range", "")
        return int(about.rpartition("/")[2]) if about else size_of(reply.body)


def names() -> frozenset[str]:
    """The names of all lies."""
    return frozenset(
        name.removeprefix(prefix).replace("_", "-")
        for prefix in ("_data_", "_list_")
        for name in dir(Liar)
        if name.startswith(prefix)
    )
