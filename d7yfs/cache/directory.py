"""The cache directory on disk: where a version's files lie, when they may be deleted, how much room
there is.

Layout, version 2 (`FORMAT` names the directory, so daemons of another format never meet these
files):

    CACHE_DIR/v2/a/abcdef….data    sparse, as long as the object: the bytes
    CACHE_DIR/v2/a/abcdef….map     header (identity; st_dev, st_ino of data), 8 bytes a block
    CACHE_DIR/v2/grants.key        the key of the digests in `d7yfs.cache.grants`
    CACHE_DIR/v2/names/            the names of repositories, for the next mount (`d7yfs.cache.kept_names`)

dfdaemon's file of the same version may be hard-linked next to a pair (`d7yfs.cache.linked`). While
dfdaemon has it too, it takes none of our room and deleting it frees none: only a link that is the
file's last is counted.

The name is the SHA-256 of the version's identity, JSON in the map's header: the store's fields,
key, validator, size. Two daemons of one uid may use one directory. Files of earlier formats are
never served, and are deleted (`d7yfs.cache.earlier`).

Locks (flock on the map file): every opener holds it shared while it has the map open; a process
that creates or deletes the pair holds it exclusively. So a pair that is held anywhere is never
evicted, and a half-made pair is never used. The map is made first and deleted last, so the holder
of its lock owns the data's name too. Eviction unlinks whole files and never truncates or punches:
an open descriptor stays right.

Called by `Cache`: calls that may wait for the disk from worker threads, the account of used and
free bytes from the trio thread.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import logging
import os
import random
import secrets
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from d7yfs.cache import private_directory
from d7yfs.cache.census import Census
from d7yfs.cache.grants import KEY_BYTES, load_key
from d7yfs.cache.kept_names import NAMES, PART, KeptNames
from d7yfs.cache.pair import (
    HEADER_BYTES,
    INCOMING,
    Presence,
    VersionFiles,
    block_count,
    data_path_of,
    identity_of,
    lock,
    make_pair,
    opened,
    read_map,
    same_file,
)
from d7yfs.cache.proof import Proof, read_proof
from d7yfs.cache.table import ENTRY_BYTES, Entries, blank_entries, nonzero, states_of
from d7yfs.config.size_bound import SizeBound
from d7yfs.errors import CacheUnusable
from d7yfs.host.mount_table import mount_table
from d7yfs.objects import ObjectVersion, StoreIdentity

FORMAT = "v2"
EARLIER_FORMATS = ("v1",)
"""v1: it may hold bytes of replies that carried no validator."""
SHARDS = (*"0123456789abcdef", INCOMING)
"""The directories of one format."""
_STEP_S = 0.002
"""Seconds by which openers of one new pair are moved apart: longer than making it takes."""
TRIES = 64
_DISK_UNIT_BYTES = 4096
_FORGOTTEN_S = 3600.0
"""After so many seconds an incoming link was forgotten by a daemon that died."""

log = logging.getLogger(__name__)


class Locked(OSError):
    """A version cannot be opened: another process holds the exclusive lock of its map or its
    damaged files.
    """

    def __init__(self, map_path: Path) -> None:
        super().__init__(errno.EBUSY, "another process holds its files in the cache", str(map_path))


class CacheDirectory:
    """One cache directory, as this process sees it: the last scan, and what we have taken since.

    Two threads share the account without a lock: only the trio thread writes `_taken_bytes`, only
    the evicting one `_scan`.
    """

    def __init__(self, path: Path, *, size_limit_bytes: int, min_free_bytes: int) -> None:
        self.path = path
        self.size_limit_bytes = size_limit_bytes
        self.min_free_bytes = min_free_bytes
        self.evicted_files = 0
        self.earlier_bytes = 0
        """Bytes of earlier formats (`d7yfs.cache.earlier`); written by the evicting thread."""
        self._taken_bytes = 0
        self._scan = (0, 0)
        """Bytes found by the last scan, and `_taken_bytes` when it began: bytes that came during a
        scan count twice rather than never."""
        self._look = (0, 0)
        """Free bytes of the disk when it was measured last, and `_taken_bytes` at that time."""
        self._looked = False
        self._root = path / FORMAT
        self._on_tmpfs = False
        self.names = KeptNames(path / FORMAT / NAMES)
        self._census = Census()
        self.grant_key = secrets.token_bytes(KEY_BYTES)
        """The key of `grants.digest`; of this process alone until `take_grant_key`."""

    @classmethod
    def bounded(cls, path: Path, size: SizeBound, min_free: SizeBound) -> CacheDirectory:
        """The directory at `path` with these bounds, of the file system that holds or will hold it."""
        directory = cls(path, size_limit_bytes=0, min_free_bytes=0)
        directory.set_bounds(size, min_free)
        return directory

    def set_bounds(self, size: SizeBound, min_free: SizeBound) -> None:
        """Set both limits, of which a percentage means the file system as it is now."""
        try:
            disk = os.statvfs(existing(self.path))
            total_bytes = disk.f_blocks * disk.f_frsize
        except OSError:
            total_bytes = 0  # nothing can be kept there, as `prepare` will say
        self.size_limit_bytes, self.min_free_bytes = size.of(total_bytes), min_free.of(total_bytes)

    def prepare(self) -> None:
        """Create the directory (0700) or check that it is ours alone. Raises CacheUnusable."""
        try:
            private_directory.prepare(self.path, ours=(FORMAT, *EARLIER_FORMATS))
            self._root.mkdir(mode=0o700, exist_ok=True)
            private_directory.prepare(self._root)
            probe = self._root / f".probe-{os.getpid()}"
            probe.write_bytes(b"")
            probe.unlink()
            self.look()
            self._on_tmpfs = _is_tmpfs(self._root)
            # Now, because making one would be most of the cost of a file's first open. So few,
            # because each that is not in the kernel's cache costs a disk access.
            for shard in SHARDS:
                (self._root / shard).mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise CacheUnusable(
                f"cache directory {self.path} cannot be used: {error.strerror}",
                hint="make it a writable directory on a local disk, or name another with --cache-dir",
            ) from error

    def take_grant_key(self) -> None:
        """Use the directory's key for records of grants; make it at first. After `prepare`."""
        # On a disk that is full, records of this process count for it alone.
        with contextlib.suppress(OSError):
            self.grant_key = load_key(self._root / "grants.key")

    def join(self) -> None:
        """Let other daemons know of this one, from now on. After `prepare`."""
        self._census.join(self._root / "daemons")

    def is_absent(self, store: StoreIdentity, version: ObjectVersion) -> bool:
        """True if `version` is known to have no files; False before `join` and the first scan."""
        return self._census.is_absent(self._map_path(identity_of(store, version)).stem)

    def open(self, store: StoreIdentity, version: ObjectVersion, *, tries: int = TRIES) -> VersionFiles:
        """Open the pair of `version`, made anew when it is absent or damaged.

        For any thread; with one try it never sleeps. Raises Locked while another process holds the
        lock exclusively, for longer than making a pair takes. Raises OSError (disk full, read-only,
        …): the version is then read uncached.
        """
        identity = identity_of(store, version)
        map_path = self._map_path(identity)
        for left in reversed(range(tries)):
            try:
                map_fd = os.open(map_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            except FileNotFoundError:  # the cache directory was emptied under us
                self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
                map_path.parent.mkdir(mode=0o700, exist_ok=True)
                continue
            files = None
            try:
                files = self._open_locked(map_path, map_fd, identity, version.size_bytes)
            finally:
                if files is None:
                    os.close(map_fd)
            if files is not None:
                return files
            # Two openers that find the same unfinished pair block each other: each sees the other's
            # lock. Out of step, one is first.
            time.sleep(random.uniform(0, _STEP_S) if left else 0)  # noqa: S311  # jitter, not cryptography
        raise Locked(map_path)

    def cached_bytes(self, store: StoreIdentity, version: ObjectVersion) -> int:
        """Bytes of the blocks of `version` on disk; leaves no trace. For a worker thread."""
        identity = identity_of(store, version)
        map_path = self._map_path(identity)
        entries = _stored_entries(map_path, map_path.with_suffix(".data"), identity, version.size_bytes)
        if entries is None:
            return 0
        link_map, link = map_path.with_suffix(".linkmap"), map_path.with_suffix(".link")
        linked = _stored_entries(link_map, link, identity, version.size_bytes)
        for index, entry in nonzero(linked) if linked is not None else ():
            entries[index] |= entry
        # True is Block.DISK.
        return Presence(version.size_bytes, states_of(entries, lambda run: bytes(map(bool, run)))).cached_bytes

    def proof(self, store: StoreIdentity, version: ObjectVersion) -> Proof | None:
        """The record of `version`'s proof; leaves no trace. For a worker thread."""
        identity = identity_of(store, version)
        map_path = self._map_path(identity)
        with contextlib.suppress(OSError), opened(map_path, os.O_RDONLY) as map_fd:
            if read_map(map_fd, map_path.with_suffix(".data"), identity, version.size_bytes) is not None:
                return read_proof(map_fd)
        return None

    def _map_path(self, identity: bytes) -> Path:
        digest = hashlib.sha256(identity).hexdigest()
        return self._root / f"{digest[0]}/{digest}.map"

    def _open_locked(self, map_path: Path, map_fd: int, identity: bytes, size_bytes: int) -> VersionFiles | None:
        """Open the pair behind `map_fd`; None when it was replaced and must be opened again."""
        data_path = data_path_of(map_path)
        if not lock(map_fd, fcntl.LOCK_SH):
            return None  # it is being made or deleted, or is locked for long
        if os.fstat(map_fd).st_size:  # else it is new, or was never made to the end
            if not same_file(map_path, map_fd):
                return None
            entries = read_map(map_fd, data_path, identity, size_bytes)
            if entries is not None:
                try:
                    data_fd = os.open(data_path, os.O_RDWR | os.O_CLOEXEC)
                    return VersionFiles(data_fd, map_path, map_fd, entries, self._on_tmpfs, identity)
                except FileNotFoundError:
                    return None
        if not lock(map_fd, fcntl.LOCK_EX):
            return None  # another opener is at the same point: re-read what it makes
        if not same_file(map_path, map_fd):
            return None
        if os.fstat(map_fd).st_size:
            if read_map(map_fd, data_path, identity, size_bytes) is not None:
                return None  # made by another opener between our two locks
            # Damaged. A daemon that still holds the old pair must never write its blocks into the
            # new map, so the file is left to that daemon and a new one is made.
            log.warning("cache: %s does not fit its object; made anew", map_path.name)
            map_path.unlink()
            return None
        data_fd = make_pair(map_path, map_fd, identity, size_bytes)
        # flock(2): a conversion lets go of the old lock first, so an evictor may slip in between.
        if not lock(map_fd, fcntl.LOCK_SH) or not same_file(map_path, map_fd):
            os.close(data_fd)
            return None
        entries = blank_entries(block_count(size_bytes))
        made_bytes = os.fstat(map_fd).st_blocks * 512 or HEADER_BYTES
        return VersionFiles(data_fd, map_path, map_fd, entries, self._on_tmpfs, identity, made_bytes)

    @property
    def used_bytes(self) -> int:
        """Bytes on disk: our share or, until a scan, more after a repeated transfer."""
        found_bytes, taken_bytes = self._scan
        return found_bytes + self.earlier_bytes + self._taken_bytes - taken_bytes

    def note_opened(self, files: VersionFiles) -> None:
        """Note that a version has files, and account for those that were made."""
        self._census.note(files.map_path.stem)
        self.take(files.made_bytes)

    def take(self, size_bytes: int) -> None:
        """Account for `size_bytes` of one file that are about to be written."""
        self._taken_bytes += -(-size_bytes // _DISK_UNIT_BYTES) * _DISK_UNIT_BYTES

    def has_room(self, size_bytes: int) -> bool:
        """True if `size_bytes` more fit below the limit, and the disk keeps `min_free_bytes`."""
        return (
            self.used_bytes + size_bytes <= self.size_limit_bytes
            and self.free_bytes - size_bytes >= self.min_free_bytes
        )

    @property
    def capacity_bytes(self) -> int:
        """Bytes that the directory may hold, if all that is in it were replaced."""
        return min(self.size_limit_bytes, max(0, self.used_bytes + self.free_bytes - self.min_free_bytes))

    @property
    def names_limit_bytes(self) -> int:
        """Bytes that kept names may take of the limit."""
        return self.size_limit_bytes // PART

    def shortfall_before(self, size_bytes: int) -> int:
        """Bytes to free before `size_bytes` can be written and `min_free_bytes` stay free."""
        return max(0, self.min_free_bytes + size_bytes - self.free_bytes)

    def look(self) -> None:
        """Measure the free space of the disk. For a worker thread: it may wait for the disk."""
        taken_bytes = self._taken_bytes
        try:
            disk = os.statvfs(existing(self.path))
        except OSError:
            self._look = (0, taken_bytes)
        else:
            self._look = (disk.f_bavail * disk.f_frsize, taken_bytes)
        self._looked = True

    @property
    def free_bytes(self) -> int:
        """The free bytes of the last measurement, less what we have taken since."""
        if not self._looked:
            self.look()
        free_bytes, taken_bytes = self._look
        return free_bytes - (self._taken_bytes - taken_bytes)

    def evict(self, target_bytes: int) -> int:
        """Count used bytes, and delete least recently opened versions until at most `target_bytes`
        are left.

        Returns bytes freed. Runs in a worker thread: it walks the whole directory. Versions that
        any process has open are passed over.
        """
        taken_bytes, began_at = self._taken_bytes, self._census.now()
        candidates: list[tuple[float, int, str]] = []
        used = self.names.tidy(self.names_limit_bytes)
        for map_path in self._root.glob("*/*.map"):
            try:
                status = map_path.stat()
                size = status.st_blocks * 512 + disk_bytes(map_path.with_suffix(".data")) + linked_bytes(map_path)
            except FileNotFoundError:
                continue
            used += size
            candidates.append((status.st_mtime, size, str(map_path)))
        self._census.take((Path(name).stem for _, _, name in candidates), began_at)
        delete_orphans(self._root)
        # Links that were never taken from INCOMING.
        drop_forgotten((self._root / INCOMING).glob("*"))
        freed = 0
        for _, size, name in sorted(candidates):
            if used + self.earlier_bytes - freed <= target_bytes:
                break
            if delete_pair(Path(name)):
                freed += size
                self.evicted_files += 1
        self._scan = (used - freed, taken_bytes)
        self.look()
        return freed

    def links(self) -> Iterator[Path]:
        """The paths at which dfdaemon's files are linked here."""
        return self._root.glob("*/*.link")


def existing(path: Path) -> Path:
    """The nearest directory above `path` that exists, or itself."""
    return next(each for each in (path, *path.parents) if each.exists())


def drop_forgotten(paths: Iterable[Path]) -> None:
    """Delete files that have been incoming for so long that their daemon has died.

    The last change of an inode is the making of its link.
    """
    for path in paths:
        with contextlib.suppress(OSError):
            if time.time() - path.lstat().st_ctime > _FORGOTTEN_S:
                path.unlink()


def footprint_bytes(size_bytes: int) -> int:
    """Bytes on disk of a wholly cached object of `size_bytes`: its data and its map."""
    return sum(
        -(-each // _DISK_UNIT_BYTES) * _DISK_UNIT_BYTES
        for each in (size_bytes, HEADER_BYTES + block_count(size_bytes) * ENTRY_BYTES)
    )


def _stored_entries(map_path: Path, data_path: Path, identity: bytes, size_bytes: int) -> Entries | None:
    """The entries of the map at `map_path`; None unless it is whole and of this object and data."""
    with contextlib.suppress(OSError), opened(map_path, os.O_RDONLY) as map_fd:
        return read_map(map_fd, data_path, identity, size_bytes)
    return None


def _is_tmpfs(path: Path) -> bool:
    """True if the file system of `path` is tmpfs, by its mount point."""
    real = path.resolve()
    holders = [mount for mount in mount_table() if real.is_relative_to(mount.point)]
    innermost = max(reversed(holders), key=lambda mount: len(mount.point.parts), default=None)
    return innermost is not None and innermost.fstype in ("tmpfs", "ramfs")


def delete_pair(map_path: Path, create: int = 0) -> bool:
    """Delete a version. False when a process has it open, or it is gone already."""
    with contextlib.suppress(OSError), opened(map_path, os.O_RDWR | create) as map_fd:
        fcntl.flock(map_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if same_file(map_path, map_fd):
            for suffix in (".data", ".linkmap", ".link"):
                map_path.with_suffix(suffix).unlink(missing_ok=True)
            map_path.unlink()
            return True
    return False


def delete_orphans(root: Path) -> None:
    """Delete data without a map, which a crash has left below `root`."""
    for path in (*root.glob("*/*.data"), *root.glob("*/*.link")):
        # The holder of a map's lock owns its name, so make one.
        if not path.with_suffix(".map").exists():
            delete_pair(path.with_suffix(".map"), os.O_CREAT)


def disk_bytes(path: Path) -> int:
    """Bytes on disk of one file; 0 where there is none."""
    try:
        return path.stat().st_blocks * 512
    except FileNotFoundError:
        return 0


def linked_bytes(map_path: Path) -> int:
    """Bytes on disk of the version's linked file, if this is its only name."""
    try:
        status = map_path.with_suffix(".link").stat()
    except FileNotFoundError:
        return 0
    return status.st_blocks * 512 if status.st_nlink == 1 else 0
