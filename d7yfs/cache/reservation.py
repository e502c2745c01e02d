"""Blocks of an open version that another process writes into its data file.

Made by `CachedVersion.reserve` for a transfer, which tells it what has been written. Trio thread
only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from d7yfs.objects import ByteRange

if TYPE_CHECKING:
    from d7yfs.cache.backing import BackingFile
    from d7yfs.cache.pair import Arriving


class Reservation:
    """The range `wanted` that the process may write, in order, into the file `fd` at the same
    offsets. `crc` is the CRC32C of the bytes of the first block that lie before it.
    """

    def __init__(self, backing: BackingFile, wanted: ByteRange, fd: int, blocks: dict[int, Arriving]) -> None:
        """`blocks`, by index, is what is known of them; other transfers may bring the same ones."""
        self.wanted = wanted
        self.fd = fd
        self.blocks = blocks
        self.crc = next(iter(blocks.values())).crc
        self.on_landed: Callable[[int, int], None] = lambda _start, _stop: None
        """Told of each range that has become readable."""
        self._backing = backing
        self._position = wanted.start

    def land(self, position: int, crcs: Sequence[int]) -> None:
        """Make readable what is written up to `position`; `crcs` are those of the blocks that were
        touched since the last call."""
        start, self._position = self._position, position
        if position > start:
            self._backing.land_reserved(self.blocks, ByteRange(start, position), crcs)
            self.on_landed(start, position)

    def refuse(self, error: OSError) -> None:
        """Note that the file did not take the bytes: reading goes on uncached."""
        self._backing.refuse_reserved(self.blocks, error)

    def last_landed(self, size_bytes: int) -> bytes | None:
        """The last bytes that have landed; None if they are not at hand."""
        return self._backing.last_landed(ByteRange(max(0, self._position - size_bytes), self._position))
