"""`d7yfs fuse-helper`: the privileged half of a mount whose daemon has no privilege."""

from __future__ import annotations

import contextlib
import signal
from pathlib import Path

import click

from d7yfs import logs
from d7yfs.cli.daemons import UntouchedPath
from d7yfs.config.schema import OPTIONS
from d7yfs.host.fuse_helper import help_with


@click.command()
@click.argument("mountpoint", type=UntouchedPath())
@click.argument("socket", type=UntouchedPath())
@click.option("--uid", type=click.IntRange(min=0), required=True, help="The user whose daemons get the mount.")
@click.option("--allow-other", is_flag=True, help="Let all users read the mount, not only --uid.")
@click.option("--noexec", is_flag=True, help="Let nobody execute a file of the mount.")
@click.option("--log-format", type=click.Choice(OPTIONS["log_format"].kind.choices), default="text")
def fuse_helper(mountpoint: Path, socket: Path, uid: int, allow_other: bool, noexec: bool, log_format: str) -> None:
    """Mount MOUNTPOINT for each daemon that connects to SOCKET: `d7yfs mount --fuse-helper SOCKET
    URL MOUNTPOINT`.

    The directory of SOCKET is made for the user --uid alone; the daemon must run as that user.

    Needs only root, /dev/fuse and CAP_SYS_ADMIN: no network, no credentials, no cache. When a
    daemon ends, its mount is removed, and the next daemon gets a new one.
    """
    logs.configure("info", log_format, None)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with contextlib.suppress(KeyboardInterrupt):
        help_with(mountpoint.absolute(), socket.absolute(), uid=uid, allow_other=allow_other, noexec=noexec)
