"""The daemons behind a user's mounts, asked all at once: one that hangs costs its own answer, and not those of the others.

Called by the commands that are about all mounts when none is named, and `naming` by the others too.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Thread

from d7yfs.control import control_socket
from d7yfs.control.control_socket import NoAnswer, Reply
from d7yfs.errors import MountError
from d7yfs.host import mount_table


@dataclass(frozen=True, slots=True)
class Answers:
    """What came of asking."""

    said: list[Reply]
    """In the order of their mount points."""
    failures: list[MountError]
    """Of those who did not answer, or refused; each names its mount."""


class Silent(MountError):
    """The daemon of a mount does not answer; the message names the mount."""


@contextmanager
def naming(mount: object) -> Iterator[None]:
    """Raises Silent for the NoAnswer of a socket, which names no mount."""
    try:
        yield
    except NoAnswer as error:
        raise Silent(
            f"no daemon answers for {mount}: {error.reason}",
            hint="if it is dead, d7yfs umount cleans up; if it hangs, d7yfs umount --force frees who waits there",
        ) from error


def of_mounts(mountpoint: Path | None) -> dict[Path, str]:
    """The control socket of one mount, or of all mounts of this user, and how to call each. Looks at no mount.

    Of a mount whose daemon is dead the socket may be gone; asking it fails like asking one that hangs. Where a runtime directory is named,
    mounts without a socket there are somebody else's.
    """
    if mountpoint is not None:
        point = mountpoint.absolute()
        return {control_socket.socket_path(point): str(point)}
    own = [
        each for each in mount_table.mount_table() if each.fstype == mount_table.FSTYPE and each.owner == os.geteuid()
    ]
    named = {control_socket.socket_path(each.point): str(each.point) for each in own}
    if control_socket.RUNTIME_VARIABLE in os.environ:
        named = {path: name for path, name in named.items() if path.exists()}
    return {path: f"the mount behind {path}" for path in control_socket.sockets()} | named


def ask(daemons: Mapping[Path, str], question: Callable[[Path], Reply]) -> Answers:
    """What `question` of each socket returns; it may raise MountError."""
    said: dict[str, Reply] = {}
    failures: dict[str, MountError] = {}

    def one(path: Path, name: str) -> None:
        try:
            with naming(name):
                said[name] = question(path)
        except Silent as error:
            failures[name] = error
        except MountError as error:
            failures[name] = MountError(f"{name}: {error.message}", hint=error.hint)

    # They end with the process at the latest, so that Ctrl-C waits for none of them.
    threads = [Thread(target=one, args=daemon, daemon=True) for daemon in daemons.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return Answers([said[name] for name in sorted(said)], [failures[name] for name in sorted(failures)])
