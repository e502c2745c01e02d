"""The versions that a cache directory may have, as far as is known without a look at its disk.

A version is known to be absent if the last scan did not find it, this daemon has not opened it, and
no other daemon could have made it since. Each daemon holds a lock on one file for as long as it lives,
and marks that file when it comes. To look at both is a matter of memory.

Nothing but time rests on it: whoever takes a version for absent that is there finds it later.

Used by `CacheDirectory`. Trio thread, except for `now` and `take`, which are the evicting thread's too.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterable
from pathlib import Path
from weakref import finalize

from d7yfs.cache.leases import FLOCK

_DIGITS = 5
"""The digits of a version's name that tell it from others. One of a million has 128 KiB of bits."""


class Census:
    """The versions that this daemon has opened, and those that the last scan has found. Versions with
    like names count as one.
    """

    def __init__(self) -> None:
        self._fd = -1
        self._opened = _blank()
        self._found: bytearray | None = None
        self._found_at: int | None = None

    def join(self, path: Path) -> None:
        """Let other daemons know of this one, by the file at `path`. Where there are no such locks, there
        may always be others."""
        with contextlib.suppress(OSError):
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            finalize(self, os.close, self._fd)
            fcntl.fcntl(self._fd, fcntl.F_OFD_SETLK, FLOCK.pack(fcntl.F_RDLCK, 0, 0, 1, 0))
            now = time.time_ns()
            os.utime(self._fd, ns=(now, now))

    def now(self) -> int | None:
        """Another number whenever a daemon has come; None while this is not the only one."""
        if self._fd < 0:
            return None
        try:
            other = fcntl.fcntl(self._fd, fcntl.F_OFD_GETLK, FLOCK.pack(fcntl.F_WRLCK, 0, 0, 1, 0))
            return os.fstat(self._fd).st_mtime_ns if FLOCK.unpack(other)[0] == fcntl.F_UNLCK else None
        except OSError:
            return None

    def take(self, names: Iterable[str], now: int | None) -> None:
        """Take the names that a scan has found, which began at `now`."""
        found = _blank()
        for name in names:
            _mark(found, name)
        self._found, self._found_at = found, now

    def note(self, name: str) -> None:
        """Note that a version was opened."""
        _mark(self._opened, name)

    def is_absent(self, name: str) -> bool:
        """True if the directory cannot have a version."""
        found, number = self._found, int(name[:_DIGITS], 16)
        if found is None or self._found_at is None or self._found_at != self.now():
            return False
        return not (found[number >> 3] | self._opened[number >> 3]) >> (number & 7) & 1


def _blank() -> bytearray:
    return bytearray(16**_DIGITS // 8)


def _mark(bits: bytearray, name: str) -> None:
    number = int(name[:_DIGITS], 16)
    bits[number >> 3] |= 1 << (number & 7)
