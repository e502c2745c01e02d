"""Spares the origin while no proxy answers: a thousand hosts that lose theirs must not all reach
the bucket at once.

Each host begins at a moment of its own: ranges for a reader within `READERS_HELD_S`, once per
outage, prefetches within `PREFETCH_HELD_S`. It keeps to few connections as long as the outage
lasts.

Used by the fetcher.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import trio

from d7yfs.fetch.transfer import Permits, Urgency

READERS_HELD_S = 0.5
PREFETCH_HELD_S = 10.0
MAX_CONNECTIONS = 8
"""Connections to one origin in place of a proxy; prefetch may take half of them."""


class FallbackLimiter:
    """The limit on one repository's transfers from its origin in place of a proxy. An outage of all
    proxies lasts from the first request that they cannot take to an answer.
    """

    def __init__(self, chance: Callable[[], float] = random.random) -> None:
        """`chance` gives a number from 0 to 1, another one each time."""
        self._chance = chance
        self._readers_from = self._prefetch_from = float("-inf")
        self._lasts = False
        self._connections = trio.CapacityLimiter(MAX_CONNECTIONS)
        self._prefetches = trio.CapacityLimiter(MAX_CONNECTIONS // 2)

    def hold_s(self, now: float, *, urgent: bool) -> float:
        """Seconds for which a request straight to the origin is to be held, in place of a proxy."""
        if not self._lasts:
            self._lasts = True
            self._readers_from = now + READERS_HELD_S * self._chance()
            self._prefetch_from = now + PREFETCH_HELD_S * self._chance()
        return max(0.0, (self._readers_from if urgent else self._prefetch_from) - now)

    def end_outage(self) -> None:
        """End the outage, as a proxy answers."""
        self._lasts = False

    async def enter(self, permits: Permits, urgency: Urgency) -> None:
        """Wait for admission, which `permits` give back."""
        if not urgency.urgent:
            with urgency.enter_queue():
                await trio.sleep(self.hold_s(trio.current_time(), urgent=False))
                await permits.take(self._prefetches)
        if urgency.urgent:
            await trio.sleep(self.hold_s(trio.current_time(), urgent=True))
        await permits.take(self._connections)
