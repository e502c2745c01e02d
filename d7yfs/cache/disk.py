"""The disk of the cache directory, as something that may stall: whatever may wait for it goes through here.

A disk stalls when its file system is frozen, its device hangs, or its network is away. A thread that waits for it then cannot even be
killed. So calls are made in worker threads, whose number is bounded, and nobody waits for one longer than the patience (`STALL_S`).
While a call has waited for longer than that, the disk counts as stalled: other calls have `STALLED_S`, since a frozen file system opens
what it has, and nothing new is written. The call that hangs is the probe; the disk is trusted again once it has ended.

Two things stay on the trio thread, because a change of threads costs more than they do:

- reads of what is in memory (`BackingFile.begin_read`), which never wait;
- writes that come in quick succession (bytes, and their entries in the map), and the opens and closes of small files between them. A
  buffered write is a copy into the page cache, and quickest where its bytes were received a moment ago; an open in a thread costs a
  small file as much as all the rest. They are made here only if the disk has taken a write within the last `FRESH_S`, and `Pace` does
  not find it slow. What remains: a stall that begins between two such calls holds up the trio thread until its end.

Invariants:

- What a thread works on is its own, or held until the thread has ended: bytes that are lent are copied, and descriptors are closed by
  `Lane.close`, after the last call on them.
- A call that comes back after its caller has given up hands its result to `latecomer`.

One `Disk` per cache directory, made by `Cache`; one `Lane` per open version. Trio thread only.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Generic, TypeVar

import trio

from d7yfs.cache.pace import Pace

log = logging.getLogger(__name__)

T = TypeVar("T")

STALL_S = 3.0
"""A call that takes longer is not waited for."""

STALLED_S = 0.5
"""Nor one that takes this long, while another is known to hang."""

FRESH_S = 0.05
"""How long a write that the disk has taken is a sign that the next one will not wait."""

_THREADS = 32
"""Calls under way at once, and as many reads: that many threads hang with the disk, and two more."""


class DiskStalled(OSError):
    """The disk has not answered within the patience, or is known not to answer."""

    def __init__(self) -> None:
        super().__init__(errno.ETIMEDOUT, "the cache's disk does not answer")


class _Result(Generic[T]):
    """What a call has returned or raised."""

    __slots__ = ("error", "value")

    def __init__(self, call: Callable[[], T]) -> None:
        """Make the call."""
        self.error: BaseException | None = None
        try:
            self.value = call()
        except BaseException as error:
            self.error = error

    def unwrap(self) -> T:
        if self.error is not None:
            raise self.error
        return self.value


class _Call(Generic[T]):
    """A call in a thread."""

    __slots__ = ("began_at", "ended", "given_up", "lane", "late", "limiter", "result")

    def __init__(self, late: Callable[[T], None] | None, lane: Lane | None, limiter: trio.CapacityLimiter) -> None:
        self.late = late
        self.lane = lane
        self.limiter = limiter
        self.began_at = 0.0
        self.ended = trio.Event()
        self.given_up = False
        self.result: _Result[T] | None = None


class Disk:
    """See the module. `clock` is time.monotonic(): what a disk takes has nothing to do with trio's clock."""

    def __init__(self, *, patience_s: float = STALL_S, clock: Callable[[], float] = time.monotonic) -> None:
        self.patience_s = patience_s
        self._clock = clock
        self._pace = Pace()
        self._answered_at = float("-inf")
        self._calls = trio.CapacityLimiter(_THREADS)
        self._reads = trio.CapacityLimiter(_THREADS)
        self._under_way: dict[_Call[Any], None] = {}
        """The oldest first."""
        self._behind: deque[Callable[[], object]] = deque()
        self._drains = False
        self._draining_since = float("inf")
        """When the call of `behind` began that is under way. Written by the thread that makes those."""
        self._quiet = trio.Event()
        self._said = False

    # --- how it is ---

    @property
    def stalled_s(self) -> float:
        """For how long the disk has not answered; 0 while nothing has waited for longer than the patience."""
        waited_s = self._oldest_s
        return waited_s if waited_s >= self.patience_s else 0.0

    @property
    def is_prompt(self) -> bool:
        """True if a write may be made on the trio thread."""
        return self._is_fresh and self._oldest_s < FRESH_S and not self._pace.is_slow(self._clock())

    @property
    def _is_fresh(self) -> bool:
        return self._clock() - self._answered_at < FRESH_S

    @property
    def _oldest_s(self) -> float:
        oldest = next(iter(self._under_way), None)
        began_at = min(self._draining_since, oldest.began_at if oldest is not None else float("inf"))
        return max(0.0, self._clock() - began_at)

    # --- calls ---

    async def run(self, call: Callable[[], T], *, late: Callable[[T], None] | None = None) -> T:
        """Make `call` in a thread. Raises what it does, and DiskStalled when it does not end in time; then `latecomer` gets its result.

        Cancelled, it leaves the call to its thread, and its result to `latecomer`.
        """
        return await self._run(call, _Call(late, None, self._calls))

    async def _run(self, call: Callable[[], T], made: _Call[T]) -> T:
        stalled = made.limiter is self._calls and self.stalled_s
        try:
            with trio.move_on_after(min(STALLED_S, self.patience_s) if stalled else self.patience_s):
                await _acquire(made.limiter, made)
                made.began_at = self._clock()
                self._under_way[made] = None
                _in_thread(partial(_Result, call), partial(self._ended, made))
                await made.ended.wait()
        finally:
            made.given_up = made.result is None
            if made.given_up and made not in self._under_way:
                self._let_go(made)  # it was never made
        if made.result is None:
            if not self._said:
                self._said = True
                log.warning(
                    "cache: its disk has not answered for %g s: reading uncached until it does", self.patience_s
                )
            raise DiskStalled
        return made.result.unwrap()

    def _ended(self, made: _Call[T], result: _Result[T]) -> None:
        del self._under_way[made]
        made.limiter.release_on_behalf_of(made)
        self._recovered()
        if not made.given_up:
            made.result = result
            made.ended.set()
        elif made.late is not None and result.error is None:
            made.late(result.value)
        self._let_go(made)

    def _let_go(self, made: _Call[Any]) -> None:
        if made.lane is not None:
            made.lane.ended()

    def timed(self, write: Callable[[], object]) -> None:
        """Make `write`, and note how long it took. For any thread."""
        began_at = self._clock()
        self.proved(write)
        self._pace.took(self._answered_at - began_at, self._answered_at)

    def proved(self, change: Callable[[], object]) -> None:
        """Make `change`, which proves that the disk can be written. For any thread."""
        change()
        self._answered_at = self._clock()

    def _recovered(self) -> None:
        if self._said and not self.stalled_s:
            self._said = False
            log.warning("cache: its disk answers again")

    def soon(self, call: Callable[[], object]) -> None:
        """Make `call`, a small write for which nobody waits: here if the disk has just taken one, else as `behind` does.

        Here, because another daemon takes a block for missing whose entry is late. Never before what was given earlier: an entry that was
        taken back must not come again.
        """
        if self._is_fresh and not self._drains:
            self.proved(call)
        else:
            self.behind(call)

    def behind(self, call: Callable[[], object]) -> None:
        """Have `call` made in a thread, after all that were given before it. It must not raise."""
        self._behind.append(call)
        if not self._drains:
            self._drain()

    def _drain(self) -> None:
        self._drains = True
        self._quiet = trio.Event()
        self._draining_since = self._clock()
        _in_thread(self._drain_all, self._drained)

    def _drain_all(self) -> None:
        while self._behind:
            self._draining_since = self._clock()
            call = self._behind.popleft()
            try:
                call()
            except Exception:
                log.exception("cache: what nobody waits for failed unexpectedly")

    def _drained(self, _: None) -> None:
        self._drains = False
        self._draining_since = float("inf")
        self._recovered()
        self._quiet.set()
        if self._behind:
            self._drain()

    async def quiet(self) -> None:
        """Return once all that was given to `behind` is done."""
        while self._drains:
            await self._quiet.wait()

    def lane(self) -> Lane:
        """For the calls on one version's descriptors."""
        return Lane(self)


class Lane:
    """Calls on the descriptors of one version, which are closed after the last of them."""

    def __init__(self, disk: Disk) -> None:
        self.disk = disk
        self._calls = 0
        self._close: Callable[[], object] | None = None

    async def run(self, call: Callable[[], T], *, late: Callable[[T], None] | None = None) -> T:
        """As `Disk.run`."""
        return await self._run(call, self.disk._calls, late)

    async def write(self, write: Callable[[], object]) -> None:
        """Make `write` in a thread, for a disk that is not prompt. Raises what it does, and DiskStalled."""
        if self.disk.stalled_s:
            raise DiskStalled
        await self.run(partial(self.disk.timed, write))

    async def read(self, call: Callable[[], T]) -> T:
        """As `Disk.run`, with the whole patience also while the disk is stalled: a frozen file system can be read."""
        return await self._run(call, self.disk._reads, None)

    async def _run(self, call: Callable[[], T], limiter: trio.CapacityLimiter, late: Callable[[T], None] | None) -> T:
        self._calls += 1
        return await self.disk._run(call, _Call(late, self, limiter))

    def ended(self) -> None:
        """A call has ended, or was never made."""
        self._calls -= 1
        self._close_if_idle()

    def close(self, close: Callable[[], object]) -> None:
        """Have `close` called once nothing is under way, as `Disk.soon` does; nothing may be asked for any more."""
        self._close = close
        self._close_if_idle()

    def _close_if_idle(self) -> None:
        if self._close is not None and not self._calls:
            close, self._close = self._close, None
            # What was given before may use the same descriptors, and is done before it.
            self.disk.soon(close)


async def _acquire(limiter: trio.CapacityLimiter, borrower: object) -> None:
    try:
        limiter.acquire_on_behalf_of_nowait(borrower)
    except trio.WouldBlock:
        await limiter.acquire_on_behalf_of(borrower)


def _in_thread(work: Callable[[], T], tell: Callable[[T], None]) -> None:
    """Have `work`, which does not raise, made in a thread, and the trio thread told of what it returns, unless it has ended by then."""
    token = trio.lowlevel.current_trio_token()

    def deliver(result: Any) -> None:  # an outcome.Outcome
        with contextlib.suppress(trio.RunFinishedError):
            token.run_sync_soon(tell, result.unwrap())

    trio.lowlevel.start_thread_soon(work, deliver)
