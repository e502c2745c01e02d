"""Requests of the kernel → `Filesystem` → replies, as bytes of the FUSE protocol.

Each request has a method that answers it at once, without a task or an await, or returns None where
an answer has to be waited for: names that are not known, bytes that are not cached. Then the method of
the same name with `wait_for_` is awaited. An answer is the body of the reply. Failures are
RequestRefused and D7yfsError.

Called by `session`. Trio thread only.
"""

from __future__ import annotations

import errno
import logging
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress

import trio

from d7yfs.errors import TooManyOpenFiles, TooManyReads
from d7yfs.fs.description import path_of
from d7yfs.fs.filesystem import Filesystem
from d7yfs.fuse import wire
from d7yfs.fuse.appearance import BLOCK_SIZE, UNSEEN_INODES, Appearance
from d7yfs.fuse.journal import SessionJournal
from d7yfs.fuse.notices import Invalidator
from d7yfs.fuse.passthrough import Passthrough, inode_of
from d7yfs.fuse.request_guard import READ, RequestGuard, RequestRefused, Subject
from d7yfs.fuse.wire import OpenFlag, split_seconds
from d7yfs.objects import ByteRange
from d7yfs.tree.huge_directory import Unseen
from d7yfs.tree.nodes import Absent, Directory, File, Found, Node

log = logging.getLogger(__name__)

XATTR_PREFIX = b"user.d7yfs."
_TASK_ID = XATTR_PREFIX + b"task_id"
_MAX_XATTR_BYTES = 65_536
"""XATTR_SIZE_MAX and XATTR_LIST_MAX of linux/limits.h."""
_DT_DIR, _DT_REG = stat.S_IFDIR >> 12, stat.S_IFREG >> 12

_ONE_READ_BYTES = 1 << 20
"""A file of up to this size is one READ, whose pages the kernel keeps: it gains nothing by another
node."""

Reply = bytes | bytearray | memoryview
_Entries = tuple[Directory, Iterator[tuple[int, str, Node | Unseen]]]


class Responder:
    """The answers of one mount.

    `buffer` is memory for the bytes of a read that is answered at once. It is resident, so that the
    kernel never has to wait for a page of it.
    """

    def __init__(
        self,
        filesystem: Filesystem,
        invalidator: Invalidator,
        appearance: Appearance,
        guard: RequestGuard,
        buffer: memoryview,
    ) -> None:
        self.passthrough: Passthrough
        """Set by the session once INIT is answered, before any other request."""
        self.useless_pages: set[int] = set()
        """Nodes whose pages the kernel need not keep: it reads the cache's file from now on."""
        self._to_change = set[int]()
        """Inodes of open files that the daemon serves, and that are, or become, whole."""
        filesystem.became_whole = self._to_change.add
        self.journal: SessionJournal | None = None
        self.earlier_readers: Mapping[int, Sequence[str]] = {}
        """The names that readers of directories went through in an earlier process, by handle."""
        self._filesystem = filesystem
        self._tree = filesystem.tree
        self._invalidator = invalidator
        self._appearance = appearance
        self._guard = guard
        self._buffer = buffer
        self._common = (appearance.uid, appearance.gid, 0, BLOCK_SIZE, 0)
        """The last five attributes of every node."""
        self._now = trio.lowlevel.current_clock().current_time
        """`trio.current_time`, in a quarter of the time."""

    def subject_of(self, operation: str, nodeid: int, _uid: int, body: memoryview) -> Subject:
        """The path, and the bytes, that a request is about: for the trace."""
        path = path_of(self._tree, inode_of(nodeid))
        if operation == "lookup":
            return os.path.normpath(f"{path}/{os.fsdecode(wire.name_of(body))}"), None
        if operation != READ:
            return path, None
        _, offset, size = wire.READ_IN.unpack_from(body)
        return path, ByteRange(offset, offset + size)

    # --- names and attributes ---

    def lookup(self, nodeid: int, _uid: int, body: memoryview) -> Reply | None:
        answer = self._filesystem.lookup_at_once(nodeid, os.fsdecode(wire.name_of(body)))
        return None if answer is None else self._entry_reply(answer)

    async def wait_for_lookup(self, nodeid: int, _uid: int, body: memoryview) -> Reply:
        with self._invalidator.holding(nodeid):
            answer = await self._filesystem.lookup(nodeid, os.fsdecode(wire.name_of(body)))
        return self._entry_reply(answer)

    def _entry_reply(self, answer: Found | Absent) -> bytes:
        if isinstance(answer, Found):
            return self._entry(answer.node, answer.entry_timeout_s, self._now())
        if answer.timeout_s <= 0:
            raise RequestRefused(errno.ENOENT)
        # Node id 0 is a negative entry: the kernel remembers that there is none.
        whole_s, ns = split_seconds(answer.timeout_s)
        return wire.ENTRY_OUT.pack(0, 0, whole_s, 0, ns, *[0] * 17)

    def getattr(self, nodeid: int, _uid: int, _body: memoryview) -> Reply | None:
        node = self._filesystem.getattr_at_once(inode_of(nodeid))
        return None if node is None else self._attributes_reply(node)

    async def wait_for_getattr(self, nodeid: int, _uid: int, _body: memoryview) -> Reply:
        return self._attributes_reply(await self._filesystem.getattr(inode_of(nodeid)))

    def _attributes_reply(self, node: Node) -> bytes:
        whole_s, ns = split_seconds(node.attributes_timeout_s(self._now()))
        return wire.ATTR_OUT.pack(whole_s, ns, 0, *self._attributes(node))

    def _entry(self, node: Node, entry_timeout_s: float, now: float) -> bytes:
        """fuse_entry_out of a node, which the kernel takes for a lookup."""
        entry_s, entry_ns = split_seconds(entry_timeout_s)
        whole_s, ns = split_seconds(node.attributes_timeout_s(now))
        nodeid = node.inode
        if node.size_bytes > _ONE_READ_BYTES:
            nodeid = self.passthrough.node_id(nodeid, self._is_the_kernels)
        return wire.ENTRY_OUT.pack(nodeid, 0, entry_s, whole_s, entry_ns, ns, *self._attributes(node))

    def _is_the_kernels(self, handle: int) -> bool:
        """True if the kernel could read an open file by itself."""
        return self._filesystem.whole_file(handle) is not None

    def _attributes(self, node: Node) -> tuple[int, ...]:
        seconds, ns = divmod(node.mtime_ns, 1_000_000_000)
        inode, size_bytes = node.inode, node.size_bytes
        blocks, mode = -(-size_bytes // 512), self._appearance.mode(node)
        return inode, size_bytes, blocks, seconds, seconds, seconds, ns, ns, ns, mode, node.nlink, *self._common

    def statfs(self, _nodeid: int, _uid: int, _body: memoryview) -> Reply:
        # A bucket has no size. A read-only file system says that it is full, without a free block.
        return wire.STATFS_OUT.pack(0, 0, 0, self._tree.statistics().inodes, 0, BLOCK_SIZE, 255, BLOCK_SIZE)

    # --- directories ---

    def opendir(self, nodeid: int, uid: int, _body: memoryview) -> Reply | None:
        handle = self._filesystem.opendir_at_once(nodeid)
        return None if handle is None else self._opendir_reply(nodeid, uid, handle)

    async def wait_for_opendir(self, nodeid: int, uid: int, _body: memoryview) -> Reply:
        return self._opendir_reply(nodeid, uid, await self._filesystem.opendir(nodeid))

    def _opendir_reply(self, nodeid: int, uid: int, handle: int) -> bytes:
        """Let the kernel cache the names that this handle reads, and use those that it has if they
        are the same: a directory's mtime changes with its entries. Not of a huge directory.
        """
        directories = self._guard.directories
        try:  # only now, as it counts by its names
            weight = directories.admit(uid, self._filesystem.names_of_handle(handle))
        except TooManyOpenFiles:
            self._filesystem.releasedir(handle)
            raise
        directories.opened(handle, uid, weight)
        directory, flags = self._tree.directory(nodeid), 0
        if directory.children is not None and not directory.huge:
            flags = OpenFlag.CACHE_DIR
            if directory.kernel_listing_ns == directory.mtime_ns:
                flags |= OpenFlag.KEEP_CACHE
            directory.kernel_listing_ns = directory.mtime_ns
        return wire.OPEN_OUT.pack(handle, flags, 0)

    def readdir(self, _nodeid: int, _uid: int, body: memoryview) -> Reply | None:
        handle, offset, size = wire.READ_IN.unpack_from(body)
        known = self._filesystem.entries_at_once(handle, max(offset - 2, 0))
        return None if known is None else self._list(known, handle, offset, size, with_attributes=False)

    async def wait_for_readdir(self, nodeid: int, uid: int, body: memoryview) -> Reply:
        handle, offset, size = wire.READ_IN.unpack_from(body)
        return self._list(await self._entries(nodeid, uid, handle, offset), handle, offset, size, with_attributes=False)

    def readdirplus(self, _nodeid: int, _uid: int, body: memoryview) -> Reply | None:
        handle, offset, size = wire.READ_IN.unpack_from(body)
        known = self._filesystem.entries_at_once(handle, max(offset - 2, 0))
        return None if known is None else self._list(known, handle, offset, size, with_attributes=True)

    async def wait_for_readdirplus(self, nodeid: int, uid: int, body: memoryview) -> Reply:
        handle, offset, size = wire.READ_IN.unpack_from(body)
        return self._list(await self._entries(nodeid, uid, handle, offset), handle, offset, size, with_attributes=True)

    async def _entries(self, nodeid: int, uid: int, handle: int, offset: int) -> _Entries:
        start = max(offset - 2, 0)
        with self._invalidator.holding(nodeid):
            if self.journal is not None and not self._filesystem.has_directory(handle):
                told = self.earlier_readers.get(handle, ())[:start]
                await self._filesystem.adopt_directory(handle, nodeid, told)
                self._guard.directories.adopt(handle, uid, self._filesystem.names_of_handle(handle))
                self._note_reader(handle)
            return await self._filesystem.entries(handle, start)

    def _note_reader(self, handle: int) -> None:
        if self.journal is not None:
            self.journal.reading(handle, self._filesystem.shown_names(handle))

    def _list(self, found: _Entries, handle: int, offset: int, size: int, *, with_attributes: bool) -> bytearray:
        """The entries of a directory from `offset` on that fit into `size` bytes.

        With attributes each is a lookup, which is counted here.
        """
        directory, entries = found
        if not offset:
            self._note_reader(handle)
        reply = wire.DirectoryReply(size)
        nothing = bytes(wire.ENTRY_OUT.size) if with_attributes else b""
        """An entry without a node: the kernel takes its name, and makes no inode of it."""
        for index, dots in enumerate((b".", b"..")):
            if offset <= index and not reply.add(dots, directory.inode, _DT_DIR, index + 1, nothing):
                return reply.data
        now = trio.current_time()
        entry_timeout_s = directory.remaining_s(now)
        revalidates = self._filesystem.revalidates(directory)
        told: list[int] = []
        for index, name, node in entries:
            kind = _DT_DIR if node.is_directory else _DT_REG
            if isinstance(node, Unseen):
                fitted = reply.add(os.fsencode(name), UNSEEN_INODES | index, kind, index + 3, nothing)
            else:
                entry = b""
                if with_attributes:
                    timeout_s = 0.0 if revalidates is not None and revalidates(name) else entry_timeout_s
                    entry = self._entry(node, timeout_s, now)
                fitted = reply.add(os.fsencode(name), node.inode, kind, index + 3, entry)
                if fitted and with_attributes:
                    told.append(node.inode)
            if not fitted:
                break
        for inode in told:
            self._tree.remember(inode)
        return reply.data

    def releasedir(self, _nodeid: int, _uid: int, body: memoryview) -> Reply:
        handle = wire.FH.unpack_from(body)[0]
        self._guard.directories.release(handle)
        self._filesystem.releasedir(handle)
        if self.journal is not None:
            self.journal.stopped_reading(handle)
        return b""

    # --- files ---

    def open(self, nodeid: int, uid: int, body: memoryview) -> Reply | None:
        self._refuse_to_write(body)
        files, inode = self._guard.files, inode_of(nodeid)
        weight = files.admit(uid, self._tree.get(inode).size_bytes)
        handle = None
        try:
            handle = self._filesystem.open_at_once(inode)
            if handle is not None and (self._must_be_granted(nodeid, handle) or self._is_soon_whole(nodeid, handle)):
                self._filesystem.release(handle)
                handle = None
        finally:
            if handle is None:
                files.leave(uid, weight)
        if handle is None:
            return None
        files.opened(handle, uid, weight)
        return self._open_reply(nodeid, handle)

    async def wait_for_open(self, nodeid: int, uid: int, _body: memoryview) -> Reply:
        files, inode = self._guard.files, inode_of(nodeid)
        weight = files.admit(uid, self._tree.get(inode).size_bytes)
        try:
            handle = await self._filesystem.open(inode)
            try:
                if self._is_soon_whole(nodeid, handle):
                    with suppress(TooManyReads), self._guard.waiting(uid):
                        await self._filesystem.complete(handle)
                while self._must_be_granted(nodeid, handle):
                    await self._filesystem.claim(handle)
            except BaseException:
                self._filesystem.release(handle)
                raise
        except BaseException:
            files.leave(uid, weight)
            raise
        files.opened(handle, uid, weight)
        return self._open_reply(nodeid, handle)

    def _is_soon_whole(self, nodeid: int, handle: int) -> bool:
        """True if the kernel could soon read a file by itself that the daemon would serve now."""
        return self.passthrough.needs_file(nodeid) and self._filesystem.is_soon_whole(handle)

    def _must_be_granted(self, nodeid: int, handle: int) -> bool:
        """True if the kernel is to read a file by itself that its credentials have to be granted
        first."""
        if self.passthrough.has(nodeid):
            return self._filesystem.awaits_grant(handle)
        return self.passthrough.needs_file(nodeid) and self._filesystem.awaits_grant(handle, only_whole=True)

    @staticmethod
    def _refuse_to_write(body: memoryview) -> None:
        flags, _ = wire.OPEN_IN.unpack_from(body)
        if flags & os.O_ACCMODE != os.O_RDONLY or flags & os.O_TRUNC:
            raise RequestRefused(errno.EROFS)

    def _open_reply(self, nodeid: int, handle: int) -> bytes:
        whole = self._filesystem.whole_file(handle) if self.passthrough.needs_file(nodeid) else None
        backing_id = self.passthrough.open(nodeid, handle, whole)
        if not backing_id:
            self._to_change.add(inode_of(nodeid))
        # An inode is one version for ever, so its cached pages are right for ever. The kernel has
        # none for a file that it reads by itself, and takes no word on them.
        flags = OpenFlag.NOFLUSH | (OpenFlag.PASSTHROUGH if backing_id else OpenFlag.KEEP_CACHE)
        return wire.OPEN_OUT.pack(handle, flags, backing_id)

    def read(self, _nodeid: int, _uid: int, body: memoryview) -> Reply | None:
        handle, offset, size = wire.READ_IN.unpack_from(body)
        if size > len(self._buffer):
            return None
        into = self._buffer[:size]
        size_bytes = self._filesystem.read_at_once(handle, offset, into)
        return into if size_bytes == size else None if size_bytes is None else into[:size_bytes]

    async def wait_for_read(self, nodeid: int, uid: int, body: memoryview) -> Reply:
        handle, offset, size = wire.READ_IN.unpack_from(body)
        if self.journal is not None:
            if not self._filesystem.has_file(handle):
                await self._filesystem.adopt(handle, inode_of(nodeid))
            self._guard.files.adopt(handle, uid, self._tree.get(inode_of(nodeid)).size_bytes)
        with self._guard.waiting_read(handle):
            return await self._filesystem.read(handle, offset, size)

    def release(self, nodeid: int, _uid: int, body: memoryview) -> Reply:
        handle = wire.FH.unpack_from(body)[0]
        self._guard.files.release(handle)
        if self.passthrough.release(nodeid, handle) and self._filesystem.whole_file(handle) is not None:
            self.useless_pages.add(nodeid)
        self._filesystem.release(handle)
        return b""

    def change_over(self) -> None:
        """Have the kernel ask again for files that became whole while the daemon serves them: it
        can read them by itself from the next open on. For each that may yet prove wrong this comes
        later.
        """
        changing, left = self._to_change.copy(), set[int]()
        for inode in changing:
            node, served = self._tree.nodes.get(inode), self.passthrough.served(inode)
            if served is None or not isinstance(node, File) or node.size_bytes <= _ONE_READ_BYTES:
                continue
            if not self._is_the_kernels(served[1]):
                if self._filesystem.is_whole(served[1]):
                    left.add(inode)
            elif self._guard.counters.passthrough:
                self._invalidator.expired(node.parent, [node.version.key.rpartition("/")[2]])
        self._to_change -= changing - left

    async def adopt_files(self, open_files: Mapping[int, tuple[int, int]]) -> None:
        """Open the files that were open in an earlier process, so that the cache keeps them. One
        that cannot be opened is tried again by its reader."""
        for handle, (nodeid, _) in open_files.items():
            await trio.lowlevel.checkpoint()
            if handle in self.passthrough.handles(nodeid) and not self._filesystem.has_file(handle):
                try:
                    await self._filesystem.adopt(handle, inode_of(nodeid))
                except Exception as error:  # it must not end the mount
                    log.info("a file that is open could not be opened again: %s", error)
                if handle not in self.passthrough.handles(nodeid):  # closed meanwhile
                    self._filesystem.release(handle)
            self._to_change.add(inode_of(nodeid))  # it may have become whole before

    # --- extended attributes ---

    async def wait_for_getxattr(self, nodeid: int, _uid: int, body: memoryview) -> Reply:
        if not self._appearance.xattr:
            raise RequestRefused(errno.ENOSYS)  # the kernel never asks again
        room_bytes, _ = wire.XATTR_IN.unpack_from(body)
        name, node = wire.name_of(body, wire.XATTR_IN.size), self._tree.get(inode_of(nodeid))
        value = (await self._describe(node)).get(name, b"")
        if name == _TASK_ID:
            # Not among the others: it may take a signature, or a request for the version's id.
            value = (await self._filesystem.describer.task_id(node)).encode()
        if not value:
            raise RequestRefused(errno.ENODATA)
        return self._xattr_reply(value, room_bytes)

    async def wait_for_listxattr(self, nodeid: int, _uid: int, body: memoryview) -> Reply:
        if not self._appearance.xattr:
            raise RequestRefused(errno.ENOSYS)
        room_bytes, _ = wire.XATTR_IN.unpack_from(body)
        node = self._tree.get(inode_of(nodeid))
        names = [*await self._describe(node), *([_TASK_ID] if await self._filesystem.describer.task_id(node) else [])]
        return self._xattr_reply(b"".join(name + b"\0" for name in names), room_bytes)

    @staticmethod
    def _xattr_reply(value: bytes, room_bytes: int) -> bytes:
        if not room_bytes:  # the caller asks for the size
            return wire.XATTR_IN.pack(len(value), 0)
        if len(value) > min(room_bytes, _MAX_XATTR_BYTES):
            raise RequestRefused(errno.ERANGE)
        return value

    async def _describe(self, node: Node) -> dict[bytes, bytes]:
        described = await self._filesystem.describer.describe(node)
        return {XATTR_PREFIX + name.encode(): value.encode() for name, value in described.items()}

    def readlink(self, _nodeid: int, _uid: int, _body: memoryview) -> Reply:
        raise RequestRefused(errno.EINVAL)  # there are no symbolic links

    # --- what has no reply ---

    def forget(self, nodeid: int, count: int) -> None:
        """Give back `count` lookups of a node."""
        try:
            self._filesystem.forget(inode_of(nodeid), count)
        except Exception:  # one bad entry must not leak the others; a forget has no answer
            log.exception("forget of inode %d failed unexpectedly", inode_of(nodeid))
