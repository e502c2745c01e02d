"""`d7yfs refresh`: what is known of some paths is asked for again now, and the kernel told what has changed, before the answer goes out.

Owns which directories a path stands for, and the account of what they turned out to hold. Built by `daemon`; `commands`
hands `Refreshes.report` to the control socket. Trio thread only.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

import trio

from d7yfs.answers import Changes
from d7yfs.asking import Refreshed
from d7yfs.control import REPORT_PERIOD_S
from d7yfs.errors import D7yfsError, Stopped, UsageError, VersionGone
from d7yfs.inodes import Directory
from d7yfs.invalidation import Invalidator
from d7yfs.tree import Tree

log = logging.getLogger(__name__)

_NAMES = 100
"""So many changed paths of a kind are named; the others are only counted."""


class Asks(Protocol):
    """The part of `Lister` that this needs."""

    async def refresh(self, directory: Directory) -> Refreshed:
        """Ask now for all that is known of a directory and below it. Raises D7yfsError."""

    async def refresh_entry(self, directory: Directory, name: str) -> Changes:
        """Ask now for one name. Raises D7yfsError."""


@dataclass(slots=True)
class Outcome:
    """What a refresh found, for its client."""

    directories: int = 0
    added: int = 0
    removed: int = 0
    replaced: int = 0
    names: dict[str, list[str]] = field(default_factory=lambda: {"added": [], "removed": [], "replaced": []})
    """Some of them, by what happened to them: paths below the mount."""
    elapsed_s: float = 0.0

    def add(self, path: str, changes: Changes) -> None:
        """Take account of what has changed in the directory at `path`."""
        self.added += len(changes.added)
        self.removed += len(changes.removed)
        self.replaced += len(changes.replaced)
        kinds = {"added": changes.added, "removed": changes.removed, "replaced": changes.replaced}
        for kind, names in kinds.items():
            room = _NAMES - len(self.names[kind])
            self.names[kind] += [f"{path}/{name}".lstrip("/") for name in names[:room]]


class _Refresh:
    """One that runs."""

    def __init__(self) -> None:
        self.outcome = Outcome()
        self.error: D7yfsError | None = None
        self.ended = trio.Event()
        self.began_at = trio.current_time()


class Refreshes:
    """Those of one mount; several may run at once. `nursery` runs them: what was asked for is done though its client left."""

    def __init__(
        self, tree: Tree, listers: Mapping[str, Asks], invalidator: Invalidator, nursery: trio.Nursery
    ) -> None:
        self._tree = tree
        self._listers = listers
        self._invalidator = invalidator
        self._nursery = nursery

    async def report(self, request: Mapping[str, Any]) -> AsyncGenerator[dict[str, Any], None]:
        """Refresh what `request` names (`paths`, below the mount); tell that it runs, and at its end what it found.

        At that end the kernel knows too. Raises UsageError, and what asking raises.
        """
        paths = request.get("paths")
        if not isinstance(paths, list) or not paths or not all(isinstance(path, str) for path in paths):
            raise UsageError("a refresh needs a list of paths")
        refresh = _Refresh()
        self._nursery.start_soon(self._run, refresh, self._directories(paths))
        while not refresh.ended.is_set():
            with trio.move_on_after(REPORT_PERIOD_S):
                await refresh.ended.wait()
            if not refresh.ended.is_set():
                yield {"state": "running", "elapsed_s": round(trio.current_time() - refresh.began_at, 3)}
        if refresh.error is not None:
            raise refresh.error
        outcome = refresh.outcome
        yield {
            "state": "done",
            "directories": outcome.directories,
            "added": outcome.added,
            "removed": outcome.removed,
            "replaced": outcome.replaced,
            "names": {kind: sorted(names) for kind, names in outcome.names.items()},
            "elapsed_s": round(outcome.elapsed_s, 3),
        }

    def _directories(self, paths: Iterable[str]) -> list[Directory]:
        """What the paths stand for, without what lies below another of them: a directory for itself, else the nearest known above."""
        found: dict[int, Directory] = {}
        for path in paths:
            nearest = self._nearest(path)
            for each in [nearest] if nearest.repository is not None else map(self._tree.top, self._listers):
                found[each.inode] = each
        outermost: list[Directory] = []
        # By their prefixes what lies below a directory comes right behind it.
        for each in sorted(found.values(), key=lambda each: each.identity):
            above = outermost[-1] if outermost else None
            if above is None or above.repository != each.repository or not each.prefix.startswith(above.prefix):
                outermost.append(each)
        return outermost

    def _nearest(self, path: str) -> Directory:
        names = [name for name in path.split("/") if name]
        while True:
            node = self._tree.resolve("/".join(names))
            if isinstance(node, Directory):
                return node
            names.pop()

    async def _run(self, refresh: _Refresh, directories: list[Directory]) -> None:
        async def one(directory: Directory) -> None:
            try:
                await self._refresh(directory, refresh.outcome)
            except D7yfsError as error:
                refresh.error = refresh.error or error

        try:
            async with trio.open_nursery() as nursery:
                for directory in directories:
                    nursery.start_soon(one, directory)
            await self._invalidator.told(self._waiting({each.repository for each in directories}))
        except Exception:
            log.exception("a refresh failed unexpectedly")
            refresh.error = Stopped("the refresh failed unexpectedly; see the log")
        finally:
            refresh.outcome.elapsed_s = trio.current_time() - refresh.began_at
            refresh.ended.set()

    async def _refresh(self, directory: Directory, outcome: Outcome) -> None:
        """One directory, or where it is none any more the nearest above it that still is. Raises D7yfsError."""
        repository = directory.repository
        assert repository is not None
        lister, top = self._listers[repository], self._tree.top(repository)
        while directory is not top:
            prefix, _, name = directory.prefix[:-1].rpartition("/")
            above = self._tree.at(repository, f"{prefix}/" if prefix else "")
            if above is None:
                raise VersionGone(f"{directory.prefix} is not known any more", hint="refresh the directory above it")
            outcome.add(self._path(repository, above.prefix), await lister.refresh_entry(above, name))
            if above.entry(name) is directory:
                break
            directory = above
        refreshed = await lister.refresh(directory)
        outcome.directories += refreshed.directories
        for prefix, changes in refreshed.changes:
            outcome.add(self._path(repository, prefix), changes)
        for inode, names in self._tree.strays(directory).items():
            self._invalidator.changed(inode, names)

    def _waiting(self, repositories: set[str | None]) -> list[int]:
        """Where the kernel must still hear of changes, be they this refresh's or of a moment before; others' trouble is not waited for."""
        waiting = []
        for inode in self._invalidator.waiting():
            with suppress(D7yfsError):
                if self._tree.directory(inode).repository in repositories:
                    waiting.append(inode)
        return waiting

    def _path(self, repository: str, prefix: str) -> str:
        """Of the directory that lists `prefix`, below the mount."""
        return f"{repository}/{prefix.removeprefix(self._tree.top(repository).prefix)}".strip("/")
