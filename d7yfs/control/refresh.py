"""`d7yfs refresh`: what is known of some paths is asked for again now, and the kernel told what has changed, before the answer goes out.

Owns which directories a path stands for, and the account of what they turned out to hold. Built by `daemon`; `commands`
hands `Refreshes.report` to the control socket. Trio thread only.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

import trio

from d7yfs.control.control_socket import paths_of, reporting
from d7yfs.errors import D7yfsError, VersionGone
from d7yfs.tree.answers import Changes
from d7yfs.tree.nodes import Directory
from d7yfs.tree.question import Refreshed
from d7yfs.tree.tree import Tree

_NAMES = 100
"""So many changed paths of a kind are named; the others are only counted."""


class Asks(Protocol):
    """The part of `Lister` that this needs."""

    async def refresh(self, directory: Directory) -> Refreshed:
        """Ask now for all that is known of a directory and below it. Raises D7yfsError."""

    async def refresh_entry(self, directory: Directory, name: str) -> Changes:
        """Ask now for one name. Raises D7yfsError."""


class Notices(Protocol):
    """The notices of one mount to its kernel, as a refresh needs them: `fuse.notices.Invalidator`."""

    def changed(self, directory: int, names: Iterable[str]) -> None:
        """Have the kernel forget these names of a directory, by its inode."""

    def waiting(self) -> list[int]:
        """The inodes of the directories of whose names the kernel must still hear."""

    async def told(self, directories: Collection[int]) -> None:
        """Return once the kernel has heard of all of these directories."""


@dataclass(slots=True)
class RefreshResult:
    """What a refresh found, for its client."""

    directories: int = 0
    added: int = 0
    removed: int = 0
    replaced: int = 0
    names: dict[str, list[str]] = field(default_factory=lambda: {"added": [], "removed": [], "replaced": []})
    """Some of them, by what happened to them: paths below the mount."""

    def add(self, path: str, changes: Changes) -> None:
        """Take account of what has changed in the directory at `path`."""
        self.added += len(changes.added)
        self.removed += len(changes.removed)
        self.replaced += len(changes.replaced)
        kinds = {"added": changes.added, "removed": changes.removed, "replaced": changes.replaced}
        for kind, names in kinds.items():
            room = _NAMES - len(self.names[kind])
            self.names[kind] += [f"{path}/{name}".lstrip("/") for name in names[:room]]


class Refreshes:
    """Those of one mount; several may run at once. `nursery` runs them: what was asked for is done though its client left."""

    def __init__(self, tree: Tree, listers: Mapping[str, Asks], notices: Notices, nursery: trio.Nursery) -> None:
        self._tree = tree
        self._listers = listers
        self._notices = notices
        self._nursery = nursery

    def report(self, request: Mapping[str, Any]) -> AsyncGenerator[dict[str, Any], None]:
        """Refresh what `request` names (`paths`, below the mount); tell that it runs, and at its end what it found.

        At that end the kernel knows too. Raises UsageError, and what asking raises.
        """
        directories = self._directories(paths_of(request, "a refresh"))
        return reporting(self._nursery, lambda: self._run(directories))

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

    async def _run(self, directories: list[Directory]) -> dict[str, Any]:
        began_at = trio.current_time()
        outcome = RefreshResult()
        errors: list[D7yfsError] = []

        async def one(directory: Directory) -> None:
            try:
                await self._refresh(directory, outcome)
            except D7yfsError as error:
                errors.append(error)

        async with trio.open_nursery() as nursery:
            for directory in directories:
                nursery.start_soon(one, directory)
        await self._notices.told(self._waiting({each.repository for each in directories}))
        if errors:
            raise errors[0]
        names = {kind: sorted(some) for kind, some in outcome.names.items()}
        return asdict(outcome) | {"names": names, "elapsed_s": round(trio.current_time() - began_at, 3)}

    async def _refresh(self, directory: Directory, outcome: RefreshResult) -> None:
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
            self._notices.changed(inode, names)

    def _waiting(self, repositories: set[str | None]) -> list[int]:
        """Where the kernel must still hear of changes, be they this refresh's or of a moment before; others' trouble is not waited for."""
        waiting = []
        for inode in self._notices.waiting():
            with suppress(D7yfsError):
                if self._tree.directory(inode).repository in repositories:
                    waiting.append(inode)
        return waiting

    def _path(self, repository: str, prefix: str) -> str:
        """Of the directory that lists `prefix`, below the mount."""
        return f"{repository}/{prefix.removeprefix(self._tree.top(repository).prefix)}".strip("/")
