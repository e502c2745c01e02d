"""A directory that no other user can change: made, or checked and closed to others.

Whoever can write to the cache directory can put files in place of ours, and whoever can replace a
link to it can lead us elsewhere. So both are refused.

Used by `CacheDirectory`.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Collection
from pathlib import Path

from d7yfs.errors import CacheUnusable

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def prepare(path: Path, ours: Collection[str] | None = None) -> None:
    """Make the directory `path` (0700), or check that only this user can change it.

    It is closed to others unless it holds more than the names `ours` (None: any name): closing it
    could break the users of the rest. Raises CacheUnusable if another user can change it, and
    OSError.
    """
    follow = 0 if _is_safe_link(path) else os.O_NOFOLLOW
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | follow)
    try:
        _close_to_others(path, fd, ours)
    finally:
        os.close(fd)


def _is_safe_link(path: Path) -> bool:
    """True if `path` is a link that no other user can replace. Raises CacheUnusable if one can."""
    if not path.is_symlink():
        return False
    above = path.absolute().parent.stat()
    if above.st_uid not in (0, os.geteuid()) or above.st_mode & _OTHERS_WRITE:
        raise CacheUnusable(
            f"cache directory {path} is a link, in a directory that others can write: it is not followed",
            hint="name the directory itself with --cache-dir",
        )
    return True


def _close_to_others(path: Path, fd: int, ours: Collection[str] | None) -> None:
    found = os.fstat(fd)
    if found.st_uid != os.geteuid():
        raise CacheUnusable(
            f"cache directory {path} belongs to uid {found.st_uid}, not to uid {os.geteuid()} that runs d7yfs",
            hint="name another with --cache-dir, or change its owner",
        )
    others_write = found.st_mode & _OTHERS_WRITE
    if ours is None or set(os.listdir(fd)) <= set(ours):
        if found.st_mode & 0o077:
            os.fchmod(fd, stat.S_IMODE(found.st_mode) & 0o700)
        # Until now others could make entries, of our names too.
        if others_write and not all(_is_own(name, fd, ours) for name in os.listdir(fd)):
            raise CacheUnusable(
                f"cache directory {path} was open to others, and holds what another user has made",
                hint="delete it, or name another with --cache-dir",
            )
    elif others_write:
        raise CacheUnusable(
            f"cache directory {path} can be written by others (mode {stat.S_IMODE(found.st_mode):o})",
            hint="name a directory of its own with --cache-dir, or chmod go-w",
        )


def _is_own(name: str, fd: int, ours: Collection[str] | None) -> bool:
    return (ours is None or name in ours) and os.lstat(name, dir_fd=fd).st_uid == os.geteuid()
