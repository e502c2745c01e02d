"""An object version that is open: who holds it, whether it is awake, and how much of it is there.

It stays open while a handle, a running read or a transfer holds it. It may be asleep (`VersionUse`)
while only handles do. Base of `CachedVersion`, which reads and fills it. Trio thread only.
"""

from __future__ import annotations

from collections.abc import Callable

import trio

from d7yfs.cache.backing import BackingFile
from d7yfs.cache.descriptors import VersionUse
from d7yfs.objects import ByteRange, ObjectVersion


class OpenVersion:
    """An open version; every `hold` is balanced by a `drop`, and the last one calls `on_last_drop`."""

    def __init__(self, version: ObjectVersion, read_timeout_s: float, on_last_drop: Callable[[], None]) -> None:
        self.version = version
        self.holds = 0
        self._comparisons = 0
        """Comparisons with the store's checksum that are under way."""
        self._compared: trio.Event | None = None
        """Set once none is under way; made by the first who waits for that."""
        self.backing: BackingFile
        self.use: VersionUse
        """Set by `Cache.open`, as `backing` is: they need this object's methods."""
        self._read_timeout_s = read_timeout_s
        self._last_progress = 0.0
        self._on_last_drop = on_last_drop
        self._when_whole: list[Callable[[], None]] = []

    def hold(self) -> None:
        """Keep the version open for a handle; balanced by `drop`."""
        self.holds += 1

    def drop(self) -> None:
        self.holds -= 1
        if not self.holds:
            self._on_last_drop()

    def begin_work(self) -> None:
        """Keep the version open, and awake, while bytes are read or written; balanced by
        `end_work`."""
        self.holds += 1
        self.use.begin()

    def end_work(self) -> None:
        self.use.end()
        self.use.settle()
        self.drop()

    @property
    def is_asleep(self) -> bool:
        """True if its files are closed, and `wake` must come before anything is read."""
        return self.use.is_asleep and not self.backing.is_absent()

    async def wake(self) -> None:
        """Open its files again. It stays awake for as long as the caller does not await.

        Raises ReadTimeout while descriptors are used up."""
        self.begin_work()
        try:
            await self.use.wake(self._deadline(trio.current_time()))
        finally:
            self.use.end()
            self.drop()

    @property
    def is_complete(self) -> bool:
        """True if no block is absent: there is nothing to bring."""
        return not self.backing.presence.absent_count

    def has(self, wanted: ByteRange) -> bool:
        """True if `read` would return `wanted` at once."""
        return self.backing.presence.first_unreadable(wanted) is None

    @property
    def is_whole(self) -> bool:
        """True if all of it is on disk."""
        return self.backing.presence.all_on_disk

    @property
    def whole_file(self) -> int | None:
        """The descriptor of a file with all bytes, each verified, and no others, for the kernel to
        read by itself; None where there is none, or it may yet prove wrong.
        """
        return None if self._comparisons else self.backing.whole_file

    def begin_comparison(self) -> None:
        """Note a comparison with the store's checksum, which ends with `end_comparison`."""
        self._comparisons += 1

    def end_comparison(self) -> None:
        self._comparisons -= 1
        if not self._comparisons and self._compared is not None:
            self._compared.set()
            self._compared = None

    async def compared(self) -> None:
        """Return once no comparison is under way."""
        while self._comparisons:
            self._compared = self._compared or trio.Event()
            await self._compared.wait()

    @property
    def cached_bytes(self) -> int:
        """Bytes that are on disk, as far as is known here."""
        return self.backing.presence.cached_bytes

    @property
    def taken_over_blocks(self) -> int:
        """Blocks of this version that other daemons have brought while it was open here."""
        return self.backing.taken_over_blocks

    def _deadline(self, asked_at: float) -> float:
        return max(asked_at, self._last_progress) + self._read_timeout_s

    def _tell_whole(self) -> None:
        if self._when_whole and self.is_whole:
            told, self._when_whole = self._when_whole, []
            for tell in told:
                tell()

    def call_when_whole(self, tell: Callable[[], None]) -> None:
        """Call `tell`, once, when the last missing block lands on disk, from any daemon."""
        self._when_whole.append(tell)
