"""Every request that the adapter answers, as a call of its handler."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import pytest
from pyfuse3 import FUSEError, RequestContext
from pyfuse3._pyfuse3 import FileHandleT, FileNameT, FlagT, InodeT, ModeT, XAttrNameT

from d7yfs.fuse.adapter import Adapter
from d7yfs.fuse.notices import Invalidator
from d7yfs.tree.tree import ROOT_INODE
from tests.fuse.doubles import FakeFilesystem, adapter_of
from tests.fuse.reply import Reply

CALLER = RequestContext()
ROOT = InodeT(ROOT_INODE)
OPENED = FileHandleT(1)
"""The handle that the first open gives."""
FILE = "file"
"""The name that requests are about."""


@dataclass(frozen=True, slots=True)
class Request:
    """One kind of request; `call` makes it.

    `reaches` is the file system's method below it, empty where the handler asks for nothing.
    """

    call: Callable[[Adapter], Awaitable[Any]]
    reaches: str = ""
    waits: bool = False
    """True if that method may wait for the store."""


async def _readdir(adapter: Adapter) -> None:
    with Reply() as reply:
        await adapter.readdir(OPENED, 0, reply.token)


def lookup(adapter: Adapter, name: str = FILE) -> Awaitable[Any]:
    return adapter.lookup(ROOT, FileNameT(os.fsencode(name)), CALLER)


REQUESTS = {
    "lookup": Request(lookup, "lookup", waits=True),
    "getattr": Request(lambda adapter: adapter.getattr(ROOT, CALLER), "getattr", waits=True),
    "access": Request(lambda adapter: adapter.access(ROOT, ModeT(os.R_OK), CALLER)),
    "opendir": Request(lambda adapter: adapter.opendir(ROOT, CALLER), "opendir", waits=True),
    "readdir": Request(_readdir, "entries", waits=True),
    "releasedir": Request(lambda adapter: adapter.releasedir(OPENED), "releasedir"),
    "open": Request(lambda adapter: adapter.open(ROOT, FlagT(os.O_RDONLY), CALLER), "open", waits=True),
    "read": Request(lambda adapter: adapter.read(OPENED, 0, 10), "read", waits=True),
    "release": Request(lambda adapter: adapter.release(OPENED), "release"),
    "fsync": Request(lambda adapter: adapter.fsync(OPENED, True)),
    "fsyncdir": Request(lambda adapter: adapter.fsyncdir(OPENED, True)),
    "statfs": Request(lambda adapter: adapter.statfs(CALLER), "statistics"),
    "getxattr": Request(
        lambda adapter: adapter.getxattr(ROOT, XAttrNameT(b"user.d7yfs.task_id"), CALLER), "task_id", waits=True
    ),
    "listxattr": Request(lambda adapter: adapter.listxattr(ROOT, CALLER), "task_id", waits=True),
    "readlink": Request(lambda adapter: adapter.readlink(ROOT, CALLER)),
}


async def opened(filesystem: FakeFilesystem, invalidator: Invalidator | None = None) -> Adapter:
    """An adapter of which a reader has the top directory open."""
    adapter = adapter_of(filesystem, invalidator)
    assert await adapter.opendir(ROOT, CALLER) == OPENED
    return adapter


async def errno_of(request: Awaitable[object]) -> int:
    """The number that the kernel gets for a request that fails."""
    with pytest.raises(FUSEError) as caught:
        await request
    return caught.value.errno
