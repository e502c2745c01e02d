"""One repository's keys as the mount shows them: its origin, seen through the repository's `Visibility`.

Owns the one request that this needs beyond the origin's own: a look for the marker of each directory that needs one, where directories are
listed one by one. A look that fails makes the listing fail, so that the last one is served, and no directory vanishes with the network.

The `source.Listings` of a repository; `check` and `ls` read it too.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing

import trio

from d7yfs.errors import AccessDenied, D7yfsError, NotFound
from d7yfs.objects import ListingPage, ObjectVersion
from d7yfs.origins.origin import Origin
from d7yfs.origins.patience import ask_again
from d7yfs.origins.survey import list_all
from d7yfs.tree.visibility import Flat, Visibility

_LOOKS = 16
"""For markers, at once."""


class Shown:
    """What of `origin` is shown."""

    def __init__(self, origin: Origin, visibility: Visibility) -> None:
        self.origin = origin
        self._visibility = visibility
        self._looks = trio.CapacityLimiter(_LOOKS)

    async def pages(self, prefix: str, *, delimiter: str = "/") -> AsyncGenerator[ListingPage, None]:
        """Every page of what is shown under `prefix`; flat with `delimiter=""`. Where `prefix` is the key of one object: that alone.

        Close it (`contextlib.aclosing`) when you leave early. Raises what the origin raises, and of a flat listing `scan.Unordered`.
        """
        if prefix and not prefix.endswith("/"):
            yield await self._lone(prefix)
            return
        flat = Flat(self._visibility, prefix) if self._visibility and not delimiter else None
        async with aclosing(list_all(self.origin, prefix, delimiter=delimiter)) as pages:
            async for page in pages:
                yield await self._of_directory(prefix, page) if flat is None else flat.add(page)

    async def page(self, prefix: str, token: str) -> ListingPage:
        """What is shown of one page of the delimiter listing of `prefix`: the first ("") or the one behind a continuation token."""
        return await self._of_directory(prefix, await ask_again(lambda: self.origin.list(prefix, token=token)))

    async def stat(self, key: str) -> ObjectVersion:
        """The current version of `key`. Raises NotFound, also when it is hidden."""
        if self._visibility.hides(key):
            raise NotFound(f"{self.origin.url}/{key}: hidden by include or exclude")
        return await ask_again(lambda: self.origin.stat(key))

    async def holds(self, prefix: str) -> bool:
        """Whether the directory `prefix`, which ends in a slash, is shown: there is a key under it, and its marker if it needs one."""
        if self._visibility.hides(prefix):
            return False
        marker = self._visibility.marker_of(prefix)
        if marker:
            try:
                return not await self._unpublished({prefix: marker})
            except AccessDenied:
                return False  # it may be that: who may not list is not told that it is absent (S3, Google)
        async with aclosing(list_all(self.origin, prefix, delimiter="", page_size=1)) as pages:
            async for page in pages:
                if page.objects:
                    return True
        return False

    async def _lone(self, key: str) -> ListingPage:
        try:
            objects: tuple[ObjectVersion, ...] = (await ask_again(lambda: self.origin.stat(key)),)
        except NotFound:
            objects = ()
        return self._visibility.directory_page(ListingPage(objects, (), "", time.time_ns()))

    async def _of_directory(self, prefix: str, page: ListingPage) -> ListingPage:
        if not self._visibility:
            return page
        unpublished = await self._unpublished(self._visibility.markers(prefix, page))
        return self._visibility.directory_page(page, unpublished)

    async def _unpublished(self, markers: Mapping[str, str]) -> list[str]:
        """Those of the directories whose marker is not there. Raises what the origin says of any of them, but for NotFound."""
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
