"""Asking anew for what is known: for a client (`d7yfs refresh`), ahead of expiry, and once another tree
is published.

Refresh-ahead: directories in use are listed again before they expire, and readers go on with the
known entries. Owns when that happens: `plan` (pure) says what is due, `Refresher` has the lister
ask. Due is a directory that was used since it was listed, at four fifths of its life. The way is
one flat listing where that takes fewer requests than the directories in use.

Promises: an unused mount asks for nothing; nor does a time to live of 0 or `forever`. At most a
twentieth of the time is spent asking: after each round it rests nineteen times as long. A round
that fails changes nothing: a reader of an expired directory then asks through the `Lister`.

Built by `filesystem`, run by `daemon`; trio thread only.
"""

from __future__ import annotations

import itertools
import logging
import math
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field

import trio

from d7yfs.errors import AccessDenied, D7yfsError, VersionGone
from d7yfs.objects import ObjectVersion
from d7yfs.stats.repository_status import FreshnessStatus
from d7yfs.stats.status import blank
from d7yfs.tree.lister import Lister
from d7yfs.tree.nodes import Directory, NameChanges
from d7yfs.tree.question import Question, Refreshed, wait_for_news
from d7yfs.tree.source import ListingMode
from d7yfs.tree.tree import Tree

log = logging.getLogger(__name__)

DUE = 0.8
"""The part of a listing's life after which it is asked for again."""

PAGE_ENTRIES = 1000
"""The entries that one request lists, with every provider's default."""

REST = 19
"""The rest after a round, in multiples of its time: so asking takes a twentieth of the time."""

RETRY_S = 5.0
"""The least pause after a round that failed."""

_LOOKS_PER_LIFE = 20
"""The plans per time to live; a plan costs no request."""
_LEAST_LOOK_S = 0.1
_AT_ONCE = 4
"""Concurrent listings ahead of expiry: few, since no reader waits."""

_AT_ONCE_FOR_CLIENTS = 8

_GONE_PAUSE_S = 1.0
"""The least time between questions for what is published that failed reads cause."""

_ASKED_BY_NAME = 1000
"""The most names that a refresh asks for in a directory that is not listed; more are expired."""


@dataclass(frozen=True, slots=True)
class RefreshPlan:
    """The directories to ask for now; false when there are none."""

    whole: bool = False
    directories: tuple[Directory, ...] = ()
    """The due directories, the one used last first. Each is listed alone unless `whole`."""

    def __bool__(self) -> bool:
        return bool(self.directories)


def plan(directories: Iterable[Directory], now: float, whole_requests: int | None) -> RefreshPlan:
    """The plan for `directories`, all of one repository, at `now`.

    `whole_requests` is the number of requests of a flat listing; None where there is none.
    """
    due: list[Directory] = []
    requests = 0
    for directory in directories:
        life_s = directory.expires_at - directory.asked_at
        # Kept for ever or not at all, or unused for a whole life.
        if (
            directory.huge
            or directory.children is None
            or not 0 < life_s < math.inf
            or directory.used_at <= now - life_s
        ):
            continue
        requests += max(1, -(-len(directory.children) // PAGE_ENTRIES))
        if directory.used_at >= directory.asked_at and now >= directory.asked_at + DUE * life_s:
            due.append(directory)
    due.sort(key=lambda each: each.used_at, reverse=True)
    # All directories in use count, not only the due ones: the others follow within the same life.
    whole = bool(due) and whole_requests is not None and whole_requests <= requests
    return RefreshPlan(whole, tuple(due))


@dataclass(slots=True, eq=False)
class Switch:
    """A switch to another published tree, until all that is known is taken from it."""

    done: trio.Event = field(default_factory=trio.Event)
    found: Refreshed = field(default_factory=Refreshed)
    error: D7yfsError | None = None

    async def wait(self) -> Refreshed:
        """Wait for the end. Raises its error."""
        await self.done.wait()
        if self.error is not None:
            raise self.error
        return self.found


class Refresher:
    """The refreshes of one repository, paced by the tree's metadata TTL when they run ahead."""

    def __init__(self, tree: Tree, repository: str, lister: Lister) -> None:
        self._tree = tree
        self._repository = repository
        self._top = tree.top(repository)
        self._lister = lister
        self._ttl_changed = trio.Event()
        self.counters = blank(FreshnessStatus)
        self._switched = Switch()
        """The last switch to another published tree."""
        self._published = lister.published
        self._published.on_switched = self._switch
        self._published.on_confirmed = self._confirm

    # --- on demand ---

    async def refresh(self, directory: Directory) -> Refreshed:
        """Ask now for all that is known at and below a directory. Raises as `Lister.lookup`.

        Where a tree is published that is one question; another tree changes all of the repository.
        """
        if self._published.is_followed:
            return await self.follow()
        return await self._refresh(directory)

    async def _refresh(self, directory: Directory) -> Refreshed:
        self._lister.streams.drop(directory.prefix)
        self._tree.drop_strays(directory)
        if not self._lister.not_whole and not directory.is_lone:
            scan = await self._rescan(directory)
            try:
                found = await scan.wait()
            except AccessDenied:
                found = Refreshed()
            if found.directories:
                return await self._confirm_empty(directory, found)
        await self._wait_for_older(directory)
        self._tree.drop_strays(directory)
        found = Refreshed()
        known = self._tree.known(directory)
        if self._lister.mode is not ListingMode.EXACT and directory not in known:
            known.insert(0, directory)
        errors: list[D7yfsError] = []
        await _ask_each(known, lambda each: self._refresh_one(each, found), errors, at_once=_AT_ONCE_FOR_CLIENTS)
        if errors:
            raise errors[0]
        return await self._confirm_empty(directory, found)

    async def _rescan(self, directory: Directory) -> Question:
        """A flat listing that begins now or later. Refreshes of the whole repository share it."""
        if directory is not self._top:
            return self._lister.scan_below(directory)
        now = trio.current_time()
        while (scan := self._lister.scanning) is not None and scan.asked_at < now:
            await wait_for_news([scan])
        return self._lister.scan()

    async def _wait_for_older(self, directory: Directory) -> None:
        """Wait for older questions at and below a directory: a refresh asks their names again."""
        now = trio.current_time()
        while older := [each for each in self._lister.under_way(directory.prefix) if each.asked_at < now]:
            await wait_for_news(older)

    async def _refresh_one(self, directory: Directory, found: Refreshed) -> None:
        if directory.children is not None or directory.singles is None:
            listed = await self.relist(directory)
            found.directories += listed.directories
            found.changes += listed.changes
            if directory.children is not None or directory.singles is None:
                return
            # It has turned out to be huge.
        if len(directory.singles) > _ASKED_BY_NAME:
            self._lister.expire_names(directory)
            found.directories += 1
            return
        for name in list(directory.singles):
            found.add(directory, await self.refresh_entry(directory, name))

    async def _confirm_empty(self, directory: Directory, found: Refreshed) -> Refreshed:
        """Ask whether a directory without entries still is one; only its parent's listing tells."""
        parent, name = self._tree.above(directory), directory.prefix.rstrip("/").rpartition("/")[2]
        if not directory.entries and parent is not None and parent.entry(name) is directory:
            found.add(parent, await self.refresh_entry(parent, name))
        return found

    async def relist(self, directory: Directory) -> Refreshed:
        """List one directory now, or share the listing under way. Raises as `Lister.lookup`."""
        return await self._lister.list_directory(directory).wait()

    async def refresh_entry(self, directory: Directory, name: str) -> NameChanges:
        """Ask now for one name. Raises the store's error: nothing stale is served."""
        if directory.is_lone:
            found = await self.relist(directory)
            return found.changes[0][1] if found.changes else NameChanges()
        return await self._lister.fetch_name(directory, name, trio.current_time())

    # --- what is published ---

    async def follow(self) -> Refreshed:
        """Ask now whether another tree is published. If so, return once all that is known is taken
        from it. Raises as `Lister.lookup`."""
        before = self._switched
        await self._published.renew()
        if self._switched is before:
            return Refreshed(directories=len(self._tree.known(self._top)))
        return await self._switched.wait()

    def _confirm(self, asked_at: float) -> None:
        """Make all that is known live as if it was listed at `asked_at`, but what has been expired."""
        expires_at = self._tree.lives_until(asked_at)
        for each in self._tree.listed_directories(self._repository):
            if each.asked_at < asked_at and each.expires_at > -math.inf:
                each.asked_at, each.stale = asked_at, False
                each.expires_at = max(each.expires_at, expires_at)

    def _switch(self) -> None:
        """Expire all that is known, at once, and take it from what is published now."""
        for each in self._tree.listed_directories(self._repository):
            each.expires_at = -math.inf
        self._switched = switched = Switch()
        self._lister.nursery.start_soon(self._relist_all, switched)

    async def _relist_all(self, switched: Switch) -> None:
        try:
            switched.found = await self._refresh(self._top)
        except D7yfsError as error:
            switched.error = error
            log.info("%s could not be taken from what is published: %s", self._repository or "the mount", error)
        except Exception:
            log.exception("following what is published of %s failed unexpectedly", self._repository or "the mount")
        finally:
            switched.done.set()

    def note_gone(self, version: ObjectVersion) -> None:
        """Note that a read found an object other than it was published; see if it is published anew."""
        if self._published.is_followed:
            self._published.note_gone(version)
            if trio.current_time() >= self._published.asked_at + _GONE_PAUSE_S:
                self._lister.nursery.start_soon(self._follow_quietly)

    async def _follow_quietly(self) -> None:
        try:
            await self.follow()
        except D7yfsError as error:
            log.info("%s: %s", self._repository or "the mount", error)
        except Exception:
            log.exception("asking what is published of %s failed unexpectedly", self._repository or "the mount")

    # --- ahead of expiry ---

    def change_ttl(self) -> None:
        """Go on with the tree's new metadata TTL."""
        self._ttl_changed.set()
        self._ttl_changed = trio.Event()

    async def run(self) -> None:
        """Refresh until cancelled; rests while there is nothing to keep fresh."""
        while True:
            ttl_s = self._tree.metadata_ttl_s
            if not 0 < ttl_s < math.inf:
                await self._ttl_changed.wait()
                continue
            await trio.sleep(max(ttl_s / _LOOKS_PER_LIFE, _LEAST_LOOK_S))
            known, now = self._tree.listed_directories(self._repository), trio.current_time()
            if not self._published.is_followed:
                due = plan(known, now, self._lister.whole_requests)
            else:
                asked_at = self._published.asked_at
                used = [each for each in known if each.used_at >= asked_at] if now >= asked_at + DUE * ttl_s else []
                due = RefreshPlan(True, tuple(used))
            if due:
                await self._refresh_ahead(due)

    async def _refresh_ahead(self, due: RefreshPlan) -> None:
        """Run one round, and rest after it."""
        began_at = trio.current_time()
        failed = False
        try:
            if due.whole:
                await self.refresh(self._top)
                self.counters.refreshed_directories += len(due.directories)
            else:
                await self._relist_due(due, began_at)
        except D7yfsError as error:
            failed = True
            log.info("refreshing %s ahead of its expiry failed: %s", self._repository or "the mount", error)
        except Exception:
            failed = True
            log.exception("refreshing %s failed unexpectedly", self._repository or "the mount")
        took_s = trio.current_time() - began_at
        self.counters.refreshes += 1
        self.counters.refreshes_failed += failed
        self.counters.refresh_s += took_s
        await trio.sleep(max(REST * took_s, RETRY_S if failed else 0.0))

    async def _relist_due(self, due: RefreshPlan, began_at: float) -> None:
        """List each of the directories. Those for which the time does not suffice wait for the next
        round, or for a reader.

        Raises the D7yfsError of the first that fails, after which no other is begun.
        """
        # So that the rest is over before the first directory is due again.
        deadline = began_at + self._tree.metadata_ttl_s * DUE / (REST + 1)
        errors: list[D7yfsError] = []

        async def relist(directory: Directory) -> None:
            await self.relist(directory)
            self.counters.refreshed_directories += 1

        in_time = itertools.takewhile(lambda _: not errors and trio.current_time() < deadline, due.directories)
        await _ask_each(in_time, relist, errors, at_once=_AT_ONCE)
        if errors:
            raise errors[0]


async def _ask_each(
    directories: Iterable[Directory],
    ask: Callable[[Directory], Awaitable[None]],
    errors: list[D7yfsError],
    *,
    at_once: int,
) -> None:
    """Ask for each of the directories, some at once, and add their errors to `errors`."""
    pending = iter(directories)

    async def work() -> None:
        for each in pending:
            try:
                await ask(each)
            except VersionGone:
                pass  # it is no directory any more
            except D7yfsError as error:
                errors.append(error)

    async with trio.open_nursery() as nursery:
        for _ in range(at_once):
            nursery.start_soon(work)
