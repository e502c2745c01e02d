"""All object versions that are open now, over one cache directory, which is kept within its bounds.

One `CachedVersion` per identity exists at a time, so eight readers of one file share its transfers
and its opening. A version whose files cannot be opened in time is read uncached until its last
handle is closed: the disk stalls, or another process holds their lock.

All calls that may wait for the disk go through `Disk`. Writers never wait for eviction (`Room`):
blocks that do not fit meanwhile are kept in memory or not at all.

Built by `daemon`, which runs its room in its nursery; `Filesystem` opens versions.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path

import trio

from d7yfs.cache.backing import BackingFile
from d7yfs.cache.descriptors import SMALL_BYTES, Descriptors, VersionUse
from d7yfs.cache.directory import TRIES, CacheDirectory, Locked
from d7yfs.cache.disk import STALL_S, Disk, Lane
from d7yfs.cache.filler import NewFiller
from d7yfs.cache.grants import RecordedGrants, digest, read_grants
from d7yfs.cache.leases import Leases
from d7yfs.cache.linked import LinkedStore
from d7yfs.cache.memory import MemoryBudget
from d7yfs.cache.pair import VersionFiles
from d7yfs.cache.proof import Proof, RecordedProof, read_proof
from d7yfs.cache.room import Room
from d7yfs.cache.version import CachedVersion
from d7yfs.config.size_bound import SizeBound
from d7yfs.errors import TooManyOpenFiles
from d7yfs.host.descriptors import SHORTAGE
from d7yfs.objects import BLOCK_BYTES, ObjectVersion, StoreIdentity
from d7yfs.stats.cache_status import CacheStatus

log = logging.getLogger(__name__)

_Key = tuple[StoreIdentity, str, str, int]
_Open = dict[NewFiller, CachedVersion]
"""One version as repositories have it open, by the maker of their fillers: each fetches with its own
credentials, and they share the pair on disk as daemons do."""

_LOCK_POLL_S = 0.1
"""Interval in seconds at which a lock of another process is tried: its end is no event."""
_SHORTAGE_S = 1.0
"""The longest time that an open waits for descriptors."""


class Cache:
    """The open versions over `directory`, which must be prepared."""

    def __init__(
        self,
        directory: CacheDirectory,
        *,
        memory_buffer_bytes: int,
        read_timeout_s: float,
        disk: Disk | None = None,
        descriptors: Descriptors | None = None,
    ) -> None:
        self._directory = directory
        # A client that waits for an open has a deadline, and is to have its file before.
        self._disk = disk or Disk(patience_s=min(STALL_S, read_timeout_s / 2))
        self._descriptors = descriptors or Descriptors()
        self._budget = MemoryBudget(memory_buffer_bytes)
        self._read_timeout_s = read_timeout_s
        self._boot_tag = boot_tag()
        self._open: dict[_Key, _Open] = {}
        self._opening: dict[_Key, trio.Event] = {}
        self.room = Room(directory, self._disk)
        """Its `run` has to run."""
        self._counts = Counter[str]()  # counted by the versions
        self._uncached_opens = 0

    async def open(self, store: StoreIdentity, version: ObjectVersion, new_filler: NewFiller) -> CachedVersion:
        """Open `version`, held once for the caller, who must `drop` it.

        Callers with the same `new_filler` have the same version. One of another repository fetches
        by itself, as its credentials may be others.

        Never fails when there is no disk: without one, or when it does not answer within its
        patience, the version is uncached. Raises TooManyOpenFiles when descriptors stay short.
        """
        key = (store, *version.identity)
        deadline = trio.current_time() + _SHORTAGE_S
        while (cached := self.open_at_once(store, version, new_filler)) is None:
            if (opening := self._opening.get(key)) is not None:
                await opening.wait()
                continue
            self._opening[key] = trio.Event()
            try:
                await self._descriptors.when_spared(partial(self._open_new, key, version, new_filler), deadline)
            finally:
                self._opening.pop(key).set()
        return cached

    def open_at_once(
        self, store: StoreIdentity, version: ObjectVersion, new_filler: NewFiller, *, blank: bool = False
    ) -> CachedVersion | None:
        """`open`, if it waits for nothing: the version is open, or the disk has just taken a write.

        With `blank` also a large one that is known to be absent: its files are made when its first bytes
        come, which need not wait for that. Other daemons see no lease until then, so it is for the only one.
        """
        key = (store, *version.identity)
        cached = self._open.get(key, {}).get(new_filler)
        if cached is None and self._disk.is_prompt and key not in self._opening:
            try:
                files = self._open_pair(store, version, tries=1)
                self._take(files)
                cached = self._admit(key, version, files, new_filler)
            except (OSError, TooManyOpenFiles):
                return None  # locked, or a failure that `open` tells of
        elif cached is None and blank and self._may_be_blank(key, version):
            cached = self._make(key, version, None, new_filler)
            cached.use.is_asleep = True
            cached.backing.is_absent = partial(self._directory.is_absent, store, version)
            self._open.setdefault(key, {})[new_filler] = cached
        if cached is not None:
            cached.hold()
        return cached

    def _may_be_blank(self, key: _Key, version: ObjectVersion) -> bool:
        return (
            version.size_bytes > BLOCK_BYTES
            and not self._disk.stalled_s
            and key not in self._open
            and key not in self._opening
            and self._directory.is_absent(key[0], version)
        )

    async def _open_new(self, key: _Key, version: ObjectVersion, new_filler: NewFiller) -> None:
        self._admit(key, version, await self._open_files(key[0], version), new_filler)

    def _admit(
        self, key: _Key, version: ObjectVersion, files: VersionFiles | None, new_filler: NewFiller
    ) -> CachedVersion:
        """Add a version that was opened. Raises TooManyOpenFiles."""
        if files is not None and self._descriptors.are_short(files.map_fd):
            self._disk.run_soon(files.close)
            raise _descriptors_are_short(version)
        cached = self._make(key, version, files, new_filler)
        self._open.setdefault(key, {})[new_filler] = cached
        self._descriptors.add(cached.use)
        return cached

    def _make(
        self, key: _Key, version: ObjectVersion, files: VersionFiles | None, new_filler: NewFiller
    ) -> CachedVersion:
        lane = Lane(self._disk)
        cached = CachedVersion(
            version,
            new_filler=new_filler,
            read_timeout_s=self._read_timeout_s,
            lane=lane,
            on_last_drop=lambda closing: self._close(key, new_filler, closing),
        )
        cached.backing = backing = BackingFile(
            version,
            files,
            lane=lane,
            boot_tag=self._boot_tag,
            budget=self._budget,
            take_room=self.room.take,
            room_left=lambda: not self._disk.stalled_s and self._directory.has_room(BLOCK_BYTES),
            is_wanted=cached.is_wanted,
            counts=self._counts,
        )
        cached.use = VersionUse(
            version.key,
            lane,
            self._descriptors,
            close=partial(_lay_to_rest, cached),
            reopen=partial(self._reopen, key[0], cached),
        )
        cached.leases = Leases(files, lane, keeps=lambda: backing.keeps, missing=cached.missing)
        cached.grants = RecordedGrants(files, self._disk)
        cached.proof = RecordedProof(files, self._disk)
        return cached

    async def _reopen(self, store: StoreIdentity, cached: CachedVersion) -> None:
        files = await self._open_files(store, cached.version, again=True)
        cached.backing.use(files)
        cached.leases.use(files)
        cached.grants.use(files)
        cached.proof.use(files)

    def digest(self, principal: str) -> str:
        """The name of the records of grants to `principal` in this directory."""
        return digest(self._directory.grant_key, principal)

    def open_bytes(self, store: StoreIdentity, version: ObjectVersion) -> int | None:
        """Cached bytes of `version` if it is open, else None."""
        found = self._open.get((store, *version.identity))
        return None if found is None else max(each.cached_bytes for each in found.values())

    async def cached_bytes(self, store: StoreIdentity, versions: Iterable[ObjectVersion]) -> list[int]:
        """Cached bytes of each version, open or not. Raises OSError when the disk does not tell."""
        versions = [*versions]
        known = [self.open_bytes(store, each) for each in versions]
        unknown = [each for each, cached_bytes in zip(versions, known, strict=True) if cached_bytes is None]
        looked = iter(await self._disk.run(partial(self._look_at_maps, store, unknown)) if unknown else ())
        return [next(looked) if cached_bytes is None else cached_bytes for cached_bytes in known]

    async def proof(self, store: StoreIdentity, version: ObjectVersion) -> Proof | None:
        """How far a version, open or not, is proved that came through Dragonfly; None for others.

        Raises OSError when the disk does not tell.
        """
        for cached in self._open.get((store, *version.identity), {}).values():
            return cached.proof.value
        return await self._disk.run(partial(self._directory.proof, store, version))

    def look(self, store: StoreIdentity, versions: Sequence[ObjectVersion], tell: Callable[[list[int]], None]) -> None:
        """Measure closed versions as `cached_bytes`, without waiting: a thread calls `tell`."""
        self._disk.run_behind(lambda: tell(self._look_at_maps(store, versions)))

    def _look_at_maps(self, store: StoreIdentity, versions: Sequence[ObjectVersion]) -> list[int]:
        return [self._directory.cached_bytes(store, each) for each in versions]

    def set_limits(self, size: SizeBound, min_free: SizeBound, memory_buffer_bytes: int) -> None:
        """Set the limits from now on; what is too much then is evicted."""
        self._directory.set_bounds(size, min_free)
        self._budget.limit_bytes = memory_buffer_bytes
        self.room.want_pass()

    def in_use(self) -> list[tuple[StoreIdentity, ObjectVersion, int]]:
        """The open versions: store, version, and cached bytes of each."""
        most = {key: max(found.values(), key=lambda each: each.cached_bytes) for key, found in self._open.items()}
        return [(key[0], each.version, each.cached_bytes) for key, each in most.items()]

    def opened(self) -> list[CachedVersion]:
        """The open versions, one for each repository that has them open."""
        return [each for found in self._open.values() for each in found.values()]

    async def _open_files(
        self, store: StoreIdentity, version: ObjectVersion, *, again: bool = False
    ) -> VersionFiles | None:
        try:
            if again:  # the map must have what was learnt before it was closed
                await self._disk.wait_for_earlier()
            files = await self._open_when_unlocked(partial(self._open_pair, store, version))
        except OSError as error:
            if error.errno in SHORTAGE:
                raise _descriptors_are_short(version) from error
            log.warning("cache: %s cannot be kept: %s; reading it uncached", version.key, error.strerror or error)
            self._disk.note_error(error)
            self._uncached_opens += 1
            return None
        self._take(files)
        return files

    def _take(self, files: VersionFiles) -> None:
        """Take account of a pair that was opened."""
        self._directory.note_opened(files)
        if not files.made_bytes:
            # Not waited for: a frozen file system opens what it has, and can be read.
            self._disk.run_soon(partial(self._disk.prove_with, files.touch))

    async def _open_when_unlocked(self, open_pair: Callable[[], VersionFiles]) -> VersionFiles:
        """Open a pair in a thread, none between tries: many may be locked. Raises OSError."""
        deadline = trio.current_time() + self._disk.patience_s
        while True:
            try:
                return await self._disk.run(open_pair, late=lambda files: self._disk.run_behind(files.close))
            except Locked:
                if trio.current_time() + _LOCK_POLL_S >= deadline:
                    raise
            await trio.sleep(_LOCK_POLL_S)

    def _open_pair(self, store: StoreIdentity, version: ObjectVersion, tries: int = TRIES) -> VersionFiles:
        files = self._directory.open(store, version, tries=tries)
        if not files.made_bytes:
            files.grants, files.proof = read_grants(files.map_fd), read_proof(files.map_fd)
        if files.has_link:
            files.linked = LinkedStore(files, version.size_bytes, self._boot_tag, self._disk)
            with contextlib.suppress(OSError):
                files.linked.open()
            if any(files.linked.known()):
                files.proof = files.proof or Proof.PENDING
        return files

    def _close(self, key: _Key, new_filler: NewFiller, cached: CachedVersion) -> None:
        found = self._open[key]
        del found[new_filler]
        if not found:
            del self._open[key]
        self._descriptors.remove(cached.use)
        cached.backing.close()

    async def settle(self) -> None:
        """Return once the disk has all entries and times of use."""
        await self._disk.wait_until_quiet()

    def fail_waiters(self, error: Exception) -> None:
        """Answer every reader that waits with `error`, at shutdown."""
        for cached in self.opened():
            cached.fail_waiters(error)

    def statistics(self) -> CacheStatus:
        counts = self._counts
        self.room.look_soon()
        return CacheStatus(
            directory=str(self._directory.path),
            used_bytes=self._directory.used_bytes,
            limit_bytes=self._directory.size_limit_bytes,
            memory_bytes=self._budget.used_bytes,
            memory_limit_bytes=self._budget.limit_bytes,
            open_versions=len(self.opened()),
            evicted_files=self._directory.evicted_files,
            uncached_opens=self._uncached_opens,
            disk_stalled_s=round(self._disk.stalled_s, 3),
            disk_error=self._disk.error,
            free_bytes=self._directory.free_bytes,
            min_free_bytes=self._directory.min_free_bytes,
            keepable_bytes=self.room.keepable_bytes if self.room.is_counted else None,
            full_s=round(self.room.full_s, 3),
            hits=counts["hits"],
            misses=counts["misses"],
            disk_bytes_written=counts["disk_bytes_written"],
            taken_over_blocks=counts["taken_over_blocks"],
            corrupt_blocks=counts["corrupt_blocks"],
            checksum_mismatches=counts["checksum_mismatches"],
        )


def _lay_to_rest(cached: CachedVersion) -> bool:
    known = cached.proof.value
    if not cached.backing.rest(but_map=cached.version.size_bytes > SMALL_BYTES):
        return False
    cached.proof.rest(known)
    return True


def _descriptors_are_short(version: ObjectVersion) -> TooManyOpenFiles:
    return TooManyOpenFiles(
        f"{version.key}: the daemon's file descriptors are used up",
        hint="close files, or raise the limit on open files of the daemon (LimitNOFILE of systemd, ulimit -Hn)",
    )


def boot_tag() -> int:
    """A non-zero 32-bit tag of the running boot, which only entries of this boot carry.

    A block is written before its entry, and the page cache outlives a killed process, so an entry
    of this boot is proof. After a power loss it is not: the disk may hold the entry without the
    block.
    """
    boot_id = Path("/proc/sys/kernel/random/boot_id").read_bytes().strip()
    return int.from_bytes(hashlib.sha256(boot_id).digest()[:4], "little") | 1
