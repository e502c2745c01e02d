"""A repository's tree as `d7yfs publish` wrote it: the pointer, and the names of one snapshot. Pure.

    PREFIX/.d7yfs/published                 the pointer: JSON, small, replaced by each publication
    PREFIX/.d7yfs/tree/<sha256>.snapshot    the names (`snapshot` has the form); never changes

The key of a snapshot follows from its digest. So a pointer can choose among the snapshots of its own
prefix, and names nothing else. A snapshot counts whole or not at all: `PublishedTree.open` compares
the digest and reads every frame once.

A tree holds the packed bytes, some 25 for each name, and unpacks the frames in which a directory
lies. The latest of them stay unpacked, so that a walk in order unpacks each once. Its pages are no
more believed than a store's: `listing` decides which names can be shown.

Used by `repository.publication`, and by `publish`, which writes both.
"""

from __future__ import annotations

import hashlib
import json
import math
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass

from d7yfs.objects import ListingPage, ObjectVersion
from d7yfs.stats.repository_status import LastScanStatus
from d7yfs.tree import snapshot
from d7yfs.tree.listing import DirectoryListing
from d7yfs.tree.reserved import RESERVED
from d7yfs.tree.snapshot import RecalledListing

FORMAT = 1
POINTER = f"{RESERVED}published"
"""The key of the pointer, below the repository's prefix."""
POINTER_MAX_BYTES = 64 << 10
SNAPSHOTS = f"{RESERVED}tree/"
SNAPSHOT_MAX_BYTES = 256 << 20
"""The most bytes of a snapshot, which a mount holds in memory: some 10 million names."""
ENTRIES_MAX = 20_000_000
_UNPACKED = 24
"""The most bytes that a byte of a snapshot may become: names that are alike take a tenth."""
_LEAST_UNPACKED_BYTES = 64 << 20
_KEPT = 8
"""Frames that stay unpacked: some 16,000 names."""
_PUBLISHER_MAX_CHARACTERS = 100
_HEX = frozenset("0123456789abcdef")


class Damaged(ValueError):
    """A pointer or a snapshot that cannot be used, and the reason in words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pointer:
    """The pointer of a repository: which snapshot is published."""

    sha256: str
    """The snapshot's digest, in lower-case hex."""
    size_bytes: int
    entries: int
    """Files and directories."""
    directories: int
    """Directories that are listed, the top one too."""
    files: int
    published_at: float
    """When it was published (time.time())."""
    publisher: str = ""
    """The program and its version."""

    @property
    def snapshot(self) -> str:
        """The key of the snapshot, below the repository's prefix."""
        return snapshot_key(self.sha256)

    def encode(self) -> bytes:
        """The pointer as it is stored."""
        return json.dumps({"format": FORMAT, "snapshot": self.snapshot, **asdict(self)}, indent=1).encode() + b"\n"

    @classmethod
    def decode(cls, data: bytes) -> Pointer:
        """The pointer in `data`. Raises Damaged; fields that are not known are left out."""
        if len(data) > POINTER_MAX_BYTES:
            raise Damaged(f"the pointer has more than {POINTER_MAX_BYTES >> 10} KiB")
        try:
            found = json.loads(data)
            written = found["format"]
            if written != FORMAT:
                raise Damaged(f"the pointer has format {written!r:.20}, and this d7yfs knows {FORMAT}")
            known = cls(**{name: found[name] for name in cls.__dataclass_fields__ if name in found})
            key = found["snapshot"]
        except Damaged:
            raise
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise Damaged(f"the pointer cannot be read: {type(error).__name__}") from None
        known._check()
        if key != known.snapshot:
            raise Damaged("the pointer names a snapshot that is not the one of its digest")
        return known

    def _check(self) -> None:
        counts = (self.size_bytes, self.entries, self.directories, self.files)
        if not (isinstance(self.sha256, str) and len(self.sha256) == 64 and _HEX.issuperset(self.sha256)):
            raise Damaged("the pointer has no digest")
        if not all(type(each) is int and each >= 0 for each in counts) or not isinstance(self.publisher, str):
            raise Damaged("the pointer has other types than its format")
        if self.size_bytes > SNAPSHOT_MAX_BYTES or self.entries + self.directories > ENTRIES_MAX:
            raise Damaged(
                f"the snapshot has {self.size_bytes} bytes and {self.entries} entries: more than a mount takes"
            )
        moment = self.published_at
        if isinstance(moment, bool) or not isinstance(moment, int | float) or not math.isfinite(moment) or moment < 0:
            raise Damaged("the pointer has no time")
        if len(self.publisher) > _PUBLISHER_MAX_CHARACTERS:
            raise Damaged("the pointer's publisher is too long")


def snapshot_key(sha256: str) -> str:
    """The key of a snapshot, below the repository's prefix."""
    return f"{SNAPSHOTS}{sha256}.snapshot"


class PublishedTree:
    """The names of one snapshot. Make one with `open`."""

    def __init__(self, pointer: Pointer, frames: list[memoryview], bounds: list[tuple[str, str]], now: float) -> None:
        """`bounds` has the first and the last directory of each frame."""
        self.pointer = pointer
        self._digest = pointer.sha256[:16]
        self._frames = frames
        self._firsts = [first for first, _ in bounds]
        self._lasts = [last for _, last in bounds]
        self._date_ns = int(min(pointer.published_at, now) * 1e9)
        self._unpacked: OrderedDict[int, Mapping[str, RecalledListing]] = OrderedDict()

    @classmethod
    def open(cls, data: bytes, pointer: Pointer, prefix: str, now: float) -> PublishedTree:
        """The tree in `data` below `prefix`. Raises Damaged. `now` is time.time().

        Reads every frame, a millisecond each. Call it in a worker thread.
        """
        if len(data) != pointer.size_bytes or hashlib.sha256(data).hexdigest() != pointer.sha256:
            raise Damaged("the snapshot's bytes are not those that were published")
        frames: list[memoryview] = []
        bounds: list[tuple[str, str]] = []
        entries, directories, last = 0, 0, None
        room_bytes = max(_UNPACKED * len(data), _LEAST_UNPACKED_BYTES)
        try:
            packed = snapshot.split(data)
            head = snapshot.read_head(snapshot.inflate(next(packed)))
            if head.prefix != prefix:
                raise Damaged(f"the snapshot is of the prefix {head.prefix!r:.200}")
            for frame in packed:
                content = snapshot.inflate(frame)
                room_bytes -= len(content)
                if room_bytes < 0:
                    raise Damaged("the snapshot becomes larger than any tree when it is unpacked")
                listings: dict[str, RecalledListing] = {}
                entries += snapshot.read_batch(content, listings)
                order = list(listings)
                if not order or order != sorted(order) or (last is not None and order[0] < last):
                    raise Damaged("the snapshot's directories are not in order")
                if not all(_is_below(each, prefix) for each in order):
                    raise Damaged("the snapshot has directories outside of its prefix")
                directories += len(order) - (order[0] == last)
                last = order[-1]
                frames.append(frame)
                bounds.append((order[0], last))
        except Damaged:
            raise
        except (*snapshot.UNREADABLE, StopIteration) as error:
            raise Damaged(f"the snapshot cannot be read: {error}") from None
        if (entries, directories) != (pointer.entries, pointer.directories):
            raise Damaged("the snapshot has another number of entries than the pointer says")
        return cls(pointer, frames, bounds, now)

    def page(self, prefix: str, token: str = "") -> ListingPage:
        """One page of a directory: the first ("") or the one after a token. Empty if it has none.

        A token names the last key before it. So one of another snapshot goes on at the same name.
        """
        digest, at_text, after = token.split(" ", 2) if token else (self._digest, "", "")
        span = self._span(prefix)
        start = int(at_text) if at_text and digest == self._digest else span.start
        for at in range(start, span.stop):
            found = self._listings(at).get(prefix)
            entries = () if found is None else found.listing.entries.items()
            keys = [(f"{prefix}{name}" if version else f"{prefix}{name}/", version) for name, version in entries]
            shown = [(key, version) for key, version in keys if key > after]
            if shown:
                is_last = at + 1 == span.stop or prefix not in self._listings(at + 1)
                return ListingPage(
                    tuple(version for _, version in shown if version),
                    tuple(key for key, version in shown if not version),
                    "" if is_last else f"{self._digest} {at + 1} {shown[-1][0]}",
                    self._date_ns,
                )
        return ListingPage((), (), "", self._date_ns)

    def pages(self, prefix: str) -> Iterator[ListingPage]:
        """All pages of a directory."""
        token = ""
        while True:
            page = self.page(prefix, token)
            yield page
            if not (token := page.next_token):
                return

    def find(self, key: str) -> ObjectVersion | None:
        """The object of a key; None if there is none, or a directory has its name."""
        cut = key.rfind("/") + 1
        prefix, name = key[:cut], key[cut:]
        for at in self._span(prefix):
            found = self._listings(at).get(prefix)
            if found is not None and name in found.listing.entries:
                return found.listing.entries[name]
        return None

    def has_directory(self, prefix: str) -> bool:
        """True if there is a directory of this prefix."""
        return any(prefix in self._listings(at) for at in self._span(prefix))

    def _span(self, prefix: str) -> range:
        """The frames in which a directory may lie."""
        start = bisect_left(self._lasts, prefix)
        stop = start
        while stop < len(self._firsts) and self._firsts[stop] <= prefix:
            stop += 1
        return range(start, stop)

    def _listings(self, at: int) -> Mapping[str, RecalledListing]:
        if (known := self._unpacked.get(at)) is not None:
            self._unpacked.move_to_end(at)
            return known
        listings: dict[str, RecalledListing] = {}
        snapshot.read_batch(snapshot.inflate(self._frames[at]), listings)
        self._unpacked[at] = listings
        if len(self._unpacked) > _KEPT:
            self._unpacked.popitem(last=False)
        return listings


def _is_below(directory: str, prefix: str) -> bool:
    return directory == prefix or (directory.startswith(prefix) and directory.endswith("/"))


def encode_listings(prefix: str, listings: Iterator[DirectoryListing], level: int) -> tuple[bytes, int, int, int]:
    """The snapshot of a repository's listings, and its numbers of entries, directories and files.

    The same names make the same bytes: they bear no time, and come in the order of their keys. Raises
    ValueError for a text that cannot be written.
    """
    directories = [_known(each) for each in listings]
    entries = sum(len(each.children) for each in directories)
    files = entries - sum(each.subdirectories for each in directories)
    head = snapshot.SnapshotHead(
        about="",
        seal="",
        prefix=prefix,
        listed_at=0.0,
        directories=len(directories),
        entries=entries,
        files=files,
        last_scan=LastScanStatus(objects=files, directories=len(directories), pages=0, took_s=0.0),
    )
    return b"".join(snapshot.encode(head, directories, level=level)), entries, len(directories), files


def _known(listing: DirectoryListing) -> snapshot.KnownDirectory:
    children = {name: version or snapshot.NO_VERSION for name, version in listing.entries.items()}
    ordered = sorted(
        children.items(), key=lambda each: each[0] if each[1] is not snapshot.NO_VERSION else f"{each[0]}/"
    )
    subdirectories = sum(each is snapshot.NO_VERSION for each in children.values())
    return snapshot.KnownDirectory(listing.prefix, 0.0, True, dict(ordered), subdirectories, 0, {})
