"""The inodes of one mount: how they come, how long they stay, and what is given up for room. Pure and synchronous.

Invariants:

- A number is never given out twice. An inode is known while it is an entry of its directory, or remembered: by the kernel (lookup
  counts) or by an open handle. One that is no entry any more and is then forgotten is gone.
- All that is known stays within a bound, but for what the kernel or a handle remembers and for the directory that was filled last.

Used by `tree` alone, which decides what the entries of a directory are.
"""

from __future__ import annotations

import itertools
import math
from collections import OrderedDict
from collections.abc import Container, Iterable, Mapping
from dataclasses import replace

from d7yfs.errors import VersionGone
from d7yfs.objects import ObjectVersion
from d7yfs.tree.nodes import NOTHING_WITHHELD, Directory, File, Node, Single

_ROOM = 64
"""A pass makes room for this part of the bound, so that not each new inode needs one."""


class InodeTable:
    """All nodes by number. The first one that is added is the root: the kernel knows it as 1."""

    def __init__(self, *, max_entries: int, created_ns: int) -> None:
        self.max_entries = max_entries
        self.first_sight_ns = created_ns
        """The mtime of a directory at first sight; never before that of one that is gone, for it may be the same that comes back."""
        self.nodes: dict[int, Node] = {}
        self.unlinked: dict[tuple[str, ...], Node] = {}
        """Remembered, but no entry at present; by identity."""
        self.filled: OrderedDict[int, Directory] = OrderedDict()
        """Directories with entries that are known, all or some; least recently used first."""
        self.directories = self.remembered = self.hidden = 0
        self.dropped_total = self.unmatched_forgets_total = 0
        self._numbers = itertools.count(1)
        self._absent = 0  # names known not to be there, which cost memory too
        self._surplus_told = 0  # so many were remembered when `surplus` was asked for
        self._trim_after = 0  # inodes to be added or forgotten before another trim is worth its time

    def get(self, inode: int) -> Node:
        """The node of a number. Raises VersionGone (ESTALE: the kernel looks the path up again) for an unknown one."""
        node = self.nodes.get(inode)
        if node is None:
            raise VersionGone(f"inode {inode} is not known any more", hint="open the path again")
        return node

    # -- lookup counts

    def remember(self, inode: int, count: int) -> None:
        """See `Tree.remember`."""
        node = self.get(inode)
        self.remembered += not node.lookups
        node.lookups += count

    def forget(self, inode: int, count: int) -> None:
        """See `Tree.forget`."""
        node = self.nodes.get(inode)
        if node is None or node.lookups < count:
            self.unmatched_forgets_total += 1
        if node is None or not node.lookups:
            return
        node.lookups = max(node.lookups - count, 0)
        if not node.lookups:
            self.remembered -= 1
            self._trim_after -= 1
            if not node.linked:
                del self.unlinked[node.identity]
                self.unlink(node)

    @property
    def crowded(self) -> bool:
        """Whether so much is remembered that little can be dropped, and nothing was done about it yet."""
        if self.remembered <= self.max_entries * 3 // 4:
            self._surplus_told = 0
            return False
        return self.remembered >= self._surplus_told + self.max_entries // 8

    def surplus(self, spared: Container[int]) -> dict[int, list[str]]:
        """See `Tree.surplus`."""
        excess = self.remembered - self.max_entries // 2
        self._surplus_told = self.remembered
        surplus: dict[int, list[str]] = {}
        for directory in self.filled.values():
            if excess <= 0:
                break
            entries: Iterable[tuple[str, Node | None]] = (
                directory.children.items()
                if directory.children is not None
                else ((name, single.node) for name, single in (directory.singles or {}).items())
            )
            names = [
                name for name, node in entries if isinstance(node, File) and node.lookups and node.inode not in spared
            ][:excess]
            excess -= len(names)
            if names:
                surplus[directory.inode] = names
        return surplus

    # -- nodes come and go

    def add_file(self, repository: str, version: ObjectVersion, parent: int) -> File:
        """A new inode, an entry of `parent`."""
        node = File(next(self._numbers), repository, version, parent)
        self.nodes[node.inode] = node
        self._trim_after -= 1
        return node

    def add_directory(self, repository: str | None, prefix: str, mtime_ns: int) -> Directory:
        """A new inode, an entry of the directory above it."""
        directory = Directory(next(self._numbers), repository, prefix, mtime_ns)
        self.nodes[directory.inode] = directory
        self.directories += 1
        self._trim_after -= 1
        return directory

    def entry(
        self,
        directory: Directory,
        repository: str,
        name: str,
        version: ObjectVersion | None,
        node: Node | None,
        first_sight_ns: int,
    ) -> Node:
        """The node of an entry, made where there is none: `node` if that is what the name stood for and still stands for.

        `version` None is a directory; `first_sight_ns` is the mtime of one that is new.
        """
        if version is None:
            if isinstance(node, Directory):
                return node
            prefix = f"{directory.prefix}{name}/"
            known = self.relink((repository, prefix))
            return known or self.add_directory(repository, prefix, first_sight_ns)
        if not isinstance(node, File) or node.version.identity != version.identity:
            key, validator, size_bytes = version.identity
            node = self.relink((repository, key, validator, str(size_bytes)))
        if not isinstance(node, File):
            return self.add_file(repository, version, directory.inode)
        node.parent = directory.inode
        # Restored from the archive, or moved there: the same bytes, and so the same inode.
        if node.version.archived != version.archived:
            node.version = replace(node.version, archived=version.archived)
        return node

    def relink(self, identity: tuple[str, ...]) -> Node | None:
        """The remembered node of this identity that was no entry, which it is now again."""
        node = self.unlinked.pop(identity, None)
        if node is not None:
            node.linked = True
            if isinstance(node, Directory) and node.vanished:
                self._doubt(node)
        return node

    def _doubt(self, directory: Directory) -> None:
        """Have all that is known of a directory and below it asked for again when it is next used."""
        pending = [directory]
        while pending:
            each = pending.pop()
            each.vanished = False
            each.returned = True
            each.expires_at = -math.inf
            self.doubt_singles(each)
            pending.extend(child for child in each.entries if isinstance(child, Directory))

    def doubt_singles(self, directory: Directory) -> None:
        """As `Tree.doubt`."""
        singles = directory.singles or {}
        singles.update((name, replace(single, expires_at=-math.inf)) for name, single in list(singles.items()))

    def unlink(self, node: Node, *, vanished: bool = True) -> None:
        """`node` is no entry any more: keep it aside while it is remembered, else remove it and all below it.

        `vanished`: the store has it no more; else it is only not known to be an entry.
        """
        pending = [node]
        while pending:
            node = pending.pop()
            node.linked = False
            if node.lookups:
                self.unlinked[node.identity] = node
                if isinstance(node, Directory):
                    node.vanished = node.vanished or vanished
                continue
            del self.nodes[node.inode]
            if isinstance(node, Directory):
                self.directories -= 1
                self.first_sight_ns = max(self.first_sight_ns, node.mtime_ns)
                pending.extend(self.clear(node))

    def clear(self, directory: Directory) -> list[Node]:
        """Make nothing known of a directory's entries; they are returned, still to be unlinked."""
        entries = directory.entries
        self.set_singles(directory, {})
        self.filled.pop(directory.inode, None)
        self._forget_listing(directory)
        return entries

    def _drop(self, directory: Directory) -> None:
        """Have its entries be learnt anew when it is next used; of those that are gone then nobody knows."""
        if directory.children is not None:
            directory.fingerprint = fingerprint(directory.children)
        for child in self.clear(directory):
            self.unlink(child, vanished=False)

    def drop_unlinked(self, above: Directory) -> None:
        """See `Tree.drop_strays`."""
        pending: list[Node] = list(self.unlinked.values())
        while pending:
            node = pending.pop()
            if isinstance(node, Directory) and node.inode in self.filled and _above(above, node):
                pending.extend(node.entries)
                self._drop(node)

    def _forget_listing(self, directory: Directory) -> None:
        self.hidden -= directory.hidden_count
        directory.children = None
        directory.hidden_count = 0
        directory.withheld = NOTHING_WITHHELD
        directory.expires_at = -math.inf
        directory.stale = False

    # -- names that were learnt one by one

    def set_singles(self, directory: Directory, singles: Mapping[str, Single]) -> None:
        """Have a directory keep these, and no others."""
        self._absent += _absent(singles.values()) - _absent((directory.singles or {}).values())
        directory.singles = dict(singles) or None

    def set_single(self, directory: Directory, name: str, single: Single) -> None:
        """Have a directory keep this one as its newest."""
        if directory.singles is None:
            directory.singles = {}
        old = directory.singles.pop(name, None)
        directory.singles[name] = single
        self._absent += (single.node is None) - (old is not None and old.node is None)
        self._trim_after -= single.node is None

    def scatter(self, directory: Directory) -> None:
        """Have a directory keep what its listing had as if each name had been learnt alone."""
        assert directory.children is not None
        singles = {
            name: Single(node, directory.asked_at, directory.expires_at, directory.stale)
            for name, node in directory.children.items()
        }
        self._forget_listing(directory)
        self.set_singles(directory, {**singles, **(directory.singles or {})})

    # -- the bound

    def touch(self, directory: Directory) -> None:
        """It is used; remembers nothing of a directory without known entries."""
        if directory.inode in self.filled:
            self.filled.move_to_end(directory.inode)

    def fill(self, directory: Directory, now: float) -> None:
        """Its entries were learnt, which makes it the most recently used; others make room for it."""
        self.filled[directory.inode] = directory
        self.filled.move_to_end(directory.inode)
        self._trim(now, directory)

    @property
    def _excess(self) -> int:
        return len(self.nodes) + self._absent - self.max_entries

    def _trim(self, now: float, keep: Directory) -> None:
        """Drop the entries of least recently used directories down to somewhat below the bound: expired ones first, then live ones.

        A dropped directory is listed again when it is next used. One whose children are mostly remembered is left alone
        (little memory to gain) and counts as used. When that leaves too much, another pass waits until an eighth of all
        inodes has been added or forgotten, so that passes cost a constant time per inode.
        """
        if self._trim_after > 0 or self._excess <= 0:
            return
        room = self.max_entries // _ROOM
        for expired_only in (True, False):
            for directory in list(self.filled.values()):
                if self._excess + room <= 0:
                    return
                if directory.inode not in self.filled or (expired_only and _lives_until(directory) > now):
                    continue
                # What was just listed must stay, and so must what alone keeps it known: the directories above it.
                if directory is keep or (not keep.lookups and _above(directory, keep)):
                    continue
                remembered = sum(1 for child in directory.entries if child.lookups)
                if 2 * remembered >= len(directory.children or directory.singles or ()):
                    self.touch(directory)
                    continue
                before = len(self.nodes)
                self._drop(directory)
                self.dropped_total += before - len(self.nodes)
        self._thin(keep, room)
        if self._excess > 0:
            self._trim_after = len(self.nodes) // 8

    def _thin(self, directory: Directory, room: int) -> None:
        """Drop what was learnt first of the names that were learnt one by one, but for what is remembered."""
        if directory.children is not None or directory.singles is None:
            return
        for name, single in list(directory.singles.items())[:-1]:
            if self._excess + room <= 0:
                return
            if single.node is not None and single.node.lookups:
                continue
            del directory.singles[name]
            self.dropped_total += 1
            if single.node is None:
                self._absent -= 1
            else:
                self.unlink(single.node, vanished=False)


def fingerprint(children: Mapping[str, Node]) -> int:
    """Tells whether dropped entries were still the same when they are listed again; never 0."""
    return hash(frozenset((name, *node.identity) for name, node in children.items())) or 1


def _absent(singles: Iterable[Single]) -> int:
    return sum(1 for single in singles if single.node is None)


def _lives_until(directory: Directory) -> float:
    newest = next(reversed(directory.singles.values())).expires_at if directory.singles else -math.inf
    return max(directory.expires_at, newest)


def _above(directory: Directory, other: Directory) -> bool:
    return directory.repository == other.repository and other.prefix.startswith(directory.prefix)
