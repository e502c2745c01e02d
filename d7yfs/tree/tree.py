"""Names, object versions and how long they are believed: the tree of one mount. Pure, synchronous.

Nothing here awaits, so every call is atomic under trio. The caller passes in `now` and `asked_at`
in monotonic seconds; wall-clock values come from listings only.

A directory's entries are known from a listing of all of them, or one by one; the newest question
counts. `inode_table` owns the nodes, their lookup counts and the bound on them. Invariants:

- A file's inode is one version of one object: repository, key, validator and size. The same
  identity keeps its number and first mtime. A directory's inode is its path.
- Every timeout handed out is the *remaining* life of its listing, so that the kernel's staleness
  and ours never add up.
- A directory's mtime never decreases, and changes only when its own entries do.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from d7yfs.errors import NotADirectory
from d7yfs.objects import ObjectVersion
from d7yfs.stats.status import TreeStatus
from d7yfs.tree.inode_table import InodeTable, fingerprint, unknown
from d7yfs.tree.listing import HIDDEN_SAMPLE, Answer, DirectoryListing, HiddenKey, NoObject, name_fault
from d7yfs.tree.nodes import NOTHING_WITHHELD, Absent, Directory, Expired, File, Found, NameChanges, Node, Single
from d7yfs.tree.visibility import NAME

ROOT_INODE = 1
"""FUSE_ROOT_ID in linux/fuse.h."""

MIN_RETRY_S = 1.0
"""The shortest time for which a stale listing is served before its origin is asked again."""

MAX_ENTRIES = 200_000
"""The default bound on known inodes: about 120 MiB with keys of 70 characters."""

_MTIME_STEP_NS = 1000
"""The least change of a directory's mtime: programs compare floats, which resolve 240 ns."""

TTL_PER_LISTING = 25.0
"""The least life of a listing, in multiples of the time it took. A refresh after four fifths of
that keeps listing to a twentieth of the time."""


@dataclass(frozen=True, slots=True)
class TreeRoot:
    """One mounted repository. `prefix` is what to list: "" or "a/b/" for a directory, a key for
    that one object."""

    name: str
    """The top-level directory that shows it; empty when it is the mount's root."""
    prefix: str


class Tree(InodeTable):
    """The names, inodes and their lifetimes of one mount.

    A method that takes the inode of a directory raises NotADirectory and VersionGone.
    """

    def __init__(
        self,
        repositories: Sequence[TreeRoot],
        *,
        metadata_ttl_s: float,
        negative_ttl_s: float,
        created_ns: int,
        max_entries: int = MAX_ENTRIES,
    ) -> None:
        """One unnamed repository is the root itself; named ones are its entries, for ever.

        `metadata_ttl_s` may be 0 (always ask) or infinity. `created_ns`, positive, is the mtime of
        directories at first sight, in nanoseconds since the epoch. `max_entries` bounds the inodes
        known; only remembered ones, and the directory listed last, may exceed it.
        """
        if created_ns <= 0:
            raise ValueError("directories need a positive mtime: Python's import system breaks on others")
        self.metadata_ttl_s = metadata_ttl_s
        self._negative_ttl_s = negative_ttl_s
        super().__init__(max_entries=max_entries, created_ns=created_ns)
        self._reported: set[tuple[str, str]] = set()
        """The hidden keys that were reported, by repository."""
        self._stale_listings = self._stale_answers = 0
        self.applied = Counter[str]()
        """The answers that told something, by repository."""

        names = [repository.name for repository in repositories]
        if names == [""]:
            root = self.add_directory("", repositories[0].prefix, created_ns)
            self._tops = {"": root}
        else:
            if len(set(names)) < len(names) or any(name_fault(name) for name in names):
                raise ValueError(f"repositories need distinct names that can be directories: {names}")
            root = self.add_directory(None, "", created_ns)
            self._tops = {r.name: self.add_directory(r.name, r.prefix, created_ns) for r in repositories}
            root.children = dict(self._tops)
            root.subdirectories = len(names)
            root.expires_at = math.inf
        self.remember(root.inode)  # the kernel knows it without a lookup

    # -- questions

    def directory(self, inode: int) -> Directory:
        """The directory of a number. Raises NotADirectory, VersionGone."""
        node = self.nodes.get(inode)
        if isinstance(node, Directory):
            return node
        if node is None:
            raise unknown(inode)
        raise NotADirectory(f"{node.version.key} is an object, not a directory")

    def parent(self, file: File) -> Directory | None:
        """The directory of which `file` is an entry; None if it is no entry any more."""
        node = self.nodes.get(file.parent) if file.linked else None
        return node if isinstance(node, Directory) else None

    def inodes_of(self, version: ObjectVersion) -> list[int]:
        """The numbers under which `version` is remembered, in any repository. Reads every node."""
        files = (node for node in self.remembered() if isinstance(node, File))
        return [file.inode for file in files if file.version.identity == version.identity]

    def remembered(self) -> list[Node]:
        """The nodes that the kernel or an open handle remembers. Reads every node."""
        return [node for node in self.nodes.values() if node.lookups]

    def lookup(self, parent: int, name: str, now: float, *, asked_at: float | None = None) -> Found | Absent | Expired:
        """The entry `name` of `parent`, from a listing that lives at `asked_at` (default: now).

        A name that was asked for alone since that listing may expire sooner. `asked_at` is when the
        request came in.
        """
        directory = self.directory(parent)
        asked_at = now if asked_at is None else asked_at
        self._touch(directory)
        # A single name is newer than the listing.
        newest = directory if directory.singles is None else directory.singles.get(name, directory)
        if not newest.fresh(asked_at):
            return Expired(directory)
        directory.used_at = now  # only now, so that it counts as use since that listing
        self._stale_answers += newest.stale
        node = directory.entry(name)
        remaining_s = newest.remaining_s(now)
        return Found(node, remaining_s) if node is not None else Absent(min(self._negative_ttl_s, remaining_s))

    def _touch(self, directory: Directory) -> None:
        """Make a directory the most recently used, if any of its entries are known."""
        if directory.inode in self.filled:
            self.filled.move_to_end(directory.inode)

    def listed(self, directory: int, asked_at: float) -> bool:
        """True if `lookup` and `entries` have an answer for this directory.

        For READDIR, `asked_at` is when the directory was opened. So a slow reader needs no second
        listing, and still gets present entries with their present timeout (0 once expired).
        """
        return self.directory(directory).fresh(asked_at)

    def entries(self, directory: int, names: Sequence[str], start: int) -> Iterator[tuple[int, str, Node]]:
        """The index, name and node of the entries that are left of `names` from index `start` on.

        As with `Found`, a caller must remember a node that it tells the kernel.
        """
        node = self.directory(directory)
        self._touch(node)
        self._stale_answers += node.stale
        return (
            (index, names[index], child)
            for index in range(start, len(names))
            if (child := node.entry(names[index])) is not None
        )

    def listed_directories(self, repository: str) -> list[Directory]:
        """The directories of one repository that are listed, fresh or not."""
        filled = self.filled.values()
        return [each for each in filled if each.repository == repository and each.children is not None]

    def resolve(self, path: str) -> Node | None:
        """The node at `path` (relative to the mount) if it is known; asks for nothing."""
        return _below(self.nodes[ROOT_INODE], path)

    def top(self, repository: str) -> Directory:
        """The directory that shows the repository of this name."""
        return self._tops[repository]

    def find_directory(self, repository: str, prefix: str) -> Directory | None:
        """The directory of a prefix at or below the repository's, if it is known."""
        top = self._tops[repository]
        node = _below(top, prefix.removeprefix(top.prefix))
        return node if isinstance(node, Directory) else None

    def above(self, directory: Directory) -> Directory | None:
        """The directory of the same repository that shows this one, if it is known at present."""
        path = directory.prefix.rstrip("/").rpartition("/")[0]
        return self.find_directory(directory.repository or "", f"{path}/" if path else "")

    def known(self, directory: Directory) -> list[Directory]:
        """The directories at and below `directory` with any entries known; parents first."""
        found, pending = [], [directory]
        while pending:
            each = pending.pop()
            if each.inode in self.filled:
                found.append(each)
                pending.extend(child for child in each.entries if isinstance(child, Directory))
        return found

    def find_strays(self, directory: Directory) -> dict[int, list[str]]:
        """The names below `directory` of remembered nodes that are no entries, by the inode of
        their directory.

        Some are gone from the store. Of others the directory was dropped for room, so that no
        listing tells of a change.
        """
        repository = directory.repository or ""
        strays: dict[int, list[str]] = {}
        for node in self.unlinked.values():
            key = node.prefix[:-1] if isinstance(node, Directory) else node.version.key
            if node.repository == repository and key.startswith(directory.prefix):
                path, slash, name = key.rpartition("/")
                parent = node.parent if isinstance(node, File) else 0
                if not parent and (
                    above := self.unlinked.get((repository, path + slash))
                    or self.find_directory(repository, path + slash)
                ):
                    parent = above.inode
                strays.setdefault(parent, []).append(name)
        return {inode: names for inode, names in strays.items() if inode in self.nodes}

    def hidden_by_reason(self, repository: str) -> Counter[str]:
        """The number of entries in listed directories that are hidden, by reason."""
        counts: Counter[str] = Counter()
        for directory in self.listed_directories(repository):
            counts[NAME] += directory.hidden_count
            counts.update(directory.withheld)
        return counts

    def statistics(self) -> TreeStatus:
        """Gauges, then counters since the mount was made."""
        return self.describe(stale_listings=self._stale_listings, stale_answers=self._stale_answers)

    def set_ttls(self, *, metadata_ttl_s: float, negative_ttl_s: float) -> None:
        """Change the lifetimes of listings and absences from now on; known entries keep theirs."""
        self.metadata_ttl_s = metadata_ttl_s
        self._negative_ttl_s = negative_ttl_s

    # -- listings

    def apply(
        self, inode: int, listing: DirectoryListing, now: float, *, asked_at: float, took_s: float = 0.0
    ) -> NameChanges:
        """Make `listing` the entries of a directory. They live for the metadata TTL from
        `asked_at`, or longer if it took long.

        `asked_at` is when its first page was asked for. A listing older than the one applied last
        changes nothing, nor does it change a name that was asked for since.
        """
        directory = self.directory(inode)
        assert directory.prefix == listing.prefix, "a listing of something else"
        if asked_at < directory.asked_at:
            return NameChanges()
        self.applied[directory.repository or ""] += 1
        expires_at = self.lives_until(asked_at, took_s)
        newer = {
            name: single.confirm(name, listing, expires_at)
            for name, single in (directory.singles or {}).items()
            if single.asked_at > asked_at
        }
        known = directory.children is not None
        old = directory.names
        # An entry that appears in a directory listed before is as new as that reply, even if it had
        # been there earlier.
        first_sight_ns = max(self.first_sight_ns, listing.date_ns if known else 0)
        children: dict[str, Node] = {}
        for name, version in listing.entries.items():
            if name not in newer:
                children[name] = self.entry(directory, name, version, old.get(name), first_sight_ns)
            elif (node := newer[name].node) is not None:
                children[name] = node
        children.update((name, single.node) for name, single in newer.items() if single.node is not None)
        dropped = 0 if known else directory.fingerprint
        changed = bool(dropped and dropped != fingerprint(children))
        changes = self._compare(directory, old, children, known=known, changed=changed, date_ns=listing.date_ns)
        directory.show(children)
        directory.stale = False
        directory.asked_at = asked_at
        directory.expires_at = expires_at
        directory.returned = False
        directory.hidden_count = listing.hidden_count
        directory.withheld = listing.withheld or NOTHING_WITHHELD
        if directory.singles:
            self.set_singles(directory, newer)
        if changes or changed or not known:
            self._tell_changed(directory)
        self.fill(directory, now)
        return replace(changes, hidden=self.report_hidden(directory, listing))

    def recall(self, inode: int, listing: DirectoryListing, now: float, *, age_s: float, is_believed: bool) -> None:
        """Make what an earlier mount listed `age_s` ago the entries of a directory.

        They live as if this mount had listed them. If they are not to be believed, they only stand in
        for a listing that fails. So they do with an endless metadata TTL: each mount asks once.
        """
        self.apply(inode, listing, now, asked_at=now - age_s)
        if not is_believed or self.metadata_ttl_s == math.inf:
            self.directory(inode).expires_at = -math.inf

    def apply_name(
        self, inode: int, name: str, answer: Answer, now: float, *, asked_at: float, took_s: float = 0.0
    ) -> NameChanges:
        """Make `answer` the entry `name` of a directory, whether the others are known or not.

        It lives as a listing does; an absence lives for the negative TTL at most. An answer older
        than the known one changes nothing.
        """
        directory = self.directory(inode)
        single = (directory.singles or {}).get(name)
        if asked_at < directory.asked_at or (single is not None and asked_at < single.asked_at):
            return NameChanges()
        known = directory.children is not None or single is not None
        old = directory.entry(name)
        node = None
        if answer is not NoObject.ABSENT:
            version = None if isinstance(answer, NoObject) else answer
            node = self.entry(directory, name, version, old, self.first_sight_ns)
        expires_at = self.lives_until(asked_at, took_s)
        if node is None:
            expires_at = min(expires_at, asked_at + took_s + self._negative_ttl_s)
        self.set_single(directory, name, Single(node, asked_at, expires_at))
        if node is not old and directory.children is not None:
            # A new dict: a reader may be iterating over the old one.
            shown = {**directory.children, name: node}
            directory.show({each: child for each, child in shown.items() if child is not None})
        entries = {} if node is None else {name: node}
        changes = self._compare(directory, {name: old} if known else {}, entries)
        if changes:
            self.applied[directory.repository or ""] += 1
            self._tell_changed(directory)
        self.fill(directory, now)
        return changes

    def _compare(
        self,
        directory: Directory,
        old: Mapping[str, Node | None],
        new: Mapping[str, Node],
        *,
        known: bool = False,
        changed: bool = False,
        date_ns: int = 0,
    ) -> NameChanges:
        """Unlink the `old` nodes that are no entries any more, and return the changes; the
        directory's mtime rises with them, or if `changed`.

        `known`: names that `old` lacks were absent.
        """
        gone = {name: node for name, node in old.items() if node is not None and new.get(name) is not node}
        for node in gone.values():
            self.unlink(node)
        added = tuple(name for name in new if old.get(name) is None and (known or name in old))
        changes = NameChanges(
            added=added,
            removed=tuple(name for name in gone if name not in new),
            replaced=tuple(name for name in gone if name in new),
        )
        if added or gone or changed:
            newest_ns = max((new[name].mtime_ns for name in changes.added + changes.replaced), default=0)
            directory.mtime_ns = max(directory.mtime_ns + _MTIME_STEP_NS, date_ns, newest_ns)
        return changes

    def _tell_changed(self, directory: Directory) -> None:
        if self.ledger is not None:
            self.ledger.changed(directory)

    def relocate(self, repository: str, prefix: str) -> None:
        """Make the repository's directory list `prefix` from now on; its known entries expire."""
        directory = self._tops[repository]
        directory.prefix = prefix
        directory.asked_at = directory.expires_at = -math.inf
        self.set_singles(directory, {})

    def split_listing(self, inode: int) -> None:
        """Make a directory huge: the names of its last listing are known one by one, no others."""
        directory = self.directory(inode)
        directory.huge = True
        if directory.children is not None:
            singles = {
                name: Single(node, directory.asked_at, directory.expires_at, directory.stale)
                for name, node in directory.children.items()
            }
            self._forget_listing(directory)
            self.set_singles(directory, {**singles, **(directory.singles or {})})

    def extend_stale(self, inode: int, now: float, retry_s: float, *, name: str | None = None) -> bool:
        """Serve known entries for another `retry_s` (at least MIN_RETRY_S) after a listing, or the
        request for `name`, failed.

        A name that fails says nothing about the others. An old listing tells what a name was, but
        not that it was absent. False if nothing is known, or only from before the directory came
        back: then the failure is the answer.
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
                self.set_single(directory, name, replace(single, expires_at=retry_at, stale=True))
        elif directory.children is None or directory.returned:
            return False
        elif directory.expires_at < retry_at:
            directory.expires_at = retry_at
            directory.stale = True
        self._stale_listings += 1
        return True

    def lives_until(self, asked_at: float, took_s: float = 0.0) -> float:
        """The end of life of a listing that was asked for at `asked_at` and took `took_s`;
        `asked_at` itself if none lives."""
        return asked_at + (max(self.metadata_ttl_s, TTL_PER_LISTING * took_s) if self.metadata_ttl_s else 0.0)

    def report_hidden(self, directory: Directory, listing: DirectoryListing) -> tuple[HiddenKey, ...]:
        """The keys that a listing cannot show and were not reported yet; a bounded number."""
        repository = directory.repository or ""
        new = [h for h in listing.hidden if (repository, h.key) not in self._reported]
        new = new[: HIDDEN_SAMPLE - len(self._reported)]
        self._reported.update((repository, h.key) for h in new)
        return tuple(new)


def _below(node: Node | None, path: str) -> Node | None:
    for name in path.split("/"):
        if name:
            node = node.entry(name) if isinstance(node, Directory) else None
    return node
