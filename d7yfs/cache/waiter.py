"""A read of a cached version that waits for its bytes. Used by `CachedVersion`. Trio thread only."""

from __future__ import annotations

import trio

from d7yfs.cache.linked import Cold
from d7yfs.objects import ByteRange

Served = tuple[bytearray, Cold]
"""The result of `BackingFile.begin_read`: the bytes that it has copied, and the pieces that a
thread must read from the disk."""


class Waiter:
    """A read that waits: `needs` is the first byte it cannot read yet. A watcher wants no bytes and
    hurries no transfer."""

    __slots__ = ("error", "event", "needs", "served", "wanted", "watches")

    def __init__(self, wanted: ByteRange, needs: int, *, watches: bool = False) -> None:
        self.wanted = wanted
        self.needs = needs
        self.watches = watches
        self.event = trio.Event()
        self.served: Served | None = None
        self.error: Exception | None = None
