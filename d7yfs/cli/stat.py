"""`d7yfs stat`: what the daemon knows of a file beyond stat(2)."""

from __future__ import annotations

from pathlib import Path

import click

from d7yfs.cli import daemons
from d7yfs.cli.as_json import print_object
from d7yfs.cli.place import Place
from d7yfs.control import control_socket
from d7yfs.host import mount_table


@click.command()
@click.argument("path", type=Place())
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def stat(path: Path, as_json: bool) -> None:
    """URL, ETag, version, cached bytes, route and Dragonfly's task of a file or directory in a mount."""
    point, below = mount_table.containing(path)
    with daemons.naming(point):
        answer = control_socket.ask(control_socket.socket_path(point), "stat", path=below)
    if as_json:
        print_object(answer)
    else:
        for name, value in answer.items():
            if name != "schema":
                click.echo(f"{name + ':':<14}{value}")
