"""What a repository's store answers, taken into the tree: a flat listing, the listing of a directory, or one name.

Owns how far a listing is followed and what is counted. Nothing here chooses what to ask, or waits for anybody. Used by `lister`.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable
from contextlib import aclosing
from dataclasses import dataclass

import trio

from d7yfs.errors import D7yfsError, NotFound
from d7yfs.tree.answers import Changes
from d7yfs.tree.listing import Answer, DirectoryListing, HiddenKey, NoObject, name_fault
from d7yfs.tree.nodes import Directory, File
from d7yfs.tree.question import Asking
from d7yfs.tree.scan import Scan, Unordered
from d7yfs.tree.source import Listings, Mode, ask
from d7yfs.tree.tree import Tree

log = logging.getLogger(__name__)

_APPLIED_AT_ONCE = 2000
"""Entries, which take some 5 ms; then others have their turn."""


@dataclass(slots=True)
class Counters:
    """What was asked since start."""

    scans: int = 0
    """Flat listings, those that were given up included."""
    scan_pages: int = 0
    """Requests that these took."""
    listings: int = 0
    """Of single directories."""
    listing_pages: int = 0
    """Requests that these took."""
    exact_lookups: int = 0
    """Of one name each, by up to two requests."""
    streamed_pages: int = 0


@dataclass(frozen=True, slots=True)
class LastScan:
    """The last flat listing of the whole repository that came to its end."""

    lives_until: float = -math.inf
    objects: int = 0
    directories: int = 0
    pages: int = 0
    took_s: float = 0.0


class Intake:
    """Of one repository."""

    def __init__(
        self,
        tree: Tree,
        repository: str,
        listings: Listings,
        *,
        url: str,
        mode: Mode,
        limit: int,
        changed: Callable[[Directory, Changes], None],
    ) -> None:
        """As `Lister`."""
        self.counters = Counters()
        self.last_scan = LastScan()
        self.not_whole = "" if mode in (Mode.AUTO, Mode.WHOLE) else "set so"
        """Why the repository is not listed whole, in words."""
        self.unanswered_since: float | None = None
        """Since when each question has failed, in trio's seconds; None while they succeed."""
        self.answered_at: float | None = None
        """When one was answered last; None before the first."""
        self._tree = tree
        self._repository = repository
        self._listings = listings
        self._url = url
        self._mode = mode
        self.limit = limit
        """As `Lister`."""
        self._is_too_large = False
        self._changed = changed

    def set_limit(self, limit: int) -> None:
        """As `Lister`. A repository that was too large for the old one may be listed whole again."""
        if limit != self.limit and self._is_too_large:
            self.not_whole, self._is_too_large = "", False
        self.limit = limit

    async def scan(self, asking: Asking, scan: Scan) -> None:
        """Take a flat listing. One that turns out to be too long, or of no use, leaves nothing behind but `not_whole`."""
        self.counters.scans += 1
        try:
            async with aclosing(self._listings.pages(scan.prefix, delimiter="")) as pages:
                async for page in pages:
                    self._answered()
                    self.counters.scan_pages += 1
                    scan.add(page)
                    if scan.objects > self.limit and self._mode is Mode.AUTO:
                        self._is_too_large = True
                        self._give_up(f"it has more than {self.limit} objects")
                        return
                    asking.came(more=bool(page.next_token))
        except Unordered:
            self._give_up("its keys do not come in order")
            return
        took_s = asking.took_s
        await self._apply_scan(asking, scan, took_s)
        if scan.prefix == self._tree.top(self._repository).prefix:
            lives_until = self._tree.lives_until(asking.asked_at, took_s)
            self.last_scan = LastScan(lives_until, scan.objects, asking.found.directories, asking.pages, took_s)

    async def _apply_scan(self, asking: Asking, scan: Scan, took_s: float) -> None:
        at_once = 0
        for listing in scan.listings():
            directory = self._tree.at(self._repository, listing.prefix)
            if directory is None:
                continue  # given up for room, or gone since
            asking.found.add(directory, self._apply(asking, directory, listing, took_s))
            at_once += 1 + len(listing.entries)
            if at_once >= _APPLIED_AT_ONCE:
                at_once = 0
                await trio.lowlevel.checkpoint()

    def _give_up(self, reason: str) -> None:
        if not self.not_whole:
            self.not_whole = reason
            log.info("%s is listed directory by directory: %s", self._url, reason)

    async def listing(self, asking: Asking, directory: Directory, listing: DirectoryListing) -> None:
        """Take the listing of one directory, unless that turns out to be huge."""
        self.counters.listings += 1
        async with aclosing(self._listings.pages(listing.prefix)) as pages:
            async for page in pages:
                self._answered()
                self.counters.listing_pages += 1
                listing.add(page)
                if page.next_token and len(listing.entries) > self.limit and self._mode is not Mode.WHOLE:
                    log.info("%s/%s has more than %d entries", self._url, listing.prefix, self.limit)
                    self._tree.scatter(directory.inode)
                    return
                asking.came(more=bool(page.next_token))
        if listing.prefix == directory.prefix:
            asking.found.add(directory, self._apply(asking, directory, listing, asking.took_s))

    def part(self, asking: Asking, directory: Directory) -> None:
        """Take a directory out of a flat listing that is under way, if all of it has come; the whole will count it."""
        listing = asking.listing(directory.prefix)
        if listing is not None:
            changes = self._apply(asking, directory, listing, asking.took_s)
            if changes:
                asking.found.changes.append((directory.prefix, changes))

    def _apply(self, asking: Asking, directory: Directory, listing: DirectoryListing, took_s: float) -> Changes:
        now = trio.current_time()
        changes = self._tree.apply(directory.inode, listing, now, asked_at=asking.asked_at, took_s=took_s)
        self._log_hidden(changes.hidden)
        if changes:
            self._changed(directory, changes)
        return changes

    def _log_hidden(self, keys: Iterable[HiddenKey]) -> None:
        for hidden in keys:
            log.warning("%s/%s cannot be shown: %s", self._url, hidden.key, hidden.reason)

    async def name(self, directory: Directory, name: str, asked_at: float) -> Changes:
        """Ask for one name, and take the answer."""
        answer: Answer = NoObject.ABSENT
        if not name_fault(name):
            self.counters.exact_lookups += 1
            # Only where directories can be told in no other way, and never instead of a file that is known.
            trusting = self._mode is Mode.EXACT and not isinstance(directory.entry(name), File)
            answer = await ask(self._listings, f"{directory.prefix}{name}", trusting=trusting)
            self._answered()
        return self.admit(directory, name, answer, asked_at)

    def admit(self, directory: Directory, name: str, answer: Answer, asked_at: float, took_s: float = 0.0) -> Changes:
        """Take an answer about one name."""
        now = trio.current_time()
        changes = self._tree.admit(directory.inode, name, answer, now, asked_at=asked_at, took_s=took_s)
        if changes:
            self._changed(directory, changes)
        return changes

    async def page(self, directory: Directory, token: str) -> tuple[DirectoryListing, str]:
        """One page of a huge directory, for its stream; nothing of it goes into the tree."""
        self.counters.streamed_pages += 1
        page = await self._listings.page(directory.prefix, token)
        self._answered()
        listing = DirectoryListing(directory.prefix)
        listing.add(page)
        self._log_hidden(self._tree.report(self._repository, listing))
        return listing, page.next_token

    def _answered(self) -> None:
        self.unanswered_since, self.answered_at = None, trio.current_time()

    def failed(self, error: D7yfsError) -> None:
        """A question has failed: that there is no such thing is an answer, though."""
        error.about(repository=self._repository)
        if self.unanswered_since is None and not isinstance(error, NotFound):
            self.unanswered_since = trio.current_time()

    def doubt(self, directory: Directory) -> None:
        """Of a directory whose names were learnt one by one: what is used from now on is asked for again, and the kernel told to ask."""
        names = self._tree.doubt(directory.inode)
        self._changed(directory, Changes(len(names), replaced=names))

    def forget(self) -> None:
        """Nothing that was asked for counts any more."""
        self.last_scan = LastScan()
