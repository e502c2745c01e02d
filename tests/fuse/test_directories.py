"""A directory shows the same entries in any pieces, and counts each once.

READDIRPLUS counts as a lookup of each entry that comes with attributes, except `.` and `..`
(fs/fuse/readdir.c).
"""

from __future__ import annotations

import errno
from collections import Counter

import pytest
import trio
from pyfuse3._pyfuse3 import FileHandleT
from trio.testing import MockClock

from d7yfs.fuse import nameonly_entries
from d7yfs.fuse.adapter import Adapter
from d7yfs.tree.huge_directory import Unseen
from d7yfs.tree.nodes import FOREVER_S
from d7yfs.tree.tree import ROOT_INODE
from tests.fuse.doubles import TTL_S, FakeFilesystem
from tests.fuse.reply import MANY_BYTES, Entry, Reply
from tests.fuse.requests import CALLER, OPENED, ROOT, errno_of, opened

DOTS = [".", ".."]
FILES = ["a", "file-with-a-longer-name", "last"]
SHOWN = [*DOTS, *FILES, "models"]


async def shown(adapter: Adapter, start_id: int = 0, room_bytes: int = MANY_BYTES) -> list[Entry]:
    """The entries that one request is told."""
    with Reply(room_bytes) as reply:
        assert await adapter.readdir(OPENED, start_id, reply.token) is None  # type: ignore[func-returns-value]
        return reply.entries


async def walk(adapter: Adapter, room_bytes: int) -> list[Entry]:
    """The entries that requests of this size are told, one after the other."""
    found: list[Entry] = []
    while page := await shown(adapter, found[-1].next_id if found else 0, room_bytes):
        found += page
        assert len(found) < 100, "it goes round"
    return found


def lookups(filesystem: FakeFilesystem) -> dict[str, int]:
    return {name: filesystem.node(name).lookups for name in [*FILES, "models"]}


async def test_each_entry_has_its_inode_and_the_dots_the_directorys() -> None:
    filesystem = FakeFilesystem(FILES, ["models"])
    entries = await shown(await opened(filesystem))
    assert [entry.name for entry in entries] == SHOWN
    inodes = [ROOT_INODE, ROOT_INODE, *(filesystem.node(name).inode for name in SHOWN[2:])]
    assert [entry.node_id for entry in entries] == [entry.shown_inode for entry in entries] == inodes
    assert [entry.size_bytes for entry in entries] == [0, 0, *(len(name) for name in FILES), 0]
    assert len({entry.next_id for entry in entries}) == len(entries)


async def test_each_entry_is_counted_once_and_the_dots_never() -> None:
    filesystem = FakeFilesystem(FILES, ["models"])
    adapter = await opened(filesystem)
    root = filesystem.tree.get(ROOT_INODE)
    before = root.lookups
    await shown(adapter)
    assert lookups(filesystem) == dict.fromkeys(SHOWN[2:], 1)
    assert root.lookups == before
    await shown(adapter)
    assert lookups(filesystem) == dict.fromkeys(SHOWN[2:], 2)


async def test_what_does_not_fit_is_not_counted() -> None:
    filesystem = FakeFilesystem(FILES, ["models"])
    adapter = await opened(filesystem)
    stops = [entry.stop for entry in await shown(adapter)]
    for fitting, stop in enumerate(stops, 1):
        for room_bytes in (stop, stop + 8):
            before = lookups(filesystem)
            assert len(await shown(adapter, room_bytes=room_bytes)) == fitting
            counted = {name for name, count in lookups(filesystem).items() if count > before[name]}
            assert counted == set(SHOWN[2:fitting])


async def test_no_room_at_all() -> None:
    filesystem = FakeFilesystem(FILES, ["models"])
    adapter = await opened(filesystem)
    for start_id in range(len(SHOWN)):
        assert await shown(adapter, start_id, 8) == []
    assert not any(lookups(filesystem).values())


@pytest.mark.parametrize("room_bytes", [176, 184, 320, 336, 500, 800])
async def test_a_directory_in_pieces_is_the_same_whatever_their_size(room_bytes: int) -> None:
    filesystem = FakeFilesystem(FILES, ["models"])
    adapter = await opened(filesystem)
    found = await walk(adapter, room_bytes)
    assert [entry.name for entry in found] == SHOWN
    assert lookups(filesystem) == dict.fromkeys(SHOWN[2:], 1)
    whole = await shown(adapter)
    assert [(entry.next_id, entry.node_id) for entry in found] == [(entry.next_id, entry.node_id) for entry in whole]


async def test_reading_on_from_any_entry_shows_what_comes_behind_it() -> None:
    """seekdir(3) does so."""
    filesystem = FakeFilesystem(FILES, ["models"])
    adapter = await opened(filesystem)
    for position, entry in enumerate(await shown(adapter), 1):
        assert [each.name for each in await shown(adapter, entry.next_id)] == SHOWN[position:]


async def test_what_is_gone_meanwhile_is_left_out_and_moves_nothing(autojump_clock: MockClock) -> None:
    filesystem = FakeFilesystem(FILES, ["models"])
    adapter = await opened(filesystem)
    ids = {entry.name: entry.next_id for entry in await shown(adapter)}
    await trio.sleep(1)
    filesystem.show([FILES[1], FILES[2]], ["models"])
    assert [each.name for each in await shown(adapter, ids["."])] == ["..", *FILES[1:], "models"]
    assert [each.name for each in await shown(adapter, ids["a"])] == [*FILES[1:], "models"]
    assert [each.name for each in await shown(adapter, ids[FILES[1]])] == [FILES[2], "models"]


# --- for how long the kernel believes it ---


async def test_entries_live_as_long_as_what_is_left_of_their_listing(autojump_clock: MockClock) -> None:
    filesystem = FakeFilesystem(FILES, ["models"])
    adapter = await opened(filesystem)
    for left_s in (TTL_S, 10.0, 0.0):
        await trio.sleep(TTL_S - left_s - trio.current_time())
        entries = (await shown(adapter))[2:]
        assert [entry.entry_timeout_s for entry in entries] == pytest.approx([left_s] * 4)
        timeouts = {entry.name: entry.attr_timeout_s for entry in entries}
        assert timeouts == dict.fromkeys(FILES, FOREVER_S) | {"models": 0.0}, "which nobody has listed"


async def test_names_that_are_asked_for_at_each_use_live_for_no_time(autojump_clock: MockClock) -> None:
    filesystem = FakeFilesystem(FILES, ["models", "other"])
    filesystem.revalidated = frozenset({"models", "last"})
    adapter = await opened(filesystem)
    timeouts = {entry.name: entry.entry_timeout_s for entry in (await shown(adapter))[2:]}
    assert {name for name, timeout_s in timeouts.items() if timeout_s == 0} == filesystem.revalidated
    assert {timeouts["a"], timeouts[FILES[1]], timeouts["other"]} == {TTL_S}
    assert lookups(filesystem) == dict.fromkeys([*FILES, "models"], 1)


# --- entries that the tree does not know ---


def huge() -> FakeFilesystem:
    """A directory of which the tree knows one name, and shows more."""
    filesystem = FakeFilesystem(["a"])
    filesystem.unseen = [(1 << 20, "b", Unseen(False)), (1 << 20 | 1, "c", Unseen(True)), (2 << 20, "d", Unseen(False))]
    filesystem.tree.directory(ROOT_INODE).huge = True
    return filesystem


async def test_what_the_tree_does_not_know_is_shown_and_not_counted() -> None:
    filesystem = huge()
    adapter = await opened(filesystem)
    remembered = Counter({node.inode: node.lookups for node in filesystem.tree.remembered()})
    entries = await shown(adapter)
    known = filesystem.node("a").inode
    assert [entry.name for entry in entries] == [*DOTS, "a", "b", "c", "d"]
    assert [entry.node_id for entry in entries] == [ROOT_INODE, ROOT_INODE, known, 0, 0, 0]
    shown_inodes = {entry.shown_inode for entry in entries[3:]}
    assert len(shown_inodes) == 3
    assert min(shown_inodes) > 1 << 61, "no number of an inode"
    assert Counter({node.inode: node.lookups for node in filesystem.tree.remembered()}) - remembered == {known: 1}


async def test_a_huge_directory_in_pieces() -> None:
    adapter = await opened(huge())
    whole = await shown(adapter)
    found = await walk(adapter, 176)
    assert [entry.name for entry in found] == [*DOTS, "a", "b", "c", "d"]
    assert [entry.shown_inode for entry in found] == [entry.shown_inode for entry in whole]


async def test_where_that_cannot_be_done_a_huge_directory_is_an_error(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(nameonly_entries, "SUPPORTED", False)
    adapter = await opened(huge())
    with Reply() as reply:
        assert await errno_of(adapter.readdir(OPENED, 0, reply.token)) == errno.EIO
    assert "too many entries" in caplog.text


# --- what goes wrong amid a reply ---


async def test_a_reply_that_fails_midway_counts_nothing() -> None:
    """The kernel gets the error alone, and none of the entries before it."""
    filesystem = FakeFilesystem(["a", "b"])
    adapter = await opened(filesystem)
    filesystem.unseen = [(7, "\udfff", Unseen(False))]  # stands for any value that cannot be converted
    with Reply() as reply:
        assert await errno_of(adapter.readdir(OPENED, 0, reply.token)) == errno.EIO
    assert [filesystem.node(name).lookups for name in ("a", "b")] == [0, 0]


async def test_a_close_closes_that_directory_alone() -> None:
    filesystem = FakeFilesystem(FILES)
    adapter = await opened(filesystem)
    other = await adapter.opendir(ROOT, CALLER)
    await adapter.releasedir(OPENED)
    with Reply() as reply:
        assert await errno_of(adapter.readdir(OPENED, 0, reply.token)) == errno.EIO
        await adapter.readdir(FileHandleT(other), 0, reply.token)
        assert [entry.name for entry in reply.entries] == [*DOTS, *FILES]
