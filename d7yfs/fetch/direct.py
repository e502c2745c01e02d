"""The filler for the way straight to the origin: missing bytes in parts, several in flight, each block fetched once.

Its tasks live in a nursery of `daemon`; every ending, good or bad, is told to the target, so no reader waits for a task that is gone.
"""

from __future__ import annotations

import logging

import trio

from d7yfs.cache.filler import FillTarget
from d7yfs.errors import D7yfsError, Stopped
from d7yfs.fetch.fetcher import Fetcher, Urgency
from d7yfs.objects import BLOCK_BYTES, PART_BYTES, ByteRange

log = logging.getLogger(__name__)


class DirectFiller:
    """Fills `target` in parts of at most PART_BYTES, cut at multiples of it."""

    def __init__(self, target: FillTarget, fetcher: Fetcher, nursery: trio.Nursery) -> None:
        self._target = target
        self._fetcher = fetcher
        self._nursery = nursery
        self._in_flight: dict[int, Urgency] = {}
        """By block."""

    def request(self, wanted: ByteRange, ahead: ByteRange | None) -> None:
        if self._target.keeps:
            self.fetch(wanted.aligned(PART_BYTES, self._target.version.size_bytes), urgent=True)
            if ahead:
                self.prefetch(ahead)
        else:
            self.fetch(wanted, urgent=True)

    def prefetch(self, ahead: ByteRange) -> None:
        if self._target.keeps:
            self.fetch(ahead, urgent=False)

    def fetch(self, wanted: ByteRange, *, urgent: bool, proxied: bool = False) -> None:
        """Start what is missing of `wanted` and not under way, in whole blocks; what is under way and now `urgent` leaves its queue."""
        size_bytes = self._target.version.size_bytes
        for run in self._target.missing(wanted):
            for part in run.split(PART_BYTES):
                blocks = range(part.start // BLOCK_BYTES, -(-part.stop // BLOCK_BYTES))
                if urgent:
                    for queued in {self._in_flight[index] for index in blocks if index in self._in_flight}:
                        queued.raise_()
                for first, last in _runs([index for index in blocks if index not in self._in_flight]):
                    piece = ByteRange(first * BLOCK_BYTES, min((last + 1) * BLOCK_BYTES, size_bytes))
                    urgency = Urgency(urgent=urgent)
                    self._nursery.start_soon(self._bring, piece, urgency, proxied)
                    self._in_flight.update(dict.fromkeys(range(first, last + 1), urgency))
                    self._target.hold()

    async def _bring(self, piece: ByteRange, urgency: Urgency, proxied: bool) -> None:
        target = self._target
        name = self._fetcher.name(target.version)
        # What readers hear when this task is cancelled: they must not ask again.
        error: Exception | None = Stopped(f"{name}: reading was stopped")
        try:
            await self._fetcher.fetch(target.version, piece, target.write, urgency=urgency, proxied=proxied)
            error = None
        except D7yfsError as failure:
            error = failure
        except Exception as failure:
            log.exception("%s: fetching %s failed unexpectedly", name, piece)
            error = failure
        finally:
            for index in range(piece.start // BLOCK_BYTES, -(-piece.stop // BLOCK_BYTES)):
                del self._in_flight[index]
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
