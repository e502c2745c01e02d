"""Reading files of settings and keys that another user of the host may have made.

Owns the limits on such a file: a regular file of at most 1 MiB, opened without waiting, so that
neither a FIFO nor a device can stop the daemon or fill its memory. Owns also the question whether a
file at a default place counts, which nobody has named: a daemon of root's must not take a
credential or a proxy from a local user.

Called by the readers of each format.
"""

from __future__ import annotations

import logging
import os
import stat
from pathlib import Path

from d7yfs.errors import ConfigError

log = logging.getLogger(__name__)

LIMIT_BYTES = 1 << 20


def read_file(path: Path) -> bytes:
    """The content of a regular file of at most `LIMIT_BYTES`; links are followed.

    Raises OSError, and ConfigError for another kind of file, or for one that is too large.
    """
    # O_NONBLOCK: a FIFO without a writer would block the open.
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode):
            raise ConfigError(f"{path} is no regular file", hint="name a file with the settings or keys in it")
        content = file.read(LIMIT_BYTES + 1)
    if len(content) > LIMIT_BYTES:
        raise ConfigError(
            f"{path} is larger than {LIMIT_BYTES >> 20} MiB", hint="name a file with the settings or keys in it"
        )
    return content


def exposure(path: Path, *, secret: bool) -> str:
    """The risk of a file that was named, in words: others can write it, or read its secrets.

    Empty if there is none, or if the file cannot be asked.
    """
    try:
        mode = path.stat().st_mode
    except OSError:
        return ""
    if mode & stat.S_IWOTH:
        return f"{path} can be written by every user of this host; chmod o-w it"
    if secret and mode & stat.S_IROTH:
        return f"{path} holds credentials that every user of this host can read; chmod o-r it"
    return ""


def distrust(path: Path) -> str:
    """The reason why a file at a default place does not count; empty if it does, or if it is absent.

    It counts if it is a regular file that belongs to root or to the user of this process, in a
    directory that does, too, and if no one else may write either of them. No directory above may
    let others replace what lies in it. No link is followed on the way.
    """
    owners = {0, os.geteuid()}
    try:
        for directory in reversed(path.parents):
            found = directory.lstat()
            if not stat.S_ISDIR(found.st_mode):
                return f"{directory} is a link, or no directory"
            if found.st_uid not in owners:
                return f"{directory} belongs to another user"
            # In a directory with the sticky bit others cannot replace our files, but can make some.
            replaceable = directory == path.parent or not found.st_mode & stat.S_ISVTX
            if _others_may_write(found) and replaceable:
                return f"{directory} can be written by other users"
        found = path.lstat()
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return ""
    if not stat.S_ISREG(found.st_mode):
        return f"{path} is no regular file"
    if found.st_uid not in owners:
        return f"{path} belongs to another user"
    if _others_may_write(found):
        return f"{path} can be written by other users"
    return ""


def trusts_home() -> bool:
    """True if the SDKs may look for their own files in the home directory: it belongs to root or to
    the user of this process. `sudo` may have kept another user's HOME; then a line is logged."""
    home = Path.home()
    try:
        if home.stat().st_uid in (0, os.geteuid()):
            return True
    except OSError:
        return True  # there is nothing to find
    log.warning("%s belongs to another user: the SDKs' files in it are ignored; name them, or set HOME", home)
    return False


def _others_may_write(found: os.stat_result) -> bool:
    is_shared = found.st_gid not in (0, os.getegid())  # a user's own group has often no other member
    return bool(found.st_mode & (stat.S_IWOTH | stat.S_IWGRP * is_shared))
