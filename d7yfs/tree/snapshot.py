"""A repository's names as bytes, for the next mount or for other hosts: what was listed, and when. Pure.

A snapshot is a magic number, frames, and the CRC-32 of all that. A frame is two sizes, packed and
unpacked, and that much of zlib's output. The first frame is the head, in JSON. Each other one is a
batch of entries in columns: sizes, times, and texts that a NUL separates, as no name holds one.

A snapshot counts whole or not at all. One that is cut, altered, of another format, or about
something else is none, and so is one that claims more than its bounds.

Used by `repository.tree_keeper`, and by `published`, which reads frame by frame. `encode` runs in a
worker thread beside readers, so that each frame is short work.
"""

from __future__ import annotations

import json
import math
import struct
import sys
import zlib
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate, islice, pairwise
from typing import Any

from d7yfs.bounds.values import OBJECT_MAX_BYTES
from d7yfs.objects import ObjectVersion
from d7yfs.stats.repository_status import LastScanStatus
from d7yfs.tree.listing import DirectoryListing
from d7yfs.tree.nodes import File, Node

_MAGIC = b"d7yfstr1"
_FRAME = struct.Struct("<II")
"""The packed and unpacked bytes of a frame."""
_CRC = struct.Struct("<I")
_COLUMNS = struct.Struct("<7I")
"""The bytes of each part of a batch: the table of its directories, sizes, and five texts."""
_BATCH = 2000
"""The most entries of a frame: about a millisecond of Python."""
_FRAME_MAX_BYTES = 32 << 20
"""More than a frame of entries with the longest keys."""
_FASTEST = 1
_DIRECTORY = -1
"""The size of an entry that is a directory."""
_SEPARATOR = "\0"
UNREADABLE = (
    *(ValueError, TypeError, LookupError, ArithmeticError, AttributeError),
    *(RecursionError, struct.error, zlib.error),
)
"""The exceptions of content that has other types than its format."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotHead:
    """The head of a snapshot: its subject, and how much it has."""

    about: str
    """The repository, its settings and the identity of the credentials, which no other shares."""
    seal: str
    """A keyed digest of the credentials' secret; empty where none lasts."""
    prefix: str
    """The prefix that the repository lists."""
    listed_at: float
    """When the oldest of its directories was listed (time.time())."""
    directories: int
    entries: int
    files: int
    last_scan: LastScanStatus


@dataclass(frozen=True, slots=True)
class KnownDirectory:
    """A listed directory of a running mount. Nobody changes `children`."""

    prefix: str
    listed_at: float
    """time.time() of its listing."""
    is_believed: bool
    """True unless its names count only while the store cannot be asked."""
    children: Mapping[str, Node | ObjectVersion]
    """Its entries; a version stands for a file."""
    subdirectories: int
    hidden_count: int
    withheld: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class RecalledListing:
    """A directory as an earlier mount has listed it; for the rest see `KnownDirectory`."""

    listing: DirectoryListing
    listed_at: float
    is_believed: bool


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The names of a repository as an earlier mount has listed them, parents first."""

    head: SnapshotHead
    listings: Sequence[RecalledListing]


def encode(head: SnapshotHead, directories: Iterable[KnownDirectory], *, level: int = _FASTEST) -> Iterator[bytes]:
    """The parts of a snapshot, one after another, packed at zlib's `level`. Raises ValueError for a
    text with a NUL."""
    crc = 0
    for part in (_MAGIC, *_frame(_to_json(asdict(head)), level)):
        crc = zlib.crc32(part, crc)
        yield part
    for batch in _batches(sorted(directories, key=lambda each: each.prefix)):
        for part in _frame(_columns(batch), level):
            crc = zlib.crc32(part, crc)
            yield part
    yield _CRC.pack(crc)


def decode(data: bytes, about: str, most_entries: int) -> Snapshot | None:
    """The snapshot in `data`; None unless it is whole, `about` this, and within `most_entries`."""
    try:
        frames = map(inflate, split(data))
        head = read_head(next(frames))
        if head.about != about or head.entries + head.directories > most_entries:
            return None
        listings: dict[str, RecalledListing] = {}
        entries = 0
        for frame in frames:
            entries += read_batch(frame, listings)
    except (*UNREADABLE, StopIteration):
        return None  # whole, and written by no release of this format
    if entries != head.entries or len(listings) != head.directories:
        return None
    return Snapshot(head, tuple(listings.values()))


def _to_json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _frame(content: bytes, level: int) -> tuple[bytes, bytes]:
    packed = zlib.compress(content, level)
    return _FRAME.pack(len(packed), len(content)), packed


def split(data: bytes) -> Iterator[memoryview]:
    """The frames of a snapshot, packed; the head comes first. Raises ValueError for what is none."""
    body = memoryview(data)[: -_CRC.size]
    if data[: len(_MAGIC)] != _MAGIC or data[-_CRC.size :] != _CRC.pack(zlib.crc32(body)):
        raise ValueError("it is no snapshot, or is cut or altered")
    body = body[len(_MAGIC) :]
    while body:
        packed_bytes, _ = _FRAME.unpack_from(body)
        stop = _FRAME.size + packed_bytes
        if len(body) < stop:
            raise ValueError("a frame is cut off")
        yield body[:stop]
        body = body[stop:]


def inflate(frame: memoryview) -> bytes:
    """A frame's content. Raises ValueError and zlib.error for one that is not as it says."""
    _, size_bytes = _FRAME.unpack_from(frame)
    inflater = zlib.decompressobj()
    content = inflater.decompress(frame[_FRAME.size :], size_bytes + 1) if size_bytes <= _FRAME_MAX_BYTES else b""
    if len(content) != size_bytes or not inflater.eof or inflater.unused_data:
        raise ValueError("a frame of another size")
    return content


def read_head(content: bytes) -> SnapshotHead:
    """The head in a first frame's content. Raises one of UNREADABLE."""
    found = json.loads(content)
    head = SnapshotHead(**(found | {"last_scan": LastScanStatus(**found["last_scan"])}))
    counts = (head.directories, head.entries, head.files)
    texts = (head.about, head.seal, head.prefix)
    if not all(isinstance(each, str) for each in texts) or not all(type(each) is int and each >= 0 for each in counts):
        raise ValueError("a head of other types")
    _check_time(head.listed_at)
    return head


def _check_time(moment: object) -> None:
    if not isinstance(moment, int | float) or not math.isfinite(moment):
        raise ValueError("no time")


_Batch = list[tuple[KnownDirectory, list[tuple[str, Node | ObjectVersion]]]]


def _batches(directories: Iterable[KnownDirectory]) -> Iterator[_Batch]:
    """Directories with their entries, a bounded number at a time; a large one comes in several."""
    batch: _Batch = []
    room = _BATCH
    for directory in directories:
        entries = iter(directory.children.items())
        while True:
            some = [*islice(entries, room)]
            batch.append((directory, some))
            room -= len(some) + 1
            if room > 0:
                break
            yield batch
            batch, room = [], _BATCH
    if batch:
        yield batch


def _columns(batch: _Batch) -> bytes:
    table = [
        [it.prefix, it.listed_at, it.is_believed, it.hidden_count, dict(it.withheld), len(some)] for it, some in batch
    ]
    entries = [entry for _, some in batch for entry in some]
    versions = [_version_of(each) for _, each in entries]
    numbers = array("q", [each.size_bytes for each in versions])
    numbers.extend(each.mtime_ns for each in versions)
    if sys.byteorder == "big":
        numbers.byteswap()
    parts = (
        _to_json(table),
        numbers.tobytes(),
        _joined([name for name, _ in entries]),
        _joined([each.validator for each in versions]),
        _joined([each.version_id for each in versions]),
        _joined([each.archived for each in versions]),
        _joined([each.encoding for each in versions]),
    )
    return b"".join((_COLUMNS.pack(*map(len, parts)), *parts))


def _version_of(entry: Node | ObjectVersion) -> ObjectVersion:
    if isinstance(entry, ObjectVersion):
        return entry
    return entry.version if isinstance(entry, File) else NO_VERSION


NO_VERSION = ObjectVersion("", _DIRECTORY, "", 0)
"""A directory's columns, and an entry that is one."""


def _joined(texts: Sequence[str]) -> bytes:
    """Empty if all texts are. Raises ValueError."""
    joined = _SEPARATOR.join(texts)
    if joined.count(_SEPARATOR) != max(len(texts) - 1, 0):
        raise ValueError("a text with a NUL")
    return joined.encode(errors="surrogatepass") if any(texts) else b""


def read_batch(content: bytes, listings: dict[str, RecalledListing]) -> int:
    """Add a frame's batch to the listings, and return its number of entries. Raises one of UNREADABLE."""
    stops = [*accumulate(_COLUMNS.unpack_from(content), initial=_COLUMNS.size)]
    if stops[-1] != len(content):
        raise ValueError("columns of another size")
    table, packed_numbers, *packed_texts = (content[start:stop] for start, stop in pairwise(stops))
    rows: list[list[Any]] = json.loads(table)
    count = sum(int(row[-1]) for row in rows)
    numbers = array("q")
    numbers.frombytes(packed_numbers)
    if sys.byteorder == "big":
        numbers.byteswap()
    if len(numbers) != 2 * count:
        raise ValueError("another number of sizes")
    sizes, times = numbers[:count], numbers[count:]
    if not all(_DIRECTORY <= each <= OBJECT_MAX_BYTES for each in sizes):
        raise ValueError("a size that no object has")
    names, validators, *more = (_split(each, count) for each in packed_texts)
    start = 0
    for prefix, listed_at, is_believed, hidden_count, withheld, length in rows:
        stop = start + length
        _check_time(listed_at)
        if prefix not in listings:
            listings[prefix] = RecalledListing(DirectoryListing(prefix), listed_at, bool(is_believed))
        listing = listings[prefix].listing
        listing.hidden_count, listing.withheld = hidden_count, Counter(withheld)
        folder = prefix[: prefix.rfind("/") + 1]
        found = names[start:stop]
        columns = [each[start:stop] for each in (validators, *more)]
        numbers_of = (sizes[start:stop], columns[0], times[start:stop])
        versions = map(ObjectVersion, map(folder.__add__, found), *numbers_of, *columns[1:])
        listing.entries.update(zip(found, versions, strict=True))
        listing.entries.update((names[at], None) for at in range(start, stop) if sizes[at] == _DIRECTORY)
        start = stop
    return count


def _split(packed: bytes, count: int) -> list[str]:
    texts = packed.decode(errors="surrogatepass").split(_SEPARATOR) if packed else [""] * count
    if len(texts) != count:
        raise ValueError("another number of texts")
    return texts
