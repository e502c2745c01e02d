"""A READDIRPLUS reply without a session, read back as the kernel would get it.

pyfuse3's own `readdir_reply` fills it. pyfuse3 makes the token for a request that libfuse has read,
and gives Python no way to set how many bytes fit. So the test sets the number at its place in the
object. Behind the object's head, ReaddirToken in handlers.pxi is the request, the buffer, the place
in it, and the room left.
"""

from __future__ import annotations

import ctypes
import struct
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from pyfuse3 import ReaddirToken

_FIELDS = struct.Struct("=QQQQ")
_AT = object.__basicsize__
_ENTRY_OUT = struct.Struct("=QQQQII QQQQQQIIIIIIIIII")
"""struct fuse_entry_out in linux/fuse.h, with its fuse_attr."""
_DIRENT = struct.Struct("=QQII")
"""The beginning of struct fuse_dirent."""

MANY_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class Entry:
    """One fuse_direntplus of the reply."""

    name: str
    next_id: int
    shown_inode: int
    """The number that readdir(3) gives."""
    node_id: int
    """The number that the kernel remembers, and will forget; 0 if it remembers nothing."""
    entry_timeout_s: float
    attr_timeout_s: float
    size_bytes: int
    stop: int
    """The bytes of the reply up to its end."""


class Reply:
    """The reply to one request for `room_bytes`; the handler gets `token`."""

    def __init__(self, room_bytes: int = MANY_BYTES) -> None:
        self.token = ReaddirToken()
        assert ReaddirToken.__basicsize__ == _AT + _FIELDS.size, "another pyfuse3: look at handlers.pxi"
        self._room_bytes = room_bytes
        self._memory = (ctypes.c_char * _FIELDS.size).from_address(id(self.token) + _AT)
        assert _FIELDS.unpack(self._memory.raw) == (0, 0, 0, 0)
        _FIELDS.pack_into(self._memory, 0, 0, 0, 0, room_bytes)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        _, start, _, _ = _FIELDS.unpack(self._memory.raw)
        _FIELDS.pack_into(self._memory, 0, 0, 0, 0, 0)
        ctypes.CDLL(None).free(ctypes.c_void_p(start))

    @property
    def entries(self) -> list[Entry]:
        """The entries that fitted."""
        _, start, _, left_bytes = _FIELDS.unpack(self._memory.raw)
        data = ctypes.string_at(start, self._room_bytes - left_bytes) if start else b""
        found, at = [], 0
        while at < len(data):
            node_id, _, entry_s, attr_s, entry_ns, attr_ns, _, size_bytes, *_ = _ENTRY_OUT.unpack_from(data, at)
            at += _ENTRY_OUT.size
            shown, next_id, length, _ = _DIRENT.unpack_from(data, at)
            at += _DIRENT.size
            name = data[at : at + length].decode()
            at += -(-length // 8) * 8
            timeouts = entry_s + entry_ns / 1e9, attr_s + attr_ns / 1e9
            found.append(Entry(name, next_id, shown, node_id, *timeouts, size_bytes, at))
        return found
