"""Trust in Unix sockets: the process at the other end.

Used by the control socket and by the fuse-helper.
"""

from __future__ import annotations

import socket
import struct
from pathlib import Path

_CREDENTIALS = struct.Struct("3i")
"""struct ucred: pid, uid, gid."""


def peer_of(connection: socket.socket) -> tuple[int, int, int]:
    """Pid, uid and gid of the process at the other end, when it connected or listened (SO_PEERCRED in
    unix(7))."""
    stored = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, gid = _CREDENTIALS.unpack(stored)
    return pid, uid, gid


def parent_of(pid: int) -> int:
    """The parent of a process; 0 if there is none any more (proc_pid_stat(5), field 4)."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0
