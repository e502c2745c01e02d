"""`d7yfs log-level`: what running daemons log, seen and changed without a restart."""

from __future__ import annotations

from pathlib import Path

import click

from d7yfs.cli import daemons
from d7yfs.cli.as_json import print_list
from d7yfs.cli.failures import end_with
from d7yfs.cli.place import Place
from d7yfs.config.schema import OPTIONS
from d7yfs.control import control_socket


@click.command()
@click.argument("level", type=click.Choice(OPTIONS["log_level"].kind.choices), required=False)
@click.argument("mountpoint", type=Place(), required=False)
@click.option("--json", "as_json", is_flag=True, help="Print JSON: a list with one object per mount.")
def log_level(level: str | None, mountpoint: Path | None, as_json: bool) -> None:
    """Have a mount, or all of yours, log from LEVEL on until it ends or is told otherwise; without LEVEL, say which it is."""
    answers = daemons.ask(
        daemons.of_mounts(mountpoint), lambda path: control_socket.ask(path, "log-level", level=level)
    )
    if as_json:
        print_list(answers.said)
    else:
        for answer in answers.said:
            was = f" (was {answer['was']})" if level else ""
            click.echo(f"{answer['mountpoint']}: {answer['level']}{was}; the log is {answer['log']}")
        if not answers.said and not answers.failures:
            click.echo("nothing is mounted")
    end_with(answers.failures)
