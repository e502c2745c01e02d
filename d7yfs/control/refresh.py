"""`d7yfs refresh`: some paths are listed again now, and the kernel is told of the changes before
the answer goes out.

Owns which directories a path stands for, and the account of their changes. Built by `daemon`;
`commands` hands `Refreshes.refresh` to the control socket. Trio thread only.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any, Protocol

import trio

from d7yfs.control.server import paths_of
from d7yfs.errors import D7yfsError, VersionGone
from d7yfs.stats.status import RefreshStatus
from d7yfs.tree.nodes import Directory, NameChanges
from d7yfs.tree.question import Refreshed
from d7yfs.tree.tree import Tree

_NAMES = 100
"""Most changed paths of a kind that are named; the others are counted."""


class RefreshLister(Protocol):
    """The part of `Refresher` that a refresh needs."""

    async def refresh(self, directory: Directory) -> Refreshed:
        """Ask the store now for all that is known at and below a directory. Raises D7yfsError."""

    async def refresh_entry(self, directory: Directory, name: str) -> NameChanges:
        """Ask the store now for one name. Raises D7yfsError."""


class Notices(Protocol):
    """The part of `fuse.notices.Invalidator` that a refresh needs."""

    def changed(self, directory: int, names: Iterable[str]) -> None:
        """Make the kernel forget these names of a directory, by its inode."""

    def waiting(self) -> list[int]:
        """The inodes of the directories whose names the kernel has still to forget."""

    async def told(self, directories: Collection[int]) -> None:
        """Return once the kernel was told of all of these directories."""


class Refreshes:
    """The refreshes of one mount."""

    def __init__(self, tree: Tree, listers: Mapping[str, RefreshLister], notices: Notices) -> None:
        self._tree = tree
        self._listers = listers
        self._notices = notices

    async def refresh(self, request: Mapping[str, Any]) -> RefreshStatus:
        """Refresh the `paths` of `request`, below the mount; returns the changes.

        By then the kernel knows them too. Raises UsageError, and the errors of the stores.
        """
        directories = self._directories(paths_of(request, "a refresh"))
        began_at = trio.current_time()
        directories_asked = 0
        changes: list[tuple[str, NameChanges]] = []
        errors: list[D7yfsError] = []

        async def one(directory: Directory) -> None:
            nonlocal directories_asked
            try:
                count = await self._refresh(directory, changes)
                directories_asked += count
            except D7yfsError as error:
                errors.append(error)

        async with trio.open_nursery() as nursery:
            for directory in directories:
                nursery.start_soon(one, directory)
        await self._notices.told(self._waiting({each.repository for each in directories}))
        if errors:
            raise errors[0]
        return summarize(directories_asked, changes, elapsed_s=round(trio.current_time() - began_at, 3))

    def _directories(self, paths: Iterable[str]) -> list[Directory]:
        """The outermost directories of the paths, or the nearest known above a path."""
        found: dict[int, Directory] = {}
        for path in paths:
            nearest = self._nearest(path)
            for each in [nearest] if nearest.repository is not None else map(self._tree.top, self._listers):
                found[each.inode] = each
        outermost: list[Directory] = []
        # Sorted by prefix, a directory comes right before those below it.
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

    async def _refresh(self, directory: Directory, changes: list[tuple[str, NameChanges]]) -> int:
        """Refresh one directory, or the nearest above it that still exists, and add to `changes`.
        Returns the number of directories that were asked for. Raises D7yfsError."""
        repository = directory.repository
        assert repository is not None
        lister, top = self._listers[repository], self._tree.top(repository)
        while directory is not top:
            prefix, _, name = directory.prefix[:-1].rpartition("/")
            above = self._tree.find_directory(repository, f"{prefix}/" if prefix else "")
            if above is None:
                raise VersionGone(f"{directory.prefix} is not known any more", hint="refresh the directory above it")
            changes.append((self._path(repository, above.prefix), await lister.refresh_entry(above, name)))
            if above.entry(name) is directory:
                break
            directory = above
        refreshed = await lister.refresh(directory)
        changes += ((self._path(repository, prefix), each) for prefix, each in refreshed.changes)
        for inode, names in self._tree.find_strays(directory).items():
            self._notices.changed(inode, names)
        return refreshed.directories

    def _waiting(self, repositories: set[str | None]) -> list[int]:
        """The directories of `repositories` that the kernel was not told of yet, by any cause."""
        waiting = []
        for inode in self._notices.waiting():
            with suppress(D7yfsError):
                if self._tree.directory(inode).repository in repositories:
                    waiting.append(inode)
        return waiting

    def _path(self, repository: str, prefix: str) -> str:
        """The path, below the mount, of the directory that lists `prefix`."""
        return f"{repository}/{prefix.removeprefix(self._tree.top(repository).prefix)}".strip("/")


def summarize(directories: int, changes: Sequence[tuple[str, NameChanges]], *, elapsed_s: float) -> RefreshStatus:
    """The outcome of a refresh of so many directories. `changes`: by the path below the mount."""

    def changed_paths(kind: str) -> Iterator[str]:
        return (f"{path}/{name}".lstrip("/") for path, each in changes for name in getattr(each, kind))

    return RefreshStatus(
        directories=directories,
        added=sum(len(each.added) for _, each in changes),
        removed=sum(len(each.removed) for _, each in changes),
        replaced=sum(len(each.replaced) for _, each in changes),
        names={kind: tuple(sorted(islice(changed_paths(kind), _NAMES))) for kind in ("added", "removed", "replaced")},
        elapsed_s=elapsed_s,
    )
