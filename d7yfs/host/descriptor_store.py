"""systemd's store of descriptors (FileDescriptorStoreMax= in systemd.service(5)): the connection to the
kernel and its journal outlive the supervisor, too.

A supervisor stores both when it has made the mount, and removes them when it ends by intention. If it is
killed, systemd closes nothing, and passes them to the next one as $LISTEN_FDS (sd_listen_fds(3)). Where
no store is, these messages are nothing.

Pure, but for `take`. Used by the command line and by supervisors; the standard library alone.
"""

from __future__ import annotations

import os
import select
from binascii import crc32
from collections.abc import MutableMapping
from pathlib import Path
from typing import NamedTuple, Self

VARIABLES = ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES")
_FIRST_FD = 3
_KINDS = ("session", "journal")


class StoredSession(NamedTuple):
    """The connection of a mount, and its journal, from a supervisor that has died."""

    session_fd: int
    journal_fd: int

    @classmethod
    def take(cls, environ: MutableMapping[str, str], point: Path) -> Self | None:
        """The session of the mount at `point` that systemd passed to this process, out of reach of its
        children; None if there is none, or if its connection has ended. All else is closed."""
        pid, count, names = (environ.pop(name, "") for name in VARIABLES)
        if pid != str(os.getpid()) or not count.isdecimal():
            return None
        found: dict[str, int] = {}
        for fd, name in zip(range(_FIRST_FD, _FIRST_FD + int(count)), names.split(":"), strict=False):
            if name in _names(point) and name not in found:
                os.set_inheritable(fd, False)
                found[name] = fd
            else:
                os.close(fd)
        made = cls(*(found[name] for name in _names(point))) if len(found) == len(_KINDS) else None
        if made is None or not is_connected(made.session_fd):
            for fd in found.values():
                os.close(fd)
            return None
        return made


def is_connected(session_fd: int) -> bool:
    """True if the mount of this connection is still there."""
    poll = select.poll()
    poll.register(session_fd, 0)
    return not poll.poll(0)


def storing(point: Path) -> tuple[str, str]:
    """The messages for systemd that go with the two descriptors of a mount. It does not watch them:
    each request of a reader would wake it."""
    session, journal = (f"FDSTORE=1\nFDPOLL=0\nFDNAME={name}" for name in _names(point))
    return session, journal


def removing(point: Path) -> tuple[str, str]:
    """The messages for systemd that take them out of its store."""
    session, journal = (f"FDSTOREREMOVE=1\nFDNAME={name}" for name in _names(point))
    return session, journal


def _names(point: Path) -> tuple[str, str]:
    """The names in the store; a unit whose mount point was changed finds nothing."""
    session, journal = (f"d7yfs-{kind}-{crc32(os.fsencode(point)):08x}" for kind in _KINDS)
    return session, journal
