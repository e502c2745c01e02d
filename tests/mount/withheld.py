"""`d7yfs` on a kernel that does not offer some features of FUSE.

WITHHELD_FEATURES are their bits in INIT. The kernel behaves as one that has none of them, since nobody
asks for them. `test_features.py` runs it in a process of its own.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from pathlib import Path

from d7yfs.cli import main
from d7yfs.fuse import wire
from d7yfs.fuse.wire import InitFlag, Opcode

WITHHELD_VARIABLE = "WITHHELD_FEATURES"
_FLAGS2 = struct.Struct("=I")


def main_without(withheld: int) -> None:
    if withheld & InitFlag.INIT_EXT:
        withheld |= 0xFFFF_FFFF << 32
    readv = os.readv

    def reading(fd: int, buffers: Sequence[bytearray]) -> int:
        count = readv(fd, buffers)
        if str(Path(f"/proc/self/fd/{fd}").readlink()) != "/dev/fuse":
            return count  # of a connection to the store
        if wire.IN_HEADER.unpack_from(buffers[0])[1] == Opcode.INIT:
            body = memoryview(buffers[0])[wire.IN_HEADER.size :]
            major, minor, max_readahead, low = wire.INIT_IN.unpack_from(body)
            wire.INIT_IN.pack_into(body, 0, major, minor, max_readahead, low & ~withheld)
            (high,) = _FLAGS2.unpack_from(body, wire.INIT_IN.size)
            _FLAGS2.pack_into(body, wire.INIT_IN.size, high & ~(withheld >> 32) & 0xFFFF_FFFF)
        return count

    os.readv = reading  # type: ignore[assignment]
    main()


if __name__ == "__main__":
    main_without(int(os.environ[WITHHELD_VARIABLE]))
