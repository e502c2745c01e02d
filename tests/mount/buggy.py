"""`d7yfs` with bugs: requests about some names fail with unforeseen exceptions.

`test_bugs.py` runs it in its own process.
"""

from __future__ import annotations

from d7yfs import daemon
from d7yfs.cli import main
from d7yfs.fs.filesystem import Filesystem
from d7yfs.tree.nodes import Absent, Found
from d7yfs.tree.tree import ROOT_INODE

LOOKUP, OPENDIR, OPEN, READ = "lookup.bug", "opendir.bug", "open.bug", "read.bug"


class _Buggy(Filesystem):
    def _check(self, name: str, inode: int) -> None:
        if self.tree.directory(ROOT_INODE).entry(name) is self.tree.get(inode):
            raise ZeroDivisionError(name)

    async def lookup(self, parent: int, name: str) -> Found | Absent:
        if name == LOOKUP:
            raise ZeroDivisionError(name)
        return await super().lookup(parent, name)

    def lookup_at_once(self, parent: int, name: str) -> Found | Absent | None:
        if name == LOOKUP:
            raise ZeroDivisionError(name)
        return super().lookup_at_once(parent, name)

    async def opendir(self, inode: int) -> int:
        self._check(OPENDIR, inode)
        return await super().opendir(inode)

    def opendir_at_once(self, inode: int) -> int | None:
        self._check(OPENDIR, inode)
        return super().opendir_at_once(inode)

    async def open(self, inode: int) -> int:
        self._check(OPEN, inode)
        return await super().open(inode)

    def open_at_once(self, inode: int) -> int | None:
        self._check(OPEN, inode)
        return super().open_at_once(inode)

    async def read(self, handle: int, offset: int, size_bytes: int) -> bytes | bytearray:
        self._check(READ, self._handles[handle].node.inode)
        return await super().read(handle, offset, size_bytes)

    def read_at_once(self, handle: int, offset: int, into: memoryview) -> int | None:
        self._check(READ, self._handles[handle].node.inode)
        return super().read_at_once(handle, offset, into)


if __name__ == "__main__":
    vars(daemon)["Filesystem"] = _Buggy
    main()
