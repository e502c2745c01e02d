"""`d7yfs upgrade`: a new daemon takes over a mount."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

import click

from d7yfs.cli import daemons
from d7yfs.cli.daemons import UntouchedPath
from d7yfs.cli.terminal import say
from d7yfs.control import control_socket
from d7yfs.control.control_socket import NoAnswer
from d7yfs.errors import MountError
from d7yfs.stats.status import MountStatus, parse

_PATIENCE_S = 150.0
"""Longer than a supervisor waits until a worker is prepared."""
_POLL_S = 0.1


@click.command()
@click.argument("mountpoint", type=UntouchedPath())
def upgrade(mountpoint: Path) -> None:
    """Replace the daemon behind a mount by one of the code that is installed now.

    Open files stay open, and no reader gets an error. If the new daemon cannot start, because of a mistake
    in the settings for example, the old one goes on. The supervisor stays as it is until the next mount.
    """
    point = mountpoint.absolute()
    path = control_socket.socket_path(point)
    with daemons.naming(point):
        before = _status(path)
        with contextlib.suppress(NoAnswer):  # the old daemon has left
            for _ in control_socket.follow(path, "upgrade"):
                pass
    after = _await_next(path, before)
    say(f"{point}: d7yfs {after.version}, generation {after.takeover.generation}")


def _await_next(path: Path, before: MountStatus) -> MountStatus:
    """The status of the next daemon. Raises MountError."""
    deadline = time.monotonic() + _PATIENCE_S
    while time.monotonic() < deadline:
        with contextlib.suppress(NoAnswer):
            after = _status(path)
            if after.takeover.generation > before.takeover.generation:
                return after
        time.sleep(_POLL_S)
    raise MountError(
        f"no new daemon serves {before.mountpoint} after {_PATIENCE_S:g} s", hint="d7yfs status, and its log"
    )


def _status(path: Path) -> MountStatus:
    return parse(MountStatus, control_socket.ask(path, "status"))
