"""Where writes to the cache's disk are made: on the trio thread while the disk takes them at once, in worker threads while it does not.

A buffered write is a copy into the page cache, and quickest where its bytes were received a moment ago: in a thread on another core
it takes several times as long, and going there and back costs as much again. But a disk that has fallen behind makes writers wait,
and then nobody else should. So the first slow write is the last one that others wait for.

One per cache directory; used by `CachedVersion`.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import trio

SLOW_S = 0.02
"""A write of a block that takes longer did not go to memory alone."""

REST_S = 10.0
"""So long after a slow write the disk is not trusted with the trio thread again."""


class Pace:
    """How the disk has been doing. `clock` is time.monotonic(): what a disk takes has nothing to do with trio's clock."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._slow_until = float("-inf")
        self._in_threads = 0

    @property
    def is_slow(self) -> bool:
        """Also while a write hangs in a thread, however long."""
        return self._in_threads > 0 or self._clock() < self._slow_until

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
        if now - began >= SLOW_S:
            self._slow_until = now + REST_S
