"""`d7yfs reload`: have running mounts read their settings again, and show what of them counts now."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from d7yfs.cli import daemons
from d7yfs.cli.as_json import print_list
from d7yfs.cli.failures import end_with
from d7yfs.cli.place import Place
from d7yfs.control import control_socket
from d7yfs.errors import MountError, UsageError

_Outcome = dict[str, Any]


@click.command()
@click.argument("mountpoint", type=Place(), required=False)
@click.option("--pid", type=int, metavar="PID", help="Of the mount whose daemon is this process, such as $MAINPID.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON: a list with one object per mount.")
def reload(mountpoint: Path | None, pid: int | None, as_json: bool) -> None:
    """Have a mount, or all of yours, read their settings again, as SIGHUP does, and look for credentials anew.

    Flags and variables stay as they were when the mount was made; files are read as they are now. Says what counts from now on, and what
    only at the next mount. A mistake in a file changes nothing. Exit status 1 when there is one, when credentials cannot be had, or when a
    mount does not answer.
    """
    if mountpoint is not None and pid is not None:
        raise UsageError("a mount point and --pid are given", hint="name the mount by one of them")
    named = daemons.of_mounts(mountpoint) if pid is None else {control_socket.socket_of(pid): f"process {pid}"}
    answers = daemons.ask(named, lambda path: control_socket.outcome(path, "reload"))
    if as_json:
        print_list(answers.said)
    else:
        for answer in answers.said:
            click.echo("\n".join(f"{answer['mountpoint']}: {line}" for line in said(answer)))
            for warning in answer["warnings"]:
                click.echo(f"d7yfs: warning: {answer['mountpoint']}: {warning}", err=True)
        if not answers.said and not answers.failures:
            click.echo("nothing is mounted")
    end_with([failure for answer in answers.said for failure in failures(answer)] + answers.failures)


def said(outcome: _Outcome) -> list[str]:
    """What a person is told of one mount; of a failure see `failures`."""
    changed = [f"{name} = {value}" for name, value in outcome["changed"].items()]
    changed += [f"credentials of {name or 'the repository'}" for name in outcome["credentials"]]
    lines = [f"changed: {', '.join(changed)}"] if changed else []
    if outcome["later"]:
        lines.append(f"takes effect at the next mount: {', '.join(outcome['later'])}")
    if outcome["error"]:
        return lines or ["nothing has changed"]
    return lines or ["no setting has changed; credentials were looked at"]


def failures(outcome: _Outcome) -> list[MountError]:
    """What did not work at one mount."""
    point, found = outcome["mountpoint"], []
    if outcome["error"]:
        found.append(MountError(f"{point}: the settings stay as they are: {outcome['error']}", hint=outcome["hint"]))
    for name, reason in outcome["refused"].items():
        found.append(MountError(f"{point}: the credentials of {name or 'the repository'}: {reason}"))
    return found
