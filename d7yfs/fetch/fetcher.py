"""Gets ranges of object versions: sign, GET, verify, write, retry. The only place where bodies enter d7yfs by HTTP.

A `Fetcher` belongs to one repository's origin. It moves each byte once, from the socket into a buffer of its own pool and from there
to the caller's sink, and never hands on a byte of a reply that `check_head` did not accept, nor, through a proxy, one that is not provably
about this version's task. What has been written stays written: a retry goes on at the offset reached.

Called by the fillers, in tasks of their own; built by `repository`.
"""

from __future__ import annotations

import logging
import math
import random
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from functools import partial

import trio
from cachetools import TTLCache

from d7yfs.errors import (
    AccessDenied,
    BadReply,
    D7yfsError,
    NotFound,
    ObjectArchived,
    OriginUnavailable,
    ProxyUnavailable,
    VersionGone,
    VersionUnbound,
)
from d7yfs.fetch import dragonfly_task, silence
from d7yfs.fetch.bandwidth import Bandwidth
from d7yfs.fetch.counters import Counters
from d7yfs.fetch.dragonfly_proxy import Proxy
from d7yfs.fetch.journal import Journal
from d7yfs.fetch.proxies import QUEUE_PATIENCE_S, Proxies, Registration
from d7yfs.fetch.proxy_outage import Sparing
from d7yfs.fetch.reply import check_head, error_of, proves
from d7yfs.fetch.transfer import DIRECT, FALLBACK, Sink, Transfer, Urgency
from d7yfs.fetch.transport import Response, Transport
from d7yfs.logs import fields, fields_of
from d7yfs.objects import ByteRange, ObjectVersion
from d7yfs.origins.origin import Origin
from d7yfs.stats.models import Models

log = logging.getLogger(__name__)


BUFFER_BYTES = 1 << 20
_ERROR_BODY_BYTES = 16 << 10
_MAX_DOUBTFUL = 3
"""Tries without a byte between them where patience does not help: a server that ignores Range will go on to do so, and what dfdaemon
cannot get from the origin we may."""
_MIN_PAUSE_S = 0.001
"""Less patience than this is none: rounding would leave ever less of it, and never nothing."""
_URGENT_RESERVE = 4
"""Connections that prefetch may not take, so that a reader who waits never queues behind it alone."""
_GONE_MAX = 1024
_GONE_S = 1.0
"""One question answers all the parts of a version that fail together. Soon after, the same content may have been uploaded again."""

_ANY_VERSION = ObjectVersion("-", 1, '"-"', 0, version_id="-")
"""Never asked for; it has an id, lest an origin that pins by ids ask for one."""


class Fetcher:
    """Ranges of one origin's objects, straight from it or through one of the proxies that `proxy` stands for."""

    def __init__(
        self,
        origin: Origin,
        transport: Transport,
        *,
        proxy: Proxies | None,
        read_timeout_s: float,
        max_connections: int,
        all_prefetches: trio.CapacityLimiter | None = None,
        models: Models | None = None,
    ) -> None:
        """`all_prefetches` bounds what the fetchers that share it bring ahead of readers. What a reader waits for knows only its own
        origin's bound, so that one that stalls takes nothing from others.
        """
        self.origin = origin
        self.proxy = proxy
        self.counters = Counters()
        self.models = models or Models()
        self.journal = Journal(self.models)
        self.bandwidth = Bandwidth()
        self.suspects: set[tuple[str, str, int]] = set()
        """Identities of versions that once came with wrong bytes: where the store may stand in, the proxy is not asked for them again."""
        self._transport = transport
        self.read_timeout_s = read_timeout_s
        self._connections = trio.CapacityLimiter(max_connections)
        self._prefetches = trio.CapacityLimiter(max(1, max_connections - _URGENT_RESERVE))
        self._all_prefetches = all_prefetches or trio.CapacityLimiter(math.inf)
        self._sparing = Sparing()
        self.on_retracted: Callable[[ObjectVersion], None] = lambda _: None
        """Told when bytes of a version turned out to have come wrong, after readers may have had them."""
        self._gone: TTLCache[tuple[str, str, int], bool] = TTLCache(_GONE_MAX, _GONE_S, timer=trio.current_time)
        """Identities of versions that the store said were not current, a moment ago."""
        self._buffers: list[bytearray] = []

    def name(self, version: ObjectVersion) -> str:
        """How people know the object."""
        return f"{self.origin.url}/{version.key}"

    def load(self) -> dict[str, int]:
        """How much is under way to the origin and through proxies now, and how much waits for a turn."""
        connections, prefetches = self._connections.statistics(), self._prefetches.statistics()
        return {
            "transfers": connections.borrowed_tokens,
            "transfers_limit": int(connections.total_tokens),
            "transfers_queued": connections.tasks_waiting,
            "prefetches": prefetches.borrowed_tokens,
            "prefetches_limit": int(prefetches.total_tokens),
            "prefetches_queued": prefetches.tasks_waiting,
        }

    def set_connections(self, max_connections: int) -> None:
        """From now on; what is under way is left to end."""
        self._connections.total_tokens = max_connections
        self._prefetches.total_tokens = max(1, max_connections - _URGENT_RESERVE)

    async def renew_credentials(self) -> None:
        """Look for credentials anew, as after a refusal. Raises what the origin does when it signs."""
        await self.origin.read_request(_ANY_VERSION, presigned=self.proxy is not None, fresh=True)

    async def prepare(self) -> None:
        """Do now what the first read would wait for: the signing key, a connection, a buffer. A failure is that read's to tell."""
        self._buffers.append(bytearray(BUFFER_BYTES))
        try:
            request = await self.origin.read_request(_ANY_VERSION, presigned=self.proxy is not None)
            if self.proxy is None:
                await self._transport.connect(request.url)
                return
            for proxy in self.proxy.all:
                await proxy.learn_health()
            await self.proxy.all[0].transport.connect(request.url, via=self.proxy.all[0].url)
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
        small_too: bool = False,
        reason: str = DIRECT,
        claim: Callable[[], list[ByteRange]] | None = None,
    ) -> None:
        """Bring `wanted` straight from the origin, whatever it takes within the read timeout, and count it under `reason`.

        `proxied`: as a range through the proxy; what that does not bring in time comes from the origin, unless the proxy is required.
        `small_too`: have dfdaemon ask its scheduler and peers for a small range too. `claim`, asked when the transfer leaves its queue,
        says what is still to be brought of `wanted`.

        Without `urgency` a reader waits. Raises VersionGone, AccessDenied, ObjectArchived at once, BadReply after a few tries, and
        OriginUnavailable (ProxyUnavailable) when no byte has come for the read timeout.
        """
        instead = not proxied and reason in (DIRECT, FALLBACK) and self.proxy is not None and self.proxy.down
        async with AsyncExitStack() as stack:
            if instead:
                reason = FALLBACK
                await self._sparing.turn(stack, urgency)
            if urgency is not None and not urgency.urgent:
                with urgency.queueing():
                    await stack.enter_async_context(self._prefetches)
                    await stack.enter_async_context(self._all_prefetches)
            await stack.enter_async_context(self._connections)
            for each in [wanted] if claim is None else claim():
                transfer = Transfer(version, each, sink, reason=reason, small_too=small_too)
                try:
                    if proxied and self.proxy is not None:
                        await self._through(self.proxy, transfer, urgency or Urgency(urgent=True))
                    else:
                        await self._until_done(transfer)
                except D7yfsError:
                    # Cut off, and nobody goes on: what came last is not proved, and nothing will prove it.
                    transfer.retract()
                    raise

    async def _through(self, proxies: Proxies, transfer: Transfer, urgency: Urgency) -> None:
        """Bring a range through a proxy; where that is not required, in time or else from the origin, which also tells what is true."""
        transfer.registration = Registration(
            proxies.limits if _registers(transfer.wanted, small_too=transfer.small_too) else None,
            lambda: urgency.urgent,
            patience_s=min(QUEUE_PATIENCE_S, self.read_timeout_s / 4),
        )
        if proxies.required:
            await self._ranged(proxies, transfer)
            return
        with trio.CancelScope() as scope:
            try:
                await silence.watched(partial(self._ranged, proxies, transfer), transfer.alive_at, scope.cancel)
                return
            except D7yfsError as error:
                position = transfer.position
                log.info("%s; reading on from the origin at %d", error.message, position, extra=fields_of(error))
                if transfer.proxy is not None and isinstance(error, ProxyUnavailable):
                    transfer.proxy.failed()
        asked = transfer.proxy if scope.cancelled_caught else None
        # With a scheduler's default settings a cold range may take longer than this, while a stream flows: that is slow, and no failure.
        if asked is not None and asked.answered_at <= transfer.alive_at():
            asked.failed()
        transfer.reason = FALLBACK
        await self._until_done(transfer)

    async def _ranged(self, proxies: Proxies, transfer: Transfer) -> None:
        assert transfer.registration is not None
        async with transfer.registration as registration:
            transfer.on_first_byte = registration.release
            await self._until_done(transfer, await proxies.choose())

    async def stream(
        self,
        version: ObjectVersion,
        wanted: ByteRange,
        sink: Sink,
        *,
        on_silence: Callable[[], None] = lambda: None,
        on_task: Callable[[str], None] = lambda _: None,
        registration: Registration | None = None,
    ) -> None:
        """Bring `wanted` through the proxy in one GET (rangeless when it is the whole object).

        `on_task` is told which task is asked for, at each attempt, `on_silence` when nothing has come for a while, from before the
        first byte on; the stream goes on, and may still come. `registration`: its turn at the scheduler, to be had.

        Raises ProxyUnavailable when no proxy is worth asking, or it fails before the first byte or for the second time; where it is
        required, when no byte has come for the read timeout. What the proxy reports about the origin is raised as `fetch` does.
        """
        assert self.proxy is not None
        transfer = Transfer(version, wanted, sink)
        transfer.on_task = on_task
        transfer.registration = registration or Registration(self.proxy.limits)

        def silent() -> None:
            if transfer.proxy is not None and transfer.position == wanted.start:
                transfer.proxy.failed()
            on_silence()

        await silence.watched(partial(self._streamed, self.proxy, transfer), transfer.alive_at, silent)

    async def _streamed(self, proxies: Proxies, transfer: Transfer) -> None:
        assert transfer.registration is not None
        async with proxies.limits.streams, transfer.registration as registration:
            transfer.on_first_byte = registration.release
            proxy = await proxies.choose()
            try:
                try:
                    await self._until_done(transfer, proxy)
                except ProxyUnavailable:
                    # After bytes have come it may be a restart: one more try before the origin has to help.
                    if transfer.position == transfer.wanted.start or proxies.required:
                        raise
                    await self._until_done(transfer, proxy)
            except ProxyUnavailable:
                proxy.failed()
                raise

    async def _until_done(self, transfer: Transfer, proxy: Proxy | None = None) -> None:
        required = self.proxy is not None and self.proxy.required
        attempt = doubtful = 0
        fresh = resigned = False
        failed: Proxy | None = None
        while transfer.position < transfer.wanted.stop:
            reached = transfer.position
            try:
                await self._attempt(transfer, proxy, fresh=fresh)
                return
            except D7yfsError as failure:
                error = self._name(failure, transfer.version)
                if isinstance(error, VersionGone) and (proxy is None or required):
                    error = await self._confirmed(error, transfer.version)
                if transfer.position > reached:
                    attempt = doubtful = 0
                    resigned = False
                fresh = isinstance(error, AccessDenied) and not isinstance(error, ObjectArchived) and not resigned
                if fresh:
                    resigned = True
                    self.counters.resigned += 1
                    log.info("%s; signing again", error.message, extra=fields_of(error))
                    continue
                avoidable = proxy is not None and not required
                if not error.transient or (avoidable and isinstance(error, (ProxyUnavailable, VersionUnbound))):
                    raise error from None
                doubtful += avoidable or (isinstance(error, BadReply) and error.lasting)
                patience_s = self.read_timeout_s - (trio.current_time() - transfer.last_progress)
                if doubtful >= _MAX_DOUBTFUL or patience_s <= _MIN_PAUSE_S:
                    raise error from None
                self.counters.count_retry(error)
                pause_s = min(pause_before_retry_s(attempt, error), patience_s)
                log.info("%s; retry in %.1f s", error.message, pause_s, extra=fields_of(error))
                attempt += 1
                failed = proxy if isinstance(error, ProxyUnavailable) else None
            await trio.sleep(pause_s)
            if failed is not None and self.proxy is not None:
                failed.failed()
                proxy = await self.proxy.choose()

    async def _confirmed(self, gone: VersionGone, version: ObjectVersion) -> D7yfsError:
        """`gone` if the store itself says that the version is no longer current, else a passing error instead of it.

        A 404 page or another ETag may come from a gateway in the store's place, and under mmap the error ends the reader. A version that
        the URL pins by an id of its own has no second witness: `stat` speaks of the current one.
        """
        try:
            request = await self.origin.read_request(version, presigned=False)
            if not version.validator.isdecimal() and dragonfly_task.names_version(request.url):
                return gone
            if version.identity in self._gone or (await self.origin.stat(version.key)).identity != version.identity:
                self._gone[version.identity] = True
                return gone
        except (NotFound, VersionGone, AccessDenied):
            self._gone[version.identity] = True
            return gone
        except D7yfsError as error:
            return OriginUnavailable(f"{gone.message}; the store cannot be asked whether that is so: {error.message}")
        return OriginUnavailable(f"{gone.message}; but the store still shows this version as the current one")

    def _name(self, error: D7yfsError, version: ObjectVersion) -> D7yfsError:
        """Have `error` say which object it is about: the transport knows host and port only."""
        name = self.name(version)
        if name not in error.message:
            error.message = f"{name}: {error.message}"
        return error.about(object=name)

    async def _attempt(self, transfer: Transfer, proxy: Proxy | None, *, fresh: bool) -> None:
        """One GET to the end of what is wanted, from the offset reached less the seam to what came before."""
        version = transfer.version
        rest = transfer.rest
        request = await self.origin.read_request(version, presigned=proxy is not None, fresh=fresh)
        url, headers, transport, task = request.url, dict(request.headers), self._transport, None
        if proxy is not None and self.proxy is not None:
            task = dragonfly_task.task(
                request,
                self.origin.identity,
                version,
                self.proxy.options,
                content_ids=proxy.binds_content_ids,
                small_too=transfer.small_too,
                # What is brought before the scheduler; a look at the first bytes, as `check` takes, is not worth the whole.
                rest_too=transfer.wanted != version.whole and _registers(transfer.wanted, small_too=transfer.small_too),
            )
            url, headers, transport = task.url, dict(task.headers), proxy.transport
            transfer.ask(proxy)
            transfer.on_task(task.id)
            self.counters.proxy_requests += 1
        else:
            self.counters.direct_requests += 1
        if task is None or rest.stop < version.size_bytes:
            headers["Range"] = rest.http()
        elif rest.start:
            # To the end, so that dfdaemon sees the stream that it is.
            headers["Range"] = f"bytes={rest.start}-"
        sent_at = trio.current_time()
        async with transport.get(url, headers, via=proxy.url if proxy else "") as response:
            await self._check(response, version, rest, proxy, task)
            replied_at = trio.current_time()
            await self._receive(response, transfer, proxy)
        if proxy is None:
            self.bandwidth.replied(rest.size, replied_at - sent_at, transfer.last_progress - replied_at)

    async def _check(
        self,
        response: Response,
        version: ObjectVersion,
        rest: ByteRange,
        proxy: Proxy | None,
        task: dragonfly_task.Task | None,
    ) -> None:
        name, status, headers = self.name(version), response.status, response.headers
        body = b""
        if status not in (200, 206):
            # The status has said what matters; what explains it may get lost.
            with suppress(D7yfsError):
                body = await response.read(_ERROR_BODY_BYTES)
        if proxy is not None and task is not None:
            if status not in (200, 206):
                kind = headers.get(dragonfly_task.ERROR_TYPE_HEADER)
                if dragonfly_task.blame(status, kind) is dragonfly_task.Blame.PROXY:
                    failure = error_of(status, headers, name=name, body=body)
                    raise ProxyUnavailable(
                        f"{name}: the proxy {proxy.url} answered {status} ({kind or 'no reason'})"
                    ) from failure
            elif not task.is_proved_by(said := headers.get(dragonfly_task.TASK_ID_HEADER)):
                if said is None and not proves(headers, version):
                    raise ProxyUnavailable(f"{name}: something else than dfdaemon has answered at {proxy.url}")
                self.counters.unbound += 1
                raise self._unbound(name, proxy, task)
        check_head(status, headers, version=version, wanted=rest, name=name, error_body=body)

    def _unbound(self, name: str, proxy: Proxy, task: dragonfly_task.Task) -> D7yfsError:
        what = f"{name}: the proxy {proxy.url} did not answer for this version's task"
        if not task.content_id:
            # Nothing is left to tell it which version is meant.
            return ProxyUnavailable(what)
        if proxy.binds_content_ids:
            proxy.binds_content_ids = False
            log.warning(
                "the proxy %s does not heed content ids (an old dfdaemon, or none): from now on tags carry the versions",
                proxy.url,
            )
        return VersionUnbound(what)

    async def _receive(self, response: Response, transfer: Transfer, proxy: Proxy | None) -> None:
        buffer = self._buffers.pop() if self._buffers else bytearray(BUFFER_BYTES)
        view, surplus = memoryview(buffer), memoryview(bytearray(1))
        received, stop = 0, transfer.wanted.stop
        try:
            await self._compare_seam(response, transfer)
            while transfer.position < stop:
                count = await response.receive_into(view[: stop - transfer.position])
                received += count
                if not count:
                    missing = stop - transfer.position
                    raise OriginUnavailable(f"{self.name(transfer.version)}: cut off {missing} bytes before the end")
                if transfer.position + count == stop and await response.receive_into(surplus):
                    raise BadReply(f"{self.name(transfer.version)}: more bytes than were asked for")
                if proxy is not None:
                    proxy.answered()
                    self._sparing.outage.ended()
                else:
                    self.bandwidth.landed(count, trio.current_time())
                await transfer.take(view[:count])
        except OriginUnavailable as error:
            if proxy is not None:
                # A dfdaemon that dies in mid-body leaves no other mark than a short body.
                raise ProxyUnavailable(f"{error.message} (through the proxy {proxy.url})") from error
            raise
        finally:
            self._buffers.append(buffer)
            model = self.models.of(transfer.version.key)
            if proxy is not None:
                self.counters.proxy_bytes += received
                model.proxy_bytes += received
            else:
                self.counters.count_direct(received, transfer.reason)
                model.direct_bytes += received

    async def _compare_seam(self, response: Response, transfer: Transfer) -> None:
        """Receive again the last bytes before the offset reached. Raises BadReply where they differ; what is not proved is given back."""
        seam = transfer.seam
        again = memoryview(bytearray(len(seam)))
        filled = 0
        while filled < len(seam):
            count = await response.receive_into(again[filled:])
            if not count:
                raise OriginUnavailable(f"{self.name(transfer.version)}: cut off before the offset that was reached")
            filled += count
        if again == seam:
            transfer.proved()
            return
        lost = transfer.retract()
        self.on_retracted(transfer.version)
        message = (
            f"{self.name(transfer.version)}: bytes {lost} came wrong over a connection that was cut off after them: "
            "they are dropped and fetched again; a reader who has them already has wrong bytes"
        )
        hint = "something on the way to the store loses bytes in mid-stream; https would notice it at once"
        log.error("%s (%s)", message, hint, extra=fields({"object": self.name(transfer.version)}))
        raise BadReply(message, hint=hint)


def _registers(wanted: ByteRange, *, small_too: bool) -> bool:
    """Whether dfdaemon brings a request for `wanted` before its scheduler."""
    return small_too or wanted.size > dragonfly_task.MAX_DIRECT_BYTES


def pause_before_retry_s(attempt: int, error: D7yfsError) -> float:
    """Exponential from 0.1 s to 5 s with full jitter on the upper half, or what the origin asked for if that is longer."""
    pause_s = min(0.1 * 2.0 ** min(attempt, 10), 5.0) * random.uniform(0.5, 1.0)  # noqa: S311  # jitter, not cryptography
    asked_s = error.retry_after_s if isinstance(error, OriginUnavailable) else 0.0
    return max(pause_s, asked_s)
