"""The control socket: how `d7yfs status`, `stat`, `warm` and `umount` talk to a running daemon.

There is one Unix socket per mount, in a directory of the user's own (0700; the socket 0600): root's
daemons answer root, a user's their user. A request is one JSON object with a `command`. The reply
is one JSON object, or, from a command that reports, one per line as it goes on; then the connection
ends. A report ends when its client leaves. Each reply carries `schema`. No reply holds a secret.

The server runs in `daemon`'s nursery; the client functions are synchronous, for the command line.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import logging
import math
import os
import socket
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping
from pathlib import Path
from typing import Any

import trio

from d7yfs.bounds.values import excerpt, read_json
from d7yfs.errors import D7yfsError, MountError, UsageError
from d7yfs.host.acceptor import accept_clients
from d7yfs.host.descriptors import Reserve
from d7yfs.host.ownership import ANYTHING, find_fault
from d7yfs.host.privileges import mounter
from d7yfs.host.socket_trust import parent_of, peer_of

log = logging.getLogger(__name__)

SCHEMA = 1
"""Version of what commands print with `--json`: raised when a field changes its meaning or goes,
not when one is added."""

RUNTIME_VARIABLE = "D7YFS_RUNTIME_DIR"

REQUEST_BYTES = 8 << 20
"""More than a command line holds by default, however its paths are escaped: 2 MiB (execve(2))."""
REPLY_BYTES = 16 << 20
_CHUNK_BYTES = 64 << 10
_CLIENTS = 256
"""Most clients at once; reports, which may last, are such."""
CLIENT_TIMEOUT_S = 10.0

REPORT_PERIOD_S = 0.5
"""Pause between two lines of a report: much less than a client waits for one."""

Reply = dict[str, Any]
Handler = Callable[[Mapping[str, Any]], Awaitable[Reply] | AsyncGenerator[Reply, None]]
"""Answers a request with one object, or reports: the generator is closed when the client leaves."""


def runtime_directory(environ: Mapping[str, str] = os.environ) -> Path:
    """D7YFS_RUNTIME_DIR, else /run/d7yfs for root, else a directory under XDG_RUNTIME_DIR."""
    if (named := environ.get(RUNTIME_VARIABLE, "")).startswith("/"):
        return Path(named)
    if mounter()[0] == 0:
        return Path("/run/d7yfs")
    base = environ.get("XDG_RUNTIME_DIR", "")
    return Path(base) / "d7yfs" if base.startswith("/") else Path(f"/tmp/d7yfs-{os.geteuid()}")  # noqa: S108  # made 0700 and checked


def prepare_runtime_directory() -> None:
    """Make the runtime directory, or check that it is this user's alone. Raises MountError."""
    path = runtime_directory()
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise MountError(
            f"{path} cannot be made: {error.strerror}", hint="set D7YFS_RUNTIME_DIR to a directory of yours"
        ) from error
    _check_runtime_directory(path)


def _check_runtime_directory(path: Path) -> None:
    """Believe no socket that another user could have put there. Raises MountError; an absent
    directory is no fault."""
    try:
        found = path.lstat()
    except OSError:
        return
    if fault := find_fault(found, (os.geteuid(),), denied=ANYTHING):
        raise MountError(
            f"{path} {fault}: its sockets are not believed; it must be uid {os.geteuid()}'s alone (mode 0700)",
            hint="remove it, or set D7YFS_RUNTIME_DIR to a directory of yours",
        )


def socket_path(mountpoint: Path) -> Path:
    """The socket of a mount: a digest, because its path has at most 107 bytes (unix(7))."""
    digest = hashlib.sha256(os.fsencode(mountpoint)).hexdigest()[:16]
    return runtime_directory() / f"{digest}.sock"


async def serve(
    path: Path,
    handlers: Mapping[str, Handler],
    handed: socket.socket | None = None,
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Answer commands on `path` until cancelled; started when it listens. `handed` is a socket that
    listens there already, and stays. Raises MountError."""
    listener = trio.socket.from_stdlib_socket(listen(path) if handed is None else handed)
    task_status.started()
    try:
        await accept_clients(listener, lambda stream: _answer(stream, handlers), limit=_CLIENTS, reserve=Reserve())
    finally:
        listener.close()
        if handed is None:
            path.unlink(missing_ok=True)


def listen(path: Path) -> socket.socket:
    """Listen on `path`, in place of an abandoned socket. Raises MountError."""
    prepare_runtime_directory()
    try:
        # It gets its name once it listens: `find_sockets` removes one that refuses connections.
        fresh = path.with_suffix(".new")
        fresh.unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(str(fresh))
        fresh.chmod(0o600)
        listener.listen(16)
        fresh.rename(path)
        return listener
    except OSError as error:
        raise MountError(f"the control socket {path} cannot be made: {error.strerror}") from error


async def _answer(stream: trio.SocketStream, handlers: Mapping[str, Handler]) -> None:
    async with stream:
        with trio.move_on_after(CLIENT_TIMEOUT_S) as patience:
            try:
                request = read_json(await _line(stream))
                handler = handlers.get(request.get("command"))
                if handler is None:
                    await _send(stream, {"error": f"unknown command; known: {', '.join(sorted(handlers))}"})
                    return
                answer = handler(request)
                if isinstance(answer, AsyncGenerator):
                    patience.deadline = math.inf
                    await _report(stream, answer)
                else:
                    await _send(stream, await answer)
            except D7yfsError as error:
                await _send(stream, {"error": error.message, "hint": error.hint})
            except (ValueError, AttributeError):
                await _send(
                    stream,
                    {"error": f"a request is one JSON object in one line of up to {REQUEST_BYTES} bytes"},
                )
            except trio.BrokenResourceError:
                return
            except Exception as error:
                log.exception("control: a command failed unexpectedly")
                await _send(stream, {"error": f"unexpected {type(error).__name__}; see the log"})


async def _send(stream: trio.SocketStream, reply: Reply) -> None:
    with contextlib.suppress(trio.BrokenResourceError):
        await stream.send_all(json.dumps({"schema": SCHEMA, **reply}).encode() + b"\n")


async def _report(stream: trio.SocketStream, replies: AsyncGenerator[Reply, None]) -> None:
    """Send each of `replies` until they end or the client has gone. Raises their errors."""

    async def until_gone(scope: trio.CancelScope) -> None:
        with contextlib.suppress(trio.BrokenResourceError):
            while await stream.receive_some(_CHUNK_BYTES):
                pass
        scope.cancel()

    failure: D7yfsError | None = None
    async with contextlib.aclosing(replies), trio.open_nursery() as nursery:
        nursery.start_soon(until_gone, nursery.cancel_scope)
        try:
            async for reply in replies:
                await _send(stream, reply)
        except D7yfsError as error:
            failure = error
        nursery.cancel_scope.cancel()
    if failure is not None:
        raise failure


def paths_of(request: Mapping[str, Any], what: str) -> list[str]:
    """The paths below the mount that a request names. Raises UsageError if there is none."""
    paths = request.get("paths")
    if not isinstance(paths, list) or not paths or not all(isinstance(path, str) for path in paths):
        raise UsageError(f"{what} needs a list of paths")
    return paths


async def reporting(nursery: trio.Nursery, work: Callable[[], Awaitable[Reply]]) -> AsyncGenerator[Reply, None]:
    """Report on `work` that may take long: its `state` while it runs, and at the end its result as
    `outcome`.

    The work is done to its end in `nursery` even if the client leaves. Raises its D7yfsError.
    """
    ended = trio.Event()
    outcome: Reply | D7yfsError = {}

    async def one() -> None:
        nonlocal outcome
        try:
            outcome = await work()
        except D7yfsError as error:
            outcome = error
        except Exception as error:  # a bug in a command must not end the mount
            log.exception("control: a command failed unexpectedly")
            outcome = MountError(f"unexpected {type(error).__name__}; see the log")
        ended.set()

    nursery.start_soon(one)
    while not ended.is_set():
        with trio.move_on_after(REPORT_PERIOD_S):
            await ended.wait()
        if not ended.is_set():
            yield {"state": "running"}
    if isinstance(outcome, D7yfsError):
        raise outcome
    yield {"state": "done", "outcome": outcome}


async def _line(stream: trio.SocketStream) -> bytes:
    received = bytearray()
    while not received.endswith(b"\n"):
        chunk = await stream.receive_some(_CHUNK_BYTES)
        if not chunk or len(received) > REQUEST_BYTES:
            raise ValueError("no whole line")
        received += chunk
    return bytes(received)


class NoAnswer(MountError):
    """The failure of a control socket to answer in time; `reason`: the system's words."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"no answer from the daemon behind {path}: {reason}")
        self.reason = reason


def ask(path: Path, command: str, /, *, timeout_s: float = CLIENT_TIMEOUT_S, **arguments: Any) -> Reply:
    """Send one command to the daemon behind the socket `path` and return its reply.

    Raises NoAnswer if no daemon answers in time, MountError with the daemon's own words, UsageError
    if the request is too large.
    """
    with contextlib.closing(follow(path, command, timeout_s=timeout_s, **arguments)) as replies:
        return next(replies)


def run_to_end(path: Path, command: str, /, **arguments: Any) -> Reply:
    """Send a command that reports by `reporting`, and return its outcome.

    Raises as `follow`, and MountError if the daemon ended before.
    """
    with contextlib.closing(follow(path, command, **arguments)) as replies:
        (last,) = deque(replies, maxlen=1)
    if last.get("state") != "done":
        raise MountError(f"the daemon ended before {command} was done", hint="d7yfs status, and its log")
    return {"schema": last["schema"], **last["outcome"]}


def follow(
    path: Path, command: str, /, *, timeout_s: float = CLIENT_TIMEOUT_S, **arguments: Any
) -> Generator[Reply, None, None]:
    """Send a command that reports, and yield each of its lines as it comes. Close the generator to
    stop the command.

    Raises as `ask`, and NoAnswer if the daemon falls silent.
    """
    request = json.dumps({"command": command, **arguments}).encode() + b"\n"
    if len(request) > REQUEST_BYTES:
        raise UsageError(
            f"too much is asked for at once: {len(request)} bytes, at most {REQUEST_BYTES}",
            hint="name fewer paths at a time, or directories above them",
        )
    _check_runtime_directory(path.parent)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.settimeout(timeout_s)
        try:
            client.connect(str(path))
            client.sendall(request)
            with client.makefile("rb") as lines:
                line = lines.readline(REPLY_BYTES)
                if not line:
                    raise NoAnswer(path, "it has hung up")
                while line:
                    yield _read_reply(line)
                    line = lines.readline(REPLY_BYTES)
        except (OSError, ValueError) as error:
            raise NoAnswer(path, getattr(error, "strerror", None) or str(error)) from error


def _read_reply(line: bytes) -> Reply:
    """A reply, within bounds. Raises ValueError, and MountError for a reply that is a failure."""
    if len(line) >= REPLY_BYTES:
        raise ValueError(f"its answer has more than {REPLY_BYTES >> 20} MiB")
    reply = read_json(line)
    if not isinstance(reply, dict):
        raise ValueError(f"its answer is no JSON object: {excerpt(reply)}")
    if "error" in reply:
        raise MountError(str(reply["error"]), hint=str(reply.get("hint", "")))
    return reply


def find_sockets() -> list[Path]:
    """The sockets of this user's mounts; those of dead daemons are removed. Waits for no answer.

    Raises MountError if the runtime directory is not this user's alone.
    """
    return [path for path, _ in _listeners()]


def is_abandoned(path: Path) -> bool:
    """True if a dead daemon left its socket at `path`: no process listens. Waits for no answer.

    Raises MountError if its directory is not this user's alone.
    """
    _check_runtime_directory(path.parent)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.setblocking(False)
        return client.connect_ex(str(path)) == errno.ECONNREFUSED


def find_socket(pid: int) -> Path:
    """The socket on which process `pid`, or a worker of it, listens, even if it hangs. Raises
    MountError if none."""
    found = next((path for path, each in _listeners() if pid in (each, parent_of(each))), None)
    if found is None:
        raise MountError(f"process {pid} is no daemon of yours behind a mount", hint="d7yfs status lists the mounts")
    return found


def _listeners() -> Generator[tuple[Path, int], None, None]:
    """The sockets, each with the pid of its listener; 0 if its queue of connections is full."""
    _check_runtime_directory(runtime_directory())
    for path in sorted(runtime_directory().glob("*.sock")):
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
            client.setblocking(False)
            try:
                client.connect(str(path))
            except ConnectionRefusedError:
                path.unlink(missing_ok=True)
            except BlockingIOError:
                yield path, 0
            except OSError:
                continue
            else:
                yield path, peer_of(client)[0]
