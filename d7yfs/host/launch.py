"""Telling the process that started the daemon that the mount answers, or why it failed.

There are two listeners. One is the `d7yfs mount` command that started a daemon in the background (a
pipe, one JSON line), the other systemd (sd_notify(3): a datagram to $NOTIFY_SOCKET).
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
from collections.abc import Callable, MutableMapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from d7yfs.errors import D7yfsError, MountError, UsageError

READY_FD_VARIABLE = "D7YFS_READY_FD"
"""Set only by `launch`, for the daemon's process; not an option."""


class Readiness:
    """The daemon's end: it tells each thing once, to those who listen."""

    def __init__(self, environ: MutableMapping[str, str]) -> None:
        fd = environ.pop(READY_FD_VARIABLE, "")
        self._fd = int(fd) if fd.isdigit() else -1
        self._notify_socket = environ.get("NOTIFY_SOCKET", "")
        usec, pid = environ.get("WATCHDOG_USEC", ""), environ.get("WATCHDOG_PID", str(os.getpid()))
        self.watchdog_s = int(usec) / 1e6 if usec.isdigit() and pid == str(os.getpid()) else 0.0
        """Longest pause between two WATCHDOG=1 (sd_watchdog_enabled(3)); 0 for no watchdog."""

    @property
    def in_background(self) -> bool:
        """True if a command waits for the mount to answer."""
        return self._fd >= 0

    @property
    def is_notified(self) -> bool:
        """True if systemd listens."""
        return bool(self._notify_socket)

    def tell_ready(self, summary: str, warnings: Sequence[str], stderr: Path | None) -> None:
        """Tell that the mount answers, with `warnings`. A daemon in the background leaves its session
        and its terminal; output of C libraries goes to `stderr`."""
        if self.in_background:
            os.setsid()
        self.pass_on({"ready": summary, "warnings": list(warnings)})
        self.notify(f"READY=1\nMAINPID={os.getpid()}\nSTATUS={summary}")

        if self.in_background:
            detach(stderr)
            os.close(self._fd)
            self._fd = -1

    def tell_wait(self, text: str) -> None:
        """Tell what the mount waits for."""
        self.pass_on({"waits": text})
        self.notify(f"STATUS={text}")

    def tell_failed(self, error: D7yfsError) -> None:
        """Tell that there is no mount, and why."""
        self.pass_on({"error": error.message, "hint": error.hint, "usage": isinstance(error, UsageError)})

    def notify(self, message: str, fd: int | None = None) -> None:
        """Send systemd, if it listens, assignments separated by newlines (sd_notify(3)), and perhaps a
        descriptor."""
        if not self._notify_socket:
            return
        # A name with a leading @ is in the abstract namespace.
        address = "\0" + self._notify_socket[1:] if self._notify_socket.startswith("@") else self._notify_socket
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as client:
            client.connect(address)
            socket.send_fds(client, [message.encode()], [] if fd is None else [fd])

    def pass_on(self, message: dict[str, Any]) -> None:
        """Send the command that waits, if one does, a message in its own form."""
        if self.in_background:
            with contextlib.suppress(BrokenPipeError):
                os.write(self._fd, json.dumps(message).encode() + b"\n")


def detach(stderr: Path | None) -> None:
    """Let go of the terminal and of the working directory; what goes to stderr is appended to a
    file, if one is given."""
    os.chdir("/")
    with Path(os.devnull).open("r+b") as null:
        for fd in (0, 1, 2):
            os.dup2(null.fileno(), fd)
    if stderr is not None:
        with stderr.open("ab") as log:
            os.dup2(log.fileno(), 2)


def daemon_command(arguments: Sequence[str]) -> list[str]:
    """The command of a process that runs `d7yfs` with these arguments."""
    # -P: a directory d7yfs in the working directory is not this program.
    return [sys.executable, "-P", "-m", "d7yfs", *arguments]


def fork_daemon(tell: Callable[[str], None]) -> dict[str, Any] | None:
    """Fork this process, which has one thread: the child returns None, and is to become a daemon. Here
    wait for its `{"ready": …, "warnings": […]}`; `tell` what it waits for meanwhile. Raises UsageError,
    MountError.

    Until it is ready the child stays in this process group. If systemd mounts for an automount, that
    group alone can reach the mount point (Documentation/filesystems/autofs.rst).
    """
    read_fd, write_fd = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if not pid:
        os.close(read_fd)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the waiting command's
        with Path(os.devnull).open("rb") as null:
            os.dup2(null.fileno(), 0)
        os.environ[READY_FD_VARIABLE] = str(write_fd)
        return None
    os.close(write_fd)

    def wait() -> int:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    return _await_message(read_fd, lambda: os.kill(pid, signal.SIGTERM), wait, tell)


def launch(command: Sequence[str], tell: Callable[[str], None]) -> dict[str, Any]:
    """Run a daemon in this process group, as `fork_daemon` does; wait for `{"ready": …, "warnings": […]}`,
    and `tell` what it waits for meanwhile. Raises UsageError, MountError."""
    import subprocess  # only here: the supervisor is small without

    read_fd, write_fd = os.pipe()
    interrupted = signal.signal(signal.SIGINT, signal.SIG_IGN)
    child = subprocess.Popen(  # noqa: S603
        command,
        stdin=subprocess.DEVNULL,
        pass_fds=[write_fd],
        env=os.environ | {READY_FD_VARIABLE: str(write_fd)},
    )
    signal.signal(signal.SIGINT, interrupted)
    os.close(write_fd)
    message = _await_message(read_fd, child.terminate, child.wait, tell)
    child.returncode = 0  # it runs on; nobody will wait for it
    return message


def _read_message(pipe: BinaryIO) -> dict[str, Any]:
    """The next message of a daemon that begins; empty if it has ended."""
    message: dict[str, Any] = json.loads(pipe.readline() or b"{}")
    return message


def _await_message(
    read_fd: int, terminate: Callable[[], None], wait: Callable[[], int], tell: Callable[[str], None]
) -> dict[str, Any]:
    """The last message of a daemon that begins; `wait` gives its exit status. Calls `tell` with what it
    waits for."""
    with os.fdopen(read_fd, "rb") as pipe:
        try:
            while "waits" in (message := _read_message(pipe)):
                tell(message["waits"])
        except KeyboardInterrupt:
            terminate()
            raise
    if not message:
        raise MountError(f"the daemon ended before the mount answered (exit status {wait()})")
    if "error" in message:
        wait()
        kind = UsageError if message["usage"] else MountError
        raise kind(message["error"], hint=message["hint"])
    return message
