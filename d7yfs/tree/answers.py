"""What the tree answers: an entry, that there is none, that its directory must be listed first, and what a listing changed. Pure.

Plain frozen values. `tree` makes them; who asks it (`filesystem`, `lister` and what they are made of) reads them and passes them on.
"""

from __future__ import annotations

from dataclasses import dataclass

from d7yfs.tree.listing import HiddenKey
from d7yfs.tree.nodes import Directory, Node


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
