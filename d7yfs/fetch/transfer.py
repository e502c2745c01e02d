"""A range on its way: where it goes, how far it has come, if a reader waits for it. And the rate at
which an origin's ranges come.
"""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

import trio

from d7yfs.errors import D7yfsError, OriginUnavailable
from d7yfs.fetch import dragonfly_task
from d7yfs.fetch.dragonfly_proxy import Proxy, Registration
from d7yfs.fetch.transport import Response
from d7yfs.movers.protocol import TAIL_BYTES
from d7yfs.objects import PART_BYTES, ByteRange, ObjectVersion

DIRECT = "direct"
"""The reason of bytes straight from the origin without a proxy, or without another reason."""

FALLBACK = "fallback"
"""The reason of bytes straight from the origin that a proxy was to bring."""


SEAM_BYTES = TAIL_BYTES
"""Bytes that are asked for again when a transfer goes on after a cut. TCP keeps bytes in order and
whole, but a relay may lose some and go on: then all that follows is shifted, and the body ends too
soon."""


LEAST_WINDOW_BYTES = 32 << 20
MOST_WINDOW_BYTES = 256 << 20

_INTERVAL_S = 0.25
_MEMORY_S = 10.0
_SAMPLE_BYTES = 1 << 20
"""Smaller transfers say more about the sender's first window than about a connection's rate."""
_FORGET = 1.02
"""Factor per sample: an origin that has become slower is believed after some dozens of requests."""


class Sink(Protocol):
    """The destination of a transfer's bytes."""

    async def write(self, offset: int, data: memoryview) -> None:
        """Take `data`, which is lent until this returns. Calls of one transfer follow each other
        without a gap, or repeat bytes.
        """

    def retract(self, wanted: ByteRange) -> int:
        """Take back bytes of `wanted`, which are not to be believed.

        Returns the offset, at or before its start, from which to write again.
        """


class Nowhere:
    """A sink that drops all bytes: a probe only needs them to arrive."""

    async def write(self, offset: int, data: memoryview) -> None:
        """Drop them."""

    def retract(self, wanted: ByteRange) -> int:
        """Nothing is kept."""
        return wanted.start


class InMemory:
    """A sink that keeps the bytes of a range in memory."""

    def __init__(self, kept: ByteRange) -> None:
        self._start = kept.start
        self.data = bytearray(kept.size)

    async def write(self, offset: int, data: memoryview) -> None:
        at = offset - self._start
        self.data[at : at + len(data)] = data

    def retract(self, wanted: ByteRange) -> int:
        """Nothing is given out yet: the bytes are written again."""
        return wanted.start


class Reserved(Protocol):
    """A range of a file that another process is to write."""

    wanted: ByteRange
    fd: int
    crc: int

    def land(self, position: int, crcs: Sequence[int]) -> None:
        """Take what is written up to `position`."""

    def refuse(self, error: OSError) -> None:
        """Note that the file did not take the bytes."""

    def last_landed(self, size_bytes: int) -> bytes | None:
        """The last bytes that have landed; None if they are not at hand."""


@runtime_checkable
class FileSink(Sink, Protocol):
    """A sink that another process may write to."""

    def reserve(self, wanted: ByteRange) -> Reserved | None:
        """The first part of `wanted` that another process may write now."""


class Urgency:
    """The urgency of a transfer: True while a reader waits for it. `make_urgent` takes it out of
    the prefetch queue.
    """

    __slots__ = ("_queue", "urgent")

    def __init__(self, *, urgent: bool) -> None:
        self.urgent = urgent
        self._queue: trio.CancelScope | None = None

    def enter_queue(self) -> trio.CancelScope:
        """The scope of a stay in the queue for prefetches; a transfer may come back to it."""
        self._queue = trio.CancelScope()
        return self._queue

    def make_urgent(self) -> None:
        self.urgent = True
        if self._queue is not None:
            self._queue.cancel()


class Permits:
    """The permits of limiters that one transfer holds, until the end of its block."""

    __slots__ = ("_held",)

    def __init__(self) -> None:
        self._held: list[trio.CapacityLimiter] = []

    def __enter__(self) -> Permits:
        return self

    def __exit__(self, *_: object) -> None:
        for limiter in self._held:
            limiter.release_on_behalf_of(self)

    def take_at_once(self, *limiters: trio.CapacityLimiter) -> bool:
        """Take a permit of each, without a checkpoint; False, and none is taken, if one of them has to be
        waited for.
        """
        taken = []
        try:
            for limiter in limiters:
                limiter.acquire_on_behalf_of_nowait(self)
                taken.append(limiter)
        except trio.WouldBlock:
            for limiter in taken:
                limiter.release_on_behalf_of(self)
            return False
        self._held += taken
        return True

    async def take(self, *limiters: trio.CapacityLimiter) -> None:
        """Take a permit of each, one after the other."""
        for limiter in limiters:
            if not self.take_at_once(limiter):
                await limiter.acquire_on_behalf_of(self)
                self._held.append(limiter)


class Transfer:
    """A range on its way: `position` is the next byte that is wanted."""

    def __init__(
        self,
        version: ObjectVersion,
        wanted: ByteRange,
        sink: Sink,
        *,
        urgency: Urgency | None = None,
        reason: str = DIRECT,
        small_too: bool = False,
    ) -> None:
        self.version = version
        self.wanted = wanted
        self.sink = sink
        self.urgency = urgency or Urgency(urgent=True)
        self.reason = reason
        """The reason under which bytes straight from the origin are counted."""
        self.small_too = small_too
        self.on_task: Callable[[str], None] = lambda _: None
        """Told the task that a proxy is asked for, at each attempt."""
        self.bandwidth: Bandwidth | None = None
        """Where bytes straight from the origin are counted."""
        self.proxy: Proxy | None = None
        """The proxy that was asked last."""
        self.reply: Response | None = None
        """The last reply, if its head has come."""
        self.registration: Registration | None = None
        """Its slot at the scheduler, if it goes through a proxy; given back at the first byte."""
        self.is_for_engine = False
        """True if it goes on in the engine, because a mover did not bring it to its end."""
        self.is_held_up: Callable[[], bool] = lambda: False
        """True while a mover has it that says nothing, not even that it lives."""
        self.position = wanted.start
        self.last_progress = self._expected_since = trio.current_time()
        self._writing = False
        self._tail = bytearray()
        self._proved_to = wanted.start

    @property
    def seam(self) -> bytes:
        """The last bytes that have come, which the next attempt compares first. Empty while there
        is nothing to prove.
        """
        return bytes(self._tail) if self.position > self._proved_to else b""

    @property
    def rest(self) -> ByteRange:
        """The range of the next attempt: the missing bytes, and the seam before them."""
        return ByteRange(self.position - len(self.seam), self.wanted.stop)

    @property
    def registers(self) -> bool:
        """True if dfdaemon brings a request for this range before its scheduler."""
        return self.small_too or self.wanted.size > dragonfly_task.MAX_DIRECT_BYTES

    async def compare_seam(self, response: Response, name: str) -> ByteRange | None:
        """Receive the seam again and compare it. If it differs, give back the unproved bytes, and
        return their range.

        Raises OriginUnavailable when the body ends before.
        """
        seam = self.seam
        again = memoryview(bytearray(len(seam)))
        filled = 0
        while filled < len(seam):
            count = await response.receive_into(again[filled:])
            if not count:
                raise OriginUnavailable(f"{name}: cut off before the offset that was reached")
            filled += count
        if again != seam:
            return self.retract()
        self._proved_to = self.position
        return None

    def retract(self) -> ByteRange:
        """Give back the unproved bytes; returns their range. The transfer goes on before it."""
        unproved = ByteRange(self._proved_to, self.position)
        if unproved and self.position < self.wanted.stop:
            self.position = self._proved_to = max(self.sink.retract(unproved), self.wanted.start)
            self._tail.clear()
        return unproved

    def ask(self, proxy: Proxy) -> None:
        """Note that `proxy` is asked now."""
        self.proxy = proxy
        self._expected_since = trio.current_time()

    def alive_at(self) -> float:
        """Time of the last reason to expect bytes. Silence while bytes are being written, of a mover,
        or for a while in the queue for a slot at the scheduler, blames no proxy.
        """
        if self._writing or self.is_held_up():
            return trio.current_time()
        queued = self.registration.alive_at() if self.registration is not None else self._expected_since
        return max(self.last_progress, self._expected_since, queued)

    async def take(self, data: memoryview) -> None:
        """Write `data`, which has come and is lent until this returns."""
        self._progress(len(data))
        self._writing = True
        try:
            await self.sink.write(self.position, data)
        finally:
            self._writing = False
            self._expected_since = trio.current_time()  # more is wanted from now on
        self.position += len(data)
        self._note_last(data[-SEAM_BYTES:])

    def moved(self, position: int) -> None:
        """Note that another process has written up to `position`."""
        self._progress(position - self.position)
        self._expected_since = self.last_progress
        self.position = position

    def end_move(self, last: bytes | None) -> None:
        """Note the last bytes, up to SEAM_BYTES, that another process has written. What cannot be
        compared is given back."""
        if last is None:
            self.retract()
        else:
            self._note_last(last)

    def _note_last(self, last: bytes | memoryview) -> None:
        self._tail += last
        del self._tail[:-SEAM_BYTES]

    def _progress(self, size_bytes: int) -> None:
        self.last_progress = trio.current_time()
        if self.bandwidth is not None:
            self.bandwidth.count_bytes(size_bytes, self.last_progress)
        if self.registration is not None:
            self.registration.release()


class Bandwidth:
    """One origin's rate and delay, as seen by the requests of this process: how many bytes must be
    in flight to keep it busy. Pure; `now` is monotonic seconds.

    The window is twice the bandwidth-delay product, of the best rate seen lately and of the *least*
    time that a part takes when nothing queues. Twice, so that it grows as long as more in flight
    brings more; the least time, so that a queue of our own making does not count as delay.
    """

    def __init__(self) -> None:
        self.first_byte_s = 0.0
        """The least time to the first byte, lately; 0 before the first sample."""
        self.connection_bytes_s = 0.0
        """The best rate of one response, lately."""
        self._interval_start = float("-inf")
        self._interval_bytes = 0
        self._rates: deque[tuple[float, float]] = deque()

    def count_bytes(self, size_bytes: int, now: float) -> None:
        """Count bytes that have arrived, on any connection."""
        if now - self._interval_start >= _INTERVAL_S:
            elapsed_s = now - self._interval_start
            if elapsed_s < 2 * _INTERVAL_S:
                self._rates.append((now, self._interval_bytes / elapsed_s))
            while self._rates and now - self._rates[0][0] > _MEMORY_S:
                self._rates.popleft()
            self._interval_start, self._interval_bytes = now, 0
        self._interval_bytes += size_bytes

    def count_reply(self, size_bytes: int, first_byte_s: float, body_s: float) -> None:
        """Count a reply: first byte after `first_byte_s`, then `size_bytes` within `body_s`."""
        self.first_byte_s = min(self.first_byte_s * _FORGET, first_byte_s) if self.first_byte_s else first_byte_s
        if size_bytes >= _SAMPLE_BYTES and body_s > 0:
            self.connection_bytes_s = max(self.connection_bytes_s / _FORGET, size_bytes / body_s)

    @property
    def total_bytes_s(self) -> float:
        """The best rate of all connections together, lately, in bytes a second; 0 while unknown."""
        return max((rate for _, rate in self._rates), default=0.0)

    def expected_s(self, size_bytes: int) -> float:
        """Seconds until so many bytes are there; infinite for many bytes while no rate is known."""
        rate_bytes_s = self.total_bytes_s or (math.inf if size_bytes <= dragonfly_task.MAX_DIRECT_BYTES else 0.0)
        return self.first_byte_s + size_bytes / rate_bytes_s if rate_bytes_s else math.inf

    @property
    def window_bytes(self) -> int:
        """Bytes that should be in flight for a reader that takes all it can get."""
        if not self.connection_bytes_s:
            return LEAST_WINDOW_BYTES
        part_s = self.first_byte_s + PART_BYTES / self.connection_bytes_s
        wanted = int(2 * self.total_bytes_s * part_s)
        return min(max(wanted, LEAST_WINDOW_BYTES), MOST_WINDOW_BYTES)


def pause_before_retry_s(attempt: int, error: D7yfsError) -> float:
    """Exponential backoff, 0.1 to 5 s, with jitter on the upper half; longer if asked for."""
    pause_s = min(0.1 * 2.0 ** min(attempt, 10), 5.0) * random.uniform(0.5, 1.0)  # noqa: S311  # jitter, not cryptography
    asked_s = error.retry_after_s if isinstance(error, OriginUnavailable) else 0.0
    return max(pause_s, asked_s)
