"""Our own FUSE session: the connection to the kernel, spoken by the protocol itself.

Owns the descriptor of /dev/fuse, the loop that reads requests from it, and the memory of requests
and of replies. What can be answered at once is answered in the loop; for anything else there is a
task. Invariants:

- A request is answered once, on the descriptor that it came by.
- The loop waits for nothing but the next request.
- Notices to the kernel are written by worker threads: the kernel may hold them up until requests are
  answered that only the loop can answer.
- Replies are sent from memory that is resident. A daemon that were killed while the kernel waited
  for a page of a reply would take the request with it. What is answered at once lies in a buffer that
  was written before. What was waited for lies in bytes that were just copied there (read(2) fills
  them), never in a mapping of a file.

The first request is INIT, in which features are agreed on (`_greet`). Built and run by `daemon`.
"""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from pathlib import Path

import trio

from d7yfs.fs.filesystem import Filesystem
from d7yfs.fuse import wire
from d7yfs.fuse.appearance import Appearance
from d7yfs.fuse.journal import SessionJournal
from d7yfs.fuse.notices import Invalidator
from d7yfs.fuse.passthrough import SECOND_NODE, Passthrough
from d7yfs.fuse.request_guard import RequestGuard, RequestRefused
from d7yfs.fuse.responder import Reply, Responder
from d7yfs.fuse.succession import Succession
from d7yfs.fuse.wire import Greeting, InitFlag, NoticeCode, Opcode, Terms
from d7yfs.host import fuse_device
from d7yfs.host.fuse_device import MountFlags
from d7yfs.host.mount_table import MAX_BACKGROUND, READ_AHEAD_KIB

log = logging.getLogger(__name__)

_REQUEST_BYTES = 64 << 10
"""Larger than any request: FUSE_MIN_READ_BUFFER is 8 KiB, and a BATCH_FORGET fills what there is."""
_READ_BYTES = 1 << 20
"""The largest READ, by `Terms.max_pages`."""
_AT_A_TIME = 64
"""The requests that are read before other tasks have their turn."""

_TIDY_S = 1.0
"""Interval in seconds at which pages that are of no use are dropped, and the kernel is told of files
that it can read by itself: many at once."""

_FEATURES = (
    InitFlag.ASYNC_READ
    | InitFlag.READDIRPLUS
    | InitFlag.READDIRPLUS_AUTO
    | InitFlag.ASYNC_DIO
    | InitFlag.PARALLEL_DIROPS
    | InitFlag.MAX_PAGES
    | InitFlag.EXPLICIT_INVAL_DATA
    | InitFlag.INIT_EXT
    | InitFlag.HAS_EXPIRE_ONLY
    | InitFlag.DIRECT_IO_ALLOW_MMAP
    | InitFlag.PASSTHROUGH
    | InitFlag.HAS_RESEND
)
"""The features to ask for, if the kernel offers them. EXPLICIT_INVAL_DATA: an inode is one version for
ever, so its pages are never dropped because of an attribute."""

_GONE = frozenset({errno.ENODEV, errno.ENOTCONN, errno.ECONNABORTED})
"""The errors of a connection that has ended: it was unmounted, or aborted."""
_RETRIED = frozenset({errno.EINTR, errno.ENOENT})
"""A request that was withdrawn before it was read."""

AtOnce = Callable[[int, int, memoryview], Reply | None]
Waiting = Callable[[int, int, memoryview], Awaitable[Reply]]


class Session:
    """The connection of one mount. Requests are answered by its `Responder`."""

    def __init__(
        self,
        filesystem: Filesystem,
        invalidator: Invalidator,
        appearance: Appearance,
        *,
        deadline_s: float,
        passthrough: bool = True,
    ) -> None:
        self._device = -1
        self._request = bytearray(_REQUEST_BYTES)
        self._requests = [self._request]  # as readv(2) takes it
        self._body = memoryview(self._request)[wire.IN_HEADER.size :]
        self._wants_passthrough = passthrough
        self._succession: Succession | None = None
        self._journal: SessionJournal | None = None
        self._ended = False
        buffer = memoryview(bytearray(b"\1") * _READ_BYTES)  # written, and so resident
        self._at_once: dict[int, tuple[str, AtOnce]] = {}
        self._waiting: dict[int, tuple[str, Waiting]] = {}
        self.guard = RequestGuard("kernel", deadline_s=deadline_s)
        self._responder = Responder(filesystem, invalidator, appearance, self.guard, buffer)
        self.guard.subject_of = self._responder.subject_of
        self.guard.is_absent = wire.is_absent
        invalidator.tell_expired = partial(self.forget_entries, expire_only=True)
        for opcode in _ANSWERED:
            name = opcode.name.lower()
            operation = name.removesuffix("plus")
            if (at_once := getattr(self._responder, name, None)) is not None:
                self._at_once[opcode] = operation, at_once
            if (waiting := getattr(self._responder, f"wait_for_{name}", None)) is not None:
                self._waiting[opcode] = operation, waiting

    # --- the connection ---

    def mount(self, mountpoint: Path, flags: MountFlags, handed_fd: int | None) -> None:
        """Mount, or take over the descriptor of a mount that is not served yet. Raises
        MountError.
        """
        fd = handed_fd if handed_fd is not None else fuse_device.connect(mountpoint, flags)
        os.set_blocking(fd, False)
        self._device = fd

    def follow(self, succession: Succession) -> None:
        """Go on where the workers before this one were ended, or begin as the first one."""
        self._succession, known = succession, succession.known
        self._device = succession.handed.session_fd
        os.set_blocking(self._device, False)
        self._journal = self._responder.journal = succession.journal
        self._responder.earlier_readers = known.readers
        self._agree(InitFlag(known.terms.flags if known.terms is not None else 0))
        self._responder.passthrough.restore(known.open_files)

    async def serve(self) -> None:
        """Answer requests until the file system is unmounted or the caller cancels."""
        if self._succession is not None and self._succession.follows:
            self._ask_again()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._tidy)
            if self._succession is not None:
                nursery.start_soon(self._responder.adopt_files, self._succession.known.open_files)
            while not self._ended:
                await trio.lowlevel.wait_readable(self._device)
                for _ in range(_AT_A_TIME):
                    if not self._serve_one(nursery):
                        break
            nursery.cancel_scope.cancel()

    def close(self) -> None:
        """Close the connection; readers with open files get ENOTCONN. Does not unmount."""
        if self._device < 0:
            return
        trio.lowlevel.notify_closing(self._device)
        # Its number stays in use: else a thread's late notice could go into another file.
        with Path(os.devnull).open("wb") as nowhere:
            os.dup2(nowhere.fileno(), self._device, inheritable=False)

    # --- notices, from worker threads ---

    def forget_pages(self, inode: int) -> None:
        """Have the kernel drop its pages of a file. For a worker thread: it waits for reads that
        only we can answer.
        """
        self._forget_pages_of_nodes((inode, inode | SECOND_NODE))

    def _forget_pages_of_nodes(self, nodeids: Iterable[int]) -> None:
        for nodeid in nodeids:
            try:
                os.write(self._device, wire.inval_inode(nodeid))
            except OSError as error:
                if error.errno != errno.ENOENT:  # the kernel knows no such node any more
                    log.warning("the kernel's pages of node %d could not be dropped: %s", nodeid, error.strerror)

    def forget_entries(self, directory: int, names: Sequence[bytes], *, expire_only: bool = False) -> int:
        """Have the kernel forget these entries of a directory, and its attributes; returns how many
        it knew. With `expire_only` it keeps them, and asks for them at their next use.

        For a worker thread: it waits until every lookup and readdir of that directory has its
        answer. Open files stay open, and cached pages stay cached.
        """
        known = 0
        try:
            for name in names:
                try:
                    os.write(self._device, wire.inval_entry(directory, name, expire_only=expire_only))
                    known += 1
                except FileNotFoundError:
                    pass
            if not expire_only:
                os.write(self._device, wire.inval_inode(directory, attributes_only=True))
        except FileNotFoundError:
            pass
        except OSError as error:
            log.warning("the kernel could not be told what changed in inode %d: %s", directory, error.strerror)
        return known

    async def _tidy(self) -> None:
        """Have the kernel read by itself what became whole, and free the memory of files that were
        read by way of the daemon, and will not be again.
        """
        while True:
            await trio.sleep(_TIDY_S)
            try:
                self._responder.change_over()
            except Exception:  # it must not end the mount
                log.exception("the kernel could not be told of files that became whole")
            if useless := self._responder.useless_pages:
                self._responder.useless_pages = set()
                await trio.to_thread.run_sync(self._forget_pages_of_nodes, useless, abandon_on_cancel=True)

    def _ask_again(self) -> None:
        """Have the kernel send again what earlier workers left unanswered."""
        try:
            os.write(self._device, wire.notice(NoticeCode.RESEND))
        except OSError as error:
            if error.errno not in _GONE:
                log.error("the kernel does not send unanswered requests again: %s", error.strerror)

    # --- requests ---

    def _serve_one(self, nursery: trio.Nursery) -> bool:
        """Read a request and answer it, or start a task that does. False if there is none now."""
        try:
            size_bytes = os.readv(self._device, self._requests)
        except BlockingIOError:
            return False
        except OSError as error:
            if error.errno in _RETRIED:
                return True
            self._ended = True
            if error.errno not in _GONE:
                log.error("the connection to the kernel failed: %s", error.strerror)
            return False
        length, opcode, unique, nodeid, uid = wire.IN_HEADER.unpack_from(self._request)
        body = self._body[: size_bytes - wire.IN_HEADER.size]
        if length != size_bytes or size_bytes < wire.IN_HEADER.size:
            log.error("a request of the kernel says %d bytes, and has %d", length, size_bytes)
            if size_bytes >= wire.IN_HEADER.size and opcode not in wire.UNANSWERED:
                self._send(unique, wire.refusal(unique, errno.EIO))
            return True
        if (known := self._at_once.get(opcode)) is not None:
            operation, answer_at_once = known
            try:
                reply = self.guard.answer_at_once(operation, answer_at_once, nodeid, uid, body)
            except RequestRefused as refused:
                self._send(unique, wire.refusal(unique, refused.number))
                return True
            if reply is not None:
                self._send(unique, wire.reply_header(unique, len(reply)), reply)
                return True
        if opcode in self._waiting:
            nursery.start_soon(self._wait, opcode, unique, nodeid, uid, memoryview(bytes(body)))
            return True
        self._serve_other(opcode, unique, nodeid, body)
        return True

    async def _wait(self, opcode: int, unique: int, nodeid: int, uid: int, body: memoryview) -> None:
        operation, answer = self._waiting[opcode]
        try:
            content = await self.guard.answer(operation, answer, nodeid, uid, body)
        except RequestRefused as refused:
            self._send(unique, wire.refusal(unique, refused.number))
        else:
            self._send(unique, wire.reply_header(unique, len(content)), content)

    def _serve_other(self, opcode: int, unique: int, nodeid: int, body: memoryview) -> None:
        """Serve what is no request to the file system."""
        try:
            if opcode == Opcode.FORGET:
                self._responder.forget(nodeid, wire.FH.unpack_from(body)[0])
            elif opcode == Opcode.BATCH_FORGET:
                for each, count in wire.parse_forgets(body):
                    self._responder.forget(each, count)
            elif opcode == Opcode.INIT:
                self._greet(unique, Greeting.parse(body))
            elif opcode == Opcode.DESTROY:
                self._send(unique, wire.reply_header(unique, 0))
            elif opcode not in wire.UNANSWERED:
                number = errno.EROFS if opcode in wire.WRITING else errno.ENOSYS
                self._send(unique, wire.refusal(unique, number))
            self._keep()
        except Exception:
            log.exception("a message of the kernel (opcode %d) could not be handled", opcode)
            if opcode not in wire.UNANSWERED:
                self._send(unique, wire.refusal(unique, errno.EIO))

    def _greet(self, unique: int, greeting: Greeting) -> None:
        """Agree on the protocol and its features (fuse_init_out in linux/fuse.h)."""
        if greeting.major != wire.MAJOR or greeting.minor < wire.OLDEST_MINOR:
            log.error("this kernel speaks FUSE %d.%d: use --fuse-engine pyfuse3", greeting.major, greeting.minor)
            self._send(unique, wire.refusal(unique, errno.EPROTO))
            return
        flags = _FEATURES & greeting.flags
        if not self._wants_passthrough:
            flags &= ~InitFlag.PASSTHROUGH
        terms = Terms(
            max_readahead=READ_AHEAD_KIB << 10,
            flags=flags,
            max_background=MAX_BACKGROUND,
            max_stack_depth=1 if flags & InitFlag.PASSTHROUGH else 0,
        )
        self._agree(flags)
        if self._succession is not None:
            self._succession.greet(flags)
        log.info("FUSE %d.%d, %s", greeting.major, greeting.minor, flags.name)
        self._send(unique, wire.reply_header(unique, wire.INIT_OUT.size), terms.encode())

    def _agree(self, flags: InitFlag) -> None:
        """Know what was agreed with the kernel."""
        backings = self._succession.backings if self._succession is not None else None
        self.guard.counters.passthrough = bool(flags & InitFlag.PASSTHROUGH)
        self._responder.passthrough = Passthrough(
            backings or fuse_device.KernelBackings(self._device), self.guard.counters, self._journal
        )

    def _keep(self) -> None:
        """Write to the journal what it lacks. The kernel learns of nothing that it lacks."""
        if self._journal is not None:
            self._journal.flush()

    def _send(self, unique: int, *parts: Reply) -> None:
        """Send a reply. One that the kernel does not wait for any more is dropped."""
        self._keep()
        try:
            os.writev(self._device, parts)
        except OSError as error:
            if error.errno not in _GONE | {errno.ENOENT, errno.EBADF}:
                log.error("the kernel did not take the reply to request %d: %s", unique, error.strerror)


_ANSWERED = (
    Opcode.LOOKUP,
    Opcode.GETATTR,
    Opcode.READLINK,
    Opcode.OPEN,
    Opcode.READ,
    Opcode.STATFS,
    Opcode.RELEASE,
    Opcode.GETXATTR,
    Opcode.LISTXATTR,
    Opcode.OPENDIR,
    Opcode.READDIR,
    Opcode.READDIRPLUS,
    Opcode.RELEASEDIR,
)
"""The requests that the responder answers. What is missing here is refused; the kernel remembers
that of most, and does not ask again: FLUSH, ACCESS, FSYNC, LSEEK, …"""
