"""Several daemons on one cache directory fetch each byte once: who wants a range lets another go on that brings it already.

What another daemon has under way is watched and taken over block by block; what it leaves (it was done, failed, or was killed) is fetched
here. One that is alive and brings nothing (a hung network, SIGSTOP) is not waited for longer than `PATIENCE_S`: two daemons that bring
the same block write the same bytes.

Used by the fillers.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import trio

from d7yfs.cache.filler import FillTarget
from d7yfs.objects import ByteRange

POLL_S = 0.02
"""How often the map is looked at, for want of an event between processes: the longest that a block is there and not seen."""

PATIENCE_S = 3.0
"""Without a sign of life from whoever brings a range for so long, it is fetched here too."""

Claim = Callable[[], list[ByteRange]]
"""What to fetch now. Asked when a transfer may begin and not before: a lease that stands in a queue would hold up others."""


class Turns:
    """Whose turn it is to bring parts of `target`."""

    def __init__(self, target: FillTarget) -> None:
        self._target = target
        self._distrusted_at = -1
        """What had been taken over from others when we lost patience. Until there is more nobody is waited for, so that a daemon that
        hangs costs its patience once and not for each range that it holds."""

    async def bring(self, piece: ByteRange, fetch: Callable[[Claim], Awaitable[None]]) -> None:
        """Return when each block of `piece` was brought, by whomever; raise what `fetch` does for those that fall to us.

        `piece` must not overlap another that is under way here.
        """
        leases = self._target.leases
        waiting, patient = [piece], True
        sign, seen_at = (0, 0), trio.current_time()

        def claim() -> list[ByteRange]:
            nonlocal waiting
            anyway = not patient or self._distrusted_at == self._target.taken_over_blocks
            claims = [leases.take(each, anyway=anyway) for each in waiting]
            waiting = [run for _, theirs in claims for run in theirs]
            return [run for ours, _ in claims for run in ours]

        try:
            while waiting:
                before = waiting
                if claim():
                    waiting = before
                    leases.release(piece)
                    await fetch(claim)
                    leases.release(piece)
                    continue
                if not waiting:
                    return  # another has brought the last of it since we looked
                written_to = await leases.written_to(waiting[0].start)
                last, sign = sign, (sum(each.size for each in waiting), written_to)
                now = trio.current_time()
                if sign != last:
                    seen_at = now
                elif now - seen_at >= PATIENCE_S:
                    patient = False
                    self._distrusted_at = self._target.taken_over_blocks
                await trio.sleep(POLL_S)
        finally:
            leases.release(piece)
