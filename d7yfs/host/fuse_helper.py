"""A mount that somebody else has made: the daemon gets its /dev/fuse descriptor and needs no privilege.

`d7yfs fuse-helper`, which is privileged, mounts and hands the descriptor over a Unix socket (SCM_RIGHTS); it has no secret and no network.
The daemon, which has both, runs as anybody and without capabilities (`--fuse-helper SOCKET`). libfuse takes such a descriptor as the
mount point `/dev/fd/N`, which may also be given to `d7yfs mount` outright, when another program (a CSI driver) has made the mount.

The connection lives as long as the daemon: when it ends, however that came about, the helper takes the mount away and makes a new one for
the next daemon. A connection that has seen INIT cannot be served by another daemon, so the helper keeps no copy of the descriptor.

One word at a time goes to the helper, one comes back: `ready` (it raises the mount's limits), `unmount`, `unmount-lazily`; `ok`, `busy`,
or what went wrong.
"""

from __future__ import annotations

import ctypes
import logging
import os
import re
import socket
from contextlib import suppress
from pathlib import Path

from d7yfs.errors import MountError
from d7yfs.host import mount_table

log = logging.getLogger(__name__)

_TIMEOUT_S = 30.0
_DEV_FD = re.compile(r"/dev/fd/(\d+)")
_MS_RDONLY, _MS_NOSUID, _MS_NODEV = 1, 2, 4  # sys/mount.h


class HandedMount:
    """The daemon's end."""

    def __init__(self, fd: int, helper: socket.socket | None) -> None:
        self.libfuse_mountpoint = f"/dev/fd/{fd}"
        self._helper = helper

    @classmethod
    def from_path(cls, mountpoint: Path) -> HandedMount | None:
        """Where `mountpoint` is `/dev/fd/N`. Raises MountError when N is not open."""
        named = _DEV_FD.fullmatch(str(mountpoint))
        if named is None:
            return None
        if not Path(f"/proc/self/fd/{named[1]}").exists():
            raise MountError(
                f"{mountpoint} is not open here",
                hint="it must be inherited, which needs --foreground; see --fuse-helper",
            )
        return cls(int(named[1]), None)

    @classmethod
    def ask(cls, path: Path) -> HandedMount:
        """The next mount of the helper that listens on `path`. Blocks while it still clears away the last one. Raises MountError."""
        helper = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            helper.settimeout(_TIMEOUT_S)
            helper.connect(str(path))
            _, fds, _, _ = socket.recv_fds(helper, 64, 1)
            return cls(fds[0], helper)
        except (OSError, IndexError) as error:
            helper.close()
            raise MountError(
                f"no mount from the helper behind {path}: {error}", hint="see the log of d7yfs fuse-helper"
            ) from error

    @property
    def is_visible(self) -> bool:
        """Whether the mount is at the mount point here; what came as a bare descriptor is wherever its maker put it."""
        return self._helper is not None

    def ready(self) -> None:
        """The mount answers."""
        self._tell("ready")

    def unmount(self, *, lazy: bool = False) -> None:
        """Have it taken away. Raises mounts.Busy, MountError."""
        said = self._tell("unmount-lazily" if lazy else "unmount")
        if said == "busy":
            raise mount_table.Busy("the mount is in use")
        if said != "ok":
            raise MountError(f"the helper could not unmount: {said}")

    def _tell(self, word: str) -> str:
        if self._helper is None:
            return "ok"  # nobody to tell: the mount ends with the descriptor
        try:
            self._helper.send(word.encode())
            return self._helper.recv(1024).decode() or "it has ended"
        except OSError as error:
            return str(error)


def help_with(point: Path, path: Path) -> None:
    """Mount at `point` for each daemon that connects to `path`, one after the other, until interrupted. Raises MountError.

    For root. The socket is open to every user: who can reach it may serve the mount.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        path.unlink(missing_ok=True)
        try:
            listener.bind(str(path))
            path.chmod(0o666)
        except OSError as error:
            raise MountError(f"{path} cannot be listened on: {error.strerror}") from error
        listener.listen(1)
        try:
            while True:
                connection, _ = listener.accept()
                with connection:
                    _help(point, connection)
        finally:
            path.unlink(missing_ok=True)
            _take_away(point)


def _help(point: Path, connection: socket.socket) -> None:
    """One daemon, from its mount to its end."""
    mount_table.prepare_mountpoint(point)
    fd = _mount(point)
    try:
        with suppress(OSError):
            socket.send_fds(connection, [b"fuse"], [fd])
    finally:
        os.close(fd)
    log.info("%s is mounted and handed over", point)
    with suppress(OSError):
        while word := connection.recv(64).decode():
            connection.send(_answer(word, point).encode())
    _take_away(point)
    log.info("the daemon behind %s has ended", point)


def _answer(word: str, point: Path) -> str:
    try:
        if word == "ready":
            for trouble in mount_table.tune(point):
                log.warning("%s", trouble)
        elif word in ("unmount", "unmount-lazily"):
            mount_table.unmount(point, lazy=word == "unmount-lazily")
        else:
            return f"{word!r} is not known"
    except mount_table.Busy:
        return "busy"
    except MountError as error:
        return error.message
    return "ok"


def _take_away(point: Path) -> None:
    with suppress(MountError):
        if mount_table.mounted_at(point) is not None:
            mount_table.unmount(point, lazy=True)


def _mount(point: Path) -> int:
    """Mount a new FUSE file system at `point`, as fusermount3 does; its descriptor (Documentation/filesystems/fuse/fuse.rst)."""
    try:
        fd = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        raise MountError(f"/dev/fuse cannot be opened: {error.strerror}", hint="see d7yfs check") from error
    libc = ctypes.CDLL(None, use_errno=True)
    options = f"fd={fd},rootmode=40000,user_id=0,group_id=0,default_permissions,allow_other"
    flags = _MS_RDONLY | _MS_NOSUID | _MS_NODEV
    if libc.mount(b"d7yfs", os.fsencode(point), b"fuse.d7yfs", ctypes.c_ulong(flags), options.encode()):
        os.close(fd)
        raise MountError(
            f"{point} could not be mounted: {os.strerror(ctypes.get_errno())}", hint="this needs CAP_SYS_ADMIN"
        )
    return fd
