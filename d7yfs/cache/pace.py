"""Whether writes to the cache's disk may be made on the trio thread, or the disk has fallen behind. Pure; used by `Disk`.

A disk that has fallen behind makes writers wait (balance_dirty_pages in the kernel's mm/page-writeback.c, up to 0.2 s each), and then
nobody else should. A single write that took long proves nothing: the machine may have been busy, and threads would double what the
rest of a file costs. So others wait for PATIENCE_S in all.
"""

from __future__ import annotations

QUICK_S = 0.01
"""What a write of a block may take; more is waiting."""

PATIENCE_S = 0.3
"""So much waiting is put up with on the trio thread, …"""

FORGIVEN = 0.1
"""… of which this fraction of the time that passes is forgotten."""

REST_S = 3.0
"""After so long without waiting the disk is trusted again."""


class Pace:
    """How the disk has been doing. Times are monotonic seconds."""

    def __init__(self) -> None:
        self._waited_s = 0.0
        self._waited_at = float("-inf")

    def is_slow(self, now: float) -> bool:
        """True if writes should be made in threads."""
        return self._waited_s >= PATIENCE_S and now < self._waited_at + REST_S

    def took(self, took_s: float, now: float) -> None:
        """A write took so long, and has ended now."""
        if took_s >= QUICK_S:
            forgiven_s = FORGIVEN * (now - self._waited_at)
            self._waited_s = max(self._waited_s - forgiven_s, 0.0) + took_s
            self._waited_at = now
