"""pyfuse3 → `Filesystem`: a protocol adapter only.

Converts arguments and values. `RequestGuard` counts each request, gives it a deadline, and catches
everything: an exception that escapes a pyfuse3 handler ends the session for every reader.

libfuse's session is global to the process: one `Adapter` per process. Built and run by `daemon`.
"""

from __future__ import annotations

import errno
import functools
import logging
import os
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

import pyfuse3
import trio
from pyfuse3 import EntryAttributes, FileInfo, FUSEError, ReaddirToken, RequestContext, StatvfsData
from pyfuse3._pyfuse3 import FileHandleT, FileNameT, FlagT, InodeT, ModeT, XAttrNameT

from d7yfs.errors import D7yfsError, MountError, TooManyOpenFiles
from d7yfs.fs.description import path_of
from d7yfs.fs.filesystem import Filesystem
from d7yfs.fuse import nameonly_entries, parallel_dirops
from d7yfs.fuse.appearance import BLOCK_SIZE, UNSEEN_INODES, Appearance
from d7yfs.fuse.notices import Invalidator
from d7yfs.fuse.parallel_dirops import Handshake
from d7yfs.fuse.request_guard import OPERATIONS, RequestGuard, RequestRefused, Subject
from d7yfs.fuse.succession import Succession
from d7yfs.host.fuse_device import MountFlags
from d7yfs.objects import ByteRange
from d7yfs.tree.huge_directory import Unseen
from d7yfs.tree.nodes import Absent, Node

log = logging.getLogger(__name__)

MAX_TASKS = 17_000
"""The requests handled at once. They exceed the kernel's background limit that
`mount_table.tune` sets: requests that stall in one repository leave room for those of another."""

XATTR_PREFIX = b"user.d7yfs."
_TASK_ID = XATTR_PREFIX + b"task_id"

P = ParamSpec("P")
T = TypeVar("T")


def _answered(
    method: Callable[Concatenate[Adapter, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Adapter, P], Coroutine[Any, Any, T]]:
    """Have the guard answer in every case, so that the session lives on."""
    operation = method.__name__
    assert operation in OPERATIONS

    @functools.wraps(method)
    async def answered(self: Adapter, /, *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return await self.guard.answer(operation, functools.partial(method, self, **kwargs), *args)
        except RequestRefused as refused:
            raise FUSEError(refused.number) from None

    return answered


class Adapter(pyfuse3.Operations):
    """The handlers of one mount. `deadline_s` bounds every request but read, which has its own."""

    enable_writeback_cache = False
    supports_dot_lookup = False

    def __init__(
        self,
        filesystem: Filesystem,
        invalidator: Invalidator,
        appearance: Appearance,
        *,
        deadline_s: float,
        passthrough: bool = True,  # libfuse has none
    ) -> None:
        super().__init__()
        self.guard = RequestGuard("pyfuse3", deadline_s=deadline_s)
        self.guard.subject_of = self._subject_of
        self.guard.is_absent = lambda answer: getattr(answer, "st_ino", 1) == 0
        self._handshake: Handshake | None = None
        self._filesystem = filesystem
        self._invalidator = invalidator
        self._appearance = appearance

    def _subject_of(self, operation: str, subject: int, *rest: Any) -> Subject:
        """The path, and the bytes, that a request is about: for the trace."""
        if operation in ("read", "release", "fsync"):
            inode = self._filesystem.inode_of_file(subject)
        elif operation in ("readdir", "releasedir", "fsyncdir"):
            inode = self._filesystem.inode_of_handle(subject)
        else:
            inode = subject
        path = path_of(self._filesystem.tree, inode)
        if operation == "lookup":
            return os.path.normpath(f"{path}/{os.fsdecode(rest[0])}"), None
        return path, ByteRange(rest[0], rest[0] + rest[1]) if operation == "read" else None

    # --- the session ---

    def mount(self, mountpoint: Path, flags: MountFlags, handed_fd: int | None) -> None:
        """Mount, or take over the descriptor of a mount that is not served yet. Raises
        MountError; libfuse's reason went to stderr.
        """
        # libfuse takes a descriptor as the mount point /dev/fd/N.
        place = str(mountpoint) if handed_fd is None else f"/dev/fd/{handed_fd}"
        before = parallel_dirops.devices()
        try:
            pyfuse3.init(self, place, set(flags.options))
        except RuntimeError as error:
            raise MountError(
                f"{mountpoint} could not be mounted: {error}",
                hint="d7yfs check says what FUSE lacks here (/dev/fuse, fusermount3, user_allow_other)",
            ) from error
        new = parallel_dirops.devices() - before
        if len(new) == 1:
            self._handshake = Handshake(new.pop())
        else:
            log.warning("lookups in one directory will wait for each other: /dev/fuse is not where it was expected")

    @staticmethod
    def follow(_succession: Succession) -> None:
        """Refuse: libfuse serves no connection that has been greeted."""
        raise MountError("the engine pyfuse3 cannot serve a supervisor's connection", hint="use --fuse-engine kernel")

    def init(self) -> None:
        """Begin the handshake; libfuse calls this while the kernel's first request is handled."""
        if self._handshake is not None:
            self._handshake.begin()

    async def serve(self) -> None:
        """Answer requests until the file system is unmounted or the caller cancels."""
        if self._handshake is not None:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._handshake.finish)
                await self._answer_requests()
                nursery.cancel_scope.cancel()
        # After the handshake ended it, it goes on; after the mount has ended, it ends at once.
        await self._answer_requests()

    @staticmethod
    async def _answer_requests() -> None:
        await pyfuse3.main(min_tasks=4, max_tasks=MAX_TASKS)

    @staticmethod
    def close() -> None:
        """Close the session; readers with open files get ENOTCONN. Does not unmount."""
        pyfuse3.close(unmount=False)

    @staticmethod
    def forget_pages(inode: int) -> None:
        """Have the kernel drop its pages of a file. For a worker thread: it waits for reads that
        only we can answer."""
        try:
            pyfuse3.invalidate_inode(InodeT(inode))
        except OSError as error:
            if error.errno != errno.ENOENT:  # the kernel knows no such inode any more
                log.warning("the kernel's pages of inode %d could not be dropped: %s", inode, error.strerror)

    @staticmethod
    def forget_entries(directory: int, names: Sequence[bytes]) -> int:
        """Have the kernel forget these entries of a directory, and its attributes; returns how many
        it knew.

        For a worker thread: it waits until every lookup and readdir of that directory has its
        answer. Open files stay open, and cached pages stay cached.
        """
        known = 0
        try:
            for name in names:
                try:
                    pyfuse3.invalidate_entry(InodeT(directory), FileNameT(name))
                    known += 1
                except FileNotFoundError:
                    pass
            pyfuse3.invalidate_inode(InodeT(directory), attr_only=True)
        except FileNotFoundError:
            pass
        except OSError as error:
            log.warning("the kernel could not be told what changed in inode %d: %s", directory, error.strerror)
        return known

    # --- names ---

    @_answered
    async def lookup(self, parent_inode: InodeT, name: FileNameT, ctx: RequestContext) -> EntryAttributes:
        with self._invalidator.holding(parent_inode):
            answer = await self._filesystem.lookup(parent_inode, os.fsdecode(name))
        if isinstance(answer, Absent):
            if answer.timeout_s <= 0:
                raise RequestRefused(errno.ENOENT)
            # Inode 0 is a negative entry: the kernel remembers that there is none (fuse_entry_param
            # in fuse_lowlevel.h).
            negative = EntryAttributes()
            negative.st_ino = InodeT(0)
            negative.entry_timeout = answer.timeout_s
            return negative
        found = self._attributes_of(answer.node)
        found.entry_timeout = answer.entry_timeout_s
        return found

    @_answered
    async def getattr(self, inode: InodeT, ctx: RequestContext) -> EntryAttributes:
        return self._attributes_of(await self._filesystem.getattr(inode))

    async def forget(self, inode_list: Sequence[tuple[InodeT, int]]) -> None:
        for inode, count in inode_list:
            try:
                self._filesystem.forget(inode, count)
            except Exception:  # one bad entry must not leak the others; a forget has no answer
                log.exception("forget of inode %d failed unexpectedly", inode)

    @_answered
    async def access(self, inode: InodeT, mode: ModeT, ctx: RequestContext) -> bool:
        if mode & os.W_OK:
            raise RequestRefused(errno.EROFS)
        return True  # the kernel has checked the mode bits (default_permissions)

    # --- directories ---

    @_answered
    async def opendir(self, inode: InodeT, ctx: RequestContext) -> FileHandleT:
        handle = await self._filesystem.opendir(inode)
        try:  # afterwards, as its names are known only now
            weight = self.guard.directories.admit(ctx.uid, self._filesystem.names_of_handle(handle))
        except TooManyOpenFiles:
            self._filesystem.releasedir(handle)
            raise
        self.guard.directories.opened(handle, ctx.uid, weight)
        return FileHandleT(handle)

    @_answered
    async def readdir(self, fh: FileHandleT, start_id: int, token: ReaddirToken) -> None:
        with self._invalidator.holding(self._filesystem.inode_of_handle(fh)):
            directory, entries = await self._filesystem.entries(fh, max(start_id - 2, 0))
        if directory.huge and not nameonly_entries.SUPPORTED:
            raise D7yfsError(f"{directory.prefix} has too many entries to be shown with this version of pyfuse3")
        for index, dots in enumerate((b".", b"..")):
            if start_id <= index and not pyfuse3.readdir_reply(
                token, FileNameT(dots), self._attributes_of(directory), index + 1
            ):
                return
        now = trio.current_time()
        # One for all entries, since each is copied into the reply: thousands come in one call.
        value, entry_timeout_s = self._common_attributes(), directory.remaining_s(now)
        value.entry_timeout = entry_timeout_s
        revalidates = self._filesystem.revalidates(directory)
        told: list[int] = []
        for index, name, node in entries:
            if revalidates is not None:
                value.entry_timeout = 0.0 if revalidates(name) else entry_timeout_s
            if isinstance(node, Unseen):
                value.st_ino = InodeT(UNSEEN_INODES | index)
                value.st_mode = ModeT(self._appearance.mode(node))
                nameonly_entries.clear_node_id(value)
            else:
                self._set_attributes(node, value, now)
            if not pyfuse3.readdir_reply(token, FileNameT(os.fsencode(name)), value, index + 3):
                break
            if not isinstance(node, Unseen):
                told.append(node.inode)
        # READDIRPLUS counts as a lookup of every entry that fitted and has attributes. Counted
        # here: of a reply that fails midway the kernel gets no entry.
        for inode in told:
            self._filesystem.tree.remember(inode)

    @_answered
    async def releasedir(self, fh: FileHandleT) -> None:
        self.guard.directories.release(fh)
        self._filesystem.releasedir(fh)

    # --- files ---

    @_answered
    async def open(self, inode: InodeT, flags: FlagT, ctx: RequestContext) -> FileInfo:
        if flags & os.O_ACCMODE != os.O_RDONLY or flags & os.O_TRUNC:
            raise RequestRefused(errno.EROFS)
        weight = self.guard.files.admit(ctx.uid, self._filesystem.tree.get(inode).size_bytes)
        try:
            handle = await self._filesystem.open(inode)
        except BaseException:
            self.guard.files.leave(ctx.uid, weight)
            raise
        self.guard.files.opened(handle, ctx.uid, weight)
        # An inode is one version for ever, so its cached pages are right for ever.
        return FileInfo(fh=FileHandleT(handle), keep_cache=True)

    @_answered
    async def read(self, fh: FileHandleT, off: int, size: int) -> bytes:
        with self.guard.waiting_read(fh):
            return await self._filesystem.read(fh, off, size)  # type: ignore[return-value]  # any buffer will do

    @_answered
    async def release(self, fh: FileHandleT) -> None:
        self.guard.files.release(fh)
        self._filesystem.release(fh)

    async def flush(self, fh: FileHandleT) -> None:
        """Refuse: nothing is ever written, and after this answer the kernel does not ask at
        every close (fuse_lowlevel.h)."""
        raise FUSEError(errno.ENOSYS)

    @_answered
    async def fsync(self, fh: FileHandleT, datasync: bool) -> None:
        """Do nothing: nothing is ever written."""

    @_answered
    async def fsyncdir(self, fh: FileHandleT, datasync: bool) -> None:
        """Do nothing: nothing is ever written."""

    @_answered
    async def statfs(self, ctx: RequestContext) -> StatvfsData:
        data = StatvfsData()
        data.f_bsize = data.f_frsize = BLOCK_SIZE
        # A bucket has no size. A read-only file system says that it is full, without a free block.
        data.f_blocks = data.f_bfree = data.f_bavail = 0
        data.f_files = self._filesystem.tree.statistics().inodes
        data.f_ffree = data.f_favail = 0
        data.f_namemax = 255
        return data

    # --- extended attributes ---

    @_answered
    async def getxattr(self, inode: InodeT, name: XAttrNameT, ctx: RequestContext) -> bytes:
        if not self._appearance.xattr:
            raise RequestRefused(errno.ENOSYS)  # the kernel never asks again
        node = self._filesystem.tree.get(inode)
        value = (await self._describe(node)).get(bytes(name), b"")
        if name == _TASK_ID:
            # Not among the others: it may take a signature, or a request for the version's id.
            value = (await self._filesystem.describer.task_id(node)).encode()
        if not value:
            raise RequestRefused(errno.ENODATA)
        return value

    @_answered
    async def listxattr(self, inode: InodeT, ctx: RequestContext) -> Sequence[XAttrNameT]:
        if not self._appearance.xattr:
            raise RequestRefused(errno.ENOSYS)
        node = self._filesystem.tree.get(inode)
        names = [*await self._describe(node), *([_TASK_ID] if await self._filesystem.describer.task_id(node) else [])]
        return [XAttrNameT(name) for name in names]

    async def _describe(self, node: Node) -> dict[bytes, bytes]:
        described = await self._filesystem.describer.describe(node)
        return {XATTR_PREFIX + name.encode(): value.encode() for name, value in described.items()}

    # --- what would write ---

    async def _refuse(self, *args: object, **kwargs: object) -> None:
        raise FUSEError(errno.EROFS)

    setattr = mknod = mkdir = unlink = rmdir = symlink = rename = link = create = write = _refuse  # type: ignore[assignment]
    setxattr = removexattr = _refuse

    @_answered
    async def readlink(self, inode: InodeT, ctx: RequestContext) -> FileNameT:
        raise RequestRefused(errno.EINVAL)  # there are no symbolic links

    # --- values ---

    def _attributes_of(self, node: Node) -> EntryAttributes:
        value = self._common_attributes()
        self._set_attributes(node, value, trio.current_time())
        return value

    def _common_attributes(self) -> EntryAttributes:
        """The attributes that all nodes have in common."""
        appearance = self._appearance
        value = EntryAttributes()
        value.st_uid = appearance.uid
        value.st_gid = appearance.gid
        value.st_blksize = BLOCK_SIZE
        return value

    def _set_attributes(self, node: Node, value: EntryAttributes, now: float) -> None:
        """Set in `value` the attributes of the node."""
        value.st_ino = InodeT(node.inode)
        value.st_mode = ModeT(self._appearance.mode(node))
        value.st_nlink = node.nlink
        value.st_size = size_bytes = node.size_bytes
        value.st_blocks = -(-size_bytes // 512)
        value.st_atime_ns = value.st_mtime_ns = value.st_ctime_ns = node.mtime_ns
        value.attr_timeout = node.attributes_timeout_s(now)
