"""`d7yfs stat`: what the daemon knows of a file beyond stat(2)."""

from __future__ import annotations

import json
from pathlib import Path

import click

from d7yfs import control, mounts
from d7yfs.errors import MountError


@click.command()
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def stat(path: Path, as_json: bool) -> None:
    """ETag, version, URL and cached bytes of a file or directory in a mount."""
    absolute = path.absolute()
    points = [mount.point for mount in mounts.mount_table() if mount.fstype == mounts.FSTYPE]
    point = max(
        (each for each in points if absolute.is_relative_to(each)), key=lambda each: len(each.parts), default=None
    )
    if point is None:
        raise MountError(f"{path} is not in a d7yfs mount", hint="d7yfs status lists the mounts")
    answer = control.ask(control.socket_path(point), "stat", path=str(absolute.relative_to(point)))
    if as_json:
        click.echo(json.dumps(answer, indent=2))
    else:
        for name, value in answer.items():
            click.echo(f"{name + ':':<14}{value}")
