"""Judges whether a version is read densely enough to be filled whole. Pure; one `Density` per open version, shared by its handles.

Faults of a memory map arrive in any order, and threads that share a descriptor look random one by one. What tells them from ten reads of a
huge file is how much of it they touch. Model formats announce themselves: who reads on after the header loads the model.

The filesystem asks at every read.
"""

from __future__ import annotations

from d7yfs.objects import BLOCK_BYTES, ByteRange

MODEL_SUFFIXES = (
    ".safetensors",
    ".gguf",
    ".ggml",
    ".onnx",
    ".onnx_data",
    ".pt",
    ".pth",
    ".pt2",
    ".bin",
    ".ckpt",
    ".plan",
    ".engine",
    ".mar",
    ".h5",
    ".keras",
    ".tflite",
    ".pb",
    ".npz",
    ".npy",
    ".msgpack",
    ".pdiparams",
    ".ot",
    ".weights",
)
"""Endings of files that are loaded whole once somebody reads beyond their header."""

HEADER_BLOCKS = 4
"""Blocks that a look at the header may touch: the beginning, and the directory at the end of an archive."""

DENSE_BLOCKS = 32
DENSE_FRACTION = 16
"""Any file is dense once so many blocks, and one in so many of all its blocks, have been touched."""


class Density:
    """What has been touched of an object of `size_bytes` called `name`."""

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

    def touch(self, read: ByteRange) -> bool:
        """Take note of a read; True once, when the rest of the object should be fetched."""
        if self._told or not read:
            return False
        for index in range(read.start // BLOCK_BYTES, (read.stop - 1) // BLOCK_BYTES + 1):
            byte, bit = index >> 3, 1 << (index & 7)
            if not self._blocks[byte] & bit:
                self._blocks[byte] |= bit
                self._count += 1
        self._told = self._count >= self._enough
        return self._told
