"""`d7yfs umount`: unmount, and wait for the daemon behind the mount to end."""

from __future__ import annotations

import os
import time
from pathlib import Path

import click

from d7yfs.cli.daemons import UntouchedPath
from d7yfs.config.sources import load_settings
from d7yfs.control import control_socket
from d7yfs.errors import MountError, UsageError
from d7yfs.host import mount_table

_END_TIMEOUT_S = 30.0
_END_POLL_S = 0.05
_ANSWER_TIMEOUT_S = 2.0
"""How long to wait for a daemon whose mount is unmounted by force."""


@click.command()
@click.argument("mountpoint", type=UntouchedPath(), required=False)
@click.option("--config", type=click.Path(path_type=Path), metavar="FILE", help="Unmount what this TOML file mounts.")
@click.option("--lazy", is_flag=True, help="Unmount at once; open files stay readable until the daemon ends.")
@click.option(
    "--force",
    is_flag=True,
    help="Fail all reads, and unmount: for a mount that hangs. Works with files in use.",
)
def umount(mountpoint: Path | None, config: Path | None, lazy: bool, force: bool) -> None:
    """Unmount, and end the daemon behind the mount. A mount whose daemon is dead is cleaned up."""
    if mountpoint is None and config is None:
        raise UsageError("no mount point is given", hint="name it, or the TOML file that does: --config FILE")
    if mountpoint is None:
        mountpoint = load_settings({}, (), None, os.environ, config).require_mountpoint()
    point = mountpoint.absolute()
    mount = mount_table.mounted_at(point)
    if mount is None or mount.fstype != mount_table.FSTYPE:
        known = ", ".join(str(each.point) for each in mount_table.mount_table() if each.fstype == mount_table.FSTYPE)
        raise MountError(
            f"{point} is not a d7yfs mount", hint=f"mounted here: {known}" if known else "nothing is mounted"
        )
    pid = _abort(point) if force else _pid_behind(point)
    try:
        mount_table.unmount(point, lazy=lazy or force)
    except MountError:
        # A daemon whose connection was aborted unmounts by itself, and may be faster.
        if not force or mount_table.mounted_at(point) is not None:
            raise
    if pid is not None and not lazy and not _ended(pid):
        raise MountError(f"{point} is unmounted, but its daemon (pid {pid}) still runs", hint="see its log")


def _abort(point: Path) -> int | None:
    """Fail all waiting requests: by the daemon if it answers, and in any case by the kernel.
    Returns the daemon's pid, if known."""
    try:
        return _pid_behind(point, "end-by-force", _ANSWER_TIMEOUT_S)
    finally:
        mount_table.abort(point)


def _pid_behind(point: Path, command: str = "status", timeout_s: float = control_socket.CLIENT_TIMEOUT_S) -> int | None:
    """The pid of the daemon that answers `command`, if one does."""
    try:
        return int(control_socket.ask(control_socket.socket_path(point), command, timeout_s=timeout_s)["pid"])
    except MountError:
        return None  # dead, or another user's


def _ended(pid: int) -> bool:
    """Wait for a process that is not our child. Its pidfd would tell its end only after that of a
    thread that a frozen disk holds."""
    deadline = time.monotonic() + _END_TIMEOUT_S
    while not (is_over := _is_over(pid)) and time.monotonic() < deadline:
        time.sleep(_END_POLL_S)
    return is_over


def _is_over(pid: int) -> bool:
    """True if it has ended, perhaps without its parent having waited (proc_pid_stat(5), field 3)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True
