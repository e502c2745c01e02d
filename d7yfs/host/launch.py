"""Telling whoever started the daemon that the mount answers, or why there is none.

Two listeners: the `d7yfs mount` command that waits for a daemon it put into the background (a pipe, one JSON line), and systemd
(sd_notify(3): a datagram to $NOTIFY_SOCKET).
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

from d7yfs.errors import D7yfsError, MountError

READY_FD_VARIABLE = "D7YFS_READY_FD"
"""Set only by `launch`, for the process that becomes the daemon; not an option."""


class Readiness:
    """The daemon's end. Says each thing once, to whoever listens."""

    def __init__(self, environ: MutableMapping[str, str]) -> None:
        fd = environ.pop(READY_FD_VARIABLE, "")
        self._fd = int(fd) if fd.isdigit() else -1
        self._notify_socket = environ.get("NOTIFY_SOCKET", "")
        usec, pid = environ.get("WATCHDOG_USEC", ""), environ.get("WATCHDOG_PID", str(os.getpid()))
        self.watchdog_s = int(usec) / 1e6 if usec.isdigit() and pid == str(os.getpid()) else 0.0
        """How often systemd wants to hear WATCHDOG=1 at least (sd_watchdog_enabled(3)); 0 where it does not."""

    @property
    def in_background(self) -> bool:
        """Whether a command waits that will return when the mount answers."""
        return self._fd >= 0

    @property
    def is_notified(self) -> bool:
        """Whether systemd listens."""
        return bool(self._notify_socket)

    def ready(self, summary: str, warnings: Sequence[str], stderr: Path | None) -> None:
        """The mount answers, but for what `warnings` say. A daemon in the background lets go of its terminal; what C libraries still print
        goes to `stderr`."""
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

    def failed(self, error: D7yfsError, status: int) -> None:
        """There is no mount."""
        self._tell({"error": error.message, "hint": error.hint, "status": status})

    def notify(self, message: str) -> None:
        """Tell systemd, if it listens: assignments separated by newlines, as in sd_notify(3)."""
        if not self._notify_socket:
            return
        # A name that begins with @ is in the abstract namespace.
        address = "\0" + self._notify_socket[1:] if self._notify_socket.startswith("@") else self._notify_socket
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as client:
            client.sendto(message.encode(), address)

    def _tell(self, message: dict[str, Any]) -> None:
        if self.in_background:
            with contextlib.suppress(BrokenPipeError):
                os.write(self._fd, json.dumps(message).encode() + b"\n")


class Failed(Exception):
    """The daemon could not mount; `error` and `status` are its own."""

    def __init__(self, error: MountError, status: int) -> None:
        super().__init__(error.message)
        self.error = error
        self.status = status


def launch(arguments: Sequence[str]) -> dict[str, Any]:
    """Run `d7yfs` with the same arguments as a daemon and wait for its word: `{"ready": …, "warnings": […]}`. Raises Failed."""
    read_fd, write_fd = os.pipe()
    child = subprocess.Popen(  # noqa: S603
        # -P: a directory called d7yfs where the user happens to stand is not this program.
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
        raise Failed(MountError(f"the daemon ended before the mount answered (exit status {status})"), status or 1)
    message: dict[str, Any] = json.loads(line)
    if "error" in message:
        child.wait()
        raise Failed(MountError(message["error"], hint=message["hint"]), message["status"])
    child.returncode = 0  # it lives on; nobody is going to wait for it
    return message
