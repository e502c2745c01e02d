"""A trivial pyfuse3 file system that serves a directory from memory: the limit of pyfuse3 on a
machine.

It has no network, cache or tree. It gives the kernel the same as d7yfs (lasting attributes, large
readahead, replies without a copy), but that the kernel drops a file's pages at each open.
`bench.transport` runs it.
"""

from __future__ import annotations

import errno
import mmap
import os
import stat
from collections.abc import Sequence
from pathlib import Path

import pyfuse3
import trio
from pyfuse3 import EntryAttributes, FileInfo, FUSEError, ReaddirToken, RequestContext
from pyfuse3._pyfuse3 import FileHandleT, FileNameT, FlagT, InodeT

from d7yfs.host.mount_table import tune

_FOREVER_S = 3600.0
_MAPPED_AT_START_BYTES = 64 << 10


class Memory(pyfuse3.Operations):
    """A file system whose inodes are indices into lists that are built once."""

    enable_writeback_cache = False

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self.served_bytes = 0
        self._attributes: dict[int, EntryAttributes] = {}
        self._names: dict[int, dict[bytes, int]] = {}
        self._memory: dict[int, memoryview] = {}
        self._paths: dict[int, Path] = {}
        self._add(directory)

    def _add(self, path: Path) -> int:
        inode = len(self._attributes) + pyfuse3.ROOT_INODE
        status = path.stat()
        value = EntryAttributes()
        value.st_ino = InodeT(inode)
        value.st_mode = status.st_mode
        value.st_nlink = 1
        value.st_size = status.st_size
        value.st_blocks = -(-status.st_size // 512)
        value.st_mtime_ns = value.st_ctime_ns = value.st_atime_ns = status.st_mtime_ns
        value.entry_timeout = value.attr_timeout = _FOREVER_S
        self._attributes[inode] = value
        self._paths[inode] = path
        if stat.S_ISDIR(status.st_mode):
            self._names[inode] = {}
            self._names[inode].update((os.fsencode(child.name), self._add(child)) for child in sorted(path.iterdir()))
        elif status.st_size >= _MAPPED_AT_START_BYTES:
            self._memory[inode] = _map(path)
        return inode

    async def lookup(self, parent_inode: InodeT, name: FileNameT, ctx: RequestContext) -> EntryAttributes:
        inode = self._names[parent_inode].get(bytes(name))
        if inode is None:
            raise FUSEError(errno.ENOENT)
        return self._attributes[inode]

    async def getattr(self, inode: InodeT, ctx: RequestContext) -> EntryAttributes:
        return self._attributes[inode]

    async def opendir(self, inode: InodeT, ctx: RequestContext) -> FileHandleT:
        return FileHandleT(inode)

    async def readdir(self, fh: FileHandleT, start_id: int, token: ReaddirToken) -> None:
        for index, (name, inode) in enumerate(self._names[fh].items()):
            if index < start_id:
                continue
            if not pyfuse3.readdir_reply(token, FileNameT(name), self._attributes[inode], index + 1):
                return

    async def open(self, inode: InodeT, flags: FlagT, ctx: RequestContext) -> FileInfo:
        if inode not in self._memory:
            self._memory[inode] = _map(self._paths[inode])
        return FileInfo(fh=FileHandleT(inode), keep_cache=False)

    async def read(self, fh: FileHandleT, off: int, size: int) -> bytes:
        part = self._memory[fh][off : off + size]
        self.served_bytes += len(part)
        return part  # type: ignore[return-value]  # any buffer will do

    async def forget(self, inode_list: Sequence[tuple[InodeT, int]]) -> None:
        """Do nothing: inodes are never freed."""


def _map(path: Path) -> memoryview:
    with path.open("rb") as file:
        flags = mmap.MAP_SHARED | mmap.MAP_POPULATE
        return memoryview(mmap.mmap(file.fileno(), 0, flags=flags, prot=mmap.PROT_READ))


def mount(directory: Path, mountpoint: Path) -> Memory:
    """Mount; `serve` answers."""
    options = {"fsname=memory", "subtype=pyfuse3", "ro", "default_permissions"}
    memory = Memory(directory)
    pyfuse3.init(memory, str(mountpoint), options)
    return memory


async def serve(mountpoint: Path) -> None:
    """Answer until unmounted or cancelled."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.to_thread.run_sync, _tune, mountpoint)
        await pyfuse3.main(min_tasks=4, max_tasks=1100)
        nursery.cancel_scope.cancel()


def _tune(mountpoint: Path) -> None:
    mountpoint.stat()  # INIT precedes the answer, and tuning needs INIT.
    tune(mountpoint)
