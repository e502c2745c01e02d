"""The inode table: names, object versions, freshness and kernel lookup counts of one mount. Pure and synchronous.

Nothing here awaits, so every call is atomic under trio. There is no clock either: `now` and `asked_at` are monotonic
seconds that the caller passes in; wall-clock values come from listings only. The filesystem layer is the one caller.

Invariants:

- A file's inode is one version of one object: repository, key, validator and size. The same identity keeps its number
  and the modification time it was first seen with; a changed object is another inode. A directory's inode is its path.
- A number is never given out twice. An inode is known while it is an entry of its directory, or remembered: by the
  kernel (lookup counts) or by an open handle. One that is no entry any more and is then forgotten is gone.
- Every timeout handed out is the *remaining* life of the listing it rests on, so that the kernel's staleness and ours
  never add up.
- A directory's modification time never decreases, and changes only when its own entries do.
"""

from __future__ import annotations

import itertools
import math
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from d7yfs.errors import NotADirectory, VersionGone
from d7yfs.inodes import Directory, File, Node
from d7yfs.listing import HIDDEN_SAMPLE, DirectoryListing, HiddenKey, name_fault
from d7yfs.objects import ObjectVersion

ROOT_INODE = 1
"""FUSE_ROOT_ID in linux/fuse.h."""

MIN_RETRY_S = 1.0
"""Shortest time for which a stale listing is served before its origin is asked again."""

MAX_ENTRIES = 200_000
"""Default bound on known inodes: about 120 MiB with keys of 70 characters."""

_MTIME_STEP_NS = 1000
"""The least by which a change raises a directory's mtime: programs compare it as a float, which resolves 240 ns."""


@dataclass(frozen=True, slots=True)
class Repository:
    """One mounted repository. `prefix` is what to list: "" or "a/b/" for a directory, a key for that one object."""

    name: str
    """The top-level directory that shows it; empty when it is the mount's root."""
    prefix: str


@dataclass(frozen=True, slots=True)
class Found:
    """The entry there is. The caller MUST `remember` it, without awaiting in between, if it tells the kernel."""

    node: Node
    entry_timeout_s: float


@dataclass(frozen=True, slots=True)
class Absent:
    """There is no such entry, and the kernel may believe so for `timeout_s`."""

    timeout_s: float


@dataclass(frozen=True, slots=True)
class Expired:
    """List `directory` and `apply` (or `extend_stale`), then ask again with the same `asked_at`."""

    directory: Directory


@dataclass(frozen=True, slots=True)
class Changes:
    """What one listing changed. Names are only given where the directory had been listed before."""

    entries: int
    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    replaced: tuple[str, ...] = ()
    """Same name, another inode: a new version, or a file that became a directory or back."""
    hidden: tuple[HiddenKey, ...] = ()
    """Keys that cannot be shown and were not reported before: for one log line each."""

    def __bool__(self) -> bool:
        return bool(self.added or self.removed or self.replaced)


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
        self._max_entries = max_entries
        self._first_sight_ns = created_ns
        self._numbers = itertools.count(ROOT_INODE)
        self._nodes: dict[int, Node] = {}
        self._unlinked: dict[tuple[str, ...], Node] = {}  # remembered, but no entry at present
        self._listed: OrderedDict[int, Directory] = OrderedDict()  # with known children, least recently used first
        self._reported: dict[tuple[str, str], HiddenKey] = {}
        self._trim_after = 0  # inodes to be added or forgotten before another trim is worth its time
        self._directories = self._held = self._hidden = 0
        self._stale_listings = self._stale_answers = self._dropped = self._unmatched_forgets = 0

        names = [repository.name for repository in repositories]
        if names == [""]:
            root = self._add_directory("", repositories[0].prefix, created_ns)
        else:
            if len(set(names)) < len(names) or any(name_fault(name) for name in names):
                raise ValueError(f"repositories need distinct names that can be directories: {names}")
            root = self._add_directory(None, "", created_ns)
            root.children = {r.name: self._add_directory(r.name, r.prefix, created_ns) for r in repositories}
            root.subdirectories = len(names)
            root.expires_at = math.inf
        self.remember(root.inode)  # the kernel knows it without a lookup

    # -- questions

    def get(self, inode: int) -> Node:
        """The node of a number. Raises VersionGone (ESTALE: the kernel looks the path up again) for an unknown one."""
        node = self._nodes.get(inode)
        if node is None:
            raise VersionGone(f"inode {inode} is not known any more", hint="open the path again")
        return node

    def directory(self, inode: int) -> Directory:
        """The directory of a number. Raises NotADirectory, VersionGone."""
        node = self.get(inode)
        if isinstance(node, Directory):
            return node
        raise NotADirectory(f"{node.version.key} is an object, not a directory")

    def parent(self, file: File) -> Directory | None:
        """The directory that `file` is an entry of; None when it is none any more."""
        node = self._nodes.get(file.parent) if file.linked else None
        return node if isinstance(node, Directory) else None

    def inodes_of(self, version: ObjectVersion) -> list[int]:
        """The numbers under which `version` is remembered, in whatever repository. Looks at every node."""
        return [
            node.inode
            for node in self._nodes.values()
            if isinstance(node, File) and node.lookups and node.version.identity == version.identity
        ]

    def remembered(self) -> list[Node]:
        """What the kernel or an open handle remembers. Looks at every node."""
        return [node for node in self._nodes.values() if node.lookups]

    def lookup(self, parent: int, name: str, now: float, *, asked_at: float | None = None) -> Found | Absent | Expired:
        """The entry `name` of the directory `parent`; answered from a listing that lives at `asked_at` (default: now).

        `asked_at` is when the request came in. Raises NotADirectory, VersionGone.
        """
        directory = self.directory(parent)
        if not directory.fresh(now if asked_at is None else asked_at):
            return Expired(directory)
        assert directory.children is not None
        self._touch(directory)
        self._stale_answers += directory.stale
        node = directory.children.get(name)
        if node is None:
            return Absent(min(self._negative_ttl_s, directory.remaining_s(now)))
        return Found(node, directory.remaining_s(now))

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
        self._touch(node)
        return tuple(node.children or ())

    def entries(self, directory: int, names: Sequence[str], start: int) -> Iterator[tuple[int, str, Node]]:
        """Index, name and node of those of `names` from index `start` on that the directory has at present.

        What holds for `Found` holds for each node. Raises NotADirectory, VersionGone.
        """
        node = self.directory(directory)
        self._touch(node)
        self._stale_answers += node.stale
        children = node.children or {}
        return (
            (index, names[index], child)
            for index in range(start, len(names))
            if (child := children.get(names[index])) is not None
        )

    def resolve(self, path: str) -> Node | None:
        """The node at `path` (relative to the mount) if it is known at present; asks for nothing, refreshes nothing."""
        node: Node | None = self._nodes[ROOT_INODE]
        for name in path.split("/"):
            if name:
                node = (node.children or {}).get(name) if isinstance(node, Directory) else None
        return node

    def hidden(self) -> tuple[tuple[str, HiddenKey], ...]:
        """A bounded sample of what could not be shown since the mount was made: repository and key."""
        return tuple((repository, hidden) for (repository, _), hidden in self._reported.items())

    def statistics(self) -> dict[str, int]:
        """Gauges, then counters since the mount was made."""
        return {
            "inodes": len(self._nodes),
            "inodes_limit": self._max_entries,
            "directories": self._directories,
            "directories_listed": len(self._listed),
            "files": len(self._nodes) - self._directories,
            "remembered": self._held,
            "unlinked": len(self._unlinked),
            "hidden_keys": self._hidden,
            "stale_listings_total": self._stale_listings,
            "stale_answers_total": self._stale_answers,
            "dropped_inodes_total": self._dropped,
            "unmatched_forgets_total": self._unmatched_forgets,
        }

    def set_ttls(self, *, metadata_ttl_s: float, negative_ttl_s: float) -> None:
        """For listings and absences from now on; what is known keeps its time."""
        self._metadata_ttl_s = metadata_ttl_s
        self._negative_ttl_s = negative_ttl_s

    # -- lookup counts

    def remember(self, inode: int, count: int = 1) -> None:
        """Keep an inode: one for every entry told to the kernel, and one for every open handle. Raises VersionGone."""
        node = self.get(inode)
        self._held += not node.lookups
        node.lookups += count

    def forget(self, inode: int, count: int = 1) -> None:
        """Take back `count`. What is neither remembered nor an entry is gone; forgetting too much is counted, not raised."""
        node = self._nodes.get(inode)
        if node is None or node.lookups < count:
            self._unmatched_forgets += 1
        if node is None or not node.lookups:
            return
        node.lookups = max(node.lookups - count, 0)
        if not node.lookups:
            self._held -= 1
            self._trim_after -= 1
            if not node.linked:
                del self._unlinked[node.identity]
                self._unlink(node)

    # -- listings

    def apply(self, inode: int, listing: DirectoryListing, now: float, *, asked_at: float) -> Changes:
        """Make `listing` the entries of a directory; they live for the metadata TTL from `asked_at`.

        `asked_at` is when its first page was asked for: what the origin said is no newer. A listing older than the one
        applied last changes nothing. Raises NotADirectory, VersionGone.
        """
        directory = self.directory(inode)
        assert directory.prefix == listing.prefix, "a listing of something else"
        repository = directory.repository
        assert repository is not None, "the root above repositories has no origin"
        old = directory.children
        if asked_at < directory.asked_at:
            return Changes(len(old or ()))
        children, subdirectories = self._children(directory, repository, listing)
        if old is None:
            added, removed, replaced = [], [], []
            changed = bool(directory.fingerprint) and directory.fingerprint != _fingerprint(children)
        else:
            added = [name for name in children if name not in old]
            removed = [name for name in old if name not in children]
            replaced = [name for name, node in old.items() if children.get(name, node) is not node]
            changed = bool(added or removed or replaced)
            for name in itertools.chain(removed, replaced):
                self._unlink(old[name])
        if changed:
            newest_ns = max((children[name].mtime_ns for name in itertools.chain(added, replaced)), default=0)
            directory.mtime_ns = max(directory.mtime_ns + _MTIME_STEP_NS, listing.date_ns, newest_ns)

        directory.children = children
        directory.subdirectories = subdirectories
        directory.stale = False
        directory.asked_at = asked_at
        directory.expires_at = asked_at + self._metadata_ttl_s
        self._hidden += listing.hidden_count - directory.hidden_count
        directory.hidden_count = listing.hidden_count
        self._listed[inode] = directory
        self._touch(directory)
        self._trim(now, directory)
        return Changes(len(children), tuple(added), tuple(removed), tuple(replaced), self._report(repository, listing))

    def settle(self, repository: str, prefix: str) -> None:
        """What the named repository's directory lists is `prefix` from now on, and what was known of it is to be asked for."""
        directory = (self.directory(ROOT_INODE).children or {})[repository]
        assert isinstance(directory, Directory)
        directory.prefix = prefix
        directory.expires_at = -math.inf

    def extend_stale(self, inode: int, now: float, retry_s: float) -> bool:
        """Listing failed: serve what is known for another `retry_s` (at least MIN_RETRY_S) rather than an error.

        False when nothing is known; then the failure is the answer. Raises NotADirectory, VersionGone.
        """
        directory = self.directory(inode)
        if directory.children is None:
            return False
        self._stale_listings += 1
        retry_at = now + max(retry_s, MIN_RETRY_S)
        if directory.expires_at < retry_at:
            directory.expires_at = retry_at
            directory.stale = True
        return True

    def _children(
        self, directory: Directory, repository: str, listing: DirectoryListing
    ) -> tuple[dict[str, Node], int]:
        """The nodes of a listing's entries, those that are known already kept, and how many of them are directories."""
        old = directory.children or {}
        # What appears in a directory that was listed before is as new as that reply, even where it had been before.
        first_sight_ns = max(self._first_sight_ns, listing.date_ns if directory.children is not None else 0)
        children: dict[str, Node] = {}
        subdirectories = 0
        for name, version in listing.entries.items():
            node = old.get(name)
            if version is None:
                subdirectories += 1
                if not isinstance(node, Directory):
                    prefix = f"{directory.prefix}{name}/"
                    node = self._relink((repository, prefix)) or self._add_directory(repository, prefix, first_sight_ns)
            else:
                if not isinstance(node, File) or node.version.identity != version.identity:
                    key, validator, size_bytes = version.identity
                    node = self._relink((repository, key, validator, str(size_bytes)))
                if isinstance(node, File):
                    node.parent = directory.inode
                    # Restored from the archive, or moved there: the same bytes, and so the same inode.
                    if node.version.archived != version.archived:
                        node.version = replace(node.version, archived=version.archived)
                else:
                    node = self._add(File(next(self._numbers), repository, version, directory.inode))
            children[name] = node
        return children, subdirectories

    def _report(self, repository: str, listing: DirectoryListing) -> tuple[HiddenKey, ...]:
        new = [h for h in listing.hidden if (repository, h.key) not in self._reported]
        new = new[: HIDDEN_SAMPLE - len(self._reported)]
        self._reported.update(((repository, h.key), h) for h in new)
        return tuple(new)

    # -- nodes come and go

    def _add(self, node: File) -> File:
        self._nodes[node.inode] = node
        self._trim_after -= 1
        return node

    def _add_directory(self, repository: str | None, prefix: str, mtime_ns: int) -> Directory:
        directory = Directory(next(self._numbers), repository, prefix, mtime_ns)
        self._nodes[directory.inode] = directory
        self._directories += 1
        self._trim_after -= 1
        return directory

    def _relink(self, identity: tuple[str, ...]) -> Node | None:
        """The remembered node of this identity that was no entry, which it is now again."""
        node = self._unlinked.pop(identity, None)
        if node is not None:
            node.linked = True
        return node

    def _unlink(self, node: Node) -> None:
        """`node` is no entry any more: keep it aside while it is remembered, else remove it and all below it."""
        pending = [node]
        while pending:
            node = pending.pop()
            node.linked = False
            if node.lookups:
                self._unlinked[node.identity] = node
                continue
            del self._nodes[node.inode]
            if isinstance(node, Directory):
                self._directories -= 1
                # Should its path come back, then not with an earlier mtime.
                self._first_sight_ns = max(self._first_sight_ns, node.mtime_ns)
                pending.extend(self._clear(node))

    def _clear(self, directory: Directory) -> list[Node]:
        """Make a directory unlisted; its former children, still to be unlinked."""
        children = list((directory.children or {}).values())
        self._hidden -= directory.hidden_count
        self._listed.pop(directory.inode, None)
        directory.children = None
        directory.hidden_count = 0
        directory.expires_at = -math.inf
        directory.stale = False
        return children

    def _touch(self, directory: Directory) -> None:
        if directory.inode in self._listed:
            self._listed.move_to_end(directory.inode)

    def _trim(self, now: float, keep: Directory) -> None:
        """Drop the entries of least recently used directories down to the bound: expired ones first, then live ones.

        A dropped directory is listed again when it is next used. One whose children are mostly remembered is left alone
        (little memory to gain) and counts as used. When that leaves too much, another pass waits until an eighth of all
        inodes has been added or forgotten, so that passes cost a constant time per inode.
        """
        if self._trim_after > 0:
            return
        for expired_only in (True, False):
            for directory in list(self._listed.values()):
                if len(self._nodes) <= self._max_entries:
                    return
                if directory.children is None or (expired_only and directory.expires_at > now):
                    continue
                # What was just listed must stay, and so must what alone keeps it known: the directories above it.
                if directory is keep or (not keep.lookups and _above(directory, keep)):
                    continue
                remembered = sum(1 for child in directory.children.values() if child.lookups)
                if 2 * remembered >= len(directory.children):
                    self._touch(directory)
                    continue
                directory.fingerprint = _fingerprint(directory.children)
                before = len(self._nodes)
                for child in self._clear(directory):
                    self._unlink(child)
                self._dropped += before - len(self._nodes)
        self._trim_after = len(self._nodes) // 8


def _above(directory: Directory, other: Directory) -> bool:
    return directory.repository == other.repository and other.prefix.startswith(directory.prefix)


def _fingerprint(children: dict[str, Node]) -> int:
    """Tells whether dropped entries were still the same when they are listed again; never 0."""
    return hash(frozenset((name, *node.identity) for name, node in children.items())) or 1
