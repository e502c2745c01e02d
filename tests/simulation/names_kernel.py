"""The kernel of the simulation of names: its cache of directory entries, its locks, and its
requests to the FUSE adapter.

It behaves like Linux (fs/fuse/dir.c, fs/fuse/readdir.c):

- a timeout counts from when the kernel takes the reply, some time after it was sent;
- lookups and readdirs of a directory share its lock until the kernel has taken their reply; a
  notice about the directory waits for them;
- an expired entry is looked up again without that lock. If it stands for the same inode, its time
  starts over, unless a notice has removed the entry meanwhile. Otherwise the entry goes, and the
  name is looked up;
- an inode without any entry is forgotten later.
"""

from __future__ import annotations

import ctypes
import errno
import math
import os
import random
import stat
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any

import trio
from pyfuse3 import EntryAttributes, FUSEError

from d7yfs.fs.filesystem import Filesystem
from d7yfs.fuse import nameonly_entries
from d7yfs.fuse.adapter import Adapter
from d7yfs.tree.nodes import File
from d7yfs.tree.tree import ROOT_INODE

TAKES_S = 0.01
"""Seconds; the longest time in which the kernel takes a reply."""


@dataclass(slots=True, eq=False)
class Dentry:
    """A directory entry that the kernel remembers."""

    inode: int
    """The inode; 0 is a negative entry."""
    until: float
    hashed: bool = True


@dataclass(slots=True)
class Reply:
    """A reply to a readdir, with room for some entries."""

    room: int
    entries: list[tuple[str, int, int, float, bool, int]] = field(default_factory=list)
    """Name, node id, inode number, timeout, True for a directory, and the offset of the next entry.
    """

    def take(self, name: bytes, value: EntryAttributes, next_index: int) -> bool:
        if len(self.entries) >= self.room:
            return False
        assert nameonly_entries._OFFSET is not None
        node_id = ctypes.c_uint64.from_address(id(value) + nameonly_entries._OFFSET).value
        is_directory = stat.S_ISDIR(value.st_mode)
        self.entries.append((os.fsdecode(name), node_id, value.st_ino, value.entry_timeout, is_directory, next_index))
        return True


class _Lock:
    """A lock, shared or exclusive; first come, first served."""

    def __init__(self) -> None:
        self._turn = trio.StrictFIFOLock()
        self._sharing = 0
        self._free = trio.Event()
        self._free.set()

    @asynccontextmanager
    async def shared(self) -> AsyncIterator[None]:
        async with self._turn:
            self._sharing += 1
            self._free = trio.Event()
        try:
            yield
        finally:
            self._sharing -= 1
            if not self._sharing:
                self._free.set()

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        async with self._turn:
            while self._sharing:
                await self._free.wait()
            yield


class Kernel:
    """A kernel that asks the adapter only for expired names.

    The caller sets `filesystem` and `adapter` before the first question.
    """

    def __init__(self, choose: random.Random, nursery: trio.Nursery) -> None:
        self.filesystem: Filesystem
        self.adapter: Any
        self.answered_alone = 0
        self._choose = choose
        self._nursery = nursery
        self._entries: dict[tuple[int, str], Dentry] = {}
        self._locks: dict[int, _Lock] = defaultdict(_Lock)
        self._looked_up: dict[tuple[int, str], trio.Lock] = defaultdict(trio.Lock)
        self._lookups: dict[int, int] = defaultdict(int)
        """The number of lookups to give back, by inode."""
        self._used: dict[int, int] = defaultdict(int)
        """The number of references to an inode: entries, and tasks in it."""
        self.use(ROOT_INODE)

    async def entry(self, parent: int, name: str) -> tuple[int, bool]:
        """The inode of `name`, 0 if there is none, and True if it was known. The caller must
        `leave` it. Raises FUSEError.
        """
        key = (parent, name)
        while True:
            dentry = self._entries.get(key)
            if dentry is not None:
                if trio.current_time() < dentry.until:
                    self.answered_alone += 1
                    self.use(dentry.inode)
                    return dentry.inode, True
                if dentry.inode and await self._revalidated(key, dentry):
                    return dentry.inode, False
                self._drop(key, dentry)
            async with self._locks[parent].shared(), self._looked_up[key]:
                if key in self._entries:
                    continue
                inode, timeout_s = await self._ask(parent, name)
                dentry = self._enter(key, inode, timeout_s)
                self.use(inode)
                return inode, False

    async def _revalidated(self, key: tuple[int, str], dentry: Dentry) -> bool:
        """True if an entry still stands for its inode, which is then used."""
        with self.using(dentry.inode):
            inode, timeout_s = await self._ask(*key)
            if inode:
                self._lookups[inode] += 1
            if inode != dentry.inode:
                self._forget_unused(inode)
                return False
            dentry.until = trio.current_time() + timeout_s
            self.use(inode)
            return True

    async def _ask(self, parent: int, name: str) -> tuple[int, float]:
        try:
            value = await self.adapter.lookup(parent, os.fsencode(name), None)
        except FUSEError as error:
            if error.errno != errno.ENOENT:
                raise
            inode, timeout_s = 0, 0.0
        else:
            inode, timeout_s = value.st_ino, value.entry_timeout
        await trio.sleep(self._choose.random() * TAKES_S)
        return inode, timeout_s

    def _enter(self, key: tuple[int, str], inode: int, timeout_s: float) -> Dentry:
        dentry = self._entries[key] = Dentry(inode, trio.current_time() + timeout_s)
        if inode:
            self._lookups[inode] += 1
            self.use(inode)
        return dentry

    async def read(self, inode: int, handle: int, index: int, room: int) -> list[tuple[str, bool, int]]:
        """Some entries of an open directory: name, True for a directory, and the offset of the next
        entry. Raises FUSEError.
        """
        async with self._locks[inode].shared():
            reply = Reply(room)
            await self.adapter.readdir(handle, index, reply)
            await trio.sleep(self._choose.random() * TAKES_S)
            for name, node_id, _, timeout_s, _, _ in reply.entries:
                if name not in (".", "..") and node_id:
                    self._link((inode, name), node_id, timeout_s)
        return [
            (name, is_directory, at) for name, _, _, _, is_directory, at in reply.entries if name not in (".", "..")
        ]

    def _link(self, key: tuple[int, str], inode: int, timeout_s: float) -> None:
        dentry = self._entries.get(key)
        if dentry is not None and dentry.inode == inode:
            self._lookups[inode] += 1
            dentry.until = trio.current_time() + timeout_s
            return
        if dentry is not None:
            self._drop(key, dentry)
        self._enter(key, inode, timeout_s)

    async def tell(self, directory: int, names: Sequence[bytes]) -> int:
        """Forget the entries that a notice names."""
        known = 0
        for name in names:
            async with self._locks[directory].alone():
                dentry = self._entries.get((directory, os.fsdecode(name)))
                if dentry is not None:
                    known += 1
                    self._drop((directory, os.fsdecode(name)), dentry)
        return known

    def shrink(self) -> None:
        """Forget some entries, as under memory pressure."""
        for key, dentry in list(self._entries.items()):
            if self._choose.random() < 0.3:
                self._drop(key, dentry)

    def doubt(self) -> None:
        """Make each entry expire, so that each lookup asks again (LOOKUP_REVAL)."""
        for dentry in self._entries.values():
            dentry.until = -math.inf

    def _drop(self, key: tuple[int, str], dentry: Dentry) -> None:
        if self._entries.get(key) is dentry:
            del self._entries[key]
            dentry.hashed = False
            self.leave(dentry.inode)

    # --- inodes ---

    def use(self, inode: int) -> None:
        if inode:
            self._used[inode] += 1

    def leave(self, inode: int) -> None:
        if inode:
            self._used[inode] -= 1
            self._forget_unused(inode)

    @contextmanager
    def using(self, inode: int) -> Iterator[None]:
        self.use(inode)
        try:
            yield
        finally:
            self.leave(inode)

    def _forget_unused(self, inode: int) -> None:
        if not inode or self._used[inode]:
            return
        for key, dentry in [item for item in self._entries.items() if item[0][0] == inode]:
            self._drop(key, dentry)
        count, self._lookups[inode] = self._lookups[inode], 0
        if count:
            self._nursery.start_soon(self._forget, inode, count)

    async def _forget(self, inode: int, count: int) -> None:
        await trio.sleep(self._choose.random() * TAKES_S)
        await self.adapter.forget([(inode, count)])

    def meaning(self, inode: int) -> str | None:
        """The ETag that an inode stands for; None is a directory."""
        node = self.filesystem.tree.get(inode)
        return node.version.validator if isinstance(node, File) else None


_: type[Any] = Adapter
