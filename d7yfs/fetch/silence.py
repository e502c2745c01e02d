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

LEAST_PATIENCE_S = 1.0
"""The least of what a transfer's own past can make of that."""

_USUAL_TIMES = 4
"""A silence so many times as long as the longest one before it is none of the usual."""


def patience_s(longest_s: float) -> float:
    """The seconds of silence after which a reader goes elsewhere, where bytes have never kept it
    waiting for longer than `longest_s`."""
    return min(max(_USUAL_TIMES * longest_s, LEAST_PATIENCE_S), HEDGE_AFTER_S)


async def watch(
    work: Callable[[], Awaitable[None]],
    last_progress: Callable[[], float],
    on_silence: Callable[[], None],
    *,
    patience: Callable[[], float] = lambda: HEDGE_AFTER_S,
) -> None:
    """Do `work`, and call `on_silence` once in each silence: when `last_progress` (trio's time) lies
    `patience()` seconds back.

    Raises what `work` does.
    """
    failure: Exception | None = None
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_watch, last_progress, on_silence, patience)
        try:
            await work()
        except Exception as error:  # raised outside the nursery, which would wrap it
            failure = error
        nursery.cancel_scope.cancel()
    if failure is not None:
        raise failure


async def _watch(
    last_progress: Callable[[], float], on_silence: Callable[[], None], patience: Callable[[], float]
) -> None:
    told = float("-inf")
    while True:
        seen, now, limit_s = last_progress(), trio.current_time(), patience()
        if seen > told and now >= seen + limit_s:
            told = seen
            on_silence()
        # Patience may have become less by then.
        await trio.sleep_until(min((seen if seen > told else now) + limit_s, now + LEAST_PATIENCE_S))
