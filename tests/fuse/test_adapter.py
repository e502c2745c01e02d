"""The kernel is told of names, attributes and files, and gives its lookup counts back."""

from __future__ import annotations

import errno
import inspect
import os
import stat
from collections.abc import Sequence
from dataclasses import replace

import pyfuse3
import pytest
import trio
from pyfuse3 import EntryAttributes
from pyfuse3._pyfuse3 import FileHandleT, FileNameT, FlagT, InodeT, ModeT, XAttrNameT
from trio.testing import MockClock

from d7yfs.fs.filesystem import Filesystem
from d7yfs.fuse.adapter import Adapter
from d7yfs.fuse.appearance import BLOCK_SIZE
from d7yfs.tree.nodes import FOREVER_S, Absent, Directory
from d7yfs.tree.tree import ROOT_INODE
from tests.fuse.doubles import APPEARANCE, NEGATIVE_TTL_S, TTL_S, UNKNOWN, FakeFilesystem, adapter_of
from tests.fuse.requests import CALLER, FILE, ROOT, errno_of, lookup
from tests.tree.listings import DATE_NS

METHODS = [name for name in vars(FakeFilesystem) if hasattr(Filesystem, name) and not name.startswith("_")]


@pytest.mark.parametrize("method", METHODS)
def test_the_fake_is_called_as_the_real_one(method: str) -> None:
    assert inspect.signature(getattr(FakeFilesystem, method)) == inspect.signature(getattr(Filesystem, method))


# --- names ---


async def test_a_name_is_counted_once_for_each_lookup(autojump_clock: MockClock) -> None:
    filesystem = FakeFilesystem([FILE], ["models"])
    adapter = adapter_of(filesystem)
    node = filesystem.node(FILE)
    for count in (1, 2, 3):
        found = await lookup(adapter)
        assert (found.st_ino, found.generation, node.lookups) == (node.inode, 0, count)
    assert filesystem.node("models").lookups == 0


async def test_a_name_lives_as_long_as_what_is_left_of_its_listing(autojump_clock: MockClock) -> None:
    adapter = adapter_of(FakeFilesystem([FILE], ["models"]))
    for left_s in (TTL_S, 10.0):
        await trio.sleep(TTL_S - left_s - trio.current_time())
        file, directory = await lookup(adapter), await lookup(adapter, "models")
        assert file.entry_timeout == directory.entry_timeout == left_s
        assert file.attr_timeout == FOREVER_S
        assert directory.attr_timeout == 0, "nobody has listed it"


async def test_a_name_is_whatever_bytes_it_is() -> None:
    filesystem = FakeFilesystem([FILE])
    adapter = adapter_of(filesystem)
    for name in ("ä", "日本", "\udcff"):
        absent = await lookup(adapter, name)
        assert absent.st_ino == 0
        assert filesystem.calls[-1] == ("lookup", ROOT_INODE, name)


async def test_the_kernel_remembers_that_there_is_no_such_name(autojump_clock: MockClock) -> None:
    filesystem = FakeFilesystem([FILE])
    adapter = adapter_of(filesystem)
    absent = await lookup(adapter, "absent")
    assert (absent.st_ino, absent.entry_timeout) == (0, NEGATIVE_TTL_S)
    await trio.sleep(TTL_S - 2)
    assert (await lookup(adapter, "absent")).entry_timeout == pytest.approx(2), "what is left of the listing"
    assert [node.inode for node in filesystem.tree.remembered()] == [ROOT_INODE]


@pytest.mark.parametrize("timeout_s", [0.0, -1.0])
async def test_where_it_may_not_remember_it_the_name_is_enoent(
    timeout_s: float, caplog: pytest.LogCaptureFixture
) -> None:
    class Unsure(FakeFilesystem):
        async def lookup(self, parent: int, name: str) -> Absent:
            return Absent(timeout_s)

    adapter = adapter_of(Unsure())
    assert await errno_of(lookup(adapter)) == errno.ENOENT
    assert not caplog.records
    assert adapter.guard.counters.errors["lookup"] == 0, "it is an answer"


async def test_what_is_given_back_reaches_the_tree(caplog: pytest.LogCaptureFixture) -> None:
    filesystem = FakeFilesystem([FILE, "other"])
    adapter = adapter_of(filesystem)
    for _ in range(3):
        await lookup(adapter)
        await lookup(adapter, "other")
    file, other = filesystem.node(FILE), filesystem.node("other")
    await adapter.forget([(InodeT(file.inode), 2), (InodeT(UNKNOWN), 1), (InodeT(other.inode), 3)])
    assert (file.lookups, other.lookups) == (1, 0), "one that fails keeps no other"
    (record,) = caplog.records
    assert str(UNKNOWN) in record.getMessage()
    assert record.exc_info is not None
    await adapter.forget([])
    assert [call[0] for call in filesystem.calls].count("forget") == 2


# --- attributes ---


def attributes(value: EntryAttributes) -> tuple[int, ...]:
    return (value.st_ino, value.st_mode, value.st_nlink, value.st_uid, value.st_gid, value.st_size, value.st_blocks)


async def test_attributes(autojump_clock: MockClock) -> None:
    name = "x" * 200
    filesystem = FakeFilesystem([name], ["a", "b"])
    adapter = adapter_of(filesystem)
    file, root = filesystem.node(name), filesystem.tree.get(ROOT_INODE)
    for value in (await adapter.getattr(InodeT(file.inode), CALLER), await lookup(adapter, name)):
        assert attributes(value) == (file.inode, stat.S_IFREG | 0o440, 1, 11, 12, 200, 1)
        assert value.st_atime_ns == value.st_mtime_ns == value.st_ctime_ns == DATE_NS
        assert (value.st_blksize, value.attr_timeout) == (BLOCK_SIZE, FOREVER_S)
    await trio.sleep(10)
    value = await adapter.getattr(ROOT, CALLER)
    assert attributes(value) == (ROOT_INODE, stat.S_IFDIR | 0o550, 4, 11, 12, 0, 0)
    assert (value.st_mtime_ns, value.attr_timeout) == (root.mtime_ns, TTL_S - 10)


@pytest.mark.parametrize(("size_bytes", "blocks"), [(0, 0), (1, 1), (512, 1), (513, 2), (1 << 40, 1 << 31)])
async def test_blocks_are_of_512_bytes(size_bytes: int, blocks: int) -> None:
    filesystem = FakeFilesystem([FILE])
    node = filesystem.node(FILE)
    assert not isinstance(node, Directory)
    node.version = replace(node.version, size_bytes=size_bytes)
    value = await adapter_of(filesystem).getattr(InodeT(node.inode), CALLER)
    assert (value.st_size, value.st_blocks) == (size_bytes, blocks)


async def test_the_whole_is_full_and_has_as_many_inodes_as_are_known() -> None:
    filesystem = FakeFilesystem(["a", "b"], ["c"])
    data = await adapter_of(filesystem).statfs(CALLER)
    assert (data.f_bsize, data.f_frsize, data.f_namemax, data.f_files) == (BLOCK_SIZE, BLOCK_SIZE, 255, 4)
    assert {data.f_blocks, data.f_bfree, data.f_bavail, data.f_ffree, data.f_favail} == {0}


@pytest.mark.parametrize("wanted", [os.F_OK, os.R_OK, os.X_OK, os.R_OK | os.X_OK])
async def test_the_kernel_has_checked_who_may_read(wanted: int) -> None:
    assert await adapter_of(FakeFilesystem()).access(ROOT, ModeT(wanted), CALLER) is True


@pytest.mark.parametrize("wanted", [os.W_OK, os.R_OK | os.W_OK])
async def test_nobody_may_write(wanted: int) -> None:
    assert await errno_of(adapter_of(FakeFilesystem()).access(ROOT, ModeT(wanted), CALLER)) == errno.EROFS


# --- files ---


@pytest.mark.parametrize("flags", [os.O_RDONLY, os.O_RDONLY | os.O_NONBLOCK, os.O_RDONLY | os.O_DIRECT])
async def test_an_open_to_read_gives_a_handle_whose_pages_stay(flags: int) -> None:
    filesystem = FakeFilesystem([FILE])
    adapter = adapter_of(filesystem)
    await adapter.opendir(ROOT, CALLER)
    inode = filesystem.node(FILE).inode
    opened = await adapter.open(InodeT(inode), FlagT(flags), CALLER)
    assert (opened.fh, opened.keep_cache, opened.direct_io, opened.nonseekable) == (2, True, False, False)
    assert filesystem.calls[-1] == ("open", inode)


@pytest.mark.parametrize("flags", [os.O_WRONLY, os.O_RDWR, os.O_RDONLY | os.O_TRUNC, os.O_RDWR | os.O_TRUNC])
async def test_an_open_to_write_is_erofs_and_nothing_is_opened(flags: int) -> None:
    filesystem = FakeFilesystem([FILE])
    inode = InodeT(filesystem.node(FILE).inode)
    assert await errno_of(adapter_of(filesystem).open(inode, FlagT(flags), CALLER)) == errno.EROFS
    assert not filesystem.calls


async def test_reads_and_closes_reach_their_handle() -> None:
    filesystem = FakeFilesystem([FILE])
    adapter = adapter_of(filesystem)
    assert await adapter.read(FileHandleT(7), 4096, 3) == bytes(3)
    await adapter.release(FileHandleT(7))
    await adapter.fsync(FileHandleT(7), False)
    assert filesystem.calls == [("read", 7, 4096, 3), ("release", 7)]


# --- extended attributes ---


async def value_of(adapter: Adapter, name: str) -> bytes:
    return await adapter.getxattr(ROOT, XAttrNameT(name.encode()), CALLER)


async def test_what_is_known_of_a_file_is_in_its_attributes() -> None:
    filesystem = FakeFilesystem([FILE])
    filesystem.description = {"url": "mem://b/ä", "etag": '"e"', "version_id": ""}
    adapter = adapter_of(filesystem)
    assert await value_of(adapter, "user.d7yfs.url") == "mem://b/ä".encode()
    assert await value_of(adapter, "user.d7yfs.task_id") == b"7a5b"
    names = await adapter.listxattr(ROOT, CALLER)
    known = ["url", "etag", "version_id", "task_id"]
    assert [bytes(name).decode() for name in names] == [f"user.d7yfs.{name}" for name in known]


@pytest.mark.parametrize("name", ["user.d7yfs.nothing", "url", "user.url", "security.capability", ""])
async def test_others_there_are_none(name: str, caplog: pytest.LogCaptureFixture) -> None:
    filesystem = FakeFilesystem([FILE])
    assert await errno_of(value_of(adapter_of(filesystem), name)) == errno.ENODATA
    assert not caplog.records
    assert "task_id" not in [call[0] for call in filesystem.calls], "which may take a request"


async def test_where_there_is_no_task_none_is_shown() -> None:
    filesystem = FakeFilesystem([FILE])
    filesystem.task = ""
    adapter = adapter_of(filesystem)
    assert await errno_of(value_of(adapter, "user.d7yfs.task_id")) == errno.ENODATA
    assert b"user.d7yfs.task_id" not in await adapter.listxattr(ROOT, CALLER)


async def test_without_them_the_kernel_is_to_ask_no_more() -> None:
    filesystem = FakeFilesystem([FILE])
    adapter = adapter_of(filesystem, appearance=replace(APPEARANCE, xattr=False))
    assert await errno_of(value_of(adapter, "user.d7yfs.url")) == errno.ENOSYS
    assert await errno_of(adapter.listxattr(ROOT, CALLER)) == errno.ENOSYS
    assert not filesystem.calls


# --- what the kernel is told to forget ---


class Kernel:
    """A stand-in for the session's notices: it knows some names of a directory, and may refuse."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *known: bytes) -> None:
        self.known = set(known)
        self.directory_known = True
        self.error = 0
        self.told: list[tuple[int, object]] = []
        monkeypatch.setattr(pyfuse3, "invalidate_entry", self._entry)
        monkeypatch.setattr(pyfuse3, "invalidate_inode", self._inode)

    def _entry(self, directory: int, name: bytes) -> None:
        self._answer(name in self.known)
        self.told.append((directory, name))

    def _inode(self, inode: int, attr_only: bool = False) -> None:
        self._answer(self.directory_known)
        self.told.append((inode, "attributes" if attr_only else "all"))

    def _answer(self, known: bool) -> None:
        number = self.error or (0 if known else errno.ENOENT)
        if number:
            raise OSError(number, os.strerror(number))


def forget(names: Sequence[bytes]) -> int:
    return Adapter.forget_entries(7, [FileNameT(name) for name in names])


def test_names_that_the_kernel_does_not_know_keep_no_others(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    kernel = Kernel(monkeypatch, b"a", b"c")
    assert forget([b"a", b"b", b"c"]) == 2
    assert kernel.told == [(7, b"a"), (7, b"c"), (7, "attributes")]
    kernel.directory_known = False
    assert forget([b"c"]) == 1
    assert not caplog.records


def test_a_kernel_that_refuses_a_notice_is_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    kernel = Kernel(monkeypatch, b"a")
    Adapter.forget_pages(8)
    assert kernel.told == [(8, "all")]
    kernel.directory_known = False
    Adapter.forget_pages(8)
    assert not caplog.records, "it knows no such inode any more"
    kernel.error = errno.EBADF
    Adapter.forget_pages(8)
    assert forget([b"a"]) == 0
    assert [record.levelname for record in caplog.records] == ["WARNING"] * 2
