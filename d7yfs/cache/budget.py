"""Bounds what uncached reading holds in memory, over all versions of one cache. Used by `BackingFile`; trio thread only."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

from d7yfs.objects import BLOCK_BYTES

if TYPE_CHECKING:
    from d7yfs.cache.backing import BackingFile


class MemoryBudget:
    """Bounds what all backing files hold in memory: the oldest blocks go first, blocks that a reader waits for stay."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self._blocks: OrderedDict[tuple[int, int], BackingFile] = OrderedDict()

    def add(self, backing: BackingFile, index: int) -> None:
        """Account for a memory block that begins to fill, and drop the oldest until the limit holds again."""
        assert (id(backing), index) not in self._blocks
        self._blocks[(id(backing), index)] = backing
        self.used_bytes += BLOCK_BYTES
        if self.used_bytes <= self.limit_bytes:
            return
        for (_, old), owner in list(self._blocks.items()):
            if not owner.is_wanted(old) and (owner is not backing or old != index):
                owner.drop_memory_block(old)
            if self.used_bytes <= self.limit_bytes:
                return

    def remove(self, backing: BackingFile, index: int) -> None:
        """A memory block is gone."""
        if self._blocks.pop((id(backing), index), None) is not None:
            self.used_bytes -= BLOCK_BYTES

    def release(self, backing: BackingFile) -> None:
        """All memory blocks of `backing` are gone."""
        for (_, index), owner in list(self._blocks.items()):
            if owner is backing:
                self.remove(backing, index)
