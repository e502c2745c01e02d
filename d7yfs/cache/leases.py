"""Leases: which daemon on the cache directory brings which block.

A lease on block i is a lock on the eight bytes of its entry, the stream's lease one on the first
byte of the header. They are open file description locks (fcntl(2), F_OFD_SETLK): they belong to
each daemon's descriptor of the map, and the kernel releases them when the daemon ends. They know
nothing of the `flock` that openers hold on the same file. A lease saves bytes and guards nothing:
two daemons that bring the same block write the same bytes. So where the file system has no such
locks every daemon gets every lease, and a lease may be passed over.

Used by fillers, through `CachedVersion.leases`. Leases never wait for the disk.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
from collections.abc import Callable
from functools import partial

from d7yfs.cache.disk import Lane
from d7yfs.cache.pair import VersionFiles, extent_of_entries
from d7yfs.objects import BLOCK_BYTES, ByteRange

FLOCK = struct.Struct("hhqqi")
"""struct flock on 64-bit Linux: l_type, l_whence (SEEK_SET), l_start, l_len, l_pid (0 for such
locks)."""


class Leases:
    """The leases of one open version; without `files`, or while `keeps` says no, all are free.

    `missing(wanted)` tells what is absent, after a look at what other daemons have written.
    """

    def __init__(
        self,
        files: VersionFiles | None,
        lane: Lane,
        *,
        keeps: Callable[[], bool],
        missing: Callable[[ByteRange], list[ByteRange]],
    ) -> None:
        self._files = files
        """Of a version that rests, those that it had: no filler works for it."""
        self._early: list[ByteRange] = []
        """The leases that were taken while there were no files."""
        self._lane = lane
        self._keeps = keeps
        self._missing = missing

    def use(self, files: VersionFiles | None) -> None:
        """Go by these `files` from now on. What was leased before there were any is leased there, if no
        other daemon has done so."""
        self._files = files
        for each in self._early if files is not None else ():
            self._lock(each)
        self._early.clear()

    def take(self, wanted: ByteRange, *, anyway: bool = False) -> tuple[list[ByteRange], list[ByteRange]]:
        """Lease what is missing of `wanted`, in whole blocks; returns the runs for us to bring, and
        those that another daemon brings.

        With `anyway` all of it is ours, leased or not. Ends with `release` of (at least) `wanted`.
        """
        if self._files is None:
            self._early.append(wanted)
            return self._missing(wanted), []
        if not self._keeps() or self._lock(wanted) or anyway:
            return self._missing(wanted), []
        ours: list[ByteRange] = []
        theirs: list[ByteRange] = []
        for run in self._missing(wanted):
            for block in run.split(BLOCK_BYTES):
                append_block(ours if self._lock(block) else theirs, block)
        # A block that another daemon has ended between our look and our lock is there now.
        return [run for each in ours for run in self._missing(each)], theirs

    def release(self, wanted: ByteRange) -> None:
        """End our leases on the blocks of `wanted`."""
        if self._files is not None:
            _set_lock(self._files.map_fd, fcntl.F_UNLCK, *extent_of_entries(wanted))
        else:
            self._early = [each for each in self._early if not each.intersects(wanted)]

    def take_stream(self) -> bool:
        """Lease the stream of the whole object. False while another daemon has one under way."""
        if self._files is None or not self._keeps():
            return True
        return _set_lock(self._files.map_fd, fcntl.F_WRLCK, 0, 1)

    def release_stream(self) -> None:
        """End the stream's lease."""
        if self._files is not None:
            _set_lock(self._files.map_fd, fcntl.F_UNLCK, 0, 1)

    async def written_to(self, offset: int) -> int:
        """The offset of the data file's next hole from `offset` on.

        It moves while another daemon writes there, long before a block is whole. lseek(2),
        SEEK_HOLE; a file system that knows no holes answers with the end of the file.
        """
        if self._files is None:
            return offset
        try:
            # In a thread: it waits for a write to the same file in which another daemon is stuck.
            return await self._lane.read(partial(os.lseek, self._files.data_fd, offset, os.SEEK_HOLE))
        except OSError:
            return offset

    def _lock(self, blocks: ByteRange) -> bool:
        assert self._files is not None
        return _set_lock(self._files.map_fd, fcntl.F_WRLCK, *extent_of_entries(blocks))


def append_block(runs: list[ByteRange], block: ByteRange) -> None:
    """Append a block to ascending `runs`; it makes the last one longer if it follows that."""
    if runs and runs[-1].stop == block.start:
        runs[-1] = ByteRange(runs[-1].start, block.stop)
    else:
        runs.append(block)


def _set_lock(fd: int, kind: int, start: int, size_bytes: int) -> bool:
    """Set or clear a lock. False if another descriptor's lock stands in the way."""
    try:
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, FLOCK.pack(kind, 0, start, size_bytes, 0))
    except OSError as error:
        return error.errno not in (errno.EAGAIN, errno.EACCES)
    return True
