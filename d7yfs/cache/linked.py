"""A version's second store: dfdaemon's own file of it, hard-linked beside the pair. Only ever read.

    CACHE_DIR/v2/a/abcdef….link       a hard link to the file in dfdaemon's store
    CACHE_DIR/v2/a/abcdef….linkmap    as the pair's map, and bound in the same way, to the link's st_dev and st_ino
    CACHE_DIR/v2/incoming/…           where dfdaemon is asked to put a link

Invariants:

- The link is opened read-only and never written, punched or truncated: dfdaemon serves the same file to its peers.
- It is as long as the object before it holds any of it, and what has not come reads as zeros. So a block is there only when dfdaemon has
  said that its piece is, and (unless told otherwise) the piece has the CRC32 that it said.
- A block's CRC32C is taken when its piece is checked, in the same pass, and stored in its entry. Of a piece that is not checked
  there is none: its blocks are believed until the machine's next boot, and after it asked for again.
- The map is removed before the link is replaced and made after it, so that no map ever speaks of a file that took an old one's inode.
- Once the link has all of the object, compared, the pair's own blocks are waste: `shed_copies` makes the pair anew when nobody has it open.

The pair's lock guards both files too. Descriptors of replaced links stay open until `close`, for threads may be reading from them.

Made by `Cache` and used by `BackingFile`. Trio thread only, but for `take`, `check` and `block_crc32c`, which are for any thread, and the
making, which waits for the disk. `Cache` calls `shed_copies` where it evicts.
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

import crc32c

from d7yfs.cache.directory import (
    ENTRY_BYTES,
    HEADER,
    HEADER_BYTES,
    MAGIC,
    CacheDirectory,
    VersionFiles,
    make_pair,
    map_header,
    read_map,
    same_file,
)
from d7yfs.cache.disk import Disk
from d7yfs.cache.presence import Block, block_count, block_range
from d7yfs.objects import BLOCK_BYTES, ByteRange

try:
    from zlib_ng.zlib_ng import crc32
except ImportError:  # the extra is not installed: half as fast, and right all the same
    from zlib import crc32

log = logging.getLogger(__name__)
_CHUNK_BYTES = 256 << 10
"""Stays in the processor's own cache between the two sums."""
_scratch = threading.local()
Taken = tuple[int, int]
"""Descriptors of a new link and of its map."""


class LinkFailed(OSError):
    """The linked file could not be read, or is not what it was: what it held is to be had elsewhere."""


class LinkedStore:
    """The link of one open version, if there is one."""

    def __init__(self, files: VersionFiles, size_bytes: int, boot_tag: int, disk: Disk) -> None:
        self._files = files
        self._disk = disk
        self._size_bytes = size_bytes
        self._boot_tag = boot_tag
        self._fd = self._map_fd = -1
        self._entries = array("Q")
        self._replaced: list[int] = []
        with contextlib.suppress(OSError):
            self._open()

    @property
    def fd(self) -> int:
        """Of the link; -1 when there is none."""
        return self._fd

    @property
    def blocks(self) -> list[Block]:
        """What the map says of each block, where there is a link."""
        return [self._stored_state(entry) for entry in self._entries]

    def _stored_state(self, entry: int) -> Block:
        if entry & 0xFFFFFFFF == self._boot_tag:
            return Block.LINKED
        return Block.UNVERIFIED_LINK if entry >> 32 else Block.ABSENT

    def _open(self) -> None:
        """Use the link that an earlier hand-over has left, if its map speaks of it. Raises OSError."""
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

    def take(self, incoming: Path) -> Taken | None:
        """Make the file that dfdaemon has linked to `incoming` the version's link, for `adopt`; None when it is the one that it was.

        For any thread. Raises OSError: ENOENT when dfdaemon lives elsewhere and its path is not ours, EACCES when its file is not for us,
        ESTALE when the file cannot be the object's, EXDEV when it is no link.
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
            # Written whole, as the pair's: what is cut off is not believed.
            os.pwrite(map_fd, header + bytes(block_count(self._size_bytes) * ENTRY_BYTES), 0)
        except OSError as error:
            log.warning("cache: a link cannot be recorded, and is gone with this process: %s", error.strerror)
        return fd, map_fd

    def leave(self, taken: Taken | None) -> None:
        """Nobody waits for what `take` has taken any more; it stays for the next process that opens the version."""
        self._replaced += taken or ()

    def adopt(self, taken: Taken) -> None:
        """What `take` has taken is the link from now on; nothing of it is there yet."""
        self.drop()
        self._fd, self._map_fd = taken
        self._entries = array("Q", bytes(block_count(self._size_bytes) * ENTRY_BYTES))

    def check(self, piece: ByteRange, crc32_said: int | None) -> list[int] | None:
        """The CRC32C of each block of `piece` (cut at the object's end), whose CRC32 must be `crc32_said`; None when it is not.

        Without `crc32_said` nothing is read, and each is 0. For any thread. Raises LinkFailed.
        """
        blocks = [block_range(index, self._size_bytes) for index in _indexes(piece)]
        if crc32_said is None:
            return [0] * len(blocks)
        buffer = _scratch_buffer()
        crcs, crc = [], 0
        for block in blocks:
            block_crc = 0
            for chunk in block.split(_CHUNK_BYTES):
                view = buffer[: chunk.size]
                read_whole(self._fd, chunk.start, view)
                crc = crc32(view, crc)
                block_crc = crc32c.crc32c(view, block_crc)
            crcs.append(block_crc)
        return crcs if crc == crc32_said else None

    def record(self, piece: ByteRange, crcs: Iterable[int]) -> Iterator[int]:
        """Enter the blocks of `piece`, with what `check` has returned; yields their indexes."""
        first = piece.start // BLOCK_BYTES
        for index, crc in enumerate(crcs, first):
            self._entries[index] = crc << 32 | self._boot_tag
            yield index
        self._write_entries(first, _indexes(piece).stop)

    def crc32c(self, index: int) -> int:
        """Of one block, as entered; 0 when it was not taken."""
        return self._entries[index] >> 32

    def block_crc32c(self, index: int) -> int:
        """Of one block, as it lies in the file now. For any thread. Raises LinkFailed."""
        block = block_range(index, self._size_bytes)
        view = memoryview(bytearray(block.size))
        read_whole(self._fd, block.start, view)
        return int(crc32c.crc32c(view))

    def verified(self, index: int, *, good: bool) -> None:
        """Take over whether a block of an earlier boot is what its entry says."""
        self._entries[index] = self._entries[index] >> 32 << 32 | self._boot_tag if good else 0
        self._write_entries(index, index + 1)

    def _write_entries(self, first: int, stop: int) -> None:
        self._disk.soon(partial(_write_entries, self._map_fd, self._entries[first:stop].tobytes(), first))

    def drop(self) -> None:
        """Forget the link that there was, map and all, in this process; its descriptor stays good for threads that read."""
        if self._fd >= 0:
            self._replaced += [self._fd, self._map_fd]
            self._fd = self._map_fd = -1
            self._entries = array("Q")

    def remove(self) -> None:
        """Forget the link, and delete it unless another daemon has replaced it since."""
        if self._fd < 0:
            return
        self._disk.behind(partial(_remove, self._fd, self._map_fd, self._files.link_path))
        self.drop()

    def close(self) -> None:
        """Nobody is reading any more. For any thread."""
        self.drop()
        for fd in self._replaced:
            os.close(fd)
        self._replaced.clear()


def _write_entries(map_fd: int, entries: bytes, first: int) -> None:
    try:
        os.pwrite(map_fd, entries, HEADER_BYTES + first * ENTRY_BYTES)
    except OSError as error:
        log.warning("cache: presence of linked blocks could not be recorded: %s", error.strerror)


def _remove(fd: int, map_fd: int, link_path: Path) -> None:
    with contextlib.suppress(OSError):
        os.ftruncate(map_fd, 0)  # our own file: whoever finds it believes none of it
        if os.path.samestat(os.fstat(fd), link_path.stat()):
            link_path.unlink()


def shed_copies(directory: CacheDirectory) -> None:
    """Give back the room of own blocks of versions that the link beside them has whole. For a worker thread, as eviction is.

    A pair that anybody has open is passed over, until the next time.
    """
    for link in directory.links():
        map_path = link.with_suffix(".map")
        try:
            if map_path.with_suffix(".data").stat().st_blocks:
                _shed_copy(map_path)
        except OSError as error:
            log.debug("cache: %s keeps its own blocks beside its link: %s", map_path.name, error.strerror)


def _shed_copy(map_path: Path) -> None:
    with contextlib.ExitStack() as stack:

        def opened(path: Path) -> int:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            stack.callback(os.close, fd)
            return fd

        map_fd = opened(map_path)
        fcntl.flock(map_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not same_file(map_path, map_fd):
            return
        head = os.pread(map_fd, HEADER_BYTES, 0)
        if len(head) < HEADER_BYTES or not head.startswith(MAGIC):
            return  # not made to the end, or damaged
        *_, size_bytes, _device, _inode, length = HEADER.unpack_from(head)
        identity = head[HEADER.size : HEADER.size + length]
        entries = read_map(
            opened(map_path.with_suffix(".linkmap")), map_path.with_suffix(".link"), identity, size_bytes
        )
        if entries is None or not all(entry >> 32 for entry in entries):
            return
        status = os.fstat(map_fd)
        os.ftruncate(map_fd, 0)  # from here on, whoever is next finds a pair that was not made to the end
        os.close(make_pair(map_path, map_fd, identity, size_bytes))
        os.utime(map_fd, ns=(status.st_atime_ns, status.st_mtime_ns))  # nobody has used it


def _scratch_buffer() -> memoryview:
    """This thread's own, for as long as it lives: fresh memory would cost a third of what is done with it."""
    if not hasattr(_scratch, "buffer"):
        _scratch.buffer = memoryview(bytearray(_CHUNK_BYTES))
    buffer: memoryview = _scratch.buffer
    return buffer


def read_whole(fd: int, start: int, view: memoryview) -> None:
    """Fill `view` from the link. Raises LinkFailed."""
    done = 0
    while done < len(view):
        try:
            count = os.preadv(fd, [view[done:]], start + done)
        except OSError as error:
            raise LinkFailed(error.errno, error.strerror) from error
        if not count:
            raise LinkFailed(errno.ESTALE, "dfdaemon's file is shorter than its object")
        done += count


def _indexes(piece: ByteRange) -> range:
    return range(piece.start // BLOCK_BYTES, -(-piece.stop // BLOCK_BYTES))


def _open_link(path: Path) -> int:
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    if stat.S_ISREG(os.fstat(fd).st_mode):
        return fd
    os.close(fd)
    raise OSError(errno.EINVAL, "is no file", str(path))
