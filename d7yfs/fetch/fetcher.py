"""Gets ranges of object versions: sign, GET, verify, write, retry. The only place where bodies enter d7yfs.

A `Fetcher` belongs to one repository's origin. It moves each byte once, from the socket into a buffer of its own pool and from there
to the caller's sink, and never hands on a byte of a reply that `check_head` did not accept. What has been written stays written: a
retry goes on at the offset reached.

Called by the fillers, in tasks of their own; built by `repository`.
"""

from __future__ import annotations

import logging
import math
import random
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from typing import Protocol, Self

import trio

from d7yfs.errors import AccessDenied, BadReply, D7yfsError, ObjectArchived, OriginUnavailable, ProxyUnavailable
from d7yfs.fetch import dragonfly
from d7yfs.fetch.bandwidth import Bandwidth
from d7yfs.fetch.proxy import Proxy
from d7yfs.fetch.reply import check_head, error_of
from d7yfs.fetch.transport import Response, Transport
from d7yfs.objects import ByteRange, ObjectVersion
from d7yfs.origins.origin import Origin, ReadRequest

log = logging.getLogger(__name__)


class Sink(Protocol):
    """Where bytes go."""

    async def write(self, offset: int, data: memoryview) -> None:
        """Take `data`, which is lent until this returns; calls of one transfer follow each other without a gap."""


BUFFER_BYTES = 1 << 20
_ERROR_BODY_BYTES = 16 << 10
_MAX_DOUBTFUL = 3
"""Tries without a byte between them where patience does not help: a reply that breaks the rules is rarely an accident, and what dfdaemon
cannot get from the origin we may."""
_MIN_PAUSE_S = 0.001
"""Less patience than this is none: rounding would leave ever less of it, and never nothing."""
_URGENT_RESERVE = 4
"""Connections that prefetch may not take, so that a reader who waits never queues behind it alone."""


_ANY_VERSION = ObjectVersion("-", 1, '"-"', 0, version_id="-")
"""Never asked for; it has an id, lest an origin that pins by ids ask for one."""


@dataclass(slots=True)
class Counters:
    """What one repository has fetched since start; plain numbers for `status` and metrics."""

    direct_requests: int = 0
    direct_bytes: int = 0
    proxy_requests: int = 0
    proxy_bytes: int = 0
    resigned: int = 0
    retries: dict[str, int] = field(default_factory=dict)
    """Retries by the class of the error that caused them."""

    def count_retry(self, error: Exception) -> None:
        kind = type(error).__name__
        self.retries[kind] = self.retries.get(kind, 0) + 1


class Urgency:
    """Whether a reader waits for a transfer; `raise_` when one comes while the transfer still queues as a prefetch."""

    __slots__ = ("_queue", "urgent")

    def __init__(self, *, urgent: bool) -> None:
        self.urgent = urgent
        self._queue = trio.CancelScope()

    def queueing(self) -> trio.CancelScope:
        """The scope of a stay in the queue for prefetches; a transfer may come back to it."""
        self._queue = trio.CancelScope()
        return self._queue

    def raise_(self) -> None:
        self.urgent = True
        self._queue.cancel()


class Fetcher:
    """Ranges of one origin's objects, straight from it or through `proxy`."""

    def __init__(
        self,
        origin: Origin,
        transport: Transport,
        *,
        proxy: Proxy | None,
        read_timeout_s: float,
        max_connections: int,
        all_prefetches: trio.CapacityLimiter | None = None,
    ) -> None:
        """`all_prefetches` bounds what the fetchers that share it bring ahead of readers. What a reader waits for knows only its own
        origin's bound, so that one that stalls takes nothing from others.
        """
        self.origin = origin
        self.proxy = proxy
        self.counters = Counters()
        self.bandwidth = Bandwidth()
        self.suspects: set[tuple[str, str, int]] = set()
        """Identities of versions that once came with wrong bytes: where the store may stand in, the proxy is not asked for them again."""
        self._transport = transport
        self.read_timeout_s = read_timeout_s
        self._connections = trio.CapacityLimiter(max_connections)
        self._prefetches = trio.CapacityLimiter(max(1, max_connections - _URGENT_RESERVE))
        self._all_prefetches = all_prefetches or trio.CapacityLimiter(math.inf)
        self._buffers: list[bytearray] = []

    def name(self, version: ObjectVersion) -> str:
        """How people know the object."""
        return f"{self.origin.url}/{version.key}"

    async def prepare(self) -> None:
        """Do now what the first read would wait for: the signing key, a connection, a buffer. A failure is that read's to tell."""
        self._buffers.append(bytearray(BUFFER_BYTES))
        proxy = self.proxy
        try:
            request = await self.origin.read_request(_ANY_VERSION, presigned=proxy is not None)
            transport = proxy.transport if proxy else self._transport
            await transport.connect(request.url, via=proxy.url if proxy else "")
        except D7yfsError as error:
            log.debug("%s: nothing is prepared for the first read: %s", self.origin.url, error.message)
        except Exception:  # whatever it is, it is no reason to end the mount
            log.exception("%s: preparing the first read failed unexpectedly", self.origin.url)

    async def fetch(
        self,
        version: ObjectVersion,
        wanted: ByteRange,
        sink: Sink,
        *,
        urgency: Urgency | None = None,
        proxied: bool = False,
        claim: Callable[[], list[ByteRange]] | None = None,
    ) -> None:
        """Bring `wanted` straight from the origin, whatever it takes within the read timeout; `proxied`: as a range through the proxy.

        `claim`, asked when the transfer leaves its queue, says what is still to be brought of `wanted`.

        Without `urgency` a reader waits. Raises VersionGone, AccessDenied, ObjectArchived at once, BadReply after a few tries, and
        OriginUnavailable (ProxyUnavailable) when no byte has come for the read timeout.
        """
        async with AsyncExitStack() as stack:
            if urgency is not None and not urgency.urgent:
                with urgency.queueing():
                    await stack.enter_async_context(self._prefetches)
                    await stack.enter_async_context(self._all_prefetches)
            await stack.enter_async_context(self._connections)
            for each in [wanted] if claim is None else claim():
                await self._until_done(_Transfer(version, each, sink), self.proxy if proxied else None)

    async def stream(self, version: ObjectVersion, wanted: ByteRange, sink: Sink) -> None:
        """Bring `wanted` through the proxy in one GET (rangeless when it is the whole object).

        Raises ProxyUnavailable when the proxy fails before the first byte or for the second time; where it is required, when no byte has
        come for the read timeout.
        What the proxy reports about the origin is raised as `fetch` does.
        """
        assert self.proxy is not None
        async with self.proxy.streams, _Held(self.proxy.registrations) as registration:
            transfer = _Transfer(version, wanted, sink, on_first_byte=registration.release)
            try:
                await self._until_done(transfer, self.proxy)
            except ProxyUnavailable:
                # After bytes have come it may be a restart: one more try before the origin has to help.
                if transfer.position == wanted.start or self.proxy.required:
                    raise
                await self._until_done(transfer, self.proxy)

    async def _until_done(self, transfer: _Transfer, proxy: Proxy | None) -> None:
        attempt = doubtful = 0
        fresh = resigned = False
        while transfer.position < transfer.wanted.stop:
            reached = transfer.position
            try:
                await self._attempt(transfer, proxy, fresh=fresh)
                return
            except D7yfsError as error:
                self._name(error, transfer.version)
                if transfer.position > reached:
                    attempt = doubtful = 0
                    resigned = False
                fresh = isinstance(error, AccessDenied) and not isinstance(error, ObjectArchived) and not resigned
                if fresh:
                    resigned = True
                    self.counters.resigned += 1
                    log.info("%s; signing again", error.message)
                    continue
                avoidable = proxy is not None and not proxy.required
                if not error.transient or (avoidable and isinstance(error, ProxyUnavailable)):
                    raise
                doubtful += avoidable or isinstance(error, BadReply)
                patience_s = self.read_timeout_s - (trio.current_time() - transfer.last_progress)
                if doubtful >= _MAX_DOUBTFUL or patience_s <= _MIN_PAUSE_S:
                    raise
                self.counters.count_retry(error)
                pause_s = min(pause_before_retry_s(attempt, error), patience_s)
                log.info("%s; retry in %.1f s", error.message, pause_s)
                attempt += 1
            await trio.sleep(pause_s)

    def _name(self, error: D7yfsError, version: ObjectVersion) -> None:
        """Have `error` say which object it is about: the transport knows host and port only."""
        name = self.name(version)
        if name not in error.message:
            error.message = f"{name}: {error.message}"

    async def _attempt(self, transfer: _Transfer, proxy: Proxy | None, *, fresh: bool) -> None:
        """One GET from the offset reached to the end of what is wanted."""
        version = transfer.version
        rest = ByteRange(transfer.position, transfer.wanted.stop)
        request = await self.origin.read_request(version, presigned=proxy is not None, fresh=fresh)
        url, headers = self._headed(request, version, rest, proxy)
        if proxy:
            self.counters.proxy_requests += 1
        else:
            self.counters.direct_requests += 1
        transport = proxy.transport if proxy else self._transport
        sent_at = trio.current_time()
        async with transport.get(url, headers, via=proxy.url if proxy else "") as response:
            await self._check(response, version, rest, proxy)
            replied_at = trio.current_time()
            await self._receive(response, transfer, proxy)
        if proxy is None:
            self.bandwidth.replied(rest.size, replied_at - sent_at, transfer.last_progress - replied_at)

    def _headed(
        self, request: ReadRequest, version: ObjectVersion, rest: ByteRange, proxy: Proxy | None
    ) -> tuple[str, dict[str, str]]:
        headers = dict(request.headers)
        url = request.url
        if proxy is not None:
            url = dragonfly.sorted_query(url)
            content = dragonfly.content_id(self.origin.identity, version)
            headers |= dragonfly.proxy_headers(content, request.signature_params, proxy.filter, proxy.headers)
        if proxy is not None and rest.stop == version.size_bytes:
            # To the end, so that dfdaemon sees the stream that it is.
            if rest.start:
                headers["Range"] = f"bytes={rest.start}-"
        else:
            headers["Range"] = rest.http()
        return url, headers

    async def _check(self, response: Response, version: ObjectVersion, rest: ByteRange, proxy: Proxy | None) -> None:
        name, status, headers = self.name(version), response.status, response.headers
        body = b""
        if status not in (200, 206):
            # The status has said what matters; what explains it may get lost.
            with suppress(D7yfsError):
                body = await response.read(_ERROR_BODY_BYTES)
        if proxy is not None and status not in (200, 206):
            kind = headers.get(dragonfly.ERROR_TYPE_HEADER)
            if dragonfly.blame(status, kind) is dragonfly.Blame.PROXY:
                failure = error_of(status, headers, name=name, body=body)
                raise ProxyUnavailable(
                    f"{name}: the proxy {proxy.url} answered {status} ({kind or 'no reason'})"
                ) from failure
        check_head(status, headers, version=version, wanted=rest, name=name, error_body=body)

    async def _receive(self, response: Response, transfer: _Transfer, proxy: Proxy | None) -> None:
        buffer = self._buffers.pop() if self._buffers else bytearray(BUFFER_BYTES)
        view, surplus = memoryview(buffer), memoryview(bytearray(1))
        start, stop = transfer.position, transfer.wanted.stop
        try:
            while transfer.position < stop:
                count = await response.receive_into(view[: stop - transfer.position])
                if not count:
                    missing = stop - transfer.position
                    raise OriginUnavailable(f"{self.name(transfer.version)}: cut off {missing} bytes before the end")
                if transfer.position + count == stop and await response.receive_into(surplus):
                    raise BadReply(f"{self.name(transfer.version)}: more bytes than were asked for")
                transfer.last_progress = trio.current_time()
                transfer.on_first_byte()
                if proxy is not None:
                    proxy.breaker.succeeded()
                else:
                    self.bandwidth.landed(count, transfer.last_progress)
                await transfer.sink.write(transfer.position, view[:count])
                transfer.position += count
        except OriginUnavailable as error:
            if proxy is not None:
                # A dfdaemon that dies in mid-body leaves no other mark than a short body.
                raise ProxyUnavailable(f"{error.message} (through the proxy {proxy.url})") from error
            raise
        finally:
            self._buffers.append(buffer)
            received = transfer.position - start
            if proxy is not None:
                self.counters.proxy_bytes += received
            else:
                self.counters.direct_bytes += received


class _Held:
    """A token of `limiter` that may be given back before the end of the block."""

    def __init__(self, limiter: trio.CapacityLimiter) -> None:
        self._limiter = limiter
        self._held = False

    async def __aenter__(self) -> Self:
        await self._limiter.acquire()
        self._held = True
        return self

    async def __aexit__(self, *_: object) -> None:
        self.release()

    def release(self) -> None:
        if self._held:
            self._held = False
            self._limiter.release()


class _Transfer:
    """A range on its way: `position` is the next byte that is wanted."""

    __slots__ = ("last_progress", "on_first_byte", "position", "sink", "version", "wanted")

    def __init__(
        self,
        version: ObjectVersion,
        wanted: ByteRange,
        sink: Sink,
        *,
        on_first_byte: Callable[[], None] = lambda: None,
    ) -> None:
        self.version = version
        self.wanted = wanted
        self.sink = sink
        self.on_first_byte = on_first_byte
        """Called at least once, when bytes have come."""
        self.position = wanted.start
        self.last_progress = trio.current_time()


def pause_before_retry_s(attempt: int, error: D7yfsError) -> float:
    """Exponential from 0.1 s to 5 s with full jitter on the upper half, or what the origin asked for if that is longer."""
    pause_s = min(0.1 * 2.0 ** min(attempt, 10), 5.0) * random.uniform(0.5, 1.0)  # noqa: S311  # jitter, not cryptography
    asked_s = error.retry_after_s if isinstance(error, OriginUnavailable) else 0.0
    return max(pause_s, asked_s)
