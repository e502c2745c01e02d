"""What an inode number stands for: a `File` is one version of one object, a `Directory` a path. Pure.

Plain records. `tree.Tree` makes them and is alone in changing them; everybody else reads.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TypeAlias

from d7yfs.objects import ObjectVersion

FOREVER_S = 365 * 86400.0
"""The longest timeout handed out; the kernel's own arithmetic has no infinity."""

LEARNT_S = 1.0
"""For this time the kernel may keep the attributes of a directory whose names are learnt one by one, lest it asks at each of them."""

NOTHING_WITHHELD: Mapping[str, int] = MappingProxyType({})


class File:
    """One version of one object. `version` may be refreshed, but never its identity, size or mtime."""

    __slots__ = ("inode", "linked", "lookups", "parent", "repository", "version")

    is_directory = False
    nlink = 1

    def __init__(self, inode: int, repository: str, version: ObjectVersion, parent: int) -> None:
        self.inode = inode
        self.parent = parent
        """Inode of the directory that it is an entry of, or was last."""
        self.repository = repository
        self.version = version
        self.lookups = 0
        """How often the kernel and open handles remember it."""
        self.linked = True
        """Whether it is an entry of its directory at present."""

    @property
    def size_bytes(self) -> int:
        return self.version.size_bytes

    @property
    def mtime_ns(self) -> int:
        return self.version.mtime_ns

    @property
    def identity(self) -> tuple[str, ...]:
        """What the number stands for."""
        key, validator, size_bytes = self.version.identity
        return (self.repository, key, validator, str(size_bytes))

    def attributes_timeout_s(self, now: float) -> float:  # noqa: ARG002 - a file's attributes never change
        """For how many seconds the kernel may keep the attributes."""
        return FOREVER_S


@dataclass(frozen=True, slots=True)
class Single:
    """What one name was when it was asked for alone."""

    node: Node | None
    """None: there was nothing of that name. Where its directory's `children` are known they say the same, for a time of their own."""
    asked_at: float
    expires_at: float
    stale: bool = False
    """Whether it lives on only because asking again failed."""

    def fresh(self, asked_at: float) -> bool:
        """As `Directory.fresh`."""
        return asked_at < self.expires_at or asked_at <= self.asked_at

    def remaining_s(self, now: float) -> float:
        """As `Directory.remaining_s`."""
        return min(max(self.expires_at - now, 0.0), FOREVER_S)


class Directory:
    """One directory, listed or not (yet, or any more): then `children` is None."""

    __slots__ = (
        "__weakref__",
        "asked_at",
        "children",
        "expires_at",
        "fingerprint",
        "hidden_count",
        "huge",
        "inode",
        "linked",
        "lookups",
        "mtime_ns",
        "prefix",
        "repository",
        "returned",
        "singles",
        "stale",
        "subdirectories",
        "used_at",
        "vanished",
        "withheld",
    )

    is_directory = True
    size_bytes = 0

    def __init__(self, inode: int, repository: str | None, prefix: str, mtime_ns: int) -> None:
        self.inode = inode
        self.repository = repository
        """Name of the repository; None only for the fixed root above named repositories, which has no origin to ask."""
        self.prefix = prefix
        """What to list: the whole key prefix with its final slash, "" at a bucket's top, or the key of a lone object."""
        self.mtime_ns = mtime_ns
        self.children: dict[str, Node] | None = None
        self.singles: dict[str, Single] | None = None
        """Names that were learnt one by one, the oldest first: beside or after the last whole listing, or without any."""
        self.huge = False
        """Whether it has more entries than are kept: it is never listed whole, and each name is asked for."""
        self.used_at = -math.inf
        """When somebody last asked for something in it, or for its attributes."""
        self.asked_at = -math.inf
        """When the newest listing applied here was asked for."""
        self.expires_at = -math.inf
        self.stale = False
        """Whether it lives on only because listing it again failed."""
        self.subdirectories = 0
        self.hidden_count = 0
        self.withheld: Mapping[str, int] = NOTHING_WITHHELD
        """How many entries settings hide, by reason."""
        self.fingerprint = 0
        """Of the children dropped last, 0 when none were: tells whether the next listing shows a change."""
        self.lookups = 0
        self.linked = True
        self.vanished = False
        """Whether it was found to be gone. When it is back, nothing that was known of it counts."""
        self.returned = False
        """Whether it is back, and not listed since: what its children were is no answer, be there no other."""

    @property
    def nlink(self) -> int:
        """2 + subdirectories; 1 while they are unknown, which tells find(1) and fts(3) not to count on it."""
        return 1 if self.children is None else 2 + self.subdirectories

    @property
    def identity(self) -> tuple[str, ...]:
        """What the number stands for."""
        return (self.repository or "", self.prefix)

    def entry(self, name: str) -> Node | None:
        """What is known under `name`, fresh or not."""
        if self.children is not None:
            return self.children.get(name)
        single = self.singles.get(name) if self.singles is not None else None
        return single.node if single is not None else None

    @property
    def entries(self) -> list[Node]:
        """What is known to be in it, all or some, fresh or not."""
        if self.children is not None:
            return list(self.children.values())
        return [single.node for single in (self.singles or {}).values() if single.node is not None]

    def fresh(self, asked_at: float) -> bool:
        """Whether the known entries answer a question asked at `asked_at`.

        They do while they live, and also when they were listed after the question: so a request always ends with the
        listing made for it, whatever the time to live and however long that listing took.
        """
        return self.children is not None and (asked_at < self.expires_at or asked_at <= self.asked_at)

    def remaining_s(self, now: float) -> float:
        """How long the known entries live on, in seconds."""
        return min(max(self.expires_at - now, 0.0), FOREVER_S)

    def attributes_timeout_s(self, now: float) -> float:
        """For how many seconds the kernel may keep the attributes: they rest on the directory's own listing.

        Where names are learnt one by one there is none, and only what we learn changes them, of which the kernel is told.
        """
        if self.children is None and self.singles is not None:
            return LEARNT_S
        return self.remaining_s(now)


Node: TypeAlias = File | Directory
