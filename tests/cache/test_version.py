"""Readers of one open version: their waits, their wake-ups, and the failures that they are told."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from d7yfs.cache.backing import BackingFile
from d7yfs.cache.cache import Cache
from d7yfs.cache.directory import CacheDirectory
from d7yfs.cache.disk import Disk, Landing, _Call
from d7yfs.cache.pair import Block
from d7yfs.cache.room import _IDLE_PAUSE_S
from d7yfs.cache.version import CachedVersion
from d7yfs.errors import AccessDenied, BadReply, CacheFull, OriginUnavailable, ReadTimeout, Stopped, VersionGone
from d7yfs.objects import BLOCK_BYTES, ByteRange, ObjectVersion
from tests.cache.conftest import MountTmpfs
from tests.cache.doubles import (
    MIB,
    ORIGIN,
    ManualFiller,
    PromptDisk,
    at_once,
    backing,
    bytes_of,
    data_of,
    directory,
    fill,
    until,
    version,
)

T = TypeVar("T")

FILE = version(3 * MIB + 12_345)
READ_TIMEOUT_S = 60.0


class Opened:
    """One version, opened in a cache of its own, and its filler."""

    def __init__(
        self,
        path: Path,
        of: ObjectVersion = FILE,
        *,
        limit_bytes: int = 1 << 40,
        memory: int = 64 * MIB,
        disk: Disk | None = None,
    ) -> None:
        self.directory = directory(path, size_limit_bytes=limit_bytes)
        self.cache = Cache(
            self.directory,
            memory_buffer_bytes=memory,
            read_timeout_s=READ_TIMEOUT_S,
            disk=disk or PromptDisk(),
        )
        self.fillers: list[ManualFiller] = []
        self.version = of
        self.cached = self.open(of)

    def open(self, of: ObjectVersion) -> CachedVersion:
        return at_once(self.cache.open(ORIGIN, of, self._new_filler))

    def _new_filler(self, target: CachedVersion) -> ManualFiller:
        self.fillers.append(ManualFiller(target))
        return self.fillers[-1]

    @property
    def filler(self) -> ManualFiller:
        return self.fillers[0]

    def __enter__(self) -> Opened:
        return self

    def __exit__(self, *_: object) -> None:
        self.cached.drop()
        assert self.cache.statistics().open_versions == 0
        assert self.cache.statistics().memory_bytes == 0


class Reader:
    """A read in a task of its own."""

    def __init__(self, cached: CachedVersion, start: int, stop: int, ahead: ByteRange | None = None) -> None:
        self.wanted = ByteRange(start, stop)
        self.data: bytes | bytearray | None = None
        self.error: Exception | None = None
        self.scope = trio.CancelScope()
        self._done = trio.Event()
        self._cached = cached
        self._ahead = ahead

    async def run(self) -> None:
        with self.scope:
            try:
                self.data = await self._cached.read(self.wanted, self._ahead)
            except Exception as error:
                self.error = error
            self._done.set()

    async def right(self) -> bool:
        """Whether the read gives the right bytes, in the end (it may take a thread to fetch them
        from the disk).
        """
        with trio.fail_after(30):
            await self._done.wait()
        assert self.error is None
        return self._right

    @property
    def _right(self) -> bool:
        return self.data == bytes_of(self._cached.version, self.wanted)

    @property
    def waits(self) -> bool:
        return self.data is None and self.error is None


async def start(nursery: trio.Nursery, *readers: Reader) -> None:
    for reader in readers:
        nursery.start_soon(reader.run)
    await settle()


settle = trio.testing.wait_all_tasks_blocked


# --- hits and misses ---


async def test_a_hit_asks_the_filler_only_for_what_comes_next(tmp_path: Path) -> None:
    with Opened(tmp_path) as opened:
        await opened.filler.bring(0, MIB)
        ahead = ByteRange(MIB, 2 * MIB)
        assert await opened.cached.read(ByteRange(10, MIB), ahead) == bytes_of(FILE, ByteRange(10, MIB))
        assert await opened.cached.read(ByteRange(10, 20), None) == bytes_of(FILE, ByteRange(10, 20))
        assert opened.filler.requests == []
        assert opened.filler.prefetches == [ahead]
        assert (opened.cached.backing.counts["hits"], opened.cached.backing.counts["misses"]) == (2, 0)


async def test_all_who_asked_hear_once_that_it_is_whole(tmp_path: Path) -> None:
    with Opened(tmp_path) as opened:
        heard: list[str] = []
        for name in ("verifier", "model"):
            opened.cached.call_when_whole(lambda name=name: heard.append(name))  # type: ignore[misc]
        await opened.filler.bring(0, 3 * MIB)
        assert (opened.cached.is_whole, heard) == (False, [])
        await opened.filler.bring(3 * MIB, FILE.size_bytes)
        assert (opened.cached.is_whole, heard) == (True, ["verifier", "model"])
        await opened.filler.bring(0, MIB)
        assert len(heard) == 2


async def test_an_empty_read_asks_nobody(tmp_path: Path) -> None:
    with Opened(tmp_path) as opened:
        assert await opened.cached.read(ByteRange(7, 7), None) == b""
        assert opened.filler.requests == []


async def test_a_reader_is_woken_by_its_own_bytes_not_by_the_end_of_the_block(
    tmp_path: Path, nursery: trio.Nursery
) -> None:
    with Opened(tmp_path) as opened:
        early, late = Reader(opened.cached, 100, 1000), Reader(opened.cached, 900, 2000)
        await start(nursery, early, late)
        await opened.filler.bring(0, 999)
        await settle()
        assert early.waits
        await opened.filler.bring(999, 1000)
        assert await early.right()
        assert late.waits
        await opened.filler.bring(1000, 2500)
        assert await late.right()


async def test_eight_readers_are_served_by_one_transfer(tmp_path: Path, nursery: trio.Nursery) -> None:
    with Opened(tmp_path) as opened:
        readers = [Reader(opened.cached, number * 1000, MIB + number) for number in range(8)]
        await start(nursery, *readers)
        await opened.filler.bring(0, MIB + 8)
        for each in readers:
            assert await each.right()
        assert opened.cached.backing.counts["disk_bytes_written"] == MIB + 8
        assert (opened.cached.backing.counts["hits"], opened.cached.backing.counts["misses"]) == (0, 8)


async def test_one_version_is_open_once_however_many_open_it(tmp_path: Path) -> None:
    with Opened(tmp_path) as opened:
        again = opened.open(ObjectVersion(FILE.key, FILE.size_bytes, FILE.validator, 99, version_id="pinned"))
        assert again is opened.cached
        assert len(opened.fillers) == 1
        again.drop()


async def test_each_repository_has_a_version_of_its_own_and_they_share_the_disk(tmp_path: Path) -> None:
    with Opened(tmp_path) as opened:
        other = at_once(opened.cache.open(ORIGIN, FILE, ManualFiller))
        assert other is not opened.cached
        assert opened.cache.opened() == [opened.cached, other]
        async with trio.open_nursery() as readers:
            refused = Reader(other, 5, 1000)
            await start(readers, refused)
            other.end_transfer(FILE.whole, AccessDenied("not for these credentials"))
            await trio.testing.wait_all_tasks_blocked()
            assert isinstance(refused.error, AccessDenied)
            reader = Reader(opened.cached, 5, 1000)
            await start(readers, reader)
            await opened.filler.bring(0, MIB)
            assert await reader.right()
        assert await other.read(reader.wanted, None) == reader.data, "taken over from the pair"
        assert opened.cache.open_bytes(ORIGIN, FILE) == MIB
        assert [cached_bytes for _, _, cached_bytes in opened.cache.in_use()] == [MIB]
        other.drop()


async def test_reads_cross_disk_and_memory(tmp_path: Path, nursery: trio.Nursery) -> None:
    with Opened(tmp_path, limit_bytes=MIB + 12_288) as opened:
        reader = Reader(opened.cached, 5, 3 * MIB)
        await start(nursery, reader)
        await opened.filler.bring(0, 3 * MIB)
        assert await reader.right()
        assert list(opened.cached.backing.presence.blocks[:3]) == [Block.DISK, Block.MEMORY, Block.MEMORY]
        assert await opened.cached.read(reader.wanted, None) == reader.data


async def test_no_room_for_a_block_means_that_nothing_ahead_is_kept(tmp_path: Path) -> None:
    with Opened(tmp_path, limit_bytes=MIB + 12_288) as opened:
        assert opened.filler.target.keeps
        await opened.filler.bring(0, MIB)
        assert not opened.filler.target.keeps


# --- endings ---


async def test_a_failure_is_told_to_those_who_lack_bytes_there_and_to_nobody_else(
    tmp_path: Path, nursery: trio.Nursery
) -> None:
    with Opened(tmp_path) as opened:
        inside, across = Reader(opened.cached, 10, 20), Reader(opened.cached, MIB - 10, MIB + 10)
        behind, served = Reader(opened.cached, MIB, MIB + 10), Reader(opened.cached, 0, 5)
        await start(nursery, inside, across, behind, served)
        await opened.filler.bring(0, 5)
        gone = VersionGone("s3://models/weights.bin was replaced")
        opened.filler.target.end_transfer(ByteRange(0, MIB), gone)
        await settle()
        assert (inside.error, across.error) == (gone, gone)
        assert behind.waits
        assert await served.right()
        await opened.filler.bring(MIB, MIB + 10)
        assert await behind.right()


async def test_a_reader_across_two_transfers_is_told_when_the_second_fails_first(
    tmp_path: Path, nursery: trio.Nursery
) -> None:
    with Opened(tmp_path) as opened:
        reader = Reader(opened.cached, MIB - 10, MIB + 10)
        await start(nursery, reader)
        opened.filler.target.end_transfer(ByteRange(MIB, 2 * MIB), BadReply("no such range"))
        await opened.filler.bring(0, MIB)
        await settle()
        assert isinstance(reader.error, BadReply)


async def test_an_ending_without_error_makes_readers_ask_again(tmp_path: Path, nursery: trio.Nursery) -> None:
    with Opened(tmp_path) as opened:
        ahead = ByteRange(MIB, 2 * MIB)
        reader = Reader(opened.cached, 10, 20, ahead)
        await start(nursery, reader)
        opened.filler.target.end_transfer(FILE.whole, None)
        await settle()
        assert opened.filler.requests == [(reader.wanted, ahead), (reader.wanted, None)]
        await opened.filler.bring(0, 20)
        assert await reader.right()


async def test_a_filler_is_asked_again_for_what_it_did_not_promise(tmp_path: Path, nursery: trio.Nursery) -> None:
    with Opened(tmp_path) as opened:
        await opened.filler.bring(MIB, 2 * MIB)
        reader = Reader(opened.cached, 10, 2 * MIB + 10)
        await start(nursery, reader)
        await opened.filler.bring(0, MIB)
        assert len(opened.filler.requests) == 2, "the block behind the one that was there"
        await opened.filler.bring(2 * MIB, 2 * MIB + 10)
        assert await reader.right()


async def test_a_contiguous_transfer_does_not_make_readers_ask_again(tmp_path: Path, nursery: trio.Nursery) -> None:
    with Opened(tmp_path) as opened:
        reader = Reader(opened.cached, 10, FILE.size_bytes)
        await start(nursery, reader)
        for offset in range(0, FILE.size_bytes, 300_000):
            await opened.filler.bring(offset, min(offset + 300_000, FILE.size_bytes))
        assert await reader.right()
        assert len(opened.filler.requests) == 1


async def test_a_cancelled_reader_harms_nobody(tmp_path: Path, nursery: trio.Nursery) -> None:
    with Opened(tmp_path) as opened:
        given_up, patient = Reader(opened.cached, 0, 1000), Reader(opened.cached, 0, 1000)
        await start(nursery, given_up, patient)
        given_up.scope.cancel()
        await settle()
        assert patient.waits
        await opened.filler.bring(0, 1000)
        await settle()
        assert given_up.data is None
        given_up = Reader(opened.cached, MIB, MIB + 5)
        await start(nursery, given_up)
        assert opened.cached.is_wanted(1)
        given_up.scope.cancel()
        await settle()
        assert not opened.cached.is_wanted(1), "nobody waits for it any more"
        assert await patient.right()


async def test_a_reader_whose_handle_is_closed_still_gets_its_bytes(tmp_path: Path, nursery: trio.Nursery) -> None:
    opened = Opened(tmp_path)
    reader = Reader(opened.cached, 0, 1000)
    await start(nursery, reader)
    opened.cached.drop()
    assert opened.cache.statistics().open_versions == 1
    await opened.filler.bring(0, 1000)
    assert await reader.right()
    assert opened.cache.statistics().open_versions == 0


async def test_shutdown_answers_everybody(tmp_path: Path, nursery: trio.Nursery) -> None:
    with Opened(tmp_path) as opened:
        readers = [Reader(opened.cached, number * MIB, number * MIB + 5) for number in range(3)]
        await start(nursery, *readers)
        opened.cache.fail_waiters(Stopped("the mount is being taken down"))
        await settle()
        assert all(isinstance(reader.error, Stopped) for reader in readers)


# --- patience ---


async def test_a_late_reader_does_not_inherit_an_early_ones_failure(
    autojump_clock: MockClock, tmp_path: Path, nursery: trio.Nursery
) -> None:
    with Opened(tmp_path) as opened:
        early = Reader(opened.cached, 0, 10)
        await start(nursery, early)
        await trio.sleep(59.8)
        late = Reader(opened.cached, 10, 20)
        await start(nursery, late)
        opened.filler.target.end_transfer(ByteRange(0, MIB), OriginUnavailable("503"))
        await trio.sleep(1)
        assert isinstance(early.error, OriginUnavailable)
        assert opened.filler.requests[-1] == (late.wanted, None)
        await opened.filler.bring(0, 20)
        assert await late.right()


async def test_the_read_timeout_counts_from_the_last_progress(
    autojump_clock: MockClock, tmp_path: Path, nursery: trio.Nursery
) -> None:
    with Opened(tmp_path) as opened:
        started = trio.current_time()
        reader = Reader(opened.cached, 0, 1000)
        nursery.start_soon(reader.run)
        for step in range(5):
            await trio.sleep(READ_TIMEOUT_S * 0.9)
            await opened.filler.bring(step, step + 1)
        assert reader.waits
        await trio.sleep(READ_TIMEOUT_S * 0.99)
        assert reader.waits
        await trio.sleep(READ_TIMEOUT_S * 0.02)
        assert isinstance(reader.error, ReadTimeout)
        assert trio.current_time() - started == pytest.approx(READ_TIMEOUT_S * 5.51)


async def test_asking_again_does_not_renew_the_patience(
    autojump_clock: MockClock, tmp_path: Path, nursery: trio.Nursery
) -> None:
    with Opened(tmp_path) as opened:
        reader = Reader(opened.cached, 0, 1000)
        nursery.start_soon(reader.run)
        for _ in range(3):
            await trio.sleep(READ_TIMEOUT_S * 0.4)
            opened.filler.target.end_transfer(FILE.whole, None)
        await settle()
        assert isinstance(reader.error, ReadTimeout)


# --- other daemons, other boots, failing disks ---


async def test_bytes_that_another_daemon_brings_serve_those_who_wait(tmp_path: Path, nursery: trio.Nursery) -> None:
    with Opened(tmp_path) as opened, backing(FILE, directory(tmp_path), boot_tag=opened.cache._boot_tag) as theirs:
        waiting = Reader(opened.cached, 0, 1000)
        await start(nursery, waiting)
        fill(theirs, 0, 1)
        hit = Reader(opened.cached, MIB, MIB + 5)
        await start(nursery, hit)
        assert await hit.right()
        assert waiting.waits
        assert opened.filler.target.missing(FILE.whole) == [ByteRange(2 * MIB, FILE.size_bytes)]
        assert await waiting.right()


async def test_blocks_of_an_earlier_boot_are_verified_and_corrupt_ones_brought_again(
    tmp_path: Path, nursery: trio.Nursery
) -> None:
    with backing(FILE, directory(tmp_path), boot_tag=1) as file:
        fill(file)
    (data_path,) = tmp_path.rglob("*.data")
    with data_path.open("r+b") as damaged:
        damaged.seek(MIB)
        damaged.write(b"\0" * 8)
    with Opened(tmp_path) as opened:
        ahead = ByteRange(2 * MIB, FILE.size_bytes)
        assert await opened.cached.read(ByteRange(0, MIB), ahead) == bytes_of(FILE, ByteRange(0, MIB))
        assert opened.filler.requests == []
        assert opened.filler.prefetches == [ahead]
        readers = [Reader(opened.cached, MIB - 5, MIB + 5) for _ in range(2)]
        for reader in readers:
            nursery.start_soon(reader.run)
        await opened.filler.asked(1)
        await opened.filler.bring(MIB, 2 * MIB)
        for each in readers:
            assert await each.right()
        assert opened.cache.statistics().corrupt_blocks == 1


async def test_a_disk_that_fails_under_a_reader_sends_all_to_the_filler(tmp_path: Path, nursery: trio.Nursery) -> None:
    with Opened(tmp_path) as opened:
        await opened.filler.bring(0, 2 * MIB)
        waiting = Reader(opened.cached, MIB, 2 * MIB + 10)
        await start(nursery, waiting)
        (data_path,) = tmp_path.rglob("*.data")
        os.truncate(data_path, 0)
        reader = Reader(opened.cached, 0, 1000)
        nursery.start_soon(reader.run)
        await opened.filler.asked(3)
        assert [wanted for wanted, _ in opened.filler.requests] == [waiting.wanted, waiting.wanted, reader.wanted]
        await opened.filler.bring(0, 2 * MIB + 10)
        assert await reader.right()
        assert await waiting.right()


# --- a slow disk ---

FAILSAFE_S = 30


class StuckDisk:
    """Writes to one version, in threads, wait for `go_on`; what was begun and what was stored is
    noted, as offsets.
    """

    def __init__(self, backing: BackingFile, monkeypatch: pytest.MonkeyPatch) -> None:
        self.steps: list[tuple[str, int]] = []
        self._begun = trio.Event()
        self._go_on = threading.Event()
        self._store = backing.store
        self._token = trio.lowlevel.current_trio_token()
        monkeypatch.setattr(backing, "store", self._stuck)

    def _stuck(self, landings: list[Landing]) -> None:
        offset = landings[0].start
        self.steps.append(("begun", offset))
        self._token.run_sync_soon(self._begun.set)
        assert self._go_on.wait(FAILSAFE_S), "somebody waits for the disk who should not"
        self._store(landings)
        self.steps.append(("stored", offset))

    async def begun(self) -> None:
        """Wait for the first write."""
        with trio.fail_after(FAILSAFE_S):
            await self._begun.wait()

    def go_on(self) -> None:
        self._go_on.set()


class SlowDisk(PromptDisk):
    """Prompt until it is slow: then calls are made in threads."""

    slow = False

    @property
    def is_prompt(self) -> bool:  # type: ignore[override]
        return not self.slow

    async def _run(self, call: Callable[[], T], made: _Call[T]) -> T:
        if self.slow:
            return await Disk._run(self, call, made)
        return await super()._run(call, made)


async def test_a_disk_that_is_slow_with_one_version_does_not_hold_up_another(
    tmp_path: Path, nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = SlowDisk()
    with Opened(tmp_path, disk=slow) as opened:
        other = opened.open(version(2 * MIB, "other"))
        await opened.filler.bring(MIB, 2 * MIB)
        slow.slow = True
        await opened.fillers[1].bring(0, MIB)
        disk = StuckDisk(opened.cached.backing, monkeypatch)
        held_up = Reader(opened.cached, 0, 1000)
        await start(nursery, held_up)
        nursery.start_soon(opened.filler.bring, 0, MIB)
        await disk.begun()
        try:
            hit, miss = Reader(other, 0, 1000), Reader(other, MIB, 2 * MIB)
            await start(nursery, hit, miss)
            await opened.fillers[1].bring(MIB, 2 * MIB)
            assert await hit.right()
            assert await miss.right()
            assert held_up.waits, "his bytes are not there yet"
            assert disk.steps == [("begun", 0)]
        finally:
            disk.go_on()
        assert await held_up.right()
        other.drop()


async def test_the_first_bytes_reach_their_reader_before_the_disk_has_them(
    tmp_path: Path, nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = SlowDisk()
    with Opened(tmp_path, disk=slow) as opened:
        slow.slow = True
        disk = StuckDisk(opened.cached.backing, monkeypatch)
        answered, held_up = Reader(opened.cached, 5, 1000), Reader(opened.cached, 5, MIB + 1)
        await start(nursery, answered, held_up)
        nursery.start_soon(opened.filler.bring, 0, MIB)
        await disk.begun()
        try:
            assert await answered.right()
            assert disk.steps == [("begun", 0)]
            assert held_up.waits, "its last byte has not come"
        finally:
            disk.go_on()
        await opened.filler.bring(MIB, 2 * MIB)
        assert await held_up.right()


async def test_writes_of_one_version_wait_for_each_other(
    tmp_path: Path, nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = SlowDisk()
    with Opened(tmp_path, disk=slow) as opened:
        slow.slow = True
        disk = StuckDisk(opened.cached.backing, monkeypatch)
        reader = Reader(opened.cached, 5, 2 * MIB)
        await start(nursery, reader)
        nursery.start_soon(opened.filler.bring, 0, MIB)
        await disk.begun()
        nursery.start_soon(opened.filler.bring, MIB, 2 * MIB)
        await settle()
        assert disk.steps == [("begun", 0)]
        disk.go_on()
        assert await reader.right()
        assert disk.steps == [("begun", 0), ("stored", 0), ("begun", MIB), ("stored", MIB)]


async def test_a_transfer_that_is_cancelled_lands_what_is_being_written_and_no_more(
    tmp_path: Path, nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = SlowDisk()
    with Opened(tmp_path, disk=slow) as opened:
        slow.slow = True
        disk = StuckDisk(opened.cached.backing, monkeypatch)
        async with trio.open_nursery() as transfers:
            transfers.start_soon(opened.filler.bring, 0, MIB)
            await disk.begun()
            transfers.start_soon(opened.filler.bring, MIB, 2 * MIB)
            await settle()
            transfers.cancel_scope.cancel()
            disk.go_on()
        assert disk.steps == [("begun", 0), ("stored", 0)]
        assert opened.filler.target.missing(FILE.whole) == [ByteRange(MIB, FILE.size_bytes)]
        assert await opened.cached.read(ByteRange(0, MIB), None) == bytes_of(FILE, ByteRange(0, MIB))
        reader = Reader(opened.cached, MIB, 2 * MIB)
        await start(nursery, reader)
        await opened.filler.bring(MIB, 2 * MIB)
        assert await reader.right()


# --- room ---


async def test_a_full_disk_is_no_reason_to_fail(mount_tmpfs: MountTmpfs, nursery: trio.Nursery) -> None:
    with Opened(mount_tmpfs(2 * MIB)) as opened:
        reader = Reader(opened.cached, 0, FILE.size_bytes)
        await start(nursery, reader)
        await opened.filler.bring(0, FILE.size_bytes)
        assert await reader.right()
        assert not opened.filler.target.keeps


async def test_a_version_that_cannot_have_files_is_read_from_memory(mount_tmpfs: MountTmpfs) -> None:
    path = mount_tmpfs(4 * 4096)
    huge = version(FILE.size_bytes, "k" * 5000)
    with Opened(path, huge) as opened:
        await opened.filler.bring(0, FILE.size_bytes)
        assert await opened.cached.read(huge.whole, None) == bytes_of(huge, huge.whole)
        assert opened.cache.statistics().uncached_opens == 1
        assert not opened.filler.target.keeps


async def test_a_file_larger_than_the_cache_is_read_right_in_bounded_memory(
    tmp_path: Path, nursery: trio.Nursery
) -> None:
    large, memory = version(12 * MIB), 2 * MIB
    with Opened(tmp_path, large, limit_bytes=4 * MIB, memory=memory) as opened:
        nursery.start_soon(opened.cache.room.run)
        for _ in range(2):
            for piece in large.whole.split(300_000):
                reader = Reader(opened.cached, piece.start, piece.stop)
                await start(nursery, reader)
                for run in opened.filler.target.missing(piece) if reader.waits else ():
                    await opened.filler.bring(run.start, run.stop)
                assert await reader.right()
                assert opened.cache.statistics().memory_bytes <= memory
        assert opened.cache.statistics().used_bytes <= 4 * MIB
        assert opened.cached.backing.counts["disk_bytes_written"] == 3 * MIB
        nursery.cancel_scope.cancel()


async def test_room_is_made_ahead_of_need_and_open_versions_stay(
    autojump_clock: MockClock, tmp_path: Path, nursery: trio.Nursery
) -> None:
    with Opened(tmp_path, version(MIB, "open"), limit_bytes=20 * MIB) as opened:
        nursery.start_soon(opened.cache.room.run)
        await opened.filler.bring(0, MIB)
        for number in range(40):
            other = opened.open(version(MIB, f"file {number}"))
            await opened.fillers[-1].bring(0, MIB)
            other.drop()
            assert opened.directory.cached_bytes(ORIGIN, other.version) == MIB, f"no room for file {number}"
            await until(lambda: opened.directory.has_room(BLOCK_BYTES + 8192))
        statistics = opened.cache.statistics()
        assert statistics.evicted_files >= 20
        assert statistics.disk_bytes_written == 41 * MIB
        assert await opened.cache.cached_bytes(ORIGIN, [version(MIB, "file 39")]) == [MIB]
        assert opened.directory.cached_bytes(ORIGIN, version(MIB, "open")) == MIB
        nursery.cancel_scope.cancel()


async def test_room_is_made_when_the_disk_not_the_limit_is_short(
    autojump_clock: MockClock, mount_tmpfs: MountTmpfs, nursery: trio.Nursery
) -> None:
    cache_directory = CacheDirectory(mount_tmpfs(16 * MIB), size_limit_bytes=20 * MIB, min_free_bytes=8 * MIB)
    cache_directory.prepare()
    cache = Cache(cache_directory, memory_buffer_bytes=0, read_timeout_s=READ_TIMEOUT_S, disk=PromptDisk())
    nursery.start_soon(cache.room.run)
    for number in range(20):
        file = version(MIB, f"file {number}")
        cached = await cache.open(ORIGIN, file, ManualFiller)
        await cached.write(0, data_of(file))
        cached.drop()
        assert await cache.cached_bytes(ORIGIN, [file]) == [MIB], f"no room for file {number}"
        await until(lambda: cache_directory.has_room(BLOCK_BYTES + 8192))
    nursery.cancel_scope.cancel()


async def test_an_evictor_that_frees_nothing_rests(
    autojump_clock: MockClock, tmp_path: Path, nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    passes = 0
    real = CacheDirectory.evict

    def evict(self: CacheDirectory, target_bytes: int) -> int:
        nonlocal passes
        passes += 1
        return real(self, target_bytes)

    monkeypatch.setattr(CacheDirectory, "evict", evict)
    with Opened(tmp_path, version(30 * MIB), limit_bytes=2 * MIB, memory=MIB) as opened:
        nursery.start_soon(opened.cache.room.run)
        for block in range(30):
            await opened.filler.bring(block * MIB, (block + 1) * MIB)
            await trio.sleep(1)
        assert passes <= 2 * (30 / _IDLE_PAUSE_S + 2)
        nursery.cancel_scope.cancel()


async def test_statistics_survive_the_versions_they_count(tmp_path: Path) -> None:
    opened = Opened(tmp_path)
    await opened.filler.bring(0, MIB)
    await opened.cached.read(ByteRange(0, 5), None)
    before = opened.cache.statistics()
    opened.cached.drop()
    after = opened.cache.statistics()
    assert (before.open_versions, after.open_versions) == (1, 0)
    for each in (before, after):
        assert (each.hits, each.misses, each.disk_bytes_written, each.uncached_opens) == (1, 0, MIB, 0)
        assert (each.directory, each.limit_bytes, each.memory_limit_bytes) == (str(tmp_path), 1 << 40, 64 * MIB)
        assert each.used_bytes == MIB + 8192


# --- filling whole ---


class Whole:
    """A fill of the whole version in a task of its own."""

    def __init__(self, cached: CachedVersion) -> None:
        self.error: Exception | None = None
        self.done = trio.Event()
        self._cached = cached

    async def run(self) -> None:
        try:
            await self._cached.fill_whole()
        except Exception as error:
            self.error = error
        self.done.set()


async def test_filling_whole_ends_when_all_is_there(
    tmp_path: Path, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    with Opened(tmp_path) as opened:
        whole = Whole(opened.cached)
        nursery.start_soon(whole.run)
        await trio.testing.wait_all_tasks_blocked()
        assert (opened.filler.fills, opened.filler.requests) == (1, []), "nobody is in a hurry"
        await opened.filler.bring(0, 2 * MIB)
        await trio.sleep(3600)
        assert not whole.done.is_set()
        assert opened.filler.requests == []
        assert opened.filler.fills > 1, "a filler that has stopped without a word is asked again"
        await opened.filler.bring(2 * MIB, FILE.size_bytes)
        with trio.fail_after(1):
            await whole.done.wait()
        assert whole.error is None
        fills = opened.filler.fills
        await opened.cached.fill_whole()
        assert opened.filler.fills == fills, "there is nothing to bring"


async def test_who_gives_up_filling_whole_stops_the_filler_unless_others_want_it_too(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    with Opened(tmp_path) as opened:
        with trio.move_on_after(1):
            async with trio.open_nursery() as nursery:
                for _ in range(2):
                    nursery.start_soon(opened.cached.fill_whole)
        assert opened.filler.stopped_fills == 1, "the last one"
        opened.cached.fill()
        with trio.move_on_after(1):
            await opened.cached.fill_whole()
        assert opened.filler.stopped_fills == 1, "a reader of it wants it whole"


async def test_filling_whole_hears_of_what_fails(
    tmp_path: Path, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    with Opened(tmp_path) as opened:
        whole = Whole(opened.cached)
        nursery.start_soon(whole.run)
        await trio.testing.wait_all_tasks_blocked()
        opened.filler.target.end_transfer(ByteRange(MIB, 2 * MIB), VersionGone("replaced"))
        await whole.done.wait()
        assert isinstance(whole.error, VersionGone)


async def test_a_filler_that_gives_up_without_a_reason_is_asked_again_for_the_read_timeout(
    tmp_path: Path, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    with Opened(tmp_path) as opened:
        whole = Whole(opened.cached)
        nursery.start_soon(whole.run)
        began = trio.current_time()
        while not whole.done.is_set():
            opened.filler.target.end_transfer(FILE.whole, None)
            await trio.sleep(0.1)
        assert isinstance(whole.error, ReadTimeout)
        assert READ_TIMEOUT_S <= trio.current_time() - began < READ_TIMEOUT_S + 3
        assert 10 < opened.filler.fills < 200


async def test_filling_whole_stops_when_there_is_no_room(tmp_path: Path, autojump_clock: MockClock) -> None:
    with Opened(tmp_path, limit_bytes=2 * MIB) as opened:
        async with trio.open_nursery() as nursery:
            whole = Whole(opened.cached)
            nursery.start_soon(whole.run)
            await trio.testing.wait_all_tasks_blocked()
            await opened.filler.bring(0, MIB)
            await opened.filler.bring(MIB, 2 * MIB)
        assert isinstance(whole.error, CacheFull)
