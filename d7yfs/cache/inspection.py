"""The cache directory as a person sees it: what lies there, whether it is right, and away with it. For use beside running daemons.

Rules that make that safe: a map is read without its lock (its header changes only while nobody has the pair open, and what is compared
with it is held by then); a pair is deleted only as eviction does it, under the exclusive lock that no opener leaves room for; and of a pair
in use only entries are cleared, which costs the block and never its reader.
dfdaemon's file, where one is linked beside a pair, is part of the version: a block is there when either file has it. A daemon that has the
version open remembers a block as present, though: it looks at the map again when the last handle is closed.

Called by the command line. Blocks on local files.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import struct
from array import array
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from pathlib import Path

import crc32c

from d7yfs.cache.directory import (
    ENTRY_BYTES,
    FORMAT,
    HEADER,
    HEADER_BYTES,
    MAGIC,
    delete_pair,
    linked_bytes,
    same_file,
)
from d7yfs.cache.presence import Block, Presence, block_count, block_range
from d7yfs.checksum import plain_md5
from d7yfs.config.place import Place
from d7yfs.errors import CacheUnusable
from d7yfs.objects import BLOCK_BYTES, StoreIdentity

_WORKERS = 4
_JOB_BLOCKS = 64
_ABSENT = bytes(ENTRY_BYTES)


@dataclass(frozen=True, slots=True)
class Map:
    """What a map file says, the entries aside."""

    store: StoreIdentity
    key: str
    validator: str
    size_bytes: int
    data_file: tuple[int, int]
    """st_dev and st_ino of the data file that it speaks of."""

    @classmethod
    def parse(cls, header: bytes) -> Map | None:
        """Read the first HEADER_BYTES of a map; None when that is no map of ours."""
        try:
            magic, header_bytes, block_bytes, size_bytes, device, inode, length = HEADER.unpack_from(header)
            if (magic, header_bytes, block_bytes) != (MAGIC, HEADER_BYTES, BLOCK_BYTES):
                return None
            text = header[HEADER.size : HEADER.size + length].decode(errors="surrogatepass")
            said = json.loads(text)
            texts = [said[name] for name in ("scheme", "endpoint", "bucket", "account", "key", "validator")]
            if not all(isinstance(each, str) for each in texts):
                return None
            *store, key, validator = texts
            return cls(StoreIdentity(*store), key, validator, size_bytes, (device, inode))
        except (struct.error, ValueError, KeyError, TypeError):
            return None

    def lies_in(self, place: Place) -> bool:
        """True if `place` is this object or above it."""
        return place.covers(self.store, self.key)


@dataclass(frozen=True, slots=True)
class Stored:
    """One version in the directory."""

    map_path: Path
    map: Map
    cached_bytes: int
    disk_bytes: int
    used_at: float
    """When it was opened or closed last, in seconds since the epoch."""
    in_use: bool
    """Some process has it open."""

    @property
    def name(self) -> str:
        """The URL by which it can be asked for."""
        return str(Place(self.map.store, self.map.key))

    @property
    def complete(self) -> bool:
        return self.cached_bytes == self.map.size_bytes


@dataclass(slots=True)
class Verdict:
    """What `verify` found out about one version."""

    stored: Stored
    checked_blocks: int = 0
    bad_blocks: list[int] = field(default_factory=list)
    md5: bool | None = None
    """Whether the bytes make the MD5 that is the object's ETag; None where that was not to be compared."""

    @property
    def good(self) -> bool:
        return not self.bad_blocks and self.md5 is not False


def stored(directory: Path) -> list[Stored]:
    """All versions in the directory, by name. Raises CacheUnusable when it cannot be read."""
    found = (_look(path) for path in _maps(directory))
    return sorted((each for each in found if each), key=lambda each: (each.name, -each.used_at))


def verify(chosen: Iterable[Stored], advance: Callable[[int], None], *, md5: bool = False) -> list[Verdict]:
    """Compare every present block with its checksum and clear the entries of bad ones, so that they are fetched again.

    `advance` is told of bytes as they are done, in this thread. `md5`: compare whole files with ETags that look like their MD5 too.
    """
    verdicts = [Verdict(each) for each in chosen]
    with ThreadPoolExecutor(_WORKERS) as workers:
        jobs = {
            workers.submit(_check_blocks, verdict.stored, first, first + _JOB_BLOCKS): verdict
            for verdict in verdicts
            for first in range(0, block_count(verdict.stored.map.size_bytes), _JOB_BLOCKS)
        }
        for job in as_completed(jobs):
            checked, bad, checked_bytes = job.result()
            jobs[job].checked_blocks += checked
            jobs[job].bad_blocks += bad
            advance(checked_bytes)
        if md5:
            sums = {
                workers.submit(_matches_md5, verdict.stored): verdict for verdict in verdicts if not verdict.bad_blocks
            }
            for compared in as_completed(sums):
                sums[compared].md5 = compared.result()
    for verdict in verdicts:
        verdict.bad_blocks.sort()
    return verdicts


def drop(chosen: Iterable[Stored]) -> tuple[list[Stored], list[Stored]]:
    """Delete versions that nobody has open; returns those that are gone and those that are in use."""
    gone: list[Stored] = []
    kept: list[Stored] = []
    for each in chosen:
        (gone if delete_pair(each.map_path) or not each.map_path.exists() else kept).append(each)
    return gone, kept


def drop_remains(directory: Path) -> None:
    """Delete what no map speaks of any more: damaged pairs and data that a crash left behind, unless somebody has them open."""
    for map_path in _maps(directory):
        if _look(map_path) is None:
            delete_pair(map_path)
    for pattern in ("*/*.data", "*/*.link"):
        for path in (directory / FORMAT).glob(pattern):
            if not path.with_suffix(".map").exists():
                delete_pair(path.with_suffix(".map"), os.O_CREAT)


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
    """The version behind one map; None when it is gone, damaged, or without the data it speaks of."""
    with contextlib.suppress(OSError, ValueError), _opened(map_path, os.O_RDONLY) as map_fd:
        found = Map.parse(os.pread(map_fd, HEADER_BYTES, 0))
        if found is None:
            return None
        data = map_path.with_suffix(".data").stat()
        if (data.st_dev, data.st_ino) != found.data_file or data.st_size != found.size_bytes:
            return None
        entries = _entries(map_fd, 0, block_count(found.size_bytes))
        if len(entries) != block_count(found.size_bytes):
            return None
        linked = _linked_entries(map_path, found, 0, len(entries))
        there = (own or link for own, link in zip_longest(entries, linked, fillvalue=0))
        present = Presence(found.size_bytes, (Block.DISK if entry else Block.ABSENT for entry in there))
        status = os.fstat(map_fd)
        return Stored(
            map_path=map_path,
            map=found,
            cached_bytes=present.cached_bytes,
            disk_bytes=(status.st_blocks + data.st_blocks) * 512 + linked_bytes(map_path),
            used_at=status.st_mtime,
            in_use=not _lock(map_fd, fcntl.LOCK_EX),
        )
    return None


def _check_blocks(stored: Stored, first: int, stop: int) -> tuple[int, list[int], int]:
    """How many of these blocks are present, which of them are bad, and their bytes. For a worker thread."""
    checked, bad, checked_bytes = _check_linked_blocks(stored, first, stop)
    with contextlib.suppress(OSError, ValueError), _opened_pair(stored, os.O_RDWR) as (map_fd, data_fd):
        size_bytes = stored.map.size_bytes
        entries = _entries(map_fd, first, min(stop, block_count(size_bytes)))
        for index, entry in enumerate(entries, first):
            if not entry & 0xFFFFFFFF:
                continue
            checked += 1
            block = block_range(index, size_bytes)
            checked_bytes += block.size
            if _is_good(data_fd, block.start, block.size, entry):
                continue
            # Once more: a daemon may have been writing the block anew.
            if _entries(map_fd, index, index + 1)[0] == entry and not _is_good(data_fd, block.start, block.size, entry):
                bad.append(index)
                os.pwrite(map_fd, _ABSENT, HEADER_BYTES + index * ENTRY_BYTES)
    return checked, bad, checked_bytes


def _check_linked_blocks(stored: Stored, first: int, stop: int) -> tuple[int, list[int], int]:
    """As `_check_blocks`, of those in dfdaemon's file whose checksum was taken. Of its own map only entries are cleared, never the file."""
    bad: list[int] = []
    checked = checked_bytes = 0
    size_bytes = stored.map.size_bytes
    link_path, map_path = stored.map_path.with_suffix(".link"), stored.map_path.with_suffix(".linkmap")
    with contextlib.suppress(OSError, ValueError), _opened(link_path, os.O_RDONLY) as link_fd:
        entries = _linked_entries(stored.map_path, stored.map, first, min(stop, block_count(size_bytes)))
        for index, entry in enumerate(entries, first):
            if not entry >> 32:
                continue
            checked += 1
            block = block_range(index, size_bytes)
            checked_bytes += block.size
            if not _is_good(link_fd, block.start, block.size, entry):
                bad.append(index)
                with _opened(map_path, os.O_WRONLY) as map_fd:
                    os.pwrite(map_fd, _ABSENT, HEADER_BYTES + index * ENTRY_BYTES)
    return checked, bad, checked_bytes


def _linked_entries(map_path: Path, of: Map, first: int, stop: int) -> array[int]:
    """What dfdaemon's file beside a pair holds of blocks [first, stop); empty where there is none that the map of it speaks of."""
    with contextlib.suppress(OSError, ValueError, struct.error):
        link = map_path.with_suffix(".link").stat()
        with _opened(map_path.with_suffix(".linkmap"), os.O_RDONLY) as map_fd:
            said = Map.parse(os.pread(map_fd, HEADER_BYTES, 0))
            if said == replace(of, data_file=(link.st_dev, link.st_ino)):
                return _entries(map_fd, first, stop)
    return array("Q")


def _is_good(data_fd: int, start: int, size_bytes: int, entry: int) -> bool:
    try:
        data = os.pread(data_fd, size_bytes, start)
    except OSError:
        return False
    return len(data) == size_bytes and crc32c.crc32c(data) == entry >> 32


def _matches_md5(stored: Stored) -> bool | None:
    """Whether a complete file has the MD5 that its ETag claims; None when there is nothing to compare. For a worker thread."""
    claimed = plain_md5(stored.map.validator)
    if not claimed or not stored.complete:
        return None
    with (
        contextlib.suppress(OSError),
        contextlib.ExitStack() as files,
        _opened_pair(stored, os.O_RDONLY) as (map_fd, data_fd),
    ):
        count = block_count(stored.map.size_bytes)
        own = _entries(map_fd, 0, count)
        link_fd = -1
        if not all(own):
            link_fd = files.enter_context(_opened(stored.map_path.with_suffix(".link"), os.O_RDONLY))
        md5 = hashlib.md5(usedforsecurity=False)
        for index, entry in enumerate(own):
            md5.update(os.pread(data_fd if entry else link_fd, BLOCK_BYTES, index * BLOCK_BYTES))
        return md5.hexdigest() == claimed
    return None


def _entries(map_fd: int, first: int, stop: int) -> array[int]:
    return array("Q", os.pread(map_fd, (stop - first) * ENTRY_BYTES, HEADER_BYTES + first * ENTRY_BYTES))


@contextlib.contextmanager
def _opened(path: Path, flags: int) -> Iterator[int]:
    fd = os.open(path, flags | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)


@contextlib.contextmanager
def _opened_pair(stored: Stored, flags: int) -> Iterator[tuple[int, int]]:
    """Map and data, held as an opener holds them, so that nobody deletes them meanwhile. Raises OSError when the pair is another by now."""
    with (
        _opened(stored.map_path, flags) as map_fd,
        _opened(stored.map_path.with_suffix(".data"), os.O_RDONLY) as data_fd,
    ):
        data = os.fstat(data_fd)
        if (
            not _lock(map_fd, fcntl.LOCK_SH)
            or not same_file(stored.map_path, map_fd)
            or (data.st_dev, data.st_ino) != stored.map.data_file
        ):
            raise FileNotFoundError(stored.map_path)
        yield map_fd, data_fd


def _lock(fd: int, kind: int) -> bool:
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
