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
from functools import cache
from pathlib import Path

from d7yfs.errors import ConfigError
from d7yfs.host.ownership import find_fault

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


def read_text(path: Path, option: str) -> str:
    """The text of the file that `option` of the command line names. Raises ConfigError."""
    try:
        return read_file(path).decode()
    except OSError as error:
        raise ConfigError(
            f"{path}: cannot be read: {error.strerror}", hint=f"check the path given as {option}"
        ) from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: is not UTF-8") from None


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
    try:
        for each in reversed((path, *path.parents)):
            kind = stat.S_IFREG if each == path else stat.S_IFDIR
            is_above = each not in (path, path.parent)
            if fault := find_fault(each.lstat(), _owners(), kind=kind, groups=_own_groups(), sticky=is_above):
                return f"{each} {fault}"
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        pass
    return ""


def trusts_home() -> bool:
    """True if the SDKs may look for their own files in the home directory: it belongs to root or to
    the user of this process, and no one else may write there. `sudo` may have kept another user's
    HOME; then a line is logged.

    The home directory is judged once, until `judge_home_again`.
    """
    try:
        return not _fault_of_home(Path.home())
    except (OSError, RuntimeError):
        return True  # there is nothing to find


def judge_home_again() -> None:
    """Forget the verdict on the home directory, because settings are read."""
    _fault_of_home.cache_clear()


@cache
def _fault_of_home(home: Path) -> str:
    fault = find_fault(home.stat(), _owners(), groups=_own_groups())
    if fault:
        log.warning("%s %s: the SDKs' files in it are ignored; name them, or set HOME", home, fault)
    return fault


def _owners() -> tuple[int, int]:
    return 0, os.geteuid()


def _own_groups() -> tuple[int, int]:
    return 0, os.getegid()
