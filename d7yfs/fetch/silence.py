"""Tells when a transfer has been silent for too long, while it goes on: so that others need not wait for it.

Used by the fetcher, for what comes through a proxy.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import trio

HEDGE_AFTER_S = 3.0
"""Without a byte for so long, what a reader waits for is fetched from the origin too."""


async def watched(
    work: Callable[[], Awaitable[None]], last_progress: Callable[[], float], on_silence: Callable[[], None]
) -> None:
    """Do `work`, and call `on_silence` each time that `last_progress` (trio's time) has come to lie `HEDGE_AFTER_S` back.

    Raises what `work` does.
    """
    failure: Exception | None = None
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_watch, last_progress, on_silence)
        try:
            await work()
        except Exception as error:  # told outside of the nursery, which would wrap it
            failure = error
        nursery.cancel_scope.cancel()
    if failure is not None:
        raise failure


async def _watch(last_progress: Callable[[], float], on_silence: Callable[[], None]) -> None:
    told = float("-inf")
    while True:
        seen, now = last_progress(), trio.current_time()
        if seen > told and now >= seen + HEDGE_AFTER_S:
            told = seen
            on_silence()
        await trio.sleep_until((seen if seen > told else now) + HEDGE_AFTER_S)
