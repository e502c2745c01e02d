"""The filler for the way through dfdaemon's proxy: the whole object as one stream, small ranges from the origin where that is quicker.

`d7yfs.fetch.route` decides; this module acts. One stream per version runs at a time, among all daemons on one cache directory: the others
follow what it brings. When it fails, for whatever reason, readers go on straight from the origin at the offset reached and hear the truth
from there: what dfdaemon says about a version is no proof.

Where the proxy is required, only small files come from the origin: ranges that cannot wait for the stream go through the proxy too, and its
failure is the readers'.
"""

from __future__ import annotations

import logging

import trio

from d7yfs.cache.filler import FillTarget
from d7yfs.errors import D7yfsError, ProxyUnavailable, Stopped
from d7yfs.fetch import turns
from d7yfs.fetch.direct import DirectFiller
from d7yfs.fetch.dragonfly import MAX_DIRECT_BYTES
from d7yfs.fetch.fetcher import Fetcher
from d7yfs.fetch.proxy import Proxy
from d7yfs.fetch.route import PATIENCE_S, Stream, plan
from d7yfs.objects import ByteRange

log = logging.getLogger(__name__)

_SILENCE_S = 3.0
"""Readers do not wait for a stream that has brought nothing for so long."""
_SHORTEST_RATED_S = 0.1
"""A rate is not judged by less time: the first buffer full is no rate."""
_WINDOW_BYTES = 64 << 20
"""How much of the map is looked at in one go where another daemon streams."""


class StreamFiller:
    """Fills `target` through the fetcher's proxy."""

    def __init__(self, target: FillTarget, fetcher: Fetcher, nursery: trio.Nursery) -> None:
        self._target = target
        self._fetcher = fetcher
        self._nursery = nursery
        self._direct = DirectFiller(target, fetcher, nursery)
        self._running: _Running | None = None
        self._refused = False
        self._touched = False

    def request(self, wanted: ByteRange, ahead: ByteRange | None) -> None:
        proxy = self._fetcher.proxy
        assert proxy is not None
        if self._is_direct:
            self._direct.request(wanted, ahead)
            return
        proxied = proxy.required and self._target.version.size_bytes > MAX_DIRECT_BYTES
        if not self._target.keeps:
            self._direct.fetch(wanted, urgent=True, proxied=proxied)
            return
        for run in self._target.missing(wanted):
            for missing in run.split(MAX_DIRECT_BYTES):
                self._bring(missing, proxy, proxied=proxied)

    def _bring(self, missing: ByteRange, proxy: Proxy, *, proxied: bool) -> None:
        size_bytes = self._target.version.size_bytes
        stream = self._running.state() if self._running else None
        step = plan(size_bytes, missing, stream, touched=self._touched)
        self._touched = True
        if step.stream_from is not None:
            proxy.breaker.asked(trio.current_time())
            self._running = _Running(ByteRange(step.stream_from, size_bytes))
            self._nursery.start_soon(self._stream, self._running)
            self._target.hold()
            if self._is_behind_another_daemons_stream(missing):
                return
        if step.direct is not None:
            self._direct.fetch(step.direct, urgent=True, proxied=proxied)

    @property
    def window_bytes(self) -> int:
        return self._direct.window_bytes if self._is_direct else 0

    def fill(self) -> None:
        if self._is_direct or self._target.version.size_bytes <= MAX_DIRECT_BYTES:
            self._direct.fill()

    def prefetch(self, ahead: ByteRange) -> None:
        if self._is_direct:
            self._direct.prefetch(ahead)

    @property
    def _is_direct(self) -> bool:
        """The proxy has no part in this version, for now or at all; a stream would bring whatever is asked for ahead."""
        proxy = self._fetcher.proxy
        assert proxy is not None
        suspect = not proxy.required and self._target.version.identity in self._fetcher.suspects
        return self._refused or suspect or not (proxy.usable or self._running)

    def _is_behind_another_daemons_stream(self, missing: ByteRange) -> bool:
        """Whether another daemon on the cache directory has a stream under way, and has probably come as far as `missing`."""
        if not missing.start or self._target.leases.take_stream():
            return False
        return not self._target.missing(ByteRange(missing.start - 1, missing.start))

    async def _follow(self, running: _Running) -> None:
        """While another daemon streams this version, watch what it brings. Returns when the rest, if any, is for us to stream."""
        target, leases = self._target, self._target.leases
        if leases.take_stream():
            return
        running.position = self._frontier(running.position)
        began = seen_at = trio.current_time()
        sign, patient = 0, True
        while running.position < running.wanted.stop and not leases.take_stream():
            now = trio.current_time()
            last, sign = sign, leases.written_to(running.position)
            if sign != last:
                seen_at = now
            elif now - seen_at >= turns.PATIENCE_S:
                break
            if (frontier := self._frontier(running.position)) > running.position:
                running.advance(frontier)
            elif patient and not running.state().rate_bytes_s and now - began >= PATIENCE_S:
                # It is somewhere else in the object. Readers ask again, and get small ranges.
                patient = False
                target.ended(running.wanted, None)
            await trio.sleep(turns.POLL_S)
        running.position = self._frontier(running.position)

    def _frontier(self, position: int) -> int:
        """The first byte from `position` on that is not there, other daemons' included."""
        size_bytes = self._target.version.size_bytes
        while position < size_bytes:
            window = ByteRange(position, min(position + _WINDOW_BYTES, size_bytes))
            for missing in self._target.missing(window):
                return max(position, missing.start)
            position = window.stop
        return position

    async def _stream(self, running: _Running) -> None:
        target, proxy = self._target, self._fetcher.proxy
        assert proxy is not None
        name = self._fetcher.name(target.version)
        # What readers hear when this task is cancelled: they must not ask again.
        error: Exception | None = Stopped(f"{name}: reading was stopped")

        try:
            await self._follow(running)
            if running.position < running.wanted.stop:
                rest = ByteRange(running.position, running.wanted.stop)
                await self._fetcher.stream(target.version, rest, _StreamSink(target, running))
            error = None
        except _NoRoom:
            error = None
            log.info("%s: no room in the cache for all of it; reading on in ranges at %d", name, running.position)
        except D7yfsError as failure:
            if isinstance(failure, ProxyUnavailable):
                proxy.breaker.failed(trio.current_time())
            else:
                self._refused = not proxy.required
            error = failure if proxy.required else None
            if error is None:
                log.warning("%s; reading on from the origin at %d", failure.message, running.position)
        except Exception as failure:
            log.exception("%s: streaming failed unexpectedly", name)
            self._refused = not proxy.required
            error = failure if proxy.required else None
        finally:
            self._running = None
            target.leases.release_stream()
            try:
                target.ended(running.wanted, error)
            finally:
                target.drop()


class _NoRoom(D7yfsError):
    """The cache is full: a stream would only push out of memory what readers wait for."""


class _StreamSink:
    """Writes to `target` what a stream brings, as long as there is room to keep it."""

    def __init__(self, target: FillTarget, running: _Running) -> None:
        self._target = target
        self._running = running

    async def write(self, offset: int, data: memoryview) -> None:
        if not self._target.keeps:
            raise _NoRoom("no room to keep the rest")
        self._running.advance(offset + len(data))
        await self._target.write(offset, data)


class _Running:
    """The stream that runs now."""

    __slots__ = ("_first_byte_at", "_last_byte_at", "_rated_from", "position", "wanted")

    def __init__(self, wanted: ByteRange) -> None:
        self.wanted = wanted
        self.position = self._rated_from = wanted.start
        self._first_byte_at: float | None = None
        self._last_byte_at = 0.0

    def advance(self, position: int) -> None:
        self._last_byte_at = trio.current_time()
        if self._first_byte_at is None:
            self._first_byte_at = self._last_byte_at
            self._rated_from = self.position
        self.position = position

    def state(self) -> Stream:
        now = trio.current_time()
        rate = 0.0
        if self._first_byte_at is not None and now - self._last_byte_at < _SILENCE_S:
            rate = (self.position - self._rated_from) / max(now - self._first_byte_at, _SHORTEST_RATED_S)
        return Stream(self.wanted.start, self.position, self.wanted.stop, rate)
