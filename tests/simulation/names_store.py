"""The store of the simulation of names: its keys at every moment, its questions and answers.

`Store` is an `Origin`: each answer is the store's state at one moment, and travels for a while
before and after that moment. `Recorded` stands between it and d7yfs. It keeps the answer of each
question, for the oracle in `names_oracle`.
"""

from __future__ import annotations

import math
import random
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field

import trio

from d7yfs.errors import AccessDenied, D7yfsError, NotFound, OriginUnavailable
from d7yfs.objects import ListingPage, ObjectVersion
from d7yfs.tree.source import ListingSource

_BEGAN_S = 1_700_000_000
_SECOND_NS = 1_000_000_000


SLACK_S = 0.05
"""Seconds; the longest time of the kernel's own work, with a margin."""


def _by_segment(key: str) -> str:
    return key.replace("/", "\0")


ORDERS: dict[str, Callable[[str], object]] = {
    "utf-8": str.encode,
    "by segment": _by_segment,
    "none": lambda key: random.Random(key).random(),
}
"""The orders in which stores list: S3's, that of stores with directories (SeaweedFS), and that
of S3's directory buckets."""


@dataclass(slots=True)
class Weather:
    """The faults and delays of requests, which the world changes."""

    delay_s: float = 0.01
    """Seconds of each direction, on average."""
    failing: float = 0.0
    """The fraction of the requests that fail."""
    hanging: float = 0.0
    """The fraction of the requests that take long before they are answered, or fail."""
    denied: tuple[str, ...] = ()
    """Prefixes that may not be listed."""


class Store:
    """A store of keys and their versions."""

    url = "sim://b"
    identity = "sim"

    def __init__(self, choose: random.Random, *, order: str, page_size: int) -> None:
        self.weather = Weather()
        self._choose = choose
        self._order = ORDERS[order]
        self._page_size = page_size
        self.versions: dict[str, ObjectVersion] = {}
        self.moments: list[tuple[float, dict[str, ObjectVersion]]] = [(-math.inf, {})]

    # --- its changes ---

    def put(self, key: str, etag: str) -> None:
        mtime_ns = int(_BEGAN_S + trio.current_time()) * _SECOND_NS
        self.versions[key] = ObjectVersion(key, 0, etag, mtime_ns)
        self._note()

    def delete(self, key: str) -> None:
        if self.versions.pop(key, None) is not None:
            self._note()

    def _note(self) -> None:
        now = trio.current_time()
        if self.moments[-1][0] == now:
            self.moments.pop()  # A state of no duration that no reader saw.
        self.moments.append((now, dict(self.versions)))

    def since(self, at: float) -> list[dict[str, ObjectVersion]]:
        """The states at every moment from `at` until now."""
        first = next((n for n in range(len(self.moments) - 1, -1, -1) if self.moments[n][0] <= at), 0)
        return [versions for _, versions in self.moments[first:]]

    # --- its answers ---

    async def list(self, prefix: str, *, delimiter: str = "/", token: str = "", page_size: int = 1000) -> ListingPage:
        error = await self._travel(prefix if delimiter or page_size > 1 else None)
        found: dict[str, bool] = {}
        for key in self.versions:
            if key.startswith(prefix):
                head, cut, _ = key[len(prefix) :].partition(delimiter) if delimiter else (key[len(prefix) :], "", "")
                found[f"{prefix}{head}{cut}"] = bool(cut)
        names = sorted(found, key=self._order)  # type: ignore[arg-type]
        if token:
            behind = self._order(token)
            names = [name for name in names if self._order(name) > behind]  # type: ignore[operator]
        shown = names[: min(page_size, self._page_size)]
        page = ListingPage(
            tuple(self.versions[key] for key in shown if not found[key]),
            tuple(key for key in shown if found[key]),
            shown[-1] if len(names) > len(shown) else "",
            int(_BEGAN_S + trio.current_time()) * _SECOND_NS,
        )
        await self._arrive(error)
        return page

    async def stat(self, key: str) -> ObjectVersion:
        error = await self._travel(None)
        version = self.versions.get(key)
        await self._arrive(error)
        if version is None:
            raise NotFound(key)
        return version

    async def _travel(self, listed: str | None) -> D7yfsError | None:
        """Travel to the store. Returns an error that replaces the answer, or None."""
        weather, choose = self.weather, self._choose
        await trio.sleep(choose.expovariate(1.0) * weather.delay_s)
        if choose.random() < weather.hanging:
            await trio.sleep(choose.choice([1.0, 7.0, 20.0]))
        if listed is not None and any(listed.startswith(each) for each in weather.denied):
            return AccessDenied(f"{listed}: 403")
        return OriginUnavailable("503") if choose.random() < weather.failing else None

    async def _arrive(self, error: D7yfsError | None) -> None:
        await trio.sleep(self._choose.expovariate(1.0) * self.weather.delay_s)
        if error is not None:
            raise error


@dataclass(slots=True, eq=False)
class Question:
    """A question of d7yfs to the store: a listing (flat or of one directory), a page of one, or a
    lookup of a name.
    """

    kind: str
    prefix: str
    """The listed prefix, or the key of a name."""
    asked_at: float
    told_at: float
    """The time when the last of its pages came."""
    pages: int = 0
    pages_s: list[float] = field(default_factory=list)
    """Seconds that each page took."""
    files: dict[str, str] = field(default_factory=dict)
    """The ETags that have come, by key."""
    directories: set[str] = field(default_factory=set)
    """The prefixes with their slash."""
    reached: str = ""
    by_segment: str = ""
    """The last key of its pages, in either order."""
    disordered_at: float = math.inf
    """The time when keys without an order came."""
    in_order: tuple[str, str] = ("", "")
    """The last key of its pages before, in either order."""
    complete: bool = False
    error: D7yfsError | None = None
    failed_at: float = -1.0
    ended_at: float = math.inf
    rested_s: float = 0.0
    """Seconds in which d7yfs did not ask for its next page."""

    @property
    def took_s(self) -> float:
        """Seconds that the store took, or has taken so far."""
        return min(self.ended_at, trio.current_time()) - self.asked_at - self.rested_s

    def take(self, page: ListingPage) -> None:
        self.pages_s.append(self.took_s - sum(self.pages_s))
        self.told_at = trio.current_time()
        self.pages += 1
        keys = [version.key for version in page.objects]
        for part in (keys, list(page.prefixes)):
            if part != sorted(part) or (part and part[0] < self.reached):
                self.disordered_at = min(self.disordered_at, self.told_at)
        for version in page.objects:
            self._enter(version.key, version.validator)
        for prefix in page.prefixes:
            self._enter(prefix, "")
        self.reached = max([self.reached, *keys, *page.prefixes])
        self.by_segment = max([self.by_segment, *map(_by_segment, (*keys, *page.prefixes))])
        if self.disordered_at == math.inf:
            self.in_order = (self.reached, self.by_segment)
        self.complete = not page.next_token

    def passed(self, key: str) -> bool:
        """True if all keys that the name `key` can stand for have come.

        It is also true if this seemed so when an answer that is still on its way was given.
        """
        end = f"{key}/"
        reached, by_segment = self.in_order
        is_in_order = trio.current_time() <= self.disordered_at + SLACK_S
        return self.complete or (is_in_order and reached > end and by_segment > _by_segment(end))

    def _enter(self, key: str, etag: str) -> None:
        cut = key.find("/", len(self.prefix)) + 1
        while cut:
            self.directories.add(key[:cut])
            cut = key.find("/", cut) + 1
        if not key.endswith("/"):
            self.files[key] = etag


class Recorded:
    """The store's `listings`, with all their questions and answers."""

    def __init__(self, listings: ListingSource) -> None:
        self._listings = listings
        self.questions: list[Question] = []

    def _ask(self, kind: str, prefix: str) -> Question:
        now = trio.current_time()
        question = Question(kind, prefix, now, now)
        self.questions.append(question)
        return question

    async def pages(self, prefix: str, *, delimiter: str = "/") -> AsyncGenerator[ListingPage, None]:
        question = self._ask("list" if delimiter else "flat", prefix)
        try:
            async with aclosing(self._listings.pages(prefix, delimiter=delimiter)) as pages:
                async for page in pages:
                    question.take(page)
                    yield page
                    question.rested_s += trio.current_time() - question.told_at
        except D7yfsError as error:
            self._failed(question, error)
            raise
        finally:
            question.ended_at = trio.current_time()

    async def page(self, prefix: str, token: str) -> ListingPage:
        question = self._ask("page", prefix)
        try:
            page = await self._listings.page(prefix, token)
        except D7yfsError as error:
            self._failed(question, error)
            raise
        question.take(page)
        return page

    async def stat(self, key: str) -> ObjectVersion:
        question = self._ask("stat", key)
        try:
            version = await self._listings.stat(key)
        except D7yfsError as error:
            if not isinstance(error, NotFound):
                self._failed(question, error)
            question.complete = isinstance(error, NotFound)
            question.told_at = trio.current_time()
            raise
        question.files[key] = version.validator
        question.complete, question.told_at = True, trio.current_time()
        return version

    async def holds(self, prefix: str) -> bool:
        question = self._ask("holds", prefix[:-1])
        try:
            holds = await self._listings.holds(prefix)
        except D7yfsError as error:
            self._failed(question, error)
            raise
        if holds:
            question.directories.add(prefix)
        question.complete, question.told_at = True, trio.current_time()
        return holds

    def _failed(self, question: Question, error: D7yfsError) -> None:
        question.error, question.failed_at = error, trio.current_time()


def visible(versions: Mapping[str, ObjectVersion], *, prefix: str, marker: str, excluded: str) -> Iterable[str]:
    """The visible keys: `marker` publishes each top directory, and names that end in `excluded`
    are hidden."""
    for key in versions:
        path = key.removeprefix(prefix)
        if excluded and any(name.endswith(excluded) for name in path.split("/")):
            continue
        top, cut, _ = path.partition("/")
        if marker and cut and f"{prefix}{top}/{marker}" not in versions:
            continue
        yield key
