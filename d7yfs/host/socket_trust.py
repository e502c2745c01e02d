"""Trust in Unix sockets: the process at the other end.

Used by the control socket and by the fuse-helper.
"""

from __future__ import annotations

import socket
import struct

_CREDENTIALS = struct.Struct("3i")
"""struct ucred: pid, uid, gid."""


def peer_of(connection: socket.socket) -> tuple[int, int]:
    """Pid and uid of the process at the other end, when it connected or listened (SO_PEERCRED in
    unix(7))."""
    stored = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _ = _CREDENTIALS.unpack(stored)
    return pid, uid
