"""The control socket: how `d7yfs status`, `stat`, `warm` and `umount` talk to a running daemon.

There is one Unix socket per mount, in a directory of the user's own (0700; the socket 0600): root's
daemons answer root, a user's their user. A request is one JSON object with a `command`. The reply
is one JSON object, or, from a command that reports, one per line as it goes on; then the connection
ends. A report ends when its client leaves. Each reply carries `schema`. No reply holds a secret.

`server` answers, in the daemon. The client functions are synchronous, for the command line, which
does without trio.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import socket
from collections import deque
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any

from d7yfs.bounds.values import excerpt, read_json
from d7yfs.errors import MountError, UsageError
from d7yfs.host.ownership import ANYTHING, find_fault
from d7yfs.host.privileges import is_mounter_root
from d7yfs.host.socket_trust import parent_of, peer_of

SCHEMA = 1
"""Version of what commands print with `--json`: raised when a field changes its meaning or goes,
not when one is added."""

RUNTIME_VARIABLE = "D7YFS_RUNTIME_DIR"

REQUEST_BYTES = 8 << 20
"""More than a command line holds by default, however its paths are escaped: 2 MiB (execve(2))."""
REPLY_BYTES = 16 << 20
CLIENT_TIMEOUT_S = 10.0

_SO_ACCEPTCON = 1 << 16  # linux/net.h

Reply = dict[str, Any]


def runtime_directory(environ: Mapping[str, str] = os.environ) -> Path:
    """D7YFS_RUNTIME_DIR, else /run/d7yfs for root, else a directory under XDG_RUNTIME_DIR."""
    if (named := environ.get(RUNTIME_VARIABLE, "")).startswith("/"):
        return Path(named)
    if is_mounter_root():
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


def is_listened_to(mountpoint: Path, table: Path = Path("/proc/net/unix")) -> bool:
    """True if a process of this host listens for that mount, whoever's it is. It looks at no file of another
    user's, only at the kernel's list (proc_pid_net(5))."""
    name = f"/{socket_path(mountpoint).stem}."
    fields = (line.split(maxsplit=7) for line in table.read_text(errors="replace").splitlines()[1:])
    return any(len(each) == 8 and int(each[3], 16) & _SO_ACCEPTCON and name in each[7] for each in fields)


def listener_pid(path: Path) -> int:
    """The process that listens on `path`, even if it hangs. 0 if there is none, or if its queue of
    connections is full."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.setblocking(False)
        try:
            client.connect(str(path))
        except OSError:
            return 0
        return peer_of(client)[0]


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
