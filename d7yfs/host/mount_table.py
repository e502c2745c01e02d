"""The host's mount table: mounts, whether they answer, cleaning up, tuning, unmounting.

Never touches a FUSE mount from the process that serves it. A child process with a deadline makes
each call that may hang on a mount (stat). Called by `daemon`, `monitor` and the command line.
"""

from __future__ import annotations

import errno
import os
import re
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from d7yfs.errors import MountError
from d7yfs.host import libc

if TYPE_CHECKING:
    import subprocess

PROBE_TIMEOUT_S = 10.0
READ_AHEAD_KIB = 1024
MAX_BACKGROUND = 16_384
"""The kernel's default of 12 lets a dozen stalled readers starve all others of the mount."""

FSTYPE = "fuse.d7yfs"
_AUTOMOUNT = "autofs"

# statfs(2) always asks the daemon; stat(2) may be answered from what the kernel has cached, for a
# minute after the daemon's end.
STATFS, STAT = "statfs", "stat"
"""The questions to a mount."""
_ASKING = {STATFS: "os.statvfs(path)", STAT: "os.statvfs(path); os.stat(path)"}
_CHILD = """
import os, sys
path = sys.argv[1]
try: {}
except OSError as error: sys.exit(error.errno)
"""
_REFUSALS = {
    errno.ENOENT: ("does not exist", "create it: mkdir -p {}"),
    errno.ENOTDIR: ("is not a directory", "choose an empty directory"),
    errno.EACCES: (f"cannot be read by uid {os.geteuid()}", "choose a directory of your own"),
}
"""Why a directory cannot be mounted on, and what to do."""
_MNT_DETACH, _UMOUNT_NOFOLLOW = 2, 8  # sys/mount.h
_ESCAPE = re.compile(r"\\([0-7]{3})")


class Mount(NamedTuple):
    """One line of the host's mount table."""

    point: Path
    device: str
    """`major:minor`; the minor names the FUSE connection."""
    fstype: str
    source: str
    owner: int | None = None
    """The user id of a FUSE mount's maker; None for other mounts."""


def mount_table() -> list[Mount]:
    """All mounts of this mount namespace, oldest first (proc_pid_mountinfo(5))."""
    mounts = []
    for line in Path("/proc/self/mountinfo").read_text(errors="surrogateescape").splitlines():
        left, right = line.split(" - ", 1)
        fields, (fstype, source, options) = left.split(), right.split(" ")
        owner = re.search(r"\buser_id=(\d+)", options)
        point = Path(_unescape(fields[4]))
        mounts.append(Mount(point, fields[2], fstype, _unescape(source), int(owner[1]) if owner else None))
    return mounts


def mounted_at(point: Path) -> Mount | None:
    """The topmost mount at exactly `point`, if any."""
    return next((mount for mount in reversed(mount_table()) if mount.point == point), None)


def containing(path: Path) -> tuple[Path, str]:
    """The d7yfs mount point above `path`, untouched, and the path below it. Raises MountError."""
    absolute = Path(os.path.abspath(path))  # noqa: PTH100  # resolving would touch a mount that may be dead
    points = [mount.point for mount in mount_table() if mount.fstype == FSTYPE and absolute.is_relative_to(mount.point)]
    if not points:
        raise MountError(f"{path} is not in a d7yfs mount", hint="d7yfs status lists the mounts")
    point = max(points, key=lambda each: len(each.parts))
    below = str(absolute.relative_to(point))
    return point, "" if below == "." else below


def send_child(question: str, point: Path) -> subprocess.Popen[bytes]:
    """A child that asks `point` STATFS or STAT, and exits with the error number. Raises OSError."""
    import subprocess  # only where it is needed, here and below: the supervisor is small without

    return subprocess.Popen(asking_command(question, point), stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # noqa: S603  # vfork(2)


def asking_command(question: str, point: Path) -> list[str]:
    """The command of a process that asks `point` STATFS or STAT, and exits with the error number."""
    return [sys.executable, "-I", "-S", "-c", _CHILD.format(_ASKING[question]), str(point)]


def stat_errno(point: Path) -> int:
    """The errno of a stat of `point` in a child process; 0 for none, ETIMEDOUT for no answer. Blocks:
    call it from a thread."""
    import subprocess

    with send_child(STAT, point) as child:
        try:
            return child.wait(PROBE_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            child.kill()
            return errno.ETIMEDOUT


def prepare_mountpoint(point: Path, is_abandoned: Callable[[], bool] = lambda: False) -> bool:
    """Make sure that `point` can be mounted on. Returns True if a dead mount was cleaned up first.
    Raises MountError.

    It is called in the process group of the command that mounts: an automount lets that one pass. An
    automount point is not looked at even so, because a look from elsewhere would mount it.

    A dead mount is one without a daemon. It answers "Transport endpoint is not connected"
    (ENOTCONN), or not at all if `is_abandoned` says that no process serves it. A thread of a killed
    daemon that is still in the kernel keeps the connection open.
    """
    cleaned = False
    while (mount := mounted_at(point)) is not None and mount.fstype.startswith("fuse"):
        trouble = stat_errno(point)
        if trouble == errno.ETIMEDOUT and mount.fstype == FSTYPE and is_abandoned():
            abort(point)
        elif trouble != errno.ENOTCONN:
            raise MountError(
                f"{point} is already mounted ({mount.source})",
                hint=f"unmount it first: d7yfs umount {point}"
                if mount.fstype == FSTYPE
                else "choose another directory",
            )
        unmount(point, lazy=True)
        cleaned = True
    if mount is not None and mount.fstype == _AUTOMOUNT:
        return cleaned
    try:
        if any(point.iterdir()):
            raise MountError(
                f"{point} is not empty, and a mount would hide what is in it", hint="choose an empty directory"
            )
    except OSError as error:
        if error.errno not in _REFUSALS:
            raise
        what, hint = _REFUSALS[error.errno]
        raise MountError(f"{point} {what}", hint=hint.format(point)) from None
    return cleaned


def unmount(point: Path, *, lazy: bool = False) -> None:
    """Unmount `point`. Raises Busy if it is in use, else MountError."""
    busy = Busy(
        f"{point} is in use",
        hint=f"end the processes that use it (fuser -vm {point}), or run d7yfs umount --lazy {point}",
    )
    if os.geteuid() == 0:
        # umount(8) may stat the mount, and so wait for a daemon that does not answer.
        try:
            libc.call("umount2", os.fsencode(point), _UMOUNT_NOFOLLOW | _MNT_DETACH * lazy)
        except OSError as error:
            failed = MountError(f"{point} could not be unmounted: {error.strerror}")
            raise (busy if error.errno == errno.EBUSY else failed) from None
        return
    import subprocess

    command = ["fusermount3", "-u", *(["-z"] if lazy else []), "--", str(point)]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)  # noqa: S603
    except FileNotFoundError:
        raise MountError("fusermount3 is not installed", hint="install the package fuse3") from None
    if done.returncode:
        said = " ".join(done.stderr.split()) or f"exit status {done.returncode}"
        raise busy if "busy" in said else MountError(f"{point} could not be unmounted: {said}")


def abort(point: Path) -> None:
    """Make the kernel fail every request of the FUSE mount at `point` with ECONNABORTED from now
    on, if it can.

    For a mount whose daemon hangs: waiting readers are freed, and it ends with the connection
    (Documentation/filesystems/fuse/fuse.rst).
    """
    mount = mounted_at(point)
    if mount is not None:
        with suppress(OSError):
            (_connection(mount) / "abort").write_text("1")


class Busy(MountError):
    """The failure to unmount because a file or directory of the mount is open."""

    errno = errno.EBUSY


def tune(point: Path) -> list[str]:
    """Raise a new mount's readahead and background limits, as root. Returns the failures in words.

    Call it after INIT, because libfuse's reply would undo an earlier value. The files:
    Documentation/ABI/testing/sysfs-class-bdi and Documentation/filesystems/fuse/fuse.rst in the
    kernel source.
    """
    mount = mounted_at(point)
    if mount is None:
        return [f"{point} is not in the mount table; limits stay at the kernel's defaults"]
    connection = _connection(mount)
    settings = {
        Path(f"/sys/class/bdi/{mount.device}/read_ahead_kb"): READ_AHEAD_KIB,
        connection / "max_background": MAX_BACKGROUND,
        connection / "congestion_threshold": MAX_BACKGROUND,
    }
    trouble = []
    for path, value in settings.items():
        try:
            path.write_text(str(value))
        except OSError as error:
            trouble.append(f"{path.name} stays at the kernel's default: {error.strerror}")
    return trouble


def _connection(mount: Mount) -> Path:
    """The directory of a FUSE connection, in a file system that root mounts if need be."""
    connections = Path("/sys/fs/fuse/connections")
    if os.geteuid() == 0 and not any(connections.iterdir()):
        import subprocess

        subprocess.run(  # noqa: S603
            ["mount", "-t", "fusectl", "fusectl", str(connections)],  # noqa: S607
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
        )
    return connections / mount.device.partition(":")[2]


def _unescape(text: str) -> str:
    """Undo mountinfo's octal escapes of space, tab, newline and backslash."""
    return _ESCAPE.sub(lambda match: chr(int(match.group(1), 8)), text)
