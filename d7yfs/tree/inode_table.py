"""The inodes of one mount: how they come, how long they stay, and which are dropped for room. Pure
and synchronous.

Invariants:

- A number is never given out twice. An inode is known while it is an entry of its directory, or
  remembered by the kernel (lookup counts) or an open handle. An inode that is neither is gone.
- What was an entry when an earlier process ended is known, too, until room is needed.
- The known inodes stay within a bound, except for remembered ones and the directory that was filled
  last.

`tree.Tree` adds the names: it decides on the entries of a directory.
"""

from __future__ import annotations

import hashlib
import itertools
import math
from collections import OrderedDict
from collections.abc import Container, Hashable, Iterable, Mapping
from dataclasses import replace
from typing import Protocol, TypeVar

from d7yfs.errors import VersionGone
from d7yfs.objects import ObjectVersion
from d7yfs.stats.status import TreeStatus
from d7yfs.tree.nodes import NOTHING_WITHHELD, Directory, File, Node, Single

N = TypeVar("N", File, Directory)

_ROOM = 64
"""The part of the bound that a pass frees, so that not each new inode needs a pass."""


class Ledger(Protocol):
    """A record of the nodes that the kernel was told, for the process that goes on after this one."""

    def remembered(self, node: Node) -> None:
        """Note a node that is remembered from now on."""

    def changed(self, node: Node) -> None:
        """Note the change of a node, if it was noted."""

    def forgotten(self, inode: int) -> None:
        """Note that a node is not remembered any more. It keeps its number and its times."""

    def gone(self, inode: int) -> None:
        """Drop what was noted of a node."""

    def begun(self, first_sight_ns: int) -> None:
        """Note the mtime of a directory at first sight."""


class InodeTable:
    """All nodes of one mount by number. The first one is the root: the kernel knows it as 1."""

    def __init__(self, *, max_entries: int, created_ns: int) -> None:
        self.max_entries = max_entries
        """The bound; an excess goes when entries are next learnt."""
        self.first_sight_ns = created_ns
        """The mtime of a directory at first sight. It is never before that of a directory that is
        gone: the same one may come back."""
        self.nodes: dict[int, Node] = {}
        self.unlinked: dict[Hashable, Node] = {}
        """Remembered and restored nodes that are no entries at present, by identity."""
        self.filled: OrderedDict[int, Directory] = OrderedDict()
        """Directories with known entries, least recently used first."""
        self._awaited: set[int] = set()
        """Restored nodes that no listing has shown yet: they may be entries."""
        self.ledger: Ledger | None = None
        self.directories = self.remembered_count = 0
        self.dropped_total = self.unmatched_forgets_total = 0
        self._numbers = itertools.count(1)
        self._first_number = 1  # the lower ones that are known were restored
        self._absent = 0  # names known to be absent, which cost memory too
        self._surplus_told = 0  # how many were remembered when names to forget were last picked
        self._trim_after = 0  # the inodes to be added or forgotten before another trim is worth its time

    def get(self, inode: int) -> Node:
        """The node of a number. Raises VersionGone (ESTALE: the kernel looks the path up again)."""
        node = self.nodes.get(inode)
        if node is None:
            raise unknown(inode)
        return node

    def describe(self, *, stale_listings: int, stale_answers: int) -> TreeStatus:
        """Gauges, then counters since the mount was made; the arguments are the tree's."""
        return TreeStatus(
            inodes=len(self.nodes),
            inodes_limit=self.max_entries,
            directories=self.directories,
            directories_listed=sum(1 for directory in self.filled.values() if directory.children is not None),
            files=len(self.nodes) - self.directories,
            remembered=self.remembered_count,
            unlinked=len(self.unlinked),
            hidden_keys=sum(directory.hidden_count for directory in self.filled.values()),
            stale_listings_total=stale_listings,
            stale_answers_total=stale_answers,
            dropped_inodes_total=self.dropped_total,
            unmatched_forgets_total=self.unmatched_forgets_total,
        )

    # -- lookup counts

    def remember(self, inode: int, count: int = 1) -> None:
        """Keep an inode: one for every entry told to the kernel, and one for every open handle.
        Raises VersionGone."""
        node = self.get(inode)
        if not node.lookups:
            self.remembered_count += 1
            if self.ledger is not None:
                self.ledger.remembered(node)
        node.lookups += count

    def forget(self, inode: int, count: int = 1) -> None:
        """Take back `count`; an excess is counted. A node neither remembered nor an entry is
        gone."""
        node = self.nodes.get(inode)
        if (node is None or node.lookups < count) and inode >= self._first_number:
            self.unmatched_forgets_total += 1
        if node is None or not node.lookups:
            return
        node.lookups = max(node.lookups - count, 0)
        if not node.lookups:
            self.remembered_count -= 1
            self._trim_after -= 1
            if not node.linked and inode not in self._awaited:
                self._abandon(node)
            elif self.ledger is not None:
                self.ledger.forgotten(inode)

    @property
    def is_crowded(self) -> bool:
        """True if over three quarters of the bound are remembered, and no names were picked yet."""
        if self.remembered_count <= self.max_entries * 3 // 4:
            self._surplus_told = 0
            return False
        return self.remembered_count >= self._surplus_told + self.max_entries // 8

    def pick_names_to_forget(self, spared: Container[int]) -> dict[int, list[str]]:
        """Pick names that the kernel should forget, by directory, to keep half of the bound.

        The least recently used files come first, without those `spared`. Open files and working
        directories would lose their path with their name.
        """
        excess = self.remembered_count - self.max_entries // 2
        self._surplus_told = self.remembered_count
        surplus: dict[int, list[str]] = {}
        for directory in self.filled.values():
            if excess <= 0:
                break
            names = [
                name
                for name, node in directory.names.items()
                if isinstance(node, File) and node.lookups and node.inode not in spared
            ][:excess]
            excess -= len(names)
            if names:
                surplus[directory.inode] = names
        return surplus

    # -- nodes come and go

    def number_from(self, first: int) -> None:
        """Give out numbers from `first` on; an earlier process gave out lower ones."""
        self._first_number = first
        self._numbers = itertools.count(first)

    def restore(self, node: Node, *, remembered: bool = True) -> None:
        """Know a node again that an earlier process told the kernel, as no entry until it is found
        to be one. The count of a kernel that has `remembered` it is not known: one stands for all.

        A directory's fingerprint shows at its next listing whether it has changed meanwhile.
        """
        known = self.nodes.get(node.inode)
        if known is None:
            node.linked = False
            self.directories += node.is_directory
            self.nodes[node.inode] = self.unlinked[node.identity] = node
            self._awaited.add(node.inode)
        elif isinstance(known, Directory) and isinstance(node, Directory):  # the root, or a repository's
            known.mtime_ns, known.fingerprint = node.mtime_ns, node.fingerprint
        if remembered:
            self.remember(node.inode)

    def add_directory(self, repository: str | None, prefix: str, mtime_ns: int) -> Directory:
        """Add a directory as an entry of the one above it."""
        self.directories += 1
        return self._add(Directory(next(self._numbers), repository, prefix, mtime_ns))

    def _add(self, node: N) -> N:
        self.nodes[node.inode] = node
        self._trim_after -= 1
        return node

    def entry(
        self, directory: Directory, name: str, version: ObjectVersion | None, node: Node | None, first_sight_ns: int
    ) -> Node:
        """The node of an entry: `node` if the name still stands for it, else a relinked or new one.

        `version` None is a directory; `first_sight_ns` is the mtime of a new one.
        """
        repository = directory.repository
        assert repository is not None, "the root above repositories has no origin"
        if version is None:
            if isinstance(node, Directory):
                return node
            prefix = f"{directory.prefix}{name}/"
            return self.relink((repository, prefix)) or self.add_directory(repository, prefix, first_sight_ns)
        if not isinstance(node, File) or node.version.identity != version.identity:
            node = self.relink((repository, *version.identity))
        if not isinstance(node, File):
            return self._add(File(next(self._numbers), repository, version, directory.inode))
        node.parent = directory.inode
        # Restored from the archive, or moved there: the same bytes, and so the same inode.
        if node.version.archived != version.archived:
            node.version = replace(node.version, archived=version.archived)
        return node

    def relink(self, identity: Hashable) -> Node | None:
        """Make the remembered node of this identity, if any, an entry again, and return it."""
        node = self.unlinked.pop(identity, None)
        if node is not None:
            node.linked = True
            self._awaited.discard(node.inode)
            if isinstance(node, Directory) and node.vanished:
                self.distrust(node)
        return node

    def distrust(self, directory: Directory) -> None:
        """Expire all that is known of a directory and below it: it is no answer any more, even if
        there is no other."""
        pending = [directory]
        while pending:
            each = pending.pop()
            each.vanished = False
            each.returned = True
            each.expires_at = -math.inf
            self.expire_names(each)
            pending.extend(child for child in each.entries if isinstance(child, Directory))

    def expire_names(self, directory: Directory) -> tuple[str, ...]:
        """Expire all names of a directory that were learnt one by one, and return them."""
        singles = directory.singles or {}
        singles.update((name, replace(single, expires_at=-math.inf)) for name, single in list(singles.items()))
        return tuple(singles)

    def unlink(self, node: Node, *, vanished: bool = True) -> None:
        """Make `node` no entry: keep it while it is remembered, else remove it and all below it.

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
            if self.ledger is not None:
                self.ledger.gone(node.inode)
            if isinstance(node, Directory):
                self.directories -= 1
                if node.mtime_ns > self.first_sight_ns:
                    self.first_sight_ns = node.mtime_ns
                    if self.ledger is not None:
                        self.ledger.begun(node.mtime_ns)
                pending.extend(self.clear(node))

    def _abandon(self, node: Node) -> None:
        """Remove a node that is no entry, and not remembered."""
        del self.unlinked[node.identity]
        self._awaited.discard(node.inode)
        self.unlink(node)

    def clear(self, directory: Directory) -> list[Node]:
        """Forget a directory's entries, and return them; the caller must unlink them."""
        entries = directory.entries
        self.set_singles(directory, {})
        self.filled.pop(directory.inode, None)
        self._forget_listing(directory)
        return entries

    def _drop(self, directory: Directory) -> None:
        """Forget a directory's entries, which are learnt anew at its next use."""
        if directory.children is not None:
            directory.fingerprint = fingerprint(directory.children)
        for child in self.clear(directory):
            self.unlink(child, vanished=False)

    def drop_strays(self, above: Directory) -> None:
        """Forget the entries of directories below `above` that are no entries themselves; `known`
        lacks those.

        They are remembered: as entries again, they would answer with what they held.
        """
        pending: list[Node] = list(self.unlinked.values())
        while pending:
            node = pending.pop()
            if isinstance(node, Directory) and node.inode in self.filled and _above(above, node):
                pending.extend(node.entries)
                self._drop(node)

    def _forget_listing(self, directory: Directory) -> None:
        directory.children = None
        directory.hidden_count = 0
        directory.withheld = NOTHING_WITHHELD
        directory.expires_at = -math.inf
        directory.stale = False

    # -- names that were learnt one by one

    def set_singles(self, directory: Directory, singles: Mapping[str, Single]) -> None:
        """Make these a directory's only single names."""
        self._absent += _absent(singles.values()) - _absent((directory.singles or {}).values())
        directory.singles = dict(singles) or None

    def set_single(self, directory: Directory, name: str, single: Single) -> None:
        """Make this one a directory's newest single name."""
        if directory.singles is None:
            directory.singles = {}
        old = directory.singles.pop(name, None)
        directory.singles[name] = single
        self._absent += (single.node is None) - (old is not None and old.node is None)
        self._trim_after -= single.node is None

    # -- the bound

    def fill(self, directory: Directory, now: float) -> None:
        """Make a directory whose entries were learnt the most recently used, and trim."""
        self.filled[directory.inode] = directory
        self.filled.move_to_end(directory.inode)
        self._trim(now, directory)

    @property
    def _excess(self) -> int:
        return len(self.nodes) + self._absent - self.max_entries

    def _trim(self, now: float, keep: Directory) -> None:
        """Drop the entries of least recently used directories to somewhat below the bound, expired
        ones first.

        A dropped directory is listed again at its next use. One whose children are mostly
        remembered is left alone (little memory to gain) and counts as used. If too much is left,
        another pass waits until an eighth of all inodes has been added or forgotten: passes cost a
        constant time per inode.
        """
        if self._trim_after > 0 or self._excess <= 0:
            return
        room = self.max_entries // _ROOM
        for node in [each for each in self.unlinked.values() if not each.lookups]:
            self._abandon(node)
        for expired_only in (True, False):
            for directory in list(self.filled.values()):
                if self._excess + room <= 0:
                    return
                if directory.inode not in self.filled or (expired_only and _lives_until(directory) > now):
                    continue
                # The directory just listed must stay, and so must those above it, which keep it
                # known.
                if directory is keep or (not keep.lookups and _above(directory, keep)):
                    continue
                remembered = sum(1 for child in directory.entries if child.lookups)
                if 2 * remembered >= len(directory.children or directory.singles or ()):
                    self.filled.move_to_end(directory.inode)
                    continue
                before = len(self.nodes)
                self._drop(directory)
                self.dropped_total += before - len(self.nodes)
        self._thin(keep, room)
        if self._excess > 0:
            self._trim_after = len(self.nodes) // 8

    def _thin(self, directory: Directory, room: int) -> None:
        """Drop the oldest of a directory's single names, except remembered ones."""
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


def unknown(inode: int) -> VersionGone:
    """The error for a number that is known no more."""
    return VersionGone(f"inode {inode} is not known any more", hint="open the path again")


def fingerprint(children: Mapping[str, Node]) -> int:
    """A hash that tells whether dropped entries are listed again unchanged, also by another process;
    never 0."""
    told = (
        f"{name}/" if isinstance(node, Directory) else "\0".join(map(str, (name, *node.version.identity[1:])))
        for name, node in children.items()
    )
    joined = "\0\0".join(sorted(told)).encode(errors="surrogatepass")
    return int.from_bytes(hashlib.blake2b(joined, digest_size=8).digest(), "little") or 1


def _absent(singles: Iterable[Single]) -> int:
    return sum(1 for single in singles if single.node is None)


def _lives_until(directory: Directory) -> float:
    newest = next(reversed(directory.singles.values())).expires_at if directory.singles else -math.inf
    return max(directory.expires_at, newest)


def _above(directory: Directory, other: Directory) -> bool:
    return directory.repository == other.repository and other.prefix.startswith(directory.prefix)
