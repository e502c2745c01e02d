"""Which opens the kernel serves by itself: the decisions, with a double for the kernel's ioctl.

The double has the kernel's rules: one mode and one backing id for all open handles of a node.
`mount/test_passthrough.py` has the real kernel.
"""

from __future__ import annotations

import errno
import fcntl
import itertools
import logging
import os
import struct
from collections import Counter, defaultdict

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from d7yfs.fuse.passthrough import SECOND_NODE, Passthrough, inode_of
from d7yfs.host.fuse_device import KernelBackings
from d7yfs.stats.kernel import OperationCounters

DEVICE, DATA_FD = 90, 91
NODE, OTHER = 7, 8
OPEN, CLOSE = 0x4010E501, 0x4004E502


class FakeKernel:
    """FUSE_DEV_IOC_BACKING_OPEN and …_CLOSE of one connection."""

    def __init__(self) -> None:
        self.registered: dict[int, int] = {}
        """The descriptor of each backing id."""
        self.requests = 0
        self.failure = 0
        self._last_id = 0

    def ioctl(self, device: int, request: int, argument: bytearray) -> int:
        assert device == DEVICE
        assert isinstance(argument, bytearray), "with bytes, fcntl.ioctl returns those"
        self.requests += 1
        if self.failure:
            raise OSError(self.failure, os.strerror(self.failure))
        if request == OPEN:
            fd, flags, padding = struct.unpack("=iIQ", argument)
            assert (flags, padding) == (0, 0)
            self._last_id += 1
            self.registered[self._last_id] = fd
            return self._last_id
        assert request == CLOSE
        (backing_id,) = struct.unpack("=I", argument)
        del self.registered[backing_id]
        return 0


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> FakeKernel:
    made = FakeKernel()
    monkeypatch.setattr(fcntl, "ioctl", made.ioctl)
    return made


class Files:
    """A `Passthrough`, and the handles that are open: the newest one of a node is closed first."""

    def __init__(self, made: Passthrough) -> None:
        self.needs_file, self.has, self.counters = made.needs_file, made.has, made._counters
        self.node_id, self.served = made.node_id, made.served
        self._made = made
        self._handles: defaultdict[int, list[int]] = defaultdict(list)
        self._numbers = itertools.count(1)

    def open(self, nodeid: int, data_fd: int | None) -> int:
        self._handles[nodeid].append(next(self._numbers))
        return self._made.open(nodeid, self._handles[nodeid][-1], data_fd)

    def release(self, nodeid: int) -> bool:
        return self._made.release(nodeid, self._handles[nodeid].pop() if self._handles[nodeid] else 0)


def passthrough(*, enabled: bool = True) -> Files:
    return Files(Passthrough(KernelBackings(DEVICE), OperationCounters(errors={}, passthrough=enabled)))


def test_a_whole_file_is_the_kernels_until_its_last_handle_is_closed(kernel: FakeKernel) -> None:
    files = passthrough()
    assert files.needs_file(NODE)
    assert files.open(NODE, DATA_FD) == 1
    assert kernel.registered == {1: DATA_FD}
    assert not files.needs_file(NODE), "the next handle needs no file"
    assert files.has(NODE)
    assert files.open(NODE, None) == 1
    assert files.open(NODE, 92) == 1, "nor takes another one: all handles have one id"
    assert files.counters.passthrough_opens == 3
    files.release(NODE)
    files.release(NODE)
    assert kernel.registered == {1: DATA_FD}
    files.release(NODE)
    assert not kernel.registered
    assert files.open(NODE, DATA_FD) == 2


def test_a_node_that_the_daemon_serves_stays_so_while_it_is_open(kernel: FakeKernel) -> None:
    """The kernel answers EIO to a handle of another mode."""
    files = passthrough()
    assert files.open(NODE, None) == 0
    assert not files.needs_file(NODE)
    assert not files.has(NODE)
    assert files.open(NODE, DATA_FD) == 0, "it has become whole meanwhile"
    files.release(NODE)
    assert files.open(NODE, DATA_FD) == 0
    files.release(NODE)
    files.release(NODE)
    assert kernel.requests == files.counters.passthrough_opens == 0
    assert files.open(NODE, DATA_FD) == 1


def test_pages_are_of_no_use_once_the_daemon_serves_a_node_no_more(kernel: FakeKernel) -> None:
    files = passthrough()
    files.open(NODE, None)
    files.open(NODE, None)
    assert [files.release(NODE), files.release(NODE), files.release(NODE)] == [False, True, False]
    files.open(NODE, DATA_FD)
    assert not files.release(NODE), "the kernel has none"
    without = passthrough(enabled=False)
    without.open(NODE, None)
    assert not without.release(NODE), "the next handle will use them"


def test_a_file_that_becomes_whole_while_it_is_open_has_a_second_node(kernel: FakeKernel) -> None:
    files, asked = passthrough(), list[int]()

    def is_whole(handle: int) -> bool:
        asked.append(handle)
        return is_there

    is_there, second = True, NODE | SECOND_NODE
    assert (files.node_id(NODE, is_whole), files.served(NODE)) == (NODE, None)
    files.open(NODE, None)
    is_there = False
    assert files.node_id(NODE, is_whole) == NODE
    is_there = True
    assert files.node_id(NODE, is_whole) == second
    assert asked == [1, 1]
    assert files.served(NODE) == (NODE, 1)
    assert files.open(second, DATA_FD) == 1
    assert files.served(NODE) is None, "somebody reads it without the daemon"
    is_there = False
    assert files.node_id(NODE, is_whole) == second, "while it is open there"
    files.release(NODE)
    assert files.node_id(NODE, is_whole) == second
    files.release(second)
    assert files.node_id(NODE, is_whole) == NODE
    assert inode_of(second) == inode_of(NODE) == NODE


def test_the_second_node_may_be_the_one_that_the_daemon_serves(kernel: FakeKernel) -> None:
    """The kernel opens by it what was evicted meanwhile."""
    files, second = passthrough(), NODE | SECOND_NODE
    files.open(second, None)
    assert files.node_id(NODE, lambda _: False) == second
    assert files.node_id(NODE, lambda _: True) == NODE
    files.open(NODE, None)
    assert files.node_id(NODE, lambda _: True) == NODE, "neither can be read without the daemon"


def test_without_passthrough_there_is_one_node(kernel: FakeKernel) -> None:
    files = passthrough(enabled=False)
    files.open(NODE, None)
    assert files.node_id(NODE, lambda _: True) == NODE


def test_nodes_are_apart(kernel: FakeKernel) -> None:
    files = passthrough()
    assert (files.open(NODE, None), files.open(OTHER, DATA_FD)) == (0, 1)
    files.release(NODE)
    assert kernel.registered == {1: DATA_FD}
    assert files.open(NODE, DATA_FD) == 2, "an id for each node, whatever file they share"


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ELOOP, errno.ENOMEM, errno.EXDEV, errno.EIO])
def test_a_file_that_the_kernel_does_not_take_is_the_daemons_and_the_next_one_is_tried(
    kernel: FakeKernel, number: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    files = passthrough()
    kernel.failure = number
    assert files.open(NODE, DATA_FD) == 0
    said = os.strerror(number)
    assert caplog.messages == [f"passthrough: the kernel does not read a cached file by itself: {said}"]
    kernel.failure = 0
    assert files.open(NODE, DATA_FD) == 0, "one mode for all handles"
    assert files.open(OTHER, DATA_FD) == 1
    files.release(NODE)
    files.release(NODE)
    assert files.open(NODE, DATA_FD) == 2


@pytest.mark.parametrize("number", [errno.EPERM, errno.EOPNOTSUPP, errno.ENOTTY])
def test_a_refusal_of_every_file_turns_it_off(
    kernel: FakeKernel, number: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    files = passthrough()
    assert files.open(OTHER, DATA_FD) == 1
    kernel.failure = number
    assert files.open(NODE, DATA_FD) == 0, "the daemon serves it"
    reason = "it needs CAP_SYS_ADMIN" if number == errno.EPERM else os.strerror(number)
    assert caplog.messages == [f"passthrough is off for this mount: {reason}"]
    files.release(NODE)
    kernel.failure = 0
    assert not files.needs_file(NODE)
    assert files.open(NODE, DATA_FD) == 0
    assert kernel.requests == 2, "the kernel is not asked again"
    assert files.open(OTHER, None) == 1, "what is open in that mode stays so"
    files.release(OTHER)
    files.release(OTHER)
    assert not kernel.registered


def test_without_it_nothing_is_asked(kernel: FakeKernel) -> None:
    files = passthrough(enabled=False)
    assert not files.needs_file(NODE)
    assert files.open(NODE, DATA_FD) == 0
    files.release(NODE)
    assert kernel.requests == files.counters.passthrough_opens == 0


def test_a_release_that_nobody_knows_is_nothing(kernel: FakeKernel) -> None:
    files = passthrough()
    files.release(NODE)
    assert kernel.requests == 0


def test_an_id_that_cannot_be_closed_is_told_and_the_node_goes_on(
    kernel: FakeKernel, caplog: pytest.LogCaptureFixture
) -> None:
    files = passthrough()
    assert files.open(NODE, DATA_FD) == 1
    kernel.failure = errno.ENOENT
    files.release(NODE)
    assert caplog.messages == ["passthrough: backing id 1 stays: No such file or directory"]
    kernel.failure = 0
    assert files.open(NODE, DATA_FD) == 2


class Opens(RuleBasedStateMachine):
    """Any order of opens and releases keeps the kernel's rules. The kernel opens a file by the node id
    that it was told last, which may be long ago, and reopens what is open by that one's."""

    def __init__(self) -> None:
        super().__init__()
        self.kernel = FakeKernel()
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(fcntl, "ioctl", self.kernel.ioctl)
        self.files = passthrough()
        self.handles: Counter[int] = Counter()
        self.modes: dict[int, int] = {}
        self.told: dict[int, int] = {}
        """The node id that the kernel has for an inode."""

    @rule(inode=st.integers(1, 3), whole=st.booleans())
    def look_up(self, inode: int, whole: bool) -> None:
        self.told[inode] = nodeid = self.files.node_id(inode, lambda _: whole)
        assert inode_of(nodeid) == inode
        if whole and self.files.counters.passthrough and self._modes_of(inode) == [0]:
            assert nodeid not in self.modes, "the next open is the kernel's"

    def _modes_of(self, inode: int) -> list[int]:
        return [mode for nodeid, mode in self.modes.items() if inode_of(nodeid) == inode]

    @rule(inode=st.integers(1, 3), whole=st.booleans())
    def open_by_name(self, inode: int, whole: bool) -> None:
        self.open(self.told.setdefault(inode, inode), whole)

    @rule(inode=st.integers(1, 3), second=st.booleans(), whole=st.booleans())
    def open_again(self, inode: int, second: bool, whole: bool) -> None:
        self.open(inode | SECOND_NODE if second else inode, whole)

    def open(self, node: int, whole: bool) -> None:
        backing_id = self.files.open(node, DATA_FD if whole and self.files.needs_file(node) else None)
        assert self.modes.setdefault(node, backing_id) == backing_id, "the kernel answers EIO"
        assert not backing_id or backing_id in self.kernel.registered, "the kernel answers EIO"
        self.handles[node] += 1

    @rule(inode=st.integers(1, 3), second=st.booleans())
    def release(self, inode: int, second: bool) -> None:
        node = inode | SECOND_NODE if second else inode
        if self.handles[node]:
            self.files.release(node)
            self.handles[node] -= 1
            if not self.handles[node]:
                del self.modes[node]

    @rule(number=st.sampled_from([0, 0, errno.EPERM]))
    def refuse(self, number: int) -> None:
        self.kernel.failure = number if self.files.counters.passthrough and not self.kernel.registered else 0

    @invariant()
    def ids_are_those_of_open_nodes(self) -> None:
        assert {backing_id for backing_id in self.modes.values() if backing_id} == set(self.kernel.registered)

    def teardown(self) -> None:
        self.patch.undo()


Opens.TestCase.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
TestOpens = Opens.TestCase
