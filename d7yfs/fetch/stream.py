"""The filler for the way through dfdaemon's proxy: the whole object as one stream, small ranges from the origin where that is quicker.

`d7yfs.fetch.route` decides; this module acts. When the proxy fails, readers go on straight from the origin at the offset reached, unless
the proxy is required. One stream per version runs at a time.
"""

from __future__ import annotations

import logging

import trio

from d7yfs.cache.filler import FillTarget
from d7yfs.errors import AccessDenied, BadReply, D7yfsError, OriginUnavailable, ProxyUnavailable, VersionGone
from d7yfs.fetch.direct import DirectFiller
from d7yfs.fetch.fetcher import Fetcher
from d7yfs.fetch.route import Stream, plan
from d7yfs.objects import ByteRange

log = logging.getLogger(__name__)


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
        if not self._target.keeps or self._refused or not (proxy.usable or self._running):
            self._direct.request(wanted, ahead)
            return
        missing = self._target.missing(wanted)
        if not missing:
            return
        stream = self._running.state() if self._running else None
        step = plan(self._target.version.size_bytes, missing[0], stream, touched=self._touched)
        self._touched = True
        if step.stream_from is not None:
            self._running = _Running(ByteRange(step.stream_from, self._target.version.size_bytes))
            self._target.hold()
            self._nursery.start_soon(self._stream, self._running)
        if step.direct is not None:
            self._direct.fetch(step.direct, urgent=True)

    def prefetch(self, ahead: ByteRange) -> None:
        proxy = self._fetcher.proxy
        assert proxy is not None
        if self._refused or not (proxy.usable or self._running):
            self._direct.prefetch(ahead)

    async def _stream(self, running: _Running) -> None:
        target, proxy = self._target, self._fetcher.proxy
        assert proxy is not None
        error: Exception | None = None

        def write(offset: int, data: memoryview) -> None:
            if not target.keeps:
                raise _NoRoom("no room to keep the rest")
            running.advance(offset + len(data))
            target.write(offset, data)

        try:
            await self._fetcher.stream(target.version, running.wanted, write)
        except VersionGone as failure:
            error = failure
        except D7yfsError as failure:
            # Readers who wait are not told: they ask again and get their bytes, or the error, from the origin itself.
            if isinstance(failure, ProxyUnavailable):
                proxy.breaker.failed(trio.current_time())
            elif isinstance(failure, (BadReply, AccessDenied, OriginUnavailable)) and not proxy.required:
                self._refused = True
            if proxy.required and not isinstance(failure, _NoRoom):
                error = failure
            else:
                log.warning("%s; reading on from the origin at %d", failure.message, running.position)
        except Exception as failure:
            log.exception("%s: streaming failed unexpectedly", self._fetcher.name(target.version))
            error = failure
        finally:
            self._running = None
            try:
                target.ended(running.wanted, error)
            finally:
                target.drop()


class _NoRoom(D7yfsError):
    """The cache is full: a stream would only push out of memory what readers wait for."""


class _Running:
    """The stream that runs now."""

    __slots__ = ("_first_byte_at", "position", "wanted")

    def __init__(self, wanted: ByteRange) -> None:
        self.wanted = wanted
        self.position = wanted.start
        self._first_byte_at = 0.0

    def advance(self, position: int) -> None:
        self._first_byte_at = self._first_byte_at or trio.current_time()
        self.position = position

    def state(self) -> Stream:
        elapsed_s = max(trio.current_time() - self._first_byte_at, 0.01) if self._first_byte_at else 0.0
        rate = (self.position - self.wanted.start) / elapsed_s if elapsed_s else 0.0
        return Stream(self.wanted.start, self.position, self.wanted.stop, rate)
