"""The proxies that a repository may be read through, in the order in which they are preferred, and how many requests bother them at once.

The first one that is worth asking is asked: node-local, say, then a service. One that has failed is preferred again as soon as it answers.

Invariant: at most `MAX_REGISTRATIONS` requests of this daemon wait for their first byte from dfdaemon's scheduler, whichever the repository
and the proxy: it delays concurrent ones (30 ms x 2^n). Of those that queue for that, who is waited for by a reader is first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Self

import trio

from d7yfs.errors import ProxyUnavailable
from d7yfs.fetch.dragonfly_proxy import Breaker, Proxy
from d7yfs.fetch.dragonfly_task import TaskOptions
from d7yfs.fetch.silence import HEDGE_AFTER_S
from d7yfs.fetch.transport import Transport

FIRST_BYTE_TIMEOUT_S = 15.0
"""A hung scheduler keeps dfdaemon silent for 10 s; then it goes to the origin, and to leave it now would not stop it. Readers have gone
there long before (`silence`)."""

CONNECT_TIMEOUT_S = 3.0
"""It is on this host, or near."""

IDLE_TIMEOUT_S = 10.0
"""A stream that stalls for so long is given up: those who already wait for it would go elsewhere."""

MAX_STREAMS = 32
"""Whole-object GETs in flight; each takes a connection and a buffer."""

MAX_REGISTRATIONS = 2

QUEUE_PATIENCE_S = 15.0
"""How long what a reader waits for may queue for its turn at the scheduler while that gets on with others. As many small files as are
fetched ahead take less, and readers have more patience than that."""


class Registrations:
    """Turns at the scheduler. Who is waited for by a reader is next, whoever came before him."""

    def __init__(self) -> None:
        self.taken = 0
        self.moved_at = float("-inf")
        """When somebody last had his first byte: the scheduler gets on."""
        self._queue: dict[trio.Event, Callable[[], bool]] = {}

    async def take(self, is_wanted: Callable[[], bool]) -> None:
        """Wait for a turn; `is_wanted` says whether a reader waits, now."""
        await trio.lowlevel.checkpoint_if_cancelled()
        if self.taken < MAX_REGISTRATIONS:
            self.taken += 1
            return
        turn = trio.Event()
        self._queue[turn] = is_wanted
        try:
            await turn.wait()
        except trio.Cancelled:
            if turn.is_set():  # by one who was cancelled in the same moment
                self.give_back()
            else:
                del self._queue[turn]
            raise

    def give_back(self) -> None:
        """A turn is over: it goes to the next in the queue."""
        turn = next((turn for turn, is_wanted in self._queue.items() if is_wanted()), next(iter(self._queue), None))
        if turn is None:
            self.taken -= 1
        else:
            del self._queue[turn]
            turn.set()


class Limits:
    """How many requests the proxies of one daemon see at once."""

    def __init__(self) -> None:
        self.streams = trio.CapacityLimiter(MAX_STREAMS)
        self.registrations = Registrations()


class Registration:
    """A turn at the scheduler, which ends with the first byte, or else with the block."""

    def __init__(
        self,
        limits: Limits | None,
        is_wanted: Callable[[], bool] = lambda: True,
        *,
        patience_s: float = QUEUE_PATIENCE_S,
    ) -> None:
        """None: a request that dfdaemon does not bring before its scheduler. `is_wanted`: whether a reader waits for it, now."""
        self._turns = limits.registrations if limits else None
        self._is_wanted = is_wanted
        self._patience_s = patience_s
        self._wanted_since = trio.current_time()
        self._had_at: float | None = None
        self._held = False

    def alive_at(self) -> float:
        """When there was last a reason to expect bytes. In the queue: when the others got on, as long as our patience lasts for that."""
        if self._had_at is not None:
            return self._had_at
        if not self._is_wanted():
            self._wanted_since = trio.current_time()
        moved_at = self._turns.moved_at if self._turns is not None else self._wanted_since
        return max(self._wanted_since, min(moved_at, self._wanted_since + self._patience_s - HEDGE_AFTER_S))

    async def __aenter__(self) -> Self:
        if self._turns is not None:
            await self._turns.take(self._is_wanted)
            self._held = True
        self._had_at = trio.current_time()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._give_back()

    def release(self) -> None:
        """The first byte has come."""
        if self._turns is not None and self._held:
            self._turns.moved_at = trio.current_time()
        self._give_back()

    def _give_back(self) -> None:
        if self._turns is not None and self._held:
            self._held = False
            self._turns.give_back()


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
