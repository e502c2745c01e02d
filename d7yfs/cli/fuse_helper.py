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
@click.option("--log-format", type=click.Choice(OPTIONS["log_format"].kind.choices), default="text")
def fuse_helper(mountpoint: Path, socket: Path, log_format: str) -> None:
    """Mount MOUNTPOINT for each daemon that connects to SOCKET: `d7yfs mount --fuse-helper SOCKET
    URL MOUNTPOINT`.

    Needs only root, /dev/fuse and CAP_SYS_ADMIN: no network, no credentials, no cache. When a
    daemon ends, its mount is removed, and the next daemon gets a new one.
    """
    logs.configure("info", log_format, None)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with contextlib.suppress(KeyboardInterrupt):
        help_with(mountpoint.absolute(), socket)
