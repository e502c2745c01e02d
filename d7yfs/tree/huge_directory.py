"""A directory too large to be known whole, as readdir shows it: page by page, each fetched once
(single flight).

Owns the bounds of pages, and keeps a few pages. Of every page that was read the token and the last
key are kept, to read it again: some 300 bytes per thousand entries. Invariants:

- An index is steady: the page's number and a position in it. A page that is read again reaches from
  the same key to the same key: pages neither overlap nor leave a gap.
- A name is shown once. Of an object `a` and a directory `a/` far behind it the object's entry is
  shown; a lookup says what it is. The first read of the object's page decides which page shows such
  a name. In a store without any order (S3's directory buckets) two pages may show it.
- Each page is fetched in a task of its own, one ahead of the reader. No reader waits for another's
  page, and one that gives up takes nothing from others. A fetch that fails is an error for its
  readers; the next reader has it tried again.

One stream serves all readers that open the directory within the metadata TTL, and its pages answer
lookups. `lister` has the streams, `filesystem` reads them for open directories. Trio thread only.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

import trio

from d7yfs.bounds.paging import Paging
from d7yfs.errors import D7yfsError, OriginUnavailable
from d7yfs.objects import ObjectVersion
from d7yfs.tree.listing import Answer, DirectoryListing, NoObject, Reached, by_segment
from d7yfs.tree.nodes import Directory

log = logging.getLogger(__name__)

PAGES_KEPT = 4
"""The pages that a stream keeps; a page of a thousand entries takes half a megabyte."""

STREAMS_KEPT = 4
"""The streams that a repository keeps, in addition to those that are open."""

_POSITION_BITS = 20
"""The bits of an index for the position: far more entries than any store's page has."""

_LAST = chr(0x10FFFF)
"""A character behind every key."""

_ORDERS: tuple[Callable[[str], str], ...] = (lambda key: key, by_segment)
"""The orders in which stores list: S3 by keys, stores with directories (SeaweedFS) by segments."""

_Ends = tuple[str, ...]
"""The last key in each order, as that compares it."""

Fetch = Callable[[str], Awaitable[tuple[DirectoryListing, str]]]
"""The page behind a token ("" for the first) and the next token, empty after the last. Raises
D7yfsError."""


@dataclass(frozen=True, slots=True)
class Unseen:
    """An entry that is shown without being known to the tree: no inode, no attributes."""

    is_directory: bool


_UNSEEN = {is_directory: Unseen(is_directory) for is_directory in (False, True)}


@dataclass(frozen=True, slots=True)
class DirectoryPage:
    """Some entries of a directory in a row."""

    number: int
    asked_at: float
    entries: dict[str, ObjectVersion | None]
    """By name; None is a directory."""
    names: tuple[str, ...]
    """The names shown: those of entries, then of former objects, which may be directories now."""
    reached: Reached | None
    """The keys that it has passed: up to there no object can turn out to be a directory. None
    without an order."""

    def shown(self, position: int) -> Iterator[tuple[int, str, Unseen]]:
        """The index, name and kind of the entries from `position` on."""
        base = self.number << _POSITION_BITS
        for at in range(position, len(self.names)):
            name = self.names[at]
            yield base | at, name, _UNSEEN[self.entries.get(name) is None]

    @property
    def stop(self) -> int:
        """The index where the next page begins."""
        return (self.number + 1) << _POSITION_BITS

    def answer(self, name: str) -> Answer | None:
        """The meaning of `name`; None when this page does not tell."""
        version = self.entries.get(name, NoObject.ABSENT)
        if version is None:
            return NoObject.DIRECTORY
        is_settled = isinstance(version, ObjectVersion) and self.reached and self.reached.beyond(f"{version.key}/")
        return version if is_settled else None


@dataclass(slots=True)
class _PageBounds:
    """The bounds of a page; its end is known once it was read."""

    token: str
    after: _Ends
    """The ends of the keys before it."""
    objects: frozenset[str]
    """The names of objects before it that have a directory's name, if one comes."""
    read: bool = False
    count: int = 0
    """The number of entries that were last found in it."""
    ends: _Ends | None = None
    """The ends of the keys in it and before; None where nothing came behind it."""


@dataclass(slots=True)
class _Fetching:
    done: trio.Event = field(default_factory=trio.Event)
    page: DirectoryPage | None = None
    error: D7yfsError | None = None


class DirectoryStream:
    """One directory as it was from `started_at` on, in trio's seconds; `nursery` runs fetches."""

    def __init__(self, prefix: str, fetch: Fetch, nursery: trio.Nursery, *, pages_kept: int = PAGES_KEPT) -> None:
        self.started_at = trio.current_time()
        self.prefix = prefix
        self._fetch = fetch
        self._nursery = nursery
        self._pages_kept = pages_kept
        self._paging = Paging(prefix)
        self._places = [_PageBounds("", ("",) * len(_ORDERS), frozenset())]
        self._pages: OrderedDict[int, DirectoryPage] = OrderedDict()
        self._fetching: dict[int, _Fetching] = {}
        self._not_ahead: int | None = None
        """The page whose fetch ahead failed: left to the next reader of it."""
        self._orders = list(range(len(_ORDERS)))
        """The orders that all keys so far had. S3's directory buckets have none."""

    async def page(self, index: int, held: DirectoryPage | None = None) -> tuple[DirectoryPage, int] | None:
        """The page and position of the entries from `index` on; None at the end. Raises as the
        fetch.

        `held` is the page that the caller was given last, which need not be kept here.
        """
        number, position = index >> _POSITION_BITS, index & ((1 << _POSITION_BITS) - 1)
        while True:
            page = held if held is not None and held.number == number else await self._page(number)
            if page is None:
                return None
            self._fetch_ahead(number + 1)
            if position < len(page.names):
                return page, position
            number, position = number + 1, 0

    def find(self, name: str) -> tuple[Answer, float] | None:
        """The meaning of `name`, and when it was asked for, if a kept page tells."""
        for page in reversed(self._pages.values()):
            if (answer := page.answer(name)) is not None:
                return answer, page.asked_at
        return None

    @property
    def entries(self) -> int | None:
        """The number of entries; None as long as no reader has seen the end."""
        return sum(place.count for place in self._places) if self._places[-1].read else None

    async def _page(self, number: int) -> DirectoryPage | None:
        while number >= len(self._places):
            # Its bounds are not known yet: read on to there.
            if self._places[-1].read:
                return None
            await self._fetched(len(self._places) - 1)
        page = self._pages.get(number)
        if page is not None:
            self._pages.move_to_end(number)
            return page
        return await self._fetched(number)

    async def _fetched(self, number: int) -> DirectoryPage:
        self._begin(number)
        fetching = self._fetching[number]
        await fetching.done.wait()
        if fetching.error is not None:
            raise fetching.error
        assert fetching.page is not None
        return fetching.page

    def _fetch_ahead(self, number: int) -> None:
        if number < len(self._places) and number not in self._pages and number != self._not_ahead:
            self._begin(number)

    def _begin(self, number: int) -> None:
        if number not in self._fetching:
            fetching = self._fetching[number] = _Fetching()
            self._nursery.start_soon(self._run, number, fetching)

    async def _run(self, number: int, fetching: _Fetching) -> None:
        try:
            fetching.page = page = await self._read(number)
            self._pages[number] = page
            self._pages.move_to_end(number)
            while len(self._pages) > self._pages_kept:
                self._pages.popitem(last=False)
            self._not_ahead = None
        except D7yfsError as error:
            fetching.error = error
            self._not_ahead = number
        except Exception as error:
            log.exception("page %d of %s failed unexpectedly", number, self.prefix)
            fetching.error = OriginUnavailable(f"listing {self.prefix} failed: {type(error).__name__}")
            self._not_ahead = number
        finally:
            del self._fetching[number]
            fetching.done.set()

    async def _read(self, number: int) -> DirectoryPage:
        """Fetch a page: as many of the store's pages as reach its former end."""
        place = self._places[number]
        asked_at = trio.current_time()
        entries: dict[str, ObjectVersion | None] = {}
        token, ends, paging = place.token, place.after, Paging(self.prefix)
        while True:
            listing, token = await self._fetch(token)
            reached = listing.reached
            paging.add(reached.key, token)
            keys = [self._key(name, version) for name, version in listing.entries.items()]
            self._orders = [
                each
                for each in self._orders
                if (reached.ordered, reached.in_segments)[each]
                and min(map(_ORDERS[each], keys), default=_LAST) > ends[each]
            ]
            ends = (max(ends[0], reached.key), max(ends[1], reached.last_segments))
            stops = place.ends if self._orders else None
            here = self._places[number + 1].objects - place.objects if stops is not None else frozenset[str]()
            for name, version in listing.entries.items():
                if version is None and name in place.objects:
                    continue  # An earlier page shows its object.
                # A later page may show the directory of a name that was no object here at first.
                if stops is None or name in here or not any(self._is_behind(name, stops)):
                    entries[name] = version
            if stops is None or not token or all(ends[each] >= stops[each] for each in self._orders):
                break
        # A former object may still be a directory: no later page would show it.
        gone = [name for name in sorted(here - entries.keys()) if token and any(self._is_behind(name, ends))]
        names = (*entries, *gone)
        if token and number == len(self._places) - 1:
            self._paging.add(reached.key, token)
            place.ends = ends
            self._places.append(_PageBounds(token, ends, self._open_names(place, entries, ends)))
        place.read, place.count = True, len(names)
        return DirectoryPage(number, asked_at, entries, names, reached if 0 in self._orders else None)

    def _is_behind(self, name: str, ends: _Ends) -> Iterator[bool]:
        """For each possible order: true if a directory of that name comes behind these ends."""
        return (_ORDERS[each](self._key(name, None)) > ends[each] for each in self._orders)

    def _key(self, name: str, version: ObjectVersion | None) -> str:
        return f"{self.prefix}{name}/" if version is None else version.key

    def _open_names(self, place: _PageBounds, entries: dict[str, ObjectVersion | None], ends: _Ends) -> frozenset[str]:
        """The names of objects up to there whose directory may still come.

        Those are the names that the last key of an order begins with.
        """
        names = (end[len(self.prefix) :] for end in ends)
        heads = {name[:length] for name in names for length in range(1, len(name) + 1)}
        return frozenset(head for head in heads if head in place.objects or entries.get(head) is not None)


class Streams:
    """The streams of one repository's huge directories.

    `fetch` fetches a page of a directory. `lives_until` gives the end of life of what was asked for
    at a moment.
    """

    def __init__(
        self,
        fetch: Callable[[Directory, str], Awaitable[tuple[DirectoryListing, str]]],
        nursery: trio.Nursery,
        lives_until: Callable[[float], float],
    ) -> None:
        self._fetch = fetch
        self._nursery = nursery
        self._lives_until = lives_until
        self._streams: OrderedDict[int, DirectoryStream] = OrderedDict()

    def open(self, directory: Directory, asked_at: float) -> DirectoryStream:
        """The stream for a reader that opens, or rewinds, the directory at `asked_at`."""
        stream = self._streams.get(directory.inode)
        if stream is None or not self._fresh(stream.started_at, asked_at):
            stream = DirectoryStream(directory.prefix, partial(self._fetch, directory), self._nursery)
            self._streams[directory.inode] = stream
        self._streams.move_to_end(directory.inode)
        while len(self._streams) > STREAMS_KEPT:
            self._streams.popitem(last=False)
        return stream

    def entries(self, directory: Directory) -> int | None:
        """The number of entries, if the directory was read to its end."""
        stream = self._streams.get(directory.inode)
        return stream.entries if stream is not None else None

    def find(self, directory: Directory, name: str, asked_at: float) -> tuple[Answer, float] | None:
        """The meaning of a name on a kept page and when it was asked for, if still fresh."""
        stream = self._streams.get(directory.inode)
        found = stream.find(name) if stream is not None else None
        return found if found is not None and self._fresh(found[1], asked_at) else None

    def drop(self, prefix: str = "") -> None:
        """Drop the streams below a key prefix: directories opened there are read anew."""
        for inode in [inode for inode, stream in self._streams.items() if stream.prefix.startswith(prefix)]:
            del self._streams[inode]

    def _fresh(self, learnt_at: float, asked_at: float) -> bool:
        """See `Directory.fresh`."""
        return asked_at < self._lives_until(learnt_at) or asked_at <= learnt_at
