"""A version's second store: dfdaemon's own file of it, hard-linked next to the pair. Only ever
read.

    CACHE_DIR/v2/a/abcdef….link       a hard link to the file in dfdaemon's store
    CACHE_DIR/v2/a/abcdef….linkmap    as the pair's map, bound to the link's st_dev and st_ino
    CACHE_DIR/v2/incoming/…           where dfdaemon is asked to put a link

Invariants:

- The link is opened read-only and never written, punched or truncated: dfdaemon serves the same
  file to its peers.
- The link is as long as the object from the start, and bytes that have not come read as zeros. So a
  block is there only when dfdaemon has announced its piece and (unless told otherwise) the piece
  has the CRC32 that it said.
- A block's CRC32C is taken when its piece is checked, in the same pass, and stored in its entry.
  Blocks of a piece that is not checked have none: they are believed until the machine's next boot,
  and then fetched again.
- dfdaemon can write the file after its check. So mtime and ctime of the link are looked at after
  each read of it. When they have moved, each block is compared with its CRC32C before its next use.
  Blocks without one are fetched again if the mtime has moved. While a hand-over runs, dfdaemon
  itself moves the times, and nothing follows from them.
- The map is removed before the link is replaced and made after it, so that no map ever speaks of a
  file that took an old one's inode.
- Once the link has all of the object, compared, the pair's own blocks are waste: `shed_copies`
  makes the pair anew when no process has it open.

The pair's lock guards both files too. Descriptors of replaced links stay open until `close`, as
threads may be reading from them.

Made by `Cache` and used by `BackingFile`. Trio thread only, but for `take`, `check` and
`block_crc32c`, which are for any thread, and `open`, which waits for the disk. `Cache` calls
`shed_copies` where it evicts.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import stat
import threading
from array import array
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path

from d7yfs.cache.directory import CacheDirectory
from d7yfs.cache.disk import Disk
from d7yfs.cache.file_io import read_whole
from d7yfs.cache.pair import (
    HEADER_BYTES,
    LINKED,
    TIMES,
    TIMES_OFFSET,
    Block,
    Presence,
    VersionFiles,
    block_count,
    block_range,
    blocks_of,
    make_pair,
    map_header,
    opened,
    parse_header,
    read_map,
    same_file,
    write_entries,
)
from d7yfs.cache.table import blank_entries, nonzero, write_blank
from d7yfs.checksum import crc32c
from d7yfs.objects import ByteRange

try:
    from zlib_ng.zlib_ng import crc32
except ImportError:  # the extra is not installed: half as fast, and right all the same
    from zlib import crc32

log = logging.getLogger(__name__)
_CHUNK_BYTES = 256 << 10
"""Small enough to stay in the processor's cache between the two sums."""
_scratch = threading.local()
Taken = tuple[int, int]
"""The descriptors of a new link and of its map."""
Times = tuple[int, int]
"""mtime and ctime of a link, in ns."""
Cold = list[tuple[int, int, memoryview, Times | None]]
"""Pieces that are still to be read from a disk: descriptor, offset, destination, and the times that
prove a link unchanged."""


class LinkFailed(OSError):
    """The linked file could not be read, or is cut off: its blocks are to be had elsewhere."""


class LinkChanged(LinkFailed):
    """The linked file was written since it was checked: its blocks are to be compared anew."""


class LinkedStore:
    """The link of one open version, if there is one."""

    def __init__(self, files: VersionFiles, size_bytes: int, boot_tag: int, disk: Disk) -> None:
        self._files = files
        self._disk = disk
        self._size_bytes = size_bytes
        self._boot_tag = boot_tag
        self._fd = self._map_fd = -1
        self._entries = blank_entries(0)
        self._replaced: list[int] = []
        self.times: Times | None = None
        """The times of the link that prove it unchanged; None while dfdaemon writes it."""
        self.was_doubted = False
        """True if the times have moved since its blocks were checked."""

    @property
    def fd(self) -> int:
        """The descriptor of the link; -1 when there is none."""
        return self._fd

    def known(self) -> Iterator[tuple[int, Block]]:
        """The index and state of the blocks that the link has, by its map."""
        states = ((index, self._stored_state(entry)) for index, entry in nonzero(self._entries))
        return ((index, state) for index, state in states if state != Block.ABSENT)

    def _stored_state(self, entry: int) -> Block:
        if entry & 0xFFFFFFFF == self._boot_tag:
            return Block.LINKED
        return Block.UNVERIFIED_LINK if entry >> 32 else Block.ABSENT

    def open(self) -> None:
        """Use the link of an earlier hand-over, if its map speaks of it. For any thread. Raises
        OSError.
        """
        link, link_map = self._files.link_path, self._files.link_map_path
        map_fd = os.open(link_map, os.O_RDWR | os.O_CLOEXEC)
        try:
            fd = _open_link(link)
        except OSError:
            os.close(map_fd)
            raise
        entries = read_map(map_fd, link, self._files.identity, self._size_bytes)
        if entries is None or not os.path.samestat(os.fstat(fd), link.stat()):
            os.close(map_fd)
            os.close(fd)
            return
        self._fd, self._map_fd, self._entries = fd, map_fd, entries
        mtime, ctime = TIMES.unpack(os.pread(map_fd, TIMES.size, TIMES_OFFSET))
        self.times = mtime, ctime
        if self.times != times_of(fd):
            self._doubt()
            write_entries(map_fd, 0, entries, link.name)
            _write_times(map_fd, self.times)

    def take(self, incoming: Path) -> Taken | None:
        """Make the file at `incoming` the version's link, for `adopt`; None when it is the link
        already.

        For any thread. Raises OSError: ENOENT when dfdaemon sees another path than we do, EACCES
        when its file is not for us, ESTALE when the file cannot be the object's, EXDEV when it is
        no link.
        """
        fd = _open_link(incoming)
        try:
            status = os.fstat(fd)
            if status.st_size != self._size_bytes:
                raise OSError(errno.ESTALE, "dfdaemon's file has another size than the object")
            if status.st_nlink < 2:
                raise OSError(errno.EXDEV, "dfdaemon's file is a copy and no link")
            if self._fd >= 0 and os.path.samestat(status, os.fstat(self._fd)):
                incoming.unlink()
                os.close(fd)
                return None
            link_map = self._files.link_map_path
            link_map.unlink(missing_ok=True)
            incoming.rename(self._files.link_path)
            map_fd = os.open(link_map, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except OSError:
            os.close(fd)
            raise
        header = map_header(status, self._files.identity, self._size_bytes)
        try:
            # Written whole, as the pair's: a map that is cut off is not believed.
            write_blank(map_fd, header, block_count(self._size_bytes))
        except OSError as error:
            log.warning("cache: a link cannot be recorded, and is gone with this process: %s", error.strerror)
        return fd, map_fd

    def leave(self, taken: Taken | None) -> None:
        """Leave the result of `take`, which no caller waits for any more, to the next process that
        opens the version.
        """
        self._replaced += taken or ()

    def adopt(self, taken: Taken) -> None:
        """Use the result of `take` as the link from now on; none of its blocks is there yet."""
        self.drop()
        self._fd, self._map_fd = taken
        self._entries = blank_entries(block_count(self._size_bytes))

    def begin_writes(self) -> None:
        """Let the times move from now on, as dfdaemon writes the file; until `end_writes`."""
        self._store_times(None)

    def end_writes(self) -> None:
        """Hold the link to the times that it has now."""
        if self._fd >= 0:
            self._store_times(times_of(self._fd))

    def doubt(self, presence: Presence) -> None:
        """Have each block compared before its next use, as the times of the link have moved.

        A change of its names moves the ctime alone. That says nothing against blocks that were
        never compared.
        """
        if self._fd < 0:
            return
        self._doubt()
        # First the entries: a process that ends between the two leaves the times that tell of it.
        self._write_entries(0, len(self._entries))
        self._store_times(self.times)
        for index, known in presence.known():
            if known == Block.LINKED:
                state = self._stored_state(self._entries[index])
                presence.set_present(index, state) if state else presence.set_absent(index)

    def _doubt(self) -> None:
        times = times_of(self._fd)
        was_written = self.times is None or times[0] != self.times[0]
        for index, entry in nonzero(self._entries):
            if was_written or entry >> 32:
                self._entries[index] = entry >> 32 << 32
        self.times = times
        self.was_doubted = True

    def _store_times(self, times: Times | None) -> None:
        self.times = times
        self._disk.run_soon(partial(_write_times, self._map_fd, times or (0, 0)))

    def check(self, piece: ByteRange, crc32_said: int | None) -> list[int] | None:
        """The CRC32C of each block of `piece` (cut at the object's end), whose CRC32 must be
        `crc32_said`; None when it differs.

        Without `crc32_said` nothing is read, and each is 0. For any thread. Raises LinkFailed.
        """
        blocks = [block_range(index, self._size_bytes) for index in blocks_of(piece)]
        if crc32_said is None:
            return [0] * len(blocks)
        buffer = _scratch_buffer()
        crcs, crc = [], 0
        for block in blocks:
            block_crc = 0
            for chunk in block.split(_CHUNK_BYTES):
                view = buffer[: chunk.size]
                read_link(self._fd, chunk.start, view)
                crc = crc32(view, crc)
                block_crc = crc32c(view, block_crc)
            crcs.append(block_crc)
        return crcs if crc == crc32_said else None

    def record(self, piece: ByteRange, crcs: Iterable[int]) -> None:
        """Enter the blocks of `piece` with the result of `check`."""
        indexes = blocks_of(piece)
        for index, crc in zip(indexes, crcs, strict=True):
            self._entries[index] = crc << 32 | self._boot_tag
        self._write_entries(indexes.start, indexes.stop)

    def crc32c(self, index: int) -> int:
        """The CRC32C of one block as entered; 0 when it was not taken."""
        return self._entries[index] >> 32

    def block_crc32c(self, index: int) -> int:
        """The CRC32C of one block as it lies in the file now. For any thread. Raises LinkFailed."""
        block = block_range(index, self._size_bytes)
        view = memoryview(bytearray(block.size))
        read_link(self._fd, block.start, view)
        return int(crc32c(view))

    def matches_checksum(self, index: int) -> bool:
        """True if a block of an earlier boot has the CRC32C of its entry. For any thread."""
        try:
            return self.block_crc32c(index) == self.crc32c(index)
        except LinkFailed:
            return False

    def apply_verdict(self, index: int, *, good: bool) -> None:
        """Apply the result of `matches_checksum` to the entry of a block."""
        self._entries[index] = self._entries[index] >> 32 << 32 | self._boot_tag if good else 0
        self._write_entries(index, index + 1)

    def _write_entries(self, first: int, stop: int) -> None:
        self._disk.run_soon(
            partial(
                write_entries, self._map_fd, first, array("Q", self._entries[first:stop]), self._files.link_path.name
            )
        )

    def drop(self) -> None:
        """Forget the link and its map in this process; descriptors stay open for threads."""
        if self._fd >= 0:
            self._replaced += [self._fd, self._map_fd]
            self._fd = self._map_fd = -1
            self._entries = blank_entries(0)
        self.times = None
        self.was_doubted = False

    def remove(self) -> None:
        """Forget the link, and delete it unless another daemon has replaced it since."""
        if self._fd < 0:
            return
        self._disk.run_behind(partial(_remove, self._fd, self._map_fd, self._files.link_path))
        self.drop()

    def close(self) -> None:
        """Close all descriptors, when no thread reads any more. For any thread."""
        self.drop()
        for fd in self._replaced:
            os.close(fd)
        self._replaced.clear()


def _remove(fd: int, map_fd: int, link_path: Path) -> None:
    with contextlib.suppress(OSError):
        os.ftruncate(map_fd, 0)  # our own file: a daemon that finds it believes none of it
        if os.path.samestat(os.fstat(fd), link_path.stat()):
            link_path.unlink()


def shed_copies(directory: CacheDirectory) -> None:
    """Give back the room of own blocks of versions whose link is whole. For a worker thread, as
    eviction.

    A pair that any process has open is passed over until the next time.
    """
    for link in directory.links():
        map_path = link.with_suffix(".map")
        try:
            if map_path.with_suffix(".data").stat().st_blocks:
                _shed_copy(map_path)
        except OSError as error:
            log.debug("cache: %s keeps its own blocks in addition to its link: %s", map_path.name, error.strerror)


def _shed_copy(map_path: Path) -> None:
    link, link_map = map_path.with_suffix(".link"), map_path.with_suffix(".linkmap")
    with opened(map_path, os.O_RDWR) as map_fd:
        fcntl.flock(map_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        header = os.pread(map_fd, HEADER_BYTES, 0)
        parsed = parse_header(header)
        if not same_file(map_path, map_fd) or parsed is None:
            return  # replaced, unfinished or damaged
        identity, size_bytes, _ = parsed
        with opened(link_map, os.O_RDWR) as link_map_fd:
            entries = read_map(link_map_fd, link, identity, size_bytes)
        if entries is None or not all(entry >> 32 for entry in entries):
            return
        status = os.fstat(map_fd)
        os.ftruncate(map_fd, 0)  # from here on, the next opener finds an unfinished pair
        os.close(make_pair(map_path, map_fd, identity, size_bytes))
        os.pwrite(map_fd, header[TIMES_OFFSET:], TIMES_OFFSET)  # with the record of its proof
        os.utime(map_fd, ns=(status.st_atime_ns, status.st_mtime_ns))  # it was not used


def _scratch_buffer() -> memoryview:
    """The buffer of this thread, for as long as it lives: fresh memory would cost a third of the
    work done with it.
    """
    if not hasattr(_scratch, "buffer"):
        _scratch.buffer = memoryview(bytearray(_CHUNK_BYTES))
    buffer: memoryview = _scratch.buffer
    return buffer


def read_link(fd: int, start: int, view: memoryview, times: Times | None = None) -> None:
    """Fill `view` from the link, which must have `times` then. Raises LinkFailed."""
    try:
        read_whole(fd, start, view)
    except OSError as error:
        raise LinkFailed(error.errno, error.strerror) from error
    if times is not None and times_of(fd) != times:
        raise LinkChanged(errno.ESTALE, "it was written after its check")


def forget_blocks(presence: Presence) -> None:
    """Make the blocks of a link that is left absent."""
    for index, state in presence.known():
        if state in LINKED:
            presence.set_absent(index)


def read_cold(cold: Cold, data_fd: int) -> None:
    """Fill pieces of links, and of the file of our own at `data_fd`. Raises OSError, of links
    LinkFailed.
    """
    for fd, start, view, times in cold:
        if fd == data_fd:
            read_whole(fd, start, view)
        else:
            read_link(fd, start, view, times)


def times_of(fd: int) -> Times:
    """The times of an open link now; the kernel has them in memory."""
    status = os.fstat(fd)
    return status.st_mtime_ns, status.st_ctime_ns


def _write_times(map_fd: int, times: Times) -> None:
    with contextlib.suppress(OSError):  # then the next process compares
        os.pwrite(map_fd, TIMES.pack(*times), TIMES_OFFSET)


def _open_link(path: Path) -> int:
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    if stat.S_ISREG(os.fstat(fd).st_mode):
        return fd
    os.close(fd)
    raise OSError(errno.EINVAL, "is no file", str(path))
