"""The names as one daemon of the reference model shows them, compared with the store.

A path is looked up as a kernel does: name by name, and only names that have expired.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import trio

from d7yfs.errors import D7yfsError, VersionGone
from d7yfs.tree.listing import NoObject
from d7yfs.tree.nodes import Directory, File, Node
from d7yfs.tree.tree import ROOT_INODE
from tests.reference.daemon import NEGATIVE_TTL_S, Daemon
from tests.reference.listed import Listed, Meaning, excuses

_READDIR_NAMES = 2
"""The entries that fit into one reply."""


class Names:
    """The names of one daemon; `fail` gets each fault. A dead daemon is not judged."""

    def __init__(self, daemon: Daemon, listed: Listed, fail: Callable[[str], None]) -> None:
        self._daemon = daemon
        self._listed = listed
        self._tell = fail
        self._identities: dict[int, tuple[str | int, ...]] = {}
        self._mtimes: dict[str, tuple[int, int, float]] = {}
        """By prefix: its inode, its mtime, and the greatest age of its listing."""
        self._learnt_at: dict[tuple[int, str], float] = {}
        """The times of questions for single names."""
        self._refreshed: list[tuple[str, float, float]] = []
        """The paths that were asked for, each with its beginning and end."""

    # --- what is asked ---

    async def look(self, path: str) -> Node | None:
        """The node at `path`; None also when that cannot be told."""
        node: Node | None = self._daemon.filesystem.tree.get(ROOT_INODE)
        for name in path.split("/") if path else ():
            if not isinstance(node, Directory):
                return None
            node = await self._entry(node, name)
        if isinstance(node, Directory):
            await self._look_at_mtime(node)
        return node

    async def _entry(self, directory: Directory, name: str) -> Node | None:
        asked_at, key = trio.current_time(), f"{directory.prefix}{name}"
        try:
            node = await self._daemon.kernel.entry(directory.inode, name)
        except D7yfsError as error:
            self._judge(error, f"lookup of {key}", asked_at)
            return None
        allowed = self._listed.meanings_since(key, self._horizon(key, asked_at, absent=node is None))
        if _meaning(node) not in allowed:
            self._fail(f"{key} is said to be {_meaning(node)}, may be {allowed}; asked for at {asked_at:.2f}")
        if node is not None:
            self._identify(node)
        return node

    async def open(self, path: str) -> tuple[int, int, str] | None:
        """A handle, the inode and the ETag of the file at `path`, if there is one that can be
        opened."""
        filesystem = self._daemon.filesystem
        asked_at = trio.current_time()
        for again in (False, True):
            node = await self.look(path)
            if not isinstance(node, File):
                return None
            etag = node.version.validator
            try:
                handle = await filesystem.open(node.inode)
            except VersionGone as error:
                if again and not self._listed.changed_since(path, asked_at):
                    self._fail(f"{path} cannot be opened: {error!r}")
                self._daemon.kernel.doubt()
                continue
            newest = self._listed.etags_since(path, asked_at)
            if self._daemon.revalidates and etag not in newest and not self._listed.failed_since(asked_at):
                self._fail(f"{path} is opened as {etag} though it is {newest}")
            return handle, node.inode, etag
        return None

    async def list(self, path: str, pause_s: float) -> None:
        """Read a directory, a few names at a time."""
        filesystem = self._daemon.filesystem
        directory = await self.look(path)
        if not isinstance(directory, Directory):
            return
        asked_at = trio.current_time()
        shown: dict[str, Meaning | None] = {}
        filesystem.tree.remember(directory.inode)
        try:
            handle = await filesystem.opendir(directory.inode)
            try:
                index, more = 0, True
                while more:
                    _, entries = await filesystem.entries(handle, index)
                    more = False
                    for (index, name, node), _ in zip(entries, range(_READDIR_NAMES), strict=False):
                        more, index = True, index + 1
                        if name in shown:
                            self._fail(f"{directory.prefix}{name} is shown twice")
                        if isinstance(node, File | Directory):
                            self._identify(node)
                            shown[name] = _meaning(node)
                        else:
                            shown[name] = NoObject.DIRECTORY if node.is_directory else None
                    await trio.sleep(pause_s)
            finally:
                filesystem.releasedir(handle)
        except D7yfsError as error:
            self._judge(error, f"readdir of {directory.prefix}", asked_at)
        else:
            self._compare(directory.prefix, shown, asked_at)
        finally:
            filesystem.forget(directory.inode, 1)

    def _compare(self, prefix: str, shown: dict[str, Meaning | None], asked_at: float) -> None:
        for name in self._listed.names_below(prefix) | shown.keys():
            key = f"{prefix}{name}"
            since = self._horizon(key, asked_at, absent=name not in shown)
            allowed = self._listed.meanings_since(key, since)
            meaning = shown.get(name, NoObject.ABSENT)
            # Of a huge directory an object is shown even if a directory of its name comes behind
            # it.
            right = meaning in allowed if meaning is not None else self._listed.is_object_since(key, since)
            if not right:
                self._fail(f"{key} is shown as {meaning}, may be {allowed}; opened at {asked_at:.2f}")

    async def refresh(self, path: str) -> None:
        """Refresh as `d7yfs refresh` does; from then on nothing older is an answer."""
        asked_at = trio.current_time()
        try:
            await self._daemon.refreshes.refresh({"paths": [path]})
        except VersionGone:
            pass  # its node is gone: the directory above must be refreshed
        except D7yfsError as error:
            self._judge(error, f"refresh of {path}", asked_at)
        else:
            self._refreshed.append((path, asked_at, trio.current_time()))

    def forget(self) -> None:
        """Forget all, as a kernel does."""
        self._daemon.kernel.forget()

    # --- what must be so ---

    def check(self) -> None:
        """The tree stays within its bound, except for remembered nodes and the last listed
        directory."""
        statistics = self._daemon.filesystem.tree.statistics()
        inodes, remembered, limit = statistics.inodes, statistics.remembered, statistics.inodes_limit
        most = limit * 9 // 8 + 2 * remembered + 2 * len(self._listed.names_below(""))
        if inodes > most or statistics.unmatched_forgets_total:
            self._fail(f"{inodes} inodes, {remembered} remembered, of {limit}: {statistics}")
        if not statistics.dropped_inodes_total:
            self._check_order()

    def _check_order(self) -> None:
        """Only a later answer replaces the answer about a single name."""
        tree = self._daemon.filesystem.tree
        for directory in tree.known(tree.top("")):
            listed_at = directory.asked_at if directory.children is not None else -math.inf
            singles = {name: single.asked_at for name, single in (directory.singles or {}).items()}
            for (inode, name), at in self._learnt_at.items():
                if inode == directory.inode and max(listed_at, singles.get(name, -math.inf)) < at:
                    self._fail(f"what is known of {directory.prefix}{name} is older than at {at:.2f}")
            self._learnt_at.update({(directory.inode, name): at for name, at in singles.items()})
            self._learnt_at[directory.inode, ""] = listed_at

    def _horizon(self, key: str, asked_at: float, *, absent: bool) -> float:
        """The greatest age of an answer about a name, or of its absence."""
        horizon = self._listed.horizon(asked_at)
        statistics = self._daemon.filesystem.tree.statistics()
        for path, since, until in self._refreshed:
            below = not path or f"{key}/".startswith(f"{path}/")
            if not below or asked_at < until or self._listed.failed_since(since):
                continue
            # After a directory was dropped for room, the absences that the kernel was told are
            # unknown.
            kernels_s = NEGATIVE_TTL_S if absent and statistics.dropped_inodes_total else 0.0
            if asked_at >= until + kernels_s:
                horizon = max(horizon, since)
        return horizon

    def _identify(self, node: Node) -> None:
        if self._identities.setdefault(node.inode, node.identity) != node.identity:
            self._fail(f"inode {node.inode} was {self._identities[node.inode]}, is {node.identity}")

    async def _look_at_mtime(self, directory: Directory) -> None:
        asked_at, prefix = trio.current_time(), directory.prefix
        try:
            node = await self._daemon.filesystem.getattr(directory.inode)
        except D7yfsError as error:
            self._judge(error, f"attributes of {prefix}", asked_at)
            return
        assert node is directory
        inode, mtime_ns, since = self._mtimes.get(prefix, (0, 0, 0.0))
        if directory.mtime_ns < mtime_ns:
            self._fail(f"the mtime of {prefix!r} fell from {mtime_ns} to {directory.mtime_ns}")
        same = inode == directory.inode and not self._listed.changed_since(prefix, since)
        if same and directory.mtime_ns != mtime_ns:
            self._fail(f"the mtime of {prefix!r} rose, and nothing has changed since {since:.2f}")
        if directory.children is not None:  # otherwise it may rest on names that were learnt long ago
            self._mtimes[prefix] = directory.inode, directory.mtime_ns, self._listed.horizon(asked_at)

    def _judge(self, error: D7yfsError, what: str, asked_at: float) -> None:
        if not excuses(self._listed, error, asked_at):
            self._fail(f"{what}: {error!r} without reason")

    def _fail(self, what: str) -> None:
        if not self._daemon.dead:
            self._tell(what)


def _meaning(node: Node | None) -> Meaning:
    if isinstance(node, File):
        return node.version.validator
    return NoObject.ABSENT if node is None else NoObject.DIRECTORY
