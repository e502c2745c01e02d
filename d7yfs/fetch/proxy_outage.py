"""How the origin is spared while no proxy answers: a thousand hosts that lose theirs at once must not all be at the bucket at once.

Each host begins at a moment of its own: what a reader waits for within `READERS_HELD_S`, once per outage, what is only fetched ahead within
`PREFETCH_HELD_S`; and it keeps to few connections as long as the outage lasts. `Outage` decides, pure (time and chance are arguments);
`Sparing` makes transfers wait.

Used by the fetcher.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import AsyncExitStack

import trio

from d7yfs.fetch.transfer import Urgency

READERS_HELD_S = 0.5
PREFETCH_HELD_S = 10.0
MAX_CONNECTIONS = 8
"""To one origin in place of a proxy; prefetch may take half of them."""


class Outage:
    """Begins at the first request that a proxy cannot take, and ends when one answers again."""

    def __init__(self, chance: Callable[[], float]) -> None:
        """`chance` gives a number from 0 to 1, another one each time."""
        self._chance = chance
        self._readers_from = self._prefetch_from = float("-inf")
        self._lasts = False

    def hold_s(self, now: float, *, urgent: bool) -> float:
        """For how long a request straight to the origin is to be held, in place of a proxy that does not answer."""
        if not self._lasts:
            self._lasts = True
            self._readers_from = now + READERS_HELD_S * self._chance()
            self._prefetch_from = now + PREFETCH_HELD_S * self._chance()
        return max(0.0, (self._readers_from if urgent else self._prefetch_from) - now)

    def ended(self) -> None:
        """A proxy answers."""
        self._lasts = False


class Sparing:
    """One repository's turns at its origin in place of a proxy."""

    def __init__(self, chance: Callable[[], float] = random.random) -> None:
        self.outage = Outage(chance)
        self._connections = trio.CapacityLimiter(MAX_CONNECTIONS)
        self._prefetches = trio.CapacityLimiter(MAX_CONNECTIONS // 2)

    async def turn(self, stack: AsyncExitStack, urgency: Urgency | None) -> None:
        """Wait for a turn, which `stack` gives back. Without `urgency` a reader waits."""
        if urgency is not None and not urgency.urgent:
            with urgency.queueing():
                await trio.sleep(self.outage.hold_s(trio.current_time(), urgent=False))
                await stack.enter_async_context(self._prefetches)
        if urgency is None or urgency.urgent:
            await trio.sleep(self.outage.hold_s(trio.current_time(), urgent=True))
        await stack.enter_async_context(self._connections)
