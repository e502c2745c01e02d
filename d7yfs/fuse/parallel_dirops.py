"""The handshake with the kernel, in which we ask for parallel directory operations.

Without them the kernel sends one lookup or readdir of a directory at a time, and all others wait
for its answer (`fuse_lock_inode` in fs/fuse/inode.c): one that hangs in the store would hold up all
readers of that directory. A file system asks for them by a flag in its answer to INIT
(FUSE_PARALLEL_DIROPS in linux/fuse.h, since Linux 4.7). libfuse sends that answer, and pyfuse3
gives no say in it.

So while pyfuse3 handles INIT, a socket stands in for /dev/fuse. libfuse's answer goes into it, gets
the flag here, and then goes to the kernel. An unexpected answer goes on as it is. Called by the
adapter; trio thread only.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import struct
from pathlib import Path

import trio

log = logging.getLogger(__name__)

_PARALLEL_DIROPS = 1 << 18
_OUT_HEADER = struct.Struct("=IiQ")
"""struct fuse_out_header in linux/fuse.h: length, error, unique."""
_INIT_OUT = struct.Struct("=IIII")
"""The beginning of struct fuse_init_out: major, minor, max_readahead, flags."""
_ANSWER_BYTES = 4096


def devices() -> set[int]:
    """The descriptors of this process on /dev/fuse."""
    found = set()
    for each in Path("/proc/self/fd").iterdir():
        # Other threads open and close theirs meanwhile.
        with contextlib.suppress(FileNotFoundError):
            if str(each.readlink()) == "/dev/fuse":
                found.add(int(each.name))
    return found


class Handshake:
    """The handshake of a session whose descriptor is `device`.

    `begin` is called while INIT is handled, `finish` awaits its answer.
    """

    def __init__(self, device: int) -> None:
        self._device = device
        self._kernel = -1
        self._answers: socket.socket
        self._begun = trio.Event()

    def begin(self) -> None:
        """Have libfuse's answers come to us from now on."""
        self._answers, stand_in = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with stand_in:
            self._kernel = os.dup(self._device)
            os.dup2(stand_in.fileno(), self._device, inheritable=False)
        self._begun.set()

    async def finish(self) -> None:
        """Pass the answer on. Tasks that wait for requests of the kernel get
        trio.ClosedResourceError, and must wait anew."""
        await self._begun.wait()
        await trio.lowlevel.wait_readable(self._answers)
        answer = self._answers.recv(_ANSWER_BYTES)
        trio.lowlevel.notify_closing(self._device)
        os.dup2(self._kernel, self._device, inheritable=False)
        os.close(self._kernel)
        self._answers.close()
        os.write(self._device, with_parallel_directories(answer))


def with_parallel_directories(answer: bytes) -> bytes:
    """The answer to INIT with the flag."""
    try:
        size_bytes, error, unique = _OUT_HEADER.unpack_from(answer)
        major, minor, max_readahead, flags = _INIT_OUT.unpack_from(answer, _OUT_HEADER.size)
    except struct.error:
        major = error = size_bytes = -1
    if error or size_bytes != len(answer) or major != 7:
        log.warning("lookups in one directory will wait for each other: libfuse's greeting is not as expected")
        return answer
    init = _INIT_OUT.pack(major, minor, max_readahead, flags | _PARALLEL_DIROPS)
    return _OUT_HEADER.pack(size_bytes, error, unique) + init + answer[_OUT_HEADER.size + _INIT_OUT.size :]
