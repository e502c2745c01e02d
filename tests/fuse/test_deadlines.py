"""The longest wait of a request: a read as long as the file system lets it, any other until the
deadline."""

from __future__ import annotations

import errno
from collections.abc import Sequence

import pytest
import trio
from pyfuse3._pyfuse3 import FileHandleT, FileNameT
from trio.testing import MockClock, wait_all_tasks_blocked

from d7yfs.fuse import request_guard
from d7yfs.fuse.adapter import Adapter
from d7yfs.fuse.notices import Invalidator
from d7yfs.tree.tree import ROOT_INODE
from tests.fuse.doubles import DEADLINE_S, FakeFilesystem
from tests.fuse.reply import Reply
from tests.fuse.requests import CALLER, FILE, OPENED, REQUESTS, ROOT, errno_of, lookup, opened

waiting = pytest.mark.parametrize(
    "operation", [name for name, each in REQUESTS.items() if each.waits and name != "read"]
)


async def hanging(*operations: str, invalidator: Invalidator | None = None) -> tuple[FakeFilesystem, Adapter]:
    """A file system in which these requests wait, and an adapter with its top directory open."""
    filesystem = FakeFilesystem([FILE])
    adapter = await opened(filesystem, invalidator)
    for operation in operations:
        filesystem.gates[REQUESTS[operation].reaches] = trio.Event()
    return filesystem, adapter


@waiting
async def test_a_request_that_hangs_is_eio_at_its_deadline(
    operation: str, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    filesystem, adapter = await hanging(operation)
    started = trio.current_time()
    with trio.fail_after(10 * DEADLINE_S):
        assert await errno_of(REQUESTS[operation].call(adapter)) == errno.EIO
    assert trio.current_time() - started == pytest.approx(DEADLINE_S)
    assert [record.getMessage() for record in caplog.records] == [f"{operation}: no answer within 20 s"]
    assert adapter.guard.counters.errors[operation] == 1
    assert not adapter.guard.counters.under_way
    assert filesystem.tree.statistics().remembered == 1, "no more than the root"

    filesystem.gates.clear()
    await REQUESTS[operation].call(adapter)
    await trio.sleep(10 * DEADLINE_S)
    assert adapter.guard.counters.errors[operation] == 1, "the next one has a deadline of its own"


@waiting
async def test_a_request_that_is_slow_has_its_answer(operation: str, autojump_clock: MockClock) -> None:
    filesystem, adapter = await hanging(operation)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(REQUESTS[operation].call, adapter)
        await trio.sleep(DEADLINE_S - 0.01)
        filesystem.gates[REQUESTS[operation].reaches].set()
    assert not any(adapter.guard.counters.errors.values())


async def test_a_read_has_no_deadline_here(autojump_clock: MockClock) -> None:
    filesystem, adapter = await hanging("read")
    read = []

    async def reading() -> None:
        read.append(await adapter.read(OPENED, 0, 3))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(reading)
        await trio.sleep(100 * DEADLINE_S)
        assert not read
        filesystem.gates["read"].set()
    assert read == [bytes(3)]


@pytest.mark.parametrize("late", ["cancelled", "past its deadline"])
@pytest.mark.parametrize("operation", ["lookup", "readdir"])
async def test_what_the_file_system_has_counted_is_told(operation: str, late: str, mock_clock: MockClock) -> None:
    """Otherwise the kernel would never forget it."""
    filesystem, adapter = await hanging()
    node = filesystem.node(FILE)
    with trio.CancelScope() as scope, Reply() as reply:
        filesystem.answering = scope.cancel if late == "cancelled" else lambda: mock_clock.jump(DEADLINE_S + 1)
        if operation == "lookup":
            told = [(await adapter.lookup(ROOT, FileNameT(FILE.encode()), CALLER)).st_ino]
        else:
            await adapter.readdir(OPENED, 0, reply.token)
            told = [entry.node_id for entry in reply.entries if entry.name == FILE]
    assert told == [node.inode]
    assert node.lookups == 1


# --- the end ---


async def test_the_end_frees_all_who_wait_but_readers(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    operations = [name for name, each in REQUESTS.items() if each.waits]
    filesystem, adapter = await hanging(*operations)
    freed: list[str] = []

    async def ask(operation: str) -> None:
        assert await errno_of(REQUESTS[operation].call(adapter)) == errno.EIO
        freed.append(operation)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(REQUESTS["read"].call, adapter)
        for operation in operations:
            if operation != "read":
                nursery.start_soon(ask, operation)
        await wait_all_tasks_blocked()
        started = trio.current_time()
        await adapter.guard.answer_all()
        assert trio.current_time() == started
        assert {*freed, "read"} == set(operations)
        assert len(adapter.guard.counters.under_way) == 1
        filesystem.gates["read"].set()
    assert not caplog.records, "nobody has done anything wrong"


async def test_a_request_after_the_end_is_freed_without_a_word(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    _, adapter = await hanging("lookup")
    await adapter.guard.answer_all()
    assert await errno_of(lookup(adapter)) == errno.EIO
    assert not caplog.records


# --- notices to the kernel ---


@pytest.mark.parametrize("operation", ["lookup", "readdir"])
@pytest.mark.parametrize("fails", [False, True])
async def test_notices_wait_while_the_kernel_holds_the_lock_for_a_request(operation: str, fails: bool) -> None:
    other = 4711
    told: list[tuple[int, list[bytes]]] = []

    def tell(directory: int, names: Sequence[bytes]) -> int:
        told.append((directory, list(names)))
        return len(names)

    invalidator = Invalidator(tell)
    filesystem, adapter = await hanging(operation, invalidator=invalidator)
    method = REQUESTS[operation].reaches
    if fails:
        filesystem.failures[method] = ZeroDivisionError("oops")

    async def ask() -> None:
        if fails:
            assert await errno_of(REQUESTS[operation].call(adapter)) == errno.EIO
        else:
            await REQUESTS[operation].call(adapter)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask)
        await wait_all_tasks_blocked()
        invalidator.changed(ROOT_INODE, ["new"])
        invalidator.changed(other, ["newer"])
        nursery.start_soon(invalidator.run)
        await invalidator.told([other])
        assert told == [(other, [b"newer"])]
        filesystem.gates[method].set()
        await invalidator.told([ROOT_INODE])
        assert told[1:] == [(ROOT_INODE, [b"new"])]
        nursery.cancel_scope.cancel()


async def test_one_users_waiting_reads_are_bounded_and_another_reads_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_guard, "MAX_WAITING_READS", 10)
    filesystem, adapter = await hanging("read")
    mine, other = FileHandleT(91), FileHandleT(92)
    adapter.guard.files.opened(mine, 1000)
    adapter.guard.files.opened(other, 1001)
    read: list[bytes] = []

    async def reading(handle: FileHandleT) -> None:
        read.append(await adapter.read(handle, 0, 3))

    async with trio.open_nursery() as nursery:
        for _ in range(10):
            nursery.start_soon(reading, mine)
        await wait_all_tasks_blocked()
        assert await errno_of(adapter.read(mine, 0, 3)) == errno.EAGAIN
        nursery.start_soon(reading, other)
        await wait_all_tasks_blocked()
        assert adapter.guard.counters.waiting_reads == {1000: 10, 1001: 1}
        filesystem.gates["read"].set()
    assert len(read) == 11
    assert await adapter.read(mine, 0, 3) == bytes(3), "none waits any more"
