"""`d7yfs trace`: each request of a running mount as it is answered, live."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from d7yfs.cli.daemons import UntouchedPath, naming
from d7yfs.cli.terminal import say
from d7yfs.config.kinds import parse_duration
from d7yfs.control import control_socket
from d7yfs.errors import UsageError
from d7yfs.stats.words import show_count


@click.command()
@click.argument("mountpoint", type=UntouchedPath())
@click.option("--path", metavar="GLOB", default="", help="Only files of this path in the mount, such as 'llm/*'.")
@click.option("--slow", metavar="TIME", default="0", help="Only what took at least so long, such as 100ms.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")
def trace(mountpoint: Path, path: str, slow: str, as_json: bool) -> None:
    """Show each request of a mount as it is answered: those of its readers, those to its stores and
    proxies, and the decisions to fetch. A number ties together what belongs together.

    It needs no restart and ends with Ctrl-C. Files that the kernel reads by itself (passthrough) make no
    requests. --log-level debug writes the same lines to the log.
    """
    try:
        slow_s = parse_duration(slow)
    except ValueError as error:
        raise UsageError(f"--slow {slow!r} {error}") from None
    point = mountpoint.absolute()
    replies = control_socket.follow(control_socket.socket_path(point), "trace", path=path, slow_ms=slow_s * 1000)
    with contextlib.suppress(KeyboardInterrupt), naming(point), contextlib.closing(replies):
        next(replies)
        say(f"following {point}; Ctrl-C ends", err=True)
        for reply in replies:
            for line in reply["lines"]:
                say(json.dumps(line) if as_json else show(line))
            if reply["left_out"]:
                say(f"d7yfs: warning: {show_count(reply['left_out'], 'line')} left out: they came too fast", err=True)


def show(line: Mapping[str, Any]) -> str:
    """A line for people: when, which request, and what."""
    moment = time.strftime("%H:%M:%S", time.localtime(line["at"])) + f".{int(line['at'] * 1000) % 1000:03d}"
    number = f"#{line['request']}" if line["request"] else "-"
    return f"{moment} {number:>7} {line['message']}"
