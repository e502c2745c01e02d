"""The session with the kernel: each request has one answer, whatever happens below or comes from
above, and none holds up another.
"""

from __future__ import annotations

import errno
import logging
import os
import stat
import struct
from collections.abc import Sequence
from dataclasses import replace

import pytest
import trio
from trio.testing import MockClock

from d7yfs.fuse import wire
from d7yfs.fuse.appearance import UNSEEN_INODES
from d7yfs.fuse.wire import InitFlag, Opcode, OpenFlag
from d7yfs.tree.huge_directory import Unseen
from tests.fuse.doubles import APPEARANCE, NEGATIVE_TTL_S, TTL_S, UNKNOWN
from tests.fuse.kernel import (
    AT_ONCE,
    EXPECTED,
    FILE,
    OFFERED,
    REQUESTS,
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
from tests.tree.listings import DATE_NS

# --- INIT ---


async def test_the_greeting_takes_what_the_kernel_offers_and_no_more(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with served(session_of(fake()), greets=False) as kernel:
        answer = await kernel.greet()
    major, minor, readahead, flags, background, congestion, *_, flags2, depth, timeout = wire.INIT_OUT.unpack(
        answer.body
    )
    assert (major, minor, readahead, timeout) == (7, wire.MINOR, 1 << 20, 0)
    assert background == congestion >= 1024
    agreed = InitFlag(flags | flags2 << 32)
    assert not agreed & ~OFFERED
    assert InitFlag.PASSTHROUGH in agreed
    assert InitFlag.PARALLEL_DIROPS in agreed
    assert depth == 1
    assert any("FUSE 7.45" in said for said in caplog.messages)


async def test_an_older_kernel_is_asked_for_what_it_knows() -> None:
    filesystem = fake(AT_ONCE)
    filesystem.whole_fd = DATA_FD
    async with served(session_of(filesystem), greets=False) as kernel:
        answer = await kernel.greet(minor=31, flags=0x3FFF_FFFB)
        *_, flags, _, _, _, _, _, _, flags2, depth, _ = wire.INIT_OUT.unpack(answer.body)
        assert answer.number == flags2 == depth == 0
        assert not flags & InitFlag.INIT_EXT
        opened_file = await kernel.ask(Opcode.OPEN, filesystem.node(FILE).inode, open_in())
        assert wire.OPEN_OUT.unpack(opened_file.body)[1:] == (OpenFlag.NOFLUSH | OpenFlag.KEEP_CACHE, 0)


@pytest.mark.parametrize("minor", [wire.OLDEST_MINOR - 1, 8])
async def test_a_kernel_that_is_too_old_is_told_so(minor: int, caplog: pytest.LogCaptureFixture) -> None:
    async with served(session_of(fake()), greets=False) as kernel:
        assert (await kernel.greet(minor=minor)).number == errno.EPROTO
    assert f"FUSE 7.{minor}: use --fuse-engine pyfuse3" in caplog.text


@pytest.mark.parametrize("length", [0, 7, 15, 16, 19])
async def test_a_greeting_that_is_cut_off_has_an_answer(length: int) -> None:
    body = (wire.INIT_IN.pack(7, 45, 1 << 17, 0x73FF_FFFB) + struct.pack("=I", 0x5FD))[:length]
    async with served(session_of(fake()), greets=False) as kernel:
        assert (await kernel.ask(Opcode.INIT, 0, body)).number == errno.EIO
        assert (await kernel.greet()).number == 0


# --- answers ---


@either_way
async def test_names_and_attributes(known: Sequence[str], autojump_clock: MockClock) -> None:
    filesystem = fake(known)
    node = filesystem.node(FILE)
    async with served(session_of(filesystem)) as kernel:
        await trio.sleep(10.25)
        found = wire.ENTRY_OUT.unpack((await kernel.ask(Opcode.LOOKUP, 1, name_in(FILE))).body)
        same = wire.ATTR_OUT.unpack((await kernel.ask(Opcode.GETATTR, node.inode, bytes(16))).body)
    entry_s, attributes_s, entry_ns, attributes_ns = found[2:6]
    assert found[:2] == (node.inode, 0)
    assert entry_s + entry_ns / 1e9 == pytest.approx(TTL_S - 10.25)
    assert attributes_s + attributes_ns / 1e9 >= TTL_S
    assert found[6:] == same[3:]
    seconds, ns = divmod(DATE_NS, 10**9)
    assert found[6:] == (
        *(node.inode, len(FILE), 1, seconds, seconds, seconds, ns, ns, ns),
        *(stat.S_IFREG | 0o440, 1, APPEARANCE.uid, APPEARANCE.gid, 0, 4096, 0),
    )
    assert node.lookups == 1


@either_way
async def test_an_absent_name(known: Sequence[str], autojump_clock: MockClock) -> None:
    async with served(session_of(fake(known))) as kernel:
        absent = await kernel.ask(Opcode.LOOKUP, 1, name_in("absent"))
        assert wire.ENTRY_OUT.unpack(absent.body)[:6] == (0, 0, int(NEGATIVE_TTL_S), 0, 0, 0)


async def test_a_file_system_that_is_full() -> None:
    async with served(session_of(fake())) as kernel:
        assert wire.STATFS_OUT.unpack((await kernel.ask(Opcode.STATFS)).body) == (0, 0, 0, 3, 0, 4096, 255, 4096)


@either_way
async def test_files(known: Sequence[str]) -> None:
    filesystem = fake(known)
    async with served(session_of(filesystem)) as kernel:
        inode = filesystem.node(FILE).inode
        handle, flags, backing_id = wire.OPEN_OUT.unpack((await kernel.ask(Opcode.OPEN, inode, open_in())).body)
        assert (flags, backing_id) == (OpenFlag.NOFLUSH | OpenFlag.KEEP_CACHE, 0)
        read = await kernel.ask(Opcode.READ, inode, read_in(handle, 3, 7))
        assert (read.number, len(read.body)) == (0, 7)
        assert (await kernel.ask(Opcode.RELEASE, inode, release_in(handle))).number == 0
    assert ("release", handle) in filesystem.calls


@pytest.mark.parametrize("flags", [os.O_WRONLY, os.O_RDWR, os.O_RDONLY | os.O_TRUNC])
async def test_an_open_that_would_write(flags: int) -> None:
    filesystem = fake(AT_ONCE)
    async with served(session_of(filesystem)) as kernel:
        assert (await kernel.ask(Opcode.OPEN, 2, open_in(flags))).number == errno.EROFS
    assert not filesystem.calls


@either_way
@pytest.mark.parametrize("opcode", [Opcode.READDIR, Opcode.READDIRPLUS])
async def test_a_directory_in_pieces(known: Sequence[str], opcode: Opcode) -> None:
    names = [f"{number:03}" + "n" * (number % 9) for number in range(40)]
    filesystem = fake(known, names)
    async with served(session_of(filesystem)) as kernel:
        await opened(kernel)
        shown, offset = [], 0
        while body := (await kernel.ask(opcode, 1, read_in(1, offset, 700))).body:
            assert len(body) <= 700
            at = 0
            while at < len(body):
                nodeid = wire.ENTRY_OUT.unpack_from(body, at)[0] if opcode is Opcode.READDIRPLUS else 0
                at += wire.ENTRY_OUT.size if opcode is Opcode.READDIRPLUS else 0
                ino, offset, length, kind = wire.DIRENT.unpack_from(body, at)
                at += wire.DIRENT.size
                name = body[at : at + length].decode()
                at = -(-(at + length) // 8) * 8
                shown.append(name)
                if name in (".", ".."):
                    assert (nodeid, kind) == (0, stat.S_IFDIR >> 12)
                    continue
                node = filesystem.node(name)
                assert (ino, kind) == (node.inode, (stat.S_IFDIR if node.is_directory else stat.S_IFREG) >> 12)
                assert nodeid == (ino if opcode is Opcode.READDIRPLUS else 0)
                assert node.lookups == (opcode is Opcode.READDIRPLUS), "what was shown, is remembered once"
        assert sorted(shown) == sorted([".", "..", "models", *names])
        assert (await kernel.ask(Opcode.RELEASEDIR, 1, release_in(1))).number == 0


async def test_an_entry_that_did_not_fit_is_not_remembered() -> None:
    filesystem = fake(AT_ONCE, ["first", "second"])
    async with served(session_of(filesystem)) as kernel:
        await opened(kernel)
        room = 2 * (128 + 32) + 160  # two of dots, and one entry
        await kernel.ask(Opcode.READDIRPLUS, 1, read_in(1, 0, room))
    assert sorted(filesystem.node(name).lookups for name in ("first", "second", "models")) == [0, 0, 1]


async def test_entries_without_an_inode_are_names_alone() -> None:
    filesystem = fake(AT_ONCE, [])
    filesystem.unseen = [(7, "unseen", Unseen(is_directory=False))]
    async with served(session_of(filesystem)) as kernel:
        await opened(kernel)
        body = (await kernel.ask(Opcode.READDIRPLUS, 1, read_in(1, 9, 4096))).body
    assert body[: wire.ENTRY_OUT.size] == bytes(wire.ENTRY_OUT.size)
    assert wire.DIRENT.unpack_from(body, wire.ENTRY_OUT.size) == (UNSEEN_INODES | 7, 10, 6, 8)


async def test_extended_attributes() -> None:
    async with served(session_of(fake())) as kernel:
        size = await kernel.ask(Opcode.GETXATTR, 1, xattr_in("user.d7yfs.url", 0))
        assert wire.XATTR_IN.unpack(size.body) == (7, 0)
        assert (await kernel.ask(Opcode.GETXATTR, 1, xattr_in("user.d7yfs.url", 7))).body == b"mem://b"
        assert (await kernel.ask(Opcode.GETXATTR, 1, xattr_in("user.d7yfs.url", 6))).number == errno.ERANGE
        assert (await kernel.ask(Opcode.GETXATTR, 1, xattr_in("user.other"))).number == errno.ENODATA
        listed = (await kernel.ask(Opcode.LISTXATTR, 1, xattr_in())).body
        assert listed == b"user.d7yfs.url\0user.d7yfs.etag\0user.d7yfs.task_id\0"
    async with served(session_of(fake(), appearance=replace(APPEARANCE, xattr=False))) as kernel:
        assert (await kernel.ask(Opcode.LISTXATTR, 1, xattr_in())).number == errno.ENOSYS


# --- what is refused, and what has no answer ---


@pytest.mark.parametrize("opcode", sorted(wire.WRITING))
async def test_what_would_write(opcode: int) -> None:
    filesystem = fake()
    async with served(session_of(filesystem)) as kernel:
        assert (await kernel.ask(opcode, 1, bytes(64))).number == errno.EROFS
    assert not filesystem.calls


@pytest.mark.parametrize("opcode", [0, 25, 31, 34, 37, 39, 40, 46, 48, 50, 52, 4096, 0xFFFFFFFF])
async def test_what_is_not_known(opcode: int) -> None:
    async with served(session_of(fake())) as kernel:
        assert (await kernel.ask(opcode, 1, bytes(64))).number == errno.ENOSYS


async def test_some_messages_have_no_answer(caplog: pytest.LogCaptureFixture) -> None:
    filesystem = fake(AT_ONCE)
    node = filesystem.node(FILE)
    async with served(session_of(filesystem)) as kernel:
        for _ in range(5):
            await kernel.ask(Opcode.LOOKUP, 1, name_in(FILE))
        kernel.send(Opcode.INTERRUPT, 0, struct.pack("=Q", 2))
        kernel.send(Opcode.NOTIFY_REPLY, 1, bytes(40))
        kernel.send(Opcode.FORGET, node.inode, struct.pack("=Q", 2))
        kernel.send(Opcode.BATCH_FORGET, 0, struct.pack("=IIQQQQ", 2, 0, UNKNOWN, 1, node.inode, 2))
        kernel.send(Opcode.FORGET, node.inode, b"")
        kernel.send(Opcode.BATCH_FORGET, 0, struct.pack("=IIQQ", 2, 0, node.inode, 2))
        assert (await kernel.ask(Opcode.STATFS)).number == 0, "and it is the next answer"
        assert kernel.is_silent()
    assert node.lookups == 1, "one bad entry takes nothing from the next"
    assert len([each for each in caplog.records if each.exc_info]) == 3


async def test_the_end_of_a_connection_is_confirmed() -> None:
    async with served(session_of(fake())) as kernel:
        answer = await kernel.ask(Opcode.DESTROY)
        assert (answer.number, answer.body) == (0, b"")


def test_what_is_refused_always_is_served_by_nobody() -> None:
    assert set(EXPECTED) == {opcode for opcode, (_, reaches) in REQUESTS.items() if not reaches}
