"""A range on its way: where it goes, how far it has come, whether a reader waits for it. Plain state of the fetcher's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import trio

from d7yfs.fetch.dragonfly_proxy import Proxy
from d7yfs.fetch.proxies import Registration
from d7yfs.objects import ByteRange, ObjectVersion

DIRECT = "direct"
"""The reason of bytes that come straight from the origin because nothing else is configured, or for none that anybody gave."""

FALLBACK = "fallback"
"""The reason of bytes that a proxy was to bring."""


SEAM_BYTES = 4096
"""How much is asked for again where a transfer goes on after a cut. TCP keeps bytes in order and whole, but a relay in the middle may lose
some and go on; then all that follows is shifted, and the body ends too soon."""


class Sink(Protocol):
    """Where bytes go."""

    async def write(self, offset: int, data: memoryview) -> None:
        """Take `data`, which is lent until this returns; calls of one transfer follow each other without a gap, or repeat themselves."""

    def retract(self, wanted: ByteRange) -> int:
        """What was written of `wanted` is not to be believed. Returns the offset, at or before its start, from which to write again."""


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


class Transfer:
    """A range on its way: `position` is the next byte that is wanted."""

    __slots__ = (
        "_expected_since",
        "_proved_to",
        "_tail",
        "_writing",
        "last_progress",
        "on_first_byte",
        "on_task",
        "position",
        "proxy",
        "reason",
        "registration",
        "sink",
        "small_too",
        "version",
        "wanted",
    )

    def __init__(
        self,
        version: ObjectVersion,
        wanted: ByteRange,
        sink: Sink,
        *,
        reason: str = DIRECT,
        small_too: bool = False,
    ) -> None:
        self.version = version
        self.wanted = wanted
        self.sink = sink
        self.reason = reason
        """Under which bytes are counted that come straight from the origin."""
        self.small_too = small_too
        self.on_first_byte: Callable[[], None] = lambda: None
        """Called at least once, when bytes have come."""
        self.on_task: Callable[[str], None] = lambda _: None
        """Told which task a proxy is asked for, at each attempt."""
        self.proxy: Proxy | None = None
        """Who was asked last."""
        self.registration: Registration | None = None
        """Its turn at the scheduler, for what goes through a proxy."""
        self.position = wanted.start
        self.last_progress = self._expected_since = trio.current_time()
        self._writing = False
        self._tail = bytearray()
        self._proved_to = wanted.start

    @property
    def seam(self) -> bytes:
        """The last bytes that have come, which the next attempt compares first. Empty while there is nothing to prove."""
        return bytes(self._tail) if self.position > self._proved_to else b""

    @property
    def rest(self) -> ByteRange:
        """What the next attempt asks for: what is still to come, and the seam before it."""
        return ByteRange(self.position - len(self.seam), self.wanted.stop)

    def proved(self) -> None:
        """All that has come so far is right: another connection has brought the same bytes at its end."""
        self._proved_to = self.position

    def retract(self) -> ByteRange:
        """Give back what has come and is not proved; returns it. The transfer goes on before it."""
        unproved = ByteRange(self._proved_to, self.position)
        if unproved and self.position < self.wanted.stop:
            self.position = self._proved_to = max(self.sink.retract(unproved), self.wanted.start)
            self._tail.clear()
        return unproved

    def ask(self, proxy: Proxy) -> None:
        """`proxy` is asked now."""
        self.proxy = proxy
        self._expected_since = trio.current_time()

    def alive_at(self) -> float:
        """When there was last a reason to expect bytes: nobody is to blame for silence while what came is being written, nor, for a while,
        where others have their turn at the scheduler.
        """
        if self._writing:
            return trio.current_time()
        queued = self.registration.alive_at() if self.registration is not None else self._expected_since
        return max(self.last_progress, self._expected_since, queued)

    async def take(self, data: memoryview) -> None:
        """`data` has come; it is lent until this returns."""
        self.last_progress = trio.current_time()
        self.on_first_byte()
        self._writing = True
        try:
            await self.sink.write(self.position, data)
        finally:
            self._writing = False
            self._expected_since = trio.current_time()  # more is wanted from now on
        self.position += len(data)
        self._tail += data[-SEAM_BYTES:]
        del self._tail[:-SEAM_BYTES]
