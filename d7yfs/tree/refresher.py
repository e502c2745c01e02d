"""Keeping what is in use fresh: one repository's directories are listed again before they expire, and readers go on with what is known.

Owns when that happens. `freshness.plan` says what is due; this waits for it and has the lister ask. Promises: nothing is asked for that
nobody has used since it was listed, nothing with a time to live of 0 or `forever`, and never is more than a twentieth of the time spent
asking: after each round it rests for nineteen times as long as that took. A round that fails leaves everything as it was; then whoever
needs what has expired asks for himself, and sees what `Lister` serves in that case.

Built and run by `daemon`; trio thread only.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import trio

from d7yfs.errors import D7yfsError, VersionGone
from d7yfs.tree.freshness import DUE, Plan, plan
from d7yfs.tree.nodes import Directory
from d7yfs.tree.tree import Tree

log = logging.getLogger(__name__)

REST = 19
"""So many times as long as a round took nothing is asked for after it: together that is a twentieth of the time."""

RETRY_S = 5.0
"""The least pause after a round that failed."""

_LOOKS_PER_LIFE = 20
"""How often the plan is made, which costs no request."""
_LEAST_LOOK_S = 0.1
_AT_ONCE = 4
"""Directories: few, since nobody waits."""


class Asks(Protocol):
    """The part of `Lister` that this needs. All raise D7yfsError."""

    @property
    def whole_requests(self) -> int | None:
        """How many requests a flat listing of the repository takes; None where it is not listed so."""

    async def refresh(self, directory: Directory) -> object:
        """Ask now for all that is known of a directory and below it."""

    async def relist(self, directory: Directory) -> object:
        """Ask now for a directory alone."""


@dataclass(slots=True)
class Counters:
    """Since the mount was made."""

    refreshes: int = 0
    """Rounds, those that failed included."""
    refreshes_failed: int = 0
    refreshed_directories: int = 0
    """Listed again ahead of their expiry while somebody used them."""
    refresh_s: float = 0.0
    """Spent asking."""


class Refresher:
    """One repository's; `ttl_s` is the metadata TTL, by which it paces itself."""

    def __init__(self, tree: Tree, repository: str, lister: Asks, *, ttl_s: float) -> None:
        self._tree = tree
        self._repository = repository
        self._lister = lister
        self._ttl_s = ttl_s
        self._ttl_changed = trio.Event()
        self._counters = Counters()

    def set_ttl(self, ttl_s: float) -> None:
        """The metadata TTL is another one from now on."""
        self._ttl_s = ttl_s
        self._ttl_changed.set()
        self._ttl_changed = trio.Event()

    async def run(self) -> None:
        """Refresh, until cancelled; rests while there is nothing to keep fresh."""
        while True:
            if not 0 < self._ttl_s < math.inf:
                await self._ttl_changed.wait()
                continue
            await trio.sleep(max(self._ttl_s / _LOOKS_PER_LIFE, _LEAST_LOOK_S))
            known = self._tree.listed_directories(self._repository)
            due = plan(known, trio.current_time(), self._lister.whole_requests)
            if due:
                await self._refresh(due)

    async def _refresh(self, due: Plan) -> None:
        """One round, and the rest after it."""
        began_at = trio.current_time()
        failed = False
        try:
            if due.whole:
                await self._lister.refresh(self._tree.top(self._repository))
                self._counters.refreshed_directories += len(due.directories)
            else:
                await self._relist(due, began_at)
        except D7yfsError as error:
            failed = True
            log.info("refreshing %s ahead of its expiry failed: %s", self._repository or "the mount", error)
        except Exception:
            failed = True
            log.exception("refreshing %s failed unexpectedly", self._repository or "the mount")
        took_s = trio.current_time() - began_at
        self._counters.refreshes += 1
        self._counters.refreshes_failed += failed
        self._counters.refresh_s += took_s
        await trio.sleep(max(REST * took_s, RETRY_S if failed else 0.0))

    async def _relist(self, due: Plan, began_at: float) -> None:
        """Each of the directories; those for which the time does not suffice wait for the next round, or for who needs them.

        Raises D7yfsError of the first that fails, after which no other is begun.
        """
        # So that the rest after it is over before what came first is due again.
        deadline = began_at + self._ttl_s * DUE / (REST + 1)
        directories = iter(due.directories)
        errors: list[D7yfsError] = []

        async def work() -> None:
            for directory in _until(deadline, directories):
                if errors:
                    return
                try:
                    await self._lister.relist(directory)
                    self._counters.refreshed_directories += 1
                except VersionGone:
                    pass  # it is no directory any more
                except D7yfsError as error:
                    errors.append(error)

        async with trio.open_nursery() as nursery:
            for _ in range(_AT_ONCE):
                nursery.start_soon(work)
        if errors:
            raise errors[0]

    def describe(self) -> dict[str, Any]:
        """For `status`."""
        return asdict(self._counters)


def _until(deadline: float, directories: Iterator[Directory]) -> Iterator[Directory]:
    while trio.current_time() < deadline and (directory := next(directories, None)) is not None:
        yield directory
