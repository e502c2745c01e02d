"""OPENs that wait until their file is whole: which do, and how long."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from d7yfs.errors import VersionGone
from d7yfs.fs.filesystem import Filesystem
from d7yfs.fs.patience import SOBER_S, Patience
from d7yfs.objects import BLOCK_BYTES
from tests.fs.test_filesystem import Store, inode_of, mounted

BOUND_S = 2.0
LARGE = bytes(3 * BLOCK_BYTES)


def test_only_what_is_expected_in_time_is_waited_for() -> None:
    patience = Patience(1.0)
    assert patience.is_worth_it(1.0, 0.0)
    assert not patience.is_worth_it(1.1, 0.0)
    assert not Patience(0.0).is_worth_it(0.0, 0.0), "it is turned off"
    patience.disappoint(100.0)
    assert not patience.is_worth_it(0.1, 100.0 + SOBER_S - 0.1)
    assert patience.is_worth_it(0.1, 100.0 + SOBER_S)


async def opened(filesystem: Filesystem, name: str = "large") -> int:
    return await filesystem.open(await inode_of(filesystem, name))


async def waited_s(filesystem: Filesystem, handle: int) -> float:
    """For how long `complete` waits."""
    began_at = trio.current_time()
    await filesystem.complete(handle)
    return trio.current_time() - began_at


async def test_it_ends_when_the_file_is_whole_and_compared(tmp_path: Path, autojump_clock: MockClock) -> None:
    store = Store(large=LARGE)
    async with mounted(tmp_path, store, open_wait_s=BOUND_S) as filesystem, trio.open_nursery() as nursery:
        handle = await opened(filesystem)
        cached = filesystem._handles[handle].cached
        assert cached is not None
        assert filesystem.is_soon_whole(handle)

        async def bring() -> None:
            cached.begin_comparison()
            await trio.sleep(0.5)
            await filesystem.read(handle, 0, len(LARGE))
            await trio.sleep(1.0)
            cached.end_comparison()

        nursery.start_soon(bring)
        assert await waited_s(filesystem, handle) == pytest.approx(1.5)
        assert store.filled
        assert filesystem.whole_file(handle) is not None
        assert not filesystem.is_soon_whole(handle), "it is"


async def test_the_bound_is_hard_and_the_next_ones_do_not_wait(tmp_path: Path, autojump_clock: MockClock) -> None:
    store = Store(large=LARGE)
    async with mounted(tmp_path, store, open_wait_s=BOUND_S) as filesystem:
        handle = await opened(filesystem)
        assert await waited_s(filesystem, handle) == pytest.approx(BOUND_S)
        assert not filesystem.is_soon_whole(handle)
        await trio.sleep(SOBER_S + 0.1)
        assert filesystem.is_soon_whole(handle)


async def test_a_failure_is_left_to_the_reader(tmp_path: Path, autojump_clock: MockClock) -> None:
    store = Store(large=LARGE)
    async with mounted(tmp_path, store, open_wait_s=BOUND_S) as filesystem, trio.open_nursery() as nursery:
        handle = await opened(filesystem)
        cached = filesystem._handles[handle].cached
        assert cached is not None

        async def fail() -> None:
            await trio.sleep(0.5)
            cached.fail_waiters(VersionGone("gone"))

        nursery.start_soon(fail)
        assert await waited_s(filesystem, handle) == pytest.approx(0.5)
        assert not filesystem.is_soon_whole(handle)


async def test_files_that_are_not_worth_it(tmp_path: Path, autojump_clock: MockClock) -> None:
    store = Store(large=LARGE, small=bytes(BLOCK_BYTES), empty=b"")
    async with mounted(tmp_path, store, open_wait_s=BOUND_S) as filesystem:
        assert not filesystem.is_soon_whole(await opened(filesystem, "small")), "one request of the kernel"
        assert not filesystem.is_soon_whole(await opened(filesystem, "empty"))
        handle = await opened(filesystem)
        assert filesystem.is_soon_whole(handle)
        store.rate_bytes_s = len(LARGE) / (BOUND_S + 0.1)
        assert not filesystem.is_soon_whole(handle), "it would take too long"
        await filesystem.read(handle, 0, BLOCK_BYTES)
        await wait_all_tasks_blocked()  # a reader has the first bytes before the cache does
        assert filesystem.is_soon_whole(handle), "the rest counts"
        cached = filesystem._handles[handle].cached
        assert cached is not None
        cached.backing._disk_refused = True
        assert not filesystem.is_soon_whole(handle), "the cache cannot keep it"
