"""Trust in Unix sockets: the process at the other end, and the directory that a socket lies in.

Used by the control socket and by the fuse-helper.
"""

from __future__ import annotations

import os
import socket
import stat
import struct

_CREDENTIALS = struct.Struct("3i")
"""struct ucred: pid, uid, gid."""


def peer_of(connection: socket.socket) -> tuple[int, int]:
    """Pid and uid of the process at the other end, when it connected or listened (SO_PEERCRED in
    unix(7))."""
    stored = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _ = _CREDENTIALS.unpack(stored)
    return pid, uid


def is_private_directory(found: os.stat_result, *owners: int) -> bool:
    """True for a directory, and no link to one, of one of `owners` that no other user can enter.
    `found` is from lstat(2)."""
    return stat.S_ISDIR(found.st_mode) and found.st_uid in owners and not found.st_mode & 0o077
