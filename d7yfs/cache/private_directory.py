"""A directory that no other user can change: made, or checked and closed to others.

Whoever can write to the cache directory can put files in place of ours, and whoever can replace a
link to it can lead us elsewhere. So both are refused.

Used by `CacheDirectory`, and by the command line for a cache of `--worker-user`.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Collection
from pathlib import Path

from d7yfs.errors import CacheUnusable
from d7yfs.host.ownership import ANYTHING, find_fault


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


def make_for(path: Path, uid: int, gid: int) -> None:
    """Make the directory `path` (0700) for another user; one that exists must be this user's. For root.
    Raises CacheUnusable."""
    try:
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        try:
            path.mkdir(mode=0o700)
        except FileExistsError:
            if (owner := path.stat().st_uid) != uid:
                raise CacheUnusable(
                    f"{path} belongs to uid {owner}, and --worker-user is uid {uid}",
                    hint=f"delete it, give it to that user (chown -R {uid}:{gid} {path}), or name another one",
                ) from None
            return
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            os.fchown(fd, uid, gid)
        finally:
            os.close(fd)
    except OSError as error:
        raise CacheUnusable(f"{path} cannot be made for uid {uid}: {error.strerror}") from error


def _is_safe_link(path: Path) -> bool:
    """True if `path` is a link that no other user can replace. Raises CacheUnusable if one can."""
    if not path.is_symlink():
        return False
    above = path.absolute().parent
    if fault := find_fault(above.stat(), (0, os.geteuid())):
        raise CacheUnusable(
            f"cache directory {path} is a link that is not followed: {above} {fault}",
            hint="name the directory itself with --cache-dir",
        )
    return True


def _close_to_others(path: Path, fd: int, ours: Collection[str] | None) -> None:
    found, uid = os.fstat(fd), os.geteuid()
    fault = find_fault(found, (uid,))
    if found.st_uid == uid and (ours is None or set(os.listdir(fd)) <= set(ours)):
        if found.st_mode & ANYTHING:
            os.fchmod(fd, stat.S_IMODE(found.st_mode) & 0o700)
        # Until now others could make entries, of our names too.
        if fault and all(_is_own(name, fd, ours) for name in os.listdir(fd)):
            fault = ""
        elif fault:
            fault = "was open to others, and holds what another user has made"
    if fault:
        raise CacheUnusable(
            f"cache directory {path} {fault}",
            hint=f"name another with --cache-dir, or delete it; only uid {uid}, which runs d7yfs, may write there",
        )


def _is_own(name: str, fd: int, ours: Collection[str] | None) -> bool:
    return (ours is None or name in ours) and os.lstat(name, dir_fd=fd).st_uid == os.geteuid()
