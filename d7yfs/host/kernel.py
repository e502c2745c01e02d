"""The kernel of this host: which FUSE engine it can have, and which of its features work here.

Used where an engine is chosen, by the supervisor's start, and by `check`, which tells of it.
"""

from __future__ import annotations

import os
import re
from importlib.util import find_spec
from pathlib import Path

from d7yfs.errors import MountError
from d7yfs.host.privileges import CAP_SYS_ADMIN, capabilities

_ENGINE_SINCE = (5, 4)
"""The layouts of FUSE 7.31, on which our own session rests."""
_PASSTHROUGH_SINCE = (6, 9)
_RESEND_SINCE = (6, 9)
"""FUSE_NOTIFY_RESEND: the kernel sends requests again that a process left unanswered."""
_STATUS = Path("/proc/self/status")
_SETTINGS = Path("/proc/sys/fs/fuse")
_REQUEST_TIMEOUTS = ("default_request_timeout", "max_request_timeout")
_RELEASE = re.compile(r"(\d+)\.(\d+)")


def choose_engine(wanted: str, release: str | None = None) -> tuple[str, str]:
    """The engine for `--fuse-engine`, and the reason in words; `release` is the kernel's (uname -r)."""
    if wanted != "auto":
        return wanted, "as --fuse-engine says"
    if _version(release) >= _ENGINE_SINCE:
        return "kernel", "Linux 5.4 or later"
    return "pyfuse3", "this kernel is older than Linux 5.4"


def require_engine(name: str) -> None:
    """Raise MountError if the engine is not installed."""
    if name == "pyfuse3" and find_spec(name) is None:
        raise MountError(
            "the FUSE engine pyfuse3 is not installed",
            hint="in a clone, `PYFUSE3=yes make install` builds it, with gcc, pkg-config and the headers of libfuse3 and Python; "
            "--fuse-engine kernel needs none of it, and FUSE 7.31 in the kernel (Linux 5.4)",
        )


def has_admin_capability(status: Path = _STATUS) -> bool:
    """True if this process has CAP_SYS_ADMIN, in its user namespace, or if that cannot be told."""
    try:
        return bool(capabilities("CapEff", status) >> CAP_SYS_ADMIN & 1)
    except (OSError, IndexError, ValueError):
        return True


def passthrough_obstacle(
    release: str | None = None, status: Path = _STATUS, uid_map: Path = Path("/proc/self/uid_map")
) -> str:
    """Why the kernel would not read cached files by itself; empty if it would. The cache's file
    system may be one more obstacle, which shows at the first open.
    """
    if _version(release) < _PASSTHROUGH_SINCE:
        return f"that needs Linux 6.9, this is {release or os.uname().release}"
    if not has_admin_capability(status):
        return "that needs root, or CAP_SYS_ADMIN"
    try:
        in_first_namespace = uid_map.read_text().split() == ["0", "0", "4294967295"]
    except OSError:
        return ""
    return "" if in_first_namespace else "that needs CAP_SYS_ADMIN outside of a user namespace"


def takeover_obstacle(
    engine: str, *, is_handed: bool = False, release: str | None = None, settings: Path = _SETTINGS
) -> str:
    """Why no process could take over a mount from one that dies; empty if one could.

    `engine` is `--fuse-engine`; `is_handed`: another program makes the mount.
    """
    if is_handed:
        return "another program makes the mount"
    if choose_engine(engine, release)[0] != "kernel":
        return "the engine pyfuse3 cannot go on with the connection of another process"
    if _version(release) < _RESEND_SINCE:
        return f"that needs Linux 6.9, this is {release or os.uname().release}"
    if timeout_s := request_timeout_s(settings):
        return f"the kernel ends a mount after {timeout_s} s without an answer (sysctl fs.fuse.*_request_timeout)"
    return ""


def request_timeout_s(settings: Path = _SETTINGS) -> int:
    """The seconds after which the kernel ends a connection that leaves a request unanswered; 0 for
    never."""
    values = [int(path.read_text()) for name in _REQUEST_TIMEOUTS if (path := settings / name).exists()]
    return min(filter(None, values), default=0)


def _version(release: str | None) -> tuple[int, int]:
    found = _RELEASE.match(release if release is not None else os.uname().release)
    return (int(found[1]), int(found[2])) if found else (0, 0)
