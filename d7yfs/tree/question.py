"""One question to a repository's store, and what it has found so far.

`lister` asks, adds the pages that come, and applies the answers; readers wait here for news.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median

import trio

from d7yfs.errors import D7yfsError
from d7yfs.tree.listing import Answer, DirectoryListing, Scan
from d7yfs.tree.nodes import Directory, NameChanges

REST_S = 0.2
"""The pause of a flat listing that no reader waits for, after its first page. Most readers want few
directories, which are listed alone meanwhile."""
_PAGE_S = 5.0
"""The longest time that a healthy store works on a page."""
_FEW_PAGES = 3
_FEW_PAGE_S = 0.5
"""The time counted for each of fewer pages: a stall or a retry must not make their answers old."""


@dataclass(slots=True)
class Refreshed:
    """The directories that were asked for, and their changes."""

    directories: int = 0
    """The number of directories."""
    changes: list[tuple[str, NameChanges]] = field(default_factory=list)
    """By the directory's key prefix; only where something has changed."""

    def add(self, directory: Directory, changes: NameChanges) -> None:
        """Count one directory."""
        self.directories += 1
        if changes:
            self.changes.append((directory.prefix, changes))


@dataclass(slots=True, eq=False)
class Question:
    """One question, asked at `asked_at` in trio's seconds, and its answer so far."""

    asked_at: float
    directory: Directory | None = None
    """None for a flat listing."""
    name: str | None = None
    """The one name that is asked for; None for a listing."""
    listing: Scan | DirectoryListing | None = None
    """The pages that have come; None where one name is asked for."""
    pages: int = 0
    """The number of pages that have come."""
    leaves_open: bool = False
    """True if pages have come, and more are to come."""
    done: bool = False
    error: D7yfsError | None = None
    found: Refreshed = field(default_factory=Refreshed)
    taken: set[Directory] = field(default_factory=set)
    """The directories that were taken out of a flat listing on the way."""
    _wanted: trio.Event = field(default_factory=trio.Event)
    _waiting: set[trio.Event] = field(default_factory=set)
    _came_at: list[float] = field(default_factory=list)
    """When each page came, less the rest before it."""
    _rested_s: float = 0.0

    @property
    def key(self) -> str:
        """The key or prefix that it is about."""
        if self.listing is not None:
            return self.listing.prefix
        return f"{self.directory.prefix if self.directory else ''}{self.name}"

    def answer(self, directory: Directory, name: str) -> Answer | None:
        """The answer about a name, as far as pages have come; None while they leave it open."""
        if isinstance(self.listing, Scan):
            return self.listing.answer(directory.prefix, name)
        return self.listing.answer(name) if self.listing is not None else None

    @property
    def took_s(self) -> float:
        """The seconds that the store worked on it, at the usual time per page, without outages and
        rests."""
        now = trio.current_time() - self._rested_s
        page_s = _FEW_PAGE_S
        if self.pages >= _FEW_PAGES:
            pages_s = [stop - start for start, stop in pairwise([self.asked_at, *self._came_at])]
            page_s = min(median(pages_s), _PAGE_S)
        return min(now - self.asked_at, max(self.pages, 1) * page_s)

    def keeps(self, directory: Directory, expires_at: float) -> bool:
        """True if a directory has the entries that were taken out of this listing, and they live: they do
        until `expires_at` now, if that is later."""
        return directory in self.taken and directory.prolong(self.asked_at, expires_at, trio.current_time())

    def count_page(self, *, more: bool) -> None:
        """Count a page that was added to the listing, and wake all readers."""
        self.pages += 1
        self._came_at.append(trio.current_time() - self._rested_s)
        self.leaves_open = more
        self._wake()

    def want(self) -> None:
        """Let it `rest` no more: a reader waits for its next page."""
        self._wanted.set()

    async def rest(self) -> None:
        """Leave the processors to other questions until it is wanted, or for REST_S."""
        began_at = trio.current_time()
        with trio.move_on_after(REST_S):
            await self._wanted.wait()
        self._rested_s += trio.current_time() - began_at

    def finish(self) -> None:
        """End the question, and wake all readers."""
        self.done = True
        self._wake()

    def _wake(self) -> None:
        for event in self._waiting:
            event.set()

    async def wait(self) -> Refreshed:
        """Wait for the end. Raises its error."""
        self.want()
        while not self.done:
            await wait_for_news([self])
        if self.error is not None:
            raise self.error
        return self.found


async def wait_for_news(questions: Sequence[Question], timeout_s: float = math.inf) -> None:
    """Wait until any question has another page or ends, or until the timeout."""
    event = trio.Event()
    for each in questions:
        each._waiting.add(event)
    try:
        with trio.move_on_after(timeout_s):
            await event.wait()
    finally:
        for each in questions:
            each._waiting.discard(event)


def is_far(scan: Question, pages: int, directory: Directory, above: Directory | None) -> bool:
    """True if a flat listing, with `pages` when a reader came, may be long in reaching a directory;
    `above` is the one that shows it, None for the top.

    The next page has not brought it, or need not. A reader that walks the repository in order always
    wants the next page. It asks for nothing more than the flat listing, and for the top directory, which
    only the last page completes.
    """
    if above is None and not scan.pages:
        return True
    key = scan.listing.reached.key if isinstance(scan.listing, Scan) else ""
    if key.startswith(directory.prefix):
        return False
    return scan.pages > pages or any(
        isinstance(each, Directory) and key < each.prefix < directory.prefix
        for each in (above.entries if above is not None else ())
    )


def raise_last(asked: Sequence[Question]) -> None:
    """Raise the error of the last of these questions that failed, if any did."""
    for each in reversed(asked):
        if each.error is not None:
            raise each.error
