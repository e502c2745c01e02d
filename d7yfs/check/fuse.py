"""The findings about FUSE: who may mount here, by which engine, and what this kernel or this process
cannot do. d7yfs does without each of these alone.

Part of the dry run; `host.kernel` knows the reasons.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from d7yfs.check.findings import Finding, Severity, failed, ok, warning
from d7yfs.config.schema import Config
from d7yfs.errors import MountError
from d7yfs.host import kernel

_DEVICE = Path("/dev/fuse")
_SETTINGS = Path("/etc/fuse.conf")


def check_fuse(config: Config) -> Iterator[Finding]:
    """Test what a mount needs of FUSE, and tell what this one will do without."""
    maker = _check_maker(config)
    yield maker
    if maker.verdict is Severity.FAILED:
        return
    if config.fuse_helper is None and not kernel.has_admin_capability():
        if config.allow_other and "user_allow_other" not in _lines_of(_SETTINGS):
            hint = "add the line user_allow_other to /etc/fuse.conf, or mount as root"
            yield failed("fuse", f"--allow-other needs user_allow_other in {_SETTINGS}", hint)
        said = "without CAP_SYS_ADMIN the kernel's readahead stays at 128 KiB"
        yield warning("limits", said, "mount as root to have it raised")
    name, reason = kernel.choose_engine(config.fuse_engine)
    try:
        kernel.require_engine(name)
    except MountError as error:
        yield failed("engine", error)
        return
    yield ok("engine", f"{name} ({reason})")
    yield _check_passthrough(config, name)
    yield _check_takeover(config)


def _check_maker(config: Config) -> Finding:
    """Test whether somebody can make the mount: a helper, this process, or fusermount3."""
    if config.fuse_helper is not None:
        if not _is_socket(config.fuse_helper):
            return failed("fuse", f"there is no helper behind {config.fuse_helper}", "start d7yfs fuse-helper first")
        return ok("fuse", f"the helper behind {config.fuse_helper} makes the mount")
    if not _DEVICE.exists():
        hint = (
            "load the module (modprobe fuse); in a container, run it privileged or pass the device (--device /dev/fuse)"
        )
        return failed("fuse", f"{_DEVICE} does not exist", hint)
    try:
        os.close(os.open(_DEVICE, os.O_RDWR | os.O_CLOEXEC))
    except OSError as error:
        return failed("fuse", f"{_DEVICE} cannot be opened: {error.strerror}", "run as root, or correct its mode")
    if kernel.has_admin_capability():
        return ok("fuse", f"{_DEVICE} can be opened, and this process may mount")
    if os.geteuid() == 0:
        hint = "in a container, add the capability (--cap-add SYS_ADMIN), or have a helper mount (--fuse-helper)"
        return failed("fuse", "this process is root without CAP_SYS_ADMIN, and may not mount", hint)
    if shutil.which("fusermount3") is None:
        return failed("fuse", "fusermount3 is not installed", "install the package fuse3, or run as root")
    return ok("fuse", f"{_DEVICE} can be opened, and fusermount3 mounts")


def _check_passthrough(config: Config, engine: str) -> Finding:
    hint = "reads of cached files pass the daemon, which is slower and right all the same"
    if not config.passthrough:
        return ok("passthrough", "all reads pass the daemon, as --no-passthrough says")
    if engine != "kernel":
        return warning("passthrough", f"the engine {engine} has none", hint)
    if obstacle := kernel.passthrough_obstacle():
        return warning("passthrough", f"the kernel does not read cached files by itself: {obstacle}", hint)
    return ok("passthrough", "the kernel reads whole cached files by itself")


def _check_takeover(config: Config) -> Finding:
    if config.takeover == "off":
        return ok("takeover", "nobody takes over if the daemon dies, as --takeover says")
    if obstacle := kernel.takeover_obstacle(config.fuse_engine, is_handed=config.fuse_helper is not None):
        said = f"nobody takes over if the daemon dies: {obstacle}"
        if config.takeover != "auto":
            return failed("takeover", said, "--takeover auto, or off")
        return warning("takeover", said, "the mount is dead then, until it is mounted again")
    return ok("takeover", "another process takes over if the daemon dies")


def _is_socket(path: Path) -> bool:
    try:
        return path.is_socket()
    except OSError:  # a directory above it is closed to this user
        return False


def _lines_of(path: Path) -> set[str]:
    try:
        return {line.strip() for line in path.read_text().splitlines()}
    except OSError:
        return set()
