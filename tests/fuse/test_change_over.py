"""A file that becomes whole while the daemon serves it, as the kernel is told: another node id at the
next lookup, the same inode, and a notice to look it up.

`test_passthrough.py` has the choice of the node, `mount/test_passthrough.py` the real kernel.
"""

from __future__ import annotations

import fcntl
import itertools
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest
import trio
from trio.testing import MockClock

from d7yfs.fuse import responder, wire
from d7yfs.fuse.notices import Invalidator
from d7yfs.fuse.passthrough import SECOND_NODE
from d7yfs.fuse.wire import Opcode
from d7yfs.tree.tree import ROOT_INODE
from tests.fuse.doubles import FakeFilesystem
from tests.fuse.kernel import (
    AT_ONCE,
    FILE,
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
    xattr_in,
)
from tests.fuse.test_passthrough import DATA_FD
from tests.fuse.test_session_trouble import notice_of

_TICK_S = 1.5
"""Longer than the interval at which the kernel is told."""
EXPIRED = wire.inval_entry(ROOT_INODE, FILE.encode(), expire_only=True)


@pytest.fixture(autouse=True)
def _large_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each file is worth a second node, and each backing id is a new one."""
    numbers = itertools.count(1)
    monkeypatch.setattr(responder, "_ONE_READ_BYTES", 0)
    monkeypatch.setattr(fcntl, "ioctl", lambda *_: next(numbers))


@asynccontextmanager
async def serving(filesystem: FakeFilesystem) -> AsyncIterator[KernelEnd]:
    """A session that gives notices."""
    invalidator = Invalidator(lambda _directory, _names: 0)
    async with served(session_of(filesystem, invalidator)) as kernel, trio.open_nursery() as nursery:
        nursery.start_soon(invalidator.run)
        yield kernel
        nursery.cancel_scope.cancel()


async def looked_up(kernel: KernelEnd) -> tuple[int, int]:
    """Node id and inode number of the file."""
    found = wire.ENTRY_OUT.unpack((await kernel.ask(Opcode.LOOKUP, ROOT_INODE, name_in(FILE))).body)
    return found[0], found[6]


async def opens(kernel: KernelEnd, nodeid: int) -> tuple[int, int]:
    """Handle and backing id of a new handle."""
    handle, _, backing_id = wire.OPEN_OUT.unpack((await kernel.ask(Opcode.OPEN, nodeid, open_in())).body)
    return handle, backing_id


@either_way
async def test_it_has_another_node_and_the_same_inode(known: Sequence[str]) -> None:
    filesystem = fake(known)
    inode = filesystem.node(FILE).inode
    async with served(session_of(filesystem)) as kernel:
        await opened(kernel)
        assert await looked_up(kernel) == (inode, inode)
        old, backing_id = await opens(kernel, inode)
        assert backing_id == 0
        filesystem.whole_fd = DATA_FD
        second = inode | SECOND_NODE
        assert await looked_up(kernel) == (second, inode)
        listing = (await kernel.ask(Opcode.READDIRPLUS, ROOT_INODE, read_in(1, 2, 4096))).body
        assert wire.ENTRY_OUT.unpack_from(listing)[0] == second
        new, backing_id = await opens(kernel, second)
        assert backing_id == 1
        assert (await opens(kernel, inode))[1] == 0, "/proc/self/fd leads to the old one"
        for nodeid in (inode, second):
            attributes = wire.ATTR_OUT.unpack((await kernel.ask(Opcode.GETATTR, nodeid)).body)
            assert attributes[3] == inode
            assert (await kernel.ask(Opcode.GETXATTR, nodeid, xattr_in("user.d7yfs.etag"))).body
            assert (await kernel.ask(Opcode.LISTXATTR, nodeid, xattr_in())).body
        for nodeid, handle in ((inode, old), (second, new)):
            assert (await kernel.ask(Opcode.READ, nodeid, read_in(handle))).number == 0
            assert (await kernel.ask(Opcode.RELEASE, nodeid, release_in(handle))).number == 0
        for nodeid, count in ((second, 2), (inode, 1)):
            kernel.send(Opcode.FORGET, nodeid, wire.FH.pack(count))
        assert (await kernel.ask(Opcode.GETATTR, inode)).number == 0
        assert filesystem.node(FILE).lookups == 0
    assert filesystem.tree.unmatched_forgets_total == 0


async def test_the_kernel_is_told_once_to_look_it_up(autojump_clock: MockClock) -> None:
    filesystem = fake(AT_ONCE)
    inode = filesystem.node(FILE).inode
    async with serving(filesystem) as kernel:
        await looked_up(kernel)
        await opens(kernel, inode)
        filesystem.node(FILE).linked = False  # as in a worker that follows, before a listing
        filesystem.on_disk = True
        filesystem.became_whole(inode)
        await trio.sleep(_TICK_S)
        assert kernel.is_silent(), "it may yet prove wrong"
        filesystem.whole_fd = DATA_FD
        assert await notice_of(kernel) == EXPIRED
        await trio.sleep(_TICK_S)
        assert kernel.is_silent()


async def test_a_file_that_was_whole_when_it_was_opened_and_not_yet_compared(autojump_clock: MockClock) -> None:
    filesystem = fake(AT_ONCE)
    filesystem.on_disk = True
    async with serving(filesystem) as kernel:
        await opens(kernel, filesystem.node(FILE).inode)
        await trio.sleep(_TICK_S)
        assert kernel.is_silent()
        filesystem.whole_fd = DATA_FD
        assert await notice_of(kernel) == EXPIRED


@pytest.mark.parametrize("why", ["it is closed", "the kernel reads it already", "it is small"])
async def test_no_word_on_a_file_that_gains_nothing(
    why: str, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    filesystem = fake(AT_ONCE)
    inode = filesystem.node(FILE).inode
    async with serving(filesystem) as kernel:
        await looked_up(kernel)
        handle, _ = await opens(kernel, inode)
        filesystem.whole_fd, filesystem.on_disk = DATA_FD, True
        filesystem.became_whole(inode)
        if why == "it is closed":
            await kernel.ask(Opcode.RELEASE, inode, release_in(handle))
        elif why == "the kernel reads it already":
            await opens(kernel, inode | SECOND_NODE)
        else:
            monkeypatch.setattr(responder, "_ONE_READ_BYTES", len(FILE))
            assert await looked_up(kernel) == (inode, inode)
        await trio.sleep(_TICK_S)
        if why == "it is closed":
            assert await notice_of(kernel) == wire.inval_inode(inode), "its pages are of no use"
        assert kernel.is_silent()


async def test_a_bug_is_no_end_of_the_mount(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    filesystem = fake(AT_ONCE)
    async with serving(filesystem) as kernel:
        await opens(kernel, filesystem.node(FILE).inode)
        monkeypatch.setattr(filesystem, "is_whole", {}.__getitem__)
        await trio.sleep(_TICK_S)
        assert "could not be told of files that became whole" in caplog.text
        assert (await kernel.ask(Opcode.STATFS)).number == 0


async def test_pages_of_both_nodes_are_dropped() -> None:
    session = session_of(fake())
    async with served(session) as kernel:
        await trio.to_thread.run_sync(session.forget_pages, 7)
        assert [await notice_of(kernel) for _ in range(2)] == [wire.inval_inode(7), wire.inval_inode(7 | SECOND_NODE)]
