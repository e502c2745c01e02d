"""The workers of a running d7yfs, by its control socket: who serves, and who waits."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from d7yfs.control import control_socket
from d7yfs.control.control_socket import NoAnswer
from d7yfs.errors import MountError
from d7yfs.stats.status import MountStatus, TakeoverStatus, parse

_POLL_S = 0.05
_PATIENCE_S = 15.0


def takeover(mountpoint: Path) -> TakeoverStatus:
    """The account of the workers. Raises NoAnswer while none serves."""
    return parse(MountStatus, control_socket.ask(control_socket.socket_path(mountpoint), "status")).takeover


def has_standby(mountpoint: Path) -> bool:
    """True if a standby waits for its turn, or there is to be none."""
    try:
        found = takeover(mountpoint)
    except MountError:
        return False
    return bool(found.off) or found.standby in ("ready", "off")


def kill(mountpoint: Path) -> None:
    """Kill the worker (SIGKILL), and wait until the next one serves."""
    before = takeover(mountpoint)
    os.kill(before.worker_pid, signal.SIGKILL)
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        time.sleep(_POLL_S)
        try:
            if takeover(mountpoint).generation > before.generation:
                return
        except NoAnswer:
            pass
        if time.monotonic() > deadline:
            raise OSError(f"no worker follows the one that was killed, after {_PATIENCE_S:g} s")


def upgrade(mountpoint: Path) -> None:
    """Have a new worker take over (`d7yfs upgrade`)."""
    subprocess.run([sys.executable, "-m", "d7yfs", "upgrade", mountpoint], stdout=subprocess.DEVNULL, check=True)
