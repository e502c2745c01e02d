"""Telling the process that started the daemon that the mount answers, or why it failed.

There are two listeners. One is the `d7yfs mount` command that started a daemon in the background (a
pipe, one JSON line), the other systemd (sd_notify(3): a datagram to $NOTIFY_SOCKET).
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import MutableMapping, Sequence
from pathlib import Path
from typing import Any

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
        """Tell that the mount answers, with `warnings`. A daemon in the background detaches from
        its terminal; output of C libraries goes to `stderr`."""
        self._tell({"ready": summary, "warnings": list(warnings)})
        self.notify(f"READY=1\nMAINPID={os.getpid()}\nSTATUS={summary}")

        if self.in_background:
            os.chdir("/")
            with Path(os.devnull).open("r+b") as null:
                for fd in (0, 1, 2):
                    os.dup2(null.fileno(), fd)
            if stderr is not None:
                with stderr.open("ab") as log:
                    os.dup2(log.fileno(), 2)
            os.close(self._fd)

    def tell_failed(self, error: D7yfsError) -> None:
        """Tell that there is no mount, and why."""
        self._tell({"error": error.message, "hint": error.hint, "usage": isinstance(error, UsageError)})

    def notify(self, message: str) -> None:
        """Send systemd, if it listens, assignments separated by newlines (sd_notify(3))."""
        if not self._notify_socket:
            return
        # A name with a leading @ is in the abstract namespace.
        address = "\0" + self._notify_socket[1:] if self._notify_socket.startswith("@") else self._notify_socket
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as client:
            client.sendto(message.encode(), address)

    def _tell(self, message: dict[str, Any]) -> None:
        if self.in_background:
            with contextlib.suppress(BrokenPipeError):
                os.write(self._fd, json.dumps(message).encode() + b"\n")


def launch(arguments: Sequence[str]) -> dict[str, Any]:
    """Run `d7yfs` as a daemon; wait for `{"ready": …, "warnings": […]}`. Raises UsageError, MountError."""
    read_fd, write_fd = os.pipe()
    child = subprocess.Popen(  # noqa: S603
        # -P: a directory d7yfs in the working directory is not this program.
        [sys.executable, "-P", "-m", "d7yfs", *arguments],
        stdin=subprocess.DEVNULL,
        pass_fds=[write_fd],
        env=os.environ | {READY_FD_VARIABLE: str(write_fd)},
        start_new_session=True,
    )
    os.close(write_fd)
    with os.fdopen(read_fd, "rb") as pipe:
        try:
            line = pipe.readline()
        except KeyboardInterrupt:
            child.terminate()
            raise
    if not line:
        status = child.wait()
        raise MountError(f"the daemon ended before the mount answered (exit status {status})")
    message: dict[str, Any] = json.loads(line)
    if "error" in message:
        child.wait()
        kind = UsageError if message["usage"] else MountError
        raise kind(message["error"], hint=message["hint"])
    child.returncode = 0  # it runs on; nobody will wait for it
    return message
