"""The plan that a supervisor follows, and the commands that start it and its workers.

The plan is a file in memory: arguments of other processes can be seen by all users. It names the
arguments of `d7yfs`, which hold no secrets; the environment is inherited.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any, NamedTuple, Self

from d7yfs.host import descriptor_store
from d7yfs.host.fuse_device import MountFlags
from d7yfs.host.launch import Readiness, daemon_command
from d7yfs.host.privileges import WorkerUser

_PROGRAM = "import sys; sys.path.insert(0, sys.argv[1]); from d7yfs.supervisor.supervisor import main; main()"
_ROOT = Path(__file__).parent.parent.parent

WORKER_VARIABLE = "D7YFS_SUPERVISOR"
"""Tells a worker about its supervisor, as JSON; not an option."""

SYSTEMD_VARIABLES = ("NOTIFY_SOCKET", "WATCHDOG_PID", "WATCHDOG_USEC", *descriptor_store.VARIABLES)
"""The supervisor's, and not its workers'."""

SILENCE_S = 30.0


class FirstWorker(NamedTuple):
    """A worker that was forked from the command that became the supervisor."""

    pid: int
    channel_fd: int
    """The supervisor's end of the channel."""
    session_fd: int
    """An empty descriptor, for the connection; that itself if it is resumed."""
    journal_fd: int


class Split(NamedTuple):
    """The needs of a supervisor that runs its workers as another user."""

    user: WorkerUser
    control_fd: int
    """The control socket, which listens in a directory that the workers cannot enter."""
    control_path: str
    cache_device: int
    """The device of the cache: the kernel reads no other files by itself."""


class Plan(NamedTuple):
    """One mount to supervise."""

    mountpoint: Path
    flags: MountFlags
    arguments: tuple[str, ...]
    """The workers' arguments, those of `d7yfs`."""
    here: str
    """The directory below which relative paths are."""
    standby: bool
    silence_s: float = SILENCE_S
    """A worker that gives no sign of life for so long hangs."""
    first: FirstWorker | None = None
    """None: the supervisor starts the first worker, too."""
    split: Split | None = None
    """None: the workers run as the supervisor does."""
    resumed: int = 0
    """The last generation of a supervisor that has died, and whose connection goes on; 0 for a new mount."""

    def write(self) -> int:
        """A descriptor of a file in memory that holds it."""
        fd = os.memfd_create("d7yfs-plan")
        os.write(fd, json.dumps(self._asdict() | {"mountpoint": os.fspath(self.mountpoint)}).encode())
        os.lseek(fd, 0, os.SEEK_SET)
        return fd

    @classmethod
    def read(cls, fd: int) -> Self:
        """The plan in a descriptor, which is closed."""
        with os.fdopen(fd, "rb") as file:
            given: dict[str, Any] = json.load(file)
        given |= {"mountpoint": Path(given["mountpoint"]), "arguments": tuple(given["arguments"])}
        first = FirstWorker(*given["first"]) if given["first"] else None
        split = None
        if given["split"]:
            (uid, gid, groups, *names), *rest = given["split"]
            split = Split(WorkerUser(uid, gid, tuple(groups), *names), *rest)
        return cls(**given | {"flags": MountFlags(*given["flags"]), "first": first, "split": split})

    def describe_for_worker(self, channel_fd: int, readiness: Readiness) -> dict[str, Any]:
        """The value of WORKER_VARIABLE; `channel_fd` is the worker's end of the channel."""
        return {
            "fd": channel_fd,
            "here": self.here,
            "mountpoint": str(self.mountpoint),
            "source": self.flags.source,
            "in_background": readiness.in_background,
            "is_notified": readiness.is_notified,
            "watchdog_s": readiness.watchdog_s,
            "control_fd": self.split.control_fd if self.split is not None else None,
            "mounter": (self.flags.uid, self.flags.gid),
        }


def supervisor_command(plan_fd: int) -> list[str]:
    """The command of a supervisor that inherits its plan. It sees none of the installed packages,
    which keeps it small."""
    return [sys.executable, "-I", "-S", "-c", _PROGRAM, str(_ROOT), str(plan_fd)]


def worker_command(plan: Plan) -> list[str]:
    """The command of a worker, from the installation as it is now."""
    return daemon_command(plan.arguments)
