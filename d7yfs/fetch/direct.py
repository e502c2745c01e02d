"""The filler for the way straight to the origin: missing bytes in parts, several in flight, each block fetched once.

Its tasks live in a nursery of `daemon`; every ending, good or bad, is told to the target, so no reader waits for a task that is gone.
"""

from __future__ import annotations

import logging

import trio

from d7yfs.cache.filler import FillTarget
from d7yfs.errors import D7yfsError
from d7yfs.fetch.fetcher import Fetcher
from d7yfs.objects import BLOCK_BYTES, PART_BYTES, ByteRange

log = logging.getLogger(__name__)


class DirectFiller:
    """Fills `target` in parts of at most PART_BYTES, cut at multiples of it."""

    def __init__(self, target: FillTarget, fetcher: Fetcher, nursery: trio.Nursery) -> None:
        self._target = target
        self._fetcher = fetcher
        self._nursery = nursery
        self._in_flight: set[int] = set()

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

    def fetch(self, wanted: ByteRange, *, urgent: bool) -> None:
        """Start what is missing of `wanted` and not under way, in whole blocks."""
        size_bytes = self._target.version.size_bytes
        for run in self._target.missing(wanted):
            for part in run.split(PART_BYTES):
                blocks = range(part.start // BLOCK_BYTES, -(-part.stop // BLOCK_BYTES))
                for first, last in _runs([index for index in blocks if index not in self._in_flight]):
                    piece = ByteRange(first * BLOCK_BYTES, min((last + 1) * BLOCK_BYTES, size_bytes))
                    self._in_flight.update(range(first, last + 1))
                    self._target.hold()
                    self._nursery.start_soon(self._bring, piece, urgent)

    async def _bring(self, piece: ByteRange, urgent: bool) -> None:
        target = self._target
        error: Exception | None = None
        try:
            await self._fetcher.fetch(target.version, piece, target.write, urgent=urgent)
        except D7yfsError as failure:
            error = failure
        except Exception as failure:
            log.exception("%s: fetching %s failed unexpectedly", self._fetcher.name(target.version), piece)
            error = failure
        finally:
            self._in_flight.difference_update(range(piece.start // BLOCK_BYTES, -(-piece.stop // BLOCK_BYTES)))
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
