"""Reads and writes of whole pieces of files, with or without waiting. Used by the modules of the cache."""

from __future__ import annotations

import errno
import os

_STREAMING_BYTES = 256 << 10
"""A read from disk of this size is one of many in order: that is how the kernel reads ahead."""
_DISK_AHEAD_BYTES = 4 << 20


def read_cached(fd: int, start: int, view: memoryview, *, on_tmpfs: bool) -> int:
    """Read the bytes that need no waiting (RWF_NOWAIT: preadv(2)); returns how many."""
    try:
        return os.preadv(fd, [view], start, os.RWF_NOWAIT)
    except OSError as error:
        # tmpfs does not support it though it is memory; overlayfs does not and may be a disk. A
        # failing disk shows in a read that waits.
        if error.errno == errno.EOPNOTSUPP and on_tmpfs:
            return os.preadv(fd, [view], start)
        return 0


def read_whole(fd: int, start: int, view: memoryview) -> None:
    """Fill `view`, however long that takes. For a worker thread.

    Raises OSError when the disk fails or the file is cut off.
    """
    if len(view) >= _STREAMING_BYTES:
        # The kernel would read in steps of the disk's own readahead (128 KiB); so it reads at once,
        # and on ahead.
        os.posix_fadvise(fd, start, len(view) + _DISK_AHEAD_BYTES, os.POSIX_FADV_WILLNEED)
    done = 0
    while done < len(view):
        count = os.preadv(fd, [view[done:]], start + done)
        if not count:
            raise OSError(errno.EIO, "a file of the cache is shorter than its object")
        done += count


def write_whole(fd: int, data: memoryview, position: int) -> int:
    """Write all of `data`; returns its length. Raises OSError, with an unknown part written."""
    done = 0
    while done < len(data):
        done += os.pwrite(fd, data[done:], position + done)
    return done
