"""The cache directory as a person sees it: list, verify and delete versions, while daemons run.

Rules that make that safe:

- A map is read without its lock: its header changes only while no process has the pair open, and
  files compared with it are held by then.
- A pair is deleted as eviction does it, under the exclusive lock that no opener leaves room for.
- Of a pair in use only entries are cleared, which costs the block and never its reader.

dfdaemon's file, if one is linked, is part of the version: a block is there when either file has it.
A daemon that has the version open remembers a block as present: it re-reads the map after the last
handle is closed.

Called by the command line. Blocks on local files.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import heapq
import os
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field, replace
from itertools import groupby, zip_longest
from operator import itemgetter
from pathlib import Path

from d7yfs.bounds.values import read_json, read_size
from d7yfs.cache.directory import FORMAT, delete_orphans, delete_pair, linked_bytes
from d7yfs.cache.kept_names import NAMES, KeptNames
from d7yfs.cache.pair import (
    HEADER_BYTES,
    block_count,
    block_range,
    lock,
    opened,
    parse_header,
    same_file,
)
from d7yfs.cache.table import ENTRY_BYTES, stored_pieces
from d7yfs.checksum import crc32c, plain_md5
from d7yfs.config.place import Place
from d7yfs.errors import CacheUnusable
from d7yfs.objects import BLOCK_BYTES, ByteRange, StoreIdentity

_WORKERS = 4
_JOB_BLOCKS = 64
_ABSENT = bytes(ENTRY_BYTES)

# The reasons why the MD5 of a file tells nothing, in words.
INCOMPLETE = "not all of the file is cached"
HAS_BAD_BLOCKS = "the file has bad blocks"
UNREADABLE = "the file could not be read"
EDITED = "the file is kept without Dragonfly's agent (--hide-agents), which the ETag has"
NO_MD5 = "the ETag is no MD5: a multipart upload, or a store whose ETags never are"
DIFFERS = "the ETag is not the MD5: none where the store encrypts with keys of KMS or the customer's, else the bytes are wrong"
"""Such an ETag looks like an MD5, and only the store's reply to a HEAD tells. Sources:
https://docs.aws.amazon.com/AmazonS3/latest/API/API_Object.html (ETag)."""


@dataclass(frozen=True, slots=True)
class Map:
    """The header of a map file: the object and the data file that it speaks of."""

    store: StoreIdentity
    key: str
    validator: str
    size_bytes: int
    data_file: tuple[int, int]
    """st_dev and st_ino of the data file."""
    edit: str = ""
    """The change that d7yfs has made to the object's bytes (`ObjectVersion.edit`)."""

    @classmethod
    def parse(cls, header: bytes) -> Map | None:
        """Read the first HEADER_BYTES of a map; None when it is no map of ours."""
        try:
            parsed = parse_header(header)
            if parsed is None:
                return None
            identity, size_bytes, data_file = parsed
            said = read_json(identity)
            texts = [said[name] for name in ("scheme", "endpoint", "bucket", "account", "key", "validator")]
            edit = said.get("edit", "")
            if not all(isinstance(each, str) for each in (*texts, edit)):
                return None
            *store, key, validator = texts
            return cls(StoreIdentity(*store), key, validator, read_size(size_bytes), data_file, edit)
        except (ValueError, KeyError, TypeError):
            return None

    @property
    def identity(self) -> tuple[str, str, int]:
        """`ObjectVersion.identity` of the version, within its store."""
        return (self.key, self.validator + self.edit, self.size_bytes)

    def lies_in(self, place: Place) -> bool:
        """True if `place` is this object or above it."""
        return place.covers(self.store, self.key)


@dataclass(frozen=True, slots=True)
class Stored:
    """One version that lies in the directory."""

    map_path: Path
    map: Map
    cached_bytes: int
    disk_bytes: int
    runs: tuple[range, ...]
    """Runs of blocks; none is cached outside of them."""
    used_at: float
    """Time of the last open or close, in seconds since the epoch."""
    in_use: bool
    """True if a process has it open."""

    @property
    def name(self) -> str:
        """The URL by which it can be asked for."""
        return str(Place(self.map.store, self.map.key))

    @property
    def complete(self) -> bool:
        return self.cached_bytes == self.map.size_bytes


@dataclass(slots=True)
class CheckedVersion:
    """One version that `verify` has checked, and the result."""

    stored: Stored
    checked_blocks: int = 0
    bad_blocks: list[int] = field(default_factory=list)
    md5: bool = False
    """True if the bytes make the MD5 that is the object's ETag."""
    not_comparable: str = ""
    """The reason why the MD5 tells nothing, if it was asked for."""

    @property
    def good(self) -> bool:
        return not self.bad_blocks


def stored(directory: Path) -> list[Stored]:
    """All versions in the directory, by name. Raises CacheUnusable when it cannot be read."""
    found = (_look(path) for path in _maps(directory))
    return sorted((each for each in found if each), key=lambda each: (each.name, -each.used_at))


def verify(chosen: Iterable[Stored], advance: Callable[[int], None], *, md5: bool = False) -> list[CheckedVersion]:
    """Compare every present block with its checksum, and clear the entries of bad ones, so that
    they are fetched again.

    `advance` is told of bytes as they are done, in this thread. With `md5`, whole files are
    compared with their ETags, too. That proves many files right, and none wrong.
    """
    verdicts = [CheckedVersion(each) for each in chosen]
    with ThreadPoolExecutor(_WORKERS) as workers:
        jobs = {
            workers.submit(_check_blocks, verdict.stored, first, min(first + _JOB_BLOCKS, run.stop)): verdict
            for verdict in verdicts
            for run in verdict.stored.runs
            for first in run[::_JOB_BLOCKS]
        }
        for job in as_completed(jobs):
            checked, bad, checked_bytes = job.result()
            jobs[job].checked_blocks += checked
            jobs[job].bad_blocks += bad
            advance(checked_bytes)
        if md5:
            sums = {workers.submit(_compare_md5, verdict): verdict for verdict in verdicts}
            for compared in as_completed(sums):
                sums[compared].not_comparable = compared.result()
                sums[compared].md5 = not compared.result()
    for verdict in verdicts:
        verdict.bad_blocks.sort()
    return verdicts


def drop(chosen: Iterable[Stored]) -> tuple[list[Stored], list[Stored]]:
    """Delete versions that no process has open; returns those gone and those in use."""
    gone: list[Stored] = []
    kept: list[Stored] = []
    for each in chosen:
        (gone if delete_pair(each.map_path) or not each.map_path.exists() else kept).append(each)
    return gone, kept


def drop_remains(directory: Path) -> None:
    """Delete files that no map speaks of any more, if no process has them open: damaged pairs, and
    data left by a crash. The names that are kept for later mounts go, too.
    """
    for map_path in _maps(directory):
        if _look(map_path) is None:
            delete_pair(map_path)
    delete_orphans(directory / FORMAT)
    KeptNames(directory / FORMAT / NAMES).clear()


def _maps(directory: Path) -> Iterator[Path]:
    root = directory / FORMAT
    try:
        folders = sorted(each for each in root.iterdir() if each.is_dir())
    except FileNotFoundError:
        return
    except OSError as error:
        raise CacheUnusable(
            f"cache directory {directory} cannot be read: {error.strerror}",
            hint="it belongs to the user who mounts; ask as that user or name another with --cache-dir",
        ) from error
    for folder in folders:
        yield from folder.glob("*.map")


def _look(map_path: Path) -> Stored | None:
    """Read the version behind one map; None when it is gone, damaged, or without its data."""
    with contextlib.suppress(OSError, ValueError), opened(map_path, os.O_RDONLY) as map_fd:
        found = Map.parse(os.pread(map_fd, HEADER_BYTES, 0))
        if found is None:
            return None
        data = map_path.with_suffix(".data").stat()
        if (data.st_dev, data.st_ino) != found.data_file or data.st_size != found.size_bytes:
            return None
        status = os.fstat(map_fd)
        if status.st_size < HEADER_BYTES + block_count(found.size_bytes) * ENTRY_BYTES:
            return None
        with contextlib.ExitStack() as files:
            map_fds = [map_fd]
            with contextlib.suppress(OSError, ValueError):
                map_fds.append(files.enter_context(_opened_link(map_path, found, os.O_RDONLY))[0])
            cached_bytes, runs = _measure(found.size_bytes, map_fds)
        return Stored(
            map_path=map_path,
            map=found,
            cached_bytes=cached_bytes,
            runs=runs,
            disk_bytes=(status.st_blocks + data.st_blocks) * 512 + linked_bytes(map_path),
            used_at=status.st_mtime,
            in_use=not lock(map_fd, fcntl.LOCK_EX),
        )
    return None


def _measure(size_bytes: int, map_fds: Sequence[int]) -> tuple[int, tuple[range, ...]]:
    """Bytes of the blocks that one of the maps has, and the runs in which they lie. Maps are read
    piece by piece, and where they have no holes."""
    count = block_count(size_bytes)
    present, has_last = 0, False
    runs: list[range] = []
    pieces = heapq.merge(*(stored_pieces(fd, HEADER_BYTES, count) for fd in map_fds), key=itemgetter(0))
    for first, same in groupby(pieces, key=itemgetter(0)):
        entries = [any(each) for each in zip_longest(*(piece for _, piece in same), fillvalue=0)]
        present += sum(entries)
        runs.append(range(first, first + len(entries)))
        has_last = runs[-1].stop == count and entries[-1]
    return present * BLOCK_BYTES - (-size_bytes % BLOCK_BYTES if has_last else 0), tuple(runs)


def _check_blocks(stored: Stored, first: int, stop: int) -> tuple[int, list[int], int]:
    """Check blocks [first, stop): how many are present, the bad ones, their bytes.

    Of dfdaemon's file only blocks that have a checksum are checked, and only entries of its map are
    cleared; the file stays.
    """
    checked = checked_bytes = 0
    bad: list[int] = []
    for opened_files, checksum_shift in ((_opened_link, 32), (_opened_pair, 0)):
        with (
            contextlib.suppress(OSError, ValueError),
            opened_files(stored.map_path, stored.map, os.O_RDWR) as (map_fd, data_fd),
        ):
            entries = _entries(map_fd, first, stop)
            for index, entry in enumerate(entries, first):
                if not entry >> checksum_shift:
                    continue
                checked += 1
                block = block_range(index, stored.map.size_bytes)
                checked_bytes += block.size
                if _is_good(data_fd, block, entry):
                    continue
                # Again: a daemon may have been writing the block anew.
                if _entries(map_fd, index, index + 1)[0] == entry and not _is_good(data_fd, block, entry):
                    bad.append(index)
                    os.pwrite(map_fd, _ABSENT, HEADER_BYTES + index * ENTRY_BYTES)
    return checked, bad, checked_bytes


def _is_good(data_fd: int, block: ByteRange, entry: int) -> bool:
    try:
        data = os.pread(data_fd, block.size, block.start)
    except OSError:
        return False
    return len(data) == block.size and crc32c(data) == entry >> 32


def _compare_md5(verdict: CheckedVersion) -> str:
    """The reason why the MD5 of a file tells nothing; empty if it is the ETag. For a worker thread."""
    stored = verdict.stored
    if stored.map.edit:
        return EDITED
    claimed = plain_md5(stored.map.validator.lower())
    if not claimed:
        return NO_MD5
    if verdict.bad_blocks or not stored.complete:
        return HAS_BAD_BLOCKS if verdict.bad_blocks else INCOMPLETE
    with (
        contextlib.suppress(OSError),
        contextlib.ExitStack() as files,
        _opened_pair(stored.map_path, stored.map, os.O_RDONLY) as (map_fd, data_fd),
    ):
        link_fd = -1
        md5 = hashlib.md5(usedforsecurity=False)
        for run in stored.runs:
            for index in run:
                (entry,) = _entries(map_fd, index, index + 1)
                if not entry and link_fd < 0:
                    link_fd = files.enter_context(opened(stored.map_path.with_suffix(".link"), os.O_RDONLY))
                md5.update(os.pread(data_fd if entry else link_fd, BLOCK_BYTES, index * BLOCK_BYTES))
        return "" if md5.hexdigest() == claimed else DIFFERS
    return UNREADABLE


def _entries(map_fd: int, first: int, stop: int) -> array[int]:
    return array("Q", os.pread(map_fd, (stop - first) * ENTRY_BYTES, HEADER_BYTES + first * ENTRY_BYTES))


@contextlib.contextmanager
def _opened_pair(map_path: Path, of: Map, flags: int) -> Iterator[tuple[int, int]]:
    """Open map and data and hold them as an opener does, so that they are not deleted meanwhile.

    Raises OSError when the pair is another by now.
    """
    with opened(map_path, flags) as map_fd, opened(map_path.with_suffix(".data"), os.O_RDONLY) as data_fd:
        data = os.fstat(data_fd)
        is_same = (data.st_dev, data.st_ino) == of.data_file
        if not lock(map_fd, fcntl.LOCK_SH) or not same_file(map_path, map_fd) or not is_same:
            raise FileNotFoundError(map_path)
        yield map_fd, data_fd


@contextlib.contextmanager
def _opened_link(map_path: Path, of: Map, flags: int) -> Iterator[tuple[int, int]]:
    """Open dfdaemon's file and its map. Raises OSError when there is none that fits."""
    with (
        opened(map_path.with_suffix(".linkmap"), flags) as map_fd,
        opened(map_path.with_suffix(".link"), os.O_RDONLY) as link_fd,
    ):
        link = os.fstat(link_fd)
        if Map.parse(os.pread(map_fd, HEADER_BYTES, 0)) != replace(of, data_file=(link.st_dev, link.st_ino)):
            raise FileNotFoundError(map_path)
        yield map_fd, link_fd
