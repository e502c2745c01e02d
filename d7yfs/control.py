"""The control socket: how `d7yfs status`, `stat` and `umount` talk to a running daemon.

One Unix socket per mount, in a directory of the user's own (0700; the socket 0600): root's daemons answer root, a user's their user. One
JSON object with a `command` goes in, one JSON object comes out; then the connection ends. No reply holds a secret.

The server runs in `daemon`'s nursery; the client functions are synchronous, for the command line.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import socket
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import trio

from d7yfs.errors import D7yfsError, MountError

log = logging.getLogger(__name__)

REQUEST_BYTES = 64 << 10
REPLY_BYTES = 16 << 20
CLIENT_TIMEOUT_S = 10.0

Handler = Callable[[Mapping[str, Any]], Awaitable[dict[str, Any]]]


def runtime_directory(environ: Mapping[str, str] = os.environ) -> Path:
    """Where sockets and logs without another place go: /run/d7yfs for root, else under XDG_RUNTIME_DIR."""
    if os.geteuid() == 0:
        return Path("/run/d7yfs")
    base = environ.get("XDG_RUNTIME_DIR", "")
    return Path(base) / "d7yfs" if base.startswith("/") else Path(f"/tmp/d7yfs-{os.geteuid()}")  # noqa: S108  # made 0700 and checked


def prepare_runtime_directory() -> None:
    """Make the runtime directory, or check that it is this user's alone. Raises MountError."""
    path = runtime_directory()
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        owner = path.stat()
    except OSError as error:
        raise MountError(
            f"{path} cannot be made: {error.strerror}", hint="set XDG_RUNTIME_DIR to a directory of yours"
        ) from error
    if owner.st_uid != os.geteuid() or owner.st_mode & 0o077:
        raise MountError(f"{path} must belong to uid {os.geteuid()} alone (mode 0700)", hint=f"chmod 700 {path}")


def socket_path(mountpoint: Path) -> Path:
    """The control socket of the mount at `mountpoint`. A digest, because a socket's path has at most 107 bytes (unix(7))."""
    digest = hashlib.sha256(os.fsencode(mountpoint)).hexdigest()[:16]
    return runtime_directory() / f"{digest}.sock"


async def serve(
    path: Path, handlers: Mapping[str, Handler], *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
) -> None:
    """Answer commands on `path` until cancelled; started when it listens. Raises MountError when the socket cannot be made."""
    listener = await _listen(path)
    task_status.started()
    try:
        async with trio.open_nursery() as nursery:
            while True:
                stream = trio.SocketStream((await listener.accept())[0])
                nursery.start_soon(_answer, stream, handlers)
    finally:
        listener.close()
        path.unlink(missing_ok=True)


async def _listen(path: Path) -> trio.socket.SocketType:
    prepare_runtime_directory()
    try:
        # It gets its name when it listens: `sockets` takes one that refuses connections for a dead daemon's.
        fresh = path.with_suffix(".new")
        fresh.unlink(missing_ok=True)
        listener = trio.socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        await listener.bind(str(fresh))
        fresh.chmod(0o600)
        listener.listen(16)
        fresh.rename(path)
        return listener
    except OSError as error:
        raise MountError(f"the control socket {path} cannot be made: {error.strerror}") from error


async def _answer(stream: trio.SocketStream, handlers: Mapping[str, Handler]) -> None:
    async with stream:
        with trio.move_on_after(CLIENT_TIMEOUT_S):
            try:
                request = json.loads(await _line(stream))
                handler = handlers.get(request.get("command"))
                if handler is None:
                    reply: dict[str, Any] = {"error": f"unknown command; known: {', '.join(sorted(handlers))}"}
                else:
                    reply = await handler(request)
            except D7yfsError as error:
                reply = {"error": error.message, "hint": error.hint}
            except (ValueError, AttributeError):
                reply = {"error": "a request is one JSON object in one line"}
            except trio.BrokenResourceError:
                return
            except Exception as error:
                log.exception("control: a command failed unexpectedly")
                reply = {"error": f"unexpected {type(error).__name__}; see the log"}
            with contextlib.suppress(trio.BrokenResourceError):
                await stream.send_all(json.dumps(reply).encode() + b"\n")


async def _line(stream: trio.SocketStream) -> bytes:
    received = b""
    while b"\n" not in received:
        chunk = await stream.receive_some(REQUEST_BYTES)
        if not chunk or len(received) > REQUEST_BYTES:
            raise ValueError("no whole line")
        received += chunk
    return received.partition(b"\n")[0]


def ask(path: Path, command: str, /, **arguments: Any) -> dict[str, Any]:
    """Send one command to the daemon behind the socket `path` and return its reply.

    Raises MountError when nobody answers, or with the daemon's own words.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.settimeout(CLIENT_TIMEOUT_S)
        try:
            client.connect(str(path))
            client.sendall(json.dumps({"command": command, **arguments}).encode() + b"\n")
            with client.makefile("rb") as answers:
                reply = json.loads(answers.readline(REPLY_BYTES))
        except (OSError, ValueError) as error:
            raise MountError(f"no answer from the daemon behind {path}: {error}") from error
    if "error" in reply:
        raise MountError(reply["error"], hint=reply.get("hint", ""))
    assert isinstance(reply, dict)
    return reply


def sockets() -> list[Path]:
    """The control sockets of this user's mounts; those that a killed daemon left behind are removed."""
    found = []
    for path in sorted(runtime_directory().glob("*.sock")):
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
            client.settimeout(CLIENT_TIMEOUT_S)
            try:
                client.connect(str(path))
            except ConnectionRefusedError:
                path.unlink(missing_ok=True)
                continue
            except OSError:
                continue
        found.append(path)
    return found
