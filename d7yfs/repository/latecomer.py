"""A repository that could not be reached when the mount began: an empty directory until it answers.

Owns the choice of such repositories (`locate`) and the waiting: it asks again with growing pauses,
and no reader of its directory ever waits for it. The mount's other repositories know nothing of it.
Called by `daemon`, for mounts of several repositories.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

import trio

from d7yfs.config.schema import Config
from d7yfs.errors import D7yfsError
from d7yfs.repository.repository import Repository

log = logging.getLogger(__name__)

_FIRST_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 30.0


class Latecomer:
    """One repository of the mount that could not be reached when the mount began."""

    def __init__(self, repository: Repository, failure: D7yfsError, *, allow_empty: bool) -> None:
        self.repository = repository
        repository.shown.away = failure
        self._allow_empty = allow_empty

    @property
    def failure(self) -> D7yfsError | None:
        """The reason why it is away; None once it is there."""
        return self.repository.shown.away

    async def wait(self, arrived: Callable[[str], None]) -> None:
        """Ask until it answers; then call `arrived` with the prefix (see `Repository.locate`)."""
        pause_s = _FIRST_PAUSE_S
        while (failure := self.failure) is not None:
            await trio.sleep(pause_s)
            pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)
            try:
                prefix = await self.repository.locate(allow_empty=self._allow_empty)
            except D7yfsError as error:
                if error.message != failure.message:
                    log.warning("%s; its directory stays empty", error)
                self.repository.shown.away = error
            except Exception:
                log.exception("%s failed its first check", self.repository.config.url)
            else:
                self.repository.shown.away = None
                arrived(prefix)
                log.info("%s is there: mounted as %s", self.repository.config.url, self.repository.config.name)


async def locate(
    repositories: list[Repository], config: Config, known: Mapping[str, str] | None = None
) -> tuple[list[tuple[Repository, str]], list[Latecomer]]:
    """Find the prefix to list of each repository, and those of several that cannot be reached.
    Those whose prefix is `known` are not asked: they are served even if the store is away.

    Raises the origin's error if all repositories must be reached, or none can be.
    """
    places = {each.config.name: each.directory_prefix for each in repositories} | dict(known or {})
    failures: dict[str, D7yfsError] = {}

    async def locate(repository: Repository) -> None:
        try:
            places[repository.config.name] = await repository.locate(allow_empty=config.allow_empty)
        except D7yfsError as error:
            failures[repository.config.name] = error

    async with trio.open_nursery() as nursery:
        for repository in repositories:
            if known is None or repository.config.name not in known:
                nursery.start_soon(locate, repository)
    away = [each for each in repositories if each.config.name in failures]
    if away and (config.require_all or len(away) == len(repositories)):
        raise failures[away[0].config.name]
    late = [Latecomer(each, failures[each.config.name], allow_empty=config.allow_empty) for each in away]
    for one in late:
        log.error("%s; %s is an empty directory until it can be read", one.failure, one.repository.config.name)
    return [(each, places[each.config.name]) for each in repositories], late
