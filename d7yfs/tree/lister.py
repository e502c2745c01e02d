"""How one repository's directories come to be known: by a flat listing of all of it, directory by directory, or name by name.

Owns what is being asked (each question once, however many wait for its answer), the choice between the three ways, and the going over from
one to the next. Everything that is learnt goes into the `Tree`, at once; who waits looks there. What is asked runs in a task of its own, so
that a reader who gives up takes nothing from those who wait for the same answer.

Called by `filesystem`, and by what keeps the tree fresh; trio thread only.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any
from weakref import WeakKeyDictionary

import trio

from d7yfs.errors import AccessDenied, D7yfsError, VersionGone
from d7yfs.logs import fields_of
from d7yfs.tree.answers import Changes, Expired
from d7yfs.tree.huge_directory import DirectoryStream, Streams
from d7yfs.tree.ingest import Intake
from d7yfs.tree.listing import DirectoryListing
from d7yfs.tree.nodes import Directory
from d7yfs.tree.question import Asking, Refreshed, news
from d7yfs.tree.scan import Scan
from d7yfs.tree.source import Listings, Mode
from d7yfs.tree.tree import Tree

log = logging.getLogger(__name__)

LIMIT = 20_000
"""Default of the objects up to which a repository is listed whole, and of the entries up to which a directory is kept."""

RACE_AFTER_S = 1.0
"""So long who wants a whole directory waits for a flat listing that is amid it: where the store is near, one of 10,000 objects is over by
then."""

STALE_RETRY_S = 5.0
"""What could not be asked is tried again after this time; until then what was known is served."""

DENIED_RETRY_S = 60.0
"""What may not be listed is tried again after this time."""

_ASKED_BY_NAME = 1000
"""Names that a refresh asks for in a directory that is not listed. Of more it makes sure that they are asked for when they are used."""

_AT_ONCE = 8
"""Requests of a refresh."""


class Lister:
    """One repository's. `nursery` runs what is asked; closing it cancels that."""

    def __init__(
        self,
        tree: Tree,
        repository: str,
        listings: Listings,
        nursery: trio.Nursery,
        *,
        url: str,
        mode: Mode = Mode.AUTO,
        limit: int = LIMIT,
        changed: Callable[[Directory, Changes], None] = lambda _directory, _changes: None,
    ) -> None:
        """`url` names the bucket in logs. `changed` hears of what each answer changed, at once and without awaiting."""
        self._intake = Intake(tree, repository, listings, url=url, mode=mode, limit=limit, changed=changed)
        self._tree = tree
        self._repository = repository
        self._nursery = nursery
        self._url = url
        self._mode = mode
        self._scanning: Asking | None = None
        self._listed: dict[Directory, Asking] = {}
        self._exact: dict[tuple[Directory, str], Asking] = {}
        self._scan_again_at = -math.inf
        self._denied: WeakKeyDictionary[Directory, float] = WeakKeyDictionary()
        self._streams = Streams(self._intake.page, nursery, tree.lives_until)

    def set_limit(self, limit: int) -> None:
        """Of objects that are listed whole, and entries of a directory that are kept: another one from now on."""
        self._intake.set_limit(limit)

    # --- questions ---

    async def lookup(self, directory: Directory, name: str, asked_at: float) -> None:
        """Return when `tree.lookup` has an answer for this question. Raises what the origin raised where nothing older can be served."""
        if directory.huge and (known := self._streams.find(directory, name, asked_at)) is not None:
            self._intake.admit(directory, name, *known)
        asked: list[Asking] = []
        questions = self._questions(directory, name)
        while self._is_open(directory, name, asked_at):
            if any(self._settles(each, directory, name, asked_at) for each in asked):
                return
            waiting = [each for each in asked if not each.done]
            question = next(questions, None) if all(each.leaves_open for each in waiting) else None
            if question is not None:
                asked.append(question)
            elif waiting:
                await news(waiting)
            else:
                _raise_last(asked)
                asked, questions = [], self._questions(directory, name)

    async def list(self, directory: Directory, asked_at: float) -> None:
        """Return when `tree.listed` for this question, or when `directory.huge`: then it is not kept whole. Raises as `lookup`."""
        entries = self._streams.entries(directory) if directory.huge else None
        if entries is not None and entries <= self._intake.limit:
            directory.huge = False  # it has shrunk
        listing: Asking | None = None
        race_at = trio.current_time() + RACE_AFTER_S
        pages = self._scanning.pages if self._scanning is not None else 0
        while not self._tree.listed(directory.inode, asked_at) and not directory.huge:
            scan = self._scan() if self._scans(directory) else None
            if scan is not None:
                self._intake.part(scan, directory)
                if self._tree.listed(directory.inode, asked_at):
                    return
            if listing is None and (
                scan is None or trio.current_time() >= race_at or self._is_far(scan, pages, directory)
            ):
                listing = self._list(directory)
            under_way = [each for each in (scan, listing) if each is not None and not each.done]
            if under_way:
                await news(under_way, race_at - trio.current_time() if listing is None else math.inf)
            elif listing is not None:
                if listing.error is not None:
                    raise listing.error
                listing = None  # it was asked for before this question

    def _is_far(self, scan: Asking, pages: int, directory: Directory) -> bool:
        """Whether a directory that was asked for when `pages` had come may be long in coming: the next one has not brought it, or need not.

        Who walks the repository in order always wants what the next page brings, and so asks for nothing beside the flat listing.
        """
        key = scan.reached.key
        if not key or key.startswith(directory.prefix):
            return False
        above = self._above(directory)
        return scan.pages > pages or any(
            isinstance(each, Directory) and key < each.prefix < directory.prefix
            for each in (above.entries if above else ())
        )

    def stream(self, directory: Directory, asked_at: float) -> DirectoryStream:
        """What shows a huge directory to who opens, or rewinds, it at `asked_at`."""
        return self._streams.open(directory, asked_at)

    def _is_open(self, directory: Directory, name: str, asked_at: float) -> bool:
        found = self._tree.lookup(directory.inode, name, trio.current_time(), asked_at=asked_at)
        return isinstance(found, Expired)

    def _settles(self, asking: Asking, directory: Directory, name: str, asked_at: float) -> bool:
        """Whether the pages that have come answer the question; then the tree does."""
        answer = asking.answer(directory.prefix, name)
        if answer is None:
            return False
        self._intake.admit(directory, name, answer, asking.asked_at, asking.took_s)
        return not self._is_open(directory, name, asked_at)

    # --- ways ---

    def _questions(self, directory: Directory, name: str) -> Iterator[Asking]:
        """What to ask to learn of a name: first this, then the next, beside it where it leaves that open, after it where it fails."""
        if not self._is_exact(directory):
            if self._scans(directory):
                yield self._scan()
            listing = self._list(directory)
            yield listing
            if listing.done and not self._is_exact(directory):
                return
        if not _is_lone(directory):
            yield self._ask_exactly(directory, name)

    def _is_exact(self, directory: Directory) -> bool:
        """Whether a name in it is asked for by itself. While its listing lives, only a name that was asked for since is open."""
        now = trio.current_time()
        denied = now < self._denied.get(directory, -math.inf)
        alone = self._mode is Mode.EXACT or directory.huge or denied or directory.fresh(now)
        return alone and not _is_lone(directory)

    def _scans(self, directory: Directory) -> bool:
        """Whether a question about a directory is one for a flat listing of the whole repository."""
        now = trio.current_time()
        top = self._tree.top(self._repository)
        return (
            not self._intake.not_whole
            and now >= self._intake.last_scan.lives_until  # otherwise it is this directory alone that is not known
            and now >= self._scan_again_at
            and self._tree.lives_until(now) > now
            and not _is_lone(top)
            and directory.prefix.startswith(top.prefix)
        )

    def _scan(self) -> Asking:
        """The flat listing of the whole repository: the one under way, or else a new one."""
        if self._scanning is None:
            self._scanning = self._start_scan(self._tree.top(self._repository).prefix)
        return self._scanning

    def _start_scan(self, prefix: str) -> Asking:
        scan = Scan(prefix)
        asking = Asking(trio.current_time(), scan.answer, scan.listing, scan.reached)
        self._nursery.start_soon(
            asking.run, f"{self._url}/{prefix}", lambda: self._run_scan(asking, scan), self._scan_failed
        )
        return asking

    def _list(self, directory: Directory) -> Asking:
        """The listing of one directory: the one under way, or else a new one."""
        asking = self._listed.get(directory)
        if asking is None:
            listing = DirectoryListing(directory.prefix)
            asking = Asking(trio.current_time(), lambda _prefix, name: listing.answer(name))
            self._listed[directory] = listing_asked = asking
            self._nursery.start_soon(
                asking.run,
                f"{self._url}/{directory.prefix}",
                lambda: self._run_listing(listing_asked, directory, listing),
                lambda error: self._bear(error, directory),
            )
        return asking

    def _ask_exactly(self, directory: Directory, name: str) -> Asking:
        """The question for one name: the one under way, or else a new one."""
        asking = self._exact.get((directory, name))
        if asking is None:
            asking = self._exact[directory, name] = question = Asking(trio.current_time())
            self._nursery.start_soon(
                asking.run,
                f"{self._url}/{directory.prefix}{name}",
                lambda: self._run_question(question, directory, name),
                lambda error: self._bear(error, directory, name),
            )
        return asking

    # --- what runs ---

    async def _run_scan(self, asking: Asking, scan: Scan) -> None:
        try:
            await self._intake.scan(asking, scan)
        finally:
            if asking is self._scanning:
                self._scanning = None

    async def _run_listing(self, asking: Asking, directory: Directory, listing: DirectoryListing) -> None:
        try:
            await self._intake.listing(asking, directory, listing)
        finally:
            del self._listed[directory]

    async def _run_question(self, asking: Asking, directory: Directory, name: str) -> None:
        try:
            asking.found.add(directory, await self._intake.name(directory, name, asking.asked_at))
        finally:
            del self._exact[directory, name]

    def _scan_failed(self, error: D7yfsError) -> None:
        """Those who wait list the directory that they need, and so does who comes in the next time."""
        self._intake.failed(error)
        pause_s = DENIED_RETRY_S if isinstance(error, AccessDenied) else STALE_RETRY_S
        self._scan_again_at = trio.current_time() + pause_s

    def _bear(self, error: D7yfsError, directory: Directory, name: str | None = None) -> None:
        """A question failed: have what is known served, or remember that this directory may not be listed."""
        self._intake.failed(error)
        now = trio.current_time()
        try:
            if directory.fresh(now) if name is None else not self._is_open(directory, name, now):
                return  # a refresh ahead of time
            if name is not None and directory in self._listed:
                return  # which will tell
            if self._tree.extend_stale(directory.inode, now, STALE_RETRY_S, name=name):
                listed = f"{self._url}/{directory.prefix}"
                log.warning("%s; serving the last listing of %s", error.message, listed, extra=fields_of(error))
                return
        except D7yfsError:
            return  # the directory itself is gone: the error says more
        if name is None and isinstance(error, AccessDenied) and self._mode is Mode.AUTO:
            self._denied[directory] = now + DENIED_RETRY_S

    # --- refreshing ---

    async def refresh(self, directory: Directory) -> Refreshed:
        """Ask now for all that is known of a directory and below it, however fresh. Raises as `lookup`."""
        self._streams.drop(directory.prefix)
        self._tree.drop_strays(directory)
        if not self._intake.not_whole and not _is_lone(directory):
            asking = await self._rescan(directory)
            try:
                found = await asking.end()
            except AccessDenied:
                found = Refreshed()
            if found.directories:
                return await self._look_for(directory, found)
        await self._older(directory)
        self._tree.drop_strays(directory)
        found = Refreshed()
        known = self._tree.known(directory)
        if self._mode is not Mode.EXACT and directory not in known:
            known.insert(0, directory)
        pending = iter(known)
        errors: list[D7yfsError] = []

        async def work() -> None:
            for each in pending:
                try:
                    await self._refresh_one(each, found)
                except VersionGone:
                    pass  # it is no directory any more
                except D7yfsError as error:
                    errors.append(error)

        async with trio.open_nursery() as nursery:
            for _ in range(_AT_ONCE):
                nursery.start_soon(work)
        if errors:
            raise errors[0]
        return await self._look_for(directory, found)

    async def _older(self, directory: Directory) -> None:
        """Wait for what was asked for before now of a directory and below it: then it is known, and asked for anew with the rest."""
        now = trio.current_time()

        def under_way() -> list[Asking]:
            asked = [*self._listed.items(), *((each, asking) for (each, _), asking in self._exact.items())]
            below = [asking for each, asking in asked if each.prefix.startswith(directory.prefix)]
            return [each for each in (*below, self._scanning) if each is not None and each.asked_at < now]

        while older := under_way():
            await news(older)

    async def _look_for(self, directory: Directory, found: Refreshed) -> Refreshed:
        """Whether a directory in which nothing is left is one at all: else it would stay until the one above is listed."""
        parent, name = self._above(directory), directory.prefix.rstrip("/").rpartition("/")[2]
        if not directory.entries and parent is not None and parent.entry(name) is directory:
            found.add(parent, await self.refresh_entry(parent, name))
        return found

    def _above(self, directory: Directory) -> Directory | None:
        """The directory that shows this one, if it is known at present."""
        above = directory.prefix.rstrip("/").rpartition("/")[0]
        return self._tree.at(self._repository, f"{above}/" if above else "")

    async def _rescan(self, directory: Directory) -> Asking:
        """A flat listing of `directory` that is asked for from now on. Who asks for all of it while one is under way shares the next."""
        if directory is not self._tree.top(self._repository):
            return self._start_scan(directory.prefix)
        now = trio.current_time()
        while self._scanning is not None and self._scanning.asked_at < now:
            await news([self._scanning])
        return self._scan()

    async def _refresh_one(self, directory: Directory, found: Refreshed) -> None:
        if directory.children is not None or directory.singles is None:
            listed = await self.relist(directory)
            found.directories += listed.directories
            found.changes += listed.changes
            if directory.children is not None or directory.singles is None:
                return
            # It has turned out to be huge.
        if len(directory.singles) > _ASKED_BY_NAME:
            self._intake.doubt(directory)
            found.directories += 1
            return
        for name in list(directory.singles):
            found.add(directory, await self.refresh_entry(directory, name))

    async def relist(self, directory: Directory) -> Refreshed:
        """Ask now for a directory alone; one question with who asks for it already. Raises as `lookup`."""
        return await self._list(directory).end()

    async def refresh_entry(self, directory: Directory, name: str) -> Changes:
        """Ask now for one name, however fresh. Raises what the origin raises: nothing older is served instead."""
        if _is_lone(directory):
            found = await self.relist(directory)
            return found.changes[0][1] if found.changes else Changes(len(directory.children or ()))
        return await self._intake.name(directory, name, trio.current_time())

    def settle(self, prefix: str) -> None:
        """The repository lies at `prefix` from now on, and nothing is known of it."""
        self._tree.settle(self._repository, prefix)
        self._streams.drop()
        self._intake.forget()
        self._scan_again_at = -math.inf

    # --- status ---

    @property
    def unanswered_since(self) -> float | None:
        """Since when the store has answered no question, in trio's seconds; None while it does."""
        return self._intake.unanswered_since

    @property
    def whole_requests(self) -> int | None:
        """How many requests the last flat listing took; None where there is none."""
        return self._intake.last_scan.pages or None if not self._intake.not_whole else None

    def describe(self) -> dict[str, Any]:
        """For `status`: the way in use and why, and what was asked since start."""
        in_use, reason, last = Mode.WHOLE, self._intake.not_whole, self._intake.last_scan
        answered_at = self._intake.answered_at
        if self._mode is Mode.EXACT:
            in_use = Mode.EXACT
        elif reason:
            in_use = Mode.DIRECTORY
        elif _is_lone(self._tree.top(self._repository)):
            in_use, reason = Mode.DIRECTORY, "it is one object"
        elif self._tree.lives_until(0.0) <= 0:
            in_use, reason = Mode.DIRECTORY, "metadata_ttl is 0"
        return {
            "mode": str(self._mode),
            "in_use": str(in_use),
            "reason": reason,
            "limit": self._intake.limit,
            "last_scan": {
                "objects": last.objects,
                "directories": last.directories,
                "pages": last.pages,
                "took_s": round(last.took_s, 3),
            },
            "answered_s": None if answered_at is None else round(trio.current_time() - answered_at, 3),
            **asdict(self._intake.counters),
        }


def _is_lone(directory: Directory) -> bool:
    """Whether it shows one object, whose key is its prefix."""
    return bool(directory.prefix) and not directory.prefix.endswith("/")


def _raise_last(asked: list[Asking]) -> None:
    for each in reversed(asked):
        if each.error is not None:
            raise each.error
