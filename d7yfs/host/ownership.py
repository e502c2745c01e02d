"""Judges the owner and the mode of a path: could another user have made it, or can one change it?
Pure.

One rule for settings, sockets and the cache. Each caller says where it differs, and why: the
parameters of `find_fault`.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Collection

WRITE = 0o022
"""Denied for a path whose content counts."""
ANYTHING = 0o077
"""Denied for a directory of sockets: who enters it can connect."""
NOTHING = 0
"""Denied for a path that is only to be deleted."""


def find_fault(
    found: os.stat_result,
    owners: Collection[int],
    *,
    kind: int = stat.S_IFDIR,
    denied: int = WRITE,
    groups: Collection[int] = (),
    sticky: bool = False,
) -> str:
    """The reason to distrust a path, in words that follow its name; empty if there is none.

    `found` is from lstat(2) or from a descriptor, so that no link is followed. `owners` are uids.

    - `kind` is the type of file that it must be.
    - `denied` are the permissions that no other user may have.
    - `groups` are trusted as the owners are: an editor under umask 002 leaves files writable to a
      user's own group, which has often no other member. d7yfs leaves none so.
    - `sticky` is for directories above: with that bit (1777) others can make entries, but cannot
      replace one of the owners'.
    """
    if stat.S_IFMT(found.st_mode) != kind:
        return "is a link, or no directory" if kind == stat.S_IFDIR else "is no regular file"
    if found.st_uid not in owners:
        return f"belongs to another user (uid {found.st_uid})"
    if found.st_gid in groups:
        denied &= ~stat.S_IRWXG
    if found.st_mode & denied and not (sticky and found.st_mode & stat.S_ISVTX):
        done = "written" if found.st_mode & denied & WRITE else "entered"
        return f"can be {done} by other users (mode {stat.S_IMODE(found.st_mode):o})"
    return ""
