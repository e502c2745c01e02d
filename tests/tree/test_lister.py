"""The questions that a store is asked, and their number, until a tree knows the answer."""

from __future__ import annotations

import itertools
import math
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from d7yfs.errors import AccessDenied, BucketNotFound, D7yfsError, NotFound, OriginUnavailable
from d7yfs.objects import ListingPage, ObjectVersion
from d7yfs.stats.repository_status import LastScanStatus
from d7yfs.tree.lister import RACE_AFTER_S, STALE_RETRY_S, Lister
from d7yfs.tree.nodes import Absent, Directory, File, Found, NameChanges
from d7yfs.tree.question import REST_S
from d7yfs.tree.refresher import Refresher
from d7yfs.tree.source import LIMIT, ListingMode
from d7yfs.tree.tree import ROOT_INODE, TTL_PER_LISTING, Tree, TreeRoot
from tests.tree.listings import DATE_NS, MemoryListings, collect, names_in

TTL_S = 60.0
NEGATIVE_S = 5.0


class Scene:
    """A tree, its lister and the store below it."""

    def __init__(self, tree: Tree, listings: MemoryListings) -> None:
        self.tree = tree
        self.listings = listings
        self.lister: Lister
        self.refresher: Refresher
        self.changes: list[tuple[str, NameChanges]] = []

    def changed(self, directory: Directory, changes: NameChanges) -> None:
        self.changes.append((directory.prefix, changes))

    async def look(self, path: str, asked_at: float | None = None) -> File | Directory | None:
        """The node at `path`, as the kernel walks; None when there is nothing."""
        node: File | Directory = self.tree.get(ROOT_INODE)
        for name in filter(None, path.split("/")):
            assert isinstance(node, Directory), path
            at = trio.current_time() if asked_at is None else asked_at
            await self.lister.lookup(node, name, at)
            answer = self.tree.lookup(node.inode, name, trio.current_time(), asked_at=at)
            if isinstance(answer, Absent):
                return None
            assert isinstance(answer, Found)
            self.tree.remember(answer.node.inode)
            node = answer.node
        return node

    async def directory(self, path: str = "") -> Directory:
        node = await self.look(path)
        assert isinstance(node, Directory), path
        return node

    async def names(self, path: str = "") -> list[str]:
        directory = await self.directory(path)
        await self.lister.list(directory, trio.current_time())
        return list(names_in(self.tree, directory.inode))

    async def find(self, path: str = "") -> int:
        """Walk everything as find(1) does; the number of files."""
        count = 0
        directory = await self.directory(path)
        await self.lister.list(directory, trio.current_time())
        for name, node in list((directory.children or {}).items()):
            count += await self.find(f"{path}/{name}") if isinstance(node, Directory) else 1
        return count


@asynccontextmanager
async def scene(
    listings: MemoryListings,
    mode: ListingMode = ListingMode.AUTO,
    *,
    limit: int = LIMIT,
    ttl_s: float = TTL_S,
    prefix: str = "",
    max_entries: int = 200_000,
) -> AsyncIterator[Scene]:
    tree = Tree(
        [TreeRoot("", prefix)],
        metadata_ttl_s=ttl_s,
        negative_ttl_s=NEGATIVE_S,
        created_ns=1_600_000_000_000_000_000,
        max_entries=max_entries,
    )
    made = Scene(tree, listings)
    async with trio.open_nursery() as nursery:
        made.lister = Lister(tree, "", listings, nursery, url="mem://b", mode=mode, limit=limit, changed=made.changed)
        made.refresher = Refresher(tree, "", made.lister)
        yield made
        nursery.cancel_scope.cancel()


def many(directories: int, files: int) -> list[str]:
    return [f"d{i:03}/f{j:03}" for i in range(directories) for j in range(files)]


# --- whole ---


async def test_find_costs_a_request_per_thousand_objects_once(autojump_clock: MockClock) -> None:
    listings = MemoryListings(*many(50, 70))
    listings.delays_s["scan"] = 0.05
    async with scene(listings) as it:
        assert await it.find() == 3500
        assert sorted(listings.requests) == ["list ", *["scan "] * 4]
        assert await it.find() == 3500
        assert len(listings.requests) == 5
        await trio.sleep(TTL_S + 1)
        assert await it.find() == 3500
        assert sorted(listings.requests) == [*["list "] * 2, *["scan "] * 8]


async def test_a_repository_of_one_page_is_listed_whole_and_no_other_way(autojump_clock: MockClock) -> None:
    listings = MemoryListings(*many(5, 70))
    async with scene(listings) as it:
        for _ in range(3):
            assert await it.look("d003/f007")
            assert await it.find() == 350
            await trio.sleep(TTL_S + 1)
        assert sorted(listings.requests) == ["list ", *["scan "] * 3], "its size is not known before"


async def test_a_flat_listing_that_nobody_waits_for_rests_after_its_first_page(autojump_clock: MockClock) -> None:
    listings = MemoryListings(*many(16, 70), page_size=70)
    listings.delays_s = {"scan": 1 / 32, "list": 1 / 32}
    async with scene(listings, ttl_s=1.0) as it:
        assert len(await it.names("d015")) == 70
        await trio.sleep(REST_S - 2 / 32)
        assert len(listings.of("scan")) == 1, "its reader has all that it wanted"
        await trio.sleep(1)
        assert len(listings.of("scan")) == 16
        assert it.lister.last_scan.took_s == 0.5, "the rest is no work of the store's"


async def test_a_directory_that_was_taken_out_of_the_pages_lives_as_long_as_the_rest(
    autojump_clock: MockClock,
) -> None:
    listings = MemoryListings(*many(4, 10), page_size=10)
    listings.delays_s = {"scan": 0.5, "list": 0.125}
    async with scene(listings, ttl_s=1.0) as it, trio.open_nursery() as nursery:
        nursery.start_soon(it.find)
        await trio.sleep(1.25)  # two of four pages have come
        first, last = [it.tree.find_directory("", f"d{number:03}/") for number in (0, 3)]
        assert first is not None
        assert last is not None
        before = first.children
        assert before is not None
        assert last.children is None
        await trio.sleep(1)
        assert it.lister.scanning is None
        assert first.children is before, "its entries are not applied twice"
        assert first.expires_at == last.expires_at
        assert it.lister.last_scan.directories == 5


async def test_a_flat_listing_ends_if_there_are_no_directories(autojump_clock: MockClock) -> None:
    listings = MemoryListings(*(f"f{number:03}" for number in range(90)), page_size=30)
    async with scene(listings) as it:
        assert len(await it.names()) == 90
        await trio.sleep(1)
        assert sorted(listings.requests) == [*["list "] * 3, "scan "], "nothing would be new"
        assert await it.look("f050")
        assert len(listings.requests) == 4


async def test_what_was_asked_is_counted(autojump_clock: MockClock) -> None:
    listings = MemoryListings(*many(50, 70))
    async with scene(listings, limit=1500) as it:
        assert it.lister.describe().answered_s is None
        assert await it.find() == 3500
        await trio.sleep(2)
        said = it.lister.describe()
        assert (said.scans, said.scan_pages) == (1, listings.requests.count("scan ")) == (1, 2)
        assert said.listings == said.listing_pages == 1 + 36, "without the 14 that the first page has passed"
        assert said.answered_s == pytest.approx(2.0)


async def test_a_lookup_is_answered_by_the_pages_that_have_come(autojump_clock: MockClock) -> None:
    listings = MemoryListings("a", "b/x", "c", "d", page_size=2)
    listings.delays_s["scan"] = 10.0
    async with scene(listings) as it, trio.open_nursery() as nursery:
        nursery.start_soon(it.names)
        await trio.sleep(15)  # the first page has come, the second not
        listings.gates["scan"] = trio.Event()
        listings.gates["list"] = trio.Event()
        started = trio.current_time()
        assert isinstance(await it.look("a"), File)
        assert isinstance(await it.look("b"), Directory), "settled by a key below it"
        assert await it.look("a.absent") is None
        assert trio.current_time() == started, "nobody waited"
        nursery.cancel_scope.cancel()


async def test_a_directory_is_listed_once_the_pages_have_come_past_it(autojump_clock: MockClock) -> None:
    listings = MemoryListings("a/1", "a/2", "b/1", "c", page_size=3)
    listings.delays_s["scan"] = 0.5
    async with scene(listings) as it:
        assert await it.names("a") == ["1", "2"]
        assert trio.current_time() == 0.5
        await trio.sleep(1)
        assert await it.names("b") == ["1"]
        assert await it.names() == ["a", "b", "c"]
        assert sorted(listings.requests) == ["list ", "scan ", "scan "]
        assert it.lister.describe().last_scan.directories == 3


async def test_what_the_pages_leave_open_races_a_listing_of_its_own_directory(autojump_clock: MockClock) -> None:
    listings = MemoryListings("a/1", "a/2", "z/1", page_size=1)
    listings.delays_s["scan"] = 100.0
    async with scene(listings) as it:
        node = await it.look("z")
        assert isinstance(node, Directory)
        assert trio.current_time() == 0, "by the listing of the top directory, beside the first page"
        assert listings.of("list") == ["", ""]
        assert await it.look("z/1")
        assert trio.current_time() == 0, "and by one of z/, as the pages begin with a/"
        assert len(listings.of("scan")) == 1


async def test_the_pages_say_nothing_of_a_directory_that_is_newer_than_they_are(autojump_clock: MockClock) -> None:
    listings = MemoryListings("a/1", "x", "z", page_size=2)
    listings.delays_s = {"scan": 100.0, "list": 10.0}
    async with scene(listings) as it, trio.open_nursery() as nursery:
        nursery.start_soon(it.look, "z")
        await trio.sleep(105)  # the first page has come
        listings.add("m/1")
        assert isinstance(await it.look("m"), Directory)
        assert await it.look("m/1"), "though the pages have passed it"
        assert trio.current_time() < 200
        nursery.cancel_scope.cancel()


async def test_a_listing_waits_a_second_for_the_flat_one_and_then_races_it(autojump_clock: MockClock) -> None:
    listings = MemoryListings("a/1", "a/2", page_size=1)
    listings.delays_s["scan"] = 100.0
    async with scene(listings) as it:
        assert await it.names() == ["a"]
        assert trio.current_time() == 0
        assert await it.names("a") == ["1", "2"]
        assert trio.current_time() == RACE_AFTER_S, "as the first page begins with a/"
        assert listings.of("list") == ["", "a/", "a/"]


async def test_a_directory_that_the_next_page_will_not_bring_is_listed_beside_the_rest(
    autojump_clock: MockClock,
) -> None:
    listings = MemoryListings(*many(16, 70), page_size=70)
    listings.delays_s = {"scan": 1 / 32, "list": 1 / 32}
    async with scene(listings) as it:
        assert len(await it.names("d015")) == 70
        assert listings.of("list") == ["", "d015/"]
        assert trio.current_time() == 2 / 32, "the top directory, beside the first page, and its own"


async def test_a_directory_that_the_next_page_has_not_brought_is_listed_beside_the_rest(
    autojump_clock: MockClock,
) -> None:
    listings = MemoryListings(*(f"a/b{number}/c" for number in range(90)), "z/1", page_size=10)
    listings.delays_s = {"scan": 1 / 32, "list": 1 / 32}
    async with scene(listings) as it:
        assert await it.names("z") == ["1"], "where all that is known to come before it is one directory"
        assert listings.of("list") == ["", "z/"]
        assert trio.current_time() == 3 / 32, "the top directory, another page, and its own"


async def test_who_is_amid_a_directory_waits_for_its_next_page(autojump_clock: MockClock) -> None:
    listings = MemoryListings(*many(2, 90), page_size=30)
    listings.delays_s["scan"] = 1 / 32
    async with scene(listings) as it:
        assert len(await it.names("d000")) == 90
        assert trio.current_time() == 4 / 32, "what the first page behind it has shown"
        assert listings.of("list") == [""], "beside the first page"


@pytest.mark.parametrize("page_size", [1, 7, 70, 100, 300, 1000])
async def test_who_walks_in_order_goes_along_with_the_pages(autojump_clock: MockClock, page_size: int) -> None:
    listings = MemoryListings(*many(10, 10), page_size=page_size)
    listings.delays_s["scan"] = 1 / 512
    async with scene(listings) as it:
        names = tuple(f"d{number:03}/" for number in range(10))
        known = collect("", [ListingPage((), names, "", DATE_NS)])
        it.tree.apply(ROOT_INODE, known, 0.0, asked_at=0.0)
        for number in range(10):
            assert len(await it.names(f"d{number:03}")) == 10
        assert listings.requests == ["scan "] * math.ceil(100 / page_size)


async def test_beyond_the_limit_it_goes_directory_by_directory(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    listings = MemoryListings(*many(10, 30), page_size=50)
    async with scene(listings, limit=120) as it:
        assert it.lister.describe().in_use == "whole"
        assert await it.find() == 300
        assert listings.of("scan") == [""] * 3, "it stops as soon as it is too much"
        assert sorted(listings.of("list")) == ["", *(f"d{i:03}/" for i in range(3, 10))], "what it has passed is known"
        await trio.sleep(TTL_S + 1)
        await it.names("d003")
        assert len(listings.of("scan")) == 3, "from then on"
        said = it.lister.describe()
        assert (said.in_use, said.reason) == ("directory", "it has more than 120 objects")
        assert said.scans == 1
        assert caplog.text.count("directory by directory") == 1


async def test_the_limit_may_change(autojump_clock: MockClock) -> None:
    listings = MemoryListings(*many(10, 30), page_size=50)
    async with scene(listings, limit=120) as it:
        assert await it.find() == 300
        it.lister.set_limit(120)
        assert it.lister.describe().in_use == "directory", "which is no other limit"
        it.lister.set_limit(300)
        await trio.sleep(TTL_S + 1)
        listings.requests.clear()
        assert await it.find() == 300
        assert listings.of("scan") == [""] * 6
        assert len(listings.of("list")) <= 1
        it.lister.set_limit(200)
        await trio.sleep(TTL_S + 1)
        assert await it.find() == 300
        assert it.lister.describe().reason == "it has more than 200 objects"


async def test_whole_knows_no_limit(autojump_clock: MockClock) -> None:
    listings = MemoryListings(*many(10, 30), page_size=100)
    async with scene(listings, ListingMode.WHOLE, limit=120) as it:
        assert await it.find() == 300
        assert sorted(listings.requests) == ["list ", *["scan "] * 3]
        said = it.lister.describe()
        assert said.last_scan == LastScanStatus(objects=300, directories=11, pages=3, took_s=0.0)
        assert it.lister.whole_requests == 3


@pytest.mark.parametrize("page_size", [2, 1000], ids=["amid", "on the last page"])
async def test_keys_out_of_order_mean_directory_by_directory(autojump_clock: MockClock, page_size: int) -> None:
    listings = MemoryListings(*many(3, 3), page_size=page_size)
    listings.disorder = True
    async with scene(listings) as it:
        assert await it.look("d000/f000")
        assert await it.look("d000/absent") is None
        assert await it.find() == 9
        assert it.lister.describe().reason == "its keys do not come in order"
        assert it.lister.whole_requests is None


async def test_what_alone_is_not_known_is_listed_alone(autojump_clock: MockClock) -> None:
    listings = MemoryListings(*many(20, 10))
    async with scene(listings, max_entries=60) as it:
        assert await it.find() == 200
        assert listings.of("scan") == [""], "the listing still lives, though not all of it was kept"
        assert it.tree.statistics().inodes <= 60 + 21


async def test_a_flat_listing_that_fails_leaves_each_his_own_directory(autojump_clock: MockClock) -> None:
    listings = MemoryListings(*many(3, 3))
    listings.errors["scan"] = OriginUnavailable("too much")
    async with scene(listings) as it:
        assert await it.find() == 9
        assert sorted(listings.requests) == ["list ", "list d000/", "list d001/", "list d002/", "scan "]
        del listings.errors["scan"]
        await trio.sleep(TTL_S + 1)
        assert await it.find() == 9
        assert listings.of("scan") == ["", ""]


async def test_a_repository_below_a_prefix(autojump_clock: MockClock) -> None:
    async with scene(MemoryListings("m/a/x", "n/b"), prefix="m/") as it:
        assert await it.names() == ["a"]
        assert await it.names("a") == ["x"]
        assert sorted(it.listings.requests) == ["list m/", "scan m/"]


async def test_one_object_is_asked_for_by_its_key(autojump_clock: MockClock) -> None:
    listings = MemoryListings("m/model.bin")
    async with scene(listings, prefix="m/model.bin") as it:
        assert await it.look("model.bin")
        assert await it.look("absent") is None
        assert listings.requests == ["list m/model.bin"]


# --- who waits ---


@pytest.mark.parametrize("mode", ListingMode)
async def test_questions_at_once_are_one(autojump_clock: MockClock, mode: ListingMode) -> None:
    listings = MemoryListings("a")
    gate = listings.gates["scan"] = listings.gates["list"] = listings.gates["stat"] = trio.Event()
    async with scene(listings, mode) as it:
        with trio.move_on_after(1):
            await it.look("a")
        async with trio.open_nursery() as nursery:
            for _ in range(10):
                nursery.start_soon(it.look, "a")
            await wait_all_tasks_blocked()
            gate.set()
        assert len(listings.requests) == (1 if mode in (ListingMode.DIRECTORY, ListingMode.PUBLISHED) else 2), (
            "who gave up took nothing from the others"
        )


@pytest.mark.parametrize("mode", [ListingMode.AUTO, ListingMode.DIRECTORY])
async def test_nothing_is_believed_longer_than_a_question_with_no_time_to_live(
    autojump_clock: MockClock, mode: ListingMode
) -> None:
    listings = MemoryListings("a/x")
    listings.delays_s["list"] = 1.0
    async with scene(listings, mode, ttl_s=0.0) as it:
        assert await it.names("a") == ["x"]
        assert listings.requests == ["list ", "list a/"]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(it.look, "a")
            await trio.sleep(0.5)
            listings.requests.clear()
            for name in ("a", "b", "c"):
                nursery.start_soon(it.look, name)
        assert listings.requests == ["list "], "those who came later share one that was asked for later"
        assert it.lister.describe().in_use == "directory"


async def test_forever_asks_once(autojump_clock: MockClock) -> None:
    listings = MemoryListings("a/x")
    async with scene(listings, ttl_s=math.inf) as it:
        await it.find()
        await trio.sleep(80_000)
        await it.find()
        assert sorted(listings.requests) == ["list ", "scan "]


async def test_a_slow_listing_lives_longer(autojump_clock: MockClock) -> None:
    listings = MemoryListings("a", "b", "c", page_size=1)
    listings.delays_s["list"] = 2.0
    async with scene(listings, ListingMode.DIRECTORY) as it:
        assert await it.names() == ["a", "b", "c"]
        await trio.sleep(6 * TTL_PER_LISTING - 7)
        assert await it.look("c")
        assert len(listings.requests) == 3, "listing takes no more than a part of the time"
        await trio.sleep(2)
        assert await it.names() == ["a", "b", "c"]
        assert len(listings.requests) == 6


async def test_one_page_that_took_long_says_nothing_of_the_next(autojump_clock: MockClock) -> None:
    """After a network stall, or a retry, a listed absence must not last for minutes."""
    listings = MemoryListings("a", "b", "c", page_size=1)
    listings.delays_s["list"] = 0.1
    async with scene(listings, ListingMode.DIRECTORY, ttl_s=1.0) as it, trio.open_nursery() as nursery:

        async def stall() -> None:
            await trio.sleep(0.15)  # the second page is under way
            listings.delays_s["list"] = 4.0
            await trio.sleep(2.0)  # the third
            listings.delays_s["list"] = 0.1

        nursery.start_soon(stall)
        assert await it.names() == ["a", "b", "c"]
        asked = len(listings.requests)
        listings.add("new")
        await trio.sleep(3 * 0.1 * TTL_PER_LISTING)
        assert await it.names() == ["a", "b", "c", "new"]
        assert len(listings.requests) > asked


@pytest.mark.parametrize("took_s", [4.0, 50.0])
async def test_a_store_that_was_away_is_not_a_slow_one(autojump_clock: MockClock, took_s: float) -> None:
    listings = MemoryListings("a")
    listings.delays_s["list"] = took_s
    async with scene(listings, ListingMode.DIRECTORY, ttl_s=1.0) as it:
        assert await it.look("a")
        listings.delays_s.clear()
        await trio.sleep(0.5 * TTL_PER_LISTING)
        assert await it.look("a")
        assert len(listings.requests) == 2


# --- failures ---


@pytest.mark.parametrize("mode", ListingMode)
async def test_what_was_known_is_served_while_the_store_is_away(
    autojump_clock: MockClock, mode: ListingMode, caplog: pytest.LogCaptureFixture
) -> None:
    listings = MemoryListings("a")
    away = OriginUnavailable("mem:// is away")
    async with scene(listings, mode) as it:
        listings.errors |= dict.fromkeys(("scan", "list", "stat", "holds"), away)
        with pytest.raises(OriginUnavailable, match="is away"):
            await it.look("a")
        listings.errors.clear()
        await trio.sleep(STALE_RETRY_S)
        node = await it.look("a")
        await trio.sleep(TTL_S + 1)
        listings.errors |= dict.fromkeys(("scan", "list", "stat", "holds"), away)
        assert await it.look("a") is node
        assert "serving the last listing" in caplog.text
        asked = len(listings.requests)
        assert await it.look("a") is node
        assert len(listings.requests) == asked
        listings.errors.clear()
        del listings.versions["a"]
        await trio.sleep(STALE_RETRY_S + 1)
        assert await it.look("a") is None


async def test_a_bug_is_an_error_to_those_who_wait(autojump_clock: MockClock, caplog: pytest.LogCaptureFixture) -> None:
    listings = MemoryListings("a")
    listings.listing_error = ZeroDivisionError("oops")
    async with scene(listings, ListingMode.DIRECTORY) as it:
        with pytest.raises(OriginUnavailable, match="ZeroDivisionError"):
            await it.look("a")
        assert "Traceback" in caplog.text


# --- directory by directory ---


async def test_a_name_that_the_first_page_leaves_open_is_asked_for_exactly(autojump_clock: MockClock) -> None:
    listings = MemoryListings(*(f"f{i:03}" for i in range(300)), "z/x", page_size=100)
    listings.delays_s["list"] = 10.0
    async with scene(listings, ListingMode.DIRECTORY) as it:
        assert isinstance(await it.look("f250"), File)
        assert trio.current_time() == 10
        assert isinstance(await it.look("z"), Directory)
        assert await it.look("zz") is None
        assert trio.current_time() == 10
        assert listings.of("stat") == ["f250", "z", "zz"]
        assert len(await it.names()) == 301
        assert len(listings.of("list")) == 4, "the one listing went on all the while"


async def test_a_huge_directory_is_not_kept(autojump_clock: MockClock) -> None:
    listings = MemoryListings(*(f"big/f{i:05}" for i in range(500)), "small/x", page_size=100)
    async with scene(listings, limit=250) as it:
        assert isinstance(await it.look("big/f00400"), File)
        big = await it.directory("big")
        await it.lister.list(big, trio.current_time())
        assert big.huge
        assert big.children is None
        listings.requests.clear()
        assert isinstance(await it.look("big/f00499"), File)
        assert await it.look("big/absent") is None
        assert set(listings.requests) == {
            *("stat big/f00499", "holds big/f00499/", "stat big/absent", "holds big/absent/")
        }
        assert await it.names("small") == ["x"]
        assert it.tree.statistics().inodes < 20


async def test_where_the_listing_lives_a_name_that_was_absent_is_asked_for_alone(autojump_clock: MockClock) -> None:
    listings = MemoryListings("a", "b")
    async with scene(listings) as it:
        top = await it.directory()
        assert await it.names() == ["a", "b"]
        del listings.versions["a"]
        await it.refresher.refresh_entry(top, "a")
        listings.add("a")
        assert await it.look("a") is None
        await trio.sleep(NEGATIVE_S)
        listings.requests.clear()
        assert await it.look("a")
        assert await it.look("b")
        assert listings.requests == ["stat a", "holds a/"] or listings.requests == ["holds a/", "stat a"]
        assert it.changes[-1] == ("", NameChanges(added=("a",))), "and the kernel hears of it"


async def test_a_name_that_was_absent_while_a_listing_came_is_asked_for_after_its_time(
    autojump_clock: MockClock,
) -> None:
    listings = MemoryListings(*(f"f{i:03}" for i in range(30)), page_size=10)
    listings.delays_s["list"] = 2.0
    async with scene(listings, ListingMode.DIRECTORY) as it, trio.open_nursery() as nursery:
        nursery.start_soon(it.names)
        await trio.sleep(3)  # the first page has come
        removed = listings.versions.pop("f025")
        assert await it.look("f025") is None, "asked for alone"
        listings.versions["f025"] = removed
        await trio.sleep(NEGATIVE_S)  # the listing is over, and has shown it
        assert await it.look("f025")
        assert len(listings.of("list")) == 3
        nursery.cancel_scope.cancel()


# --- exactly ---


async def test_exact_names_need_no_listing(autojump_clock: MockClock) -> None:
    listings = MemoryListings("m/a/1/x", "m/a/config", "m/a/config/also")
    listings.errors |= {"list": AccessDenied("no"), "scan": AccessDenied("no"), "holds": AccessDenied("no")}
    async with scene(listings, ListingMode.EXACT, prefix="m/") as it:
        assert isinstance(await it.look("a/1/x"), File)
        assert isinstance(await it.look("a/config"), File), "nobody is told of what lies below"
        assert isinstance(await it.look("nowhere"), Directory), "which cannot be known"
        with pytest.raises(AccessDenied):
            await it.names("a")
        assert it.lister.describe().in_use == "exact"


async def test_exact_names_where_listing_is_allowed(autojump_clock: MockClock) -> None:
    listings = MemoryListings("a", "a/b", "empty/", "c")
    async with scene(listings, ListingMode.EXACT) as it:
        assert isinstance(await it.look("a"), Directory), "of an object and a directory the directory"
        assert isinstance(await it.look("empty"), Directory)
        c = await it.look("c")
        assert await it.look("d") is None
        assert listings.of("stat") == ["a", "empty", "c", "d"]
        assert not listings.of("list")
        asked = len(listings.requests)
        assert await it.look("c") is c
        assert await it.look("d") is None
        assert len(listings.requests) == asked
        await trio.sleep(NEGATIVE_S)
        listings.add("d")
        assert isinstance(await it.look("d"), File), "the negative time to live is its own"
        assert await it.look("c") is c
        assert listings.of("stat").count("c") == 1
        await trio.sleep(TTL_S)
        assert await it.look("c") is c
        assert listings.of("stat").count("c") == 2
        assert await it.names() == ["a", "c", "d", "empty"], "who lists gets a listing"


async def test_a_directory_is_one_whatever_the_object_is(autojump_clock: MockClock) -> None:
    listings = MemoryListings("a", "a/b")
    listings.delays_s["stat"] = 10.0
    async with scene(listings, ListingMode.EXACT) as it:
        assert isinstance(await it.look("a"), Directory)
        assert trio.current_time() == 0


async def test_a_name_that_cannot_be_shown_is_not_asked_for(autojump_clock: MockClock) -> None:
    listings = MemoryListings()
    async with scene(listings, ListingMode.EXACT) as it:
        assert await it.look("x" * 256) is None
        assert await it.look("\udcff") is None
        assert listings.requests == []


async def test_where_listing_is_denied_auto_asks_exactly(autojump_clock: MockClock) -> None:
    listings = MemoryListings("a/x", "b/y")
    listings.errors |= {"scan ": AccessDenied("no"), "list b/": AccessDenied("no"), "holds": AccessDenied("no")}
    async with scene(listings) as it:
        assert await it.names() == ["a", "b"]
        assert await it.names("a") == ["x"]
        assert isinstance(await it.look("b/y"), File)
        with pytest.raises(AccessDenied):
            await it.names("b")
        asked = len(listings.of("list"))
        assert isinstance(await it.look("b/z"), Directory), "no object, and nobody may see directories"
        assert len(listings.of("list")) == asked, "for a while it is not tried again"
        listings.errors["stat"] = AccessDenied("no")
        with pytest.raises(AccessDenied):
            await it.look("b/w")


async def test_a_directory_that_may_not_be_listed_is_tried_again_after_a_minute(autojump_clock: MockClock) -> None:
    listings = MemoryListings("b/y")
    listings.errors |= {"scan": AccessDenied("no"), "list b/": AccessDenied("no"), "holds": AccessDenied("no")}
    async with scene(listings, ttl_s=1000.0) as it:
        for minute in (1, 2):
            assert isinstance(await it.look(f"b/{minute}"), Directory), "which nobody may tell"
            assert listings.of("list") == ["", *["b/"] * minute]
            await trio.sleep(59)
            assert isinstance(await it.look(f"b/{minute}.5"), Directory)
            assert listings.of("list") == ["", *["b/"] * minute], "by its name alone, so long"
            await trio.sleep(2)
        listings.errors.clear()
        assert await it.look("b/3") is None, "by a listing"
        assert await it.names("b") == ["y"]


@pytest.mark.parametrize(("error", "pause_s"), [(AccessDenied("no"), 60.0), (OriginUnavailable("away"), 5.0)])
async def test_a_flat_listing_that_fails_is_tried_again_after_a_while(
    autojump_clock: MockClock, error: D7yfsError, pause_s: float
) -> None:
    listings = MemoryListings("a")
    listings.errors["scan"] = error
    async with scene(listings, ttl_s=0.5) as it:
        for tries in (1, 2):
            assert await it.look("a")
            await trio.sleep(pause_s - 1)
            assert await it.look("a")
            assert len(listings.of("scan")) == tries
            assert len(listings.of("list")) == 2 * tries, "meanwhile the directory is listed alone"
            await trio.sleep(2)
        listings.requests.clear()
        listings.errors.clear()
        assert await it.look("a")
        assert listings.of("scan") == [""]


@pytest.mark.parametrize("mode", [ListingMode.WHOLE, ListingMode.DIRECTORY])
async def test_otherwise_a_listing_that_is_denied_is_an_error(autojump_clock: MockClock, mode: ListingMode) -> None:
    listings = MemoryListings("a")
    listings.listing_error = AccessDenied("no")
    async with scene(listings, mode) as it:
        with pytest.raises(AccessDenied):
            await it.look("a")
        assert not listings.of("stat")


async def test_a_listing_that_fails_is_not_one_that_is_denied(autojump_clock: MockClock) -> None:
    listings = MemoryListings("a")
    listings.errors |= dict.fromkeys(("scan", "list"), OriginUnavailable("away"))
    async with scene(listings) as it:
        with pytest.raises(OriginUnavailable):
            await it.look("a")
        assert not listings.of("stat")
        listings.errors.clear()
        assert await it.look("a")
        assert not listings.of("stat")


async def test_files_do_not_become_directories_when_credentials_expire(autojump_clock: MockClock) -> None:
    listings = MemoryListings("a", "d/x")
    async with scene(listings, ListingMode.EXACT) as it:
        a, d = await it.look("a"), await it.look("d")
        listings.errors |= {"stat": AccessDenied("no"), "holds": AccessDenied("no")}
        await trio.sleep(TTL_S + 1)
        assert await it.look("a") is a
        assert await it.look("d") is d


@pytest.mark.parametrize("error", [OriginUnavailable("away"), BucketNotFound("gone")])
@pytest.mark.parametrize("kind", ["stat", "holds"])
async def test_half_an_answer_is_none(autojump_clock: MockClock, kind: str, error: D7yfsError) -> None:
    listings = MemoryListings("other")
    listings.errors[kind] = error
    async with scene(listings, ListingMode.EXACT) as it:
        with pytest.raises(type(error)):
            await it.look("a")


# --- changes and refreshing ---


async def test_changes_are_told(autojump_clock: MockClock) -> None:
    listings = MemoryListings("a/x", "a/y", "b")
    async with scene(listings) as it:
        await it.find()
        assert it.changes == []
        del listings.versions["a/x"]
        listings.add("a/z")
        listings.add("b", "other")
        await trio.sleep(TTL_S + 1)
        await it.find()
        assert it.changes == [
            ("", NameChanges(replaced=("b",))),
            ("a/", NameChanges(added=("z",), removed=("x",))),
        ]


@pytest.mark.parametrize("mode", ListingMode)
async def test_a_refresh_sees_what_is_there_now(autojump_clock: MockClock, mode: ListingMode) -> None:
    listings = MemoryListings("a/x", "a/b/y", "c/w")
    async with scene(listings, mode) as it:
        for path in ("a/x", "a/b/y", "c/w"):
            assert await it.look(path)
        listings.add("a/x", "new")
        listings.add("c/w", "new")
        del listings.versions["a/b/y"]
        listings.add("a/b/yy")
        refreshed = await it.refresher.refresh(await it.directory("a"))
        assert sorted(refreshed.changes, key=str) == sorted(it.changes, key=str)
        changed = {prefix: (changes.replaced, changes.removed) for prefix, changes in it.changes}
        assert changed == {"a/": (("x",), ()), "a/b/": ((), ("y",))}
        x = await it.look("a/x")
        assert isinstance(x, File)
        assert x.version.validator == '"new"'
        assert await it.look("a/b/y") is None
        await it.refresher.refresh(it.tree.directory(ROOT_INODE))
        assert it.changes[-1] == ("c/", NameChanges(replaced=("w",)))
        if mode in (ListingMode.AUTO, ListingMode.WHOLE):
            assert listings.of("scan") == ["", "a/", ""]
            assert listings.of("list") == [""], "at first"


@pytest.mark.parametrize("mode", ListingMode)
async def test_a_directory_that_is_gone_is_found_to_be(autojump_clock: MockClock, mode: ListingMode) -> None:
    listings = MemoryListings("a/b/x", "c")
    async with scene(listings, mode) as it:
        assert await it.look("a/b/x")
        del listings.versions["a/b/x"]
        await it.refresher.refresh(await it.directory("a/b"))
        assert await it.look("a/b") is None
        assert ("a/", NameChanges(removed=("b",))) in it.changes


async def test_a_refresh_is_asked_for_after_it(autojump_clock: MockClock) -> None:
    listings = MemoryListings("a")
    listings.delays_s["scan"] = 10.0
    async with scene(listings) as it, trio.open_nursery() as nursery:
        nursery.start_soon(it.names)
        await trio.sleep(0.5)
        await it.refresher.refresh(it.tree.directory(ROOT_INODE))
        assert trio.current_time() == 20
        assert listings.of("scan") == ["", ""]


async def test_a_refresh_waits_for_what_was_asked_before_it(autojump_clock: MockClock) -> None:
    listings = MemoryListings("a/x", "b/x", "c/d/x")
    async with scene(listings, ListingMode.EXACT) as it, trio.open_nursery() as nursery:
        a, d = await it.directory("a"), await it.directory("c/d")
        listings.delays_s |= {"stat a/x": 10.0, "list c/d/": 10.0, "holds b/": 100.0}
        nursery.start_soon(it.look, "a/x")
        nursery.start_soon(it.lister.list, d, trio.current_time())
        nursery.start_soon(it.look, "b/x")
        await trio.sleep(1)
        listings.requests.clear()
        refreshed_at = trio.current_time()
        await it.refresher.refresh(a)
        assert set(listings.requests) >= {"list a/"} or listings.of("stat") == ["a/x"]
        assert (a.singles or {})["x"].asked_at >= refreshed_at
        await it.refresher.refresh(await it.directory("c"))
        assert d.asked_at >= refreshed_at
        assert trio.current_time() < 100, "what lies elsewhere is not waited for"
        nursery.cancel_scope.cancel()


async def test_a_refresh_reaches_what_is_below_a_directory_that_was_dropped_for_room(autojump_clock: MockClock) -> None:
    """The kernel still remembers `a/b`, though nothing tells any more that it is in `a`."""
    listings = MemoryListings("a/b/x", *(f"a/{number}" for number in range(10)), "c/x")
    async with scene(listings, ListingMode.DIRECTORY, max_entries=8) as it:
        b = await it.directory("a/b")
        await it.look("a/b/x")
        a = await it.directory("a")
        it.tree.max_entries = 4
        await it.names("c")
        for number in range(4):
            await it.look(f"absent{number}")
        assert b.entries, "it is about what is known"
        assert it.tree.find_directory("", "a/b/") is None
        listings.add("a/b/x", "new")
        await it.refresher.refresh(a)
        x = await it.look("a/b/x")
        assert isinstance(x, File)
        assert x.version.validator == '"new"'


async def test_a_refresh_of_a_directory_that_turns_out_to_be_huge_asks_for_each_name(autojump_clock: MockClock) -> None:
    listings = MemoryListings("a", "b", page_size=2)
    async with scene(listings, ListingMode.DIRECTORY, limit=4) as it:
        top = await it.directory()
        assert await it.names() == ["a", "b"]
        listings.add("b", "new")
        for number in range(10):
            listings.add(f"c{number}")
        await it.refresher.refresh(top)
        assert top.huge
        b = await it.look("b")
        assert isinstance(b, File)
        assert b.version.validator == '"new"'


async def test_a_refresh_that_fails_says_so_and_leaves_what_is_known(autojump_clock: MockClock) -> None:
    listings = MemoryListings("a/x")
    async with scene(listings) as it:
        await it.find()
        listings.errors |= dict.fromkeys(("scan", "list", "stat", "holds"), OriginUnavailable("away"))
        with pytest.raises(OriginUnavailable):
            await it.refresher.refresh(await it.directory("a"))
        with pytest.raises(OriginUnavailable):
            await it.refresher.relist(await it.directory("a"))
        with pytest.raises(OriginUnavailable):
            await it.refresher.refresh_entry(await it.directory("a"), "x")
        assert await it.look("a/x")
        assert it.tree.statistics().stale_listings_total == 0


async def test_one_entry_is_refreshed_by_itself(autojump_clock: MockClock) -> None:
    listings = MemoryListings("a/x", "a/y")
    async with scene(listings) as it:
        before = await it.look("a/x")
        listings.add("a/x", "new")
        listings.add("a/y", "new")
        assert await it.refresher.refresh_entry(await it.directory("a"), "x") == NameChanges(replaced=("x",))
        after = await it.look("a/x")
        assert after is not before
        assert await it.refresher.refresh_entry(await it.directory("a"), "x") == NameChanges()
        assert await it.look("a/x") is after
        assert sorted(listings.requests) == ["holds a/x/"] * 2 + ["list ", "scan "] + ["stat a/x"] * 2
        del listings.versions["a/y"]
        assert await it.refresher.refresh_entry(await it.directory("a"), "y") == NameChanges(removed=("y",))
        assert await it.look("a/y") is None


async def test_a_repository_that_arrives_is_asked_for(autojump_clock: MockClock) -> None:
    listings = MemoryListings()
    async with scene(listings) as it:
        assert await it.names() == []
        listings.add("m/a")
        it.lister.relocate("m/")
        assert await it.names() == ["a"]
        assert sorted(listings.requests) == ["list ", "list m/", "scan ", "scan m/"]


def test_not_found_of_the_bucket_is_no_absent_name() -> None:
    assert issubclass(BucketNotFound, NotFound)


@pytest.mark.parametrize("mode", [ListingMode.WHOLE, ListingMode.DIRECTORY])
async def test_refreshes_at_once_share_a_question_but_none_that_is_older(
    autojump_clock: MockClock, mode: ListingMode
) -> None:
    listings = MemoryListings("a")
    async with scene(listings, mode) as it, trio.open_nursery() as nursery:
        top = await it.directory()
        await it.names()
        await trio.sleep(TTL_S + 1)
        listings.delays_s = {"scan": 5.0, "list": 5.0}
        nursery.start_soon(it.names)
        await trio.sleep(0.5)
        listings.requests.clear()
        for _ in range(3):
            nursery.start_soon(it.refresher.refresh, top)
        await trio.sleep(20)
        assert listings.of("scan" if mode is ListingMode.WHOLE else "list") == [""]


async def test_the_one_object_of_a_repository_is_refreshed_by_its_key(autojump_clock: MockClock) -> None:
    listings = MemoryListings("m/one")
    async with scene(listings, prefix="m/one") as it:
        assert await it.names() == ["one"]
        assert not await it.refresher.refresh_entry(await it.directory(), "one")
        assert await it.names() == ["one"]
        listings.add("m/one", "new")
        assert (await it.refresher.refresh_entry(await it.directory(), "one")).replaced == ("one",)


# --- a store that means harm ---


class EndlessListings(MemoryListings):
    """A store whose listings bring new names for ever, in pages of a thousand."""

    async def pages(self, prefix: str, *, delimiter: str = "/") -> AsyncGenerator[ListingPage, None]:
        for number in itertools.count():
            await trio.lowlevel.checkpoint()
            self.requests.append("list" if delimiter else "scan")
            keys = [f"{prefix}{number:09}-{each:03}" for each in range(1000)]
            yield ListingPage(tuple(ObjectVersion(key, 1, '"e"', DATE_NS) for key in keys), (), f"t{number}", DATE_NS)


@pytest.mark.parametrize("mode", [ListingMode.AUTO, ListingMode.WHOLE, ListingMode.DIRECTORY])
async def test_a_listing_without_an_end_keeps_within_the_bounds(autojump_clock: MockClock, mode: ListingMode) -> None:
    listings = EndlessListings("000000000-000")
    async with scene(listings, mode, limit=3000, max_entries=10_000) as it:
        directory = await it.directory()
        await it.lister.list(directory, trio.current_time())
        assert directory.huge, "it is read page by page, and each name is asked for"
        assert it.tree.statistics().inodes < 11_000
        assert len(listings.requests) < 30
        assert await it.look("000000000-000") is not None
