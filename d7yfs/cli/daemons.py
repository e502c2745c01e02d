"""The daemons behind a user's mounts, asked all at once: one that hangs costs its own answer, and
not those of the others.

Called by the commands that are about all mounts when none is named; the others call `naming` alone.
A path on the command line may lie in a mount that hangs, so none is ever stat'ed.
"""

from __future__ import annotations

import os
import pwd
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Thread

import click

from d7yfs.cli.as_json import print_list
from d7yfs.cli.terminal import say
from d7yfs.control import control_socket
from d7yfs.control.control_socket import NoAnswer, Reply
from d7yfs.errors import MountError
from d7yfs.host import mount_table
from d7yfs.host.mount_table import Mount


class UntouchedPath(click.Path):
    """A path that is never stat'ed, unlike one of click's own type; shells complete it."""

    def convert(
        self,
        value: str | os.PathLike[str],
        param: click.Parameter | None,  # noqa: ARG002
        ctx: click.Context | None,  # noqa: ARG002
    ) -> Path:
        return Path(value)


class Silent(MountError):
    """The failure of a daemon that does not answer; the message names its mount."""


@contextmanager
def naming(mount: object) -> Iterator[None]:
    """Raise Silent in place of a socket's NoAnswer, which names no mount."""
    try:
        yield
    except NoAnswer as error:
        raise Silent(
            f"no daemon answers for {mount}: {error.reason}",
            hint="if it is dead, d7yfs umount cleans up; if it hangs, d7yfs umount --force frees its readers",
        ) from error


def find(mountpoint: Path | None) -> dict[Path, str]:
    """The control socket of one mount, or of all mounts of this user, and how to call each. Looks
    at no mount.

    The socket of a dead daemon may be gone; asking it fails like asking one that hangs. If a
    runtime directory is named, mounts without a socket there belong to others. Raises MountError for a mount
    of another user.
    """
    if mountpoint is not None:
        point = mountpoint.absolute()
        mount = mount_table.mounted_at(point)
        if mount is not None and _is_of_another(mount):
            raise MountError(_describe_of_another(mount), hint="its daemon answers that user alone")
        return {control_socket.socket_path(point): str(point)}
    named = {control_socket.socket_path(point): str(point) for point in own_mounts()}
    return {path: f"the mount behind {path}" for path in control_socket.find_sockets()} | named


def own_mounts() -> list[Path]:
    """The mount points of this user, oldest first, also those of dead daemons. Looks at no mount."""
    return [each.point for each in mounts_here() if each.owner == os.geteuid()]


def mounts_here() -> list[Mount]:
    """The mounts of d7yfs of all users, oldest first. If a runtime directory is named, those without a socket
    there belong to others, and are left out."""
    found = [each for each in mount_table.mount_table() if each.fstype == mount_table.FSTYPE]
    if control_socket.RUNTIME_VARIABLE in os.environ:
        found = [each for each in found if control_socket.socket_path(each.point).exists()]
    return found


def describe_others() -> list[str]:
    """The mounts of other users, as root may hear of them: a line for each. Asks no daemon: each answers its
    own user."""
    return [_describe_of_another(each) for each in mounts_of_others()]


def mounts_of_others() -> list[Mount]:
    """The mounts of d7yfs of other users, oldest first."""
    return [each for each in mount_table.mount_table() if _is_of_another(each)]


def _is_of_another(mount: Mount) -> bool:
    return mount.fstype == mount_table.FSTYPE and mount.owner not in (None, os.geteuid())


def _describe_of_another(mount: Mount) -> str:
    owner = f"uid {mount.owner}"
    with suppress(KeyError):
        owner = f"user {pwd.getpwuid(mount.owner or 0).pw_name} ({owner})"
    is_live = control_socket.is_listened_to(mount.point)
    state = "it is served; ask as that user" if is_live else "no process on this host listens for it"
    return f"{mount.point}: mounted by {owner}: {state}"


def tell_all(command: str) -> None:
    """Have all daemons of this user's that run here do `command`, at once. Those that fail or do not
    answer say so when they are asked for their status."""

    def tell(path: Path) -> None:
        with suppress(MountError):
            control_socket.run_to_end(path, command)

    paths: list[Path] = []
    with suppress(MountError):  # the runtime directory is another user's, and so are the daemons
        paths = control_socket.find_sockets()
    with ThreadPoolExecutor(max(1, len(paths))) as pool:
        list(pool.map(tell, paths))


def ask(
    daemons: Mapping[Path, str], question: Callable[[Path], Reply], show: Callable[[Reply], None], *, as_json: bool
) -> tuple[list[Reply], list[MountError]]:
    """Ask `question` of each socket, and print the answers: as JSON, or each by `show`.

    Returns them in the order of their mount points, and one failure for each daemon that did not
    answer, or refused, or whose answer cannot be shown; each names its mount.
    """
    said: dict[str, Reply] = {}
    failures: dict[str, MountError] = {}

    @contextmanager
    def collected(name: str) -> Iterator[None]:
        try:
            with naming(name):
                yield
        except Silent as error:
            failures[name] = error
        except MountError as error:
            failures[name] = MountError(f"{name}: {error.message}", hint=error.hint)

    def one(path: Path, name: str) -> None:
        with collected(name):
            said[name] = question(path)

    # Daemon threads, so that Ctrl-C waits for none of them.
    threads = [Thread(target=one, args=daemon, daemon=True) for daemon in daemons.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    answers = [said[name] for name in sorted(said)]
    if as_json:
        print_list(answers)
    else:
        for name in sorted(said):
            with collected(name):
                show(said[name])
        if not daemons:
            say("nothing is mounted")
    return answers, [failures[name] for name in sorted(failures)]
