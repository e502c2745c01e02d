"""Something that is being asked of a store, in a task of its own, and those who wait for what comes of it. Used by `lister`."""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median

import trio

from d7yfs.errors import D7yfsError, OriginUnavailable
from d7yfs.tree.answers import Changes
from d7yfs.tree.listing import Answer, DirectoryListing, Reached
from d7yfs.tree.nodes import Directory

log = logging.getLogger(__name__)

_PAGE_S = 5.0
"""Longer than this a store does not work on a page; then it is in trouble."""
_FEW_PAGES = 3
_FEW_PAGE_S = 0.5
"""Of fewer pages than that none tells how long one takes: a stall of the network, or a retry, must not make their answers old."""


@dataclass(slots=True)
class Refreshed:
    """What was learnt."""

    directories: int = 0
    """So many were looked at."""
    changes: list[tuple[str, Changes]] = field(default_factory=list)
    """By the directory's key prefix; only where something has changed."""

    def add(self, directory: Directory, changes: Changes) -> None:
        """Take account of one directory."""
        self.directories += 1
        if changes:
            self.changes.append((directory.prefix, changes))


def _nothing(*_question: str) -> None:
    return None


@dataclass(slots=True, eq=False)
class Asking:
    """One question, from `asked_at` on in trio's seconds."""

    asked_at: float
    answer: Callable[[str, str], Answer | None] = _nothing
    """What a name in the directory of a prefix is, as far as pages have come; None while they leave it open."""
    listing: Callable[[str], DirectoryListing | None] = _nothing
    """All that is in the directory of a prefix, once all of it has come; of a flat listing."""
    reached: Reached = field(default_factory=Reached)
    """How far its pages have come, of a flat listing."""
    pages: int = 0
    """So many have come."""
    leaves_open: bool = False
    """Pages have come, and more are to come."""
    done: bool = False
    error: D7yfsError | None = None
    found: Refreshed = field(default_factory=Refreshed)
    _waiting: set[trio.Event] = field(default_factory=set)
    _came_at: list[float] = field(default_factory=list)
    """When each page came."""

    @property
    def took_s(self) -> float:
        """How long the store has worked on it so far, by what a page usually takes: a stall, or a store that was away, is no work."""
        now = trio.current_time()
        page_s = _FEW_PAGE_S
        if self.pages >= _FEW_PAGES:
            pages_s = [stop - start for start, stop in pairwise([self.asked_at, *self._came_at])]
            page_s = min(median(pages_s), _PAGE_S)
        return min(now - self.asked_at, max(self.pages, 1) * page_s)

    def came(self, *, more: bool) -> None:
        """There is a page, for those who wait to look at."""
        self.pages += 1
        self._came_at.append(trio.current_time())
        self.leaves_open = more
        self._tell()

    def _tell(self) -> None:
        for event in self._waiting:
            event.set()

    async def run(self, name: str, ask: Callable[[], Awaitable[None]], failed: Callable[[D7yfsError], None]) -> None:
        """Await `ask` to its end; `failed` hears of an error before anybody who waits does. `name` is for the log."""
        try:
            await ask()
        except D7yfsError as error:
            self.error = error
        except Exception as error:
            log.exception("listing %s failed unexpectedly", name)
            self.error = OriginUnavailable(f"listing {name} failed: {type(error).__name__}")
        finally:
            if self.error is not None:
                failed(self.error)
            self.done = True
            self._tell()

    async def end(self) -> Refreshed:
        """Wait for its end. Raises its error."""
        while not self.done:
            await news([self])
        if self.error is not None:
            raise self.error
        return self.found


async def news(asked: Sequence[Asking], timeout_s: float = math.inf) -> None:
    """Wait until any of these has a page more or comes to its end, or until the time is over."""
    event = trio.Event()
    for each in asked:
        each._waiting.add(event)
    try:
        with trio.move_on_after(timeout_s):
            await event.wait()
    finally:
        for each in asked:
            each._waiting.discard(event)
