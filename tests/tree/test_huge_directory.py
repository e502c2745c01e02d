"""A huge directory read page by page, from a store that pages by key, changes in between, and
fails."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing
from hypothesis import example, given, settings
from hypothesis import strategies as st
from trio.testing import MockClock

from d7yfs.errors import BadReply, D7yfsError, OriginUnavailable
from d7yfs.objects import ListingPage, ObjectVersion
from d7yfs.tree.huge_directory import DirectoryPage, DirectoryStream
from d7yfs.tree.listing import DirectoryListing, NoObject, by_segment
from tests.tree.listings import collect

PREFIX = "p/"
Order = Callable[[str], str]


class Store:
    """A store with keys below `p/`, of which those with a final slash are common prefixes.

    `order` is the part of a key that it compares.
    """

    def __init__(self, *names: str, page_size: int = 3, order: Order = str) -> None:
        self.order = order
        self.hold(names)
        self.page_size = page_size
        self.fetches: list[str] = []
        self.error: Exception | None = None
        self.gates: dict[str, trio.Event] = {}
        """The pages that wait, by token."""

    def hold(self, names: Iterable[str]) -> None:
        self.keys = sorted((f"{PREFIX}{name}" for name in names), key=self.order)

    def add(self, name: str) -> None:
        insort(self.keys, f"{PREFIX}{name}", key=self.order)

    def delete(self, name: str) -> None:
        self.keys.remove(f"{PREFIX}{name}")

    async def fetch(self, token: str) -> tuple[DirectoryListing, str]:
        self.fetches.append(token)
        if token in self.gates:
            await self.gates[token].wait()
        await trio.lowlevel.checkpoint()
        if self.error is not None:
            raise self.error
        start = bisect_right(self.keys, self.order(token), key=self.order) if token else 0
        keys = self.keys[start : start + self.page_size]
        next_token = keys[-1] if start + self.page_size < len(self.keys) else ""
        objects = tuple(ObjectVersion(key, 1, f'"{key}"', 1) for key in keys if not key.endswith("/"))
        page = ListingPage(objects, tuple(key for key in keys if key.endswith("/")), next_token, 1)
        return collect(PREFIX, [page]), next_token


class Reader:
    """A reader like the filesystem: keeps its page, and goes on from an index."""

    def __init__(self, stream: DirectoryStream) -> None:
        self.stream = stream
        self.index = 0
        self.held: DirectoryPage | None = None

    async def some(self, count: int) -> list[str]:
        """The next names, fewer at the end."""
        names: list[str] = []
        while len(names) < count and (found := await self.stream.page(self.index, self.held)) is not None:
            self.held, position = found
            for index, name, _ in self.held.shown(position):
                names.append(name)
                self.index = index + 1
                if len(names) == count:
                    break
        return names

    async def rest(self) -> list[str]:
        return await self.some(1 << 30)


@asynccontextmanager
async def streaming(store: Store, *, pages_kept: int = 4) -> AsyncIterator[DirectoryStream]:
    async with trio.open_nursery() as nursery:
        yield DirectoryStream(PREFIX, store.fetch, nursery, pages_kept=pages_kept)
        nursery.cancel_scope.cancel()


def numbered(count: int) -> list[str]:
    return [f"n{number:03}" for number in range(count)]


async def test_every_name_once_and_one_request_a_page() -> None:
    store = Store(*numbered(20))
    async with streaming(store) as stream:
        assert await Reader(stream).rest() == numbered(20)
    assert len(store.fetches) == 7


async def test_the_next_page_is_on_its_way_while_one_is_read() -> None:
    store = Store(*numbered(20))
    async with streaming(store) as stream:
        assert await Reader(stream).some(1) == ["n000"]
        await trio.testing.wait_all_tasks_blocked()
        assert len(store.fetches) == 2


async def test_seeking_back_and_forth_shows_the_same_again() -> None:
    store = Store(*numbered(40))
    async with streaming(store, pages_kept=1) as stream:
        reader = Reader(stream)
        places = []
        for _ in range(20):
            places.append((reader.index, await reader.some(2)))
        for index, names in [*reversed(places), places[3], places[17], places[0]]:
            reader.index = index
            assert await reader.some(2) == names


async def test_an_index_of_another_stream_is_read_on_to() -> None:
    store = Store(*numbered(20))
    async with streaming(store) as first:
        reader = Reader(first)
        await reader.some(14)
        place = reader.index
    async with streaming(store) as second:
        later = Reader(second)
        later.index = place
        assert await later.rest() == numbered(20)[14:]


async def test_two_readers_share_pages_and_neither_waits_for_the_other() -> None:
    store = Store(*numbered(30))
    async with streaming(store) as stream:
        ahead, behind = Reader(stream), Reader(stream)
        assert await ahead.some(5) == await behind.some(5) == numbered(5)
        assert len(store.fetches) == len(set(store.fetches))
        store.gates["p/n014"] = trio.Event()
        assert await ahead.some(10) == numbered(15)[5:]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ahead.some, 1)
            await trio.testing.wait_all_tasks_blocked()
            assert await behind.some(10) == numbered(15)[5:]
            store.gates["p/n014"].set()
        assert await behind.rest() == numbered(30)[15:]


async def test_who_gives_up_takes_nothing_from_the_others() -> None:
    store = Store(*numbered(9))
    store.gates[""] = trio.Event()
    async with streaming(store) as stream:
        async with trio.open_nursery() as nursery:
            impatient = trio.CancelScope()

            async def give_up() -> None:
                with impatient:
                    await Reader(stream).some(1)

            nursery.start_soon(give_up)
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(_expect, Reader(stream), numbered(9))
            await trio.testing.wait_all_tasks_blocked()
            impatient.cancel()
            store.gates[""].set()
        assert store.fetches.count("") == 1


async def _expect(reader: Reader, names: list[str]) -> None:
    assert await reader.rest() == names


async def test_many_readers_at_many_places_cost_memory_for_each_and_no_more() -> None:
    store = Store(*numbered(60))
    async with streaming(store, pages_kept=2) as stream:
        readers = [Reader(stream) for _ in range(6)]
        for number, reader in enumerate(readers):
            assert await reader.some(number * 9 + 1) == numbered(number * 9 + 1)
        fetched = len(store.fetches)
        for number, reader in enumerate(readers):
            at = number * 9 + 1
            assert await reader.some(1) == numbered(60)[at : at + 1]
        assert store.fetches[fetched:].count("") == 0
        assert len(stream._pages) <= 2


async def test_a_page_that_changes_while_it_is_read_is_the_one_that_was_begun() -> None:
    store = Store(*numbered(12))
    async with streaming(store, pages_kept=1) as stream:
        reader, other = Reader(stream), Reader(stream)
        await reader.some(4)
        await other.rest()  # only its reader keeps page 1 now
        store.add("n0031")
        store.delete("n005")
        assert await reader.rest() == numbered(12)[4:]


async def test_pages_read_again_neither_overlap_nor_leave_a_gap() -> None:
    store = Store(*numbered(12))
    async with streaming(store, pages_kept=1) as stream:
        await Reader(stream).rest()
        for name in ("n0000", "n0001", "n0002", "n0003", "n0051"):
            store.add(name)
        store.delete("n003")
        store.delete("n002")
        assert await Reader(stream).rest() == sorted([*store_names(store)])


def store_names(store: Store) -> list[str]:
    return [key.removeprefix(PREFIX) for key in store.keys]


async def test_what_is_added_at_the_end_is_seen_when_the_end_is_read_again() -> None:
    store = Store(*numbered(6))
    async with streaming(store, pages_kept=1) as stream:
        await Reader(stream).rest()
        for name in ("x1", "x2", "x3", "x4"):
            store.add(name)
        assert await Reader(stream).rest() == [*numbered(6), "x1", "x2", "x3", "x4"]


async def test_what_is_gone_from_the_end_is_not_shown() -> None:
    store = Store(*numbered(9))
    async with streaming(store, pages_kept=1) as stream:
        await Reader(stream).rest()
        for name in numbered(9)[2:]:
            store.delete(name)
        assert await Reader(stream).rest() == ["n000", "n001"]


@pytest.mark.parametrize("error", [OriginUnavailable("down"), ZeroDivisionError()])
async def test_a_page_that_fails_can_be_asked_for_again(error: Exception) -> None:
    store = Store(*numbered(12))
    async with streaming(store) as stream:
        reader = Reader(stream)
        assert await reader.some(3) == numbered(3)
        await trio.testing.wait_all_tasks_blocked()
        store.error = error
        assert await reader.some(3) == numbered(6)[3:]  # was fetched ahead
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(D7yfsError):
            await reader.some(3)
        assert await Reader(stream).some(6) == numbered(6)  # no other reader minds
        store.error = None
        assert await reader.rest() == numbered(12)[6:]


async def test_a_page_that_failed_ahead_of_its_reader_is_not_asked_for_again_before_he_comes() -> None:
    store = Store(*numbered(12))
    store.gates["p/n002"] = trio.Event()
    async with streaming(store) as stream:
        reader = Reader(stream)
        await reader.some(1)
        store.error = OriginUnavailable("down")
        store.gates["p/n002"].set()
        await trio.testing.wait_all_tasks_blocked()
        await reader.some(2)
        await trio.testing.wait_all_tasks_blocked()
        assert store.fetches == ["", "p/n002"]


async def test_an_object_with_a_directory_of_its_name_far_behind_is_shown_once() -> None:
    names = ["a", *(f"a-{number}" for number in range(9)), "a/", "b/"]
    store = Store(*names)
    async with streaming(store, pages_kept=1) as stream:
        for _ in range(2):
            assert await Reader(stream).rest() == [*names[:-2], "b"]


async def test_what_is_an_object_and_a_directory_is_shown_where_its_object_was(autojump_clock: MockClock) -> None:
    store = Store("a", "a-0", "a-1", "a/", "b/")
    async with streaming(store, pages_kept=1) as stream:
        assert await Reader(stream).rest() == ["a", "a-0", "a-1", "b"]
        store.delete("a-0")
        store.delete("a-1")
        assert await Reader(stream).rest() == ["a", "b"], "though one page has both, and the first ended between them"


@pytest.mark.parametrize("page_size", [1, 2, 3])
async def test_where_each_directorys_keys_come_together_a_name_is_shown_once(page_size: int) -> None:
    """SeaweedFS lists so: `a/` before `a-b`, which is then behind the last key in the order of
    keys."""

    store = Store("a", "a/", "a-b", "a-b/", "c/", "d", page_size=page_size, order=by_segment)
    async with streaming(store, pages_kept=1) as stream:
        for _ in range(2):
            reader = Reader(stream)
            await reader.some(1)
            found = stream.find("a-b")
            assert found is None or found[0] is NoObject.DIRECTORY, "the next page may begin with its directory"
            assert sorted([*await reader.rest(), "a"]) == ["a", "a-b", "c", "d"]


async def test_what_kept_pages_tell_of_a_name(autojump_clock: MockClock) -> None:
    store = Store("a", "a-1", "a-2", "a-3", "b/", "c", "d", "e")
    async with streaming(store) as stream:
        await trio.sleep(1)
        await Reader(stream).rest()
        found = stream.find("a-3")
        assert found is not None
        assert isinstance(found[0], ObjectVersion)
        assert found[0].key == "p/a-3"
        assert found[1] == trio.current_time()
        directory = stream.find("b")
        assert directory is not None
        assert directory[0] is NoObject.DIRECTORY
        assert stream.find("a") is None, "a directory of that name may come on a later page"
        assert stream.find("c") is None, "it is the last of its page: the next may begin with its directory"
        assert stream.find("e") is not None, "nothing can come behind the last page"
        assert stream.find("nothing") is None


async def test_a_store_without_order_is_shown_as_it_comes() -> None:
    class Unordered(Store):
        async def fetch(self, token: str) -> tuple[DirectoryListing, str]:
            listing, token = await super().fetch(token)
            turned = DirectoryListing(PREFIX)
            versions = tuple(version for version in listing.entries.values() if version is not None)
            turned.add(ListingPage(versions[::-1], (), token, 1))
            return turned, token

    store = Unordered(*numbered(9))
    async with streaming(store, pages_kept=1) as stream:
        for _ in range(2):
            assert sorted(await Reader(stream).rest()) == numbered(9)
        assert stream.find("n008") is None


NAMES = st.dictionaries(
    st.text("abc-", min_size=1, max_size=3), st.sampled_from([("",), ("/",), ("", "/")]), max_size=40
)
"""Keys by name: a name may be an object, a directory, or both."""


def keys_of(names: dict[str, tuple[str, ...]]) -> set[str]:
    return {name + slash for name, slashes in names.items() for slash in slashes}


@given(
    before=NAMES,
    after=NAMES,
    pages_kept=st.integers(1, 3),
    pauses=st.lists(st.integers(1, 5), max_size=10),
    order=st.sampled_from([str, by_segment]),
)
@example({"a": ("/",), "a-": ("",), "a-a": ("",), "a-b": ("",)}, {"a": ("", "/")}, 1, [], str)
@example(
    {"a": ("", "/"), "a-": ("",), "a-a": ("",), "a-b": ("",)},
    {"a": ("/",), "a-": ("",), "a--": ("",), "a-a": ("",)},
    1,
    [],
    str,
)
@example({"a": ("",), "-": ("", "/"), "b": ("", "/"), "c": ("",), "aa": ("",)}, {"b-": ("",)}, 1, [1, 4], by_segment)
@settings(max_examples=300, deadline=None)
def test_whatever_changes_what_stays_is_shown_once(
    before: dict[str, tuple[str, ...]],
    after: dict[str, tuple[str, ...]],
    pages_kept: int,
    pauses: list[int],
    order: Order,
) -> None:
    """Read half-way, have the store change, read the rest, and read all of it again."""

    async def main() -> None:
        store = Store(*keys_of(before), order=order)
        async with streaming(store, pages_kept=pages_kept) as stream:
            reader = Reader(stream)
            shown = [name for count in pauses for name in await reader.some(count)]
            store.hold(keys_of(after))
            shown += await reader.rest()
            again = await Reader(stream).rest()
        stays = {key.rstrip("/") for key in keys_of(before) & keys_of(after)}
        for names in (shown, again):
            assert len(names) == len(set(names))
            assert stays <= set(names) <= before.keys() | after.keys()

    trio.run(main)


async def test_pages_that_come_round_in_a_circle_are_an_error() -> None:
    async def fetch(token: str) -> tuple[DirectoryListing, str]:
        await trio.lowlevel.checkpoint()
        number = int(token or 0)
        key = f"{PREFIX}{number}"
        next_token = str(number % 3 + 1)
        return collect(PREFIX, [ListingPage((ObjectVersion(key, 1, '"e"', 1),), (), next_token, 1)]), next_token

    async with trio.open_nursery() as nursery:
        reader = Reader(DirectoryStream(PREFIX, fetch, nursery))
        with trio.fail_after(10), pytest.raises(BadReply, match="p/: the listing does not end"):
            await reader.rest()
