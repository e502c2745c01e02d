"""The filler for the way straight to the origin: missing bytes in parts, several in flight, each block fetched once.

Its tasks live in a nursery of `daemon`; every ending, good or bad, is told to the target, so no reader waits for a task that is gone.
"""

from __future__ import annotations

import logging
from functools import partial

import trio

from d7yfs.cache.filler import FillTarget
from d7yfs.errors import D7yfsError, Stopped
from d7yfs.fetch.fetcher import Fetcher
from d7yfs.fetch.journal import COMPLETE
from d7yfs.fetch.transfer import Urgency
from d7yfs.fill.sharing import Turns
from d7yfs.objects import BLOCK_BYTES, PART_BYTES, ByteRange

log = logging.getLogger(__name__)


SMALL_BYTES = 4 << 20
"""Objects up to this size come in one request, whatever is read of them."""

FIRST_BYTES = 2 << 20
"""What the first read at an object's beginning brings: little enough to be there at once, enough for most headers."""


class DirectFiller:
    """Fills `target` in parts of at most PART_BYTES, cut at multiples of their size. `reason`: under which the fetcher counts them."""

    def __init__(self, target: FillTarget, fetcher: Fetcher, nursery: trio.Nursery, *, reason: str = "direct") -> None:
        self._target = target
        self._fetcher = fetcher
        self._nursery = nursery
        self._reason = reason
        self._turns = Turns(target)
        self._in_flight: dict[int, Urgency] = {}
        """By block."""
        self._asked_bytes = 0
        self._filling = self._failed = self._relented = False
        self._one_ended = trio.Event()

    @property
    def window_bytes(self) -> int:
        return self._fetcher.bandwidth.window_bytes if self._target.keeps else 0

    def request(self, wanted: ByteRange, ahead: ByteRange | None) -> None:
        if not self._target.keeps:
            self.fetch(wanted, urgent=True)
            return
        size_bytes = self._target.version.size_bytes
        if size_bytes <= SMALL_BYTES:
            wanted = self._target.version.whole
        elif wanted.start < FIRST_BYTES:
            wanted = ByteRange(wanted.start, max(wanted.stop, FIRST_BYTES))
        self.fetch(wanted, urgent=True)
        if ahead:
            self.prefetch(ahead)

    def prefetch(self, ahead: ByteRange) -> None:
        if self._target.keeps:
            self.fetch(ahead, urgent=False)

    def relent(self) -> None:
        self._relented = True

    def fill(self) -> None:
        self._relented = False
        if self._target.version.size_bytes <= SMALL_BYTES:
            self.prefetch(self._target.version.whole)
        elif not self._filling and self._target.keeps:
            self._filling = True
            self._nursery.start_soon(self._fill)
            self._target.hold()

    async def _fill(self) -> None:
        """Keep as much under way as the origin has use for, until nothing is missing, no room is left, or the origin fails."""
        target = self._target
        name, missing_bytes = self._fetcher.name(target.version), self._missing_bytes
        try:
            with self._fetcher.journal.fill(name, target.version, route="origin", task_id="") as fill:
                try:
                    for part in target.version.whole.split(PART_BYTES):
                        while len(self._in_flight) * BLOCK_BYTES >= self.window_bytes:
                            if not target.keeps or self._failed:
                                return
                            await self._one_ended.wait()
                        if self._relented:
                            return
                        self.fetch(part, urgent=False)
                    while self._in_flight:
                        await self._one_ended.wait()
                finally:
                    left_bytes = self._missing_bytes
                    fill.fetched_bytes = missing_bytes - left_bytes
                    fill.outcome = "broken off" if left_bytes else COMPLETE
        finally:
            self._filling = False
            target.drop()

    @property
    def _missing_bytes(self) -> int:
        return sum(run.size for run in self._target.missing(self._target.version.whole))

    def _part_bytes(self) -> int:
        """Small parts first: several at once bring the first megabytes sooner than one large one; later each request should matter."""
        if self._asked_bytes < 4 * PART_BYTES:
            return PART_BYTES // 4
        return PART_BYTES // 2 if self._asked_bytes < 16 * PART_BYTES else PART_BYTES

    def fetch(self, wanted: ByteRange, *, urgent: bool, proxied: bool = False, reason: str = "") -> int:
        """Start what is missing of `wanted` and not under way, in whole blocks; what is under way and now `urgent` leaves its queue.

        Returns how many bytes that is. `proxied`: as ranges through the proxy.
        """
        size_bytes = self._target.version.size_bytes
        before_bytes = self._asked_bytes
        for run in self._target.missing(wanted):
            at_once = urgent or proxied
            for part in run.split(max(self._part_bytes(), SMALL_BYTES) if at_once else self._part_bytes()):
                blocks = range(part.start // BLOCK_BYTES, -(-part.stop // BLOCK_BYTES))
                if urgent:
                    for queued in {self._in_flight[index] for index in blocks if index in self._in_flight}:
                        queued.raise_()
                for first, last in _runs([index for index in blocks if index not in self._in_flight]):
                    piece = ByteRange(first * BLOCK_BYTES, min((last + 1) * BLOCK_BYTES, size_bytes))
                    urgency = Urgency(urgent=urgent)
                    self._asked_bytes += piece.size
                    self._nursery.start_soon(self._bring, piece, urgency, proxied, reason or self._reason)
                    self._in_flight.update(dict.fromkeys(range(first, last + 1), urgency))
                    self._target.hold()
        return self._asked_bytes - before_bytes

    async def _bring(self, piece: ByteRange, urgency: Urgency, proxied: bool, reason: str) -> None:
        target = self._target
        name = self._fetcher.name(target.version)
        # What readers hear when this task is cancelled: they must not ask again.
        error: Exception | None = Stopped(f"{name}: reading was stopped")
        try:
            fetch = partial(
                self._fetcher.fetch,
                target.version,
                piece,
                target,
                urgency=urgency,
                proxied=proxied,
                small_too=proxied,
                reason=reason,
            )
            await self._turns.bring(piece, lambda claim: fetch(claim=claim))
            error = None
        except D7yfsError as failure:
            error = failure
        except Exception as failure:
            log.exception("%s: fetching %s failed unexpectedly", name, piece)
            error = failure
        finally:
            for index in range(piece.start // BLOCK_BYTES, -(-piece.stop // BLOCK_BYTES)):
                del self._in_flight[index]
            self._failed = error is not None
            self._one_ended.set()
            self._one_ended = trio.Event()
            try:
                target.ended(piece, error)
            finally:
                target.drop()


def _runs(indexes: list[int]) -> list[tuple[int, int]]:
    """Consecutive runs of ascending `indexes`, as (first, last)."""
    runs: list[tuple[int, int]] = []
    for index in indexes:
        if runs and runs[-1][1] == index - 1:
            runs[-1] = (runs[-1][0], index)
        else:
            runs.append((index, index))
    return runs
