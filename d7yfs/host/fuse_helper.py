"""A mount that another process has made: the daemon gets its /dev/fuse descriptor and needs no
privilege.

The privileged `d7yfs fuse-helper` mounts, and passes the descriptor over a Unix socket
(SCM_RIGHTS); it has no secret and no network. The daemon, which has both, runs as any user and
without capabilities (`--fuse-helper SOCKET`). libfuse takes such a descriptor as the mount point
`/dev/fd/N`. A user may also give that to `d7yfs mount`, if another program (a CSI driver) has made
the mount.

The connection lives as long as the daemon. When it ends, for any reason, the helper unmounts, and
makes a new mount for the next daemon. A FUSE connection that has seen INIT cannot be served by
another daemon, so the helper keeps no copy of the descriptor.

The daemon sends one word at a time: `ready` (the helper raises the mount's limits), `unmount`,
`unmount-lazily`. The helper answers each with `ok`, `busy`, or the failure in words.
"""

from __future__ import annotations

import logging
import os
import re
import socket
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

from d7yfs.errors import MountError
from d7yfs.host import fuse_device, mount_table
from d7yfs.host.fuse_device import MountFlags
from d7yfs.host.ownership import ANYTHING, find_fault
from d7yfs.host.socket_trust import peer_of

log = logging.getLogger(__name__)

_TIMEOUT_S = 30.0
_DEV_FD = re.compile(r"/dev/fd/(\d+)")


class HandedMount:
    """The daemon's end of a mount that was handed over."""

    def __init__(self, fd: int, helper: socket.socket | None) -> None:
        self.fd = fd
        self._helper = helper

    @classmethod
    def from_path(cls, mountpoint: Path) -> HandedMount | None:
        """The mount, if `mountpoint` is `/dev/fd/N`. Raises MountError if N is not open."""
        named = _DEV_FD.fullmatch(str(mountpoint))
        if named is None:
            return None
        if not Path(f"/proc/self/fd/{named[1]}").exists():
            raise MountError(
                f"{mountpoint} is not open here",
                hint="this process must inherit it, which needs --foreground; see --fuse-helper",
            )
        return cls(int(named[1]), None)

    @classmethod
    def is_expected(cls, helper: Path | None, mountpoint: Path) -> bool:
        """True if another program makes the mount: the `helper`, or the one that left `/dev/fd/N` open.
        Raises MountError."""
        return helper is not None or cls.from_path(mountpoint) is not None

    @classmethod
    def ask(cls, path: Path) -> HandedMount:
        """The helper's next mount. Blocks while it removes the last one. Raises MountError."""
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
        """True if the mount is at the mount point here; a bare descriptor's may be anywhere."""
        return self._helper is not None

    def tell_ready(self) -> None:
        """Tell the helper that the mount answers."""
        self._tell("ready")

    def unmount(self, *, lazy: bool = False) -> None:
        """Have the helper unmount. Raises mount_table.Busy, MountError."""
        said = self._tell("unmount-lazily" if lazy else "unmount")
        if said == "busy":
            raise mount_table.Busy("the mount is in use")
        if said != "ok":
            raise MountError(f"the helper could not unmount: {said}")

    def _tell(self, word: str) -> str:
        if self._helper is None:
            return "ok"  # no helper: the mount ends with the descriptor
        try:
            self._helper.send(word.encode())
            return self._helper.recv(1024).decode() or "it has ended"
        except OSError as error:
            return str(error)


def help_with(point: Path, path: Path, *, uid: int, allow_other: bool = False, noexec: bool = False) -> None:
    """Mount at `point` for each daemon of user `uid` that connects to `path`, one after the other,
    until interrupted. Raises MountError.

    Only `uid`, with the group of the daemon, can read the mount, unless `allow_other`; `noexec`: no
    file of it can be executed.

    For root. The process that serves the mount answers all its readers, so no other user can reach
    the socket. Its directory and the socket itself belong to `uid` alone, and the kernel is asked who
    connects.
    """
    flags = MountFlags("d7yfs", uid, allow_other=allow_other, noexec=noexec)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        _prepare_directory(path.parent, uid)
        path.unlink(missing_ok=True)
        try:
            listener.bind(str(path))  # nobody else can enter the directory until the mode is set
            os.chown(path, uid, -1)
            path.chmod(0o600)
        except OSError as error:
            raise MountError(f"cannot listen on {path}: {error.strerror}") from error
        listener.listen(1)
        try:
            while True:
                connection, _ = listener.accept()
                with connection:
                    if _is_allowed(connection, uid):
                        theirs = flags._replace(gid=peer_of(connection)[2])
                        _help(point, connection, partial(fuse_device.mount, point, theirs))
        finally:
            path.unlink(missing_ok=True)
            _remove_mount(point)


def _prepare_directory(path: Path, uid: int) -> None:
    """Make the socket's directory, for `uid` alone; one that exists must be so. Raises MountError."""
    try:
        try:
            path.mkdir(mode=0o700)
            os.chown(path, uid, -1)
        except FileExistsError:
            if fault := find_fault(path.lstat(), (0, uid), denied=ANYTHING):
                raise MountError(
                    f"{path} {fault}; it must be uid {uid}'s alone (mode 0700)",
                    hint="name a socket in a directory that d7yfs can make, such as /run/d7yfs-helper/own/socket",
                ) from None
            os.chown(path, uid, -1)
    except OSError as error:
        raise MountError(f"{path} cannot be made: {error.strerror}") from error


def _is_allowed(connection: socket.socket, uid: int) -> bool:
    """True if the process at the other end runs as `uid`, or as root."""
    pid, peer, _ = peer_of(connection)
    if peer not in (0, uid):
        log.warning("process %d of uid %d asked for the mount and did not get it; it is uid %d's", pid, peer, uid)
        return False
    return True


def _help(point: Path, connection: socket.socket, mount: Callable[[], int]) -> None:
    """Serve one daemon, from its mount to its end."""
    mount_table.prepare_mountpoint(point)
    fd = mount()
    try:
        with suppress(OSError):
            socket.send_fds(connection, [b"fuse"], [fd])
    finally:
        os.close(fd)
    log.info("%s is mounted and handed over", point)
    with suppress(OSError):
        while word := connection.recv(64).decode():
            connection.send(_answer(word, point).encode())
    _remove_mount(point)
    log.info("the daemon behind %s has ended", point)


def _answer(word: str, point: Path) -> str:
    try:
        if word == "ready":
            for trouble in mount_table.tune(point):
                log.warning("%s", trouble)
        elif word in ("unmount", "unmount-lazily"):
            mount_table.unmount(point, lazy=word == "unmount-lazily")
        else:
            return f"{word!r} is unknown"
    except mount_table.Busy:
        return "busy"
    except MountError as error:
        return error.message
    return "ok"


def _remove_mount(point: Path) -> None:
    with suppress(MountError):
        if mount_table.mounted_at(point) is not None:
            mount_table.unmount(point, lazy=True)
