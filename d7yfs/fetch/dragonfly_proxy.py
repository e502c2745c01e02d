"""The addresses of dfdaemon's HTTP proxy: which is worth asking now, and how many requests they see
at once.

One `Proxy` serves all repositories that name its address. `Proxies` are those of one repository, in
order of preference: the first that is worth asking is asked (node-local, say, then a service). One
that has failed is preferred again as soon as it answers. The `Breaker` is pure (the time is an
argument).

Invariant: at most `MAX_REGISTRATIONS` requests of this daemon wait for their first byte from
dfdaemon's scheduler, for all repositories and proxies: it delays concurrent ones (30 ms x 2^n). In
the queue for that, requests that a reader waits for are first.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Self
from urllib.parse import urlsplit

import trio

from d7yfs.errors import D7yfsError, ProxyUnavailable, VersionUnbound
from d7yfs.fetch.dragonfly_task import Task, TaskOptions
from d7yfs.fetch.silence import HEDGE_AFTER_S, patience_s
from d7yfs.fetch.transport import Transport

log = logging.getLogger(__name__)

DEFAULT_PORT = 4001
_OLD_PORT = 65001
"""The proxy's port in the Go client, also meant by its endpoint files when they name none."""
HEALTH_PORT = 4003

_HEALTH_TIMEOUT_S = 1.0
_FIRST_PAUSE_S = 2.0
_LONGEST_PAUSE_S = 300.0
_PAUSE_GROWTH = 1.25
"""So a proxy is asked again within about a quarter of the time for which it has been away."""
_PROBE_S = 10.0
"""Seconds after which a probe that has neither failed nor brought a byte is forgotten, and another
may be tried."""

FIRST_BYTE_TIMEOUT_S = 15.0
"""A hung scheduler keeps dfdaemon silent for 10 s; then it goes to the origin, and to leave it now
would not stop it. Readers have gone there long before (`silence`)."""

CONNECT_TIMEOUT_S = 3.0
"""Short: the proxy is on this host, or near."""

IDLE_TIMEOUT_S = 10.0
"""Seconds of silence after which a stream is given up: its readers would go elsewhere."""

MAX_STREAMS = 32
"""Whole-object GETs in flight; each takes a connection and a buffer."""

MAX_REGISTRATIONS = 2

PROMPT_S = 0.25
"""Seconds within which a reader may as well wait for a first byte as ask the origin."""

_JUDGED = 4
"""The latest requests by which the next one's first byte is expected."""

_LEAST_JUDGED = 2

QUEUE_PATIENCE_S = 15.0
"""Seconds that a range for a reader may queue for its slot at the scheduler, while that serves
others. The small files that are fetched ahead take less, and readers have more patience."""


class Breaker:
    """A circuit breaker: closed until a failure; then open for 2 s, each time a quarter longer, up to
    300 s; then half-open.

    Half-open, one request at a time probes. The first byte closes it.
    """

    def __init__(self) -> None:
        self.trips = 0
        self.open_until = float("-inf")
        self._pause_s = _FIRST_PAUSE_S
        self._open = self._probing = False

    @property
    def state(self) -> str:
        """`closed`, `open`, or `probing` while a request finds out."""
        return "closed" if not self._open else "probing" if self._probing else "open"

    @property
    def is_open(self) -> bool:
        """True if the last thing heard of the proxy is a failure."""
        return self._open

    def admits(self, now: float) -> bool:
        """True if the proxy may be asked now."""
        return now >= self.open_until

    def begin(self, now: float) -> None:
        """Begin a request that was admitted. If it is a probe, no other is admitted until its
        result is known.
        """
        if self._open:
            self._probing = True
            self.open_until = now + _PROBE_S

    def record_failure(self, now: float) -> None:
        """Open: the proxy did not answer, or broke off. Older requests' failures count once."""
        if self._probing or self.admits(now):
            self.trips += 1
            self._open, self._probing = True, False
            self.open_until = now + self._pause_s
            self._pause_s = min(self._pause_s * _PAUSE_GROWTH, _LONGEST_PAUSE_S)

    def record_success(self) -> None:
        """Close: a byte has come through the proxy."""
        self._open = self._probing = False
        self.open_until = float("-inf")
        self._pause_s = _FIRST_PAUSE_S


class Proxy:
    """dfdaemon's proxy at `url`, reached through `transport`, which other proxies may share."""

    def __init__(self, url: str, transport: Transport) -> None:
        self.url = url
        self.transport = transport
        self.breaker = Breaker()
        self.binds_content_ids = True
        """True until a reply has proved that the proxy ignores content ids: then tags bind
        versions."""
        self._tells_health = False
        self.answered_at = float("-inf")
        """Time of the last byte that came through it."""

    @property
    def health_url(self) -> str:
        """The URL of dfdaemon's health check, at its default port."""
        return f"http://{_host(self.url)}:{HEALTH_PORT}/healthy"

    async def admits(self) -> bool:
        """True if a request is to be sent to it now, at once. After a failure this may take a
        second.

        One request probes a proxy that has failed. If `/healthy` has answered before, it must
        answer now: else that port may as well be closed for good.
        """
        if not self.breaker.admits(trio.current_time()):
            return False
        is_probe = self.breaker.is_open
        self.breaker.begin(trio.current_time())
        if is_probe and self._tells_health and not await self._is_healthy():
            self.record_failure()
            return False
        return True

    def unbound(self, name: str, task: Task) -> D7yfsError:
        """The error for a reply that did not come for a version's `task`; the next task may have
        another form."""
        what = f"{name}: the proxy {self.url} did not answer for this version's task"
        if not task.content_id:
            # Nothing is left to name the version to it.
            return ProxyUnavailable(what)
        if self.binds_content_ids:
            self.binds_content_ids = False
            log.warning(
                "the proxy %s ignores content ids (an old dfdaemon, or none): from now on tags carry the versions",
                self.url,
            )
        return VersionUnbound(what)

    def record_success(self) -> None:
        """Record that a byte has come through it."""
        self.breaker.record_success()
        self.answered_at = trio.current_time()

    def record_failure(self) -> None:
        """Record that it did not answer a request in time, or broke off."""
        self.breaker.record_failure(trio.current_time())

    async def learn_health(self) -> None:
        """Find out if `/healthy` can be asked there."""
        if not self._tells_health:
            self._tells_health = await self._is_healthy()

    async def _is_healthy(self) -> bool:
        with trio.move_on_after(_HEALTH_TIMEOUT_S):
            try:
                async with self.transport.get(self.health_url, {}) as response:
                    return response.status == 200
            except D7yfsError as error:
                log.debug("%s: %s", self.url, error.message)
        return False


class Limits:
    """The limits on the requests that the proxies of one daemon see at once: streams, and slots at
    the scheduler. A request that a reader waits for is next, before older ones.
    """

    def __init__(self) -> None:
        self.streams = trio.CapacityLimiter(MAX_STREAMS)
        self.taken = 0
        self.moved_at = float("-inf")
        """Time of the last first byte: the scheduler serves others."""
        self._waited_s: deque[float] = deque(maxlen=_JUDGED)
        """Seconds that the latest requests waited for their first bytes, once they had their slots."""
        self._queue: dict[trio.Event, Callable[[], bool]] = {}

    def note_first_byte(self, waited_s: float, now: float) -> None:
        """Note a first byte that has come `now`, and how long it was waited for."""
        self.moved_at = now
        self._waited_s.append(waited_s)

    @property
    def is_prompt(self) -> bool:
        """True if the latest first bytes came soon: others have most likely brought the objects, and
        a reader need not ask the origin for the beginning of the next one."""
        return len(self._waited_s) >= _LEAST_JUDGED and max(self._waited_s) <= PROMPT_S

    def patience(self) -> float:
        """The seconds without a first byte after which a reader goes elsewhere."""
        return patience_s(max(self._waited_s)) if len(self._waited_s) >= _LEAST_JUDGED else HEDGE_AFTER_S

    async def take(self, is_wanted: Callable[[], bool]) -> None:
        """Wait for a slot; `is_wanted` is True if a reader waits now."""
        await trio.lowlevel.checkpoint_if_cancelled()
        if self.taken < MAX_REGISTRATIONS:
            self.taken += 1
            return
        slot = trio.Event()
        self._queue[slot] = is_wanted
        try:
            await slot.wait()
        except trio.Cancelled:
            if slot.is_set():  # by one that was cancelled in the same moment
                self.give_back()
            else:
                del self._queue[slot]
            raise

    def give_back(self) -> None:
        """Hand a slot to the next in the queue."""
        slot = next((slot for slot, is_wanted in self._queue.items() if is_wanted()), next(iter(self._queue), None))
        if slot is None:
            self.taken -= 1
        else:
            del self._queue[slot]
            slot.set()


class Registration:
    """One slot at the scheduler, given back at the first byte, or at the end of the block."""

    def __init__(
        self,
        limits: Limits,
        is_wanted: Callable[[], bool] = lambda: True,
        *,
        patience_s: float = QUEUE_PATIENCE_S,
    ) -> None:
        """`is_wanted` is True if a reader waits now."""
        self._limits = limits
        self._is_wanted = is_wanted
        self._patience_s = patience_s
        self._wanted_since = trio.current_time()
        self._had_at: float | None = None
        self._held = False

    def alive_at(self) -> float:
        """Time of the last reason to expect bytes. In the queue, others' progress is one, for as
        long as our patience lasts.
        """
        if self._had_at is not None:
            return self._had_at
        if not self._is_wanted():
            self._wanted_since = trio.current_time()
        patient_until = self._wanted_since + self._patience_s - HEDGE_AFTER_S
        return max(self._wanted_since, min(self._limits.moved_at, patient_until))

    async def __aenter__(self) -> Self:
        await self._limits.take(self._is_wanted)
        self._held = True
        self._had_at = trio.current_time()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._give_back()

    def release(self) -> None:
        """Give the slot back, as the first byte has come."""
        if self._held and self._had_at is not None:
            now = trio.current_time()
            self._limits.note_first_byte(now - self._had_at, now)
        self._give_back()

    def _give_back(self) -> None:
        if self._held:
            self._held = False
            self._limits.give_back()


class Proxies:
    """The proxies that one repository may be read through."""

    def __init__(
        self,
        proxies: Sequence[Proxy],
        *,
        required: bool,
        options: TaskOptions | None = None,
        limits: Limits | None = None,
    ) -> None:
        """`proxies`, at least one, best first. `required`: bytes that they fail to bring are never
        fetched from the origin.
        """
        self.all = tuple(proxies)
        self.required = required
        self.options = options or TaskOptions()
        self.limits = limits or Limits()

    @property
    def url(self) -> str:
        """The address that would be asked now; the first one when none would."""
        return self._best.url

    @property
    def usable(self) -> bool:
        """True if a stream should be tried now."""
        now = trio.current_time()
        return self.required or any(proxy.breaker.admits(now) for proxy in self.all)

    @property
    def down(self) -> bool:
        """True if all have failed, and none has answered since."""
        return all(proxy.breaker.is_open for proxy in self.all)

    @property
    def trips(self) -> int:
        """Times that one of them was found not to answer."""
        return sum(proxy.breaker.trips for proxy in self.all)

    @property
    def breaker(self) -> Breaker:
        """The breaker of the address that would be asked now."""
        return self._best.breaker

    async def choose(self) -> Proxy:
        """Choose the proxy for a request that is sent at once.

        Raises ProxyUnavailable when none is worth asking and none is required.
        """
        for proxy in self.all:
            if await proxy.admits():
                return proxy
        if self.required:
            return min(self.all, key=lambda proxy: proxy.breaker.open_until)
        raise ProxyUnavailable(f"the proxy {self._best.url} does not answer, and is not asked for a while")

    @property
    def _best(self) -> Proxy:
        now = trio.current_time()
        return next((proxy for proxy in self.all if proxy.breaker.admits(now)), self.all[0])


def address_meant_instead(url: str) -> str:
    """The proxy's default address, when `url` has the old client's port or none; else empty."""
    return f"http://{_host(url)}:{DEFAULT_PORT}" if urlsplit(url).port in (None, _OLD_PORT) else ""


def _host(url: str) -> str:
    host = urlsplit(url).hostname or ""
    return f"[{host}]" if ":" in host else host
