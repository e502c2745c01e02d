"""The names of the reference model's store, with everything that was ever true of each.

Its pages take their time, and each shows one moment.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

import trio

from d7yfs.errors import AccessDenied, D7yfsError, OriginUnavailable
from d7yfs.objects import ListingPage, ObjectVersion
from d7yfs.tree.lister import STALE_RETRY_S
from d7yfs.tree.listing import NoObject
from d7yfs.tree.tree import TTL_PER_LISTING
from tests.reference.program import SIZES_BYTES, Setup
from tests.tree.listings import MemoryListings

METADATA_TTL_S = 20.0
"""A time far above that of all pages of a listing, whose life is a multiple of it."""

Meaning = str | NoObject
"""The meaning of a name: the ETag of a file, or something else."""


class Listed(MemoryListings):
    """The keys and their ETags, now and at every moment before."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(page_size=setup.page_size)
        self._failing = self._intact = 0
        self._denied = False
        self._page_s = setup.page_s
        self._flat = setup.lists_flat
        self._life_s = METADATA_TTL_S
        self._began: list[float] = []
        self._failed_at: list[float] = []
        self._denied_until = -1.0
        self._moments: list[tuple[float, dict[str, str]]] = [(trio.current_time(), {})]

    # --- what happens ---

    def note(self, key: str, version: ObjectVersion | None) -> None:
        """Record that `key` means this from now on."""
        if version is None:
            self.versions.pop(key, None)
        else:
            self.versions[key] = version
        self._moments.append((trio.current_time(), {key: each.validator for key, each in self.versions.items()}))

    def fail(self, count: int, after: int) -> None:
        """Let so many requests succeed, and fail so many after them."""
        self._intact, self._failing = after, count

    def deny(self, *, denied: bool) -> None:
        """Deny listings, or allow them again."""
        if self._denied:
            self._denied_until = trio.current_time()
        self._denied = denied

    async def _request(self, kind: str, what: str) -> None:
        await trio.sleep(self._page_s)
        if self._denied and kind != "stat":
            self._failed_at.append(trio.current_time())
            raise AccessDenied(f"{kind} {what}: 403")
        if self._intact:
            self._intact -= 1
        elif self._failing:
            self._failing -= 1
            self._failed_at.append(trio.current_time())
            raise OriginUnavailable(f"{kind} {what}: 503")

    async def _page(self, prefix: str, delimiter: str, last: str) -> ListingPage:
        page = await super()._page(prefix, delimiter, last)
        await trio.sleep(self._page_s)
        return page

    async def pages(self, prefix: str, *, delimiter: str = "/") -> AsyncGenerator[ListingPage, None]:
        began_at = trio.current_time()
        self._began.append(began_at)
        try:
            async with aclosing(super().pages(prefix, delimiter=delimiter)) as pages:
                async for page in pages:
                    yield page
        finally:
            self._life_s = self._longest_life_s()
            self._began.remove(began_at)

    def _longest_life_s(self) -> float:
        return max([self._life_s, *(TTL_PER_LISTING * (trio.current_time() - began_at) for began_at in self._began)])

    # --- what may be said of it ---

    def failed_since(self, since: float) -> bool:
        """True if any request has failed."""
        return any(at >= since for at in self._failed_at)

    def horizon(self, asked_at: float) -> float:
        """The greatest age of an answer to a question of `asked_at`."""
        if self.failed_since(asked_at - STALE_RETRY_S):
            return 0.0
        return asked_at - self._longest_life_s()

    def meanings_since(self, key: str, since: float) -> set[Meaning]:
        """The meanings that a name had at any moments from `since` until now.

        A listing of several pages is no moment: it may miss a name that was renamed while it came,
        or have it twice.
        """
        moments = self._since(since)
        below = [each for each in SIZES_BYTES if each.startswith(f"{key}/")]
        directory = [any(each in moment for each in below) for moment in moments]
        no_directory = (
            all(any(each not in moment for moment in moments) for each in below) if self._flat else not all(directory)
        )
        unseen = self._denied or self._denied_until >= since
        meanings: set[Meaning] = set()
        for etag in {moment.get(key) for moment in moments}:
            if etag is None:
                meanings |= {NoObject.ABSENT} if no_directory else set()
                meanings |= {NoObject.DIRECTORY} if unseen else set()
            elif no_directory or unseen:
                meanings.add(etag)
        return meanings | ({NoObject.DIRECTORY} if any(directory) else set())

    def is_object_since(self, key: str, since: float) -> bool:
        """True if there was an object of that key, even hidden behind a directory."""
        return any(key in moment for moment in self._since(since))

    def etags_since(self, key: str, since: float) -> set[str | None]:
        """The versions of an object; None is its absence."""
        return {moment.get(key) for moment in self._since(since)}

    def changed_since(self, prefix: str, since: float) -> bool:
        """True if anything below `prefix` was put or deleted."""
        moments = self._since(since)
        return any(moment.get(key) != moments[0].get(key) for moment in moments for key in _below(prefix))

    def names_below(self, prefix: str) -> set[str]:
        """The names that the directory of `prefix` may ever have."""
        return {key.removeprefix(prefix).partition("/")[0] for key in _below(prefix)}

    def _since(self, since: float) -> list[dict[str, str]]:
        ends = [*(at for at, _ in self._moments[1:]), float("inf")]
        return [moment for (_, moment), until in zip(self._moments, ends, strict=True) if until >= since]


def _below(prefix: str) -> list[str]:
    return [key for key in SIZES_BYTES if key.startswith(prefix)]


def excuses(listed: Listed, error: D7yfsError, asked_at: float) -> bool:
    """True if a question of `asked_at` may end so."""
    return isinstance(error, OriginUnavailable | AccessDenied) and listed.failed_since(asked_at)
