"""`d7yfs umount`: unmount, and wait for the daemon behind the mount to end."""

from __future__ import annotations

import os
import time
from pathlib import Path

import click

from d7yfs.cli import daemons, end_with
from d7yfs.cli.daemons import UntouchedPath
from d7yfs.cli.terminal import say
from d7yfs.config.sources import load_settings
from d7yfs.control import control_socket
from d7yfs.control.control_socket import NoAnswer
from d7yfs.errors import MountError, UsageError
from d7yfs.host import mount_table
from d7yfs.host.process import state_of

_END_TIMEOUT_S = 30.0
_END_POLL_S = 0.05
_ANSWER_TIMEOUT_S = 5.0
"""How long to wait for a word of a daemon, and for one that is stopped to go on."""
_FORCED_ANSWER_TIMEOUT_S = 2.0


@click.command()
@click.argument("mountpoint", type=UntouchedPath(), required=False)
@click.option("--all", "everything", is_flag=True, help="Unmount all mounts of yours.")
@click.option("--config", type=click.Path(path_type=Path), metavar="FILE", help="Unmount what this TOML file mounts.")
@click.option("--lazy", is_flag=True, help="Unmount at once; open files stay readable until the daemon ends.")
@click.option(
    "--force",
    is_flag=True,
    help="Fail all reads, and unmount: for a mount that hangs. Works with files in use.",
)
def umount(mountpoint: Path | None, everything: bool, config: Path | None, lazy: bool, force: bool) -> None:
    """Unmount, and end the daemon behind the mount. A mount whose daemon is dead is cleaned up."""
    if sum((mountpoint is not None, everything, config is not None)) != 1:
        raise UsageError("name one mount point", hint="or the TOML file that does (--config FILE), or --all")
    if config is not None:
        mountpoint = load_settings({}, (), None, os.environ, config).require_mountpoint()
    points = [mountpoint.absolute()] if mountpoint is not None else daemons.own_mounts()[::-1]
    if not points:
        say("nothing is mounted")
    failures = []
    for point in points:
        try:
            _end(point, lazy=lazy, force=force)
        except MountError as error:
            failures.append(error)
    end_with(failures)


def _end(point: Path, *, lazy: bool, force: bool) -> None:
    """End one mount, and its daemon. Raises MountError."""
    mount = mount_table.mounted_at(point)
    if mount is None or mount.fstype != mount_table.FSTYPE:
        known = ", ".join(str(each.point) for each in mount_table.mount_table() if each.fstype == mount_table.FSTYPE)
        raise MountError(
            f"{point} is not a d7yfs mount", hint=f"mounted here: {known}" if known else "nothing is mounted"
        )
    pid = _abort(point) if force else None if lazy else _pid_behind(point)
    try:
        mount_table.unmount(point, lazy=lazy or force)
    except MountError:
        # A daemon whose connection was aborted unmounts by itself, and may be faster.
        if not force or mount_table.mounted_at(point) is not None:
            raise
    if pid is not None:
        _await_end(point, pid)


def _abort(point: Path) -> int | None:
    """Fail all waiting requests: by the daemon if it answers, and in any case by the kernel.
    Returns the daemon's pid, if known."""
    try:
        return _ask_pid(point, "end-by-force", _FORCED_ANSWER_TIMEOUT_S)
    except MountError:
        return None
    finally:
        mount_table.abort(point)


def _pid_behind(point: Path) -> int | None:
    """The pid of the daemon; None if it is dead, or another user's. Raises MountError if it is silent."""
    try:
        return _ask_pid(point, "status", _ANSWER_TIMEOUT_S)
    except NoAnswer as error:
        if not isinstance(error.__cause__, TimeoutError):
            return None
        raise MountError(
            f"the daemon of {point} has not answered within {_ANSWER_TIMEOUT_S:g} s: it hangs, or is stopped (SIGSTOP)",
            hint=f"d7yfs umount --force {point} takes the mount away without it, and fails every reader that waits",
        ) from error
    except MountError:
        return None


def _ask_pid(point: Path, command: str, timeout_s: float) -> int:
    return int(control_socket.ask(control_socket.socket_path(point), command, timeout_s=timeout_s)["pid"])


def _await_end(point: Path, pid: int) -> None:
    """Wait for a process that is not our child. Its pidfd would tell its end only after that of a
    thread that a frozen disk holds. Raises MountError."""
    began = time.monotonic()
    while (state := state_of(pid)) not in ("", "Z"):
        waited_s = time.monotonic() - began
        if state == "T" and waited_s > _ANSWER_TIMEOUT_S:
            raise MountError(
                f"{point} is unmounted, but its daemon (pid {pid}) is stopped (SIGSTOP)",
                hint=f"kill -CONT {pid} lets it end",
            )
        if waited_s > _END_TIMEOUT_S:
            raise MountError(f"{point} is unmounted, but its daemon (pid {pid}) still runs", hint="see its log")
        time.sleep(_END_POLL_S)
