"""The filler for the ways through dfdaemon: the whole object at once, small ranges where that is
quicker or enough.

The whole object comes as a hand-over, if there is a working socket for that, else as one stream
through the proxy. Either is "the stream" here. A hand-over's pieces come out of order: its position
is that of the first missing one.

`d7yfs.fill.route` decides, within the budget of `d7yfs.fill.p2p_budget`; this module acts. One
stream per version runs at a time, among all daemons on one cache directory: the others follow it.
When it fails, readers go on straight from the origin at the offset reached and hear the truth from
there: dfdaemon's word about a version is no proof. A direct fill that stands in for a stream gives
the rest back to one, once a trial shows that dfdaemon brings bytes again. Readers do not wait for it.

Where the proxy is required, or the mode is `always`, ranges that cannot wait for the stream go
through the proxy too. A required proxy's failure is the readers'; in `always` the origin stands in
for it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

import trio

from d7yfs.cache.proof import Proof
from d7yfs.cache.reservation import Reservation
from d7yfs.cache.version import CachedVersion
from d7yfs.config.p2p import Mode
from d7yfs.errors import D7yfsError, HandoverUnavailable, ProxyUnavailable, Stopped, TokenWithheld
from d7yfs.fetch import silence
from d7yfs.fetch.dragonfly_proxy import Proxies, Registration
from d7yfs.fetch.dragonfly_task import MAX_DIRECT_BYTES
from d7yfs.fetch.fetcher import Fetcher
from d7yfs.fetch.journal import COMPLETE
from d7yfs.fetch.transfer import DIRECT, FALLBACK
from d7yfs.fill import direct
from d7yfs.fill.direct import DirectFiller
from d7yfs.fill.handover import Handover
from d7yfs.fill.p2p_budget import Policy
from d7yfs.fill.route import PATIENCE_S, RANGE_PATIENCE_S, Reason, Step, is_soon, plan, ranged, stream_start
from d7yfs.fill.stream_progress import StreamProgress
from d7yfs.logs import TRACE, fields_of
from d7yfs.objects import PART_BYTES, ByteRange
from d7yfs.stats.model_files import MODEL_SUFFIXES

log = logging.getLogger(__name__)

_WINDOW_BYTES = 64 << 20
"""Bytes of an object that are checked in one go where another daemon streams."""


class StreamFiller:
    """A filler of `target` by `handover` and the fetcher's proxy, one of which there must be, as
    `policy` says. A version whose mode is `never` comes straight from the origin.
    """

    def __init__(
        self,
        target: CachedVersion,
        fetcher: Fetcher,
        nursery: trio.Nursery,
        policy: Policy,
        handover: Handover | None = None,
        *,
        compare: Callable[[CachedVersion], None] | None = None,
    ) -> None:
        self._target = target
        self._fetcher = fetcher
        self._proxy: Proxies | None = fetcher.proxy
        self._handover = handover
        self._ways = [way for way in (fetcher.proxy, handover) if way is not None]
        self._required = any(way.required for way in self._ways)
        self._limits = self._ways[0].limits
        self._nursery = nursery
        self._policy = policy
        self._refused = policy.mode_of(target.version.key) is Mode.NEVER
        reason = Reason.NEVER if self._refused else DIRECT
        self._direct = DirectFiller(target, fetcher, nursery, reason=reason, compare=compare)
        self._model = target.version.key.lower().endswith(MODEL_SUFFIXES)
        self._running: StreamProgress | None = None
        self._run = ByteRange(0, 0)
        """The latest sequential run of reads, with what is expected next."""
        self._touched = False
        self._filling = False

    def request(self, wanted: ByteRange, ahead: ByteRange | None) -> None:
        if self._is_direct:
            self._direct.request(wanted, ahead)
            return
        self._note(ahead)
        for run in self._target.missing(wanted):
            for missing in run.split(MAX_DIRECT_BYTES):
                if self._target.keeps:
                    self._bring(missing)
                else:
                    step = self._ranged(missing, Reason.UNCACHED)
                    self._fetch(step if step.direct else Step(proxied=missing, reason=step.reason))

    def _bring(self, missing: ByteRange) -> None:
        if self._is_direct:  # since the reader's first range
            self._direct.fetch(missing, urgent=True)
            return
        if self._running is None and self._direct.brings(missing):
            self._direct.fetch(missing, urgent=True)  # a header may be read in several steps
            return
        step = plan(
            self._target.version.size_bytes,
            missing,
            self._running.state() if self._running else None,
            touched=self._touched,
            model=self._model,
            run_bytes=missing.stop - self._run.start if self._run.intersects(missing) else 0,
            direct_left_bytes=self._left_bytes,
            front=0 if self._running else self._frontier(0),
            prompt=self._limits.is_prompt,
        )
        self._touched = True
        if step.stream_from is not None:
            self._start(ByteRange(step.stream_from, self._target.version.size_bytes))
            if self._is_direct:
                self._direct.fetch(missing, urgent=True)
                return
            if self._is_behind_another_daemons_stream(missing):
                return
        self._fetch(step)

    def _ranged(self, missing: ByteRange, reason: Reason) -> Step:
        size_bytes = self._target.version.size_bytes
        return ranged(size_bytes, missing, self._left_bytes, Reason.SMALL if size_bytes <= MAX_DIRECT_BYTES else reason)

    def _fetch(self, step: Step, *, urgent: bool = True) -> None:
        """Start the range that `step` names, if any."""
        if step.direct is not None:
            started_bytes = self._direct.fetch(step.direct, urgent=urgent, reason=step.reason)
            self._policy.spend(self._target.version, started_bytes)
        elif step.proxied is not None:
            self._fetch_proxied(step.proxied, step.reason, urgent=urgent)

    def _fetch_proxied(self, wanted: ByteRange, reason: Reason, *, urgent: bool) -> None:
        """Fetch a range through the proxy. Without a proxy, its reader waits for the hand-over."""
        stream = self._running.state() if self._running else None
        if stream is not None and stream.is_silent and not self._required:
            # A way that has fallen silent is not asked for more: the reader would wait as long again.
            self._direct.fetch(wanted, urgent=urgent, reason=FALLBACK)
        elif self._proxy is not None:
            self._direct.fetch(wanted, urgent=urgent, proxied=True, reason=reason)
        elif not self._target.keeps:
            self._direct.fetch(wanted, urgent=urgent, reason=reason)
        elif stream is None:
            self._start(self._target.version.whole)

    def _start(self, wanted: ByteRange) -> None:
        trial = not self._required and all(way.down for way in self._ways)
        patience_s = self._policy.patience_s(self._target.version.key)
        self._running = StreamProgress(wanted, self._limits, patience_s, trial=trial)
        if TRACE.is_on:
            name = self._fetcher.name(self._target.version)
            facts = {"kind": "fetch", "object": name, "start": wanted.start, "stop": wanted.stop}
            TRACE.tell(f"fetch {name} {wanted}: a stream begins, through Dragonfly", **facts, way="stream")
        self._nursery.start_soon(self._stream, self._running)
        self._target.begin_work()

    @property
    def _left_bytes(self) -> int:
        """Bytes of the version that may still come straight from the origin."""
        return self._policy.direct_left_bytes(self._target.version, required=self._required)

    def _note(self, ahead: ByteRange | None) -> None:
        """Note a sequential reader, which asks for more ahead."""
        if ahead is not None:
            same = self._run.start < ahead.start <= self._run.stop
            self._run = ByteRange(self._run.start, max(self._run.stop, ahead.stop)) if same else ahead

    @property
    def window_bytes(self) -> int:
        if self._is_direct:
            return self._direct.window_bytes
        # Nothing is fetched ahead of a stream. Without one, a sequential run asks for more.
        undecided = not self._running and not self._model and self._target.version.size_bytes > MAX_DIRECT_BYTES
        return PART_BYTES if undecided and self._target.keeps else 0

    def fill(self) -> None:
        if self._is_direct:
            self._direct.fill(self._take_over)
        elif self._running:
            self._filling = True
        elif self._target.keeps and (runs := self._target.missing(self._target.version.whole)):
            rest = ByteRange(runs[0].start, runs[-1].stop)
            if rest.size > MAX_DIRECT_BYTES:
                self._filling = True
                self._start(ByteRange(stream_start(rest.start, rest.start, model=False), rest.stop))
                return
            while rest:
                step = self._ranged(rest, Reason.FILL)
                self._fetch(step, urgent=False)
                brought = step.direct or step.proxied
                assert brought
                rest = ByteRange(min(brought.stop, rest.stop), rest.stop)

    def _take_over(self, start: int) -> bool:
        """True if a stream soon brings what a direct fill that has come to `start` would bring next.
        Begins one once dfdaemon may be asked again."""
        if self._running is None and self._is_direct:
            return False
        rest = ByteRange(self._frontier(start), self._target.version.size_bytes)
        if self._running is None and rest.size > MAX_DIRECT_BYTES:
            self._start(rest)
        running = self._running
        takes_over = running is not None and is_soon(rest.start, running.state(), patience_s=RANGE_PATIENCE_S)
        self._filling = self._filling or takes_over
        return takes_over

    def stop_filling(self) -> None:
        self._filling = False
        self._direct.stop_filling()

    def prefetch(self, ahead: ByteRange) -> None:
        if self._is_direct:
            self._direct.prefetch(ahead)
        else:
            self._note(ahead)

    @property
    def _is_direct(self) -> bool:
        """True if Dragonfly has no part in this version, for now or at all."""
        suspect = not self._required and self._target.version.identity in self._fetcher.suspects
        if self._running is not None and self._running.is_on_trial:
            return True
        arriving = self._running is not None and not self._running.state().is_silent
        usable = any(way.usable for way in self._ways)
        withheld = self._fetcher.tokens.is_direct(trio.current_time())
        return self._refused or suspect or withheld or not (usable or arriving)

    def _is_behind_another_daemons_stream(self, missing: ByteRange) -> bool:
        """True if another daemon streams, and has probably come as far as `missing`."""
        if not missing.start or self._target.leases.take_stream():
            return False
        return not self._target.missing(ByteRange(missing.start - 1, missing.start))

    async def _follow(self, running: StreamProgress) -> None:
        """Watch what another daemon's stream of this version brings. Returns when the rest, if any,
        is for us to stream.
        """
        target, leases = self._target, self._target.leases
        if leases.take_stream():
            return
        running.position = self._frontier(running.position)
        began = seen_at = trio.current_time()
        sign, patient = 0, True
        while running.position < running.wanted.stop and not leases.take_stream():
            now = trio.current_time()
            last, sign = sign, await leases.written_to(running.position)
            if sign != last:
                seen_at = now
            elif now - seen_at >= direct.DAEMON_PATIENCE_S:
                break
            if (frontier := self._frontier(running.position)) > running.position:
                running.advance(frontier)
            elif patient and not running.state().rate_bytes_s and now - began >= PATIENCE_S:
                # It is elsewhere in the object. Readers ask again, and get small ranges.
                patient = False
                target.end_transfer(running.wanted, None)
            await trio.sleep(direct.DAEMON_POLL_S)
        running.position = self._frontier(running.position)

    def _frontier(self, position: int) -> int:
        """The first byte from `position` on that is missing, for other daemons too."""
        size_bytes = self._target.version.size_bytes
        while position < size_bytes:
            window = ByteRange(position, min(position + _WINDOW_BYTES, size_bytes))
            for missing in self._target.missing(window):
                return max(position, missing.start)
            position = window.stop
        return position

    async def _stream(self, running: StreamProgress) -> None:
        target, required = self._target, self._required
        name = self._fetcher.name(target.version)
        # The error for readers when this task is cancelled: they must not ask again.
        error: Exception | None = Stopped(f"{name}: reading was stopped")
        fills_on = False

        def silent() -> None:
            """Have readers that wait for this stream ask again, for another way."""
            target.end_transfer(running.wanted, None)

        try:
            handed_over = await self._hand_over(running, silent)
            if not handed_over:
                await self._follow(running)
            if not handed_over and running.position < running.wanted.stop:
                await self._through_proxy(running, silent)
            error = None
            fills_on = running.wanted.start > 0
        except _NoRoom:
            error = None
            log.info("%s: no room in the cache for all of it; reading on in ranges at %d", name, running.position)
        except D7yfsError as failure:
            if not isinstance(failure, ProxyUnavailable):
                self._refused = not required
            error = failure if required else None
            fills_on = error is None
            if error is None and not isinstance(failure, TokenWithheld):
                facts = fields_of(failure.about(object=name))
                log.warning("%s; reading on from the origin at %d", failure.message, running.position, extra=facts)
        except Exception as failure:
            log.exception("%s: streaming failed unexpectedly", name)
            self._refused = not required
            error = failure if required else None
        finally:
            self._running = None
            target.leases.release_stream()
            try:
                target.end_transfer(running.wanted, error)
                fills_on = fills_on and self._filling
                self._filling = False
                if fills_on:
                    self.fill()
            finally:
                target.end_work()

    async def _hand_over(self, running: StreamProgress, silent: Callable[[], None]) -> bool:
        """Have dfdaemon hand the object over; False when that does not work and the proxy is to be
        tried.

        Raises errors of `Handover.bring` when there is no proxy, or the version is not to come from
        dfdaemon at all.
        """
        handover, target = self._handover, self._target
        if handover is None or not handover.usable:
            if self._proxy is None:
                raise HandoverUnavailable(f"{self._fetcher.name(target.version)}: is not handed over by dfdaemon now")
            return False
        running.begin_anew(target.version.whole)
        running.registration = registration = handover.new_registration(self._has_readers)
        bring = partial(handover.bring, target, running.advance, registration=registration, small_too=self._small_too)
        try:
            await silence.watch(bring, running.alive_at, silent, patience=running.patience)
        except D7yfsError as error:
            suspect = target.version.identity in self._fetcher.suspects
            if self._proxy is None or suspect or isinstance(error, TokenWithheld):
                raise
            facts = fields_of(error.about(object=self._fetcher.name(target.version)))
            log.info("%s; going on through the proxy at %d", error.message, running.position, extra=facts)
            return False
        return True

    async def _through_proxy(self, running: StreamProgress, silent: Callable[[], None]) -> None:
        """Stream the rest through the proxy. Raises the errors of `Fetcher.stream`, and _NoRoom."""
        target, fetcher = self._target, self._fetcher
        assert fetcher.proxy is not None
        rest = ByteRange(running.position, running.wanted.stop)
        running.registration = Registration(fetcher.proxy.limits, self._has_readers)
        with fetcher.journal.fill(fetcher.name(target.version), target.version, route="proxy") as fill:
            fill.outcome = "broken off"

            def begin(task_id: str) -> None:
                fill.begin(task_id)
                target.proof.record(Proof.PENDING)

            try:
                await fetcher.stream(
                    target.version,
                    rest,
                    _StreamSink(target, running),
                    on_silence=silent,
                    patience=running.patience,
                    on_task=begin,
                    registration=running.registration,
                )
                fill.outcome = COMPLETE
            finally:
                fill.fetched_bytes = running.position - rest.start

    def _has_readers(self) -> bool:
        return self._target.has_readers

    @property
    def _small_too(self) -> bool:
        """True if dfdaemon is to ask scheduler and peers for a small object as well."""
        return self._policy.mode_of(self._target.version.key) is Mode.ALWAYS


class _NoRoom(D7yfsError):
    """The cache is full: a stream would only push blocks out of memory that readers wait for."""


class _StreamSink:
    """A sink that writes a stream to `target`, as long as there is room to keep it."""

    def __init__(self, target: CachedVersion, running: StreamProgress) -> None:
        self._target = target
        self._running = running

    async def write(self, offset: int, data: memoryview) -> None:
        if not self._target.keeps:
            raise _NoRoom("no room to keep the rest")
        self._running.advance(offset + len(data))
        await self._target.write(offset, data)

    def reserve(self, wanted: ByteRange) -> Reservation | None:
        reserved = self._target.reserve(wanted) if self._target.keeps else None
        if reserved is not None:
            tell = reserved.on_landed

            def landed(start: int, stop: int) -> None:
                self._running.advance(stop)
                tell(start, stop)

            reserved.on_landed = landed
        return reserved

    def retract(self, wanted: ByteRange) -> int:
        self._running.position = self._target.retract(wanted)
        return self._running.position
