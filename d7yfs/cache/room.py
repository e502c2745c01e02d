"""The room of a cache directory: whether more may be kept in it, and eviction before it is full.

Its account is exact after each count of the directory's files, and may be too high in between,
never too low: a repeated transfer is counted again. What other processes write or delete is seen by
the next count: every minute while there are writes, and when `recount` asks.

Made, run and asked by `Cache`. Trio thread only; the directory is walked in worker threads, by one
at a time.
"""

from __future__ import annotations

import logging

import trio

from d7yfs.cache import earlier
from d7yfs.cache.directory import CacheDirectory
from d7yfs.cache.disk import Disk
from d7yfs.cache.linked import shed_copies
from d7yfs.objects import BLOCK_BYTES

log = logging.getLogger(__name__)

_HEADROOM = 0.05
_MAX_HEADROOM_BYTES = 1 << 30
"""Eviction starts when less than this fraction of the size limit can still be written (size limit
or free disk), ahead of need, …"""
_LOW_WATER = 0.85
"""… and stops below this one, so that it runs seldom."""
_SCAN_S = 60.0
"""Interval in seconds at which the directory's real size is measured while we write: other daemons
write to it too."""
_PAUSE_S = 1.0
_IDLE_PAUSE_S = 10.0
"""Pauses after a pass that freed something and after one that freed nothing: then all is in use,
and an evictor must not spin."""
_LOOK_S = 1.0
"""Interval in seconds at which free disk space is measured while we write: others write too."""
_COUNT_PATIENCE_S = 0.5
"""Longest wait for the first count: what then is not counted is told by `status`."""


class Room:
    """The room of `directory`, which must be prepared, on `disk`."""

    def __init__(self, directory: CacheDirectory, disk: Disk) -> None:
        self._directory = directory
        self._disk = disk
        self._look_at = 0.0
        self._evict_wanted, self._asked = trio.Event(), trio.Event()
        self._counting = trio.Lock()
        self._counted = trio.Event()
        self._full_since: float | None = None
        """When the first block found no room after which none has found any, in trio's seconds."""
        self._earlier_told = False

    @property
    def _headroom_bytes(self) -> int:
        return max(BLOCK_BYTES, min(int(self._directory.size_limit_bytes * _HEADROOM), _MAX_HEADROOM_BYTES))

    @property
    def keepable_bytes(self) -> int:
        """Bytes that may be brought, file after file, before the first of them is evicted."""
        low_water_bytes = int(self._directory.size_limit_bytes * _LOW_WATER)
        return max(0, min(low_water_bytes, self._directory.capacity_bytes - self._headroom_bytes))

    @property
    def is_counted(self) -> bool:
        """True once the directory's files were counted."""
        return self._counted.is_set()

    @property
    def full_s(self) -> float:
        """Seconds since which no block has found room; 0 if there is some."""
        if self._full_since is None or self._directory.has_room(BLOCK_BYTES):
            self._full_since = None
            return 0.0
        return trio.current_time() - self._full_since

    def take(self, size_bytes: int) -> bool:
        """Account for `size_bytes` of one file that are about to be written; False if there is no room."""
        self._asked.set()
        if self._disk.stalled_s:
            return False
        self.look_soon()
        if not self._directory.has_room(size_bytes + self._headroom_bytes):
            self._evict_wanted.set()
            if not self._directory.has_room(size_bytes):
                self._full_since = trio.current_time() if self._full_since is None else self._full_since
                return False
        self._full_since = None
        self._directory.take(size_bytes)
        return True

    def look_soon(self) -> None:
        """Have the disk's free space measured, unless it was just now."""
        if not self._disk.stalled_s and (now := trio.current_time()) >= self._look_at:
            self._look_at = now + _LOOK_S
            self._disk.run_behind(self._directory.look)

    def want_pass(self) -> None:
        """Have the evictor make a pass: limits have changed."""
        self._asked.set()
        self._evict_wanted.set()

    async def recount(self) -> int:
        """Count the directory's files now, and evict as far as that is due; returns bytes freed."""
        async with self._counting:
            freed_bytes = await trio.to_thread.run_sync(self._evict, abandon_on_cancel=True)
            self._counted.set()
            return freed_bytes

    async def until_known(self) -> None:
        """Return once it is known whether there is room: at once, unless the disk is full; the
        directory's own files may fill it, and are counted first, for a moment."""
        if self._directory.shortfall_before(0):
            with trio.move_on_after(_COUNT_PATIENCE_S):
                await self._counted.wait()

    async def run(self) -> None:
        """Count what is there, then evict whenever it is wanted. Runs until cancelled."""
        while True:
            self._evict_wanted, self._asked = trio.Event(), trio.Event()
            freed_bytes = await self.recount()
            await trio.sleep(_PAUSE_S if freed_bytes else _IDLE_PAUSE_S)
            await self._asked.wait()
            with trio.move_on_after(_SCAN_S):
                await self._evict_wanted.wait()

    def _evict(self) -> int:
        directory, headroom_bytes = self._directory, self._headroom_bytes
        try:
            shed_copies(directory)
            freed_bytes = directory.evict(directory.size_limit_bytes)
            freed_bytes += self._drop_earlier()
            if not directory.has_room(headroom_bytes):
                target_bytes = min(
                    int(directory.size_limit_bytes * _LOW_WATER),
                    directory.used_bytes - directory.shortfall_before(headroom_bytes),
                )
                freed_bytes += directory.evict(target_bytes)
        except OSError as error:
            log.warning("cache: %s could not be tidied: %s", directory.path, error.strerror)
            return 0
        return freed_bytes

    def _drop_earlier(self) -> int:
        def left(size_bytes: int) -> None:
            self._directory.earlier_bytes = size_bytes

        dropped = earlier.drop(self._directory.path, left)
        if dropped.files and not self._earlier_told:
            self._earlier_told = True
            later = f"; {len(dropped.kept)} files more once no process has them open" if dropped.kept else ""
            size_gib = dropped.disk_bytes / (1 << 30)
            log.info("cache: %.1f GiB of an earlier version's format are dropped%s", size_gib, later)
        return dropped.disk_bytes
