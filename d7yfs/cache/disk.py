"""The disk of the cache directory, which may stall: all calls that may wait for it go through here.

A disk stalls when its file system is frozen, its device hangs, or its network is away. A thread
that waits for it then cannot even be killed. So calls run in a bounded number of worker threads,
and no caller waits for one longer than the patience (`STALL_S`). After a call has waited that long,
the disk counts as stalled: nothing new is written. Other calls have `STALLED_S`, as a frozen file
system opens what it has. The call that hangs is the probe (as of a circuit breaker): once it has
ended, the disk is trusted again.

Two things stay on the trio thread, because a change of threads costs more than they do:

- Reads of bytes that are in memory (`BackingFile.begin_read`), which never wait.
- Writes in quick succession (bytes, and their entries in the map), and the opens and closes of
  small files between them. A buffered write is a copy into the page cache, quickest where its bytes
  were just received. An open in a thread doubles the cost of a small file. So they run here if the
  disk has taken a write within `FRESH_S` and `Pace` does not find it slow. A stall that begins
  between two such calls holds up the trio thread until its end.

Invariants:

- Bytes and descriptors that a thread works on are its own, or held until the thread has ended: lent
  bytes are copied, and `Lane.close` closes descriptors after the last call on them.
- A call that returns after its caller has given up hands its result to `late`.

One `Disk` per cache directory, made by `Cache`; one `Lane` per open version. Trio thread only.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import trio

from d7yfs.cache.file_io import write_whole
from d7yfs.checksum import crc32c

if TYPE_CHECKING:
    from d7yfs.cache.pair import Arriving, VersionFiles

log = logging.getLogger(__name__)

T = TypeVar("T")

STALL_S = 3.0
"""Seconds after which a call is not waited for any more."""

STALLED_S = 0.5
"""The same while another call is known to hang."""

FRESH_S = 0.05
"""Seconds for which a write that the disk has taken is a sign that the next one will not wait."""

_THREADS = 32
"""Calls under way at once, and as many reads: so many threads hang with the disk, and two more."""

QUICK_S = 0.01
"""Seconds that a write of a block may take; more is waiting."""
SLOW_S = 0.3
"""Seconds of waiting that the trio thread puts up with, …"""

FORGIVEN = 0.1
"""… of which this fraction of the time that passes is forgotten."""

REST_S = 3.0
"""Seconds without waiting after which the disk is trusted again."""


class DiskStalled(OSError):
    """The disk has not answered within the patience, or is known not to answer."""

    def __init__(self) -> None:
        super().__init__(errno.ETIMEDOUT, "the cache's disk does not answer")


@dataclass(slots=True)
class Landing:
    """The bytes of one block that are on their way to the disk."""

    index: int
    start: int
    """Offset of the first of them in the object."""
    data: memoryview
    arriving: Arriving
    crc: int
    """CRC32C of the block up to these bytes; with them once they are stored. Not used in memory."""
    error: OSError | None = None

    @property
    def stop(self) -> int:
        """Offset behind the last of them."""
        return self.start + len(self.data)

    def own(self) -> None:
        """Copy the bytes: lent ones may change before a disk that stalls has taken them."""
        self.data = memoryview(bytes(self.data))

    def store(self, files: VersionFiles) -> None:
        """Write the bytes to the data of `files`, and keep an error. For any thread."""
        try:
            write_whole(files.data_fd, self.data, self.start)
        except OSError as error:
            self.error = error
        self.crc = crc32c(self.data, self.crc)


class _Result(Generic[T]):
    """The value that a call has returned, or the error that it raised."""

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
    """A call that runs in a thread, or waits for one."""

    __slots__ = ("began_at", "ended", "given_up", "lane", "late", "limiter", "result")

    def __init__(self, late: Callable[[T], None] | None, lane: Lane | None, limiter: trio.CapacityLimiter) -> None:
        self.late = late
        self.lane = lane
        self.limiter = limiter
        self.began_at = 0.0
        self.ended = trio.Event()
        self.given_up = False
        self.result: _Result[T] | None = None


class Pace:
    """The pace of writes to the disk: has it fallen behind? Pure; times are monotonic seconds.

    A disk that has fallen behind makes writers wait (balance_dirty_pages in the kernel's
    mm/page-writeback.c, up to 0.2 s each), and no other reader should wait with them. A single slow
    write proves nothing: the machine may have been busy, and threads would double the cost of the
    rest of a file. So the trio thread puts up with SLOW_S in all.
    """

    def __init__(self) -> None:
        self._waited_s = 0.0
        self._waited_at = float("-inf")

    def is_slow(self, now: float) -> bool:
        """True if writes should be made in threads."""
        return self._waited_s >= SLOW_S and now < self._waited_at + REST_S

    def record(self, took_s: float, now: float) -> None:
        """Record a write that took `took_s` and has ended now."""
        if took_s >= QUICK_S:
            forgiven_s = FORGIVEN * (now - self._waited_at)
            self._waited_s = max(self._waited_s - forgiven_s, 0.0) + took_s
            self._waited_at = now


class Disk:
    """The disk of one cache directory, for its callers on the trio thread.

    `clock` is time.monotonic(): a disk's time has nothing to do with trio's clock.
    """

    def __init__(self, *, patience_s: float = STALL_S, clock: Callable[[], float] = time.monotonic) -> None:
        self.patience_s = patience_s
        self._clock = clock
        self._pace = Pace()
        self._answered_at = float("-inf")
        self._failed_at, self._error = float("-inf"), ""
        self._calls = trio.CapacityLimiter(_THREADS)
        self._reads = trio.CapacityLimiter(_THREADS)
        self._under_way: dict[_Call[Any], None] = {}
        """Oldest first."""
        self._behind: deque[Callable[[], object]] = deque()
        self._drains = False
        self._draining_since = float("inf")
        """Start of the current call of `run_behind`. Written by the thread that makes it."""
        self._quiet = trio.Event()
        self._said = False

    # --- how it is ---

    @property
    def stalled_s(self) -> float:
        """Seconds for which the disk has not answered; 0 while within the patience."""
        waited_s = self._oldest_s
        return waited_s if waited_s >= self.patience_s else 0.0

    @property
    def error(self) -> str:
        """The error of the last write, in words; empty if it succeeded."""
        return self._error if self._failed_at > self._answered_at else ""

    def note_error(self, error: OSError) -> None:
        """Note that a write failed."""
        self._failed_at, self._error = self._clock(), error.strerror or str(error)

    def write_promptly(self, write: Callable[[], object]) -> bool:
        """Make `write` here, on the trio thread; False if it would have to wait, and is not made."""
        if not self.is_prompt:
            return False
        self.time_write(write)
        return True

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
        """Make `call` in a thread.

        Raises what it does, and DiskStalled when it does not end in time. In that case, or when
        cancelled, the call goes on in its thread and `late` gets its result.
        """
        return await self._run(call, _Call(late, None, self._calls))

    async def _run(self, call: Callable[[], T], made: _Call[T]) -> T:
        stalled = made.limiter is self._calls and self.stalled_s
        try:
            with trio.move_on_after(min(STALLED_S, self.patience_s) if stalled else self.patience_s):
                await _acquire(made.limiter, made)
                made.began_at = self._clock()
                self._under_way[made] = None
                _in_thread(partial(_Result, call), partial(self._end, made))
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

    def _end(self, made: _Call[T], result: _Result[T]) -> None:
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
            made.lane.end_call()

    def time_write(self, write: Callable[[], object]) -> None:
        """Make `write`, and record how long it took. For any thread."""
        began_at = self._clock()
        self.prove_with(write)
        self._pace.record(self._answered_at - began_at, self._answered_at)

    def note_write(self) -> None:
        """Note that another process has just written."""
        self._answered_at = self._clock()

    def prove_with(self, change: Callable[[], object]) -> None:
        """Make `change`, which proves that the disk can be written. For any thread."""
        change()
        self._answered_at = self._clock()

    def _recovered(self) -> None:
        if self._said and not self.stalled_s:
            self._said = False
            log.warning("cache: its disk answers again")

    def run_soon(self, call: Callable[[], object]) -> None:
        """Make `call`, a small write that no caller waits for: here if the disk has just taken one,
        else as `run_behind`.

        Here, because another daemon takes a block for missing whose entry is late. Never before
        earlier calls: an entry that was taken back must not come again.
        """
        if self._is_fresh and not self._drains:
            self.prove_with(call)
        else:
            self.run_behind(call)

    def run_behind(self, call: Callable[[], object]) -> None:
        """Make `call` in a thread, after all that were given before it. It must not raise."""
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
                log.exception("cache: a call in the background failed unexpectedly")

    def _drained(self, _: None) -> None:
        self._drains = False
        self._draining_since = float("inf")
        self._recovered()
        self._quiet.set()
        if self._behind:
            self._drain()

    def read_fresh(self, fd: int, start: int, view: memoryview) -> int:
        """Read bytes that were read or written a while ago and so are most likely in memory;
        returns how many.

        Where the file system cannot tell, they are taken to be in memory.
        """
        try:
            return os.preadv(fd, [view], start, os.RWF_NOWAIT)
        except OSError as error:
            if error.errno == errno.EAGAIN:  # dropped under memory pressure: there at the next read
                self.run_behind(partial(_read_ahead, fd, start, len(view)))
            if error.errno != errno.EOPNOTSUPP or self.stalled_s:
                return 0
        with contextlib.suppress(OSError):
            return os.preadv(fd, [view], start)
        return 0

    async def wait_for_earlier(self) -> None:
        """Return once all calls are done that were given so far. Raises DiskStalled."""
        if not self._drains:
            return
        done, token = trio.Event(), trio.lowlevel.current_trio_token()

        def tell() -> None:
            with contextlib.suppress(trio.RunFinishedError):
                token.run_sync_soon(done.set)

        self.run_behind(tell)
        with trio.move_on_after(self.patience_s):
            await done.wait()
        if not done.is_set():
            raise DiskStalled

    async def wait_until_quiet(self) -> None:
        """Return once all calls of `run_behind` are done."""
        while self._drains:
            await self._quiet.wait()


class Lane:
    """The calls on the descriptors of one version, which are closed after the last of them."""

    def __init__(self, disk: Disk) -> None:
        self.disk = disk
        self.under_way = 0
        self._close: Callable[[], object] | None = None

    async def run(self, call: Callable[[], T], *, late: Callable[[T], None] | None = None) -> T:
        """Make `call` as `Disk.run` does."""
        return await self._run(call, self.disk._calls, late)

    async def write(self, write: Callable[[], object]) -> None:
        """Make `write` in a thread, for a disk that is not prompt. May raise DiskStalled."""
        if self.disk.stalled_s:
            raise DiskStalled
        await self.run(partial(self.disk.time_write, write))

    async def read(self, call: Callable[[], T]) -> T:
        """Make `call` with the whole patience: a frozen file system can be read."""
        return await self._run(call, self.disk._reads, None)

    async def _run(self, call: Callable[[], T], limiter: trio.CapacityLimiter, late: Callable[[T], None] | None) -> T:
        self.under_way += 1
        return await self.disk._run(call, _Call(late, self, limiter))

    def end_call(self) -> None:
        """Count a call that has ended, or was never made."""
        self.under_way -= 1
        self._close_if_idle()

    def close(self, close: Callable[[], object]) -> None:
        """Have `close` called once nothing is under way, as `Disk.run_soon` does. The last call until
        others are opened."""
        self._close = close
        self._close_if_idle()

    def _close_if_idle(self) -> None:
        if self._close is not None and not self.under_way:
            close, self._close = self._close, None
            # Earlier calls may use the same descriptors, and are done before it.
            self.disk.run_soon(close)


def _read_ahead(fd: int, start: int, size_bytes: int) -> None:
    with contextlib.suppress(OSError):
        os.posix_fadvise(fd, start, size_bytes, os.POSIX_FADV_WILLNEED)


async def _acquire(limiter: trio.CapacityLimiter, borrower: object) -> None:
    try:
        limiter.acquire_on_behalf_of_nowait(borrower)
    except trio.WouldBlock:
        await limiter.acquire_on_behalf_of(borrower)


def _in_thread(work: Callable[[], T], tell: Callable[[T], None]) -> None:
    """Run `work`, which must not raise, in a thread, and `tell` the trio thread its result."""
    token = trio.lowlevel.current_trio_token()

    def deliver(result: Any) -> None:  # an outcome.Outcome
        with contextlib.suppress(trio.RunFinishedError):
            token.run_sync_soon(tell, result.unwrap())

    trio.lowlevel.start_thread_soon(work, deliver)
