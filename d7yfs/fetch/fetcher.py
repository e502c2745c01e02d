"""Gets ranges of object versions by HTTP: sign, GET, verify, write, retry. No other room does.

A `Fetcher` belongs to one repository's origin. It moves each byte once, from the socket into a
buffer of its own pool and from there to the caller's sink. It hands on no byte of a reply that
`check_head` did not accept, nor, through a proxy, of one that is not provably about this version's
task. Bytes that were written stay written: a retry goes on at the offset reached.

Called by the fillers, in tasks of their own; built by `repository`.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial

import trio

from d7yfs.errors import (
    AccessDenied,
    BadReply,
    D7yfsError,
    MoverLost,
    ObjectArchived,
    OriginUnavailable,
    ProxyUnavailable,
    VersionGone,
    VersionUnbound,
)
from d7yfs.fetch import dragonfly_task, silence
from d7yfs.fetch.bearer_tokens import BearerTokens
from d7yfs.fetch.dragonfly_proxy import QUEUE_PATIENCE_S, Proxies, Proxy, Registration
from d7yfs.fetch.gone import GoneVersions
from d7yfs.fetch.journal import Journal
from d7yfs.fetch.proxy_outage import FallbackLimiter
from d7yfs.fetch.receiver import Receiver
from d7yfs.fetch.reply import check_head, error_of, proves
from d7yfs.fetch.tracing import traced
from d7yfs.fetch.transfer import DIRECT, FALLBACK, Bandwidth, Permits, Sink, Transfer, Urgency, pause_before_retry_s
from d7yfs.fetch.transport import Response, Transport
from d7yfs.logs import fields, fields_of
from d7yfs.movers.pool import LEAST_BYTES, MoverPool
from d7yfs.objects import ByteRange, ObjectVersion
from d7yfs.origins.origin import Origin
from d7yfs.stats.failures import FailuresStatus
from d7yfs.stats.models import Models
from d7yfs.stats.repository_status import FetchedStatus, LoadStatus
from d7yfs.stats.status import blank

log = logging.getLogger(__name__)

_ERROR_BODY_BYTES = 16 << 10
_MAX_DOUBTFUL = 3
"""Tries without a byte between them where patience does not help: a server that ignores Range goes
on to do so, and we may get from the origin what dfdaemon cannot."""
_MIN_PAUSE_S = 0.001
"""Less patience than this is none: rounding would leave ever less of it, and never nothing."""
_URGENT_RESERVE = 4
"""Connections that prefetch may not take, so that a reader never queues behind it alone."""
_ANY_VERSION = ObjectVersion("-", 1, '"-"', 0, version_id="-")
"""Never fetched; it has an id, or an origin that pins by ids would ask for one."""


class Fetcher:
    """The fetcher of one origin's ranges, straight from it or through one of `proxy`."""

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
        tokens: BearerTokens | None = None,
        movers: MoverPool | None = None,
    ) -> None:
        """`all_prefetches` bounds the prefetches of the fetchers that share it. Ranges that a
        reader waits for know only their own origin's bound, so that one that stalls takes nothing
        from others. `tokens` decides on requests for dfdaemon."""
        self.origin = origin
        self.proxy = proxy
        self.counters, self.failures = blank(FetchedStatus), FailuresStatus()
        self.failed_version: ObjectVersion | None = None  # of the last request that failed
        self.models = models or Models()
        self.tokens = tokens or BearerTokens(origin.url)
        self.journal = Journal(self.models)
        self.bandwidth = Bandwidth()
        self.suspects: set[tuple[str, str, int]] = set()
        """Versions that once came with wrong bytes: if the store may stand in, the proxy is not
        asked for them again."""
        self._transport = transport
        self.read_timeout_s = read_timeout_s
        self._connections = trio.CapacityLimiter(max_connections)
        self._prefetches = trio.CapacityLimiter(max(1, max_connections - _URGENT_RESERVE))
        self._all_prefetches = all_prefetches or trio.CapacityLimiter(math.inf)
        self._fallback = FallbackLimiter()
        self.on_retracted: Callable[[ObjectVersion], None] = lambda _: None
        """Told of a version whose bytes came wrong, after readers may have had them."""
        self.on_granted: Callable[[ObjectVersion], None] = lambda _: None
        """Told of a version once a request for it, with the present credentials, was answered."""
        self._gone = GoneVersions()
        self._receiver = Receiver(movers)

    def name(self, version: ObjectVersion) -> str:
        """The object's URL, as people know it."""
        return f"{self.origin.url}/{version.key}"

    def load(self) -> LoadStatus:
        """Transfers and prefetches that are under way now, their limits, and those that queue."""
        connections, prefetches = self._connections.statistics(), self._prefetches.statistics()
        return LoadStatus(
            transfers=connections.borrowed_tokens,
            transfers_limit=int(connections.total_tokens),
            transfers_queued=connections.tasks_waiting,
            prefetches=prefetches.borrowed_tokens,
            prefetches_limit=int(prefetches.total_tokens),
            prefetches_queued=prefetches.tasks_waiting,
        )

    def set_connections(self, max_connections: int) -> None:
        """Set the limit from now on; transfers under way are left to end."""
        self._connections.total_tokens = max_connections
        self._prefetches.total_tokens = max(1, max_connections - _URGENT_RESERVE)

    async def renew_credentials(self) -> None:
        """Look for credentials anew, as after a refusal. Raises the origin's errors of signing."""
        await self.origin.read_request(_ANY_VERSION, presigned=self.proxy is not None, fresh=True)

    async def stay_prepared(self) -> None:
        """Prepare the first read, and have a connection for any later one. Runs until cancelled."""
        if url := await self.prepare():
            await self._transport.stay_connected(url)

    async def prepare(self) -> str:
        """Prepare the first read: signing key, connection, buffer. A failure is that read's to
        tell. Returns a URL of the store if reads go there."""
        self._receiver.prepare()
        try:
            request = await self.origin.read_request(_ANY_VERSION, presigned=self.proxy is not None)
            if self.proxy is None:
                await self._transport.connect(request.url)
                return request.url
            self.tokens.note(request, trio.current_time())
            for proxy in self.proxy.all:
                await proxy.learn_health()
            await self.proxy.all[0].transport.connect(request.url, via=self.proxy.all[0].url)
        except D7yfsError as error:
            log.debug("%s: nothing is prepared for the first read: %s", self.origin.url, error.message)
        except Exception:  # no failure is a reason to end the mount
            log.exception("%s: preparing the first read failed unexpectedly", self.origin.url)
        return ""

    async def fetch(
        self,
        version: ObjectVersion,
        wanted: ByteRange,
        sink: Sink,
        *,
        urgency: Urgency | None = None,
        proxied: bool = False,
        reason: str = DIRECT,
        claim: Callable[[], list[ByteRange]] | None = None,
        on_task: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Bring `wanted` straight from the origin within the read timeout, and count it under
        `reason`.

        With `proxied` it comes as a range through the proxy, and the part that is late from the
        origin (a hedged request), unless the proxy is required. dfdaemon asks its scheduler and
        peers for a small range too. `claim` is asked when the transfer leaves its queue, and returns
        the ranges of `wanted` that are still to be brought. `on_task` is told of tasks, as by `stream`.

        Raises VersionGone, AccessDenied, ObjectArchived at once, BadReply after a few tries, and
        OriginUnavailable (ProxyUnavailable) when no byte has come for the read timeout."""
        urgency = urgency or Urgency(urgent=True)  # without it a reader waits
        instead = not proxied and reason in (DIRECT, FALLBACK) and self.proxy is not None and self.proxy.down
        with Permits() as permits:
            if instead:
                reason = FALLBACK
                await self._fallback.enter(permits, urgency)
            if not (urgency.urgent or permits.take_at_once(self._prefetches, self._all_prefetches)):
                with urgency.enter_queue():
                    await permits.take(self._prefetches, self._all_prefetches)
            await permits.take(self._connections)
            for each in [wanted] if claim is None else claim():
                transfer = Transfer(version, each, sink, urgency=urgency, reason=reason, small_too=proxied)
                transfer.on_task = on_task
                try:
                    if proxied and self.proxy is not None:
                        await self._through(self.proxy, transfer, urgency)
                    else:
                        await self._until_done(transfer)
                except D7yfsError:
                    # Cut off for good: the last bytes are not proved, and nothing will prove them.
                    transfer.retract()
                    raise

    async def _through(self, proxies: Proxies, transfer: Transfer, urgency: Urgency) -> None:
        """Bring a range through a proxy; if none is required, the origin stands in."""
        transfer.registration = Registration(
            proxies.limits,
            lambda: urgency.urgent,
            patience_s=min(QUEUE_PATIENCE_S, self.read_timeout_s / 4),
        )
        if proxies.required:
            await self._ranged(proxies, transfer)
            return
        with trio.CancelScope() as scope:
            try:
                ranged, patience = partial(self._ranged, proxies, transfer), proxies.limits.patience
                await silence.watch(ranged, transfer.alive_at, scope.cancel, patience=patience)
                return
            except D7yfsError as error:
                position = transfer.position
                log.info("%s; reading on from the origin at %d", error.message, position, extra=fields_of(error))
                if transfer.proxy is not None and isinstance(error, ProxyUnavailable):
                    transfer.proxy.record_failure()
        # With a scheduler's default settings a cold range may take longer than this, while a stream
        # flows: slow, but no failure.
        if scope.cancelled_caught and (asked := transfer.proxy) and asked.answered_at <= transfer.alive_at():
            asked.record_failure()
        transfer.reason = FALLBACK
        await self._until_done(transfer)

    async def _ranged(self, proxies: Proxies, transfer: Transfer) -> None:
        assert transfer.registration is not None
        async with transfer.registration:
            await self._until_done(transfer, await proxies.choose())

    async def stream(
        self,
        version: ObjectVersion,
        wanted: ByteRange,
        sink: Sink,
        *,
        on_silence: Callable[[], None] = lambda: None,
        patience: Callable[[], float] = lambda: silence.HEDGE_AFTER_S,
        on_task: Callable[[str], None] = lambda _: None,
        registration: Registration | None = None,
    ) -> None:
        """Bring `wanted` through the proxy in one GET (rangeless when it is the whole object).

        `on_task` is told the task that is asked for, at each attempt. `on_silence` is called when
        nothing has come for `patience()` seconds, also before the first byte; the stream goes on,
        in its slot at the scheduler (`registration`).

        Raises ProxyUnavailable when no proxy is worth asking, or it fails before the first byte or
        for the second time; where it is required, when no byte has come for the read timeout.
        Errors of the origin that the proxy reports are raised as by `fetch`."""
        assert self.proxy is not None
        transfer = Transfer(version, wanted, sink)
        transfer.on_task = on_task
        transfer.registration = registration or Registration(self.proxy.limits)

        def silent() -> None:
            if transfer.proxy is not None and transfer.position == wanted.start:
                transfer.proxy.record_failure()
            on_silence()

        await silence.watch(partial(self._streamed, self.proxy, transfer), transfer.alive_at, silent, patience=patience)

    async def _streamed(self, proxies: Proxies, transfer: Transfer) -> None:
        assert transfer.registration is not None
        async with proxies.limits.streams, transfer.registration:
            proxy = await proxies.choose()
            try:
                try:
                    await self._until_done(transfer, proxy)
                except ProxyUnavailable:
                    # After bytes have come it may be a restart: try once more before the origin has
                    # to help.
                    if transfer.position == transfer.wanted.start or proxies.required:
                        raise
                    await self._until_done(transfer, proxy)
            except ProxyUnavailable:
                proxy.record_failure()
                raise

    async def _until_done(self, transfer: Transfer, proxy: Proxy | None = None) -> None:
        required = self.proxy is not None and self.proxy.required
        attempt = doubtful = 0
        fresh = resigned = False
        failed: Proxy | None = None
        while transfer.position < transfer.wanted.stop:
            reached = transfer.position
            try:
                await traced(self._attempt(transfer, proxy, fresh=fresh), self.name(transfer.version), transfer)
                continue
            except D7yfsError as failure:
                error = self._note_failure(failure, transfer.version)
                if isinstance(error, VersionGone) and (proxy is None or required):
                    error = await self._gone.confirm(error, transfer.version, self.origin)
                if transfer.position > reached:
                    attempt = doubtful = 0
                    resigned = False
                if isinstance(error, MoverLost):
                    log.info("%s; asking again", error.message, extra=fields_of(error))
                    continue
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
                failed.record_failure()
                proxy = await self.proxy.choose()

    def _note_failure(self, error: D7yfsError, version: ObjectVersion) -> D7yfsError:
        """Note `error`, and have it name its object: the transport knows host and port only."""
        name, self.failed_version = self.name(version), version
        self.failures.note_request(error.about(object=name), time.time())
        if name not in error.message:
            error.message = f"{name}: {error.message}"
        return error

    async def _attempt(self, transfer: Transfer, proxy: Proxy | None, *, fresh: bool) -> None:
        """Make one GET to the end of the range, from the seam before the offset reached."""
        version = transfer.version
        rest = transfer.rest
        origin = self.origin
        request = await origin.read_request(version, presigned=proxy is not None, fresh=fresh)
        url, headers, transport, task = request.url, dict(request.headers), self._transport, None
        if proxy is not None and self.proxy is not None:
            self.tokens.judge(request, self.name(version), trio.current_time())
            task = dragonfly_task.task(
                request,
                origin.identity,
                version,
                self.proxy.options,
                content_ids=proxy.binds_content_ids,
                small_too=transfer.small_too,
                # True for what comes before the scheduler. The first bytes, which `check` takes,
                # are not worth the whole.
                rest_too=transfer.wanted != version.whole and transfer.registers,
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
            # To the end, so that dfdaemon sees that it is a stream.
            headers["Range"] = f"bytes={rest.start}-"
        sent_at = trio.current_time()
        for_mover = rest.size >= LEAST_BYTES and not transfer.is_for_engine
        # What nobody waits for is a mover's from its first byte: to write into a file that a mover
        # writes is to wait for it, and the loop with it.
        head_alone = not transfer.urgency.urgent and self._receiver.is_for_mover(transfer)
        via = proxy.url if proxy else ""
        async with transport.get(url, headers, via=via, for_mover=for_mover, head_alone=head_alone) as response:
            transfer.reply = response
            await self._check(response, version, rest, proxy, task)
            self.failures.end_requests(self.name(version), proxied=proxy is not None)
            if origin is self.origin:
                self.on_granted(version)
            replied_at = trio.current_time()
            await self._receive(response, transfer, proxy)
        if proxy is None and transfer.position == rest.stop:
            self.bandwidth.count_reply(rest.size, replied_at - sent_at, transfer.last_progress - replied_at)

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
            # The status is what matters; the explanation may get lost.
            with suppress(D7yfsError):
                body = await response.read(_ERROR_BODY_BYTES)
        if proxy is not None and task is not None:
            if status not in (200, 206):
                kind = headers.get(dragonfly_task.ERROR_TYPE_HEADER)
                if dragonfly_task.blames_proxy(status, kind):
                    failure = error_of(status, headers, name=name, body=body)
                    raise ProxyUnavailable(
                        f"{name}: the proxy {proxy.url} answered {status} ({kind or 'no reason'})"
                    ) from failure
            elif not task.is_proved_by(said := headers.get(dragonfly_task.TASK_ID_HEADER)):
                if said is None and not proves(headers, version):
                    raise ProxyUnavailable(f"{name}: something else than dfdaemon has answered at {proxy.url}")
                self.counters.unbound += 1
                raise proxy.unbound(name, task)
        check_head(status, headers, version=version, wanted=rest, name=name, error_body=body)

    async def _receive(self, response: Response, transfer: Transfer, proxy: Proxy | None) -> None:
        name, seam_bytes = self.name(transfer.version), len(transfer.seam)
        transfer.bandwidth = self.bandwidth if proxy is None else None

        def note_bytes() -> None:
            if proxy is not None:
                proxy.record_success()
                self._fallback.end_outage()

        try:
            lost = await transfer.compare_seam(response, name)
            if lost is not None:
                raise self._retracted(transfer.version, lost)
            await self._receiver.receive(response, transfer, name, note_bytes)
        except OriginUnavailable as error:
            if proxy is not None:
                # A dfdaemon that dies in mid-body leaves no other mark than a short body.
                raise ProxyUnavailable(f"{error.message} (through the proxy {proxy.url})") from error
            raise
        finally:
            received = max(0, response.received_bytes - seam_bytes)
            model = self.models.of(transfer.version.key)
            if proxy is not None:
                model.proxy_bytes += received
            else:
                model.direct_bytes += received
                self.counters.count_direct(received, transfer.reason)

    def _retracted(self, version: ObjectVersion, lost: ByteRange) -> BadReply:
        """Make the error for bytes that came wrong and were given back."""
        self.on_retracted(version)
        message = (
            f"{self.name(version)}: bytes {lost} came wrong over a connection that was cut off after them: "
            "they are dropped and fetched again; a reader who has them already has wrong bytes"
        )
        hint = "something on the way to the store loses bytes in mid-stream; https would notice it at once"
        log.error("%s (%s)", message, hint, extra=fields({"object": self.name(version)}))
        return BadReply(message, hint=hint)
