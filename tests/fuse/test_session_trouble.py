"""A session with the kernel under trouble: whatever happens below, or comes from above, each request
has one answer, and none holds up another.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import struct
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock, wait_all_tasks_blocked

from d7yfs.errors import AccessDenied, OriginUnavailable
from d7yfs.fuse import passthrough, request_guard, wire
from d7yfs.fuse.notices import Invalidator
from d7yfs.fuse.openers import Openers
from d7yfs.fuse.wire import Opcode, OpenFlag
from d7yfs.host import fuse_device
from d7yfs.tree.tree import ROOT_INODE
from tests.fuse.doubles import DEADLINE_S
from tests.fuse.kernel import (
    AT_ONCE,
    FILE,
    REQUESTS,
    KernelEnd,
    either_way,
    fake,
    name_in,
    open_in,
    opened,
    read_in,
    release_in,
    served,
    session_of,
)
from tests.fuse.test_passthrough import DATA_FD

failing = pytest.mark.parametrize("opcode", [opcode for opcode, (_, reaches) in REQUESTS.items() if reaches])


async def ask(kernel: KernelEnd, opcode: Opcode) -> int:
    """The errno of the answer to a request of this kind."""
    return (await kernel.ask(opcode, 1, REQUESTS[opcode][0])).number


# --- what goes wrong ---


@failing
@either_way
async def test_an_unforeseen_exception_is_eio_for_one_caller(
    opcode: Opcode, known: Sequence[str], caplog: pytest.LogCaptureFixture
) -> None:
    filesystem, reaches = fake(known), REQUESTS[opcode][1]
    session = session_of(filesystem)
    async with served(session) as kernel:
        await opened(kernel)
        filesystem.failures = {name: ZeroDivisionError("oops") for name in (reaches, f"{reaches}_at_once")}
        assert await ask(kernel, opcode) == errno.EIO
        (record,) = [each for each in caplog.records if each.levelno == logging.ERROR]
        assert record.exc_info is not None
        assert record.exc_info[0] is ZeroDivisionError
        assert not session.guard.counters.under_way
        assert sum(session.guard.counters.errors.values()) == 1
        filesystem.failures.clear()
        assert await ask(kernel, opcode) == 0


@failing
@either_way
async def test_an_expected_failure_is_its_errno(
    opcode: Opcode, known: Sequence[str], caplog: pytest.LogCaptureFixture
) -> None:
    filesystem, reaches = fake(known), REQUESTS[opcode][1]
    async with served(session_of(filesystem)) as kernel:
        await opened(kernel)
        filesystem.failures = {name: AccessDenied("no") for name in (reaches, f"{reaches}_at_once")}
        assert await ask(kernel, opcode) == errno.EACCES
    assert [(each.levelname, bool(each.exc_info)) for each in caplog.records] == [("WARNING", False)]


@pytest.mark.parametrize("opcode", [opcode for opcode in REQUESTS if REQUESTS[opcode][0]])
@either_way
async def test_a_request_that_is_cut_off_anywhere_has_an_answer(opcode: Opcode, known: Sequence[str]) -> None:
    filesystem = fake(known)
    async with served(session_of(filesystem)) as kernel:
        await opened(kernel)
        body = REQUESTS[opcode][0]
        for length in range(len(body)):
            answer = await kernel.ask(opcode, 1, body[:length])
            # Of some structures only the beginning is read.
            assert answer.number in (0, errno.EIO, errno.EINVAL, errno.EROFS), length
        assert (await kernel.ask(Opcode.STATFS)).number == 0


async def test_a_request_of_another_length_than_it_says_has_an_answer(caplog: pytest.LogCaptureFixture) -> None:
    async with served(session_of(fake())) as kernel:
        for length in (0, 40, 60, 1 << 20):
            unique = kernel.send(Opcode.LOOKUP, 1, b"file\0", length=length)
            answer = await kernel.answer()
            assert (answer.unique, answer.number) == (unique, errno.EIO)
        assert (await kernel.ask(Opcode.STATFS)).number == 0
    assert len(caplog.records) == 4


async def test_less_than_a_header_is_passed_over(caplog: pytest.LogCaptureFixture) -> None:
    async with served(session_of(fake())) as kernel:
        kernel.device.send(b"short")
        assert (await kernel.ask(Opcode.STATFS)).number == 0
    assert len(caplog.records) == 1


@given(
    requests=st.lists(
        st.tuples(st.integers(0, 60) | st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1), st.binary(max_size=80)),
        max_size=20,
    )
)
def test_whatever_comes_the_session_lives_on(requests: list[tuple[int, int, bytes]]) -> None:
    async def main() -> None:
        filesystem = fake(AT_ONCE)
        async with served(session_of(filesystem)) as kernel:
            await opened(kernel)
            for opcode, nodeid, body in requests:
                if opcode in wire.UNANSWERED:
                    kernel.send(opcode, nodeid, body)
                else:
                    with trio.fail_after(10):
                        await kernel.ask(opcode, nodeid, body)
            assert (await kernel.ask(Opcode.STATFS)).number == 0

    logging.disable(logging.CRITICAL)
    try:
        trio.run(main)
    finally:
        logging.disable(logging.NOTSET)


async def test_an_end_of_the_connection_ends_the_session() -> None:
    """A session that is unmounted gets ENODEV; a directory answers EISDIR, and stands for what nobody expects."""
    session = session_of(fake())
    fd = os.open("/", os.O_RDONLY)
    session._device = fd
    nursery_used = False
    async with trio.open_nursery() as nursery:
        assert not session._serve_one(nursery)
        nursery_used = bool(nursery.child_tasks)
    assert session._ended
    assert not nursery_used
    session.close()
    session.close()
    assert Path(f"/proc/self/fd/{fd}").readlink() == Path(os.devnull), "no other file takes its number"
    os.close(fd)


# --- who waits for whom ---


async def test_what_waits_holds_up_nobody(autojump_clock: MockClock) -> None:
    filesystem = fake(["getattr", "open"])
    filesystem.gates = {"lookup": trio.Event(), "read": trio.Event()}
    async with served(session_of(filesystem)) as kernel:
        lookups = [kernel.send(Opcode.LOOKUP, 1, name_in(FILE)) for _ in range(100)]
        read = kernel.send(Opcode.READ, 2, read_in(1))
        for _ in range(100):
            assert (await kernel.ask(Opcode.GETATTR, 1, bytes(16))).number == 0
        assert kernel.is_silent()
        filesystem.gates["read"].set()
        assert (await kernel.answer()).unique == read
        filesystem.gates["lookup"].set()
        assert sorted([(await kernel.answer()).unique for _ in lookups]) == lookups


async def test_a_request_that_waits_keeps_its_own_body(autojump_clock: MockClock) -> None:
    filesystem = fake(files=["one", "other"])
    filesystem.gates = {"lookup": trio.Event()}
    async with served(session_of(filesystem)) as kernel:
        first, second = (kernel.send(Opcode.LOOKUP, 1, name_in(name)) for name in ("one", "other"))
        await wait_all_tasks_blocked()
        filesystem.gates["lookup"].set()
        answers = [await kernel.answer() for _ in range(2)]
    found = {answer.unique: wire.ENTRY_OUT.unpack(answer.body)[0] for answer in answers}
    assert found == {first: filesystem.node("one").inode, second: filesystem.node("other").inode}


async def test_a_request_that_hangs_is_eio_at_its_deadline(autojump_clock: MockClock) -> None:
    filesystem = fake()
    filesystem.gates = {"lookup": trio.Event(), "read": trio.Event()}
    async with served(session_of(filesystem)) as kernel:
        read = kernel.send(Opcode.READ, 2, read_in(1))
        began_at = trio.current_time()
        assert (await kernel.ask(Opcode.LOOKUP, 1, name_in(FILE))).number == errno.EIO
        assert trio.current_time() - began_at == pytest.approx(DEADLINE_S)
        await trio.sleep(10 * DEADLINE_S)
        assert kernel.is_silent()
        filesystem.gates["read"].set()
        assert (await kernel.answer()).unique == read


async def test_the_end_frees_all_who_wait(autojump_clock: MockClock) -> None:
    filesystem = fake()
    filesystem.gates = {"lookup": trio.Event(), "opendir": trio.Event()}
    session = session_of(filesystem)
    async with served(session) as kernel:
        waiting = [kernel.send(Opcode.LOOKUP, 1, name_in(FILE)), kernel.send(Opcode.OPENDIR, 1, open_in())]
        await wait_all_tasks_blocked()
        began_at = trio.current_time()
        await session.guard.answer_all()
        answers = [await kernel.answer() for _ in waiting]
        assert trio.current_time() == began_at
    assert sorted(each.unique for each in answers) == waiting
    assert {each.number for each in answers} == {errno.EIO}


async def test_one_users_waiting_reads_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_guard, "MAX_WAITING_READS", 3)
    filesystem = fake(["open"])
    filesystem.gates = {"read": trio.Event()}
    async with served(session_of(filesystem)) as kernel:
        mine, other = [
            wire.OPEN_OUT.unpack((await kernel.ask(Opcode.OPEN, 2, open_in(), uid=uid)).body)[0] for uid in (1000, 1001)
        ]
        for _ in range(3):
            kernel.send(Opcode.READ, 2, read_in(mine), uid=1000)
        await wait_all_tasks_blocked()
        assert (await kernel.ask(Opcode.READ, 2, read_in(mine), uid=1000)).number == errno.EAGAIN
        kernel.send(Opcode.READ, 2, read_in(other), uid=1001)
        await wait_all_tasks_blocked()
        filesystem.gates["read"].set()
        assert [(await kernel.answer()).number for _ in range(4)] == [0] * 4


@either_way
async def test_opens_that_fail_take_no_room_from_their_user(known: Sequence[str]) -> None:
    filesystem, session = fake(known), session_of(fake())
    session._responder._filesystem = filesystem  # type: ignore[assignment]
    session._responder._guard.files = openers = Openers(4)
    async with served(session) as kernel:
        for failure in ("open", "open_at_once"):
            filesystem.failures[failure] = OriginUnavailable("away")
        assert {(await kernel.ask(Opcode.OPEN, 2, open_in(), uid=7)).number for _ in range(9)} == {errno.EIO}
        filesystem.failures.clear()
        handles = [await kernel.ask(Opcode.OPEN, 2, open_in(), uid=7) for _ in range(3)]
        assert [each.number for each in handles] == [0, 0, errno.EMFILE]
        for each in handles[:2]:
            await kernel.ask(Opcode.RELEASE, 2, release_in(wire.OPEN_OUT.unpack(each.body)[0]))
    assert openers._total == 0


# --- passthrough ---


@pytest.fixture
def backed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The descriptors that the kernel was given; the backing id of each is its place, from 1 on."""
    given_fds: list[int] = []

    def ioctl(_device: int, request: int, argument: bytearray) -> int:
        if request == fuse_device._BACKING_OPEN:
            given_fds.append(struct.unpack_from("=i", argument)[0])
            return len(given_fds)
        return 0

    monkeypatch.setattr(fcntl, "ioctl", ioctl)
    return given_fds


@either_way
async def test_a_whole_file_is_the_kernels(known: Sequence[str], backed: list[int]) -> None:
    filesystem = fake(known)
    filesystem.whole_fd = DATA_FD
    async with served(session_of(filesystem)) as kernel:
        answer = await kernel.ask(Opcode.OPEN, 2, open_in())
        assert wire.OPEN_OUT.unpack(answer.body)[1:] == (OpenFlag.NOFLUSH | OpenFlag.PASSTHROUGH, 1)
        assert (await kernel.ask(Opcode.READ, 2, read_in(1))).number == 0, "fadvise(2) may still ask"
    assert backed == [DATA_FD]


@either_way
async def test_no_file_is_the_kernels_before_it_was_granted(known: Sequence[str], backed: list[int]) -> None:
    filesystem = fake(known)
    filesystem.whole_fd, filesystem.ungranted = DATA_FD, True
    filesystem.failures["claim"] = AccessDenied("no")
    session = session_of(filesystem)
    async with served(session) as kernel:
        assert (await kernel.ask(Opcode.OPEN, 2, open_in())).number == errno.EACCES
        assert not backed
        assert session._responder._guard.files._total == 0
        filesystem.failures.clear()
        answer = await kernel.ask(Opcode.OPEN, 2, open_in())
        assert wire.OPEN_OUT.unpack(answer.body)[2] == 1


@either_way
async def test_a_further_handle_in_passthrough_mode_is_granted_too(known: Sequence[str], backed: list[int]) -> None:
    """All handles of a node are in one mode: after a change of credentials the next one would read
    what only the former ones were granted."""
    filesystem = fake(known)
    filesystem.whole_fd = DATA_FD
    async with served(session_of(filesystem)) as kernel:
        assert (await kernel.ask(Opcode.OPEN, 2, open_in())).number == 0
        filesystem.ungranted = True
        filesystem.failures["claim"] = AccessDenied("no")
        assert (await kernel.ask(Opcode.OPEN, 2, open_in())).number == errno.EACCES
        filesystem.failures.clear()
        answer = await kernel.ask(Opcode.OPEN, 2, open_in())
        assert wire.OPEN_OUT.unpack(answer.body)[2] == 1
    assert backed == [DATA_FD]


@either_way
async def test_an_open_may_wait_until_its_file_is_whole(
    known: Sequence[str], backed: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other requests are answered meanwhile, and it counts as a waiting read of its user's."""
    filesystem = fake(known)
    filesystem.is_filling, filesystem.gates = True, {"complete": trio.Event()}
    session = session_of(filesystem)
    async with served(session) as kernel:
        unique = kernel.send(Opcode.OPEN, 2, open_in(), uid=7)
        assert (await kernel.ask(Opcode.STATFS)).number == 0
        await wait_all_tasks_blocked()
        assert session.guard.counters.waiting_reads == {7: 1}
        filesystem.whole_fd = DATA_FD
        filesystem.gates["complete"].set()
        answer = await kernel.answer()
        assert (answer.unique, wire.OPEN_OUT.unpack(answer.body)[2]) == (unique, 1)
        assert not session.guard.counters.waiting_reads
        filesystem.whole_fd = None
        monkeypatch.setattr(request_guard, "MAX_WAITING_READS", 0)
        answer = await kernel.ask(Opcode.OPEN, 3, open_in(), uid=7)
        assert wire.OPEN_OUT.unpack(answer.body)[2] == 0, "the user has enough that waits"


# --- notices ---


async def test_notices_come_from_a_thread() -> None:
    """The kernel may hold one up until a request is answered that only the loop can answer."""
    threads: list[threading.Thread] = []
    filesystem = fake(AT_ONCE)

    def tell(directory: int, names: Sequence[bytes]) -> int:
        threads.append(threading.current_thread())
        return session.forget_entries(directory, names)

    invalidator = Invalidator(tell)
    session = session_of(filesystem, invalidator)
    async with served(session) as kernel, trio.open_nursery() as nursery:
        nursery.start_soon(invalidator.run)
        invalidator.changed(ROOT_INODE, ["a", "b"])
        sent = [await notice_of(kernel) for _ in range(3)]
        await trio.to_thread.run_sync(session.forget_pages, 7)
        sent += [await notice_of(kernel) for _ in range(2)]
        nursery.cancel_scope.cancel()
    assert sent == [
        *(wire.inval_entry(ROOT_INODE, b"a"), wire.inval_entry(ROOT_INODE, b"b")),
        *(wire.inval_inode(ROOT_INODE, attributes_only=True), wire.inval_inode(7)),
        wire.inval_inode(7 | passthrough.SECOND_NODE),
    ]
    assert len(threads) == 1
    assert threads[0] is not threading.main_thread()


async def notice_of(kernel: KernelEnd) -> bytes:
    await trio.lowlevel.wait_readable(kernel.device)
    return kernel.device.recv(4096)


async def test_notices_wait_while_the_kernel_holds_the_lock_for_a_request(autojump_clock: MockClock) -> None:
    filesystem = fake()
    filesystem.gates = {"lookup": trio.Event()}
    told: list[int] = []

    def tell(directory: int, names: Sequence[bytes]) -> int:
        told.append(directory)
        return 0

    invalidator = Invalidator(tell)
    async with served(session_of(filesystem, invalidator)) as kernel, trio.open_nursery() as nursery:
        nursery.start_soon(invalidator.run)
        kernel.send(Opcode.LOOKUP, 1, name_in(FILE))
        await wait_all_tasks_blocked()
        invalidator.changed(ROOT_INODE, [FILE])
        await trio.sleep(DEADLINE_S / 2)
        assert not told
        filesystem.gates["lookup"].set()
        assert (await kernel.answer()).number == 0
        await invalidator.told([ROOT_INODE])
        assert told == [ROOT_INODE]
        nursery.cancel_scope.cancel()
