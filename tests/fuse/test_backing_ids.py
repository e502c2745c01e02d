"""Backing ids over the life of several workers: one for each node that is open, none that the kernel
has closed.

The kernel's part is played here; `mount/test_takeover.py` has the real one.
"""

from __future__ import annotations

import fcntl
import os
import struct
from collections.abc import Iterator

import pytest

from d7yfs.fuse.journal import SessionJournal
from d7yfs.fuse.passthrough import Passthrough
from d7yfs.host.fuse_device import KernelBackings
from d7yfs.stats.kernel import OperationCounters

NODE, OTHER = 7, 8
DATA_FD = 99


class Kernel:
    """The ids that the kernel knows, and what the journal said when one was closed."""

    def __init__(self) -> None:
        self.open_ids: set[int] = set()
        self.journal_fd = os.memfd_create("journal")
        self.known_at_close: list[dict[int, tuple[int, int]]] = []
        self._next = 1

    def ioctl(self, _fd: int, request: int, content: bytearray) -> int:
        if request & 0xFF == 1:
            assert struct.unpack("=iIQ", content) == (DATA_FD, 0, 0)
            number, self._next = self._next, self._next + 1
            self.open_ids.add(number)
            return number
        self.open_ids.remove(*struct.unpack("=I", content))
        self.known_at_close.append(SessionJournal(self.journal_fd).load().open_files)
        return 0

    def worker(self) -> tuple[Passthrough, SessionJournal]:
        """The next worker; the one before is gone, with what it had not written."""
        journal = SessionJournal(self.journal_fd)
        known = journal.load()
        made = Passthrough(KernelBackings(-1), OperationCounters(errors={}, passthrough=True), journal)
        made.restore(known.open_files)
        return made, journal


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Iterator[Kernel]:
    made = Kernel()
    monkeypatch.setattr(fcntl, "ioctl", made.ioctl)
    yield made
    os.close(made.journal_fd)


def test_the_next_worker_uses_the_same_id(kernel: Kernel) -> None:
    first, journal = kernel.worker()
    assert first.open(NODE, 21, DATA_FD) == 1
    journal.flush()
    second, journal = kernel.worker()
    assert not second.needs_file(NODE)
    assert second.open(NODE, 22, None) == 1
    assert second.open(OTHER, 23, DATA_FD) == 2
    second.release(NODE, 21)
    journal.flush()
    third, _ = kernel.worker()
    third.release(NODE, 22)
    assert kernel.open_ids == {2}
    assert kernel.known_at_close == [{23: (OTHER, 2)}], "the journal is the first to lose an id"
    assert third.open(NODE, 24, DATA_FD) == 3


def test_a_node_that_the_worker_served_is_still_served_by_one(kernel: Kernel) -> None:
    """The kernel refuses to mix both ways among the open handles of a node."""
    first, journal = kernel.worker()
    assert first.open(NODE, 21, None) == 0
    journal.flush()
    second, _ = kernel.worker()
    assert second.open(NODE, 22, DATA_FD) == 0
    second.release(NODE, 21)
    second.release(NODE, 22)
    assert second.open(NODE, 23, DATA_FD) == 1


def test_a_release_that_comes_twice(kernel: Kernel) -> None:
    first, journal = kernel.worker()
    first.open(NODE, 21, DATA_FD)
    first.open(NODE, 22, DATA_FD)
    first.release(NODE, 22)
    journal.flush()
    second, _ = kernel.worker()
    second.release(NODE, 22)
    assert second.handles(NODE) == (21,)
    assert kernel.open_ids == {1}
    second.release(NODE, 21)
    assert kernel.open_ids == set()
    assert second.needs_file(NODE)


def test_an_id_that_was_not_noted_is_not_used(kernel: Kernel) -> None:
    first, _ = kernel.worker()
    first.open(NODE, 21, DATA_FD)
    second, _ = kernel.worker()
    assert second.needs_file(NODE)
    assert second.open(NODE, 22, DATA_FD) == 2
