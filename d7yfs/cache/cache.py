"""All object versions that are open now, over one cache directory; keeps the directory within its bounds.

One `CachedVersion` per identity exists at a time, so eight readers of one file share its transfers. Eviction runs in a worker thread, woken
when the directory nears its limit; writers never wait for it: what does not fit meanwhile is kept in memory or not at all.

Built by `daemon`, which runs `run()` in its nursery; `Filesystem` opens versions.
"""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass

import trio

from d7yfs.cache.backing import BackingFile
from d7yfs.cache.budget import MemoryBudget
from d7yfs.cache.directory import CacheDirectory, VersionFiles, boot_tag
from d7yfs.cache.filler import NewFiller
from d7yfs.cache.leases import Leases
from d7yfs.cache.linked import shed_copies
from d7yfs.cache.pace import Pace
from d7yfs.cache.version import CachedVersion
from d7yfs.objects import BLOCK_BYTES, ObjectVersion

log = logging.getLogger(__name__)

_HEADROOM = 0.05
_MAX_HEADROOM_BYTES = 1 << 30
"""Eviction starts when less than this fraction of the size limit can still be written (size limit or free disk), ahead of need, …"""
_LOW_WATER = 0.85
"""… and stops below this one, so that it runs seldom."""
_SCAN_S = 60.0
"""Other daemons write to the directory too: while we do, look at its real size this often."""
_PAUSE_S = 1.0
_IDLE_PAUSE_S = 10.0
"""Pauses after a pass that freed something and one that freed nothing: then all is in use, and an evictor must not spin."""


@dataclass(frozen=True, slots=True)
class CacheStatistics:
    """A snapshot for `status` and metrics; counters are since start."""

    directory: str
    used_bytes: int
    limit_bytes: int
    memory_bytes: int
    memory_limit_bytes: int
    open_versions: int
    hits: int
    misses: int
    disk_bytes_written: int
    taken_over_blocks: int
    """Brought by other daemons on the directory while we had their file open."""
    evicted_files: int
    corrupt_blocks: int
    checksum_mismatches: int
    """Whole files that were not what the provider had recorded."""
    uncached_opens: int


class Cache:
    """The open versions over `directory`, which must be prepared."""

    def __init__(
        self,
        directory: CacheDirectory,
        *,
        memory_buffer_bytes: int,
        read_timeout_s: float,
        pace: Pace | None = None,
    ) -> None:
        self._directory = directory
        self._pace = pace or Pace()
        self._budget = MemoryBudget(memory_buffer_bytes)
        self._read_timeout_s = read_timeout_s
        self._boot_tag = boot_tag()
        self._open: dict[tuple[str, str, str, int], CachedVersion] = {}
        self._evict_wanted, self._asked = trio.Event(), trio.Event()
        self._closed = Counter[str]()  # what versions had counted when they were closed
        self._uncached_opens = 0

    def open(self, origin_identity: str, version: ObjectVersion, new_filler: NewFiller) -> CachedVersion:
        """The open version, held once for the caller, who must `drop` it. Touches local files only; never fails for want of disk."""
        key = (origin_identity, *version.identity)
        cached = self._open.get(key)
        if cached is None:
            cached = CachedVersion(
                version,
                new_filler=new_filler,
                read_timeout_s=self._read_timeout_s,
                pace=self._pace,
                on_last_drop=lambda closing: self._close(key, closing),
            )
            files = self._open_files(origin_identity, version)
            cached.backing = backing = BackingFile(
                version,
                files,
                boot_tag=self._boot_tag,
                budget=self._budget,
                take_room=self._take_room,
                room_left=lambda: self._directory.has_room(BLOCK_BYTES),
                is_wanted=cached.is_wanted,
            )
            cached.leases = Leases(files, keeps=lambda: backing.keeps, missing=cached.missing)
            self._open[key] = cached
        cached.hold()
        return cached

    def cached_bytes(self, origin_identity: str, version: ObjectVersion) -> int:
        """How much of `version` is cached, whether it is open or not."""
        cached = self._open.get((origin_identity, *version.identity))
        if cached is not None:
            return cached.backing.presence.cached_bytes
        return self._directory.cached_bytes(origin_identity, version)

    def set_limits(self, *, size_limit_bytes: int, min_free_bytes: int, memory_buffer_bytes: int) -> None:
        """From now on; what is too much then is evicted."""
        self._directory.size_limit_bytes = size_limit_bytes
        self._directory.min_free_bytes = min_free_bytes
        self._budget.limit_bytes = memory_buffer_bytes
        self._asked.set()
        self._evict_wanted.set()

    def in_use(self) -> list[tuple[str, ObjectVersion, int]]:
        """The open versions: identity of their origin, version, and how much of it is cached."""
        return [(key[0], each.version, each.backing.presence.cached_bytes) for key, each in self._open.items()]

    def _open_files(self, origin_identity: str, version: ObjectVersion) -> VersionFiles | None:
        try:
            return self._directory.open(origin_identity, version)
        except OSError as error:
            log.warning("cache: %s cannot be kept: %s; reading it uncached", version.key, error.strerror or error)
            self._uncached_opens += 1
            return None

    def _close(self, key: tuple[str, str, str, int], cached: CachedVersion) -> None:
        del self._open[key]
        self._closed.update(_counts(cached))
        cached.backing.close()

    @property
    def _headroom_bytes(self) -> int:
        return max(BLOCK_BYTES, min(int(self._directory.size_limit_bytes * _HEADROOM), _MAX_HEADROOM_BYTES))

    @property
    def keepable_bytes(self) -> int:
        """What may be brought, one file after the other, without evicting the first of it: as much as eviction leaves."""
        low_water_bytes = int(self._directory.size_limit_bytes * _LOW_WATER)
        return max(0, min(low_water_bytes, self._directory.capacity_bytes - self._headroom_bytes))

    def _take_room(self, size_bytes: int) -> bool:
        self._asked.set()
        if not self._directory.has_room(size_bytes + self._headroom_bytes):
            self._evict_wanted.set()
            if not self._directory.has_room(size_bytes):
                return False
        self._directory.take(size_bytes)
        return True

    async def run(self) -> None:
        """Count what is there, then evict whenever it is wanted. Runs until cancelled."""
        while True:
            self._evict_wanted, self._asked = trio.Event(), trio.Event()
            freed_bytes = await trio.to_thread.run_sync(self._evict, abandon_on_cancel=True)
            await trio.sleep(_PAUSE_S if freed_bytes else _IDLE_PAUSE_S)
            await self._asked.wait()
            with trio.move_on_after(_SCAN_S):
                await self._evict_wanted.wait()

    def _evict(self) -> int:
        directory, headroom_bytes = self._directory, self._headroom_bytes
        try:
            shed_copies(directory)
            freed_bytes = directory.evict(directory.size_limit_bytes)
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

    def fail_waiters(self, error: Exception) -> None:
        """Answer every reader that waits, at shutdown."""
        for cached in list(self._open.values()):
            cached.fail_waiters(error)

    def statistics(self) -> CacheStatistics:
        counts = self._closed.copy()
        for cached in self._open.values():
            counts.update(_counts(cached))
        return CacheStatistics(
            directory=str(self._directory.path),
            used_bytes=self._directory.used_bytes,
            limit_bytes=self._directory.size_limit_bytes,
            memory_bytes=self._budget.used_bytes,
            memory_limit_bytes=self._budget.limit_bytes,
            open_versions=len(self._open),
            evicted_files=self._directory.evicted_files,
            uncached_opens=self._uncached_opens,
            hits=counts["hits"],
            misses=counts["misses"],
            disk_bytes_written=counts["disk_bytes_written"],
            taken_over_blocks=counts["taken_over_blocks"],
            corrupt_blocks=counts["corrupt_blocks"],
            checksum_mismatches=counts["checksum_mismatches"],
        )


def _counts(cached: CachedVersion) -> dict[str, int]:
    """What one version has counted since it was opened; kept in a sum when it is closed."""
    backing = cached.backing
    return {
        "hits": cached.hits,
        "misses": cached.misses,
        "disk_bytes_written": backing.disk_bytes_written,
        "taken_over_blocks": backing.taken_over_blocks,
        "corrupt_blocks": backing.corrupt_blocks,
        "checksum_mismatches": backing.checksum_mismatches,
    }
