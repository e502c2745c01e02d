"""Where a write to the disk is made: here while the disk is quick, in a thread for a while after it was not."""

from __future__ import annotations

import threading

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from d7yfs.cache.pace import FORGIVEN, PATIENCE_S, QUICK_S, REST_S, Pace

MOMENT_S = 0.001
FAILSAFE_S = 30


class Disk:
    """Takes as long as it is told, by a clock of its own, and knows which thread each write came from."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.pace = Pace(clock=lambda: self.now_s)
        self._limiter = trio.CapacityLimiter(1)
        self._threads: list[int] = []

    async def written_here(self, *, takes_s: float = 0.0) -> bool:
        """Whether a write is made in the caller's thread."""

        def store() -> None:
            self._threads.append(threading.get_ident())
            self.now_s += takes_s

        await self.pace.write(store, self._limiter)
        return self._threads[-1] == threading.get_ident()


@pytest.fixture
async def disk() -> Disk:
    return Disk()


async def become_slow(disk: Disk) -> None:
    """The write that uses up the patience is still made here: who could have known?"""
    assert await disk.written_here(takes_s=PATIENCE_S + MOMENT_S)
    assert disk.pace.is_slow


async def test_a_quick_disk_is_written_to_here(disk: Disk) -> None:
    for _ in range(1000):
        assert await disk.written_here(takes_s=QUICK_S * 0.9)


async def test_a_busy_machine_is_no_slow_disk(disk: Disk) -> None:
    for _ in range(100):
        assert await disk.written_here(takes_s=PATIENCE_S / 2)
        disk.now_s += PATIENCE_S / 2 / FORGIVEN
    for _ in range(2):
        assert await disk.written_here(takes_s=PATIENCE_S / 3)


async def test_many_short_waits_are_a_slow_disk(disk: Disk) -> None:
    writes = 0
    while await disk.written_here(takes_s=5 * QUICK_S):
        writes += 1
    assert PATIENCE_S / (5 * QUICK_S) <= writes <= 2 * PATIENCE_S / (5 * QUICK_S)


async def test_a_slow_disk_is_left_to_threads_for_a_while(disk: Disk) -> None:
    await become_slow(disk)
    assert not await disk.written_here()
    disk.now_s += REST_S - MOMENT_S
    assert not await disk.written_here(), "that the disk was quick once says little"
    disk.now_s += 2 * MOMENT_S
    assert await disk.written_here()


async def test_a_slow_write_in_a_thread_prolongs_it(disk: Disk) -> None:
    await become_slow(disk)
    for _ in range(3):
        disk.now_s += REST_S - MOMENT_S
        assert not await disk.written_here(takes_s=PATIENCE_S + MOMENT_S)
    disk.now_s += REST_S + MOMENT_S
    assert await disk.written_here()


async def test_a_write_that_hangs_is_no_recovery(disk: Disk, nursery: trio.Nursery) -> None:
    await become_slow(disk)
    began, go_on = trio.Event(), threading.Event()

    def hang() -> None:
        trio.from_thread.run_sync(began.set)
        assert go_on.wait(FAILSAFE_S)

    nursery.start_soon(disk.pace.write, hang, trio.CapacityLimiter(1))
    try:
        await began.wait()
        disk.now_s += 100 * REST_S
        assert not await disk.written_here()
    finally:
        go_on.set()


async def test_what_a_write_raises_reaches_the_caller(disk: Disk) -> None:
    def store() -> None:
        raise ZeroDivisionError

    for takes_s in (PATIENCE_S + MOMENT_S, 0.0):
        with pytest.raises(ZeroDivisionError):
            await disk.pace.write(store, trio.CapacityLimiter(1))
        await disk.written_here(takes_s=takes_s)
    assert disk.pace.is_slow


async def test_a_write_under_way_is_not_cancelled(disk: Disk, nursery: trio.Nursery) -> None:
    await become_slow(disk)
    began, ended, go_on = trio.Event(), trio.Event(), threading.Event()
    scope = trio.CancelScope()
    steps = []

    def store() -> None:
        trio.from_thread.run_sync(began.set)
        assert go_on.wait(FAILSAFE_S)
        steps.append("stored")

    async def write() -> None:
        with scope:
            await disk.pace.write(store, trio.CapacityLimiter(1))
            steps.append("told")
            await trio.lowlevel.checkpoint()
            steps.append("gone on")
        ended.set()

    try:
        nursery.start_soon(write)
        await began.wait()
        scope.cancel()
        await wait_all_tasks_blocked()
        assert steps == []
    finally:
        go_on.set()
    with trio.fail_after(FAILSAFE_S):
        await ended.wait()
    assert steps == ["stored", "told"]
    assert scope.cancelled_caught
