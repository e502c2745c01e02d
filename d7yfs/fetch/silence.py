"""Tells when a transfer has been silent for too long, so that readers need not wait for it (hedged
requests).

The transfer goes on. Used by the fetcher and by the stream filler, for bytes that come through
dfdaemon.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import trio

HEDGE_AFTER_S = 3.0
"""Seconds without a byte after which a range for a reader is fetched from the origin too."""


async def watch(
    work: Callable[[], Awaitable[None]], last_progress: Callable[[], float], on_silence: Callable[[], None]
) -> None:
    """Do `work`, and call `on_silence` each time that `last_progress` (trio's time) lies
    `HEDGE_AFTER_S` back.

    Raises what `work` does.
    """
    failure: Exception | None = None
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_watch, last_progress, on_silence)
        try:
            await work()
        except Exception as error:  # raised outside the nursery, which would wrap it
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
