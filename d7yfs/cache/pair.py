"""The blocks of one object version: which of them are there, and the files that hold them.

- `Presence` is the block table in memory. Readable are whole blocks, and the landed head of arriving
  blocks. It is pure.
- `VersionFiles` is the pair on disk: the data, and the map of its blocks. dfdaemon's file may be
  linked next to them, and has such a map of its own.

A map is a header of HEADER_BYTES and an entry of 8 bytes for each block. The header names the
object and binds the map to one data file by st_dev and st_ino. An entry is CRC32C in the upper
half, the tag of the boot in which it was written in the lower; 0 is an absent block.

Invariants, on which the rest of the cache leans:

- A block becomes *present* only through `set_present` (all its bytes are written) or by a stored
  entry of this boot.
- Bytes of an arriving block are readable from its start up to what has landed. There are no holes:
  every transfer writes contiguously from a block's start, and two transfers of one block write the
  same bytes.
- A present block never becomes absent, except by `set_absent` (a memory block that was reused, or a
  checksum that failed).

Used by the modules of the cache. Functions on files may wait for the disk.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import logging
import os
import re
import secrets
import struct
import time
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING

from d7yfs.cache.disk import Disk
from d7yfs.cache.table import (
    DENSE_BLOCKS,
    ENTRY_BYTES,
    Entries,
    States,
    blank_states,
    count_zeros,
    nonzero_states,
    read_entries_at,
    states_of,
    write_blank,
    zeros_until,
)
from d7yfs.objects import BLOCK_BYTES, ByteRange, ObjectVersion, StoreIdentity

if TYPE_CHECKING:
    from d7yfs.cache.linked import LinkedStore
    from d7yfs.cache.proof import Proof

log = logging.getLogger(__name__)

MAGIC = b"d7yfsmap"
HEADER = struct.Struct("<8sIIQQQI")
"""Magic, header bytes, block bytes, object size, the data file's st_dev and st_ino, length of the
identity that follows."""
HEADER_BYTES = 4096
TIMES = struct.Struct("<QQ")  # at the end of the header: zeros, and in a link's map its mtime and ctime in ns
TIMES_OFFSET = HEADER_BYTES - TIMES.size
PROOF_OFFSET = TIMES_OFFSET
"""Where a pair's own map has the byte of `proof`."""
INCOMING = "incoming"
"""The directory of links that are being made."""
_TOUCH_S = 10.0
"""Seconds: most small files are opened and closed within them."""
_ENCODE = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
_LOOK_BYTES = DENSE_BLOCKS * BLOCK_BYTES


class Block(IntEnum):
    """The state of one block; one byte each in `Presence`."""

    ABSENT = 0
    DISK = 1
    MEMORY = 2
    UNVERIFIED = 3
    """On disk since before the last boot: compared with its checksum before its first use."""
    LINKED = 4
    """In dfdaemon's file, which is linked next to ours."""
    UNVERIFIED_LINK = 5
    """In dfdaemon's file since before the machine's last boot: as UNVERIFIED."""


LINKED = frozenset({Block.LINKED, Block.UNVERIFIED_LINK})
ON_DISK = LINKED | {Block.DISK, Block.UNVERIFIED}
_ABSENT, _MEMORY = bytes([Block.ABSENT]), bytes([Block.MEMORY])
_OFF_DISK = re.compile(rb"[^\x01]")
"""Any state but DISK."""
_READABLE = frozenset({Block.DISK, Block.MEMORY, Block.LINKED})
_UNVERIFIED = frozenset({Block.UNVERIFIED, Block.UNVERIFIED_LINK})


@dataclass(slots=True)
class Arriving:
    """A block of which the first `landed_bytes` are written; `crc` is their CRC32C."""

    landed_bytes: int
    crc: int
    in_memory: bool


class Presence:
    """The block table of one object version of `size_bytes`."""

    __slots__ = ("absent_count", "arriving", "blocks", "size_bytes")

    def __init__(self, size_bytes: int, blocks: States | None = None) -> None:
        """`blocks` are their states; without them all are absent."""
        self.size_bytes = size_bytes
        count = block_count(size_bytes)
        self.blocks = blank_states(count) if blocks is None else blocks
        if len(self.blocks) != count:
            raise ValueError(f"{len(self.blocks)} blocks do not make an object of {size_bytes} bytes")
        self.arriving: dict[int, Arriving] = {}
        self.absent_count = count_zeros(self.blocks)
        """0 when every block is present (some perhaps not yet verified)."""

    @property
    def cached_bytes(self) -> int:
        """Bytes of the present blocks."""
        present_bytes = (len(self.blocks) - self.absent_count) * BLOCK_BYTES
        if present_bytes and self.blocks[-1] != Block.ABSENT:
            return present_bytes - (-self.size_bytes % BLOCK_BYTES)
        return present_bytes

    def first_unreadable(self, wanted: ByteRange) -> int | None:
        """First byte of `wanted` that cannot be read (absent or unverified); None when all can."""
        return self.first_unreadable_of(wanted.start, wanted.stop)

    def first_unreadable_of(self, start: int, stop: int) -> int | None:
        """`first_unreadable` of `[start, stop)`."""
        for index in range(start // BLOCK_BYTES, -(-stop // BLOCK_BYTES)):
            if self.blocks[index] in _READABLE:
                continue
            readable_to = index * BLOCK_BYTES
            if arriving := self.arriving.get(index):
                readable_to += arriving.landed_bytes
            if (first := max(readable_to, start)) < min(stop, (index + 1) * BLOCK_BYTES):
                return first
        return None

    def missing(self, wanted: ByteRange) -> list[ByteRange]:
        """Runs of absent or arriving blocks that `wanted` touches, block-aligned and in order."""
        runs: list[ByteRange] = []
        indexes = blocks_of(wanted) if self.absent_count else range(0)
        first, stop = indexes.start, indexes.stop
        while (first := self.blocks.find(_ABSENT, first, stop)) >= 0:
            end = zeros_until(self.blocks, first + 1, stop)
            runs.append(ByteRange(first * BLOCK_BYTES, min(end * BLOCK_BYTES, self.size_bytes)))
            first = end
        return runs

    def unverified(self, wanted: ByteRange) -> list[int]:
        """Indexes of the blocks in `wanted` that must be verified before they are read."""
        return [index for index in blocks_of(wanted) if self.blocks[index] in _UNVERIFIED]

    def known(self) -> Iterator[tuple[int, int]]:
        """Index and state of each block that is not absent; the caller may change them."""
        return nonzero_states(self.blocks)

    @property
    def all_in_data_file(self) -> bool:
        """True if every block is verified, and lies in the data file."""
        return not self.absent_count and _OFF_DISK.search(self.blocks) is None

    @property
    def all_on_disk(self) -> bool:
        """True if every block is present, and none in memory."""
        return not self.absent_count and self.blocks.find(_MEMORY) < 0

    def set_present(self, index: int, state: Block) -> None:
        """Mark block `index`, wholly written or verified, as readable from now on."""
        if self.blocks[index] == Block.ABSENT:
            self.absent_count -= 1
        self.blocks[index] = state
        self.arriving.pop(index, None)

    def set_absent(self, index: int) -> None:
        """Mark block `index` as no longer there."""
        if self.blocks[index] != Block.ABSENT:
            self.absent_count += 1
        self.blocks[index] = Block.ABSENT
        self.arriving.pop(index, None)


def block_count(size_bytes: int) -> int:
    """Number of blocks of an object of `size_bytes`; 0 when it is empty."""
    return -(-size_bytes // BLOCK_BYTES)


def blocks_of(wanted: ByteRange) -> range:
    """Indexes of the blocks that `wanted` touches; none if it is empty."""
    return range(wanted.start // BLOCK_BYTES, -(-wanted.stop // BLOCK_BYTES) if wanted else 0)


def block_range(index: int, size_bytes: int) -> ByteRange:
    """The bytes of block `index` in an object of `size_bytes`."""
    return ByteRange(index * BLOCK_BYTES, min((index + 1) * BLOCK_BYTES, size_bytes))


@dataclass(slots=True)
class VersionFiles:
    """The open pair of one version. `entries[i]` is block i's stored entry."""

    data_fd: int
    """-1 once `rest` has closed it."""
    map_path: Path
    """The path of the map; the data lies next to it."""
    map_fd: int
    entries: Entries
    on_tmpfs: bool
    """True if the data lies in memory (tmpfs), where RWF_NOWAIT fails."""
    identity: bytes
    """The version's identity as in the map's header."""
    made_bytes: int = 0
    """Bytes of a pair that was made by this open, to be taken account of on the trio thread."""
    linked: LinkedStore | None = None
    """dfdaemon's file of this version, if one was linked."""
    grants: dict[str, float] = field(default_factory=dict)
    """See `grants.read_grants`."""
    proof: Proof | None = None
    """See `proof.read_proof`; as it was when the pair was opened."""
    _touch_at: float = 0.0
    """time.monotonic() from which on another mark of its use says something new."""

    def __post_init__(self) -> None:
        if self.made_bytes:
            self._touch_at = time.monotonic() + _TOUCH_S

    @property
    def has_link(self) -> bool:
        """True if dfdaemon's file may lie next to the data."""
        return os.path.exists(_sibling(self.map_path, "linkmap"))  # noqa: PTH110 - see `_sibling`

    @property
    def link_path(self) -> Path:
        """The path of dfdaemon's file of this version, and …"""
        return self.map_path.with_suffix(".link")

    @property
    def link_map_path(self) -> Path:
        """… of the map of that file."""
        return self.map_path.with_suffix(".linkmap")

    @property
    def incoming(self) -> Path:
        """A new path on this file system, for a link that is being made."""
        return self.map_path.parent.parent / INCOMING / secrets.token_hex(8)

    def presence(self, size_bytes: int, boot_tag: int) -> Presence:
        """The blocks that the files have, in the boot of tag `boot_tag`."""
        found = Presence(size_bytes, stored_states(self.entries, boot_tag) if not self.made_bytes else None)
        for index, state in self.linked.known() if self.linked is not None else ():
            if found.blocks[index] == Block.ABSENT:
                found.set_present(index, state)
        return found

    def touch(self) -> None:
        """Mark the version as used just now: eviction goes by this time. A second mark within
        `_TOUCH_S` is left out."""
        now = time.monotonic()
        if now >= self._touch_at:
            self._touch_at = now + _TOUCH_S
            with contextlib.suppress(OSError):
                os.utime(self.map_fd)

    def rest(self) -> None:
        """Release all descriptors but the map's, and so keep the shared lock. For a worker thread."""
        if self.linked is not None:
            self.linked.close()
        self.touch()
        os.close(self.data_fd)
        self.data_fd = -1

    def close(self) -> None:
        """Release all descriptors, and with the map's the shared lock. For a worker thread."""
        if self.data_fd >= 0:
            self.rest()
        os.close(self.map_fd)


def identity_of(store: StoreIdentity, version: ObjectVersion) -> bytes:
    """The identity of `version` as a map's header holds it."""
    fields = {
        "scheme": store.scheme,
        "endpoint": store.endpoint,
        "account": store.account,
        "bucket": store.bucket,
        "key": version.key,
        "validator": version.validator,
        "size": version.size_bytes,
    }
    if version.edit:
        fields["edit"] = version.edit
    return _ENCODE(fields).encode(errors="surrogatepass")


def map_header(data: os.stat_result, identity: bytes, size_bytes: int) -> bytes:
    """The first HEADER_BYTES of a map of `data`. Raises OSError when the identity does not fit."""
    head = HEADER.pack(MAGIC, HEADER_BYTES, BLOCK_BYTES, size_bytes, data.st_dev, data.st_ino, len(identity)) + identity
    if len(head) > TIMES_OFFSET:
        raise OSError(errno.ENAMETOOLONG, "the object's key is too long for the cache's map")
    return head.ljust(HEADER_BYTES, b"\0")


def parse_header(stored: bytes) -> tuple[bytes, int, tuple[int, int]] | None:
    """Identity and size of the object, st_dev and st_ino of the data file; None when `stored`
    begins no map of ours.
    """
    if len(stored) < HEADER_BYTES:
        return None
    magic, header_bytes, block_bytes, size_bytes, device, inode, length = HEADER.unpack_from(stored)
    if (magic, header_bytes, block_bytes) != (MAGIC, HEADER_BYTES, BLOCK_BYTES):
        return None
    return stored[HEADER.size : HEADER.size + length], size_bytes, (device, inode)


def data_path_of(map_path: Path) -> str:
    """The path of the data that a map is about."""
    return _sibling(map_path, "data")


def _sibling(map_path: Path, suffix: str) -> str:
    """The path of another file of a map's version. A string: Paths take longer than the calls on them."""
    return f"{os.fspath(map_path).removesuffix('map')}{suffix}"


def read_map(map_fd: int, data_path: Path | str, identity: bytes, size_bytes: int) -> Entries | None:
    """The stored entries; None unless the map is whole and is of this object and this data."""
    count = block_count(size_bytes)
    if os.fstat(map_fd).st_size != HEADER_BYTES + count * ENTRY_BYTES:
        return None
    header = os.pread(map_fd, HEADER_BYTES, 0)
    try:
        data = os.stat(data_path)  # noqa: PTH116 - see `_sibling`
    except FileNotFoundError:
        return None
    if data.st_size != size_bytes or not header.startswith(map_header(data, identity, size_bytes)[:TIMES_OFFSET]):
        return None
    return read_entries_at(map_fd, HEADER_BYTES, count)


def stored_states(entries: Entries, boot: int) -> States:
    """The states of the blocks of a pair whose map has `entries`, in the boot of tag `boot`."""

    def derive(run: Entries) -> bytes:
        tags = (entry & 0xFFFFFFFF for entry in run)
        return bytes([Block.ABSENT if not tag else Block.DISK if tag == boot else Block.UNVERIFIED for tag in tags])

    return states_of(entries, derive)


def read_entries(map_fd: int, run: ByteRange, disk: Disk) -> array[int]:
    """Read the entries of the blocks of `run` once more, without waiting; none that cannot be had.

    Of a long run only the beginning is read.
    """
    offset, size_bytes = extent_of_entries(run.clip(run.start + _LOOK_BYTES))
    stored = bytearray(size_bytes)
    # The map was read whole when it was opened.
    read_bytes = disk.read_fresh(map_fd, offset, memoryview(stored))
    return array("Q", bytes(stored[: read_bytes // ENTRY_BYTES * ENTRY_BYTES]))


def write_entries(map_fd: int, first: int, entries: Entries, name: str) -> None:
    """Write `entries` from block `first` on into the map of `name`. A failure is logged: this
    process knows the blocks.
    """
    try:
        os.pwrite(map_fd, entries.tobytes(), HEADER_BYTES + first * ENTRY_BYTES)
    except OSError as error:
        log.warning("cache: presence of a block of %s could not be recorded: %s", name, error.strerror)


def make_pair(map_path: Path, map_fd: int, identity: bytes, size_bytes: int) -> int:
    """Make the data file anew and, in the empty map, its header; returns the data's descriptor.

    The caller holds the map's lock exclusively. Raises OSError when not even an empty pair fits,
    and leaves nothing then.
    """
    data_path = data_path_of(map_path)
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    try:
        data_fd = os.open(data_path, flags, 0o600)
    except FileExistsError:
        Path(data_path).unlink()
        data_fd = os.open(data_path, flags, 0o600)
    try:
        os.ftruncate(data_fd, size_bytes)
        header = map_header(os.fstat(data_fd), identity, size_bytes)
        if not write_blank(map_fd, header, block_count(size_bytes)):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    except BaseException:
        os.close(data_fd)
        Path(data_path).unlink(missing_ok=True)
        map_path.unlink(missing_ok=True)
        raise
    return data_fd


@contextlib.contextmanager
def opened(path: Path, flags: int) -> Iterator[int]:
    """Open `path` for as long as the block lasts. Raises OSError."""
    fd = os.open(path, flags | os.O_CLOEXEC, 0o600)
    try:
        yield fd
    finally:
        os.close(fd)


def lock(fd: int, kind: int) -> bool:
    """Take flock(2) `kind` at once. False if another process's lock stands in the way."""
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def same_file(path: Path, fd: int) -> bool:
    """True if `path` still names the file that `fd` is."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(fd))  # noqa: PTH116 - in half the time
    except FileNotFoundError:
        return False


def extent_of_entries(wanted: ByteRange) -> tuple[int, int]:
    """Offset and size of the entries of the blocks that `wanted` touches."""
    indexes = blocks_of(wanted)
    return HEADER_BYTES + indexes.start * ENTRY_BYTES, len(indexes) * ENTRY_BYTES
