"""One open object version in the cache: hits from its backing file, misses through its filler, readers woken by their own bytes.

Invariants:

- No lock is held anywhere: presence is checked and a waiter registered without an await between.
- A waiter is served the moment its range becomes readable, with a copy of the bytes, so that a block which memory pressure drops a
  moment later has done its work.
- A cancelled or timed out reader removes its waiter and nothing else: transfers belong to the filler.
- The version stays open while a handle, a running read or a transfer holds it.

Called by `Filesystem` (through `Cache.open`) and, as `FillTarget`, by fillers. Trio thread only.
"""

from __future__ import annotations

from collections.abc import Callable

import trio

from d7yfs.cache.backing import BackingFile
from d7yfs.cache.filler import Filler, NewFiller
from d7yfs.errors import ReadTimeout
from d7yfs.objects import BLOCK_BYTES, ByteRange, ObjectVersion


class _Waiter:
    """A read that waits: `needs` is the first byte it cannot read yet."""

    __slots__ = ("data", "error", "event", "needs", "wanted")

    def __init__(self, wanted: ByteRange, needs: int) -> None:
        self.wanted = wanted
        self.needs = needs
        self.event = trio.Event()
        self.data: bytearray | None = None
        self.error: Exception | None = None


class CachedVersion:
    """An open version. Made by `Cache.open`; every `open` and `hold` is balanced by a `drop`."""

    def __init__(
        self,
        version: ObjectVersion,
        *,
        new_filler: NewFiller,
        read_timeout_s: float,
        on_last_drop: Callable[[CachedVersion], None],
    ) -> None:
        self.version = version
        self.hits = 0
        self.misses = 0
        self.holds = 0
        self._waiters: set[_Waiter] = set()
        self._read_timeout_s = read_timeout_s
        self._last_progress = 0.0
        self._on_last_drop = on_last_drop
        self._filler: Filler = new_filler(self)
        self.backing: BackingFile
        """Set by `Cache.open`, which needs this object's `is_wanted` to make it."""

    def hold(self) -> None:
        self.holds += 1

    def drop(self) -> None:
        self.holds -= 1
        if not self.holds:
            self._on_last_drop(self)

    def is_wanted(self, index: int) -> bool:
        """Whether a reader waits for block `index`."""
        block = ByteRange(index * BLOCK_BYTES, (index + 1) * BLOCK_BYTES)
        return any(waiter.wanted.intersects(block) for waiter in self._waiters)

    async def read(self, wanted: ByteRange, ahead: ByteRange | None) -> bytes | bytearray:
        """Exactly the bytes of `wanted`, which lies inside the object.

        Raises what the filler reports (VersionGone, AccessDenied, OriginUnavailable, …), and ReadTimeout when nothing of this version
        has come for the read timeout.
        """
        if not wanted:
            return b""
        self.hold()
        try:
            if self.backing.presence.first_unreadable(wanted) is None:
                self.hits += 1
                if ahead:
                    self._filler.prefetch(ahead)
                return await self._read_present(wanted)
            return await self._read_missing(wanted, ahead)
        finally:
            self.drop()

    async def _read_present(self, wanted: ByteRange) -> bytes | bytearray:
        buffer, cold = self.backing.begin_read(wanted)
        if cold:
            try:
                await trio.to_thread.run_sync(self.backing.finish_read, cold)
            except OSError as error:
                self.backing.leave_disk(error)
                return await self._read_missing(wanted, None)
        return buffer

    async def _read_missing(self, wanted: ByteRange, ahead: ByteRange | None) -> bytes | bytearray:
        self.backing.refresh(wanted)
        for index in self.backing.presence.unverified(wanted):
            good = await trio.to_thread.run_sync(self.backing.matches_checksum, index)
            self.backing.verified(index, good=good)
        if self.backing.presence.first_unreadable(wanted) is None:
            self.hits += 1
            return await self._read_present(wanted)
        self.misses += 1
        while True:
            waiter = await self._wait_for(wanted, ahead)
            if waiter.data is not None:
                return waiter.data
            if waiter.error is not None:
                raise waiter.error
            ahead = None

    async def _wait_for(self, wanted: ByteRange, ahead: ByteRange | None) -> _Waiter:
        """Ask the filler and wait until it has answered for `wanted`, in whatever way."""
        needs = self.backing.presence.first_unreadable(wanted)
        waiter = _Waiter(wanted, wanted.start if needs is None else needs)
        if needs is None:
            waiter.data = bytearray(await self._read_present(wanted))
            return waiter
        self._waiters.add(waiter)
        try:
            self._filler.request(wanted, ahead)
            deadline = trio.current_time() + self._read_timeout_s
            while not waiter.event.is_set():
                with trio.move_on_at(deadline):
                    await waiter.event.wait()
                    break
                deadline = self._last_progress + self._read_timeout_s
                if deadline <= trio.current_time():
                    raise ReadTimeout(
                        f"{self.version.key}: nothing has come for {self._read_timeout_s:g} s",
                        hint="see the log for the origin's or proxy's trouble; --read-timeout sets the patience",
                    )
        finally:
            self._waiters.discard(waiter)
        return waiter

    # --- FillTarget ---

    @property
    def keeps(self) -> bool:
        return self.backing.keeps

    def missing(self, wanted: ByteRange) -> list[ByteRange]:
        self.backing.refresh(wanted)
        return self.backing.presence.missing(wanted)

    def write(self, offset: int, data: memoryview) -> None:
        self.backing.write(offset, data)
        self._last_progress = trio.current_time()
        if self._waiters:
            stop = offset + len(data)
            for waiter in [w for w in self._waiters if offset <= w.needs < stop]:
                self._serve(waiter)

    def _serve(self, waiter: _Waiter) -> None:
        """Hand a waiter its bytes if they are all readable, else note what it needs next."""
        needs = self.backing.presence.first_unreadable(waiter.wanted)
        if needs is not None:
            waiter.needs = needs
            return
        # What has just landed is in the page cache; if the kernel has let go of an older block of the range, wait for the disk here,
        # once, rather than let the block be dropped before the reader comes.
        buffer, cold = self.backing.begin_read(waiter.wanted)
        if cold:
            self.backing.finish_read(cold)
        waiter.data = buffer
        self._waiters.discard(waiter)
        waiter.event.set()

    def ended(self, tried: ByteRange, error: Exception | None) -> None:
        for waiter in [w for w in self._waiters if tried.start <= w.needs < tried.stop]:
            waiter.error = error
            self._waiters.discard(waiter)
            waiter.event.set()

    def fail_waiters(self, error: Exception) -> None:
        """Answer everybody who waits, at shutdown."""
        self.ended(self.version.whole, error)
