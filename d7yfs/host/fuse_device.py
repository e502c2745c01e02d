"""/dev/fuse: a new connection to the kernel, its mount, and the files that the kernel reads by itself.

As root by mount(2); without the right to mount by fusermount3, which is set-uid and passes the
descriptor over a socket (_FUSE_COMMFD, util/fusermount.c of libfuse). The kernel's side is in
Documentation/filesystems/fuse/fuse.rst.

Used by the FUSE helper, by supervisors, and by the engine that speaks the protocol itself.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import socket
import struct
from pathlib import Path
from typing import NamedTuple

from d7yfs.errors import MountError
from d7yfs.host import libc

_DEVICE = "/dev/fuse"
_MS_RDONLY, _MS_NOSUID, _MS_NODEV, _MS_NOEXEC = 1, 2, 4, 8  # sys/mount.h
_PATIENCE_S = 30.0
_BACKING_MAP = struct.Struct("=iIQ")
"""struct fuse_backing_map: fd, flags, padding."""
_BACKING_ID = struct.Struct("=I")
_BACKING_OPEN = 0x4010E501
"""FUSE_DEV_IOC_BACKING_OPEN: _IOW(229, 1, struct fuse_backing_map)."""
_BACKING_CLOSE = 0x4004E502
"""FUSE_DEV_IOC_BACKING_CLOSE: _IOW(229, 2, uint32_t)."""


class MountFlags(NamedTuple):
    """The properties of a mount that its maker chooses. It is read-only, nosuid and nodev anyway."""

    source: str
    """Its name in the mount table."""
    uid: int
    """The user to whom it belongs: nobody else reads it, unless `allow_other`."""
    gid: int = 0
    allow_other: bool = False
    noexec: bool = False

    @property
    def options(self) -> list[str]:
        """The mount's options as fusermount3 and libfuse take them."""
        escaped = self.source.replace("\\", "\\\\").replace(",", "\\,")
        options = [f"fsname={escaped}", "subtype=d7yfs", "ro", "nosuid", "nodev", "default_permissions"]
        return options + [name for name in ("allow_other", "noexec") if getattr(self, name)]


def connect(point: Path, flags: MountFlags) -> int:
    """Mount a new connection at `point`, with or without the right to mount; returns its descriptor.
    Raises MountError.
    """
    try:
        return mount(point, flags)
    except MountError as error:
        if isinstance(error.__cause__, OSError) and error.__cause__.errno in (errno.EPERM, errno.EACCES):
            return mount_by_fusermount(point, flags)
        raise


def mount(point: Path, flags: MountFlags) -> int:
    """Mount a new connection at `point` with mount(2); returns its descriptor. Raises MountError,
    with EPERM as its cause where this process may not mount.
    """
    try:
        fd = os.open(_DEVICE, os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        raise MountError(f"{_DEVICE} cannot be opened: {error.strerror}", hint="see d7yfs check") from error
    options = f"fd={fd},rootmode=40000,user_id={flags.uid},group_id={flags.gid},default_permissions"
    options += ",allow_other" * flags.allow_other
    bits = _MS_RDONLY | _MS_NOSUID | _MS_NODEV | _MS_NOEXEC * flags.noexec
    source, where = os.fsencode(flags.source), os.fsencode(point)
    try:
        libc.call("mount", source, where, b"fuse.d7yfs", ctypes.c_ulong(bits), options.encode())
    except OSError as error:
        os.close(fd)
        raise MountError(f"{point} could not be mounted: {error.strerror}", hint="this needs CAP_SYS_ADMIN") from error
    return fd


def mount_by_fusermount(point: Path, flags: MountFlags) -> int:
    """Have fusermount3 mount a new connection at `point`; returns its descriptor. Raises
    MountError with what it said.
    """
    import subprocess  # only here: the supervisor is small without

    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with ours:
        with theirs:
            try:
                child = subprocess.Popen(  # noqa: S603
                    ["fusermount3", "-o", ",".join(flags.options), "--", str(point)],  # noqa: S607
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.PIPE,
                    pass_fds=[theirs.fileno()],
                    env={**os.environ, "_FUSE_COMMFD": str(theirs.fileno())},
                    text=True,
                )
            except FileNotFoundError:
                raise MountError("fusermount3 is not installed", hint="install the package fuse3") from None
        ours.settimeout(_PATIENCE_S)
        try:
            _, fds, _, _ = socket.recv_fds(ours, 1, 1)
        except OSError as error:
            fds = []
            child.kill()
            if error.errno != errno.ECONNRESET:
                raise MountError(f"{point} could not be mounted: fusermount3 does not answer") from error
        finally:
            _, said = child.communicate()
    if not fds:
        reason = " ".join(said.split()).removeprefix("fusermount3: ") or "fusermount3 gave no reason"
        raise MountError(
            f"{point} could not be mounted: {reason}",
            hint="d7yfs check says what FUSE lacks here (/dev/fuse, fusermount3, user_allow_other)",
        )
    os.set_inheritable(fds[0], False)
    return fds[0]


class KernelBackings:
    """The registered files of the connection `device`. Registering needs CAP_SYS_ADMIN in the init user
    namespace."""

    def __init__(self, device: int) -> None:
        self._device = device

    def register(self, data_fd: int) -> int:
        """The kernel's id for this file, which may be closed then. Raises OSError."""
        # A mutable buffer: with bytes, fcntl.ioctl would return those and not the result.
        return int(fcntl.ioctl(self._device, _BACKING_OPEN, bytearray(_BACKING_MAP.pack(data_fd, 0, 0))))

    def unregister(self, backing_id: int) -> None:
        """Let go of a file; handles that are open go on. Raises OSError."""
        fcntl.ioctl(self._device, _BACKING_CLOSE, bytearray(_BACKING_ID.pack(backing_id)))
