"""One open object version in the cache: hits from its backing file, misses through its filler,
readers woken by their own bytes.

Invariants:

- No lock is held anywhere: presence is checked and a waiter registered without an await between.
- A waiter is served the moment its range becomes readable, with a copy of the bytes: a block that
  memory pressure drops a moment later has done its work.
- A cancelled or timed out reader removes its waiter and nothing else: transfers belong to the
  filler.
- The version stays open while a handle, a running read or a transfer holds it. It may be asleep
  (`VersionUse`) while only handles do, and is woken for the next read. A filler works only for a
  version that is awake.

Called by `Filesystem` (through `Cache.open`) and by fillers, which also ask its `backing`. Trio
thread only.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import trio

from d7yfs.cache.disk import DiskStalled, Landing, Lane
from d7yfs.cache.filler import Filler, NewFiller
from d7yfs.cache.grants import RecordedGrants
from d7yfs.cache.leases import Leases
from d7yfs.cache.linked import LinkChanged
from d7yfs.cache.open_version import OpenVersion
from d7yfs.cache.proof import RecordedProof
from d7yfs.cache.reservation import Reservation
from d7yfs.cache.waiter import Served, Waiter
from d7yfs.errors import CacheFull, OriginUnavailable, ProxyUnavailable, ReadTimeout
from d7yfs.objects import BLOCK_BYTES, ByteRange, ObjectVersion

_RETRY_S = 0.5
"""Seconds before a new request after a transfer gave up, which had made many tries of its own."""
_MAX_CHANGES = 3
"""How often one read compares a file of dfdaemon's that is written again and again."""
_WATCHED_BYTES = 64 << 20
"""How much of a version that is filled whole is watched at a time: each relevant write looks
through it."""

_NOTHING = memoryview(b"")


class CachedVersion(OpenVersion):
    """An open version, made by `Cache.open`; every `open` and `hold` is balanced by a `drop`."""

    def __init__(
        self,
        version: ObjectVersion,
        *,
        new_filler: NewFiller,
        read_timeout_s: float,
        lane: Lane,
        on_last_drop: Callable[[CachedVersion], None],
    ) -> None:
        super().__init__(version, read_timeout_s, lambda: on_last_drop(self))
        self._waiters: set[Waiter] = set()
        self._lane = lane
        self._writing: trio.CapacityLimiter | None = None
        """The kernel makes writes to one file one by one: threads would only spin on its lock. Made at
        the first write that a thread makes."""
        self._wanted_whole = False
        self._fills = 0
        """Callers of `fill_whole` that wait now."""
        self._arrived_at, self._arrived = 0, _NOTHING
        """Bytes that were handed on, and are being stored, and their offset: no filler need bring them."""
        self._filler: Filler = new_filler(self)
        self.leases: Leases
        """Set by `Cache.open`, as `backing` is: it needs this object's methods."""
        self.grants: RecordedGrants
        self.proof: RecordedProof

    @property
    def window_bytes(self) -> int:
        """Bytes worth fetching ahead of a sequential reader, as the filler has measured."""
        return self._filler.window_bytes

    def fill(self) -> None:
        """Have the filler bring the rest of the object in the background."""
        self._wanted_whole = True
        if self.backing.presence.absent_count and not self.is_asleep:
            self._filler.fill()

    async def fill_whole(self) -> None:
        """Bring the rest, behind the bytes that readers wait for; returns when all of it is on disk
        and right.

        Raises what the filler reports (VersionGone, AccessDenied, OriginUnavailable, …),
        ReadTimeout when the filler gives up again and again, and CacheFull when no room is left.
        When cancelled, the filler stops as well, unless another caller wants all of it too."""
        self.begin_work()
        self._fills += 1
        try:
            if self.is_asleep:
                await self.wake()
            if self.backing.presence.absent_count:
                for watched in self.version.whole.split(_WATCHED_BYTES):
                    await self._watch(watched)
            if not self.is_whole:
                raise self._full()
        finally:
            self._fills -= 1
            if not self._fills and not self._wanted_whole:
                self._filler.stop_filling()
            self.end_work()

    def _full(self) -> CacheFull:
        hint = "free space on its disk, or raise --cache-size"
        return CacheFull(f"{self.version.key}: there is no room in the cache to keep it", hint=hint)

    async def _watch(self, watched: ByteRange) -> None:
        """Keep the filler busy until all of `watched` is readable."""
        began = trio.current_time()
        while True:
            await self._verify(watched)
            needs = self.backing.presence.first_unreadable(watched)
            if needs is None:
                return
            if not self.keeps:
                raise self._full()
            waiter = Waiter(watched, needs, watches=True)
            self._waiters.add(waiter)
            try:
                self._filler.fill()
                # A filler may stop in silence, when there is no room or another daemon brings the
                # rest: so check again now and then.
                with trio.move_on_after(_RETRY_S):
                    await waiter.event.wait()
            finally:
                self._waiters.discard(waiter)
            if waiter.error is not None:
                raise waiter.error
            if waiter.event.is_set() and waiter.served is None:
                if trio.current_time() >= self._deadline(began):
                    raise ReadTimeout(f"{self.version.key}: nothing has come for {self._read_timeout_s:g} s")
                await trio.sleep(_RETRY_S)

    def is_wanted(self, index: int) -> bool:
        """True if a reader waits for block `index`."""
        block = ByteRange(index * BLOCK_BYTES, (index + 1) * BLOCK_BYTES)
        return any(waiter.wanted.intersects(block) for waiter in self._waiters if not waiter.watches)

    async def read(self, wanted: ByteRange, ahead: ByteRange | None) -> bytes | bytearray:
        """Read exactly the bytes of `wanted`, which lies inside the object.

        Raises what the filler reports (VersionGone, AccessDenied, OriginUnavailable, …), and
        ReadTimeout when nothing of this version has come for the read timeout."""
        self.begin_work()
        try:
            if self.is_asleep:
                await self.wake()
            readable = self.has(wanted)
            if not readable:
                await self._verify(wanted)
                readable = self.has(wanted)
            self.backing.counts["hits" if readable else "misses"] += 1
            if readable and ahead:
                self._filler.prefetch(ahead)
            return await self._read(wanted, None if readable else ahead)
        finally:
            self.end_work()

    def read_at_once(self, start: int, into: memoryview) -> bool:
        """Fill `into` with the bytes from `start` on, which lie inside the object, if they can be had
        without waiting: they are cached, and the kernel has them in memory.
        """
        backing = self.backing
        if (
            self.use.is_asleep
            or backing.presence.first_unreadable_of(start, start + len(into)) is not None
            or not backing.read_at_once(start, into)
        ):
            return False
        backing.counts["hits"] += 1
        return True

    def prefetch(self, ahead: ByteRange) -> None:
        """Have the filler bring a range that a reader is expected to want."""
        self._filler.prefetch(ahead)

    async def _verify(self, wanted: ByteRange) -> None:
        """Take over blocks that other daemons have brought, and verify those of an earlier boot, or
        of a file that has changed."""
        self.missing(wanted)
        for index in self.backing.presence.unverified(wanted):
            compared = False
            while not compared:
                times = self.backing.link_times
                try:
                    good = await self._lane.read(partial(self.backing.matches_checksum, index))
                except DiskStalled as error:
                    self._leave_disk(error)
                    return
                compared = times == self.backing.link_times  # else it may have been another file's
            self.backing.apply_verdict(index, good=good)

    async def _read(self, wanted: ByteRange, ahead: ByteRange | None) -> bytearray:
        asked_at, changes = trio.current_time(), 0
        while True:
            needs = self.backing.presence.first_unreadable(wanted)
            if needs is not None and self.backing.presence.unverified(wanted):
                await self._verify(wanted)  # dfdaemon's file has changed, or the reader is a late one
                needs = self.backing.presence.first_unreadable(wanted)
            if needs is None:
                served = self.backing.begin_read(wanted)
            elif 0 <= wanted.start - self._arrived_at <= len(self._arrived) - wanted.size:
                if ahead:  # the filler has to hear of a reader in order
                    self._filler.prefetch(ahead)
                return bytearray(self._arrived[wanted.start - self._arrived_at :][: wanted.size])
            elif (answer := await self._wait_for(Waiter(wanted, needs), ahead, asked_at)) is not None:
                served = answer
            else:
                ahead = None
                continue
            buffer, cold = served
            if not cold:
                return buffer
            try:
                await self._lane.read(partial(self.backing.finish_read, cold))
            except OSError as error:
                changes += isinstance(error, LinkChanged)
                if changes > _MAX_CHANGES:
                    self.backing.drop_link()
                self._leave_disk(error)
                asked_at = trio.current_time()
            else:
                return buffer

    def _leave_disk(self, error: OSError) -> None:
        self.backing.leave_disk(error)
        self._serve_all()

    async def _wait_for(self, waiter: Waiter, ahead: ByteRange | None, asked_at: float) -> Served | None:
        """Ask the filler and wait: returns the result of `BackingFile.begin_read`, or None when it
        must be asked again."""
        self._waiters.add(waiter)
        try:
            if not 0 <= waiter.needs - self._arrived_at < len(self._arrived):
                self._filler.request(waiter.wanted, ahead)
            elif ahead:
                self._filler.prefetch(ahead)
            while not waiter.event.is_set():
                deadline = self._deadline(asked_at)
                if deadline <= trio.current_time():
                    raise ReadTimeout(
                        f"{self.version.key}: nothing has come for {self._read_timeout_s:g} s",
                        hint="see the log for the origin's or proxy's trouble; --read-timeout sets the patience",
                    )
                with trio.move_on_at(deadline):
                    await waiter.event.wait()
        finally:
            self._waiters.discard(waiter)
        error = waiter.error
        if error is None:
            return waiter.served
        # A reader that joined late gets the transfer's last error early; its patience has begun
        # only now.
        passing = isinstance(error, (OriginUnavailable, ProxyUnavailable)) and error.transient
        if not passing or trio.current_time() + _RETRY_S >= self._deadline(asked_at):
            raise error
        await trio.sleep(_RETRY_S)
        return None

    # --- for fillers ---

    @property
    def keeps(self) -> bool:
        """True if bytes that no reader waits for are kept (the disk has room). Else a filler brings
        only what is asked for."""
        return self.backing.keeps

    @property
    def has_readers(self) -> bool:
        """True if a reader waits for bytes of it now."""
        return any(not waiter.watches for waiter in self._waiters)

    def missing(self, wanted: ByteRange) -> list[ByteRange]:
        """Block-aligned runs in (and around) `wanted` that are absent, arriving ones included, for
        other daemons too."""
        known = self.backing.taken_over_blocks
        runs = self.backing.missing(wanted)
        if self.backing.taken_over_blocks != known:
            self._last_progress = trio.current_time()
            self._serve_all()
            self._tell_whole()
        return runs

    async def write(self, offset: int, data: memoryview) -> None:
        """Take `data`, which has arrived at `offset`, and wake the readers that it completes.

        MUST be called contiguously from a block's start on. Bytes that are there already are
        skipped, so a transfer may pass over what another has brought; bytes behind a gap are
        ignored. `data` must stay as it is until this returns.
        """
        handed_on = not self._last_progress and self._hand_on(offset, data)
        try:
            if handed_on:
                self._arrived_at, self._arrived = offset, data
                for _ in range(2):  # the readers' tasks run in the second turn at the latest
                    await trio.lowlevel.checkpoint()
            if self.use.is_asleep:
                await self.wake()
            landings = self.backing.begin_write(offset, data)
            if landings:
                await self._store(landings)
            self.backing.finish_write(landings)
        finally:
            if handed_on:
                self._arrived = _NOTHING
        self._landed(offset, offset + len(data))

    def _landed(self, start: int, stop: int) -> None:
        """Wake the readers that bytes which have just been written complete."""
        self._last_progress = trio.current_time()
        if self._waiters:
            for waiter in [w for w in self._waiters if start <= w.needs < stop]:
                self._serve(waiter)
        self._tell_whole()

    def reserve(self, wanted: ByteRange) -> Reservation | None:
        """Reserve the first blocks of `wanted` for another process to write; None where there is no
        room for them on disk, or they are there. The version must be kept awake meanwhile."""
        reserved = self.backing.reserve(wanted)
        if reserved is not None:
            reserved.on_landed = self._landed
        return reserved

    def _hand_on(self, offset: int, data: memoryview) -> bool:
        """Answer the readers that want nothing but bytes of `data`. True if there are any.

        The first write to a new file may take the disk milliseconds. Readers of small files gain
        less than their tasks cost.
        """
        if self.version.size_bytes <= BLOCK_BYTES:
            return False
        stop = offset + len(data)
        served = [w for w in self._waiters if offset <= w.wanted.start and w.wanted.stop <= stop and not w.watches]
        for waiter in served:
            wanted = data[waiter.wanted.start - offset : waiter.wanted.stop - offset]
            self._answer(waiter, served=(bytearray(wanted), []))
        return bool(served)

    def retract(self, wanted: ByteRange) -> int:
        """Make the blocks of `wanted` absent, for other daemons too, as their bytes are not to be
        believed.

        Returns the start of the first block.
        """
        return self.backing.retract(wanted)

    async def _store(self, landings: list[Landing]) -> None:
        """Write `landings` to disk, here or in a thread, uncancelled. A stall is a failure."""
        store = partial(self.backing.store, landings)
        if self._lane.disk.write_promptly(store):
            return
        if self._writing is None:
            self._writing = trio.CapacityLimiter(1)
        async with self._writing:
            for landing in landings:
                landing.own()
            try:
                with trio.CancelScope(shield=True):
                    await self._lane.write(store)
            except DiskStalled as error:
                for landing in landings:
                    landing.error = error

    def land_linked(self, piece: ByteRange, crcs: list[int]) -> None:
        """Make `piece` of dfdaemon's file readable, and wake the readers that it completes."""
        self.backing.land_linked(piece, crcs)
        self._last_progress = trio.current_time()
        for waiter in [w for w in self._waiters if w.wanted.intersects(piece)]:
            self._serve(waiter)
        self._tell_whole()

    def drop_link(self) -> None:
        """Give up dfdaemon's file, which is wrong: its blocks are missing again."""
        self.backing.drop_link()
        self._serve_all()

    async def record_mismatch(self, *, strike_out: bool) -> None:
        """Count that the bytes on disk are not what the provider recorded; with `strike_out`, have
        them fetched again.
        """
        self.backing.counts["checksum_mismatches"] += 1
        if strike_out:
            await self.backing.strike_out()

    def _serve_all(self) -> None:
        """Serve all waiters, after a change of presence that was no write."""
        for waiter in list(self._waiters):
            self._serve(waiter)

    def _serve(self, waiter: Waiter) -> None:
        """Hand a waiter its bytes if all are readable; else note what it needs next, and ask for
        that if no transfer brings it.
        """
        if waiter.event.is_set():
            return
        needs = self.backing.presence.first_unreadable(waiter.wanted)
        if needs is None:
            self._answer(waiter, served=(bytearray(), []) if waiter.watches else self.backing.begin_read(waiter.wanted))
            return
        if self.backing.presence.unverified(waiter.wanted):
            self._answer(waiter)  # it compares them itself
            return
        known, waiter.needs = waiter.needs, needs
        if waiter.watches:
            return
        moved = needs < known or needs // BLOCK_BYTES > known // BLOCK_BYTES
        if moved and needs // BLOCK_BYTES not in self.backing.presence.arriving:
            # A filler owes a reader the first byte it lacked when it asked; this byte's transfer
            # may have ended meanwhile.
            self._filler.request(waiter.wanted, None)

    def _answer(self, waiter: Waiter, *, served: Served | None = None, error: Exception | None = None) -> None:
        waiter.served, waiter.error = served, error
        self._waiters.discard(waiter)
        waiter.event.set()

    def end_transfer(self, tried: ByteRange, error: Exception | None) -> None:
        """End a transfer of `tried`: readers that still lack bytes inside it get `error`, or ask
        again when it is None.
        """
        for waiter in list(self._waiters):
            start, stop = max(waiter.wanted.start, tried.start), min(waiter.wanted.stop, tried.stop)
            if start < stop and not self.has(ByteRange(start, stop)):
                self._answer(waiter, error=error)

    def fail_waiters(self, error: Exception) -> None:
        """Answer every reader that waits with `error`, at shutdown."""
        self.end_transfer(self.version.whole, error)
