"""A disk that stalls: who waits for it, for how long, and what becomes of what comes back late."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from d7yfs.cache.cache import Cache
from d7yfs.cache.disk import _THREADS, FORGIVEN, FRESH_S, QUICK_S, REST_S, SLOW_S, Disk, DiskStalled, Lane, Pace
from d7yfs.objects import ByteRange
from tests.cache.doubles import MIB, ORIGIN, ManualFiller, bytes_of, data_of, directory, version

FAILSAFE_S = 30.0
PATIENCE = 1.0
"""Of real time: far more than a thread takes that does nothing."""


class Hung:
    """A call that hangs until it is let go."""

    def __init__(self) -> None:
        self.go_on = threading.Event()
        self.steps: list[str] = []

    def __call__(self) -> str:
        assert self.go_on.wait(FAILSAFE_S)
        self.steps.append("called")
        return "late"


@pytest.fixture
def hung() -> Iterator[Hung]:
    made = Hung()
    yield made
    made.go_on.set()


async def has_answered(disk: Disk) -> None:
    """Return once nothing hangs any more."""
    with trio.fail_after(FAILSAFE_S):
        while disk._under_way:
            await trio.lowlevel.checkpoint()


async def test_what_hangs_is_given_up_and_its_result_is_handed_on(hung: Hung) -> None:
    disk, late = Disk(patience_s=PATIENCE), list[str]()
    with pytest.raises(DiskStalled):
        await disk.run(hung, late=late.append)
    assert disk.stalled_s >= PATIENCE
    assert await disk.run(lambda: "a frozen disk opens what it has") == "a frozen disk opens what it has"
    assert late == []
    hung.go_on.set()
    await has_answered(disk)
    assert late == ["late"]
    assert disk.stalled_s == 0


async def test_who_leaves_does_not_wait_for_the_disk(hung: Hung, nursery: trio.Nursery) -> None:
    disk, late = Disk(), list[str]()
    async with trio.open_nursery() as readers:
        readers.start_soon(lambda: disk.run(hung, late=late.append))
        await wait_all_tasks_blocked()
        readers.cancel_scope.cancel()
    hung.go_on.set()
    await has_answered(disk)
    assert late == ["late"]


async def test_so_many_threads_hang_and_no_more(hung: Hung) -> None:
    disk = Disk(patience_s=PATIENCE)

    async def give_up() -> None:
        with pytest.raises(DiskStalled):
            await disk.run(hung)

    async with trio.open_nursery() as callers:
        for _ in range(3 * _THREADS):
            callers.start_soon(give_up)
    assert len(disk._under_way) == _THREADS
    with pytest.raises(DiskStalled):
        await Lane(disk).write(lambda: None)
    assert await Lane(disk).read(lambda: "read") == "read"
    hung.go_on.set()
    await has_answered(disk)
    assert hung.steps == ["called"] * _THREADS


async def test_descriptors_are_closed_after_the_last_call_on_them(hung: Hung) -> None:
    disk = Disk(patience_s=PATIENCE)
    lane = Lane(disk)
    with pytest.raises(DiskStalled):
        await lane.read(hung)
    lane.close(lambda: hung.steps.append("closed"))
    await disk.wait_until_quiet()
    assert hung.steps == []
    hung.go_on.set()
    await has_answered(disk)
    await disk.wait_until_quiet()
    assert hung.steps == ["called", "closed"]


async def test_what_nobody_waits_for_is_done_in_order_and_counts_as_a_stall(hung: Hung) -> None:
    now_s = 1000.0
    disk = Disk(clock=lambda: now_s)
    disk.run_behind(hung)
    disk.run_behind(lambda: hung.steps.append("next"))
    disk.run_behind(lambda: 1 / 0)
    disk.run_behind(lambda: hung.steps.append("last"))
    now_s += disk.patience_s
    assert disk.stalled_s == disk.patience_s
    hung.go_on.set()
    await disk.wait_until_quiet()
    assert hung.steps == ["called", "next", "last"]
    assert disk.stalled_s == 0


async def test_what_is_done_soon_never_overtakes_what_was_given_before(hung: Hung) -> None:
    """An entry of the map and its taking back, say."""
    now_s = 1000.0
    disk = Disk(clock=lambda: now_s)
    disk.run_behind(hung)
    disk.time_write(lambda: None)  # the disk has just taken a write
    disk.run_soon(lambda: hung.steps.append("taken back"))
    assert hung.steps == []
    hung.go_on.set()
    await disk.wait_until_quiet()
    assert hung.steps == ["called", "taken back"]


async def test_who_waits_for_quiet_hears_of_it_although_more_was_given_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The thread has done all there was, and before the trio thread knows, there is more."""
    threads: list[tuple[Callable[[], None], Callable[[None], None]]] = []
    monkeypatch.setattr("d7yfs.cache.disk._in_thread", lambda work, tell: threads.append((work, tell)))
    disk = Disk()
    steps: list[str] = []

    async def wait() -> None:
        await disk.wait_until_quiet()
        steps.append("quiet")

    async with trio.open_nursery() as nursery:
        disk.run_behind(lambda: steps.append("one"))
        nursery.start_soon(wait)
        await wait_all_tasks_blocked()
        work, tell = threads.pop()
        work()
        disk.run_behind(lambda: steps.append("more"))
        tell(None)
        work, tell = threads.pop()
        work()
        await wait_all_tasks_blocked()
        tell(None)
    assert steps == ["one", "more", "quiet"]


async def test_only_a_write_of_a_moment_ago_is_a_sign_that_the_next_will_not_wait(hung: Hung) -> None:
    now_s = 1000.0
    disk = Disk(patience_s=PATIENCE, clock=lambda: now_s)
    assert not disk.is_prompt
    await disk.run(lambda: None)
    await Lane(disk).read(lambda: None)
    assert not disk.is_prompt, "a frozen disk can be read"
    await Lane(disk).write(lambda: None)
    assert disk.is_prompt
    now_s += 2 * FRESH_S
    assert not disk.is_prompt
    with pytest.raises(DiskStalled):
        await disk.run(hung)
    now_s += 2 * FRESH_S
    disk.time_write(lambda: None)
    assert not disk.is_prompt, "another call hangs"
    hung.go_on.set()
    await has_answered(disk)
    assert disk.is_prompt


async def test_a_disk_that_has_fallen_behind_is_not_prompt() -> None:
    now_s = 1000.0

    def sluggish() -> None:
        nonlocal now_s
        now_s += 2 * SLOW_S

    disk = Disk(clock=lambda: now_s)
    disk.time_write(sluggish)
    assert not disk.is_prompt


async def test_a_write_that_comes_back_late_writes_what_had_arrived(tmp_path: Path, hung: Hung) -> None:
    file, lent = version(MIB, "file"), bytearray(data_of(version(MIB, "file")))
    disk = Disk(patience_s=PATIENCE)
    cache = Cache(directory(tmp_path), memory_buffer_bytes=16 * MIB, read_timeout_s=60, disk=disk)
    cached = await cache.open(ORIGIN, file, ManualFiller)
    store = cached.backing.store
    cached.backing.store = lambda landings: (hung(), store(landings))[1]  # type: ignore[method-assign]
    await disk.wait_until_quiet()
    with trio.fail_after(FAILSAFE_S):
        while disk.is_prompt:
            await trio.lowlevel.checkpoint()
    await cached.write(0, memoryview(lent))
    lent[:] = bytes(MIB)  # what was lent is used for something else
    wanted = ByteRange(0, MIB)
    assert await cached.read(wanted, None) == bytes_of(file, wanted), "from memory"
    assert cache.statistics().disk_stalled_s > 0
    hung.go_on.set()
    await has_answered(disk)
    (data_path,) = tmp_path.rglob("*.data")
    assert data_path.read_bytes() == data_of(file)
    assert await cache.cached_bytes(ORIGIN, [file]) == [MIB]
    cached.drop()
    await disk.wait_until_quiet()
    assert await cache.cached_bytes(ORIGIN, [file]) == [0], "nothing vouches for what came late"
    again = await cache.open(ORIGIN, file, ManualFiller)
    await again.write(0, data_of(file))
    again.drop()
    await disk.wait_until_quiet()
    assert await cache.cached_bytes(ORIGIN, [file]) == [MIB]


async def test_an_open_that_hangs_is_uncached_and_its_files_are_closed_when_they_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hung: Hung
) -> None:
    file, disk, within = version(MIB, "file"), Disk(patience_s=PATIENCE), directory(tmp_path)
    cache = Cache(within, memory_buffer_bytes=16 * MIB, read_timeout_s=60, disk=disk)
    opened = within.open
    monkeypatch.setattr(within, "open", lambda *arguments, **tries: (hung(), opened(*arguments, **tries))[1])
    async with trio.open_nursery() as openers:
        for _ in range(3):
            openers.start_soon(cache.open, ORIGIN, file, ManualFiller)
    statistics = cache.statistics()
    assert (statistics.open_versions, statistics.uncached_opens) == (1, 1), "all three have one"
    hung.go_on.set()
    await has_answered(disk)
    await disk.wait_until_quiet()  # the autouse fixture looks for descriptors
    (cached,) = cache.opened()
    for _ in range(3):
        cached.drop()
    kept = await cache.open(ORIGIN, file, ManualFiller)
    assert kept.keeps
    kept.drop()
    await disk.wait_until_quiet()


MOMENT_S = 0.001


class Writes:
    """Writes that take as long as they are told to."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.pace = Pace()

    def take(self, takes_s: float) -> bool:
        """Whether the disk is slow after a write."""
        self.now_s += takes_s
        self.pace.record(takes_s, self.now_s)
        return self.is_slow

    @property
    def is_slow(self) -> bool:
        return self.pace.is_slow(self.now_s)


def test_a_quick_disk_is_trusted() -> None:
    writes = Writes()
    assert not any(writes.take(QUICK_S * 0.9) for _ in range(1000))


def test_a_busy_machine_is_no_slow_disk() -> None:
    writes = Writes()
    for _ in range(100):
        assert not writes.take(SLOW_S / 2)
        writes.now_s += SLOW_S / 2 / FORGIVEN
    assert not writes.take(SLOW_S / 3)


def test_many_short_waits_are_a_slow_disk() -> None:
    writes, count = Writes(), 1
    while not writes.take(5 * QUICK_S):
        count += 1
    assert SLOW_S / (5 * QUICK_S) <= count <= 2 * SLOW_S / (5 * QUICK_S)


def test_a_slow_disk_is_not_trusted_for_a_while() -> None:
    writes = Writes()
    assert writes.take(SLOW_S + MOMENT_S)
    assert writes.take(0.0), "that the disk was quick once says little"
    writes.now_s += REST_S - MOMENT_S
    assert writes.is_slow
    writes.now_s += 2 * MOMENT_S
    assert not writes.is_slow


def test_another_slow_write_prolongs_it() -> None:
    writes = Writes()
    for _ in range(3):
        assert writes.take(SLOW_S + MOMENT_S)
        writes.now_s += REST_S - MOMENT_S
