"""A failure below the adapter is an errno for one caller.

An exception that leaves a handler would end the mount for all.
"""

from __future__ import annotations

import errno
import inspect
import logging

import pyfuse3
import pytest
import trio
from pyfuse3 import EntryAttributes, FileInfo, StatvfsData
from pyfuse3._pyfuse3 import InodeT
from trio.testing import MockClock, wait_all_tasks_blocked

from d7yfs import errors
from d7yfs.errors import D7yfsError
from d7yfs.fuse.adapter import Adapter
from d7yfs.fuse.request_guard import OPERATIONS, RequestRefused
from d7yfs.logs import REQUEST
from d7yfs.stats.kernel import OLDEST
from tests.fuse.doubles import UNKNOWN, FakeFilesystem, adapter_of
from tests.fuse.reply import Reply
from tests.fuse.requests import CALLER, FILE, OPENED, REQUESTS, errno_of, lookup, opened

REFUSED = frozenset(
    {"setattr", "mknod", "mkdir", "unlink", "rmdir", "symlink", "rename", "link", "create", "write", "setxattr"}
    | {"removexattr"}
)
"""The operations that would write."""

ERRNOS = {
    "D7yfsError": errno.EIO,
    "UsageError": errno.EINVAL,
    "ConfigError": errno.EINVAL,
    "MountError": errno.EIO,
    "CannotTakeOver": errno.EIO,
    "ModelServerError": errno.EIO,
    "NotFound": errno.ENOENT,
    "BucketNotFound": errno.EIO,
    "NotADirectory": errno.ENOTDIR,
    "IsADirectory": errno.EISDIR,
    "AccessDenied": errno.EACCES,
    "NotPermitted": errno.EACCES,
    "CacheStalled": errno.EIO,
    "MoverLost": errno.EIO,
    "ObjectArchived": errno.EACCES,
    "VersionGone": errno.ESTALE,
    "OriginUnavailable": errno.EIO,
    "OriginUntrusted": errno.EIO,
    "BadReply": errno.EIO,
    "VersionUnbound": errno.EIO,
    "ProxyUnavailable": errno.EIO,
    "HandoverUnavailable": errno.EIO,
    "ReadTimeout": errno.EIO,
    "TooManyReads": errno.EAGAIN,
    "TokenWithheld": errno.EACCES,
    "TooManyOpenFiles": errno.EMFILE,
    "Stopped": errno.EIO,
    "CacheFull": errno.ENOSPC,
    "CacheUnusable": errno.EIO,
    "ManagerError": errno.EIO,
}
"""The errno that a reader sees, for every expected failure."""

failing = pytest.mark.parametrize("operation", [name for name, request in REQUESTS.items() if request.reaches])


# --- which handlers there are ---


def _handlers() -> set[str]:
    return {name for name, _ in inspect.getmembers(pyfuse3.Operations, inspect.isroutine) if not name.startswith("_")}


def test_every_handler_answers_whatever_happens_or_asks_nobody() -> None:
    own = {name for name in _handlers() if getattr(Adapter, name) is not getattr(pyfuse3.Operations, name)}
    answered = set(OPERATIONS)
    assert answered == set(REQUESTS)
    assert own - answered == REFUSED | {"flush", "forget", "init"}, (
        "what others of these do, tests here and of forget say"
    )


async def test_what_is_not_handled_is_not_implemented() -> None:
    adapter = adapter_of(FakeFilesystem())
    missing = [name for name in _handlers() if getattr(Adapter, name) is getattr(pyfuse3.Operations, name)]
    assert set(missing) - {"poll"} == {"stacktrace"}, "which the kernel cannot ask for"
    for name in set(missing) - {"stacktrace"}:
        handler = getattr(adapter, name)
        arguments = [None] * len(inspect.signature(handler).parameters)
        assert await errno_of(handler(*arguments)) == errno.ENOSYS


@pytest.mark.parametrize("operation", sorted(REFUSED))
async def test_what_would_write_is_erofs(operation: str) -> None:
    filesystem = FakeFilesystem()
    handler = getattr(adapter_of(filesystem), operation)
    arguments = [None] * len(inspect.signature(getattr(pyfuse3.Operations, operation)).parameters)
    assert await errno_of(handler(*arguments[1:])) == errno.EROFS
    assert not filesystem.calls


async def test_a_flush_is_not_implemented_so_that_the_kernel_asks_once() -> None:
    assert await errno_of(adapter_of(FakeFilesystem()).flush(OPENED)) == errno.ENOSYS


@pytest.mark.parametrize("operation", REQUESTS)
async def test_answers_are_what_pyfuse3_takes(operation: str) -> None:
    """pyfuse3 converts answers outside the catch-all."""
    filesystem = FakeFilesystem([FILE])
    adapter = await opened(filesystem)
    kinds = {
        "lookup": EntryAttributes,
        "getattr": EntryAttributes,
        "opendir": int,
        "open": FileInfo,
        "read": bytes,
        "statfs": StatvfsData,
        "access": bool,
        "getxattr": bytes,
        "listxattr": list,
    }
    if operation == "readlink":
        assert await errno_of(REQUESTS[operation].call(adapter)) == errno.EINVAL
        return
    answer = await REQUESTS[operation].call(adapter)
    assert isinstance(answer, kinds.get(operation, type(None)))


# --- the unforeseen ---


@failing
async def test_an_unforeseen_exception_is_eio_for_one_caller(operation: str, caplog: pytest.LogCaptureFixture) -> None:
    filesystem = FakeFilesystem([FILE])
    adapter = await opened(filesystem)
    counters, request = adapter.guard.counters, REQUESTS[operation]
    calls = counters.calls.get(operation, 0)
    filesystem.failures[request.reaches] = ZeroDivisionError("oops")
    assert await errno_of(request.call(adapter)) == errno.EIO
    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    assert operation in record.getMessage()
    assert record.exc_info is not None
    assert record.exc_info[0] is ZeroDivisionError
    assert not counters.under_way
    assert {name: count for name, count in counters.errors.items() if count} == {operation: 1}
    assert counters.calls[operation] == sum(counters.took[operation].counts) == calls + 1

    filesystem.failures.clear()
    await request.call(adapter)
    assert len(caplog.records) == 1, "the next caller has its answer"
    assert counters.errors[operation] == 1


async def test_other_callers_do_not_notice(autojump_clock: MockClock) -> None:
    filesystem = FakeFilesystem([FILE])
    adapter = await opened(filesystem)
    filesystem.gates["lookup"] = gate = trio.Event()
    filesystem.failures["entries"] = ZeroDivisionError("oops")
    found = []

    async def look() -> None:
        found.append(await lookup(adapter))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(look)
        await wait_all_tasks_blocked()
        assert await errno_of(REQUESTS["readdir"].call(adapter)) == errno.EIO
        assert list(adapter.guard.counters.under_way) == [2], "the lookup's number"
        gate.set()
    assert found[0].st_ino == filesystem.node(FILE).inode


async def test_a_handle_that_nobody_has_is_eio() -> None:
    adapter = adapter_of(FakeFilesystem([FILE]))
    with Reply() as reply:
        assert await errno_of(adapter.readdir(OPENED, 0, reply.token)) == errno.EIO
        assert not reply.entries
    assert await errno_of(adapter.releasedir(OPENED)) == errno.EIO


async def test_an_inode_that_is_not_known_any_more_is_estale() -> None:
    adapter = adapter_of(FakeFilesystem([FILE]))
    unknown = InodeT(UNKNOWN)
    assert await errno_of(adapter.getattr(unknown, CALLER)) == errno.ESTALE
    assert await errno_of(adapter.opendir(unknown, CALLER)) == errno.ESTALE
    assert await errno_of(adapter.listxattr(unknown, CALLER)) == errno.ESTALE


@pytest.mark.parametrize(
    "error",
    [
        ExceptionGroup("two", [ValueError(), OSError()]),
        BaseExceptionGroup("one", [errors.NotFound("b/key")]),
        StopAsyncIteration(),
        KeyError(7),
        trio.ClosedResourceError(),
    ],
    ids=repr,
)
async def test_exceptions_of_whatever_kind(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    filesystem = FakeFilesystem([FILE])
    filesystem.failures["lookup"] = error
    assert await errno_of(lookup(adapter_of(filesystem))) == errno.EIO
    assert "Traceback" in caplog.text


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3), BaseExceptionGroup("", [KeyboardInterrupt()])])
async def test_what_ends_the_program_passes(error: BaseException) -> None:
    filesystem = FakeFilesystem([FILE])
    filesystem.failures["lookup"] = error
    adapter = adapter_of(filesystem)
    with pytest.raises(type(error)):
        await lookup(adapter)
    assert not adapter.guard.counters.under_way
    assert not adapter.guard.counters.errors["lookup"]


@pytest.mark.parametrize("operation", [name for name, request in REQUESTS.items() if request.waits])
async def test_a_request_that_is_cancelled_from_outside_is_no_error(
    operation: str, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    filesystem = FakeFilesystem([FILE])
    adapter = await opened(filesystem)
    request = REQUESTS[operation]
    filesystem.gates[request.reaches] = trio.Event()
    with trio.move_on_after(1) as scope:
        await request.call(adapter)
    assert scope.cancelled_caught
    assert not adapter.guard.counters.under_way
    assert not any(adapter.guard.counters.errors.values())
    assert not caplog.records


# --- the expected ---


def _tree(kind: type[D7yfsError]) -> list[type[D7yfsError]]:
    below = [each for each in kind.__subclasses__() if each.__module__ == errors.__name__]
    return [kind, *(each for child in below for each in _tree(child))]


def test_every_expected_failure_has_its_errno() -> None:
    assert {kind.__name__ for kind in _tree(D7yfsError)} == set(ERRNOS)


@pytest.mark.parametrize("kind", _tree(D7yfsError), ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("operation", ["lookup", "read", "readdir"])
async def test_an_expected_failure_is_its_errno(
    operation: str, kind: type[D7yfsError], caplog: pytest.LogCaptureFixture
) -> None:
    filesystem = FakeFilesystem([FILE])
    adapter = await opened(filesystem)
    request = REQUESTS[operation]
    filesystem.failures[request.reaches] = kind("s3://b/key: what failed", hint="what to do")
    number = await errno_of(request.call(adapter))
    assert number == ERRNOS[kind.__name__]
    assert adapter.guard.counters.errors[operation] == 1
    said = [(record.levelname, record.getMessage(), record.exc_info) for record in caplog.records]
    told = ("WARNING", f"{operation}: s3://b/key: what failed (what to do)", None)
    assert said == ([] if number == errno.ENOENT else [told])


@failing
async def test_an_errno_from_below_passes(operation: str, caplog: pytest.LogCaptureFixture) -> None:
    filesystem = FakeFilesystem([FILE])
    adapter = await opened(filesystem)
    request = REQUESTS[operation]
    filesystem.failures[request.reaches] = RequestRefused(errno.EXDEV)
    assert await errno_of(request.call(adapter)) == errno.EXDEV
    assert not caplog.records
    assert not adapter.guard.counters.under_way


# --- what is told of them ---


async def test_each_request_has_its_own_number_in_the_log() -> None:
    filesystem = FakeFilesystem([FILE])
    numbers: list[int] = []
    filesystem.answering = lambda: numbers.append(REQUEST.get())
    adapter = adapter_of(filesystem)
    for _ in range(3):
        await lookup(adapter)
    assert numbers == [1, 2, 3]


async def test_ten_requests_are_described_at_most_those_of_unknown_files_too(autojump_clock: MockClock) -> None:
    filesystem = FakeFilesystem([FILE])
    filesystem.gates["lookup"] = trio.Event()
    adapter = adapter_of(filesystem)
    adapter.guard.subject_of = lambda *_: (_ for _ in ()).throw(KeyError("a handle that nobody has"))
    async with trio.open_nursery() as nursery:
        for _ in range(OLDEST + 1):
            nursery.start_soon(lookup, adapter)
        await wait_all_tasks_blocked()
        described = adapter.guard.counters.describe(open_files=0, open_directories=0, read_bytes=0)
        assert [each.path for each in described.oldest_requests] == ["?"] * OLDEST
        assert described.in_flight == OLDEST + 1
        filesystem.gates["lookup"].set()


async def test_how_long_the_oldest_request_has_waited(autojump_clock: MockClock) -> None:
    filesystem = FakeFilesystem([FILE])
    filesystem.gates["lookup"] = trio.Event()
    adapter = adapter_of(filesystem)
    counters = adapter.guard.counters
    assert counters.oldest_s == 0
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lookup, adapter)
        nursery.start_soon(lookup, adapter)
        await wait_all_tasks_blocked()
        assert len(counters.under_way) == 2
        first, second = counters.under_way.values()
        assert first.began_at <= second.began_at
        assert counters.oldest_s > 0
        described = counters.describe(open_files=0, open_directories=0, read_bytes=0).oldest_requests
        assert [(each.operation, each.path) for each in described] == [("lookup", FILE)] * 2
        assert described[0].waited_s >= described[1].waited_s
        filesystem.gates["lookup"].set()
    assert counters.oldest_s == 0
    assert sum(counters.took["lookup"].counts) == 2
