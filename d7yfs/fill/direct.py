"""The filler for the way straight to the origin: missing bytes in parts, several in flight, each
block fetched once.

Its tasks live in a nursery of `daemon`. Every ending, good or bad, is told to the target, so no
reader waits for a task that is gone.

Several daemons on one cache directory together fetch each byte once. A range that another daemon
has under way is watched and taken over block by block. The rest of it is fetched here when that
daemon is done, fails, or is killed. A daemon that is alive and brings nothing (a hung network,
SIGSTOP) is not waited for longer than `DAEMON_PATIENCE_S`: two daemons that bring the same block
write the same bytes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

import trio

from d7yfs.cache.leases import append_block
from d7yfs.cache.pair import blocks_of
from d7yfs.cache.proof import Proof
from d7yfs.cache.version import CachedVersion
from d7yfs.errors import D7yfsError, Stopped
from d7yfs.fetch.fetcher import Fetcher
from d7yfs.fetch.journal import COMPLETE
from d7yfs.fetch.transfer import DIRECT, Urgency
from d7yfs.logs import TRACE
from d7yfs.objects import BLOCK_BYTES, PART_BYTES, ByteRange

log = logging.getLogger(__name__)

DAEMON_POLL_S = 0.02
"""Interval in seconds at which the map is looked at, as there is no event between processes."""

DAEMON_PATIENCE_S = 3.0
"""Seconds without a sign of life of another daemon, after which its range is fetched here too."""

SMALL_BYTES = 4 << 20
"""Objects up to this size come in one request, for any read."""

FIRST_BYTES = 2 << 20
"""Bytes that the first read at an object's beginning brings: few enough to be there at once, enough
for most headers."""


class DirectFiller:
    """A filler of `target` in parts of at most PART_BYTES, cut at multiples of their size. The
    fetcher counts them under `reason`. `compare` gets the target once it has come whole.
    """

    def __init__(
        self,
        target: CachedVersion,
        fetcher: Fetcher,
        nursery: trio.Nursery,
        *,
        reason: str = DIRECT,
        compare: Callable[[CachedVersion], None] | None = None,
    ) -> None:
        self._target = target
        self._fetcher = fetcher
        self._nursery = nursery
        self._reason = reason
        self._distrusted_at = -1
        """`CachedVersion.taken_over_blocks` when we lost patience. Until there is more, no daemon is
        waited for: one that hangs costs its patience once, and not for each range that it holds."""
        self._in_flight: dict[int, Urgency] = {}
        """Indexed by block."""
        self._asked_bytes = 0
        self._filling = self._failed = self._relented = False
        self._one_ended = trio.Event()
        if compare is not None:
            target.call_when_whole(partial(compare, target))

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

    def stop_filling(self) -> None:
        self._relented = True

    def fill(self, take_over: Callable[[int], bool] = lambda _: False) -> None:
        """Bring all of it. `take_over` is asked before each part, with its start; true ends the fill."""
        self._relented = False
        if self._target.version.size_bytes <= SMALL_BYTES:
            self.prefetch(self._target.version.whole)
        elif not self._filling and self._target.keeps:
            self._filling = True
            self._nursery.start_soon(self._fill, take_over)
            self._target.begin_work()

    async def _fill(self, take_over: Callable[[int], bool]) -> None:
        """Keep as much under way as the origin has use for, until all is there, no room is left, the
        origin fails, or another way takes over.
        """
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
                        if self._relented or take_over(part.start):
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
            target.end_work()

    @property
    def _missing_bytes(self) -> int:
        return sum(run.size for run in self._target.missing(self._target.version.whole))

    def _part_bytes(self) -> int:
        """Size of the next part: small ones first, as several at once bring the first megabytes
        sooner. Later each request should matter.
        """
        if self._asked_bytes < 4 * PART_BYTES:
            return PART_BYTES // 4
        return PART_BYTES // 2 if self._asked_bytes < 16 * PART_BYTES else PART_BYTES

    def fetch(self, wanted: ByteRange, *, urgent: bool, proxied: bool = False, reason: str = "") -> int:
        """Start the blocks of `wanted` that are missing and not under way; returns their bytes.

        Those under way that are now `urgent` leave their queue. With `proxied` they come as ranges
        through the proxy.
        """
        before_bytes = self._asked_bytes
        for run in self._target.missing(wanted):
            at_once = urgent or proxied
            for part in run.split(max(self._part_bytes(), SMALL_BYTES) if at_once else self._part_bytes()):
                pieces: list[ByteRange] = []
                for index in blocks_of(part):
                    if (queued := self._in_flight.get(index)) is None:
                        append_block(pieces, ByteRange(index * BLOCK_BYTES, min((index + 1) * BLOCK_BYTES, part.stop)))
                    elif urgent:
                        queued.make_urgent()
                for piece in pieces:
                    urgency = Urgency(urgent=urgent)
                    self._asked_bytes += piece.size
                    self._nursery.start_soon(self._bring, piece, urgency, proxied, reason or self._reason)
                    self._in_flight.update(dict.fromkeys(blocks_of(piece), urgency))
                    self._target.begin_work()
        asked_bytes = self._asked_bytes - before_bytes
        if TRACE.is_on and asked_bytes:
            self._trace(wanted, asked_bytes, "for a reader" if urgent else "ahead", proxied=proxied)
        return asked_bytes

    def _trace(self, wanted: ByteRange, asked_bytes: int, why: str, *, proxied: bool) -> None:
        name, way = (
            self._fetcher.name(self._target.version),
            "by ranges through the proxy" if proxied else "from the store",
        )
        facts = {"kind": "fetch", "object": name, "start": wanted.start, "stop": wanted.stop, "bytes": asked_bytes}
        TRACE.tell(f"fetch {name} {wanted}: {asked_bytes} bytes are asked for, {why}, {way}", **facts, why=why, way=way)

    def brings(self, wanted: ByteRange) -> bool:
        """True if all of `wanted` is under way."""
        return all(index in self._in_flight for index in blocks_of(wanted))

    async def _bring(self, piece: ByteRange, urgency: Urgency, proxied: bool, reason: str) -> None:
        target = self._target
        error: Exception | None = None
        waiting, patient = [piece], True

        def claim() -> list[ByteRange]:
            """Lease the ranges to fetch here now. Called when a transfer may begin: a lease in a
            queue holds up other daemons.
            """
            nonlocal waiting
            anyway = not patient or self._distrusted_at == target.taken_over_blocks
            claims = [target.leases.take(each, anyway=anyway) for each in waiting]
            waiting = [run for _, theirs in claims for run in theirs]
            return [run for ours, _ in claims for run in ours]

        try:
            while waiting:
                try:
                    await self._fetcher.fetch(
                        target.version,
                        piece,
                        target,
                        urgency=urgency,
                        proxied=proxied,
                        reason=reason,
                        claim=claim,
                        on_task=lambda _: target.proof.record(Proof.PENDING),
                    )
                finally:
                    target.leases.release(piece)
                if waiting:
                    waiting, patient = await self._watch(waiting)
        except D7yfsError as failure:
            error = failure
        except Exception as failure:
            log.exception("%s: fetching %s failed unexpectedly", self._fetcher.name(target.version), piece)
            error = failure
        except BaseException:
            # Cancelled: readers must not ask again.
            error = Stopped(f"{self._fetcher.name(target.version)}: reading was stopped")
            raise
        finally:
            for index in blocks_of(piece):
                del self._in_flight[index]
            self._failed = error is not None
            self._one_ended.set()
            self._one_ended = trio.Event()
            try:
                target.end_transfer(piece, error)
            finally:
                target.end_work()

    async def _watch(self, theirs: list[ByteRange]) -> tuple[list[ByteRange], bool]:
        """Wait until other daemons have brought `theirs` or leave some of it to us; returns what is
        left, and False if they give no sign of life.
        """
        target, leases = self._target, self._target.leases
        sign, seen_at = (0, 0), trio.current_time()
        while theirs:
            claims = [leases.take(each) for each in theirs]
            for each in theirs:
                leases.release(each)
            if any(ours for ours, _ in claims):
                break
            theirs = [run for _, rest in claims for run in rest]
            if not theirs:
                break  # another has brought the last of it since we looked
            last, sign = sign, (sum(each.size for each in theirs), await leases.written_to(theirs[0].start))
            now = trio.current_time()
            if sign != last:
                seen_at = now
            elif now - seen_at >= DAEMON_PATIENCE_S:
                self._distrusted_at = target.taken_over_blocks
                return theirs, False
            await trio.sleep(DAEMON_POLL_S)
        return theirs, True
