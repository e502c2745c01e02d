"""Which bytes of one object version are readable: whole blocks, plus the landed head of blocks still arriving. Pure.

Invariants, on which the rest of the cache leans:

- A block becomes *present* only through `landed` (all its bytes are written) or by a stored entry of this boot.
- Bytes of an arriving block are readable from its start up to what has landed; there are no holes, because every transfer
  writes contiguously from a block's start and two transfers of one block write the same bytes.
- A present block never becomes absent, except by `drop` (a memory block that was reused, or a checksum that failed).

Used by `BackingFile` only.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum

from d7yfs.objects import BLOCK_BYTES, ByteRange


class Block(IntEnum):
    """State of one block; one byte each in `Presence`."""

    ABSENT = 0
    DISK = 1
    MEMORY = 2
    UNVERIFIED = 3
    """On disk since before the machine's last boot: to be compared with its checksum before its first use."""
    LINKED = 4
    """In dfdaemon's file, which is linked beside ours."""
    UNVERIFIED_LINK = 5
    """There since before the machine's last boot: as UNVERIFIED."""


_READABLE = frozenset({Block.DISK, Block.MEMORY, Block.LINKED})
_UNVERIFIED = frozenset({Block.UNVERIFIED, Block.UNVERIFIED_LINK})


@dataclass(slots=True)
class Arriving:
    """A block of which the first `landed_bytes` are written; `crc` is their CRC32C."""

    landed_bytes: int
    crc: int
    in_memory: bool


class Presence:
    """The block table of one object version of `size_bytes`."""

    __slots__ = ("_absent_count", "arriving", "blocks", "size_bytes")

    def __init__(self, size_bytes: int, blocks: Iterable[int] = ()) -> None:
        self.size_bytes = size_bytes
        count = block_count(size_bytes)
        self.blocks = bytearray(blocks) or bytearray(count)
        if len(self.blocks) != count:
            raise ValueError(f"{len(self.blocks)} blocks do not make an object of {size_bytes} bytes")
        self.arriving: dict[int, Arriving] = {}
        self._absent_count = self.blocks.count(Block.ABSENT)

    @property
    def complete(self) -> bool:
        """Every block is present (some perhaps not yet verified)."""
        return self._absent_count == 0

    @property
    def cached_bytes(self) -> int:
        """Bytes of the present blocks."""
        present = len(self.blocks) - self._absent_count
        if present and self.blocks[-1] != Block.ABSENT:
            return (present - 1) * BLOCK_BYTES + block_range(len(self.blocks) - 1, self.size_bytes).size
        return present * BLOCK_BYTES

    def first_unreadable(self, wanted: ByteRange) -> int | None:
        """Offset of the first byte of `wanted` that cannot be read now; None when all can. Unverified blocks cannot."""
        if not wanted:
            return None
        for index in range(wanted.start // BLOCK_BYTES, (wanted.stop - 1) // BLOCK_BYTES + 1):
            state = self.blocks[index]
            if state in _READABLE:
                continue
            start = index * BLOCK_BYTES
            arriving = self.arriving.get(index)
            readable_to = start + arriving.landed_bytes if arriving else start
            if readable_to < min(wanted.stop, start + BLOCK_BYTES):
                return max(readable_to, wanted.start)
        return None

    def missing(self, wanted: ByteRange) -> list[ByteRange]:
        """Runs of absent blocks that `wanted` touches, as block-aligned ranges in order; arriving blocks count as absent."""
        runs: list[ByteRange] = []
        if not wanted or self.complete:
            return runs
        first, last = wanted.start // BLOCK_BYTES, (wanted.stop - 1) // BLOCK_BYTES
        run_start: int | None = None
        for index in range(first, last + 2):
            absent = index <= last and self.blocks[index] == Block.ABSENT
            if absent and run_start is None:
                run_start = index
            elif not absent and run_start is not None:
                runs.append(ByteRange(run_start * BLOCK_BYTES, min(index * BLOCK_BYTES, self.size_bytes)))
                run_start = None
        return runs

    def unverified(self, wanted: ByteRange) -> list[int]:
        """Indexes of the blocks in `wanted` that must be verified before they are read."""
        if not wanted:
            return []
        first, last = wanted.start // BLOCK_BYTES, (wanted.stop - 1) // BLOCK_BYTES
        return [index for index in range(first, last + 1) if self.blocks[index] in _UNVERIFIED]

    def landed(self, index: int, state: Block) -> None:
        """Block `index` is wholly written (or verified) and from now on readable as `state`."""
        if self.blocks[index] == Block.ABSENT:
            self._absent_count -= 1
        self.blocks[index] = state
        self.arriving.pop(index, None)

    def drop(self, index: int) -> None:
        """Block `index` is no longer there."""
        if self.blocks[index] != Block.ABSENT:
            self._absent_count += 1
        self.blocks[index] = Block.ABSENT
        self.arriving.pop(index, None)


def block_count(size_bytes: int) -> int:
    """How many blocks an object of `size_bytes` has; none when it is empty."""
    return -(-size_bytes // BLOCK_BYTES)


def block_range(index: int, size_bytes: int) -> ByteRange:
    """The bytes of block `index` in an object of `size_bytes`."""
    return ByteRange(index * BLOCK_BYTES, min((index + 1) * BLOCK_BYTES, size_bytes))
