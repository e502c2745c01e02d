"""The objects of the bench's store: the files below a directory as a bucket, and their listings as
XML.

The directory is read once at start; the files must not change afterwards. ListObjects and
ListObjectsV2 are as in the S3 API reference: prefix, delimiter, max-keys, and the two forms of
paging.
"""

from __future__ import annotations

import email.utils
import hashlib
import mmap
import os
from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

BUCKET = "bench-models"
"""The default bucket."""
_LAST = "\U0010ffff"
_NAMESPACE = "http://s3.amazonaws.com/doc/2006-03-01/"


@dataclass(slots=True)
class Entry:
    """One object, opened and mapped on first use and kept open."""

    path: Path
    size_bytes: int
    etag: str
    last_modified: str
    xml: str
    _fd: int = -1
    _memory: memoryview | None = None

    def fd(self) -> int:
        # Two threads may both open it. The losing descriptor stays open unused, which does no harm.
        if self._fd < 0:
            self._fd = os.open(self.path, os.O_RDONLY)
        return self._fd

    def memory(self) -> memoryview:
        if self._memory is None:
            self._memory = memoryview(mmap.mmap(self.fd(), 0, prot=mmap.PROT_READ))
        return self._memory


class Catalog:
    """The objects below `directory`, as the bucket of its name."""

    def __init__(self, directory: Path) -> None:
        self.bucket = directory.name
        self._entries = {
            str(path.relative_to(directory)): _entry(path, str(path.relative_to(directory)))
            for path in directory.rglob("*")
            if path.is_file()
        }
        self._keys = sorted(self._entries)

    def find(self, key: str) -> Entry | None:
        return self._entries.get(key)

    def listing(self, query: Mapping[str, str]) -> bytes:
        """The answer to ListObjects or ListObjectsV2, or to a request about the bucket that accepts
        any answer.
        """
        if "location" in query:
            return f'<?xml version="1.0" encoding="UTF-8"?>\n<LocationConstraint xmlns="{_NAMESPACE}"/>'.encode()
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        limit = min(int(query.get("max-keys", "1000")), 1000)
        second = query.get("list-type") == "2"
        after = query.get("continuation-token") or query.get("start-after", "") if second else query.get("marker", "")
        items, last, truncated = self._page(prefix, delimiter, after, limit)
        parts = [
            f'<?xml version="1.0" encoding="UTF-8"?>\n<ListBucketResult xmlns="{_NAMESPACE}"><Name>{self.bucket}</Name>'
            f"<Prefix>{prefix}</Prefix><MaxKeys>{limit}</MaxKeys><IsTruncated>{str(truncated).lower()}</IsTruncated>"
        ]
        if delimiter:
            parts.append(f"<Delimiter>{delimiter}</Delimiter>")
        if second:
            parts.append(f"<KeyCount>{len(items)}</KeyCount>")
        if truncated:
            name = "NextContinuationToken" if second else "NextMarker"
            parts.append(f"<{name}>{last}</{name}>")
        return "".join((*parts, *items, "</ListBucketResult>")).encode()

    def _page(self, prefix: str, delimiter: str, after: str, limit: int) -> tuple[list[str], str, bool]:
        """Entries as XML, the last name among them, and True if more follow."""
        keys = self._keys
        if after.endswith("/") and delimiter:
            after += _LAST  # The last was a common prefix: go on after all keys below it.
        index = max(bisect_left(keys, prefix), bisect_right(keys, after) if after else 0)
        items: list[str] = []
        last = ""
        while index < len(keys) and keys[index].startswith(prefix):
            if len(items) == limit:
                return items, last, True
            key = keys[index]
            cut = key.find(delimiter, len(prefix)) if delimiter else -1
            if cut < 0:
                last = key
                items.append(self._entries[key].xml)
                index += 1
            else:
                last = key[: cut + len(delimiter)]
                items.append(f"<CommonPrefixes><Prefix>{last}</Prefix></CommonPrefixes>")
                index = bisect_left(keys, last + _LAST, index)
        return items, last, False


def _entry(path: Path, key: str) -> Entry:
    status = path.stat()
    # The form of a multipart upload's ETag, so that no client takes it for the content's MD5.
    etag = f'"{hashlib.md5(key.encode()).hexdigest()}-1"'
    moment = datetime.fromtimestamp(int(status.st_mtime), UTC)
    xml = (
        f"<Contents><Key>{key}</Key><LastModified>{moment:%Y-%m-%dT%H:%M:%S}.000Z</LastModified>"
        f"<ETag>&quot;{etag[1:-1]}&quot;</ETag><Size>{status.st_size}</Size><StorageClass>STANDARD</StorageClass></Contents>"
    )
    return Entry(path, status.st_size, etag, email.utils.format_datetime(moment, usegmt=True), xml)
