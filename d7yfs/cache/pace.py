"""Where writes to the cache's disk are made: on the trio thread while the disk takes them at once, in worker threads while it does not.

A buffered write is a copy into the page cache, and quickest where its bytes were received a moment ago: in a thread on another core
it takes several times as long, and going there and back costs as much again. But a disk that has fallen behind makes writers wait
(balance_dirty_pages in the kernel's mm/page-writeback.c, up to 0.2 s each), and then nobody else should. A single write that took
long proves nothing: the machine may have been busy, and threads would double what the rest of a file costs. So others wait for
PATIENCE_S in all.

One per cache directory; used by `CachedVersion`.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import trio

QUICK_S = 0.01
"""What a write of a block may take; more is waiting."""

PATIENCE_S = 0.3
"""So much waiting is put up with on the trio thread, …"""

FORGIVEN = 0.1
"""… of which this fraction of the time that passes is forgotten."""

REST_S = 3.0
"""After so long without waiting the disk is trusted again."""


class Pace:
    """How the disk has been doing. `clock` is time.monotonic(): what a disk takes has nothing to do with trio's clock."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._waited_s = 0.0
        self._waited_at = float("-inf")
        self._in_threads = 0

    @property
    def is_slow(self) -> bool:
        """Also while a write hangs in a thread, however long."""
        return self._waited_s >= PATIENCE_S and (self._in_threads > 0 or self._clock() < self._waited_at + REST_S)

    async def write(self, store: Callable[[], None], limiter: trio.CapacityLimiter) -> None:
        """Call `store` here, or in a worker thread with a token of `limiter`. Not cancelled half-way."""
        if self.is_slow:
            self._in_threads += 1
            try:
                await trio.to_thread.run_sync(self._timed, store, limiter=limiter)
            finally:
                self._in_threads -= 1
        else:
            self._timed(store)

    def _timed(self, store: Callable[[], None]) -> None:
        began = self._clock()
        store()
        now = self._clock()
        if now - began >= QUICK_S:
            forgiven_s = FORGIVEN * (now - self._waited_at)
            self._waited_s = max(self._waited_s - forgiven_s, 0.0) + now - began
            self._waited_at = now
