"""One address of dfdaemon's HTTP proxy: whether it is worth asking now, and what is known of it.

The `Breaker` is pure (the time is an argument). One `Proxy` serves all repositories that name its address; `proxies` puts those of a
repository in order.
"""

from __future__ import annotations

import logging
from urllib.parse import urlsplit

import trio

from d7yfs.errors import D7yfsError
from d7yfs.fetch.transport import Transport

log = logging.getLogger(__name__)

DEFAULT_PORT = 4001
_OLD_PORT = 65001
"""Where the Go client had its proxy, and what its endpoint files mean when they name none."""
HEALTH_PORT = 4003

_HEALTH_TIMEOUT_S = 1.0
_FIRST_PAUSE_S = 5.0
_LONGEST_PAUSE_S = 300.0
_PROBE_S = 10.0
"""A probe that has neither failed nor brought a byte for so long is forgotten, and another one may be tried."""


class Breaker:
    """Closed until a failure; then open for 5 s, doubling up to 300 s; then one request at a time probes. The first byte closes it."""

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
        """Whether the last thing heard of the proxy is a failure."""
        return self._open

    def admits(self, now: float) -> bool:
        """Whether the proxy may be asked now."""
        return now >= self.open_until

    def asked(self, now: float) -> None:
        """A request that was admitted begins. If it is a probe, nobody else is admitted until it has told how it went."""
        if self._open:
            self._probing = True
            self.open_until = now + _PROBE_S

    def failed(self, now: float) -> None:
        """The proxy did not answer, or broke off. Failures of requests from before the breaker opened count once."""
        if self._probing or self.admits(now):
            self.trips += 1
            self._open, self._probing = True, False
            self.open_until = now + self._pause_s
            self._pause_s = min(self._pause_s * 2, _LONGEST_PAUSE_S)

    def succeeded(self) -> None:
        """A byte has come through the proxy."""
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
        """Whether content ids may be relied on there. Once a reply has proved otherwise it stays so: tags do as well."""
        self._tells_health = False
        self.answered_at = float("-inf")
        """When a byte last came through it."""

    @property
    def health_url(self) -> str:
        """Where dfdaemon says that it lives, unless it was told to elsewhere."""
        return f"http://{_host(self.url)}:{HEALTH_PORT}/healthy"

    async def admits(self) -> bool:
        """Whether to send it a request now; then the request must follow at once. After a failure this may take a second.

        One request probes a proxy that has failed, and none while `/healthy`, which has answered before, does not: that port may as well be
        closed for good.
        """
        if not self.breaker.admits(trio.current_time()):
            return False
        is_probe = self.breaker.is_open
        self.breaker.asked(trio.current_time())
        if is_probe and self._tells_health and not await self._is_healthy():
            self.failed()
            return False
        return True

    def answered(self) -> None:
        """A byte has come through it."""
        self.breaker.succeeded()
        self.answered_at = trio.current_time()

    def failed(self) -> None:
        """It did not answer a request in time, or broke off."""
        self.breaker.failed(trio.current_time())

    async def learn_health(self) -> None:
        """Find out whether `/healthy` can be asked there."""
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


def address_meant_instead(url: str) -> str:
    """Where dfdaemon's proxy listens unless told otherwise, when `url` names the old client's port or none; else empty. Pure."""
    return f"http://{_host(url)}:{DEFAULT_PORT}" if urlsplit(url).port in (None, _OLD_PORT) else ""


def _host(url: str) -> str:
    host = urlsplit(url).hostname or ""
    return f"[{host}]" if ":" in host else host
