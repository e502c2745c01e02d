"""`d7yfs fuse-helper`: the privileged half of a mount whose daemon has no privilege."""

from __future__ import annotations

import contextlib
import signal
from pathlib import Path

import click

from d7yfs import logs
from d7yfs.cli.place import Place
from d7yfs.config.schema import OPTIONS
from d7yfs.host.fuse_helper import help_with


@click.command()
@click.argument("mountpoint", type=Place())
@click.argument("socket", type=Place())
@click.option("--log-format", type=click.Choice(OPTIONS["log_format"].kind.choices), default="text")
def fuse_helper(mountpoint: Path, socket: Path, log_format: str) -> None:
    """Mount MOUNTPOINT for whoever connects to SOCKET, and serve it: `d7yfs mount --fuse-helper SOCKET URL MOUNTPOINT`.

    Needs root, /dev/fuse and CAP_SYS_ADMIN, and nothing else: no network, no credentials, no cache. When that daemon ends, its mount is
    taken away and the next daemon gets a new one.
    """
    logs.configure("info", log_format, None)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with contextlib.suppress(KeyboardInterrupt):
        help_with(mountpoint.absolute(), socket)
