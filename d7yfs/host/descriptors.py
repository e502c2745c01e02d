"""File descriptors that are held back for the daemon's own control.

A daemon whose descriptors are used up must still answer `d7yfs status`. So `Reserve` holds some
open for nothing, and gives them up when a client cannot be accepted for want of one.

`Reserve` is used by `acceptor`, `SHORTAGE` by the cache too.
"""

from __future__ import annotations

import errno
import os

SHORTAGE = frozenset({errno.EMFILE, errno.ENFILE})
"""The errors of a process, or a machine, whose descriptors are used up."""

RESERVED = 16
"""Enough for a client, the files that `status` reads, and the child process that `health` starts."""


class Reserve:
    """Descriptors that are held back for clients of the daemon."""

    def __init__(self, count: int = RESERVED) -> None:
        self._count = count
        self._held: list[int] = []
        self.refill()

    def refill(self) -> None:
        """Hold back as many as are missing, or as many as there are."""
        try:
            while len(self._held) < self._count:
                self._held.append(os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC))
        except OSError:  # used up: tried again after the next client
            return

    def release(self) -> bool:
        """Give them up; False if there were none."""
        held, self._held = self._held, []
        for fd in held:
            os.close(fd)
        return bool(held)
