"""How many files and directories each user may have open."""

from __future__ import annotations

import errno
import os
from collections.abc import Awaitable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyfuse3 import FileInfo
from pyfuse3._pyfuse3 import FlagT

from d7yfs.cache.descriptors import SMALL_BYTES
from d7yfs.errors import NotFound, TooManyOpenFiles
from d7yfs.fuse.openers import MAX_OPEN_DIRECTORIES, Openers, openers_of_directories, openers_of_files
from tests.fuse.doubles import FakeFilesystem, adapter_of
from tests.fuse.requests import CALLER, FILE, ROOT, errno_of, lookup


def _opens(openers: Openers, uid: int, attempts: int) -> int:
    """How many of `attempts` are admitted."""
    admitted = 0
    for _ in range(attempts):
        try:
            openers.admit(uid)
        except TooManyOpenFiles:
            continue
        admitted += 1
        openers.opened(uid * 1000 + admitted, uid)
    return admitted


def test_each_user_may_have_as_many_as_are_left() -> None:
    openers = Openers(100)
    assert [_opens(openers, uid, 1000) for uid in range(1, 8)] == [50, 25, 13, 6, 3, 2, 1]
    openers.release(1001)
    assert _opens(openers, 1, 1) == 0, "he has more than are left"
    assert _opens(openers, 8, 1) == 1


def test_what_is_closed_can_be_opened_again() -> None:
    openers = Openers(10)
    for _ in range(3):
        assert _opens(openers, 1, 10) == 5
        for handle in range(1001, 1006):
            assert openers.user_of(handle) == 1
            openers.release(handle)
            openers.release(handle)
    openers.admit(2)
    openers.leave(2)
    assert _opens(openers, 1, 10) == 5, "a failed open does not count"


def test_a_large_file_counts_as_many_as_there_are_descriptors_for() -> None:
    plenty = openers_of_files(1 << 20)
    assert [plenty.admit(1, size) for size in (0, SMALL_BYTES, SMALL_BYTES + 1)] == [1, 1, 1]
    few = openers_of_files(1024)
    for count in (256, 128, 64):
        for _ in range(count):
            assert few.admit(count, SMALL_BYTES + 1) == 128
        with pytest.raises(TooManyOpenFiles, match=rf"uid {count} has \d+ of 65536 shares of the open files"):
            few.admit(count, SMALL_BYTES + 1)
    assert few.admit(1, SMALL_BYTES) == 1


def test_a_directory_counts_by_its_names_and_any_can_be_opened() -> None:
    openers = openers_of_directories()
    assert [openers.admit(1, names) for names in (0, 999, 1000, 20_000)] == [1, 1, 2, 21]
    assert openers.admit(2, 1 << 40) == MAX_OPEN_DIRECTORIES // 64
    openers.opened(7, 2, MAX_OPEN_DIRECTORIES // 64)
    openers.release(7)
    openers.leave(1, 21)
    assert (openers._total, dict(openers._counts)) == (4, {1: 4})


@given(st.lists(st.tuples(st.integers(0, 5), st.booleans()), max_size=200), st.integers(1, 40))
def test_never_more_than_the_limit_and_no_user_beyond_half(steps: list[tuple[int, bool]], limit: int) -> None:
    openers, held = Openers(limit), dict.fromkeys(range(6), 0)
    for uid, opens in steps:
        if not opens:
            if held[uid]:
                openers.leave(uid)
                held[uid] -= 1
            continue
        try:
            openers.admit(uid)
        except TooManyOpenFiles:
            assert held[uid] >= limit - sum(held.values())
        else:
            held[uid] += 1
        assert sum(held.values()) <= limit
        assert all(count <= (limit + 1) // 2 for count in held.values())


async def test_the_one_who_asks_gets_emfile_and_a_failed_open_takes_nothing() -> None:
    filesystem = FakeFilesystem([FILE])
    adapter = adapter_of(filesystem)
    adapter.guard.files.limit = 2
    inode = (await lookup(adapter)).st_ino

    def opening() -> Awaitable[FileInfo]:
        return adapter.open(inode, FlagT(os.O_RDONLY), CALLER)

    filesystem.failures["open"] = NotFound("no such file")
    assert [await errno_of(opening()) for _ in range(5)] == [errno.ENOENT] * 5
    filesystem.failures.clear()
    info = await opening()
    assert await errno_of(opening()) == errno.EMFILE
    await adapter.release(info.fh)
    await opening()


async def test_the_one_who_opens_too_many_directories_gets_emfile_and_holds_none_of_it() -> None:
    filesystem = FakeFilesystem([FILE])
    adapter = adapter_of(filesystem)
    adapter.guard.directories.limit = 2
    filesystem.failures["opendir"] = NotFound("no such directory")
    assert [await errno_of(adapter.opendir(ROOT, CALLER)) for _ in range(5)] == [errno.ENOENT] * 5
    filesystem.failures.clear()
    handle = await adapter.opendir(ROOT, CALLER)
    assert await errno_of(adapter.opendir(ROOT, CALLER)) == errno.EMFILE
    assert len(filesystem._directories) == 1
    await adapter.releasedir(handle)
    await adapter.opendir(ROOT, CALLER)
