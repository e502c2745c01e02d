"""The tree of one mount: names, object versions and how long they are believed. Pure and synchronous.

Nothing here awaits, so every call is atomic under trio. There is no clock either: `now` and `asked_at` are monotonic
seconds that the caller passes in; wall-clock values come from listings only. The filesystem layer is the one caller.

A directory's entries are known from a listing of all of them, or one by one; whichever was asked for last counts. The nodes themselves,
their lookup counts and the bound on them are `inode_table`'s.

Invariants:

- A file's inode is one version of one object: repository, key, validator and size. The same identity keeps its number
  and the modification time it was first seen with; a changed object is another inode. A directory's inode is its path.
- Every timeout handed out is the *remaining* life of the listing it rests on, so that the kernel's staleness and ours
  never add up.
- A directory's modification time never decreases, and changes only when its own entries do.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from d7yfs.errors import NotADirectory
from d7yfs.objects import ObjectVersion
from d7yfs.tree.answers import Absent, Changes, Expired, Found
from d7yfs.tree.inode_table import InodeTable, fingerprint
from d7yfs.tree.listing import HIDDEN_SAMPLE, Answer, DirectoryListing, HiddenKey, NoObject, name_fault
from d7yfs.tree.nodes import NOTHING_WITHHELD, Directory, File, Node, Single
from d7yfs.tree.visibility import NAME

ROOT_INODE = 1
"""FUSE_ROOT_ID in linux/fuse.h."""

MIN_RETRY_S = 1.0
"""Shortest time for which a stale listing is served before its origin is asked again."""

MAX_ENTRIES = 200_000
"""Default bound on known inodes: about 120 MiB with keys of 70 characters."""

TTL_PER_LISTING = 25.0
"""A listing lives at least for so many times as long as it took. It is asked for again after four fifths of that at the earliest, so that
listing takes no more than a twentieth of the time."""

_MTIME_STEP_NS = 1000
"""The least by which a change raises a directory's mtime: programs compare it as a float, which resolves 240 ns."""


@dataclass(frozen=True, slots=True)
class Repository:
    """One mounted repository. `prefix` is what to list: "" or "a/b/" for a directory, a key for that one object."""

    name: str
    """The top-level directory that shows it; empty when it is the mount's root."""
    prefix: str


class Tree:
    """All inodes of one mount."""

    def __init__(
        self,
        repositories: Sequence[Repository],
        *,
        metadata_ttl_s: float,
        negative_ttl_s: float,
        created_ns: int,
        max_entries: int = MAX_ENTRIES,
    ) -> None:
        """One unnamed repository is the root itself; named ones are its entries, for ever.

        `metadata_ttl_s` may be 0 (always ask) or infinity. `created_ns`, positive, is the mtime of directories at first
        sight, in nanoseconds since the epoch. `max_entries` bounds the inodes known; only those that the kernel or
        a handle remembers, and the directory listed last, may exceed it.
        """
        if created_ns <= 0:
            raise ValueError("directories need a positive mtime: Python's import system breaks on others")
        self._metadata_ttl_s = metadata_ttl_s
        self._negative_ttl_s = negative_ttl_s
        self._table = InodeTable(max_entries=max_entries, created_ns=created_ns)
        self._reported: dict[tuple[str, str], HiddenKey] = {}
        self._stale_listings = self._stale_answers = 0

        names = [repository.name for repository in repositories]
        if names == [""]:
            root = self._table.add_directory("", repositories[0].prefix, created_ns)
            self._tops = {"": root}
        else:
            if len(set(names)) < len(names) or any(name_fault(name) for name in names):
                raise ValueError(f"repositories need distinct names that can be directories: {names}")
            root = self._table.add_directory(None, "", created_ns)
            self._tops = {r.name: self._table.add_directory(r.name, r.prefix, created_ns) for r in repositories}
            root.children = dict(self._tops)
            root.subdirectories = len(names)
            root.expires_at = math.inf
        self.remember(root.inode)  # the kernel knows it without a lookup

    # -- questions

    def get(self, inode: int) -> Node:
        """The node of a number. Raises VersionGone (ESTALE: the kernel looks the path up again) for an unknown one."""
        return self._table.get(inode)

    def directory(self, inode: int) -> Directory:
        """The directory of a number. Raises NotADirectory, VersionGone."""
        node = self.get(inode)
        if isinstance(node, Directory):
            return node
        raise NotADirectory(f"{node.version.key} is an object, not a directory")

    def parent(self, file: File) -> Directory | None:
        """The directory that `file` is an entry of; None when it is none any more."""
        node = self._table.nodes.get(file.parent) if file.linked else None
        return node if isinstance(node, Directory) else None

    def inodes_of(self, version: ObjectVersion) -> list[int]:
        """The numbers under which `version` is remembered, in whatever repository. Looks at every node."""
        return [
            node.inode
            for node in self._table.nodes.values()
            if isinstance(node, File) and node.lookups and node.version.identity == version.identity
        ]

    def remembered(self) -> list[Node]:
        """What the kernel or an open handle remembers. Looks at every node."""
        return [node for node in self._table.nodes.values() if node.lookups]

    def lookup(self, parent: int, name: str, now: float, *, asked_at: float | None = None) -> Found | Absent | Expired:
        """The entry `name` of the directory `parent`; answered from a listing that lives at `asked_at` (default: now).

        A name that was asked for alone since that listing has a life of its own, which may end sooner.
        `asked_at` is when the request came in. Raises NotADirectory, VersionGone.
        """
        directory = self.directory(parent)
        asked_at = now if asked_at is None else asked_at
        self._table.touch(directory)
        single = (directory.singles or {}).get(name)
        newest = directory if single is None else single  # what was asked for alone is newer than the listing
        if not newest.fresh(asked_at):
            return Expired(directory)
        self._stale_answers += newest.stale
        node = directory.entry(name) if single is None else single.node
        remaining_s = newest.remaining_s(now)
        return Found(node, remaining_s) if node is not None else Absent(min(self._negative_ttl_s, remaining_s))

    def listed(self, directory: int, asked_at: float) -> bool:
        """Whether `lookup` and `children` would answer for this directory.

        For READDIR, `asked_at` is when the directory was opened: a slow reader then never needs another listing, and what
        it tells the kernel is still the present entry with its present timeout (0 once expired).
        Raises NotADirectory, VersionGone.
        """
        return self.directory(directory).fresh(asked_at)

    def children(self, directory: int) -> tuple[str, ...]:
        """The names known in a directory, fresh or not, in the origin's order: a snapshot, so an index is a steady offset.

        `entries` shows them: they may have changed since. Raises NotADirectory, VersionGone.
        """
        node = self.directory(directory)
        self._table.touch(node)
        return tuple(node.children or ())

    def entries(self, directory: int, names: Sequence[str], start: int) -> Iterator[tuple[int, str, Node]]:
        """Index, name and node of those of `names` from index `start` on that the directory has at present.

        What holds for `Found` holds for each node. Raises NotADirectory, VersionGone.
        """
        node = self.directory(directory)
        self._table.touch(node)
        self._stale_answers += node.stale
        return (
            (index, names[index], child)
            for index in range(start, len(names))
            if (child := node.entry(names[index])) is not None
        )

    def listed_directories(self, repository: str) -> list[Directory]:
        """The directories of one repository of which any entries are known, fresh or not."""
        filled = self._table.filled.values()
        return [each for each in filled if each.repository == repository and each.children is not None]

    def resolve(self, path: str) -> Node | None:
        """The node at `path` (relative to the mount) if it is known at present; asks for nothing, refreshes nothing."""
        return _below(self._table.nodes[ROOT_INODE], path)

    def top(self, repository: str) -> Directory:
        """The directory that shows the repository of this name."""
        return self._tops[repository]

    def at(self, repository: str, prefix: str) -> Directory | None:
        """The directory of a prefix at or below the repository's, if it is known at present."""
        top = self._tops[repository]
        node = _below(top, prefix.removeprefix(top.prefix))
        return node if isinstance(node, Directory) else None

    def known(self, directory: Directory) -> list[Directory]:
        """The directories, at `directory` and below it, of which any entries are known; those above before those below."""
        found, pending = [], [directory]
        while pending:
            each = pending.pop()
            if each.inode in self._table.filled:
                found.append(each)
                pending.extend(child for child in each.entries if isinstance(child, Directory))
        return found

    def strays(self, directory: Directory) -> dict[int, list[str]]:
        """The names below `directory` of what is remembered but is no entry of what is known, by the inode of their directory.

        Some stand for nothing any more; of others the directory was dropped for room, so that no listing tells that they have changed.
        """
        strays: dict[int, list[str]] = {}
        for node in self._table.unlinked.values():
            key = node.prefix[:-1] if isinstance(node, Directory) else node.version.key
            if node.repository == directory.repository and key.startswith(directory.prefix):
                above, _, name = key.rpartition("/")
                parent = node.parent if isinstance(node, File) else self._above(directory.repository or "", above)
                strays.setdefault(parent, []).append(name)
        return {inode: names for inode, names in strays.items() if inode in self._table.nodes}

    def drop_strays(self, directory: Directory) -> None:
        """Know nothing any more of the entries of directories below `directory` that are no entries themselves: `known` has none of those.

        They are remembered, and may be entries again, which would make what they held an answer.
        """
        self._table.drop_unlinked(directory)

    def _above(self, repository: str, path: str) -> int:
        """The number of the directory of a path, be it an entry or not; 0 for one that is not known."""
        prefix = f"{path}/" if path else ""
        node = self._table.unlinked.get((repository, prefix)) or self.at(repository, prefix)
        return node.inode if node is not None else 0

    def hidden(self) -> tuple[tuple[str, HiddenKey], ...]:
        """A bounded sample of what could not be shown since the mount was made: repository and key."""
        return tuple((repository, hidden) for (repository, _), hidden in self._reported.items())

    def hidden_by_reason(self, repository: str) -> Counter[str]:
        """How many entries of the directories that are listed at present are not shown: for their names, or by settings."""
        counts: Counter[str] = Counter()
        for directory in self.listed_directories(repository):
            counts[NAME] += directory.hidden_count
            counts.update(directory.withheld)
        return counts

    def statistics(self) -> dict[str, int]:
        """Gauges, then counters since the mount was made."""
        table = self._table
        return {
            "inodes": len(table.nodes),
            "inodes_limit": table.max_entries,
            "directories": table.directories,
            "directories_listed": sum(1 for directory in table.filled.values() if directory.children is not None),
            "files": len(table.nodes) - table.directories,
            "remembered": table.remembered,
            "unlinked": len(table.unlinked),
            "hidden_keys": table.hidden,
            "stale_listings_total": self._stale_listings,
            "stale_answers_total": self._stale_answers,
            "dropped_inodes_total": table.dropped_total,
            "unmatched_forgets_total": table.unmatched_forgets_total,
        }

    def set_ttls(self, *, metadata_ttl_s: float, negative_ttl_s: float) -> None:
        """For listings and absences from now on; what is known keeps its time."""
        self._metadata_ttl_s = metadata_ttl_s
        self._negative_ttl_s = negative_ttl_s

    def set_max_entries(self, max_entries: int) -> None:
        """From now on; what is too much then makes room when entries are next learnt."""
        self._table.max_entries = max_entries

    # -- lookup counts

    def remember(self, inode: int, count: int = 1) -> None:
        """Keep an inode: one for every entry told to the kernel, and one for every open handle. Raises VersionGone."""
        self._table.remember(inode, count)

    def forget(self, inode: int, count: int = 1) -> None:
        """Take back `count`. What is neither remembered nor an entry is gone; forgetting too much is counted, not raised."""
        self._table.forget(inode, count)

    @property
    def crowded(self) -> bool:
        """Whether the kernel and handles remember more than three quarters of the bound, and `surplus` has not been asked for since."""
        return self._table.crowded

    def surplus(self, spared: Container[int]) -> dict[int, list[str]]:
        """The names that the kernel should forget, by directory, for half of the bound to be remembered: of what was used longest ago.

        Of files alone, without those `spared`: the path of what is open, and of a working directory, would be lost with its name.
        """
        return self._table.surplus(spared)

    def use(self, inode: int, now: float) -> None:
        """Take note that somebody asks for a directory's entries or attributes; of other numbers none. `lookup` does not."""
        node = self._table.nodes.get(inode)
        if isinstance(node, Directory):
            node.used_at = now

    # -- listings

    def apply(
        self, inode: int, listing: DirectoryListing, now: float, *, asked_at: float, took_s: float = 0.0
    ) -> Changes:
        """Make `listing` the entries of a directory; they live for the metadata TTL from `asked_at`, or longer where it took long.

        `asked_at` is when its first page was asked for: what the origin said is no newer. A listing older than the one
        applied last changes nothing, and no name that was asked for since. Raises NotADirectory, VersionGone.
        """
        directory = self.directory(inode)
        assert directory.prefix == listing.prefix, "a listing of something else"
        repository = directory.repository
        assert repository is not None, "the root above repositories has no origin"
        if asked_at < directory.asked_at:
            return Changes(len(directory.children or ()))
        expires_at = self.lives_until(asked_at, took_s)
        newer = {
            name: _confirmed(single, name, listing, expires_at)
            for name, single in (directory.singles or {}).items()
            if single.asked_at > asked_at
        }
        known = directory.children is not None
        old: Mapping[str, Node | None] = (
            directory.children
            if directory.children is not None
            else {name: single.node for name, single in (directory.singles or {}).items()}
        )
        children = self._children(directory, repository, listing, old, newer)
        added = [name for name in children if old.get(name) is None and (known or name in old)]
        removed = [name for name, node in old.items() if node is not None and name not in children]
        replaced = [name for name, node in old.items() if node is not None and children.get(name, node) is not node]
        for name in itertools.chain(removed, replaced):
            gone = old[name]
            assert gone is not None
            self._table.unlink(gone)
        dropped = 0 if known else directory.fingerprint
        if added or removed or replaced or (dropped and dropped != fingerprint(children)):
            newest_ns = max((children[name].mtime_ns for name in itertools.chain(added, replaced)), default=0)
            directory.mtime_ns = max(directory.mtime_ns + _MTIME_STEP_NS, listing.date_ns, newest_ns)

        directory.children = children
        directory.subdirectories = sum(1 for node in children.values() if node.is_directory)
        directory.stale = False
        directory.asked_at = asked_at
        directory.expires_at = expires_at
        directory.returned = False
        self._table.hidden += listing.hidden_count - directory.hidden_count
        directory.hidden_count = listing.hidden_count
        directory.withheld = listing.withheld or NOTHING_WITHHELD
        self._table.set_singles(directory, newer)
        self._table.fill(directory, now)
        return Changes(len(children), tuple(added), tuple(removed), tuple(replaced), self.report(repository, listing))

    def admit(
        self, inode: int, name: str, answer: Answer, now: float, *, asked_at: float, took_s: float = 0.0
    ) -> Changes:
        """Make `answer` the entry `name` of a directory, whether the others are known or not.

        It lives as a listing does; that a name is absent is believed for the negative TTL from when that was learnt, if that is less. An
        answer older than what is known of the name changes nothing. Raises NotADirectory, VersionGone.
        """
        directory = self.directory(inode)
        repository = directory.repository
        assert repository is not None, "the root above repositories has no origin"
        single = (directory.singles or {}).get(name)
        if asked_at < directory.asked_at or (single is not None and asked_at < single.asked_at):
            return Changes(len(directory.children or ()))
        known = directory.children is not None or single is not None
        old = directory.entry(name)
        node = None
        if answer is not NoObject.ABSENT:
            version = None if isinstance(answer, NoObject) else answer
            node = self._table.entry(directory, repository, name, version, old, self._table.first_sight_ns)
        expires_at = self.lives_until(asked_at, took_s)
        if node is None:
            expires_at = min(expires_at, asked_at + took_s + self._negative_ttl_s)
        self._table.set_single(directory, name, Single(node, asked_at, expires_at))
        if node is not old:
            if directory.children is not None:
                # A new one, lest who goes through the old one stumbles.
                others = {each: child for each, child in directory.children.items() if each != name}
                directory.children = others if node is None else {**others, name: node}
                directory.subdirectories += _is_directory(node) - _is_directory(old)
            if old is not None:
                self._table.unlink(old)
            if known:
                newest_ns = node.mtime_ns if node is not None else 0
                directory.mtime_ns = max(directory.mtime_ns + _MTIME_STEP_NS, newest_ns)
        self._table.fill(directory, now)
        entries = len(directory.children or ())
        if not known or node is old:
            return Changes(entries)
        if old is None:
            return Changes(entries, added=(name,))
        return Changes(entries, removed=(name,)) if node is None else Changes(entries, replaced=(name,))

    def settle(self, repository: str, prefix: str) -> None:
        """What the named repository's directory lists is `prefix` from now on, and what was known of it is to be asked for."""
        directory = self._tops[repository]
        directory.prefix = prefix
        directory.asked_at = directory.expires_at = -math.inf
        self._table.set_singles(directory, {})

    def scatter(self, inode: int) -> None:
        """The directory is huge: what its last listing had is known name by name from now on, and what it lacked is not known.

        Raises NotADirectory, VersionGone.
        """
        directory = self.directory(inode)
        directory.huge = True
        if directory.children is not None:
            self._table.scatter(directory)

    def doubt(self, inode: int) -> tuple[str, ...]:
        """Have all that was learnt name by name in a directory asked for again when it is next used; the names.

        Raises NotADirectory, VersionGone.
        """
        directory = self.directory(inode)
        self._table.doubt_singles(directory)
        return tuple(directory.singles or ())

    def extend_stale(self, inode: int, now: float, retry_s: float, *, name: str | None = None) -> bool:
        """Listing failed, or asking for `name` alone: rather than that, serve what is known for another `retry_s` (at least MIN_RETRY_S).

        That one name cannot be asked for says nothing about the others. An old listing tells what the name was; that it was not there
        then is no answer. False when nothing is known, or all of it from before the directory came back; then the failure is the answer.
        Raises NotADirectory, VersionGone.
        """
        directory = self.directory(inode)
        retry_at = now + max(retry_s, MIN_RETRY_S)
        if name is not None:
            single = (directory.singles or {}).get(name)
            if single is None:
                node = directory.entry(name)
                if node is None or directory.returned:
                    return False
                single = Single(node, directory.asked_at, directory.expires_at)
            if directory.returned and single.expires_at == -math.inf:
                return False
            if single.expires_at < retry_at:
                self._table.set_single(directory, name, replace(single, expires_at=retry_at, stale=True))
        elif directory.children is None or directory.returned:
            return False
        elif directory.expires_at < retry_at:
            directory.expires_at = retry_at
            directory.stale = True
        self._stale_listings += 1
        return True

    def lives_until(self, asked_at: float, took_s: float = 0.0) -> float:
        """Until when a listing that was asked for at `asked_at` and took so long is believed; `asked_at` itself where none ever is."""
        return asked_at + (max(self._metadata_ttl_s, TTL_PER_LISTING * took_s) if self._metadata_ttl_s else 0.0)

    def _children(
        self,
        directory: Directory,
        repository: str,
        listing: DirectoryListing,
        old: Mapping[str, Node | None],
        newer: Mapping[str, Single],
    ) -> dict[str, Node]:
        """The nodes of a listing's entries, those that are known already kept; what is `newer` than it counts instead."""
        # What appears in a directory that was listed before is as new as that reply, even where it had been before.
        first_sight_ns = max(self._table.first_sight_ns, listing.date_ns if directory.children is not None else 0)
        children: dict[str, Node] = {}
        for name, version in listing.entries.items():
            if name not in newer:
                children[name] = self._table.entry(directory, repository, name, version, old.get(name), first_sight_ns)
        children.update((name, single.node) for name, single in newer.items() if single.node is not None)
        return children

    def report(self, repository: str, listing: DirectoryListing) -> tuple[HiddenKey, ...]:
        """Of what a listing cannot show, that which was not reported before; a bounded number over all."""
        new = [h for h in listing.hidden if (repository, h.key) not in self._reported]
        new = new[: HIDDEN_SAMPLE - len(self._reported)]
        self._reported.update(((repository, h.key), h) for h in new)
        return tuple(new)


def _below(node: Node | None, path: str) -> Node | None:
    for name in path.split("/"):
        if name:
            node = node.entry(name) if isinstance(node, Directory) else None
    return node


def _confirmed(single: Single, name: str, listing: DirectoryListing, expires_at: float) -> Single:
    """A newer answer about one name, which lives as long as a listing that says the same."""
    version, node = listing.entries.get(name), single.node
    if isinstance(node, File):
        same = version is not None and version.identity == node.version.identity
    else:
        same = version is None and (name in listing.entries) == (node is not None)
    return replace(single, expires_at=max(single.expires_at, expires_at)) if same else single


def _is_directory(node: Node | None) -> bool:
    return node is not None and node.is_directory
