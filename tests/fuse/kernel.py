"""The kernel's end of a session, for tests: a socket pair in place of /dev/fuse.

Each datagram is a request or a reply, as each read(2) and write(2) of the device is. Backing ids are
refused, as a socket knows no such ioctl.
"""

from __future__ import annotations

import errno
import itertools
import os
import socket
import struct
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import pytest
import trio

from d7yfs.fs.filesystem import Filesystem
from d7yfs.fuse import wire
from d7yfs.fuse.appearance import Appearance
from d7yfs.fuse.notices import Invalidator
from d7yfs.fuse.session import Session
from d7yfs.fuse.wire import Opcode
from d7yfs.host.fuse_device import MountFlags
from tests.fuse.doubles import APPEARANCE, DEADLINE_S, FakeFilesystem, tell_nobody

OFFERED = 0x5FD_73FF_FFFB
"""The features that Linux 6.18 offers."""
_MOST_BYTES = 1 << 16
_PATIENCE_S = DEADLINE_S + 10


@dataclass(frozen=True, slots=True)
class Answer:
    """A reply of the session; `number` is its errno, 0 for success."""

    unique: int
    number: int
    body: bytes


class KernelEnd:
    """The kernel, as far as a session can tell."""

    def __init__(self, device: socket.socket) -> None:
        self.device = device
        self._uniques = itertools.count(2, 2)

    def send(self, opcode: int, nodeid: int = 1, body: bytes = b"", *, uid: int = 0, length: int | None = None) -> int:
        """Send a request; returns its unique number. `length` is what its header says, if that is a lie."""
        unique = next(self._uniques)
        size_bytes = wire.IN_HEADER.size + len(body) if length is None else length
        self.device.send(wire.IN_HEADER.pack(size_bytes, opcode, unique, nodeid, uid) + body)
        return unique

    async def answer(self) -> Answer:
        """The next reply."""
        with trio.fail_after(_PATIENCE_S):
            await trio.lowlevel.wait_readable(self.device)
        message = self.device.recv(_MOST_BYTES)
        length, number, unique = wire.OUT_HEADER.unpack_from(message)
        assert length == len(message)
        return Answer(unique, -number, message[wire.OUT_HEADER.size :])

    async def ask(self, opcode: int, nodeid: int = 1, body: bytes = b"", *, uid: int = 0) -> Answer:
        """The answer to a request, with none before it."""
        unique = self.send(opcode, nodeid, body, uid=uid)
        found = await self.answer()
        assert found.unique == unique
        return found

    async def greet(self, *, minor: int = 45, flags: int = OFFERED) -> Answer:
        body = wire.INIT_IN.pack(7, minor, 1 << 17, flags & 0xFFFFFFFF)
        return await self.ask(Opcode.INIT, 0, body + struct.pack("=I44x", flags >> 32))

    def is_silent(self) -> bool:
        """True if there is no reply."""
        try:
            self.device.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return True
        return False


def session_of(
    filesystem: FakeFilesystem,
    invalidator: Invalidator | None = None,
    *,
    appearance: Appearance = APPEARANCE,
    deadline_s: float = DEADLINE_S,
) -> Session:
    """The real session over a fake file system."""
    return Session(
        cast(Filesystem, filesystem), invalidator or Invalidator(tell_nobody), appearance, deadline_s=deadline_s
    )


@asynccontextmanager
async def served(session: Session, *, greets: bool = True) -> AsyncIterator[KernelEnd]:
    """The kernel of a session that serves meanwhile."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours:
        session.mount(Path("/nonexistent"), MountFlags("test", 0), theirs.detach())
        async with trio.open_nursery() as nursery:
            nursery.start_soon(session.serve)
            kernel = KernelEnd(ours)
            if greets:
                assert (await kernel.greet()).number == 0
            try:
                yield kernel
            finally:
                nursery.cancel_scope.cancel()
        session.close()


def open_in(flags: int = os.O_RDONLY) -> bytes:
    return wire.OPEN_IN.pack(flags, 0)


def read_in(handle: int, offset: int = 0, size_bytes: int = 10) -> bytes:
    return wire.READ_IN.pack(handle, offset, size_bytes)


def release_in(handle: int) -> bytes:
    return struct.pack("=QIIQ", handle, 0, 0, 0)


def name_in(name: str) -> bytes:
    return os.fsencode(name) + b"\0"


def xattr_in(name: str = "", room_bytes: int = 4096) -> bytes:
    return wire.XATTR_IN.pack(room_bytes, 0) + (name_in(name) if name else b"")


REQUESTS: dict[Opcode, tuple[bytes, str]] = {
    Opcode.LOOKUP: (name_in("file"), "lookup"),
    Opcode.GETATTR: (struct.pack("=IIQ", 0, 0, 0), "getattr"),
    Opcode.READLINK: (b"", ""),
    Opcode.OPEN: (open_in(), "open"),
    Opcode.READ: (read_in(1), "read"),
    Opcode.STATFS: (b"", "statistics"),
    Opcode.RELEASE: (release_in(1), "release"),
    Opcode.GETXATTR: (xattr_in("user.d7yfs.task_id"), "task_id"),
    Opcode.LISTXATTR: (xattr_in(), "task_id"),
    Opcode.OPENDIR: (open_in(), "opendir"),
    Opcode.READDIR: (read_in(1, 0, 4096), "entries"),
    Opcode.READDIRPLUS: (read_in(1, 0, 4096), "entries"),
    Opcode.RELEASEDIR: (release_in(1), "releasedir"),
}
"""Every request that the session serves: its body, and the file system's method below it. Handle 1
is the top directory's (`opened`)."""

AT_ONCE = ("lookup", "getattr", "opendir", "entries", "open", "read")
"""The questions that can be answered without waiting."""


async def opened(kernel: KernelEnd) -> None:
    """Open the top directory; its handle is 1."""
    assert wire.OPEN_OUT.unpack((await kernel.ask(Opcode.OPENDIR, 1, open_in())).body)[0] == 1


FILE = "file"
"""The name that requests are about."""
either_way = pytest.mark.parametrize("known", [(), AT_ONCE], ids=["waiting", "at once"])


def fake(known: Sequence[str] = (), files: Sequence[str] = (FILE,)) -> FakeFilesystem:
    """A file system that answers the `known` questions at once."""
    filesystem = FakeFilesystem(files, ["models"])
    filesystem.known = set(known)
    return filesystem


EXPECTED = {Opcode.READLINK: errno.EINVAL}
"""The errno of requests that always fail."""
