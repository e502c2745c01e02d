"""The proxies that a repository may be read through, in the order in which they are preferred, and how many requests bother them at once.

The first one that is worth asking is asked: node-local, say, then a service. One that has failed is preferred again as soon as it answers.

Invariant: at most `MAX_REGISTRATIONS` requests of this daemon wait for their first byte from dfdaemon's scheduler, whichever the repository
and the proxy: it delays concurrent ones (30 ms x 2^n).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import trio

from d7yfs.errors import ProxyUnavailable
from d7yfs.fetch.dragonfly import TaskOptions
from d7yfs.fetch.proxy import Breaker, Proxy
from d7yfs.fetch.transport import Transport

FIRST_BYTE_TIMEOUT_S = 15.0
"""A hung scheduler keeps dfdaemon silent for 10 s; then it goes to the origin, and to leave it now would not stop it. Readers have gone
there long before (`hedge`)."""

CONNECT_TIMEOUT_S = 3.0
"""It is on this host, or near."""

IDLE_TIMEOUT_S = 10.0
"""A stream that stalls for so long is given up: those who already wait for it would go elsewhere."""

MAX_STREAMS = 32
"""Whole-object GETs in flight; each takes a connection and a buffer."""

MAX_REGISTRATIONS = 2


class Limits:
    """How many requests the proxies of one daemon see at once."""

    def __init__(self) -> None:
        self.streams = trio.CapacityLimiter(MAX_STREAMS)
        self.registrations = trio.CapacityLimiter(MAX_REGISTRATIONS)


class Registration:
    """A turn at the scheduler, which ends with the first byte, or else with the block."""

    def __init__(self, limits: Limits | None) -> None:
        """None: a request that dfdaemon does not bring before its scheduler."""
        self._limiter = limits.registrations if limits else None
        self._held = False

    async def __aenter__(self) -> Self:
        if self._limiter is not None:
            await self._limiter.acquire_on_behalf_of(self)
            self._held = True
        return self

    async def __aexit__(self, *_: object) -> None:
        self.release()

    def release(self) -> None:
        if self._limiter is not None and self._held:
            self._held = False
            self._limiter.release_on_behalf_of(self)


class Proxies:
    """One repository's way through dfdaemon."""

    def __init__(
        self,
        proxies: Sequence[Proxy],
        *,
        required: bool,
        options: TaskOptions | None = None,
        limits: Limits | None = None,
    ) -> None:
        """`proxies`, at least one, best first. `required`: what they fail to bring is never fetched from the origin instead."""
        self.all = tuple(proxies)
        self.required = required
        self.options = options or TaskOptions()
        self.limits = limits or Limits()

    @classmethod
    def at(cls, url: str, transport: Transport, *, required: bool, options: TaskOptions | None = None) -> Proxies:
        """A single proxy that nothing else uses."""
        return cls([Proxy(url, transport)], required=required, options=options)

    @property
    def url(self) -> str:
        """The address that would be asked now; the first one when none would."""
        return self._best.url

    @property
    def usable(self) -> bool:
        """Whether a stream should be tried now."""
        now = trio.current_time()
        return self.required or any(proxy.breaker.admits(now) for proxy in self.all)

    @property
    def down(self) -> bool:
        """Whether all have failed, and none has answered since."""
        return all(proxy.breaker.is_open for proxy in self.all)

    @property
    def trips(self) -> int:
        """How often one of them was found not to answer."""
        return sum(proxy.breaker.trips for proxy in self.all)

    @property
    def breaker(self) -> Breaker:
        """That of the address that would be asked now."""
        return self._best.breaker

    async def choose(self) -> Proxy:
        """The proxy to send a request to, at once. Raises ProxyUnavailable when none is worth asking and none is required."""
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
