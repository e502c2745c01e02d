"""The questions to one repository's store, until the tree can answer.

Single flight: each question is asked once, in a task of its own, for all readers that wait for it.
A reader that gives up takes nothing from the others. Every answer is applied to the tree at once; a
reader that waits looks there. Owns the choice between a flat listing of the repository, the listing
of one directory and the request for one name. Owns also what follows when the store fails.

Called by `filesystem` and `refresher`; trio thread only.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import replace
from weakref import WeakKeyDictionary

import trio

from d7yfs.errors import AccessDenied, BucketNotFound, D7yfsError, NotFound, OriginUnavailable
from d7yfs.logs import fields_of
from d7yfs.stats.failures import FailureStatus
from d7yfs.stats.repository_status import LastScanStatus, ListingStatus
from d7yfs.stats.status import blank
from d7yfs.tree.huge_directory import Streams
from d7yfs.tree.listing import Answer, DirectoryListing, NoObject, Scan, TooLarge, Unordered, key_fault, name_fault
from d7yfs.tree.nodes import Absent, Directory, Expired, File, Found, NameChanges
from d7yfs.tree.question import Question, is_far, raise_last, wait_for_news
from d7yfs.tree.source import LIMIT, ListingMode, ListingSource, NothingPublished, PublishedSource, ask
from d7yfs.tree.tree import Tree

log = logging.getLogger(__name__)

RACE_AFTER_S = 1.0
"""The time after which a reader of a directory stops waiting for a flat listing alone. A near
store lists 10,000 objects faster."""

STALE_RETRY_S = 5.0
"""The pause after a failed question; until then the last answer is served (stale-if-error)."""

DENIED_RETRY_S = 60.0
"""The pause before a denied listing is tried again."""

_APPLIED_AT_ONCE = 500
"""Entries that are applied before other tasks run: some 2 ms."""


class Lister:
    """The way of one repository's names into the tree. `nursery` runs the questions."""

    def __init__(
        self,
        tree: Tree,
        repository: str,
        source: ListingSource,
        nursery: trio.Nursery,
        *,
        url: str,
        mode: ListingMode = ListingMode.AUTO,
        limit: int = LIMIT,
        changed: Callable[[Directory, NameChanges], None] = lambda _directory, _changes: None,
        failing: FailureStatus | None = None,
        published: PublishedSource | None = None,
    ) -> None:
        """`url` names the bucket in logs. `changed` gets each answer's changes, at once; it must not await.
        `limit` is the most objects listed whole, and the most entries of a directory that are kept.
        `failing` is told how the store answers. `published` says if the source lists the store."""
        self.mode, self.published, self.nursery = mode, published or NothingPublished(), nursery
        self._failing = failing or FailureStatus()
        self._not_whole = "" if mode in (ListingMode.AUTO, ListingMode.WHOLE) else "set so"
        self.streams = Streams(self._fetch_page, nursery, tree.lives_until)
        """The huge directories, page by page."""
        self.last_scan = blank(LastScanStatus)
        self._answered_at: float | None = None  # when the store answered last
        self._counters = blank(ListingStatus)
        self._tree, self._repository, self._source = tree, repository, source
        self._top = tree.top(repository)
        self._url, self._limit, self._changed = url, limit, changed
        self._is_too_large = False
        self._scan_again_at = -math.inf  # when the last flat listing expires, or the pause after a failed one ends
        self._denied: WeakKeyDictionary[Directory, float] = WeakKeyDictionary()
        self._under_way: dict[tuple[Directory | None, str | None], Question] = {}
        """The questions that are shared, by directory and name."""

    @property
    def not_whole(self) -> str:
        """Why the repository is not listed whole, in words."""
        return "it is published" if self.published.is_followed else self._not_whole

    def set_limit(self, limit: int) -> None:
        """Change the limit. A repository too large for the old one may be listed whole again."""
        if limit != self._limit and self._is_too_large:
            self._not_whole, self._is_too_large = "", False
        self._limit = limit

    def relocate(self, prefix: str) -> None:
        """Move the repository to `prefix`: nothing is known of it from now on."""
        self._tree.relocate(self._repository, prefix)
        self.streams.drop()
        self.last_scan = blank(LastScanStatus)
        self._scan_again_at = -math.inf

    # --- for readers ---

    async def lookup(self, directory: Directory, name: str, asked_at: float) -> Found | Absent:
        """The tree's answer about a name. Raises the store's error if nothing stale is left."""
        if directory.huge and (known := self.streams.find(directory, name, asked_at)) is not None:
            self._apply_name(directory, name, *known)
        asked: list[Question] = []
        questions = self._next_questions(directory, name)
        while isinstance(found := self._find(directory, name, asked_at), Expired):
            if any(self._apply_answer(each, directory, name, asked_at) for each in asked):
                continue
            waiting = [each for each in asked if not each.done]
            if (
                all(self._is_slow(each, directory) for each in waiting)
                and (question := next(questions, None)) is not None
            ):
                asked.append(question)
            elif waiting:
                await wait_for_news(waiting)
            else:
                raise_last(asked)
                asked, questions = [], self._next_questions(directory, name)
        return found

    def _find(self, directory: Directory, name: str, asked_at: float) -> Found | Absent | Expired:
        return self._tree.lookup(directory.inode, name, trio.current_time(), asked_at=asked_at)

    def _next_questions(self, directory: Directory, name: str) -> Iterator[Question]:
        """The questions that tell of a name, each asked if those before leave it open, or fail."""
        if not self._asks_by_name(directory):
            if self._may_scan(directory):
                yield self.scan()
            listing = self.list_directory(directory)
            yield listing
            if listing.done and not self._asks_by_name(directory):
                return
        if not directory.is_lone:
            yield self._ask(Question(trio.current_time(), directory, name))

    def _apply_answer(self, question: Question, directory: Directory, name: str, asked_at: float) -> bool:
        """Apply what the pages so far tell of a name. True if the tree then has an answer."""
        if (answer := question.answer(directory, name)) is None:
            return False
        self._apply_name(directory, name, answer, question.asked_at, question.took_s)
        return not isinstance(self._find(directory, name, asked_at), Expired)

    async def list(self, directory: Directory, asked_at: float) -> None:
        """Return once the directory is `tree.listed` or huge. Raises as `lookup`."""
        entries = self.streams.entries(directory) if directory.huge else None
        if entries is not None and entries <= self._limit:
            directory.huge = False  # it has shrunk
        listing: Question | None = None
        race_at = trio.current_time() + RACE_AFTER_S
        pages = self.scanning.pages if self.scanning is not None else 0
        while not self._tree.listed(directory.inode, asked_at) and not directory.huge:
            scan = self.scan() if self._may_scan(directory) else None
            if scan is not None:
                self._apply_part(scan, directory)
                if self._tree.listed(directory.inode, asked_at):
                    return
            if listing is None and (
                scan is None or trio.current_time() >= race_at or self._is_far(scan, pages, directory)
            ):
                listing = self.list_directory(directory)
            under_way = [each for each in (scan, listing) if each is not None and not each.done]
            if under_way:
                if scan is not None and listing is None:
                    scan.want()
                await wait_for_news(under_way, race_at - trio.current_time() if listing is None else math.inf)
            elif listing is not None:
                raise_last([listing])
                listing = None  # it was asked for before this question

    def _is_slow(self, question: Question, directory: Directory) -> bool:
        """True if a question may take longer to tell of a name in a directory than the next one."""
        return question.leaves_open or (question is self.scanning and self._is_far(question, 0, directory))

    def _is_far(self, scan: Question, pages: int, directory: Directory) -> bool:
        """True if a flat listing, with `pages` when a reader came, may be long in reaching the directory."""
        if not scan.pages and self.last_scan.pages == 1:
            return False  # its first page tells of all
        return is_far(scan, pages, directory, None if directory is self._top else self._tree.above(directory))

    # --- which question ---

    def _asks_by_name(self, directory: Directory) -> bool:
        """True if a name is asked for alone: by mode, by size, where denied, while a listing lives."""
        now = trio.current_time()
        denied = now < self._denied.get(directory, -math.inf)
        alone = self.mode is ListingMode.EXACT or directory.huge or denied or directory.fresh(now)
        return alone and not directory.is_lone

    def _may_scan(self, directory: Directory) -> bool:
        """True if a flat listing of the whole repository is the way to know the directory."""
        now = trio.current_time()
        return (
            not self.not_whole
            and now >= self._scan_again_at  # before, this directory alone is not known
            and self._tree.lives_until(now) > now
            and not self._top.is_lone
            and directory.prefix.startswith(self._top.prefix)
        )

    # --- asking ---

    @property
    def scanning(self) -> Question | None:
        """The flat listing of the whole repository that is under way."""
        return self._under_way.get((None, None))

    def scan(self) -> Question:
        """The flat listing of the whole repository: the one under way, else a new one."""
        listing = Scan(self._top.prefix, self._tree.max_entries)
        return self.scanning or self._ask(Question(trio.current_time(), listing=listing))

    def scan_below(self, directory: Directory) -> Question:
        """A new flat listing of all below a directory, which no reader shares."""
        return self._start(Question(trio.current_time(), listing=Scan(directory.prefix, self._tree.max_entries)))

    def list_directory(self, directory: Directory) -> Question:
        """The listing of one directory: the one under way, else a new one."""
        return self._ask(Question(trio.current_time(), directory, listing=DirectoryListing(directory.prefix)))

    def under_way(self, prefix: str) -> Sequence[Question]:
        """The shared questions at or below `prefix`, and the flat listing of the repository."""
        asked = self._under_way.items()
        return [each for (about, _), each in asked if about is None or about.prefix.startswith(prefix)]

    def _ask(self, question: Question) -> Question:
        key = (question.directory, question.name)
        if key not in self._under_way:
            self._under_way[key] = self._start(question)
        return self._under_way[key]

    def _start(self, question: Question) -> Question:
        self.nursery.start_soon(self._run, question)
        return question

    async def _run(self, question: Question) -> None:
        listing, directory = question.listing, question.directory
        try:
            if isinstance(listing, Scan):
                await self._fetch_scan(question, listing)
            elif directory is not None and listing is not None:
                await self._fetch_listing(question, directory, listing)
            elif directory is not None and question.name is not None:
                question.found.add(directory, await self.fetch_name(directory, question.name, question.asked_at))
        except D7yfsError as error:
            question.error = error
        except Exception as error:
            name = f"{self._url}/{question.key}"
            log.exception("listing %s failed unexpectedly", name)
            question.error = OriginUnavailable(f"listing {name} failed: {type(error).__name__}")
        finally:
            key = (question.directory, question.name)
            if self._under_way.get(key) is question:
                del self._under_way[key]
            if question.error is not None:
                self._note_failure(question, question.error)
            question.finish()

    async def _fetch_scan(self, question: Question, scan: Scan) -> None:
        """Fetch a flat listing; one too long or out of order leaves nothing but `not_whole`."""
        self._counters.scans += 1
        try:
            async with aclosing(self._source.pages(scan.prefix, delimiter="")) as pages:
                async for page in pages:
                    self._note_answer()
                    self._counters.scan_pages += 1
                    scan.add(page)
                    if scan.objects > self._limit and self.mode is ListingMode.AUTO:
                        self._is_too_large = True
                        self._stop_scans(f"it has more than {self._limit} objects")
                        return
                    question.count_page(more=bool(page.next_token))
                    if question.leaves_open and question.pages == 1:
                        await question.rest()
                        if self._top.asked_at >= question.asked_at and not self._top.subdirectories:
                            self._scan_again_at = self._top.expires_at
                            return  # the top directory was listed meanwhile, and is all that there is
        except (Unordered, TooLarge) as error:
            self._is_too_large |= isinstance(error, TooLarge)
            self._stop_scans(error.reason)
            return
        took_s, at_once = question.took_s, 0
        expires_at = self._tree.lives_until(question.asked_at, took_s)
        for listing in scan.listings():
            directory = self._tree.find_directory(self._repository, listing.prefix)
            if directory is None:
                continue  # dropped for room, or gone since
            kept = question.keeps(directory, expires_at)
            changes = NameChanges() if kept else self._apply(directory, listing, question.asked_at, took_s)
            question.found.add(directory, changes)
            at_once += 1 + len(listing.entries)
            if at_once >= _APPLIED_AT_ONCE:
                at_once = 0
                await trio.lowlevel.checkpoint()
        if scan.prefix == self._top.prefix:
            self._scan_again_at = expires_at
            self.last_scan = LastScanStatus(
                objects=scan.objects,
                directories=question.found.directories,
                pages=question.pages,
                took_s=round(took_s, 3),
            )

    def _stop_scans(self, reason: str) -> None:
        if not self._not_whole:
            self._not_whole = reason
            log.info("%s is listed directory by directory: %s", self._url, reason)

    async def _fetch_listing(self, question: Question, directory: Directory, listing: DirectoryListing) -> None:
        """Fetch the listing of one directory, unless the directory turns out to be huge."""
        self._counters.listings += 1
        most = self._tree.max_entries if self.mode is ListingMode.WHOLE else self._limit
        async with aclosing(self._source.pages(listing.prefix)) as pages:
            async for page in pages:
                self._note_answer()
                self._counters.listing_pages += 1
                listing.add(page)
                if page.next_token and len(listing.entries) + listing.hidden_count > most:
                    log.info("%s/%s has more than %d entries", self._url, listing.prefix, most)
                    self._tree.split_listing(directory.inode)
                    return
                question.count_page(more=bool(page.next_token))
        if listing.prefix == directory.prefix:
            question.found.add(directory, self._apply(directory, listing, question.asked_at, question.took_s))

    async def fetch_name(self, directory: Directory, name: str, asked_at: float) -> NameChanges:
        """Ask for one name now, and apply the answer. Raises what the store's requests raise."""
        answer: Answer = NoObject.ABSENT
        if not (name_fault(name) or key_fault(f"{directory.prefix}{name}")):
            self._counters.exact_lookups += 1
            # Only where nothing else can tell of directories, and never in place of a known file.
            trusting = self.mode is ListingMode.EXACT and not isinstance(directory.entry(name), File)
            answer = await ask(self._source, f"{directory.prefix}{name}", trusting=trusting)
            self._note_answer()
        return self._apply_name(directory, name, answer, asked_at)

    async def _fetch_page(self, directory: Directory, token: str) -> tuple[DirectoryListing, str]:
        """One page of a huge directory, for its stream; the tree learns nothing of it."""
        self._counters.streamed_pages += 1
        page = await self._source.page(directory.prefix, token)
        self._note_answer()
        listing = DirectoryListing(directory.prefix)
        listing.add(page)
        self._tell(directory, NameChanges(hidden=self._tree.report_hidden(directory, listing)))
        return listing, page.next_token

    # --- applying ---

    def _apply_part(self, question: Question, directory: Directory) -> None:
        """Apply a directory of a flat listing under way, if all of it has come."""
        listing = question.listing.listing(directory.prefix) if isinstance(question.listing, Scan) else None
        if listing is not None:
            changes = self._apply(directory, listing, question.asked_at, question.took_s)
            question.taken.add(directory)
            question.found.changes += [(directory.prefix, changes)] if changes else []

    def _apply(self, directory: Directory, listing: DirectoryListing, asked_at: float, took_s: float) -> NameChanges:
        now = trio.current_time()
        changes = self._tree.apply(directory.inode, listing, now, asked_at=asked_at, took_s=took_s)
        return self._tell(directory, changes)

    def _apply_name(
        self, directory: Directory, name: str, answer: Answer, asked_at: float, took_s: float = 0.0
    ) -> NameChanges:
        now = trio.current_time()
        changes = self._tree.apply_name(directory.inode, name, answer, now, asked_at=asked_at, took_s=took_s)
        return self._tell(directory, changes)

    def expire_names(self, directory: Directory) -> None:
        """Expire the names learnt one by one: readers and the kernel ask for each again."""
        names = self._tree.expire_names(directory)
        self._changed(directory, NameChanges(replaced=names))

    def _tell(self, directory: Directory, changes: NameChanges) -> NameChanges:
        for hidden in changes.hidden:
            log.warning("%s/%s cannot be shown: %s", self._url, hidden.key, hidden.reason)
        if changes:
            self._changed(directory, changes)
        return changes

    # --- answers and failures of the store ---

    def _note_answer(self) -> None:
        if not self.published.is_followed:  # else the store was not asked
            self._failing.end()
            self._answered_at = trio.current_time()

    def _note_failure(self, question: Question, error: D7yfsError) -> None:
        error.about(repository=self._repository)
        if not isinstance(error, NotFound) or isinstance(error, BucketNotFound):  # else it is an answer
            self._failing.note(error, time.time())
        if question.directory is not None:
            self._serve_stale(error, question.directory, question.name)
            return
        # Readers that wait list the directory that they need, and so do those that come during the
        # pause.
        pause_s = DENIED_RETRY_S if isinstance(error, AccessDenied) else STALE_RETRY_S
        self._scan_again_at = max(self._scan_again_at, trio.current_time() + pause_s)

    def _serve_stale(self, error: D7yfsError, directory: Directory, name: str | None) -> None:
        """Extend the life of the last answer (stale-if-error), or note that listing is denied."""
        now = trio.current_time()
        try:
            if (directory.singles or {}).get(name or "", directory).fresh(now):
                return  # a refresh ahead of time
            if name is not None and (directory, None) in self._under_way:
                return  # the listing will tell
            if self._tree.extend_stale(directory.inode, now, STALE_RETRY_S, name=name):
                listed = f"{self._url}/{directory.prefix}"
                log.warning("%s; serving the last listing of %s", error.message, listed, extra=fields_of(error))
                return
        except D7yfsError:
            return  # the directory itself is gone: the error says more
        if name is None and isinstance(error, AccessDenied) and self.mode is ListingMode.AUTO:
            self._denied[directory] = now + DENIED_RETRY_S

    # --- status ---

    @property
    def whole_requests(self) -> int | None:
        """The number of requests of the last flat listing; None where there is none."""
        return self.last_scan.pages or None if not self.not_whole else None

    def describe(self) -> ListingStatus:
        """The way in use and why, and the counters, for `status`."""
        now, answered_at = trio.current_time(), self.published.answered_at
        no_life = "metadata_ttl is 0" if self._tree.lives_until(0.0) <= 0 else ""
        known = self._not_whole if answered_at is None else self.not_whole
        reason = known or ("it is one object" if self._top.is_lone else no_life)
        in_use = ListingMode.DIRECTORY if reason else ListingMode.WHOLE
        in_use, answered_at = (
            (in_use, self._answered_at) if answered_at is None else (ListingMode.PUBLISHED, answered_at)
        )
        return replace(
            self._counters,
            mode=str(self.mode),
            in_use=str(ListingMode.EXACT if self.mode is ListingMode.EXACT else in_use),
            reason=reason,
            limit=self._limit,
            last_scan=self.last_scan,
            answered_s=None if answered_at is None else round(now - answered_at, 3),
        )
