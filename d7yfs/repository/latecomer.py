"""A repository that could not be reached when the mount began: an empty directory until it answers, then what it is.

Owns who that is (`locate`) and the waiting: it asks again with growing pauses, without anybody having to look, and never lets a reader of
its directory wait for it. The other repositories of the mount know nothing of it. Called by `daemon`, for mounts of several repositories.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

import trio

from d7yfs.config.schema import Config
from d7yfs.errors import D7yfsError, NotFound
from d7yfs.objects import ListingPage, ObjectVersion
from d7yfs.repository.repository import Repository

log = logging.getLogger(__name__)

_FIRST_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 30.0


class Latecomer:
    """One such repository; `failure` says why it is not there, and is None once it is."""

    def __init__(self, repository: Repository, failure: D7yfsError, *, allow_empty: bool) -> None:
        self.repository = repository
        self.failure: D7yfsError | None = failure
        self._allow_empty = allow_empty

    async def wait(self, arrived: Callable[[str], None]) -> None:
        """Ask until it answers; then tell `arrived` what is to be listed (see `Repository.locate`)."""
        pause_s = _FIRST_PAUSE_S
        while self.failure is not None:
            await trio.sleep(pause_s)
            pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)
            try:
                prefix = await self.repository.locate(allow_empty=self._allow_empty)
            except D7yfsError as error:
                if error.message != self.failure.message:
                    log.warning("%s; its directory stays empty", error)
                self.failure = error
            except Exception:
                log.exception("%s cannot be looked at", self.repository.config.url)
            else:
                self.failure = None
                arrived(prefix)
                log.info("%s is there: mounted as %s", self.repository.config.url, self.repository.config.name)

    async def pages(self, prefix: str, *, delimiter: str = "/") -> AsyncGenerator[ListingPage, None]:
        """Those of the repository; none while it is away, without waiting."""
        if self.failure is None:
            async with aclosing(self.repository.shown.pages(prefix, delimiter=delimiter)) as pages:
                async for page in pages:
                    yield page

    async def page(self, prefix: str, token: str) -> ListingPage:
        """As the repository's. Only asked for of a directory that is known to be huge, and none is before it is there."""
        return await self.repository.shown.page(prefix, token)

    async def stat(self, key: str) -> ObjectVersion:
        """As the repository's. Raises NotFound for all while it is away."""
        if self.failure is not None:
            raise NotFound(f"{key}: {self.failure.message}")
        return await self.repository.shown.stat(key)

    async def holds(self, prefix: str) -> bool:
        """As the repository's; false while it is away."""
        return self.failure is None and await self.repository.shown.holds(prefix)


async def locate(
    repositories: list[Repository], config: Config
) -> tuple[list[tuple[Repository, str]], list[Latecomer]]:
    """All repositories with what each is to list, and those of several that cannot be reached, unless all must be.

    Raises what the origin said where there is no going on without it.
    """
    places: dict[str, str] = {}
    failures: dict[str, D7yfsError] = {}

    async def locate(repository: Repository) -> None:
        name = repository.config.name
        try:
            places[name] = await repository.locate(allow_empty=config.allow_empty)
        except D7yfsError as error:
            failures[name] = error
            prefix = repository.config.url.prefix
            places[name] = f"{prefix}/" if prefix else ""

    async with trio.open_nursery() as nursery:
        for repository in repositories:
            nursery.start_soon(locate, repository)
    if failures and (config.require_all or len(failures) == len(repositories)):
        raise next(failures[each.config.name] for each in repositories if each.config.name in failures)
    late = [
        Latecomer(each, failures[each.config.name], allow_empty=config.allow_empty)
        for each in repositories
        if each.config.name in failures
    ]
    for one in late:
        log.error("%s; %s is an empty directory until it can be read", one.failure, one.repository.config.name)
    return [(each, places[each.config.name]) for each in repositories], late
