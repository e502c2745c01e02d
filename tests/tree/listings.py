"""A repository's store in memory: its keys, the requests it got, and its failures."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable

import trio

from d7yfs.errors import NotFound
from d7yfs.objects import ListingPage, ObjectVersion
from d7yfs.tree.listing import DirectoryListing
from d7yfs.tree.source import ListingSource
from d7yfs.tree.tree import Tree

DATE_NS = 1_700_000_000_000_000_000


def collect(prefix: str, pages: Iterable[ListingPage]) -> DirectoryListing:
    """The listing made of all `pages` of `prefix`."""
    listing = DirectoryListing(prefix)
    for page in pages:
        listing.add(page)
    return listing


def names_in(tree: Tree, directory: int) -> tuple[str, ...]:
    """The names known in a directory, fresh or not; reading them counts as use."""
    tree.entries(directory, (), 0)
    return tuple(tree.directory(directory).children or ())


class MemoryListings:
    """A store in memory.

    `requests` has one line per page and question: `scan PREFIX`, `list PREFIX`, `stat KEY`, `holds
    PREFIX`.
    """

    def __init__(self, *keys: str, page_size: int = 1000) -> None:
        self.versions: dict[str, ObjectVersion] = {}
        self.page_size = page_size
        self.requests: list[str] = []
        self.listing_error: Exception | None = None
        """The error of every listing."""
        self.errors: dict[str, Exception] = {}
        """By the line of the request, or its first word."""
        self.delays_s: dict[str, float] = {}
        """Delays by the same keys as `errors`."""
        self.gates: dict[str, trio.Event] = {}
        """Events to wait for, by the same keys as `errors`."""
        self.listing_gate = trio.Event()
        self.listing_gate.set()
        self.disorder = False
        """True if pages come from the last to the first."""
        for key in keys:
            self.add(key)

    def add(self, key: str, etag: str = "e") -> ObjectVersion:
        self.versions[key] = ObjectVersion(key, 1, f'"{etag}"', DATE_NS)
        return self.versions[key]

    def of(self, kind: str) -> list[str]:
        """The requests of one kind, without its name."""
        return [request.partition(" ")[2] for request in self.requests if request.startswith(f"{kind} ")]

    async def _request(self, kind: str, what: str) -> None:
        line = f"{kind} {what}"
        self.requests.append(line)
        await trio.sleep(self.delays_s.get(line, self.delays_s.get(kind, 0.0)))
        for gate in (self.gates.get(line), self.gates.get(kind)):
            if gate is not None:
                await gate.wait()
        if kind in ("scan", "list"):
            await self.listing_gate.wait()
        error = self.errors.get(line) or self.errors.get(kind)
        if error is None and kind in ("scan", "list"):
            error = self.listing_error
        if error is not None:
            raise error

    async def pages(self, prefix: str, *, delimiter: str = "/") -> AsyncGenerator[ListingPage, None]:
        token = ""
        while True:
            page = await self._page(prefix, delimiter, token)
            yield page
            token = page.next_token
            if not token:
                return

    async def page(self, prefix: str, token: str) -> ListingPage:
        return await self._page(prefix, "/", token)

    async def _page(self, prefix: str, delimiter: str, last: str) -> ListingPage:
        await self._request("list" if delimiter else "scan", prefix)
        if prefix and not prefix.endswith("/"):
            return ListingPage(tuple(filter(None, [self.versions.get(prefix)])), (), "", DATE_NS)
        found: dict[str, bool] = {}
        for key in sorted(self.versions, key=str.encode):
            if key.startswith(prefix):
                head, cut, _ = key[len(prefix) :].partition(delimiter) if delimiter else (key, "", "")
                found[prefix + head + cut if cut else key] = bool(cut)
        names = list(reversed(found)) if self.disorder else list(found)
        names = names[names.index(last) + 1 :] if last in names else [each for each in names if each > last]
        shown = names[: self.page_size]
        return ListingPage(
            tuple(self.versions[key] for key in shown if not found[key]),
            tuple(key for key in shown if found[key]),
            shown[-1] if len(names) > len(shown) else "",
            DATE_NS,
        )

    async def stat(self, key: str) -> ObjectVersion:
        await self._request("stat", key)
        if key not in self.versions:
            raise NotFound(key)
        return self.versions[key]

    async def holds(self, prefix: str) -> bool:
        await self._request("holds", prefix)
        return any(key.startswith(prefix) for key in self.versions)


_: type[ListingSource] = MemoryListings
