"""`d7yfs refresh`: have the daemon behind a mount look again now, and show what it found."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from d7yfs.cli import daemons
from d7yfs.cli.as_json import print_line
from d7yfs.cli.failures import end_with
from d7yfs.cli.place import Place
from d7yfs.cli.warm import paths_by_mount
from d7yfs.control import control_socket
from d7yfs.errors import D7yfsError

_SHOWN = 20
"""Changed paths of a kind; `--json` has more."""


@click.command()
@click.argument("paths", nargs=-1, required=True, type=Place(), metavar="PATH...")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per mount, each on a line.")
def refresh(paths: tuple[Path, ...], as_json: bool) -> None:
    """See now what has changed in the store, and forget what is not so any more.

    Of a directory, all that is known of it and below it is asked for again, however fresh; of a file, the directory that it is in; of a
    path that is not there, the nearest directory that is. When the command returns, whoever opens or lists something there sees what
    the store had when it was asked. What is open stays as it is. Exit status 1 when a store could not be asked; other mounts are refreshed
    all the same.
    """
    failures: list[D7yfsError] = []
    for point, below in paths_by_mount(paths).items():
        try:
            with daemons.naming(point):
                outcome = control_socket.outcome(control_socket.socket_path(point), "refresh", paths=below)
        except D7yfsError as error:
            failures.append(error)
            continue
        if as_json:
            print_line({"mountpoint": str(point), "state": "done", **outcome})
        else:
            click.echo(said(point, outcome))
    end_with(failures)


def said(point: Path, outcome: dict[str, Any]) -> str:
    """What a person is told: one line, and one for each of some changed paths."""
    counted = ", ".join(f"{outcome[kind]} {kind}" for kind in outcome["names"])
    lines = [f"{point}: {outcome['directories']} directories looked at: {counted}"]
    for kind, names in outcome["names"].items():
        lines += [f"  {kind:<9} {name}" for name in names[:_SHOWN]]
        if (more := outcome[kind] - len(names[:_SHOWN])) > 0:
            lines.append(f"  {kind:<9} {more} more")
    return "\n".join(lines)
