"""The kernel's cache of names, as a model: it believes each answer for exactly its timeout.

All behind it is real: a `Filesystem`, its tree and its listers. Notices of changes reach it where
`changed` is given to that file system.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import trio

from d7yfs.fs.filesystem import Filesystem
from d7yfs.tree.nodes import Absent, Directory, File, NameChanges, Node
from d7yfs.tree.tree import ROOT_INODE


class Kernel:
    """A kernel that asks the file system only for expired names.

    The caller sets `filesystem` before the first question.
    """

    def __init__(self) -> None:
        self.filesystem: Filesystem
        self.answered_alone = 0
        self._entries: dict[tuple[int, str], tuple[Node | None, float]] = {}

    async def entry(self, parent: int, name: str) -> Node | None:
        """The node under `name`. Raises as the file system does."""
        node, until = self._entries.get((parent, name), (None, -math.inf))
        if trio.current_time() < until:
            self.answered_alone += 1
            return node
        answer = await self.filesystem.lookup(parent, name)
        timeout_s = answer.timeout_s if isinstance(answer, Absent) else answer.entry_timeout_s
        node = None if isinstance(answer, Absent) else answer.node
        self._forget(parent, name)
        self._entries[parent, name] = node, trio.current_time() + timeout_s
        return node

    async def version(self, path: str) -> str:
        """The validator of the file at `path`; empty when there is none."""
        node: Node | None = self.filesystem.tree.get(ROOT_INODE)
        for name in path.split("/"):
            if not isinstance(node, Directory):
                return ""
            node = await self.entry(node.inode, name)
        return node.version.validator if isinstance(node, File) else ""

    def changed(self, directory: Directory, changes: NameChanges) -> None:
        """Expire the names that have changed."""
        self.drop(directory.inode, (*changes.added, *changes.removed, *changes.replaced))

    def drop(self, directory: int, names: Iterable[str]) -> None:
        """Expire these names."""
        for name in names:
            self._forget(directory, name)

    def doubt(self) -> None:
        """Ask again at each lookup (LOOKUP_REVAL)."""
        self._entries = {question: (node, -math.inf) for question, (node, _) in self._entries.items()}

    def forget(self) -> None:
        """Give all lookups back."""
        for parent, name in list(self._entries):
            self._forget(parent, name)

    def _forget(self, parent: int, name: str) -> None:
        node, _ = self._entries.pop((parent, name), (None, 0.0))
        if node is not None:
            self.filesystem.forget(node.inode, 1)
