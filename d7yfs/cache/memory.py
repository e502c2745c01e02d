"""The blocks that are in memory because the disk has no room for them, of all versions of one
cache. Trio thread only.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from d7yfs.cache.file_io import write_whole
from d7yfs.host.libc import punch_hole
from d7yfs.objects import BLOCK_BYTES


class MemoryBudget:
    """The limit on the memory files of one cache: old blocks that no reader awaits go first."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self._blocks: dict[tuple[MemoryFile, int], None] = {}
        """Oldest first."""

    def add(self, file: MemoryFile, index: int) -> None:
        """Account for a block that begins to fill, and drop old ones until the limit holds."""
        assert (file, index) not in self._blocks
        self._blocks[file, index] = None
        self.used_bytes += BLOCK_BYTES
        for owner, old in list(self._blocks) if self.used_bytes > self.limit_bytes else ():
            if not owner.is_wanted(old) and (owner is not file or old != index):
                owner.drop(old)
            if self.used_bytes <= self.limit_bytes:
                return

    def remove(self, file: MemoryFile, index: int) -> bool:
        """Forget a block that is gone; False if it was not known."""
        if (file, index) not in self._blocks:
            return False
        del self._blocks[file, index]
        self.used_bytes -= BLOCK_BYTES
        return True

    def remove_all(self, file: MemoryFile) -> None:
        """Forget all blocks of `file`, which is told of each."""
        for owner, index in list(self._blocks):
            if owner is file:
                file.drop(index)


class MemoryFile:
    """The blocks of one version that are in memory, as a file of this process (memfd_create(2)).

    `is_wanted(index)` is True if a reader waits for that block. `on_drop(index)` is told of blocks
    that are given up.
    """

    def __init__(
        self, budget: MemoryBudget, *, is_wanted: Callable[[int], bool], on_drop: Callable[[int], None]
    ) -> None:
        self.is_wanted = is_wanted
        self.fd = -1
        """-1 while there is no block."""
        self._budget = budget
        self._on_drop = on_drop
        self._blocks = 0

    def add(self, index: int) -> None:
        """Make room for a block that begins to fill."""
        self._blocks += 1
        self._budget.add(self, index)

    def write(self, data: memoryview, position: int) -> None:
        """Write all of `data`."""
        if self.fd < 0:
            self.fd = os.memfd_create("d7yfs-uncached", os.MFD_CLOEXEC)
        write_whole(self.fd, data, position)

    def drop(self, index: int) -> None:
        """Give up a block, present or arriving."""
        self._on_drop(index)
        self.free(index)

    def free(self, index: int) -> None:
        """Give back the memory of a block that is gone."""
        self._blocks -= self._budget.remove(self, index)
        if not self._blocks:
            # So that there are no more such files than the budget has blocks.
            self._close()
        # A memfd is this process's own: no other can have read its map.
        if self.fd >= 0:
            punch_hole(self.fd, index * BLOCK_BYTES, BLOCK_BYTES)

    def close(self) -> None:
        """Give back all blocks and the file."""
        if self._blocks:
            self._budget.remove_all(self)
        self._close()

    def _close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
