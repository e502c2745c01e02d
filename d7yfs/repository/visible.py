"""The keys of one repository as the mount shows them: its origin, or what is published of it, behind
its `Visibility`.

Owns the one request that this needs beyond the origin's own: a look for the marker of each
directory that needs one, where directories are listed one by one. A look that fails makes the
listing fail. Then the last listing is served, and no directory vanishes with the network.

Owns also which versions are served with an edit (`ObjectVersion.edit`): every version that is shown
comes by here, or by `served`.

It is the `source.ListingSource` of a repository; `check` and `ls` read it too.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import replace

import trio

from d7yfs.errors import AccessDenied, D7yfsError, NotFound
from d7yfs.objects import WITHOUT_AGENT, ListingPage, ObjectVersion
from d7yfs.origins.origin import Origin
from d7yfs.origins.rest import ask_again
from d7yfs.origins.survey import list_all
from d7yfs.repository.publication import Publication
from d7yfs.servers.agentless_config import may_name_agents
from d7yfs.tree.listing import Unordered
from d7yfs.tree.published import PublishedTree
from d7yfs.tree.reserved import hide_reserved, is_reserved
from d7yfs.tree.visibility import Flat, Visibility

_LOOKS = 16
"""The concurrent looks for markers."""


class VisibleListings:
    """The keys of `origin` that are shown, by page and by name; with `hides_agents`, model
    configurations without Dragonfly's agent."""

    def __init__(
        self,
        origin: Origin,
        visibility: Visibility,
        *,
        base: str = "",
        publication: Publication | None = None,
        hides_agents: bool = False,
    ) -> None:
        """`base` is the prefix below which names are reserved."""
        self.origin = origin
        self._base = base
        self._publication = publication
        self.away: D7yfsError | None = None
        """The reason why the store cannot be reached; then nothing is shown, without waiting."""
        self.offline_since: float | None = None
        """Since when (time.time()) names of an earlier mount are served; then `away` is raised."""
        self._visibility = visibility
        self._hides_agents = hides_agents
        self._looks = trio.CapacityLimiter(_LOOKS)

    async def pages(self, prefix: str, *, delimiter: str = "/") -> AsyncGenerator[ListingPage, None]:
        """Every page of shown keys under `prefix`; flat with `delimiter=""`. If `prefix` is the key
        of an object: that alone.

        Close it (`contextlib.aclosing`) when you leave early. Raises the origin's errors, and of a
        flat listing `listing.Unordered`, and BadReply for a listing that does not end.
        """
        if self._is_away():
            return
        if prefix and not prefix.endswith("/"):
            yield await self._list_lone(prefix)
            return
        if (tree := await self._published()) is not None:
            if not delimiter:
                raise Unordered(prefix)  # its directories come each by itself
            for page in tree.pages(prefix):
                yield await self._shown(prefix, page, tree)
            return
        flat = Flat(self._visibility, prefix) if self._visibility.hides_any and not delimiter else None
        async with aclosing(list_all(self.origin, prefix, delimiter=delimiter)) as pages:
            async for listed in pages:
                page = hide_reserved(listed, self._base)
                yield await self._shown(prefix, page) if flat is None else self._edited(flat.add(page))

    async def page(self, prefix: str, token: str) -> ListingPage:
        """One page of the delimiter listing of `prefix`, shown keys only: the first ("") or the
        one after a continuation token."""
        if self._is_away():
            return ListingPage((), (), "", time.time_ns())
        if (tree := await self._published()) is not None:
            return await self._shown(prefix, tree.page(prefix, token), tree)
        page = await ask_again(lambda: self.origin.list(prefix, token=token))
        return await self._shown(prefix, hide_reserved(page, self._base))

    async def stat(self, key: str) -> ObjectVersion:
        """The current version of `key`. Raises NotFound, also when it is hidden."""
        if self._is_away():
            raise NotFound(f"{key}: {self.away.message if self.away is not None else ''}")
        if self._visibility.hides(key) or is_reserved(key.removeprefix(self._base)):
            raise NotFound(f"{self.origin.url}/{key}: hidden by include or exclude")
        if (tree := await self._published()) is not None:
            if (version := tree.find(key)) is None:
                raise NotFound(f"{self.origin.url}/{key}: is not published")
            return self.served(version)
        return self.served(await ask_again(lambda: self.origin.stat(key)))

    def served(self, version: ObjectVersion) -> ObjectVersion:
        """A version of the store as the mount serves it."""
        if self._hides_agents and may_name_agents(version.key, version.size_bytes):
            return replace(version, edit=WITHOUT_AGENT)
        return version

    async def holds(self, prefix: str) -> bool:
        """True if the directory `prefix`, which ends in a slash, is shown: it has a key, and its
        marker if it needs one."""
        if self._is_away() or self._visibility.hides(prefix) or is_reserved(prefix.removeprefix(self._base)):
            return False
        tree = await self._published()
        marker = self._visibility.marker_of(prefix)
        if marker:
            try:
                return not await self._find_unpublished({prefix: marker}, tree)
            except AccessDenied:
                return False  # it may be absent: without the right to list, S3 and Google do not tell
        if tree is not None:
            return tree.has_directory(prefix)
        async with aclosing(list_all(self.origin, prefix, delimiter="", page_size=1)) as pages:
            async for page in pages:
                if page.objects:
                    return True
        return False

    def _is_away(self) -> bool:
        """True if the store is away, and nothing is known of it. Raises `away` if something is."""
        if self.away is not None and self.offline_since is not None:
            raise type(self.away)(self.away.message, hint=self.away.hint)
        return self.away is not None

    async def _list_lone(self, key: str) -> ListingPage:
        try:
            objects: tuple[ObjectVersion, ...] = (await ask_again(lambda: self.origin.stat(key)),)
        except NotFound:
            objects = ()
        return self._edited(self._visibility.directory_page(ListingPage(objects, (), "", time.time_ns())))

    async def _published(self) -> PublishedTree | None:
        """The published tree, where one is followed; None if the store is to be asked."""
        return None if self._publication is None else await self._publication.tree(trio.current_time())

    async def _shown(self, prefix: str, page: ListingPage, tree: PublishedTree | None = None) -> ListingPage:
        """A page of a delimiter listing as it is shown."""
        if self._visibility.hides_any:
            unpublished = await self._find_unpublished(self._visibility.markers(prefix, page), tree)
            page = self._visibility.directory_page(page, unpublished)
        return self._edited(page)

    def _edited(self, page: ListingPage) -> ListingPage:
        return replace(page, objects=tuple(map(self.served, page.objects))) if self._hides_agents else page

    async def _find_unpublished(self, markers: Mapping[str, str], tree: PublishedTree | None) -> list[str]:
        """The directories whose marker is not there. Raises the origin's errors except NotFound."""
        if tree is not None:
            return [directory for directory, marker in markers.items() if tree.find(marker) is None]
        unpublished: list[str] = []
        failures: list[D7yfsError] = []

        async def look(directory: str, marker: str) -> None:
            async with self._looks:
                try:
                    await ask_again(lambda: self.origin.stat(marker))
                except NotFound:
                    unpublished.append(directory)
                except D7yfsError as error:
                    failures.append(error)
                    nursery.cancel_scope.cancel()

        async with trio.open_nursery() as nursery:
            for directory, marker in markers.items():
                nursery.start_soon(look, directory, marker)
        if failures:
            raise failures[0]
        return unpublished
