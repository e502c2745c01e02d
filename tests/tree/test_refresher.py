"""Refresh-ahead with a real tree, a store in memory, and a clock that jumps."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any, cast

import pytest
import trio
from trio.testing import MockClock

from d7yfs.errors import OriginUnavailable, VersionGone
from d7yfs.objects import ListingPage, ObjectVersion
from d7yfs.tree.nodes import Directory, Expired, File, Found, Node
from d7yfs.tree.question import Refreshed
from d7yfs.tree.refresher import REST, RETRY_S, Refresher, RefreshPlan, plan
from d7yfs.tree.source import NothingPublished
from d7yfs.tree.tree import ROOT_INODE, Tree, TreeRoot
from tests.tree.listings import collect

TTL_S = 60.0


class Asked(Refresher):
    """A refresher that lists into a tree, and records its questions; each answer takes `takes_s`."""

    def __init__(self, *, ttl_s: float = TTL_S, directories: tuple[str, ...] = ("a/", "b/", "c/")) -> None:
        self.tree = Tree([TreeRoot("", "")], metadata_ttl_s=ttl_s, negative_ttl_s=5, created_ns=1)
        self.published = NothingPublished()
        super().__init__(self.tree, "", cast(Any, self))
        self.contents: dict[str, list[str]] = {"": [*directories], **{each: [f"{each}f"] for each in directories}}
        self.asked: list[tuple[float, str]] = []
        self.whole_requests: int | None = None
        self.takes_s = 0.0
        self.error: Exception | None = None
        self.at_once = self.most_at_once = 0
        self.on_asked: Callable[[], None] = lambda: None

    async def refresh(self, directory: Directory) -> Refreshed:
        """Refresh all; only the top directory is asked for."""
        assert directory.inode == ROOT_INODE
        asked_at = trio.current_time()
        await self._answer("whole")
        for prefix in self.contents:
            self._apply(self.directory(prefix), asked_at)
        return Refreshed()

    async def relist(self, directory: Directory) -> Refreshed:
        asked_at = trio.current_time()
        await self._answer(directory.prefix)
        self._apply(directory, asked_at)
        return Refreshed()

    async def _answer(self, what: str) -> None:
        self.asked.append((trio.current_time(), what))
        self.on_asked()
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        await trio.sleep(self.takes_s)
        self.at_once -= 1
        if self.error is not None:
            raise self.error

    def _apply(self, directory: Directory, asked_at: float) -> None:
        keys = self.contents[directory.prefix]
        objects = tuple(ObjectVersion(key, 1, "v", 1) for key in keys if not key.endswith("/"))
        page = ListingPage(objects, tuple(key for key in keys if key.endswith("/")), "", 1)
        now = trio.current_time()
        listing = collect(directory.prefix, [page])
        self.tree.apply(directory.inode, listing, now, asked_at=asked_at, took_s=self.takes_s)

    def directory(self, prefix: str) -> Directory:
        node = self.tree.resolve(prefix)
        assert isinstance(node, Directory)
        return node

    async def use(self, path: str) -> bool:
        """Look a path up as the kernel does, and list what has expired. True if all of it was
        fresh."""
        fresh, prefix = True, ""
        for name in path.split("/"):
            directory = self.directory(prefix)
            while isinstance(answer := self.look_up(directory, name), Expired):
                fresh = False
                self._apply(directory, trio.current_time())
            assert isinstance(answer, Found)
            prefix += f"{name}/"
        return fresh

    def look_up(self, directory: Directory, name: str) -> object:
        directory.used_at = trio.current_time()
        return self.tree.lookup(directory.inode, name, trio.current_time())

    def asked_for(self, what: str) -> list[float]:
        return [at for at, asked in self.asked if asked == what]


@asynccontextmanager
async def refreshed(refresher: Asked) -> AsyncIterator[Refresher]:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(refresher.run)
        yield refresher
        nursery.cancel_scope.cancel()


async def test_what_is_in_use_never_expires(autojump_clock: MockClock) -> None:
    store = Asked()
    async with refreshed(store) as refresher:
        await store.use("a/f")
        for _ in range(100):
            await trio.sleep(7)
            assert await store.use("a/f"), trio.current_time()
        assert {what for _, what in store.asked} == {"", "a/"}, "and nothing else is kept fresh"
        requests = len(store.asked_for("a/"))
        assert 700 / TTL_S <= requests <= 700 / (0.8 * TTL_S) + 1
        assert refresher.counters.refreshed_directories == len(store.asked)


async def test_a_change_is_seen_within_the_time_to_live_though_it_is_in_use_all_the_time(
    autojump_clock: MockClock,
) -> None:
    store = Asked()
    async with refreshed(store):
        await store.use("a/f")
        await trio.sleep(20)
        store.contents["a/"].append("a/new")
        changed_at = trio.current_time()
        while "new" not in (store.directory("a/").children or {}):
            await store.use("a/f")
            await trio.sleep(1)
        assert trio.current_time() - changed_at <= TTL_S


async def test_it_stops_when_nobody_looks(autojump_clock: MockClock) -> None:
    store = Asked()
    async with refreshed(store):
        await store.use("a/f")
        await trio.sleep(10 * TTL_S)
        assert [what for _, what in store.asked] == ["", "a/"], "once for the use there was"
        assert not await store.use("a/f")
        await trio.sleep(10 * TTL_S)
        assert len(store.asked) == 4


async def test_it_is_asked_for_ahead_of_its_expiry(autojump_clock: MockClock) -> None:
    store = Asked()
    async with refreshed(store):
        await store.use("a/f")
        await trio.sleep(TTL_S)
        (at,) = store.asked_for("a/")
        assert 0.8 * TTL_S <= at < 0.9 * TTL_S


async def test_use_in_the_last_moment_counts(autojump_clock: MockClock) -> None:
    store = Asked()
    async with refreshed(store):
        await store.use("a/f")
        await trio.sleep(70)
        (first,) = store.asked_for("a/")
        await trio.sleep(first + TTL_S - 4 - trio.current_time())
        assert await store.use("a/f")
        await trio.sleep(5)
        assert await store.use("a/f"), "it was refreshed at once, for it was past due"


async def test_all_of_it_at_once_where_that_is_less(autojump_clock: MockClock) -> None:
    store = Asked()
    store.whole_requests = 3
    async with refreshed(store) as refresher:
        await store.use("a/f")
        await trio.sleep(TTL_S)
        assert {what for _, what in store.asked} == {"", "a/"}
        for path in ("a/f", "b/f", "c/f"):
            await store.use(path)
        store.asked.clear()
        await trio.sleep(TTL_S)
        assert [what for _, what in store.asked] == ["whole"]
        assert refresher.counters.refreshes > 1


@pytest.mark.parametrize("takes_s", [0.1, 2.0, 3.0, 20.0])
async def test_never_more_than_a_twentieth_of_the_time(autojump_clock: MockClock, takes_s: float) -> None:
    store = Asked()
    store.whole_requests, store.takes_s = 1, takes_s
    async with refreshed(store) as refresher:
        for _ in range(1000):
            await store.use("a/f")
            await trio.sleep(7)
    spent_s = takes_s * len(store.asked)
    assert spent_s <= (7000 + takes_s * REST) / (REST + 1)
    assert store.asked, "it goes on, if slowly"
    assert refresher.counters.refresh_s == pytest.approx(spent_s, abs=takes_s)


async def test_a_slow_store_does_not_make_readers_wait(autojump_clock: MockClock) -> None:
    store = Asked()
    store.whole_requests, store.takes_s = 1, 20.0
    async with refreshed(store):
        await store.use("a/f")
        for _ in range(1000):
            await trio.sleep(7)
            assert await store.use("a/f"), trio.current_time()


async def test_many_directories_are_refreshed_a_few_at_a_time(autojump_clock: MockClock) -> None:
    names = tuple(f"d{number:04}/" for number in range(2000))
    store = Asked(directories=names)
    store.takes_s = 0.1
    async with refreshed(store) as refresher:
        for name in names:
            await store.use(f"{name}f")
        await trio.sleep(0.9 * TTL_S)
        assert store.most_at_once == 4
        assert 0 < len(store.asked) < 2000 / 10, "as many as the time suffices for"
        counted = refresher.counters
        assert counted.refreshed_directories == len(store.asked)
        assert counted.refreshes == 1


@pytest.mark.parametrize("ttl_s", [0.0, float("inf")])
async def test_what_lives_never_or_for_ever_is_not_refreshed(autojump_clock: MockClock, ttl_s: float) -> None:
    store = Asked(ttl_s=ttl_s)
    async with refreshed(store):
        await trio.sleep(10 * TTL_S)
        assert not store.asked


async def test_another_time_to_live_counts_from_now_on(autojump_clock: MockClock) -> None:
    store = Asked(ttl_s=math.inf)
    async with refreshed(store) as refresher:
        await trio.sleep(10 * TTL_S)
        store.tree.set_ttls(metadata_ttl_s=TTL_S, negative_ttl_s=5)
        await store.use("a/f")
        refresher.change_ttl()
        await trio.sleep(TTL_S)
        assert store.asked


async def test_a_round_that_fails_changes_nothing_and_is_tried_again(autojump_clock: MockClock) -> None:
    store = Asked()
    async with refreshed(store) as refresher:
        await store.use("a/f")
        store.error = OriginUnavailable("no answer")
        await trio.sleep(0.95 * TTL_S)
        assert await store.use("a/f"), "what is known is served"
        assert refresher.counters.refreshes_failed == refresher.counters.refreshes > 0
        times = sorted({at for at, _ in store.asked})
        assert all(later - earlier >= RETRY_S for earlier, later in pairwise(times))
        store.error = None
        await trio.sleep(10)
        assert await store.use("a/f")


async def test_a_store_that_is_gone_is_not_asked_for_ever(autojump_clock: MockClock) -> None:
    store = Asked()
    store.error = OriginUnavailable("no answer")
    async with refreshed(store):
        await store.use("a/f")
        await trio.sleep(2 * TTL_S)
        store.asked.clear()
        await trio.sleep(10 * TTL_S)
        assert store.asked == []


async def test_a_directory_that_went_away_is_no_failure(autojump_clock: MockClock) -> None:
    store = Asked()
    async with refreshed(store) as refresher:
        await store.use("a/f")
        store.error = VersionGone("it is no directory any more")
        await trio.sleep(TTL_S)
        assert store.asked
        assert refresher.counters.refreshes_failed == 0


async def test_a_bug_is_not_the_end_of_it(autojump_clock: MockClock) -> None:
    store = Asked()
    async with refreshed(store) as refresher:
        await store.use("a/f")
        store.error = ValueError("a bug")
        await trio.sleep(0.95 * TTL_S)
        assert await store.use("a/f")
        assert refresher.counters.refreshes_failed
        store.error = None
        await trio.sleep(10)
        assert await store.use("a/f")


async def test_readers_go_on_while_it_asks(autojump_clock: MockClock) -> None:
    store = Asked()
    store.takes_s = 2.0
    served = []
    async with refreshed(store):
        await store.use("a/f")
        store.on_asked = lambda: served.append(isinstance(store.look_up(store.directory("a/"), "f"), Found))
        await trio.sleep(TTL_S)
        assert served
        assert all(served)


def listed(
    name: str, *, asked_at: float = 0.0, used_at: float = 1.0, life_s: float = TTL_S, entries: int = 1
) -> Directory:
    directory = Directory(hash(name), "", f"{name}/", 1)
    node: Node = File(1, "", ObjectVersion("k", 1, "v", 1), 1)
    directory.children = dict.fromkeys(map(str, range(entries)), node)
    directory.asked_at, directory.used_at, directory.expires_at = asked_at, used_at, asked_at + life_s
    return directory


def test_what_was_used_is_due_at_four_fifths_of_its_life() -> None:
    used = listed("used")
    assert not plan([used], 47.9, None)
    assert plan([used], 48.0, None) == RefreshPlan(False, (used,))
    assert plan([used], 59.9, None) == RefreshPlan(False, (used,))


def test_a_slow_listing_lives_longer_and_is_due_later() -> None:
    slow = listed("slow", life_s=250.0, used_at=200.0)
    assert not plan([slow], 199.9, None)
    assert plan([slow], 200.0, None)


def test_what_nobody_has_used_since_it_was_listed_is_left_alone() -> None:
    unused = listed("unused", asked_at=10.0, used_at=9.0)
    assert not plan([unused], 60.0, None)
    unused.used_at = 60.0
    assert plan([unused], 60.0, None), "the moment somebody does, it is"


def test_late_is_better_than_never_but_not_for_long() -> None:
    late = listed("late", used_at=50.0)
    assert plan([late], 70.0, None), "the refresher was at rest when it expired"
    assert plan([late], 109.9, None)
    assert not plan([late], 110.0, None), "nobody has looked for as long as a listing lives"


@pytest.mark.parametrize("life_s", [0.0, math.inf])
def test_what_is_always_or_never_asked_for_is_no_matter_of_time(life_s: float) -> None:
    assert not plan([listed("d", life_s=life_s, used_at=50.0)], 55.0, 1)


def test_a_directory_without_entries_known_is_nothing_to_keep() -> None:
    dropped = listed("dropped")
    dropped.children = None
    assert not plan([dropped], 50.0, None)


def test_what_was_used_last_comes_first() -> None:
    names = {name: listed(name, used_at=at) for name, at in (("a", 20.0), ("b", 40.0), ("c", 30.0))}
    assert plan(names.values(), 50.0, None).directories == (names["b"], names["c"], names["a"])


def test_whichever_way_takes_fewer_requests() -> None:
    directories = [listed(str(number)) for number in range(10)]
    assert plan(directories, 50.0, 10).whole, "equal: the flat listing knows more afterwards"
    assert not plan(directories, 50.0, 11).whole
    assert not plan(directories, 50.0, None).whole
    assert plan([listed("large", entries=5001)], 50.0, 6).whole
    assert not plan([listed("large", entries=5000)], 50.0, 6).whole


def test_what_will_be_due_soon_counts_for_the_choice() -> None:
    due, later = listed("due"), [listed(str(number), asked_at=30.0, used_at=25.0) for number in range(5)]
    assert plan([due, *later], 50.0, 6) == RefreshPlan(True, (due,))
    assert plan([due, *later], 50.0, 7) == RefreshPlan(False, (due,))


def test_a_flat_listing_is_not_made_for_nothing() -> None:
    assert not plan([], 50.0, 0)
    assert not plan([listed("fresh", asked_at=40.0, used_at=45.0)], 50.0, 1)
