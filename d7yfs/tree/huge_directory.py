"""A directory too large to be known whole, read page by page: what readdir shows of it, and nothing else.

Owns the places where pages begin, and keeps a few pages. Kept of every page that was read are its continuation token and its last key, so
that it can be read again: some 300 bytes per thousand entries. Invariants:

- An index is steady: the page's number and a position in it. Read again after it was dropped, a page reaches from the same key to the same
  key, whatever was added or deleted meanwhile, so that pages neither overlap nor leave a gap.
- A name is shown once. Of an object `a` and a directory `a/` far behind it the object's entry is the one shown; a lookup says what it is.
  Which page shows such a name is decided when the page of the object is first read, and stays so. In a store that lists in no order at
  all (S3's directory buckets) it is shown by both, if they are on two pages.
- Each page is fetched in a task of its own, single flight, one ahead of whoever reads: no reader waits for another's page, and one who
  gives up takes nothing from others. A fetch that fails is an error for those who wait for it; whoever asks next has it tried again.

One stream serves all who open the directory within the metadata TTL, and the pages that it keeps answer lookups. `lister` has the streams,
`filesystem` reads them for those who have the directory open. Trio thread only.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

import trio

from d7yfs.errors import D7yfsError, OriginUnavailable
from d7yfs.objects import ObjectVersion
from d7yfs.tree.listing import Answer, DirectoryListing, NoObject, Reached, by_segment
from d7yfs.tree.nodes import Directory

log = logging.getLogger(__name__)

PAGES_KEPT = 4
"""By a stream; who reads one that is dropped keeps it besides. A page of a thousand entries takes half a megabyte."""

STREAMS_KEPT = 4
"""Of a repository, beside those that somebody has open."""

_POSITION_BITS = 20
"""Of an index: far more entries than any store's page has."""

_LAST = chr(0x10FFFF)
"""Behind every key."""

_ORDERS: tuple[Callable[[str], str], ...] = (lambda key: key, by_segment)
"""In which stores list, by what they compare: S3 by keys, stores that keep directories (SeaweedFS) by segments."""

_Ends = tuple[str, ...]
"""The last key of some, in each order, as that compares it."""

Fetch = Callable[[str], Awaitable[tuple[DirectoryListing, str]]]
"""The page behind a continuation token ("" for the first), and the next page's token, empty after the last. Raises D7yfsError."""


@dataclass(frozen=True, slots=True)
class Unseen:
    """An entry that is shown without being known to the tree: no inode, no attributes."""

    is_directory: bool


_UNSEEN = {is_directory: Unseen(is_directory) for is_directory in (False, True)}


@dataclass(frozen=True, slots=True)
class Page:
    """Some entries in a row."""

    number: int
    asked_at: float
    entries: dict[str, ObjectVersion | None]
    """By name; None is a directory."""
    names: tuple[str, ...]
    """What is shown: the entries' names, then those that were objects here, are none any more, and may be directories by now."""
    reached: Reached | None
    """Beyond which keys it goes: no object of it with a directory's key before that can still turn out to be one. None without an order."""

    def shown(self, position: int) -> Iterator[tuple[int, str, Unseen]]:
        """Index, name and kind of the entries from `position` on."""
        base = self.number << _POSITION_BITS
        for at in range(position, len(self.names)):
            name = self.names[at]
            yield base | at, name, _UNSEEN[self.entries.get(name) is None]

    @property
    def stop(self) -> int:
        """The index where the next page begins."""
        return (self.number + 1) << _POSITION_BITS

    def answer(self, name: str) -> Answer | None:
        """What `name` is; None when this page does not tell."""
        version = self.entries.get(name, NoObject.ABSENT)
        if version is None:
            return NoObject.DIRECTORY
        is_settled = isinstance(version, ObjectVersion) and self.reached and self.reached.beyond(f"{version.key}/")
        return version if is_settled else None


@dataclass(slots=True)
class _Place:
    """Where a page begins and, once it was read, ends."""

    token: str
    after: _Ends
    """Of the keys before it."""
    objects: frozenset[str]
    """Names of objects before it that have a directory's name, if one comes."""
    read: bool = False
    count: int = 0
    """Of the entries that were last found in it."""
    ends: _Ends | None = None
    """Of the keys in it and before. None where nothing came behind it."""


@dataclass(slots=True)
class _Fetching:
    done: trio.Event = field(default_factory=trio.Event)
    page: Page | None = None
    error: D7yfsError | None = None


class DirectoryStream:
    """One directory as it was from `started_at` on, in trio's seconds. `nursery` runs the fetches; closing it cancels them."""

    def __init__(self, prefix: str, fetch: Fetch, nursery: trio.Nursery, *, pages_kept: int = PAGES_KEPT) -> None:
        self.started_at = trio.current_time()
        self.prefix = prefix
        self._fetch = fetch
        self._nursery = nursery
        self._pages_kept = pages_kept
        self._places = [_Place("", ("",) * len(_ORDERS), frozenset())]
        self._pages: OrderedDict[int, Page] = OrderedDict()
        self._fetching: dict[int, _Fetching] = {}
        self._not_ahead: int | None = None
        """The page whose fetch ahead of the reader failed: left to whoever needs it."""
        self._orders = list(range(len(_ORDERS)))
        """In which keys came so far. S3's directory buckets list in none."""

    async def page(self, index: int, held: Page | None = None) -> tuple[Page, int] | None:
        """The page and position where the entries from `index` on are; None at the end. Raises what fetching raises.

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
        """What `name` is, and when that was asked for, if a page is kept that tells."""
        for page in reversed(self._pages.values()):
            if (answer := page.answer(name)) is not None:
                return answer, page.asked_at
        return None

    @property
    def entries(self) -> int | None:
        """How many the directory has; None as long as its end was not seen."""
        return sum(place.count for place in self._places) if self._places[-1].read else None

    async def _page(self, number: int) -> Page | None:
        while number >= len(self._places):
            # Nobody knows yet where it begins: read on to there.
            if self._places[-1].read:
                return None
            await self._fetched(len(self._places) - 1)
        page = self._pages.get(number)
        if page is not None:
            self._pages.move_to_end(number)
            return page
        return await self._fetched(number)

    async def _fetched(self, number: int) -> Page:
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

    async def _read(self, number: int) -> Page:
        """Fetch a page; as many of the store's as it takes to reach the end that it had before."""
        place = self._places[number]
        asked_at = trio.current_time()
        entries: dict[str, ObjectVersion | None] = {}
        token, ends = place.token, place.after
        while True:
            listing, token = await self._fetch(token)
            reached = listing.reached
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
                # Of an object that was not here at first a later page may show the directory.
                if stops is None or name in here or not any(self._is_behind(name, stops)):
                    entries[name] = version
            if stops is None or not token or all(ends[each] >= stops[each] for each in self._orders):
                break
        # What was an object here may still be a directory: no later page would show it.
        gone = [name for name in sorted(here - entries.keys()) if token and any(self._is_behind(name, ends))]
        names = (*entries, *gone)
        if token and number == len(self._places) - 1:
            place.ends = ends
            self._places.append(_Place(token, ends, self._open_names(place, entries, ends)))
        place.read, place.count = True, len(names)
        return Page(number, asked_at, entries, names, reached if 0 in self._orders else None)

    def _is_behind(self, name: str, ends: _Ends) -> Iterator[bool]:
        """Whether a directory of that name comes behind these ends, in each of the orders that it may be."""
        return (_ORDERS[each](self._key(name, None)) > ends[each] for each in self._orders)

    def _key(self, name: str, version: ObjectVersion | None) -> str:
        return f"{self.prefix}{name}/" if version is None else version.key

    def _open_names(self, place: _Place, entries: dict[str, ObjectVersion | None], ends: _Ends) -> frozenset[str]:
        """The names of objects up to there of which a directory's key may still come: those that the last key of an order begins with."""
        names = (end[len(self.prefix) :] for end in ends)
        heads = {name[:length] for name in names for length in range(1, len(name) + 1)}
        return frozenset(head for head in heads if head in place.objects or entries.get(head) is not None)


class Streams:
    """Of one repository's huge directories. `fetch` is as `DirectoryStream` wants it, once it knows for which directory.

    `lives_until` says until when what was asked for at a moment is believed.
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
        """The stream for who opens, or rewinds, the directory at `asked_at`."""
        stream = self._streams.get(directory.inode)
        if stream is None or not self._fresh(stream.started_at, asked_at):
            stream = DirectoryStream(directory.prefix, partial(self._fetch, directory), self._nursery)
            self._streams[directory.inode] = stream
        self._streams.move_to_end(directory.inode)
        while len(self._streams) > STREAMS_KEPT:
            self._streams.popitem(last=False)
        return stream

    def entries(self, directory: Directory) -> int | None:
        """How many entries the directory has, if it was read to its end."""
        stream = self._streams.get(directory.inode)
        return stream.entries if stream is not None else None

    def find(self, directory: Directory, name: str, asked_at: float) -> tuple[Answer, float] | None:
        """What a page that is kept tells of a name, and when that was asked for, if it counts for a question of `asked_at`."""
        stream = self._streams.get(directory.inode)
        found = stream.find(name) if stream is not None else None
        return found if found is not None and self._fresh(found[1], asked_at) else None

    def drop(self, prefix: str = "") -> None:
        """Whatever is opened below a key prefix from now on is read anew."""
        for inode in [inode for inode, stream in self._streams.items() if stream.prefix.startswith(prefix)]:
            del self._streams[inode]

    def _fresh(self, learnt_at: float, asked_at: float) -> bool:
        """As `Directory.fresh`."""
        return asked_at < self._lives_until(learnt_at) or asked_at <= learnt_at
