"""`d7yfs health`: whether mounts are alive and ready, as an exit status. It asks over the control socket, whatever the metrics' port is.

For health checks of containers, so it asks the daemons that run here and no others: mounts of other containers may be seen too.
"""

from __future__ import annotations

from pathlib import Path

import click

from d7yfs.cli import daemons
from d7yfs.cli.as_json import print_list
from d7yfs.cli.failures import end_with
from d7yfs.cli.place import Place
from d7yfs.control import control_socket
from d7yfs.control.control_socket import Reply
from d7yfs.errors import MountError

_TIMEOUT_S = 17.0
"""More than a daemon waits for its mount (`Monitoring.health`), and less than the image's health check may take."""


@click.command()
@click.argument("mountpoint", type=Place(), required=False)
@click.option(
    "--alive", is_flag=True, help="Only whether the daemon answers its mount, whatever its stores do: as /healthz."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON: a list with one object per mount.")
def health(mountpoint: Path | None, alive: bool, as_json: bool) -> None:
    """Whether a mount, or every mount whose daemon runs here, can be read: as /readyz. Exit status 1 when one cannot, or there is none."""
    paths = [control_socket.socket_path(mountpoint.absolute())] if mountpoint is not None else control_socket.sockets()
    names = {path: str(mountpoint or f"the mount behind {path}") for path in paths}
    answers = daemons.ask(names, lambda path: control_socket.ask(path, "health", timeout_s=_TIMEOUT_S))
    if as_json:
        print_list(answers.said)
    else:
        for answer in answers.said:
            click.echo(f"{answer['mountpoint']}: {in_words(answer)}")
    end_with(answers.failures)
    if not names:
        raise MountError("nothing is mounted")
    if not all(answer["alive" if alive else "ready"] for answer in answers.said):
        raise SystemExit(1)


def in_words(answer: Reply) -> str:
    """How a mount is."""
    if answer["ready"]:
        return "ready"
    if not answer["alive"]:
        return "its daemon does not answer reads"
    root = ["its root cannot be looked at"] if answer["mount_answers"] is False else []
    stores = [f"{name} is {state}" for name, state in answer["repositories"].items() if state != "reachable"]
    return f"alive, and not ready: {', '.join([*root, *stores])}"
