"""The host's mount table: what is mounted where, whether it lives, cleaning up, tuning, unmounting.

Never touches a FUSE mount from the process that serves it: whatever may hang on a mount (stat) is done by a child process with a deadline.
Called by `daemon` and the command line.
"""

from __future__ import annotations

import errno
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from d7yfs.errors import MountError

PROBE_TIMEOUT_S = 10.0
READ_AHEAD_KIB = 1024
MAX_BACKGROUND = 1024
"""The kernel lets 12 readahead requests wait by default: a dozen stalled readers would then starve every other one of the mount."""

FSTYPE = "fuse.d7yfs"

# statfs(2) always asks the daemon; stat(2) may be answered from what the kernel has cached, for a minute after the daemon's end.
_STAT = """
import os, sys
try:
    os.statvfs(sys.argv[1])
    os.stat(sys.argv[1])
except OSError as error:
    sys.exit(error.errno)
"""
_ESCAPE = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True, slots=True)
class Mount:
    """One line of the mount table."""

    point: Path
    device: str
    """`major:minor`; the minor names the FUSE connection."""
    fstype: str
    source: str
    options: tuple[str, ...]

    @property
    def owner(self) -> int | None:
        """Who made a FUSE mount (`user_id` in its options); None for other file systems."""
        return next((int(each[8:]) for each in self.options if each.startswith("user_id=")), None)


def mount_table() -> list[Mount]:
    """All mounts of this mount namespace, oldest first (proc_pid_mountinfo(5))."""
    mounts = []
    for line in Path("/proc/self/mountinfo").read_text(errors="surrogateescape").splitlines():
        left, right = line.split(" - ", 1)
        fields, (fstype, source, options) = left.split(), right.split(" ")
        mounts.append(
            Mount(Path(_unescape(fields[4])), fields[2], fstype, _unescape(source), tuple(options.split(",")))
        )
    return mounts


def mounted_at(point: Path) -> Mount | None:
    """The topmost mount on exactly `point`, if any."""
    return next((mount for mount in reversed(mount_table()) if mount.point == point), None)


def containing(path: Path) -> tuple[Path, str]:
    """The mount point of d7yfs that `path` is in, and the path below it. Raises MountError when it is in none. Touches no mount."""
    absolute = Path(os.path.abspath(path))  # noqa: PTH100  # resolving would ask a mount that may be dead
    points = [mount.point for mount in mount_table() if mount.fstype == FSTYPE and absolute.is_relative_to(mount.point)]
    if not points:
        raise MountError(f"{path} is not in a d7yfs mount", hint="d7yfs status lists the mounts")
    point = max(points, key=lambda each: len(each.parts))
    below = str(absolute.relative_to(point))
    return point, "" if below == "." else below


def answers(point: Path, timeout_s: float = PROBE_TIMEOUT_S) -> bool:
    """Whether a stat of `point` succeeds within `timeout_s`; blocks for as long, so call it from a thread."""
    return _stat_errno(point, timeout_s) == 0


def _stat_errno(point: Path, timeout_s: float = PROBE_TIMEOUT_S) -> int:
    """What a stat of `point` ends with in a child process; ETIMEDOUT when it does not end."""
    command = [sys.executable, "-I", "-S", "-c", _STAT, str(point)]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL) as child:  # noqa: S603
        try:
            return child.wait(timeout_s)
        except subprocess.TimeoutExpired:
            child.kill()
            return errno.ETIMEDOUT


def prepare_mountpoint(point: Path, is_abandoned: Callable[[], bool] = lambda: False) -> bool:
    """Make sure that `point` can be mounted on. Returns whether a dead mount was cleaned up first. Raises MountError.

    A dead mount is one whose daemon is gone: "Transport endpoint is not connected" (ENOTCONN), or no answer where `is_abandoned` says that
    no process serves it: a thread of a killed daemon that still is in the kernel keeps the connection open.
    """
    cleaned = False
    while (mount := mounted_at(point)) is not None and mount.fstype.startswith("fuse"):
        trouble = _stat_errno(point)
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
    try:
        if any(point.iterdir()):
            raise MountError(
                f"{point} is not empty, and a mount would hide what is in it", hint="choose an empty directory"
            )
        return cleaned
    except FileNotFoundError:
        raise MountError(f"{point} does not exist", hint=f"create it: mkdir -p {point}") from None
    except NotADirectoryError:
        raise MountError(f"{point} is not a directory", hint="choose an empty directory") from None
    except PermissionError:
        raise MountError(
            f"{point} cannot be read by uid {os.geteuid()}", hint="choose a directory of your own"
        ) from None


def unmount(point: Path, *, lazy: bool = False) -> None:
    """Unmount `point`. Raises MountError, whose `busy` says that somebody uses it."""
    if os.geteuid() == 0:
        command = ["umount", *(["--lazy"] if lazy else []), "--", str(point)]
    else:
        command = ["fusermount3", "-u", *(["-z"] if lazy else []), "--", str(point)]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)  # noqa: S603
    except FileNotFoundError:
        raise MountError(f"{command[0]} is not installed", hint="install the packages mount and fuse3") from None
    if done.returncode:
        said = " ".join(done.stderr.split()) or f"exit status {done.returncode}"
        if "busy" in said:
            raise Busy(
                f"{point} is in use", hint=f"end what uses it (fuser -vm {point}), or: d7yfs umount --lazy {point}"
            )
        raise MountError(f"{point} could not be unmounted: {said}")


def abort(point: Path) -> bool:
    """Have the kernel answer every request of the FUSE mount at `point` with ECONNABORTED, now and from now on; whether it could be told.

    For a mount whose daemon hangs: readers who wait are freed, and it ends with the connection (Documentation/filesystems/fuse/fuse.rst).
    """
    mount = mounted_at(point)
    if mount is None:
        return False
    try:
        (_connections() / mount.device.partition(":")[2] / "abort").write_text("1")
    except OSError:
        return False
    return True


class Busy(MountError):
    """Somebody has a file or directory of the mount open."""

    errno = errno.EBUSY


def tune(point: Path) -> list[str]:
    """Raise a fresh mount's readahead and background limits, as root. Returns, in words, what could not be done.

    Call it after INIT: libfuse's reply would undo an earlier value. The files: Documentation/ABI/testing/sysfs-class-bdi and
    Documentation/filesystems/fuse/fuse.rst in the kernel source.
    """
    mount = mounted_at(point)
    if mount is None:
        return [f"{point} is not in the mount table; limits stay at the kernel's defaults"]
    connection = _connections() / mount.device.partition(":")[2]
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


def _connections() -> Path:
    """Where the kernel has a directory for each FUSE connection; mounted if nobody has done so yet and we may."""
    connections = Path("/sys/fs/fuse/connections")
    if os.geteuid() == 0 and not any(connections.iterdir()):
        subprocess.run(  # noqa: S603
            ["mount", "-t", "fusectl", "fusectl", str(connections)],  # noqa: S607
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
        )
    return connections


def _unescape(text: str) -> str:
    """mountinfo writes space, tab, newline and backslash in octal."""
    return _ESCAPE.sub(lambda match: chr(int(match.group(1), 8)), text)
