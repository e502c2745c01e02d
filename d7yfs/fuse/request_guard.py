"""Every request of a mount's kernel gets an answer: counted, within its deadline, and as an errno
if it fails.

An exception that left a handler would end the session for every reader of the mount, so the
catch-all here is correctness. Expected errors become their errno; any other becomes a traceback in
the log and EIO to that one caller.

Used by both engines, which convert arguments and answers. Trio thread only.
"""

from __future__ import annotations

import errno
import itertools
import logging
from collections.abc import Awaitable, Callable, Iterator, Sized
from contextlib import AbstractContextManager, contextmanager, suppress
from time import perf_counter
from typing import TypeVar, TypeVarTuple, Unpack, cast

import trio

from d7yfs.errors import D7yfsError, TooManyReads
from d7yfs.fuse.openers import openers_of_directories, openers_of_files
from d7yfs.host.process import descriptor_limit
from d7yfs.logs import REQUEST, TRACE, fields, fields_of
from d7yfs.objects import ByteRange
from d7yfs.stats.kernel import OperationCounters, Unanswered

log = logging.getLogger(__name__)

MAX_WAITING_READS = 4096
"""The reads of one user's open files that may wait at once. Much less than the kernel's background
limit: beyond that the kernel holds back every user's reads, cached or not."""

OPERATIONS = (
    *(
        "lookup",
        "getattr",
        "access",
        "opendir",
        "readdir",
        "releasedir",
        "open",
        "read",
        "release",
        "fsync",
        "fsyncdir",
    ),
    *("statfs", "getxattr", "listxattr", "readlink"),
)
"""The operations that are counted, by their names in `status`."""
READ = "read"
"""The operation with a deadline of its own, counted from the last byte that came."""

Subject = tuple[str, ByteRange | None]
T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class RequestRefused(Exception):
    """The answer to a request that fails. It is counted as a failure only if the guard made it."""

    def __init__(self, number: int) -> None:
        super().__init__(errno.errorcode.get(number, number))
        self.number = number


class RequestGuard:
    """The requests of one mount. `deadline_s` bounds every one but a read."""

    def __init__(self, engine: str, *, deadline_s: float) -> None:
        self.files = openers_of_files(descriptor_limit())
        self.directories = openers_of_directories()
        self.counters = OperationCounters(
            errors=dict.fromkeys(OPERATIONS, 0),
            engine=engine,
            open_files_limit=self.files.limit,
            open_directories_limit=self.directories.limit,
            path_of=self._path_of,
        )
        self.deadline_s = deadline_s
        self.subject_of: Callable[..., Subject] = lambda *_: ("?", None)
        """The path and the bytes that a request is about, by its operation and arguments; set by the
        engine."""
        self.is_absent: Callable[[object], bool] = lambda _: False
        """True if the answer to a lookup says that there is no such name; set by the engine."""
        self._numbers = itertools.count(1)
        self._waiting: set[trio.CancelScope] = set()
        self._ending = False

    async def answer(self, operation: str, request: Callable[[Unpack[Ts]], Awaitable[T]], *args: *Ts) -> T:
        """The answer of `request`. Raises RequestRefused for every failure."""
        with self._counting(operation, args) as began_at:
            try:
                if operation == READ:
                    answer = await request(*args)
                else:
                    with trio.fail_after(self.deadline_s) as scope:
                        self._waiting.add(scope)
                        try:
                            answer = await request(*args)
                        finally:
                            self._waiting.remove(scope)
            except Exception as error:
                refusal = self._refusal(operation, error)
                self._trace(operation, args, began_at, refusal)
                raise refusal from None
            self._trace(operation, args, began_at, answer)
            return answer

    def answer_at_once(self, operation: str, request: Callable[[Unpack[Ts]], T], *args: *Ts) -> T:
        """The answer of a `request` that waits for nothing; None if it has to wait, uncounted.
        Raises RequestRefused for every failure.
        """
        # In the trace it has a number, by which what it begins is known.
        before = REQUEST.set(next(self._numbers)) if TRACE.is_on else None
        began_at = perf_counter()
        try:
            answer = request(*args)
        except Exception as error:
            self._count(operation)
            self.counters.observe(operation, perf_counter() - began_at)
            refusal = self._refusal(operation, error)
            self._trace(operation, args, began_at, refusal)
            raise refusal from None
        else:
            if answer is not None:
                self._count(operation)
                self.counters.observe(operation, perf_counter() - began_at)
                if before is not None:
                    self._trace(operation, args, began_at, answer)
            return answer
        finally:
            if before is not None:
                REQUEST.reset(before)

    def _path_of(self, request: Unanswered) -> str:
        """The path that a request is about, for the account; `?` if it is not known any more."""
        with suppress(Exception):
            return self.subject_of(request.operation, *request.arguments)[0]
        return "?"

    def _trace(self, operation: str, args: tuple[object, ...], began_at: float, outcome: object) -> None:
        """Add the line of a request to the trace. A failure in that is none of the request's."""
        if not TRACE.is_on:
            return
        took_ms = round((perf_counter() - began_at) * 1000, 3)
        with suppress(Exception):
            path, wanted = self.subject_of(operation, *args)
            facts: dict[str, object] = {}
            said = str(outcome) if isinstance(outcome, RequestRefused) else "ok"
            if operation == "lookup" and self.is_absent(outcome):
                said = "ENOENT"
            if wanted is not None:
                facts |= {"start": wanted.start, "stop": wanted.stop}
                if not isinstance(outcome, RequestRefused):
                    facts["bytes"] = size_bytes = len(cast("Sized", outcome))
                    said = f"{size_bytes} bytes"
                path_said = f"{path} {wanted}"
            else:
                path_said = path
            TRACE.tell(
                f"{operation} {path_said}: {said}, {took_ms:g} ms",
                **{"kind": "kernel", "operation": operation, "path": path, **facts, "outcome": said, "ms": took_ms},
            )

    @contextmanager
    def _counting(self, operation: str, args: tuple[object, ...]) -> Iterator[float]:
        self._count(operation)
        counters = self.counters
        number_of_request = next(self._numbers)
        REQUEST.set(number_of_request)
        began_at = perf_counter()
        counters.under_way[number_of_request] = Unanswered(operation, args, began_at)
        try:
            yield began_at
        finally:
            del counters.under_way[number_of_request]
            counters.observe(operation, perf_counter() - began_at)

    def _count(self, operation: str) -> None:
        calls = self.counters.calls
        calls[operation] = calls.get(operation, 0) + 1

    def _refusal(self, operation: str, error: Exception) -> RequestRefused:
        """The errno for the kernel, after the log and the counters."""
        if isinstance(error, RequestRefused):
            return error
        number = errno.EIO
        if isinstance(error, D7yfsError):
            number = error.errno
            if number not in (errno.ENOENT, errno.ENODATA):
                log.warning("%s: %s", operation, error, extra=fields_of(error, operation=operation))
        elif isinstance(error, trio.TooSlowError):
            if not self._ending:
                facts = fields({"operation": operation, "errno": "EIO"})
                log.warning("%s: no answer within %g s", operation, self.deadline_s, extra=facts)
        else:
            facts = fields({"operation": operation, "errno": "EIO"})
            log.error("%s failed unexpectedly", operation, exc_info=error, extra=facts)
        self.counters.errors[operation] += 1
        return RequestRefused(number)

    def waiting_read(self, handle: int) -> AbstractContextManager[None]:
        """Mark a read through an open file as waiting meanwhile. Raises TooManyReads."""
        return self.waiting(self.files.user_of(handle))

    @contextmanager
    def waiting(self, uid: int) -> Iterator[None]:
        """Mark a user's request as waiting for bytes meanwhile. Raises TooManyReads."""
        waiting = self.counters.waiting_reads
        if waiting[uid] >= MAX_WAITING_READS:
            raise TooManyReads(f"more than {MAX_WAITING_READS} reads of uid {uid} wait for bytes")
        waiting[uid] += 1
        try:
            yield
        finally:
            waiting[uid] -= 1
            if not waiting[uid]:
                del waiting[uid]

    async def answer_all(self) -> None:
        """Answer all requests but reads now, with EIO: no client may wait for an ended daemon."""
        self._ending = True
        waiting = set(self._waiting)
        for scope in waiting:
            scope.cancel()
        while waiting & self._waiting:
            await trio.lowlevel.checkpoint()
