"""The blocks of one version, read from the files that have them: the data file, dfdaemon's file and the
memory of this process.

Base of `BackingFile`, which says which block is where. Methods belong to the trio thread and wait for
no disk, except for `finish_read` and `read_back`, which are for a worker thread.
"""

from __future__ import annotations

import os

from d7yfs.cache.file_io import read_cached
from d7yfs.cache.linked import Cold, LinkedStore, Times, read_cold, times_of
from d7yfs.cache.memory import MemoryFile
from d7yfs.cache.pair import LINKED, Block, Presence, VersionFiles
from d7yfs.objects import BLOCK_BYTES, ByteRange


class BlockReader:
    """The reading side of a version's backing file."""

    presence: Presence
    linked: LinkedStore | None
    """dfdaemon's file, if one was linked."""
    _files: VersionFiles | None
    _memory: MemoryFile
    _disk_refused: bool
    """True if the disk failed under this version: nothing more is kept there."""

    @property
    def link_times(self) -> Times | None:
        """The times that prove dfdaemon's file unchanged."""
        return self.linked.times if self.linked else None

    def read_at_once(self, offset: int, into: memoryview) -> bool:
        """Fill `into` with readable bytes from `offset` on; False if a disk would have to be waited
        for.
        """
        on_tmpfs = self._files is None or self._files.on_tmpfs
        for start, stop, fd in self._extents(offset, offset + len(into)):
            view = into[start - offset : stop - offset]
            if read_cached(fd, start, view, on_tmpfs=on_tmpfs or fd == self._memory.fd) < len(view):
                return False
            times = self.link_times if self.linked and fd == self.linked.fd else None
            if times and times_of(fd) != times:
                return False  # `finish_read` says so
        return True

    @property
    def whole_file(self) -> int | None:
        """The descriptor of the data file, if that has all bytes, each verified, and no others."""
        files = self._files
        if files is None or self._disk_refused or not self.presence.all_in_data_file:
            return None
        return files.data_fd

    def begin_read(self, wanted: ByteRange) -> tuple[bytearray, Cold]:
        """Read the part of a readable range that needs no waiting.

        Returns the buffer, and the pieces of it that are on a disk: `finish_read` fills those, in a
        worker thread. Memory blocks are always read here, before they can be dropped.
        """
        buffer, cold = bytearray(wanted.stop - wanted.start), Cold()
        for start, stop, fd in self._extents(wanted.start, wanted.stop):
            view = memoryview(buffer)[start - wanted.start : stop - wanted.start]
            if fd == self._memory.fd:
                count = os.preadv(fd, [view], start)
                assert count == len(view)
                continue
            hot_bytes = read_cached(fd, start, view, on_tmpfs=bool(self._files and self._files.on_tmpfs))
            times = self.link_times if self.linked and fd == self.linked.fd else None
            if times and hot_bytes and times_of(fd) != times:
                hot_bytes = 0  # `finish_read` says so
            if hot_bytes < len(view):
                cold.append((fd, start + hot_bytes, view[hot_bytes:], times))
        return buffer, cold

    def finish_read(self, cold: Cold) -> None:
        """Fill the pieces that `begin_read` left. For a worker thread. Raises OSError, of dfdaemon's
        file LinkFailed.
        """
        assert self._files is not None
        read_cold(cold, self._files.data_fd)

    def _extents(self, start: int, stop: int) -> list[tuple[int, int, int]]:
        """Cut `[start, stop)` between our file, dfdaemon's and memory: (start, stop, descriptor)."""
        extents: list[tuple[int, int, int]] = []
        while start < stop:
            index = start // BLOCK_BYTES
            fd, piece_stop = self._where(index), min(stop, (index + 1) * BLOCK_BYTES)
            first = extents.pop()[0] if extents and extents[-1][2] == fd else start
            extents.append((first, piece_stop, fd))
            start = piece_stop
        return extents

    def _where(self, index: int) -> int:
        """The descriptor that has block `index`."""
        state, arriving = self.presence.blocks[index], self.presence.arriving.get(index)
        if arriving.in_memory if arriving else state == Block.MEMORY:
            return self._memory.fd
        assert self._files is not None
        return self.linked.fd if self.linked and state in LINKED else self._files.data_fd

    def read_back(self, piece: ByteRange) -> bytearray:
        """Bytes that lie on disk. For a worker thread, while held. Raises OSError."""
        buffer = bytearray(piece.size)
        for start, stop, fd in self._extents(piece.start, piece.stop):
            self.finish_read([(fd, start, memoryview(buffer)[start - piece.start : stop - piece.start], None)])
        return buffer
