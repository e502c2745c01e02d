"""A repository that could not be reached when the mount began: an empty directory until it answers,
or what an earlier mount knew of it.

Owns the choice of such repositories (`locate`) and the waiting: it asks again with growing pauses,
and no reader of its directory ever waits for it. The mount's other repositories know nothing of it.
Called by `daemon`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from functools import partial

import trio

from d7yfs.config.schema import Config
from d7yfs.errors import BadReply, D7yfsError, OriginUnavailable
from d7yfs.logs import show_time
from d7yfs.repository.repository import Repository
from d7yfs.repository.slow_store import tell_while_slow
from d7yfs.repository.tree_keeper import TreeKeeper, TreeKeepers
from d7yfs.tree.snapshot import SnapshotHead

log = logging.getLogger(__name__)

_FIRST_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 30.0
_PATIENCE_S = 5.0
"""How long a mount waits for a store that it can do without."""


class Latecomer:
    """One repository of the mount that could not be reached when the mount began."""

    def __init__(
        self, repository: Repository, failure: D7yfsError, *, allow_empty: bool, is_known: bool = False
    ) -> None:
        """`is_known`: an earlier mount's names are served meanwhile."""
        self.repository = repository
        self._failing = repository.fetcher.failures.names
        self._fail(failure)
        repository.shown.offline_since = time.time() if is_known else None
        self._allow_empty = allow_empty

    @property
    def failure(self) -> D7yfsError | None:
        """The reason why it is away; None once it is there."""
        return self.repository.shown.away

    @property
    def is_known(self) -> bool:
        """True while an earlier mount's names are served."""
        return self.repository.shown.offline_since is not None

    def describe(self) -> str:
        """The view that its readers have for now, in words."""
        config = self.repository.config
        if self.is_known:
            return f"{config.name or config.url} is served as it was known, without its store"
        return f"{config.name} is empty for now"

    async def wait(self, arrived: Callable[[str], None], refused: Callable[[], None] = lambda: None) -> None:
        """Ask until it answers; then call `arrived` with the prefix (see `Repository.locate`). Call
        `refused` each time that the store answers and does not show it."""
        pause_s = _FIRST_PAUSE_S
        while (failure := self.failure) is not None:
            await trio.sleep(pause_s)
            pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)
            try:
                prefix = await self.repository.locate(allow_empty=self._allow_empty)
            except D7yfsError as error:
                is_refused = not isinstance(error, OriginUnavailable | BadReply)
                if error.message != failure.message:
                    log.warning("%s; %s", error, self._state if not is_refused else "nothing of it is served")
                self._fail(error)
                if is_refused:
                    refused()
            except Exception:
                log.exception("%s failed its first check", self.repository.config.url)
            else:
                self.repository.shown.away = self.repository.shown.offline_since = None
                self._failing.end()
                arrived(prefix)
                log.info("%s is there: mounted as %s", self.repository.config.url, self.repository.config.name or "/")

    def _fail(self, error: D7yfsError) -> None:
        self.repository.shown.away = error
        self._failing.note(error, time.time())

    @property
    def _state(self) -> str:
        return "what is known of it is served" if self.is_known else "its directory stays empty"


async def locate(
    repositories: list[Repository],
    config: Config,
    known: Mapping[str, str] | None = None,
    keepers: TreeKeepers | None = None,
    tell: Callable[[str], None] = lambda _: None,
) -> tuple[list[tuple[Repository, str]], list[Latecomer]]:
    """Find the prefix to list of each repository, and those that cannot be reached. Those whose prefix
    is `known` are not asked: they are served even if the store is away.

    Has the `keepers` read what earlier mounts have kept. Calls `tell` with a line about each store that
    keeps the mount waiting. Raises the origin's error if all repositories must be reached, or none can
    be or is served without its store.
    """
    places = {each.config.name: each.directory_prefix for each in repositories} | dict(known or {})
    failures: dict[str, D7yfsError] = {}

    async def locate(repository: Repository) -> None:
        keeper = keepers.get(repository.config.name) if keepers is not None else None
        try:
            asking = partial(_locate_soon, repository, keeper, config)
            places[repository.config.name] = await tell_while_slow(asking, repository, tell)
        except D7yfsError as error:
            failures[repository.config.name] = error
        if keeper is not None:
            await keeper.read()

    async with trio.open_nursery() as nursery:
        for repository in repositories:
            if known is None or repository.config.name not in known:
                nursery.start_soon(locate, repository)
    offline = {
        name: snapshot
        for name, failure in failures.items()
        if keepers is not None
        and (keeper := keepers.get(name)) is not None
        and isinstance(failure, OriginUnavailable)
        and (snapshot := _choose_snapshot(keeper, failure, config)) is not None
    }
    places |= {name: head.prefix for name, head in offline.items()}
    away = [each for each in repositories if each.config.name in failures and each.config.name not in offline]
    if away and (config.require_all or len(away) == len(repositories)):
        raise failures[away[0].config.name]
    late = [
        Latecomer(each, failure, allow_empty=config.allow_empty, is_known=each.config.name in offline)
        for each in repositories
        if (failure := failures.get(each.config.name)) is not None
    ]
    for one in late:
        name = one.repository.config.name
        if name in offline:
            listed = show_time(offline[name].listed_at)
            log.warning("%s; serving what is cached of the files that were listed by %s", one.failure, listed)
        else:
            log.error("%s; %s is an empty directory until it can be read", one.failure, name)
    return [(each, places[each.config.name]) for each in repositories], late


async def _locate_soon(repository: Repository, keeper: TreeKeeper | None, config: Config) -> str:
    """The prefix to list. A store that is silent is given up soon if there is something to serve."""
    if keeper is not None and config.offline == "serve":
        with trio.move_on_after(_PATIENCE_S):
            return await repository.locate(allow_empty=config.allow_empty)
        await keeper.read()
        if keeper.is_proved:
            raise OriginUnavailable(f"{repository.config.url}: no answer within {_PATIENCE_S:g} s")
    return await repository.locate(allow_empty=config.allow_empty)


def _choose_snapshot(keeper: TreeKeeper, failure: D7yfsError, config: Config) -> SnapshotHead | None:
    """The head of the names to serve while the store does not answer. Else the failure's hint says
    what could be served."""
    if keeper.snapshot is None:
        return None
    head = keeper.snapshot.head
    if not keeper.is_proved:
        failure.hint = _with_hint(
            failure.hint,
            "an earlier mount has kept names, but only lasting keys are proved without the store; --cache-trust shared does "
            "without a proof",
        )
        return None
    if config.offline == "serve":
        return head
    could = f"--offline serve could mount {head.files:,} files that were listed by {show_time(head.listed_at)}"
    failure.hint = _with_hint(failure.hint, f"{could}, and serve those that are cached")
    return None


def _with_hint(hint: str, more: str) -> str:
    return f"{hint}; {more}" if hint else more
