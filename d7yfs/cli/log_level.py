"""`d7yfs log-level`: what running daemons log, seen and changed without a restart."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from d7yfs import control
from d7yfs.cli.place import Place
from d7yfs.config.schema import OPTIONS
from d7yfs.errors import MountError


@click.command()
@click.argument("level", type=click.Choice(OPTIONS["log_level"].kind.choices), required=False)
@click.argument("mountpoint", type=Place(), required=False)
@click.option("--json", "as_json", is_flag=True, help="Print JSON: a list with one object per mount.")
def log_level(level: str | None, mountpoint: Path | None, as_json: bool) -> None:
    """Have a mount, or all of yours, log from LEVEL on until it ends or is told otherwise; without LEVEL, say which it is."""
    sockets = [control.socket_path(mountpoint.absolute())] if mountpoint is not None else control.sockets()
    answers: list[dict[str, Any]] = []
    failures: list[MountError] = []
    for socket in sockets:
        try:
            answers.append(control.ask(socket, "log-level", level=level))
        except MountError as error:
            failures.append(error)
    if as_json:
        click.echo(json.dumps(answers, indent=2))
    for answer in () if as_json else answers:
        was = f" (was {answer['was']})" if level else ""
        click.echo(f"{answer['mountpoint']}: {answer['level']}{was}; the log is {answer['log']}")
    if failures:
        raise failures[0]
    if not answers and not as_json:
        click.echo("nothing is mounted")
