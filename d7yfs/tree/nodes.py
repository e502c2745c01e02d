"""The nodes that inode numbers stand for, and the tree's answers about a name. Pure.

A `File` is one version of one object, a `Directory` a path; only `tree.Tree` makes and changes
them. Answers are values: an entry, no entry, a directory to be listed first, and the changes of a
listing. Those that each lookup makes are not frozen, which would take three times as long.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import ClassVar, TypeAlias

from d7yfs.objects import ObjectVersion
from d7yfs.tree.listing import DirectoryListing, HiddenKey

FOREVER_S = 365 * 86400.0
"""The longest timeout that the kernel is given; its arithmetic has no infinity."""

LEARNT_S = 1.0
"""The time for which the kernel may keep the attributes of a directory whose names are learnt one
by one. Without it the kernel asks at each name."""

NOTHING_WITHHELD: Mapping[str, int] = MappingProxyType({})


@dataclass(slots=True, eq=False, repr=False)
class File:
    """One version of one object. `version` may change, but not its identity, size or mtime."""

    inode: int
    repository: str
    version: ObjectVersion
    parent: int
    """The inode of its present or last directory."""
    lookups: int = 0
    """The number of references by the kernel and open handles."""
    linked: bool = True
    """True if it is an entry of its directory at present."""

    is_directory: ClassVar = False
    nlink: ClassVar = 1

    @property
    def size_bytes(self) -> int:
        return self.version.size_bytes

    @property
    def mtime_ns(self) -> int:
        return self.version.mtime_ns

    @property
    def identity(self) -> tuple[str | int, ...]:
        """The repository, key, validator and size."""
        return (self.repository, *self.version.identity)

    def attributes_timeout_s(self, now: float) -> float:  # noqa: ARG002 - a file's attributes never change
        """The seconds for which the kernel may keep the attributes."""
        return FOREVER_S


@dataclass(frozen=True, slots=True)
class Single:
    """The answer about one name that was asked for alone."""

    node: Node | None
    """None: there was nothing of that name. The directory's `children` then lack it too, if they
    are known."""
    asked_at: float
    expires_at: float
    stale: bool = False
    """True if it lives on only because asking again failed."""

    def fresh(self, asked_at: float) -> bool:
        """See `Directory.fresh`."""
        return asked_at < self.expires_at or asked_at <= self.asked_at

    def remaining_s(self, now: float) -> float:
        """See `Directory.remaining_s`."""
        return min(max(self.expires_at - now, 0.0), FOREVER_S)

    def confirm(self, name: str, listing: DirectoryListing, expires_at: float) -> Single:
        """This answer; it lives until `expires_at` if a listing older than it says the same."""
        version, node = listing.entries.get(name), self.node
        if isinstance(node, File):
            same = version is not None and version.identity == node.version.identity
        else:
            same = version is None and (name in listing.entries) == (node is not None)
        return replace(self, expires_at=max(self.expires_at, expires_at)) if same else self


@dataclass(slots=True, eq=False, repr=False, weakref_slot=True)
class Directory:
    """One directory; `children` is None while it is not listed."""

    inode: int
    repository: str | None
    """The name of the repository; None only for the fixed root above named repositories, which
    has no origin."""
    prefix: str
    """The prefix to list: a key prefix with its final slash, "" at a bucket's top, or the key
    of a lone object."""
    mtime_ns: int
    children: dict[str, Node] | None = None
    singles: dict[str, Single] | None = None
    """The names that were learnt one by one, the oldest first; with or without a listing."""
    huge: bool = False
    """True if it has more entries than are kept: it is never listed whole, and each name is
    asked for."""
    used_at: float = -math.inf
    """When a reader last asked for an entry of it, or for its attributes."""
    asked_at: float = -math.inf
    """When the newest listing applied here was asked for."""
    expires_at: float = -math.inf
    stale: bool = False
    """True if it lives on only because listing it again failed."""
    subdirectories: int = 0
    hidden_count: int = 0
    withheld: Mapping[str, int] = field(default_factory=lambda: NOTHING_WITHHELD)
    """The number of entries that settings hide, by reason."""
    fingerprint: int = 0
    """A fingerprint of the children dropped last, 0 when none were: the next listing shows
    whether they changed."""
    kernel_listing_ns: int = 0
    """`mtime_ns` of the entries that the kernel was last allowed to cache as a whole; 0 for none."""
    lookups: int = 0
    linked: bool = True
    vanished: bool = False
    """True if the store had it no more. When it is back, nothing known of it counts."""
    returned: bool = False
    """True if it is back, and not listed since: its earlier children are no answer, even if
    there is no other."""

    is_directory: ClassVar = True
    size_bytes: ClassVar = 0

    @property
    def nlink(self) -> int:
        """2 + subdirectories; 1 while they are unknown, which tells find(1) and fts(3) not to count
        on it."""
        return 1 if self.children is None else 2 + self.subdirectories

    @property
    def is_lone(self) -> bool:
        """True if it shows one object, whose key is its prefix."""
        return bool(self.prefix) and not self.prefix.endswith("/")

    @property
    def identity(self) -> tuple[str, ...]:
        """The repository and prefix."""
        return (self.repository or "", self.prefix)

    def entry(self, name: str) -> Node | None:
        """The node known under `name`, fresh or not."""
        if self.children is not None:
            return self.children.get(name)
        single = self.singles.get(name) if self.singles is not None else None
        return single.node if single is not None else None

    @property
    def names(self) -> Mapping[str, Node | None]:
        """The node known under each name, all or some, fresh or not; None is an absence."""
        if self.children is not None:
            return self.children
        return {name: single.node for name, single in (self.singles or {}).items()}

    @property
    def entries(self) -> list[Node]:
        """The nodes known to be in it, all or some, fresh or not."""
        return [node for node in self.names.values() if node is not None]

    def show(self, children: dict[str, Node]) -> None:
        """Make these its children, in the order of their keys, in which a directory's ends in a slash.

        So their order does not tell how they were listed: in a flat listing objects and directories are
        mixed, and a listing of the directory alone has objects first.
        """
        keys = [f"{name}/" if node.is_directory else name for name, node in children.items()]
        if keys != (in_order := sorted(keys)):
            children = {name: children[name] for name in (key.removesuffix("/") for key in in_order)}
        self.children = children
        self.subdirectories = sum(1 for node in children.values() if node.is_directory)

    def fresh(self, asked_at: float) -> bool:
        """True if the known entries answer a question asked at `asked_at`.

        They do until they expire, and also when they were listed after the question. So a request
        always ends with the listing made for it, whatever the time to live and however long that
        listing took.
        """
        return self.children is not None and (asked_at < self.expires_at or asked_at <= self.asked_at)

    def remaining_s(self, now: float) -> float:
        """The seconds until the known entries expire."""
        return min(max(self.expires_at - now, 0.0), FOREVER_S)

    def prolong(self, asked_at: float, expires_at: float, now: float) -> bool:
        """True if the entries are those of the question of `asked_at`, and live: they do until
        `expires_at` from now on, if that is later."""
        if self.children is None or self.stale or asked_at != self.asked_at or now >= self.expires_at:
            return False
        self.expires_at = max(self.expires_at, expires_at)
        return True

    def attributes_timeout_s(self, now: float) -> float:
        """The seconds for which the kernel may keep the attributes: as long as the directory's
        listing lives.

        Where names are learnt one by one there is no listing. Then only new answers change the
        attributes, and the kernel is told.
        """
        if self.children is None and self.singles is not None:
            return LEARNT_S
        return self.remaining_s(now)


Node: TypeAlias = File | Directory


@dataclass(slots=True)
class Found:
    """The entry that exists. A caller that tells the kernel MUST `remember` it, without awaiting in
    between."""

    node: Node
    entry_timeout_s: float


@dataclass(slots=True)
class Absent:
    """The absence of an entry, which the kernel may believe for `timeout_s`."""

    timeout_s: float


@dataclass(slots=True)
class Expired:
    """A directory to be listed first (`apply` or `extend_stale`); then ask again with the same
    `asked_at`."""

    directory: Directory


@dataclass(frozen=True, slots=True)
class NameChanges:
    """The changes of one listing. Names are only given if the directory was listed before."""

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    replaced: tuple[str, ...] = ()
    """Same name, another inode: a new version, or a file that became a directory or back."""
    hidden: tuple[HiddenKey, ...] = ()
    """The keys that cannot be shown and were not reported before, each for one log line."""

    def __bool__(self) -> bool:
        return bool(self.added or self.removed or self.replaced)
