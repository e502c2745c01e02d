"""The memory that a campaign's processes share: each mount's generation, each client's progress,
and the order to stop.

A mount's generation is even while it is up. It is odd from just before its daemon is killed until
the remount.
"""

from __future__ import annotations

import mmap
import os
import struct
from pathlib import Path

_SLOTS = 64
_WORD = struct.Struct("<Q")


class Shared:
    """A file of 64 words: 0 is the order to stop, 1 to 9 are generations.

    Words from 10 on are each client's operations, and 60 is the slowest listing.
    """

    def __init__(self, path: Path) -> None:
        fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        os.ftruncate(fd, _SLOTS * _WORD.size)
        self._words = mmap.mmap(fd, _SLOTS * _WORD.size)
        os.close(fd)

    def get(self, slot: int) -> int:
        return int(_WORD.unpack_from(self._words, slot * _WORD.size)[0])

    def set(self, slot: int, value: int) -> None:
        _WORD.pack_into(self._words, slot * _WORD.size, value)

    @property
    def is_over(self) -> bool:
        return bool(self.get(0))

    def stop(self) -> None:
        self.set(0, 1)

    def generation(self, mount: int) -> int:
        return self.get(1 + mount)

    def turn(self, mount: int) -> None:
        """Advance the generation: the mount goes down, or is up again."""
        self.set(1 + mount, self.generation(mount) + 1)

    @property
    def slowest_listing_s(self) -> float:
        """Seconds that the slowest of the recent listings took, as the mounts report."""
        return self.get(60) / 1e6

    @slowest_listing_s.setter
    def slowest_listing_s(self, seconds: float) -> None:
        self.set(60, int(seconds * 1e6))

    def done(self, client: int) -> int:
        return self.get(10 + client)

    def set_done(self, client: int, operations: int) -> None:
        self.set(10 + client, operations)
