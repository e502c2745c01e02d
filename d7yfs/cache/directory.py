"""The cache directory on disk: where a version's files lie, who may delete them, and how much room there is.

Layout, version 2 (`FORMAT` names the directory, so daemons of another format never meet these files):

    CACHE_DIR/v2/a/abcdef….data    sparse, as long as the object: the bytes
    CACHE_DIR/v2/a/abcdef….map     header (identity, the data file's st_dev and st_ino), then 8 bytes a block

Beside a pair may lie dfdaemon's file of the same version, hard-linked (`d7yfs.cache.linked`). While dfdaemon has it too, it takes none of
our room and deleting it frees none: only a link that is the file's last is counted.

The name is the SHA-256 of the version's identity, JSON in the map's header: the store's fields, key, validator, size. Two daemons of one
uid may use one directory. Files of earlier formats are never served, and go (`d7yfs.cache.earlier`).

Locks (flock on the map file): every opener holds it shared while the version is open; whoever creates or deletes the pair holds it
exclusively. So a pair that is in use anywhere is never evicted, and a half-made pair is never used. The map is made first and deleted
last, so whoever holds its lock owns the data's name too. Eviction unlinks whole files and never truncates or punches: a descriptor that
someone still holds stays right.

Called by `Cache`: from worker threads what may wait for the disk, from the trio thread the account of what is used and free.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import logging
import os
import random
import secrets
import stat
import struct
import time
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from d7yfs.cache.presence import Presence, block_count
from d7yfs.errors import CacheUnusable
from d7yfs.objects import BLOCK_BYTES, ObjectVersion, StoreIdentity

FORMAT = "v2"
EARLIER_FORMATS = ("v1",)
"""v1: bytes of replies that carried no validator may be in it."""
MAGIC = b"d7yfsmap"
HEADER = struct.Struct("<8sIIQQQI")
"""Magic, header bytes, block bytes, object size, the data file's st_dev and st_ino, length of the identity that follows."""
HEADER_BYTES = 4096
ENTRY_BYTES = 8
INCOMING = "incoming"
"""Directory of links that are on their way."""
SHARDS = (*"0123456789abcdef", INCOMING)
"""The directories of a format."""
_STEP_S = 0.002
"""How far openers of one new pair are moved apart: longer than making it takes."""
TRIES = 64
_DISK_UNIT_BYTES = 4096
_FORGOTTEN_S = 3600.0
"""A link that has been on its way for so long was forgotten by a daemon that died."""

log = logging.getLogger(__name__)


@dataclass(slots=True)
class VersionFiles:
    """The open pair of one version. `entries[i]` is block i's stored entry: CRC32C in the upper half, boot tag in the lower."""

    data_fd: int
    map_fd: int
    entries: array[int]
    on_tmpfs: bool
    """The data lies in memory whatever RWF_NOWAIT says."""
    map_path: Path
    identity: bytes
    """Of the version, as the map's header holds it."""
    made_bytes: int = 0
    """What the pair takes, if it was made by this open: to be taken account of on the trio thread."""

    @property
    def link_path(self) -> Path:
        """Where dfdaemon's file of this version is linked, and …"""
        return self.map_path.with_suffix(".link")

    @property
    def link_map_path(self) -> Path:
        """… where it is said what that file holds."""
        return self.map_path.with_suffix(".linkmap")

    @property
    def incoming(self) -> Path:
        """A new name on this file system, for a link that is on its way."""
        return self.map_path.parent.parent / INCOMING / secrets.token_hex(8)

    def touch(self) -> None:
        """The version counts as used just now: by this time versions are evicted."""
        with contextlib.suppress(OSError):
            os.utime(self.map_fd)

    def close(self) -> None:
        """Release both descriptors, and with the map's the shared lock."""
        self.touch()
        os.close(self.data_fd)
        os.close(self.map_fd)


class Locked(OSError):
    """Another process holds the lock of a version's map exclusively, or has damaged files of it open."""

    def __init__(self, map_path: Path) -> None:
        super().__init__(errno.EBUSY, "another process holds its files in the cache", str(map_path))


class CacheDirectory:
    """One cache directory, as this process sees it: what the last scan found, and what we have taken since.

    Two threads share the account without a lock: only the trio thread writes `_taken_bytes`, only the evicting one `_scan`.
    """

    def __init__(self, path: Path, *, size_limit_bytes: int, min_free_bytes: int) -> None:
        self.path = path
        self.size_limit_bytes = size_limit_bytes
        self.min_free_bytes = min_free_bytes
        self.evicted_files = 0
        self.earlier_bytes = 0
        """What earlier formats take until it is deleted (`d7yfs.cache.earlier`); written by the evicting thread."""
        self._taken_bytes = 0
        self._scan = (0, 0)
        """What the last scan found, and `_taken_bytes` when it began: what came during a scan counts twice rather than never."""
        self._look = (0, 0)
        """What the disk had free when it was looked at last, and `_taken_bytes` at that time."""
        self._looked = False
        self._root = path / FORMAT
        self._on_tmpfs = False

    def prepare(self) -> None:
        """Create the directory (0700) or check that it is ours and writable. Raises CacheUnusable."""
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            _check_owner(self.path, self.path.stat())
            if all(entry.name in (FORMAT, *EARLIER_FORMATS) for entry in self.path.iterdir()):
                _close_to_others(self.path)
            # Else it holds what is not ours (root may name /tmp): closing it would break whoever uses that. What is ours lies in FORMAT.
            self._root.mkdir(mode=0o700, exist_ok=True)
            _check_owner(self._root, self._root.lstat())
            _close_to_others(self._root)
            probe = self._root / f".probe-{os.getpid()}"
            probe.write_bytes(b"")
            probe.unlink()
            self.look()
            self._on_tmpfs = _is_tmpfs(self._root)
            # Now, because making one would be most of what the first open of a file costs. So few, because each that is not in the
            # kernel's cache costs a look at the disk.
            for shard in SHARDS:
                (self._root / shard).mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise CacheUnusable(
                f"cache directory {self.path} cannot be used: {error.strerror}",
                hint="make it a writable directory on a local disk, or name another with --cache-dir",
            ) from error

    def open(self, store: StoreIdentity, version: ObjectVersion, *, tries: int = TRIES) -> VersionFiles:
        """Open the pair of `version`, made anew when it is absent or not what it says. For any thread; with one try it never sleeps.

        Raises Locked while another process holds the lock exclusively, for longer than making a pair takes; and OSError (disk full,
        read-only, …): the version is then read uncached.
        """
        identity = _identity(store, version)
        map_path = self._map_path(identity)
        for left in reversed(range(tries)):
            if not map_path.parent.is_dir():
                # Also after somebody has emptied the cache directory under us.
                self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
                map_path.parent.mkdir(mode=0o700, exist_ok=True)
            map_fd = os.open(map_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            files = None
            try:
                files = self._open_locked(map_path, map_fd, identity, version.size_bytes)
            finally:
                if files is None:
                    os.close(map_fd)
            if files is not None:
                return files
            # Two who find the same unfinished pair stand in each other's way: each sees the other's lock. Out of step, one is first.
            time.sleep(random.uniform(0, _STEP_S) if left else 0)  # noqa: S311  # jitter, not cryptography
        raise Locked(map_path)

    def cached_bytes(self, store: StoreIdentity, version: ObjectVersion) -> int:
        """Bytes of `version` whose blocks are present on disk; leaves no trace. For a worker thread."""
        identity = _identity(store, version)
        map_path = self._map_path(identity)
        try:
            map_fd = os.open(map_path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return 0
        try:
            entries = read_map(map_fd, map_path.with_suffix(".data"), identity, version.size_bytes)
            if entries is None:
                return 0
            for index, entry in enumerate(_linked_entries(map_path, identity, version.size_bytes)):
                entries[index] |= entry
        except OSError:
            return 0
        finally:
            os.close(map_fd)
        # True is Block.DISK. An eighth of what a generator would take, which is 16 ms for an object of 100 GiB.
        return Presence(version.size_bytes, map(bool, entries)).cached_bytes

    def _map_path(self, identity: bytes) -> Path:
        digest = hashlib.sha256(identity).hexdigest()
        return self._root / digest[0] / f"{digest}.map"

    def _open_locked(self, map_path: Path, map_fd: int, identity: bytes, size_bytes: int) -> VersionFiles | None:
        """The pair behind `map_fd`, or None when the pair was replaced under us and must be opened again."""
        data_path = map_path.with_suffix(".data")
        try:
            fcntl.flock(map_fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return None  # it is being made or deleted; or somebody holds it for long
        if not same_file(map_path, map_fd):
            return None
        entries = read_map(map_fd, data_path, identity, size_bytes)
        if entries is not None:
            try:
                data_fd = os.open(data_path, os.O_RDWR | os.O_CLOEXEC)
                return VersionFiles(data_fd, map_fd, entries, self._on_tmpfs, map_path, identity)
            except FileNotFoundError:
                return None
        try:
            fcntl.flock(map_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return None  # another opener is at the same point: look again at what it makes
        if not same_file(map_path, map_fd):
            return None
        if read_map(map_fd, data_path, identity, size_bytes) is not None:
            return None  # made by another opener between our two locks
        if os.fstat(map_fd).st_size:
            # Not what it should be. A daemon that still holds the old pair must never write its blocks into the new map, so the
            # file is left to that daemon and a new one is made.
            log.warning("cache: %s does not fit its object; made anew", map_path.name)
            map_path.unlink()
            return None
        data_fd = make_pair(map_path, map_fd, identity, size_bytes)
        # flock(2): a conversion lets go of the old lock first, so an evictor may slip in between.
        try:
            fcntl.flock(map_fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(data_fd)
            return None
        if not same_file(map_path, map_fd):
            os.close(data_fd)
            return None
        entries = array("Q", bytes(block_count(size_bytes) * ENTRY_BYTES))
        made_bytes = HEADER_BYTES + len(entries) * ENTRY_BYTES
        return VersionFiles(data_fd, map_fd, entries, self._on_tmpfs, map_path, identity, made_bytes)

    @property
    def used_bytes(self) -> int:
        """Bytes on disk: never less than our own share, more until the next scan where a transfer was given up or repeated."""
        found_bytes, taken_bytes = self._scan
        return found_bytes + self.earlier_bytes + self._taken_bytes - taken_bytes

    def take(self, size_bytes: int) -> None:
        """Account for `size_bytes` of one file that are about to be written."""
        self._taken_bytes += -(-size_bytes // _DISK_UNIT_BYTES) * _DISK_UNIT_BYTES

    def has_room(self, size_bytes: int) -> bool:
        """Whether `size_bytes` more may be written now: below the size limit, and the disk keeps `min_free_bytes`."""
        return (
            self.used_bytes + size_bytes <= self.size_limit_bytes
            and self._free_bytes() - size_bytes >= self.min_free_bytes
        )

    @property
    def capacity_bytes(self) -> int:
        """How much the directory may hold, were all that is in it replaced."""
        return min(self.size_limit_bytes, max(0, self.used_bytes + self._free_bytes() - self.min_free_bytes))

    @property
    def shortfall_bytes(self) -> int:
        """How much less than `min_free_bytes` the disk has free; 0 when it has enough."""
        return self.shortfall_before(0)

    def shortfall_before(self, size_bytes: int) -> int:
        """How much must be freed before `size_bytes` can be written and `min_free_bytes` stay free."""
        return max(0, self.min_free_bytes + size_bytes - self._free_bytes())

    def look(self) -> None:
        """See how much the disk has free. For a worker thread: it may wait for the disk."""
        taken_bytes = self._taken_bytes
        try:
            disk = os.statvfs(self.path)
        except OSError:
            self._look = (0, taken_bytes)
        else:
            self._look = (disk.f_bavail * disk.f_frsize, taken_bytes)
        self._looked = True

    def _free_bytes(self) -> int:
        """As far as is known: what the disk had when it was looked at, less what we have taken since."""
        if not self._looked:
            self.look()
        free_bytes, taken_bytes = self._look
        return free_bytes - (self._taken_bytes - taken_bytes)

    def evict(self, target_bytes: int) -> int:
        """Count what is used and delete least recently opened versions until at most `target_bytes` are. Returns bytes freed.

        Runs in a worker thread: it walks the whole directory. Versions that any process has open are passed over.
        """
        taken_bytes = self._taken_bytes
        candidates: list[tuple[float, int, str]] = []
        used = 0
        for map_path in self._root.glob("*/*.map"):
            try:
                status = map_path.stat()
                size = status.st_blocks * 512 + disk_bytes(map_path.with_suffix(".data")) + linked_bytes(map_path)
            except FileNotFoundError:
                continue
            used += size
            candidates.append((status.st_mtime, size, str(map_path)))
        for pattern in ("*/*.data", "*/*.link"):
            for path in self._root.glob(pattern):
                # Data without a map is what a crash left behind. Its name belongs to whoever holds the map's lock, so make one.
                map_path = path.with_suffix(".map")
                if not map_path.exists():
                    delete_pair(map_path, os.O_CREAT)
        # Links that nobody has taken from where they came in.
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
        """The names by which dfdaemon's files are linked here."""
        return self._root.glob("*/*.link")


def drop_forgotten(paths: Iterable[Path]) -> None:
    """Delete files that were under way for so long that their daemon has died. A link's making is the last change of its file's inode."""
    for path in paths:
        with contextlib.suppress(OSError):
            if time.time() - path.lstat().st_ctime > _FORGOTTEN_S:
                path.unlink()


def footprint_bytes(size_bytes: int) -> int:
    """What an object of `size_bytes` takes on disk when all of it is cached: its data and its map."""
    return sum(
        -(-each // _DISK_UNIT_BYTES) * _DISK_UNIT_BYTES
        for each in (size_bytes, HEADER_BYTES + block_count(size_bytes) * ENTRY_BYTES)
    )


def _identity(store: StoreIdentity, version: ObjectVersion) -> bytes:
    fields = {
        "scheme": store.scheme,
        "endpoint": store.endpoint,
        "account": store.account,
        "bucket": store.bucket,
        "key": version.key,
        "validator": version.validator,
        "size": version.size_bytes,
    }
    return json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode(errors="surrogatepass")


def _check_owner(path: Path, status: os.stat_result) -> None:
    if status.st_uid != os.geteuid():
        raise CacheUnusable(
            f"cache directory {path} belongs to uid {status.st_uid}, not to uid {os.geteuid()} that runs d7yfs",
            hint="name another with --cache-dir, or change its owner",
        )


def _close_to_others(path: Path) -> None:
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & 0o077:
        path.chmod(mode & 0o700)


def same_file(path: Path, fd: int) -> bool:
    """Whether `path` still names the file that `fd` is."""
    try:
        return os.path.samestat(path.stat(), os.fstat(fd))
    except FileNotFoundError:
        return False


def disk_bytes(path: Path) -> int:
    """What one file takes; nothing where there is none."""
    try:
        return path.stat().st_blocks * 512
    except FileNotFoundError:
        return 0


def linked_bytes(map_path: Path) -> int:
    """What the version's linked file takes that nobody else has a name for."""
    try:
        status = map_path.with_suffix(".link").stat()
    except FileNotFoundError:
        return 0
    return status.st_blocks * 512 if status.st_nlink == 1 else 0


def _linked_entries(map_path: Path, identity: bytes, size_bytes: int) -> array[int] | tuple[()]:
    try:
        fd = os.open(map_path.with_suffix(".linkmap"), os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return ()
    try:
        return read_map(fd, map_path.with_suffix(".link"), identity, size_bytes) or ()
    finally:
        os.close(fd)


def map_header(data: os.stat_result, identity: bytes, size_bytes: int) -> bytes:
    """The first HEADER_BYTES of a map of the data file `data`. Raises OSError when the identity does not fit."""
    head = HEADER.pack(MAGIC, HEADER_BYTES, BLOCK_BYTES, size_bytes, data.st_dev, data.st_ino, len(identity)) + identity
    if len(head) > HEADER_BYTES:
        raise OSError(errno.ENAMETOOLONG, "the object's key is too long for the cache's map")
    return head.ljust(HEADER_BYTES, b"\0")


def make_pair(map_path: Path, map_fd: int, identity: bytes, size_bytes: int) -> int:
    """Make the data file anew and, in the empty map, the header that speaks of it; returns the data's descriptor.

    For who holds the map's lock exclusively. Raises OSError when not even an empty pair fits, and leaves nothing then.
    """
    data_path = map_path.with_suffix(".data")
    data_path.unlink(missing_ok=True)
    data_fd = os.open(data_path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.ftruncate(data_fd, size_bytes)
        # Zeros rather than a hole: the disk is full now or never, and who looks at the entries finds them in memory.
        entries = bytes(block_count(size_bytes) * ENTRY_BYTES)
        _write_whole(map_fd, map_header(os.fstat(data_fd), identity, size_bytes) + entries)
    except BaseException:
        os.close(data_fd)
        data_path.unlink(missing_ok=True)
        map_path.unlink(missing_ok=True)
        raise
    return data_fd


def _write_whole(fd: int, data: bytes) -> None:
    if os.pwrite(fd, data, 0) < len(data):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def read_map(map_fd: int, data_path: Path, identity: bytes, size_bytes: int) -> array[int] | None:
    """The stored entries, or None unless the map is whole and speaks of exactly this object and this data file."""
    count = block_count(size_bytes)
    stored = os.pread(map_fd, HEADER_BYTES + count * ENTRY_BYTES + 1, 0)
    if len(stored) != HEADER_BYTES + count * ENTRY_BYTES:
        return None
    try:
        data = data_path.stat()
    except FileNotFoundError:
        return None
    if data.st_size != size_bytes or stored[:HEADER_BYTES] != map_header(data, identity, size_bytes):
        return None
    return array("Q", stored[HEADER_BYTES:])


def delete_pair(map_path: Path, create: int = 0) -> bool:
    """Delete a version that nobody has open, its link too. False when somebody has, or it is gone already."""
    try:
        map_fd = os.open(map_path, os.O_RDWR | os.O_CLOEXEC | create, 0o600)
    except OSError:
        return False
    try:
        fcntl.flock(map_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not same_file(map_path, map_fd):
            return False
        for suffix in (".data", ".linkmap", ".link"):
            map_path.with_suffix(suffix).unlink(missing_ok=True)
        map_path.unlink()
    except OSError:
        return False
    finally:
        os.close(map_fd)
    return True


def _is_tmpfs(path: Path) -> bool:
    """Whether the file system of `path` is tmpfs, by the longest matching mount point (proc_pid_mountinfo(5))."""
    real = str(path.resolve())
    found, kind = "", ""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        left, right = line.split(" - ", 1)
        point = left.split()[4]
        inside = real == point or real.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(found):
            found, kind = point, right.split()[0]
    return kind in ("tmpfs", "ramfs")


def boot_tag() -> int:
    """A non-zero 32-bit tag of the running boot: what an entry of this boot carries, and no other.

    A block is written before its entry, and the page cache outlives a killed process, so an entry of this boot is proof; after a power
    loss it is not, because the disk may hold the entry without the block.
    """
    boot_id = Path("/proc/sys/kernel/random/boot_id").read_bytes().strip()
    return int.from_bytes(hashlib.sha256(boot_id).digest()[:4], "little") | 1
