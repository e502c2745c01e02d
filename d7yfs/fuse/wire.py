"""The messages of the FUSE protocol as bytes: requests in, replies and notices out. Sans I/O.

The authority for every layout, number and flag here is the kernel's include/uapi/linux/fuse.h,
protocol 7.45. Numbers are in the host's byte order, without padding of our own. Only the messages of
a read-only file system are here. A request that cannot be parsed raises MalformedRequest.

Used by `session`, which moves the bytes.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum, IntFlag

MAJOR, MINOR = 7, 45
"""The protocol that is spoken here. Kernels of a lower minor version know fewer flags."""
OLDEST_MINOR = 31
"""Linux 5.4. The layouts here hold from 7.23 on; no older kernel is tried."""

IN_HEADER = struct.Struct("=IIQQI12x")
"""fuse_in_header: length, opcode, unique, node id, uid; gid, pid, total_extlen and padding are not
used."""
OUT_HEADER = struct.Struct("=IiQ")
"""fuse_out_header: length, negative errno (of a notice its code), unique (of a notice 0)."""
ATTR = "6Q10I"
"""fuse_attr: ino, size, blocks, atime, mtime, ctime, their ns, mode, nlink, uid, gid, rdev, blksize,
flags."""
ENTRY_OUT = struct.Struct(f"=4Q2I{ATTR}")
"""fuse_entry_out: node id, generation, entry_valid, attr_valid, their ns, attributes."""
ATTR_OUT = struct.Struct(f"=Q2I{ATTR}")
"""fuse_attr_out: attr_valid, its ns, padding, attributes."""
OPEN_OUT = struct.Struct("=QIi")
"""fuse_open_out: fh, open_flags, backing_id."""
READ_IN = struct.Struct("=QQI20x")
"""fuse_read_in: fh, offset, size; read_flags, lock_owner, flags and padding are not used. READDIR has
it, too."""
OPEN_IN = struct.Struct("=II")
"""fuse_open_in: flags, open_flags."""
FH = struct.Struct("=Q")
"""The beginning of fuse_release_in and of others that name a handle; fuse_forget_in; of an
INTERRUPT the unique number of its target."""
FORGET_COUNT = struct.Struct("=II")
"""fuse_batch_forget_in: count, padding."""
FORGET_ONE = struct.Struct("=QQ")
"""fuse_forget_one: node id, lookups."""
XATTR_IN = struct.Struct("=II")
"""fuse_getxattr_in: size of the caller's buffer, padding; a name follows GETXATTR's."""
ACCESS_IN = struct.Struct("=II")
"""fuse_access_in: mask, padding."""
STATFS_OUT = struct.Struct("=5Q3I28x")
"""fuse_statfs_out: blocks, bfree, bavail, files, ffree, bsize, namelen, frsize, padding."""
INIT_IN = struct.Struct("=IIII")
"""fuse_init_in: major, minor, max_readahead, flags; flags2 follows from 7.36 on."""
INIT_OUT = struct.Struct("=IIIIHHIIHHIIH22x")
"""fuse_init_out: major, minor, max_readahead, flags, max_background, congestion_threshold,
max_write, time_gran, max_pages, map_alignment, flags2, max_stack_depth, request_timeout."""
DIRENT = struct.Struct("=QQII")
"""fuse_dirent up to its name: ino, offset of the next entry, length of the name, type."""

RESENT = 1 << 63
"""FUSE_UNIQUE_RESEND: the bit in the unique number of a request that is sent again."""

ROOT = 1
"""FUSE_ROOT_ID."""


class MalformedRequest(ValueError):
    """A request that is shorter than its layout, or says another length than it has."""


class Opcode(IntEnum):
    """enum fuse_opcode, as far as it can reach a read-only file system."""

    LOOKUP = 1
    FORGET = 2
    GETATTR = 3
    READLINK = 5
    OPEN = 14
    READ = 15
    STATFS = 17
    RELEASE = 18
    FSYNC = 20
    GETXATTR = 22
    LISTXATTR = 23
    FLUSH = 25
    INIT = 26
    OPENDIR = 27
    READDIR = 28
    RELEASEDIR = 29
    FSYNCDIR = 30
    ACCESS = 34
    INTERRUPT = 36
    DESTROY = 38
    NOTIFY_REPLY = 41
    BATCH_FORGET = 42
    READDIRPLUS = 44
    LSEEK = 46


WRITING = frozenset({4, 6, 8, 9, 10, 11, 12, 13, 16, 21, 24, 35, 43, 45, 47, 51})
"""SETATTR, SYMLINK, MKNOD, MKDIR, UNLINK, RMDIR, RENAME, LINK, WRITE, SETXATTR, REMOVEXATTR, CREATE,
FALLOCATE, RENAME2, COPY_FILE_RANGE and TMPFILE: EROFS. Any other opcode that is unknown: ENOSYS."""

UNANSWERED = frozenset({Opcode.FORGET, Opcode.BATCH_FORGET, Opcode.INTERRUPT, Opcode.NOTIFY_REPLY})
"""Messages that have no reply."""


class InitFlag(IntFlag):
    """FUSE_* bits of fuse_init_in.flags; those of flags2 are shifted by 32."""

    ASYNC_READ = 1 << 0
    READDIRPLUS = 1 << 13
    READDIRPLUS_AUTO = 1 << 14
    ASYNC_DIO = 1 << 15
    PARALLEL_DIROPS = 1 << 18
    ABORT_ERROR = 1 << 21
    MAX_PAGES = 1 << 22
    EXPLICIT_INVAL_DATA = 1 << 25
    INIT_EXT = 1 << 30
    HAS_EXPIRE_ONLY = 1 << 35
    DIRECT_IO_ALLOW_MMAP = 1 << 36
    PASSTHROUGH = 1 << 37
    HAS_RESEND = 1 << 39


class OpenFlag(IntFlag):
    """FOPEN_* bits of fuse_open_out.open_flags."""

    DIRECT_IO = 1 << 0
    KEEP_CACHE = 1 << 1
    CACHE_DIR = 1 << 3
    NOFLUSH = 1 << 5
    PASSTHROUGH = 1 << 7


class NoticeCode(IntEnum):
    """The kinds of notices (enum fuse_notify_code)."""

    INVAL_INODE = 2
    INVAL_ENTRY = 3
    RESEND = 7


EXPIRE_ONLY = 1
"""FUSE_EXPIRE_ONLY of INVAL_ENTRY: the entry is asked for again, and a mount on it stays."""

_INVAL_INODE = struct.Struct("=Qqq")
_INVAL_ENTRY = struct.Struct("=QII")

_ATTRIBUTES_ONLY = -1


@dataclass(frozen=True, slots=True)
class Greeting:
    """The kernel's INIT: the protocol, readahead and features that it offers."""

    major: int
    minor: int
    max_readahead: int
    flags: InitFlag

    @classmethod
    def parse(cls, body: memoryview) -> Greeting:
        """Parse fuse_init_in. Raises MalformedRequest."""
        try:
            major, minor, max_readahead, flags = INIT_IN.unpack_from(body)
            if flags & InitFlag.INIT_EXT:
                flags |= FORGET_COUNT.unpack_from(body, INIT_IN.size)[0] << 32
        except struct.error as error:
            raise MalformedRequest(f"INIT of {len(body)} bytes") from error
        return cls(major, minor, max_readahead, InitFlag(flags))


@dataclass(frozen=True, slots=True)
class Terms:
    """Our answer to INIT."""

    max_readahead: int
    flags: InitFlag
    max_background: int
    max_write: int = 4096
    """The least that the kernel takes; nothing is ever written."""
    max_pages: int = 256
    """Pages of one READ: 1 MiB, the kernel's default limit (fs.fuse.max_pages_limit)."""
    max_stack_depth: int = 0
    """1 with PASSTHROUGH: a file system over this one may still be an overlay."""

    def encode(self) -> bytes:
        """fuse_init_out, whole."""
        return INIT_OUT.pack(
            MAJOR,
            MINOR,
            self.max_readahead,
            self.flags & 0xFFFFFFFF,
            self.max_background,
            self.max_background,
            self.max_write,
            1,
            self.max_pages,
            0,
            self.flags >> 32,
            self.max_stack_depth,
            0,
        )


def reply_header(unique: int, body_bytes: int) -> bytes:
    """The header of a reply that succeeds, whose body follows."""
    return OUT_HEADER.pack(OUT_HEADER.size + body_bytes, 0, unique)


def refusal(unique: int, number: int) -> bytes:
    """A whole reply that fails with this errno."""
    return OUT_HEADER.pack(OUT_HEADER.size, -number, unique)


def split_seconds(seconds: float) -> tuple[int, int]:
    """A timeout as the kernel takes it: whole seconds, and nanoseconds."""
    whole = int(seconds)
    return whole, int((seconds - whole) * 1e9)


def name_of(body: memoryview, offset: int = 0) -> bytes:
    """The name from `offset` on, without its final NUL. Raises MalformedRequest."""
    name, end, _ = bytes(body[offset:]).partition(b"\0")
    if not end:
        raise MalformedRequest(f"a name of {len(name)} bytes without an end")
    return name


def parse_forgets(body: memoryview) -> list[tuple[int, int]]:
    """The node ids of a BATCH_FORGET, each with its lookups. Raises MalformedRequest."""
    try:
        count, _ = FORGET_COUNT.unpack_from(body)
        if len(body) < FORGET_COUNT.size + count * FORGET_ONE.size:
            raise MalformedRequest(f"{count} forgets in {len(body)} bytes")
    except struct.error as error:
        raise MalformedRequest(f"BATCH_FORGET of {len(body)} bytes") from error
    stop = FORGET_COUNT.size + count * FORGET_ONE.size
    return list(FORGET_ONE.iter_unpack(body[FORGET_COUNT.size : stop]))


_PADDING = tuple(bytes(-length & 7) for length in range(8))


class DirectoryReply:
    """The reply to a READDIR or READDIRPLUS that has room for `size` bytes."""

    __slots__ = ("_size", "data")

    def __init__(self, size: int) -> None:
        self._size = size
        self.data = bytearray()

    def add(self, name: bytes, ino: int, kind: int, next_offset: int, entry: bytes = b"") -> bool:
        """Append an entry; False if it does not fit.

        `kind` is its DT_* type, `next_offset` the offset of the entry behind it. `entry` is what
        READDIRPLUS has before it: a whole fuse_entry_out.
        """
        padding = _PADDING[len(name) & 7]  # the rest is a multiple of 8
        if len(self.data) + len(entry) + DIRENT.size + len(name) + len(padding) > self._size:
            return False
        self.data += b"%b%b%b%b" % (entry, DIRENT.pack(ino, next_offset, len(name), kind), name, padding)
        return True


def notice(code: NoticeCode, body: bytes = b"") -> bytes:
    """A whole message from us to the kernel that answers no request."""
    return OUT_HEADER.pack(OUT_HEADER.size + len(body), code, 0) + body


def inval_inode(nodeid: int, *, attributes_only: bool = False) -> bytes:
    """The notice that the attributes of a node, and its pages unless `attributes_only`, are out of
    date."""
    return notice(NoticeCode.INVAL_INODE, _INVAL_INODE.pack(nodeid, _ATTRIBUTES_ONLY if attributes_only else 0, 0))


def inval_entry(parent: int, name: bytes, *, expire_only: bool = False) -> bytes:
    """The notice that an entry of a directory is to be asked for again, or dropped."""
    head = _INVAL_ENTRY.pack(parent, len(name), EXPIRE_ONLY if expire_only else 0)
    return notice(NoticeCode.INVAL_ENTRY, head + name + b"\0")


def is_absent(answer: object) -> bool:
    """True for an answer to LOOKUP that is a negative entry: node id 0."""
    return isinstance(answer, bytes) and not any(answer[:8])
