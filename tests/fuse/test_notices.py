"""The queue of notices to the kernel: bounded, each told once, none while the kernel waits for
us."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from d7yfs.fuse.notices import Invalidator


class Kernel:
    """A kernel that takes one notice at a time; the gate holds them up as its lock does."""

    def __init__(self) -> None:
        self.told: list[tuple[int, list[bytes]]] = []
        self.entered = threading.Event()
        self.gate = threading.Event()
        self.gate.set()
        self.at_once = 0

    def tell(self, directory: int, names: Sequence[bytes]) -> int:
        self.at_once += 1
        assert self.at_once == 1, "one thread"
        self.entered.set()
        self.gate.wait()
        self.told.append((directory, list(names)))
        self.at_once -= 1
        return sum(1 for name in names if name != b"unknown")


@asynccontextmanager
async def running(kernel: Kernel, **options: int) -> AsyncIterator[Invalidator]:
    invalidator = Invalidator(kernel.tell, **options)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(invalidator.run)
        try:
            yield invalidator
        finally:
            nursery.cancel_scope.cancel()


async def test_what_came_twice_is_told_once() -> None:
    kernel = Kernel()
    async with running(kernel) as invalidator:
        invalidator.changed(7, ["a", "unknown"])
        invalidator.changed(8, ["ä\udcff"])
        invalidator.changed(7, ["a", "b"])
        await invalidator.told([7, 8])
        assert kernel.told == [(7, [b"a", b"unknown", b"b"]), (8, [b"\xc3\xa4\xff"])]
        assert (invalidator.counters.notices, invalidator.counters.known) == (4, 3)
        await invalidator.told([7, 9])


async def test_names_to_ask_for_again_are_told_apart_and_to_forget_one_counts_more() -> None:
    kernel, expired = Kernel(), Kernel()
    async with running(kernel, max_names=4) as invalidator:
        invalidator.tell_expired = expired.tell
        with invalidator.holding(7):
            invalidator.expired(7, ["a", "b"])
            invalidator.changed(7, ["b", "c"])
            invalidator.expired(7, ["b", "c", "d", "e"])
        await invalidator.told([7])
        assert (expired.told, kernel.told) == ([(7, [b"a", b"d"])], [(7, [b"b", b"c"])])
        assert invalidator.counters.overflow == 1


async def test_attributes_alone_are_worth_a_notice() -> None:
    kernel = Kernel()
    async with running(kernel) as invalidator:
        invalidator.changed(7, [])
        await invalidator.told([7])
        assert kernel.told == [(7, [])]


async def test_a_notice_waits_here_while_a_request_in_its_directory_has_no_answer() -> None:
    kernel = Kernel()
    async with running(kernel) as invalidator:
        with invalidator.holding(7):
            with invalidator.holding(7):
                invalidator.changed(7, ["a"])
                invalidator.changed(8, ["b"])
                await invalidator.told([8])
            await wait_all_tasks_blocked()
            assert kernel.told == [(8, [b"b"])], "others are not held up, and one answer of two is not enough"
        await invalidator.told([7])
        assert kernel.told[1:] == [(7, [b"a"])]


async def test_requests_without_a_pause_hold_a_notice_up_for_a_second_and_one_that_hangs_for_as_long_as_it_does(
    autojump_clock: MockClock,
) -> None:
    kernel = Kernel()
    async with running(kernel) as invalidator, trio.open_nursery() as requests:

        async def request() -> None:
            with invalidator.holding(7):
                await trio.sleep(0.1)

        async def traffic() -> None:
            while True:
                requests.start_soon(request)
                await trio.sleep(0.05)

        requests.start_soon(traffic)
        await trio.sleep(0.2)
        invalidator.changed(7, ["a"])
        began_at = trio.current_time()
        await invalidator.told([7])
        assert trio.current_time() - began_at >= 1
        with invalidator.holding(7):
            await trio.sleep(1)
            invalidator.changed(7, ["b"])
            with trio.move_on_after(60):
                await invalidator.told([7])
            assert kernel.told == [(7, [b"a"])]
        await invalidator.told([7])
        requests.cancel_scope.cancel()


async def test_the_event_loop_never_waits_and_told_does() -> None:
    kernel = Kernel()
    kernel.gate.clear()
    async with running(kernel) as invalidator, trio.open_nursery() as nursery:
        invalidator.changed(7, ["a"])
        await trio.to_thread.run_sync(kernel.entered.wait)
        invalidator.changed(7, ["a"])
        done = trio.Event()

        async def wait() -> None:
            await invalidator.told([7])
            done.set()

        nursery.start_soon(wait)
        await wait_all_tasks_blocked()
        assert not done.is_set()
        kernel.gate.set()
        await done.wait()
        assert kernel.told == [(7, [b"a"])] * 2, "it changed again while the kernel was being told"


async def test_it_ends_though_the_kernel_holds_a_notice_up() -> None:
    kernel = Kernel()
    kernel.gate.clear()
    try:
        async with running(kernel) as invalidator:
            invalidator.changed(7, ["a"])
            await trio.to_thread.run_sync(kernel.entered.wait)
    finally:
        kernel.gate.set()


async def test_what_finds_no_room_is_counted() -> None:
    kernel = Kernel()
    async with running(kernel, max_names=3) as invalidator:
        with invalidator.holding(7):
            invalidator.changed(7, ["a", "b"])
            invalidator.changed(8, ["c", "d", "e"])
            invalidator.changed(7, ["a"])
            assert invalidator.counters.overflow == 2
            await invalidator.told([8])
            invalidator.changed(8, ["d"])
        await invalidator.told([7, 8])
        assert sorted(kernel.told) == [(7, [b"a", b"b"]), (8, [b"c"]), (8, [b"d"])]
        assert invalidator.counters.overflow == 2


async def test_a_bug_in_telling_is_no_end_of_the_mount() -> None:
    kernel = Kernel()

    def tell(directory: int, names: Sequence[bytes]) -> int:
        if directory == 7:
            raise ValueError("a bug")
        return kernel.tell(directory, names)

    invalidator = Invalidator(tell)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(invalidator.run)
        invalidator.changed(7, ["a"])
        invalidator.changed(8, ["a"])
        await invalidator.told([7, 8])
        assert kernel.told == [(8, [b"a"])]
        nursery.cancel_scope.cancel()


async def test_thousands_of_names_are_told_in_parts() -> None:
    kernel = Kernel()
    names = [f"name{number}" for number in range(2000)]
    async with running(kernel) as invalidator:
        invalidator.changed(7, names)
        await invalidator.told([7])
        assert [name for _, part in kernel.told for name in part] == [name.encode() for name in names]
        assert len(kernel.told) > 1


async def test_it_says_what_still_waits() -> None:
    kernel = Kernel()
    kernel.gate.clear()
    async with running(kernel) as invalidator:
        invalidator.changed(7, ["a"])
        await trio.to_thread.run_sync(kernel.entered.wait)
        invalidator.changed(8, ["a"])
        assert sorted(invalidator.waiting()) == [7, 8]
        kernel.gate.set()
        await invalidator.told(invalidator.waiting())
        assert invalidator.waiting() == []


async def test_once_stopped_it_tells_no_more() -> None:
    kernel = Kernel()
    kernel.gate.clear()
    async with running(kernel) as invalidator, trio.open_nursery() as nursery:
        invalidator.changed(7, ["a"])
        await trio.to_thread.run_sync(kernel.entered.wait)
        invalidator.changed(8, ["a"])
        invalidator.stop()
        nursery.start_soon(invalidator.quiet)
        await wait_all_tasks_blocked()
        kernel.gate.set()
    assert kernel.told == [(7, [b"a"])]
