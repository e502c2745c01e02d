"""Facts about this host for a report on trouble: versions, limits, FUSE, processes, the end of a log.

Each function returns lines of text. They read, and change nothing; some may wait for a device or a
file system that hangs, so their caller has a deadline. Called by `bug_report`.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import platform
import re
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from d7yfs import __version__
from d7yfs.host import kernel, mount_table, process

_CGROUPS = Path("/sys/fs/cgroup")
_CGROUP_FILES = ("memory.max", "memory.high", "memory.current", "memory.events", "cpu.max", "cpu.stat", "pids.max")
_OF_PROCESS = ("State", "PPid", "Uid", "Threads", "VmRSS", "VmSize", "VmSwap", "CapEff", "CapBnd")
"""Rows of proc_pid_status(5)."""
_OF_LIMITS = ("Max open files", "Max processes", "Max locked memory")
_TAIL_BYTES = 256 << 10
_JOURNAL_TIMEOUT_S = 10.0
_SYSTEM_LOGS = (Path("/var/log/syslog"), Path("/var/log/messages"))
_OURS = re.compile(r"(?:\w{3} +\d+ \S+|\S+) \S+ d7yfs(?:\[\d+\])?: ")
"""The beginning of our line in a file of syslog's: time, host, program."""
_PREFIXES = (
    *("D7YFS_", "AWS_", "AZURE_", "GOOGLE_", "CLOUDSDK_", "OSS_", "ALIBABA_", "OBS_", "HW_", "HUAWEICLOUD_"),
    *("TRITON_", "DRAGONFLY_", "KUBERNETES_", "XDG_"),
)
_VARIABLES = (
    *("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "SSL_CERT_FILE", "SSL_CERT_DIR", "HOME", "COLUMNS", "LANG", "LC_ALL"),
    *("NOTIFY_SOCKET", "JOURNAL_STREAM", "INVOCATION_ID", "PYTHONPATH", "LD_PRELOAD"),
)


def versions() -> str:
    """Versions of d7yfs, Python, its libraries, the kernel and the distribution."""
    lines = [
        f"d7yfs {__version__}, in {Path(__file__).parent.parent}",
        f"Python {sys.version}, {sys.executable}",
        f"kernel {platform.release()} {platform.version()} {platform.machine()}, libc {' '.join(platform.libc_ver())}",
    ]
    with contextlib.suppress(OSError):
        lines.append(f"distribution {platform.freedesktop_os_release().get('PRETTY_NAME', 'unknown')}")
    signs = (Path("/.dockerenv"), Path("/run/.containerenv"))
    if any(each.exists() for each in signs) or "KUBERNETES_SERVICE_HOST" in os.environ:
        lines.append("in a container")
    for name in _libraries():
        try:
            lines.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            lines.append(f"{name} is not installed")
    return "\n".join(lines)


def _libraries() -> list[str]:
    """The libraries that d7yfs names, those of extras too."""
    try:
        needed = importlib.metadata.requires("d7yfs") or []
    except importlib.metadata.PackageNotFoundError:
        return []
    return sorted({re.split(r"[^A-Za-z0-9._-]", each, maxsplit=1)[0] for each in needed})


def variables(environ: Mapping[str, str]) -> str:
    """The variables of this environment that matter, by name alone: their values may be secrets."""
    found = [name for name in sorted(environ) if name.startswith(_PREFIXES) or name.upper() in _VARIABLES]
    return "\n".join(found) or "none"


def fuse() -> str:
    """The FUSE that this kernel has, and what it lacks."""
    lines = [_describe_device(Path("/dev/fuse"))]
    lines.append(f"fusermount3: {shutil.which('fusermount3') or 'is not installed'}")
    lines.append(f"engine for auto: {' '.join(kernel.choose_engine('auto'))}")
    lines.append(f"passthrough: {kernel.passthrough_obstacle() or 'nothing in its way'}")
    lines.append(f"takeover: {kernel.takeover_obstacle('auto') or 'nothing in its way'}")
    lines.append(f"CAP_SYS_ADMIN: {kernel.has_admin_capability()}, uid {os.geteuid()}")
    for folder in ("/sys/module/fuse/parameters", "/proc/sys/fs/fuse"):
        with contextlib.suppress(OSError):
            lines += [f"{each}: {_read(each)}" for each in sorted(Path(folder).iterdir())]
    with contextlib.suppress(OSError):
        settings = _read(Path("/etc/fuse.conf")).splitlines()
        lines += [f"/etc/fuse.conf: {line}" for line in settings if line[:1].isalpha()]
    return "\n".join(lines)


def _describe_device(path: Path) -> str:
    try:
        found = path.stat()
    except OSError as error:
        return f"{path}: {error.strerror}"
    return f"{path}: mode {found.st_mode & 0o7777:o}, uid {found.st_uid}, gid {found.st_gid}"


def fuse_mounts() -> str:
    """The FUSE mounts of this mount namespace, each with the requests that wait for its daemon."""
    lines = []
    for each in mount_table.mount_table():
        if each.fstype.startswith("fuse") and each.fstype != "fusectl":
            waiting = _read(Path(f"/sys/fs/fuse/connections/{each.device.partition(':')[2]}/waiting")) or "unknown"
            lines.append(f"{each.point}: {each.fstype} of {each.source}, uid {each.owner}, {waiting} requests wait")
    return "\n".join(lines) or "none"


def limits() -> str:
    """The limits of this process, and of its control group."""
    lines = []
    for name in ("NOFILE", "NPROC", "AS", "MEMLOCK", "CORE"):
        soft, hard = resource.getrlimit(getattr(resource, f"RLIMIT_{name}"))
        lines.append(f"{name}: {soft} of {hard} at most (-1 is none)")
    lines.append(f"processors: {process.processors()}, load {os.getloadavg()}")
    memory = [line for line in _read(Path("/proc/meminfo")).splitlines() if line.startswith(("Mem", "Swap", "Cached"))]
    return "\n".join([*lines, *memory, *_describe_cgroup("self")])


def _describe_cgroup(pid: str) -> Iterator[str]:
    _, found, path = _read(Path(f"/proc/{pid}/cgroup")).rpartition("0::/")
    if found:
        yield f"control group /{path}"
        for name in _CGROUP_FILES:
            if text := _read(_CGROUPS / path / name):
                yield f"  {name}: {' '.join(text.split())}"


def describe_process(pid: int) -> str:
    """A process: its command, state, threads, memory, limits and control group."""
    place = Path(f"/proc/{pid}")
    command = _read(place / "cmdline").replace("\0", " ")
    if not command:
        return f"there is no process {pid}"
    status = [line for line in _read(place / "status").splitlines() if line.startswith(_OF_PROCESS)]
    bounds = [line for line in _read(place / "limits").splitlines() if line.startswith(_OF_LIMITS)]
    try:
        files = f"{len(list((place / 'fd').iterdir()))} descriptors"
    except OSError as error:
        files = f"descriptors: {error.strerror}"
    threads = ["threads, and where in the kernel they wait:"]
    threads += [f"  {each.name} {_read(each / 'comm')}: {_read(each / 'wchan')}" for each in place.glob("task/*")]
    return "\n".join([f"{pid}: {command}", *status, files, *bounds, *threads, *_describe_cgroup(str(pid))])


def unit_of(pid: int) -> str:
    """The systemd service that a process runs in; empty if it is none of d7yfs."""
    last = _read(Path(f"/proc/{pid}/cgroup")).rpartition("/")[2]
    return last if last.startswith("d7yfs") and last.endswith(".service") else ""


def end_of_file(path: Path, lines: int) -> str:
    """The last lines of a log file."""
    try:
        with path.open("rb") as file:
            size_bytes = file.seek(0, os.SEEK_END)
            file.seek(max(0, size_bytes - _TAIL_BYTES))
            text = file.read(_TAIL_BYTES).decode(errors="replace")
    except OSError as error:
        return f"{path} cannot be read: {error.strerror}"
    return "\n".join(text.splitlines()[-lines:]) or f"{path} is empty"


def end_of_journal(matches: list[str], lines: int) -> str:
    """The last lines of systemd's journal for these matches; else those of a system log in a file."""
    command = ["journalctl", "--quiet", "--no-pager", "--output=short-iso", f"--lines={lines}", *matches]
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(command, capture_output=True, timeout=_JOURNAL_TIMEOUT_S, check=False)  # noqa: S603
        if text := done.stdout.decode(errors="replace").strip():
            return text
    for path in _SYSTEM_LOGS:
        if path.exists():
            found = [line for line in end_of_file(path, 10**6).splitlines() if _OURS.match(line)]
            return "\n".join(found[-lines:]) or f"no line in the journal, and none in the end of {path}"
    return "no line in the journal"


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""
