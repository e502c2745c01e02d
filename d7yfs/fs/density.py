"""The decision whether a version is read densely enough to be filled whole. Pure.

Faults of a memory map arrive in any order, and threads that share a descriptor look random one by
one. They differ from ten reads of a huge file by how much of it they touch. A reader that goes on
after a model file's header loads the model.

One `Density` per open version, shared by its handles; the filesystem asks at every read.
"""

from __future__ import annotations

from d7yfs.objects import BLOCK_BYTES
from d7yfs.stats.model_files import MODEL_SUFFIXES

HEADER_BLOCKS = 4
"""The blocks that a look at the header may touch: the beginning, and an archive's index at the
end."""

DENSE_BLOCKS = 32
DENSE_FRACTION = 16
"""Any file is dense once so many blocks, and one in so many of its blocks, were touched."""


class Density:
    """The blocks that were touched of an object of `size_bytes` called `name`."""

    __slots__ = ("_blocks", "_count", "_enough", "_told")

    def __init__(self, name: str, size_bytes: int) -> None:
        count = -(-size_bytes // BLOCK_BYTES)
        self._blocks = bytearray(-(-count // 8))
        self._count = 0
        self._told = count <= 1
        if name.lower().endswith(MODEL_SUFFIXES):
            self._enough = HEADER_BLOCKS + 1
        else:
            self._enough = max(DENSE_BLOCKS, count // DENSE_FRACTION)

    def touch(self, offset: int, size_bytes: int) -> bool:
        """Count a read. True once, when the rest of the object should be fetched."""
        if self._told:
            return False
        for index in range(offset // BLOCK_BYTES, -(-(offset + size_bytes) // BLOCK_BYTES)):
            byte, bit = index >> 3, 1 << (index & 7)
            if not self._blocks[byte] & bit:
                self._blocks[byte] |= bit
                self._count += 1
        self._told = self._count >= self._enough
        return self._told
