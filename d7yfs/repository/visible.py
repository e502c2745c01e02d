"""The keys of one repository as the mount shows them: its origin behind its `Visibility`.

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
from d7yfs.servers.agentless_config import may_name_agents
from d7yfs.tree.visibility import Flat, Visibility

_LOOKS = 16
"""The concurrent looks for markers."""


class VisibleListings:
    """The keys of `origin` that are shown, by page and by name; with `hides_agents`, model
    configurations without Dragonfly's agent."""

    def __init__(self, origin: Origin, visibility: Visibility, *, hides_agents: bool = False) -> None:
        self.origin = origin
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
        flat = Flat(self._visibility, prefix) if self._visibility.hides_any and not delimiter else None
        async with aclosing(list_all(self.origin, prefix, delimiter=delimiter)) as pages:
            async for page in pages:
                yield await self._shown(prefix, page) if flat is None else self._edited(flat.add(page))

    async def page(self, prefix: str, token: str) -> ListingPage:
        """One page of the delimiter listing of `prefix`, shown keys only: the first ("") or the
        one after a continuation token."""
        if self._is_away():
            return ListingPage((), (), "", time.time_ns())
        return await self._shown(prefix, await ask_again(lambda: self.origin.list(prefix, token=token)))

    async def stat(self, key: str) -> ObjectVersion:
        """The current version of `key`. Raises NotFound, also when it is hidden."""
        if self._is_away():
            raise NotFound(f"{key}: {self.away.message if self.away is not None else ''}")
        if self._visibility.hides(key):
            raise NotFound(f"{self.origin.url}/{key}: hidden by include or exclude")
        return self.served(await ask_again(lambda: self.origin.stat(key)))

    def served(self, version: ObjectVersion) -> ObjectVersion:
        """A version of the store as the mount serves it."""
        if self._hides_agents and may_name_agents(version.key, version.size_bytes):
            return replace(version, edit=WITHOUT_AGENT)
        return version

    async def holds(self, prefix: str) -> bool:
        """True if the directory `prefix`, which ends in a slash, is shown: it has a key, and its
        marker if it needs one."""
        if self._is_away() or self._visibility.hides(prefix):
            return False
        marker = self._visibility.marker_of(prefix)
        if marker:
            try:
                return not await self._find_unpublished({prefix: marker})
            except AccessDenied:
                return False  # it may be absent: without the right to list, S3 and Google do not tell
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

    async def _shown(self, prefix: str, page: ListingPage) -> ListingPage:
        """A page of a delimiter listing as it is shown."""
        if self._visibility.hides_any:
            unpublished = await self._find_unpublished(self._visibility.markers(prefix, page))
            page = self._visibility.directory_page(page, unpublished)
        return self._edited(page)

    def _edited(self, page: ListingPage) -> ListingPage:
        return replace(page, objects=tuple(map(self.served, page.objects))) if self._hides_agents else page

    async def _find_unpublished(self, markers: Mapping[str, str]) -> list[str]:
        """The directories whose marker is not there. Raises the origin's errors except NotFound."""
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
