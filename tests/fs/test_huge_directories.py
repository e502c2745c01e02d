"""Directories with more entries than the limit, through the file system.

The tree, the lister and the streams are real, over keys in memory.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from d7yfs.cache.cache import Cache
from d7yfs.cache.directory import CacheDirectory
from d7yfs.cache.filler import Filler
from d7yfs.cache.version import CachedVersion
from d7yfs.errors import AccessDenied, OriginUnavailable
from d7yfs.fs.backend import RepositoryBackend
from d7yfs.fs.filesystem import Filesystem
from d7yfs.objects import ObjectVersion, StoreIdentity
from d7yfs.tree.huge_directory import Unseen
from d7yfs.tree.nodes import Absent, Directory, Found, NameChanges
from d7yfs.tree.tree import ROOT_INODE, Tree, TreeRoot
from tests.tree.listings import MemoryListings

LIMIT = 10
PAGE = 4
TTL_S = 60.0
NEGATIVE_TTL_S = 5.0


def names(count: int) -> list[str]:
    return [f"n{number:03}" for number in range(count)]


def _no_filler(_target: CachedVersion) -> Filler:
    raise AssertionError("nothing is read")


class Mount:
    def __init__(
        self,
        filesystem: Filesystem,
        listings: MemoryListings,
        told: list[tuple[int, list[str]]],
        changed: list[tuple[Directory, NameChanges]],
    ) -> None:
        self.filesystem = filesystem
        self.listings = listings
        self.told = told
        """The names that the kernel was to forget."""
        self.changed = changed

    async def huge(self) -> Directory:
        answer = await self.filesystem.lookup(ROOT_INODE, "h")
        assert isinstance(answer, Found)
        assert isinstance(answer.node, Directory)
        return answer.node

    async def open(self) -> int:
        return await self.filesystem.opendir((await self.huge()).inode)

    async def read(self, handle: int, start: int = 0, count: int = 1 << 30) -> tuple[list[str], int]:
        """The names from an index on, as the adapter reads them, and the index where to go on."""
        shown: list[str] = []
        while len(shown) < count:
            before = len(shown)
            _, entries = await self.filesystem.entries(handle, start)
            for index, name, node in entries:
                assert isinstance(node, Unseen)
                shown.append(name)
                start = index + 1
                if len(shown) == count:
                    break
            if len(shown) == before:
                break
        return shown, start

    async def look(self, name: str) -> Found | Absent:
        return await self.filesystem.lookup((await self.huge()).inode, name)


@asynccontextmanager
async def mounted(
    tmp_path: Path, count: int = 20, *, ttl_s: float = TTL_S, max_entries: int = 1000
) -> AsyncIterator[Mount]:
    listings = MemoryListings(*(f"h/{name}" for name in names(count)), page_size=PAGE)
    tree = Tree(
        [TreeRoot("", "")],
        metadata_ttl_s=ttl_s,
        negative_ttl_s=NEGATIVE_TTL_S,
        created_ns=1,
        max_entries=max_entries,
    )
    directory = CacheDirectory(tmp_path / "cache", size_limit_bytes=1 << 30, min_free_bytes=0)
    directory.prepare()
    cache = Cache(directory, memory_buffer_bytes=0, read_timeout_s=1.0)
    told: list[tuple[int, list[str]]] = []

    def forget_names(inode: int, forgotten: Iterable[str]) -> None:
        told.append((inode, list(forgotten)))

    changed: list[tuple[Directory, NameChanges]] = []
    async with trio.open_nursery() as nursery:
        source = RepositoryBackend("mem://", StoreIdentity("mem", "", ""), listings, _no_filler, listing_limit=LIMIT)
        filesystem = Filesystem(
            tree,
            {"": source},
            cache,
            nursery,
            changed=lambda *change: changed.append(change),
            forget_names=forget_names,
        )
        yield Mount(filesystem, listings, told, changed)
        nursery.cancel_scope.cancel()


async def test_it_is_read_page_by_page_and_nothing_of_it_is_kept(tmp_path: Path) -> None:
    async with mounted(tmp_path) as mount:
        handle = await mount.open()
        inodes = mount.filesystem.tree.statistics().inodes
        asked = len(mount.listings.of("list"))
        assert (await mount.read(handle))[0] == names(20)
        assert len(mount.listings.of("list")) - asked == 20 / PAGE
        assert mount.filesystem.tree.statistics().inodes == inodes
        mount.filesystem.releasedir(handle)


async def test_who_has_it_open_from_before_it_was_huge_sees_all_that_it_had(tmp_path: Path) -> None:
    async with mounted(tmp_path, 6, max_entries=8) as mount:
        handle = await mount.open()
        directory = await mount.huge()
        mount.listings.add("h/d/x")
        for number in range(20):
            mount.listings.add(f"h/z{number}")
        await mount.filesystem.refreshers[""].refresh(directory)
        assert directory.huge
        for number in range(10):
            await mount.look(f"z{number}")  # takes the room of known names
        assert not any(directory.entry(name) for name in names(3))
        _, entries = await mount.filesystem.entries(handle, 2)
        shown = [(index, name, node.is_directory) for index, name, node in entries]
        assert shown == [(index, name, False) for index, name in enumerate(names(6))][2:]
        assert [
            name async for some in mount.filesystem.children(directory) for name, _ in some if name in names(6)
        ] == names(6)
        mount.filesystem.releasedir(handle)


async def test_a_place_in_it_is_steady(tmp_path: Path) -> None:
    async with mounted(tmp_path, 40) as mount:
        handle = await mount.open()
        places = []
        place = 0
        for _ in range(8):
            start = place
            shown, place = await mount.read(handle, start, 5)
            places.append((start, shown))
        for start, shown in reversed(places):
            assert (await mount.read(handle, start, 5))[0] == shown
        assert (await mount.read(handle, place))[0] == []


async def test_a_name_on_a_page_that_is_kept_needs_no_question(tmp_path: Path) -> None:
    async with mounted(tmp_path) as mount:
        await mount.read(await mount.open(), 0, 5)
        asked = len(mount.listings.requests)
        for name in names(3):
            assert isinstance(await mount.look(name), Found)
        assert len(mount.listings.requests) == asked


async def test_other_names_are_asked_for_exactly_and_once(tmp_path: Path) -> None:
    async with mounted(tmp_path, 60) as mount:
        await mount.open()
        for _ in range(2):
            assert isinstance(await mount.look("n050"), Found)
            assert isinstance(await mount.look("nothing"), Absent)
        assert mount.listings.of("stat") == ["h/n050", "h/nothing"]
        assert mount.listings.of("holds") == ["h/n050/", "h/nothing/"]


async def test_the_newest_answer_counts_not_that_of_an_older_page(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with mounted(tmp_path) as mount:
        await mount.read(await mount.open(), 0, 1)
        directory = await mount.huge()
        await trio.sleep(1)
        del mount.listings.versions["h/n001"]
        await mount.filesystem.refreshers[""].refresh_entry(directory, "n001")
        assert isinstance(await mount.look("n001"), Absent)
        await trio.sleep(NEGATIVE_TTL_S + 1)
        assert isinstance(await mount.look("n001"), Absent)
        assert mount.listings.of("stat") == ["h/n001"] * 2


async def test_who_opens_it_within_the_time_to_live_shares_what_was_read(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with mounted(tmp_path) as mount:
        first = await mount.open()
        await mount.read(first, 0, 1)
        await trio.testing.wait_all_tasks_blocked()
        asked = len(mount.listings.of("list"))
        second = await mount.open()
        assert (await mount.read(second, 0, 2 * PAGE))[0] == names(2 * PAGE)
        await trio.testing.wait_all_tasks_blocked()
        assert len(mount.listings.of("list")) - asked == 1, "the page ahead"


async def test_later_it_is_read_anew_also_by_who_rewinds(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with mounted(tmp_path) as mount:
        old = await mount.open()
        assert (await mount.read(old))[0] == names(20)
        mount.listings.add("h/a")
        await trio.sleep(TTL_S + 1)
        new = await mount.open()
        assert (await mount.read(new))[0] == ["a", *names(20)]
        assert (await mount.read(old))[0] == ["a", *names(20)]


async def test_without_time_to_live_each_name_is_asked_for(tmp_path: Path) -> None:
    async with mounted(tmp_path, ttl_s=0.0) as mount:
        await mount.read(await mount.open())
        for _ in range(2):
            assert isinstance(await mount.look("n001"), Found)
        assert mount.listings.of("stat").count("h/n001") == 2


async def test_one_that_has_shrunk_is_kept_whole_again(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with mounted(tmp_path) as mount:
        await mount.open()
        for name in names(20)[5:]:
            del mount.listings.versions[f"h/{name}"]
        await trio.sleep(TTL_S + 1)
        assert (await mount.read(await mount.open()))[0] == names(5)
        again = await mount.open()
        _, entries = await mount.filesystem.entries(again, 0)
        assert [name for _, name, node in entries if not isinstance(node, Unseen)] == names(5)
        assert not (await mount.huge()).huge


async def test_a_refresh_has_it_read_anew(tmp_path: Path) -> None:
    async with mounted(tmp_path) as mount:
        assert (await mount.read(await mount.open()))[0] == names(20)
        mount.listings.add("h/a")
        await mount.filesystem.refreshers[""].refresh(await mount.huge())
        assert (await mount.read(await mount.open()))[0] == ["a", *names(20)]


async def test_a_refresh_of_many_names_has_each_asked_for_when_it_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("d7yfs.tree.refresher._ASKED_BY_NAME", 5)
    async with mounted(tmp_path, 60) as mount:
        await mount.open()
        for name in names(60)[-8:]:
            await mount.look(name)
        asked = len(mount.listings.of("stat"))
        await mount.filesystem.refreshers[""].refresh(await mount.huge())
        assert len(mount.listings.of("stat")) == asked
        assert set(names(60)[-8:]) <= {name for _, changed in mount.changed for name in changed.replaced}
        del mount.listings.versions["h/n059"]
        assert isinstance(await mount.look("n059"), Absent)


async def test_what_cannot_be_shown_is_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with mounted(tmp_path) as mount:
        mount.listings.add(f"h/{'x' * 256}")
        for _ in range(2):
            assert (await mount.read(await mount.open()))[0] == names(20)
        assert len([each for each in caplog.records if "cannot be shown" in each.message]) == 1


async def test_a_page_that_fails_fails_its_reader_who_can_go_on(tmp_path: Path) -> None:
    async with mounted(tmp_path) as mount:
        handle = await mount.open()
        shown, place = await mount.read(handle, 0, PAGE)
        await trio.testing.wait_all_tasks_blocked()
        mount.listings.listing_error = AccessDenied("no")
        more, place = await mount.read(handle, place, PAGE)
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(AccessDenied):
            await mount.read(handle, place)
        mount.listings.listing_error = None
        assert shown + more + (await mount.read(handle, place))[0] == names(20)


async def test_who_walks_it_gets_every_file_page_by_page(tmp_path: Path) -> None:
    async with mounted(tmp_path, max_entries=1000) as mount:
        mount.listings.add("h/n005x/below")
        pages = [page async for page in mount.filesystem.children(await mount.huge())]
        found = [name for page in pages for name, _ in page]
        assert sorted(found) == sorted([*names(20), "n005x"])
        assert max(map(len, pages)) == PAGE
        kinds = {name for page in pages for name, node in page if isinstance(node, Directory)}
        assert kinds == {"n005x"}
        assert mount.filesystem.tree.statistics().remembered == 2, "the root, and what we looked up"


async def test_the_kernel_is_told_to_forget_but_not_what_is_open(tmp_path: Path) -> None:
    async with mounted(tmp_path, 60, max_entries=40) as mount:
        mount.listings.versions["h/n000"] = ObjectVersion("h/n000", 0, '"e"', 1)
        await mount.open()
        directory = await mount.huge()
        opened = await mount.look("n000")
        assert isinstance(opened, Found)
        await mount.filesystem.open(opened.node.inode)
        for name in names(60):
            await mount.look(name)
        inodes = {inode for inode, _ in mount.told}
        forgotten = [name for _, told in mount.told for name in told]
        assert inodes == {directory.inode}
        assert forgotten[:5] == names(6)[1:]


async def test_what_it_was_before_it_was_huge_is_no_answer(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with mounted(tmp_path, 3) as mount:
        directory = await mount.huge()
        assert isinstance(await mount.look("n000"), Found)
        for name in names(30):
            mount.listings.add(f"h/{name}")
        await trio.sleep(TTL_S)
        await mount.open()
        assert directory.huge
        await trio.sleep(TTL_S)
        mount.listings.errors["stat h/n001"] = OriginUnavailable("away")
        assert isinstance(await mount.look("n001"), Found), "as it was known"
        assert isinstance(await mount.look("n020"), Found), "which can be asked for"
        mount.listings.errors["stat"] = OriginUnavailable("away")
        with pytest.raises(OriginUnavailable):
            await mount.look("n021")
