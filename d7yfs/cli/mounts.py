"""The commands about running mounts, one or all: `d7yfs health`, `log-level` and `reload`."""

from __future__ import annotations

from pathlib import Path

import click

from d7yfs.cli import daemons, end_with
from d7yfs.cli.as_json import print_list
from d7yfs.cli.daemons import UntouchedPath
from d7yfs.cli.terminal import say
from d7yfs.config.schema import OPTIONS
from d7yfs.control import control_socket
from d7yfs.errors import MountError, UsageError
from d7yfs.objects import printable
from d7yfs.stats.repository_status import REACHABLE
from d7yfs.stats.status import HealthStatus, ReloadStatus, parse

_HEALTH_TIMEOUT_S = 17.0
"""Longer than a daemon waits for its mount (`Reporter.check_health`), shorter than the image's health
check."""

_json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON: a list with one object per mount.")
_mountpoint = click.argument("mountpoint", type=UntouchedPath(), required=False)


@click.command()
@_mountpoint
@click.option(
    "--alive", is_flag=True, help="Only whether the daemon answers its mount, even if its stores fail: as /healthz."
)
@_json_option
def health(mountpoint: Path | None, alive: bool, as_json: bool) -> None:
    """Tell whether a mount, or every mount whose daemon runs here, can be read: as /readyz. Names its
    problems.

    Exit status 1 if one cannot, or if there is none. A mount with problems may be ready: it serves as
    much as another host could.
    """
    # It is for health checks of containers, so it asks only daemons that run here: mounts of other
    # containers may be seen too.
    paths = [control_socket.socket_path(mountpoint.absolute())] if mountpoint else control_socket.find_sockets()
    if not paths:
        if as_json:
            print_list([])
        raise MountError("nothing is mounted")
    answers, failures = daemons.ask(
        {path: str(mountpoint or f"the mount behind {path}") for path in paths},
        lambda path: control_socket.ask(path, "health", timeout_s=_HEALTH_TIMEOUT_S),
        _show_health,
        as_json=as_json,
    )
    end_with(failures)
    if not all(each.alive if alive else each.ready for each in (parse(HealthStatus, answer) for answer in answers)):
        raise SystemExit(1)


def _show_health(answer: control_socket.Reply) -> None:
    health = parse(HealthStatus, answer)
    say(f"{answer['mountpoint']}: {describe_health(health)}")
    for problem in health.problems:
        say(f"  {printable(problem.line)}")


def describe_health(health: HealthStatus) -> str:
    """The health of a mount, in words."""
    if health.ready:
        return "ready"
    if not health.alive:
        return "its daemon does not answer reads"
    root = ["its root cannot be read"] if health.mount_answers is False else []
    stores = [f"{name} is {state}" for name, state in health.repositories.items() if state != REACHABLE]
    blocked = [f"{each.repository} cannot be read" for each in health.problems if each.blocks_reads]
    return f"alive, and not ready: {', '.join([*root, *stores, *blocked])}"


@click.command()
@click.argument("level", type=click.Choice(OPTIONS["log_level"].kind.choices), required=False)
@_mountpoint
@_json_option
def log_level(level: str | None, mountpoint: Path | None, as_json: bool) -> None:
    """Set the log level of a mount, or of all of yours, until it ends; without LEVEL, print it."""

    def show(answer: control_socket.Reply) -> None:
        was = f" (was {answer['was']})" if level else ""
        say(f"{answer['mountpoint']}: {answer['level']}{was}; the log is {answer['log']}")

    _, failures = daemons.ask(
        daemons.find(mountpoint), lambda path: control_socket.ask(path, "log-level", level=level), show, as_json=as_json
    )
    end_with(failures)


@click.command()
@_mountpoint
@click.option("--pid", type=int, metavar="PID", help="Of the mount whose daemon is this process, such as $MAINPID.")
@_json_option
def reload(mountpoint: Path | None, pid: int | None, as_json: bool) -> None:
    """Make a mount, or all of yours, read its settings again, as SIGHUP does, and look for
    credentials anew.

    Flags and variables stay as they were when the mount was made; files are read as they are now.
    Prints what takes effect now, and what only at the next mount. A mistake in a file changes
    nothing. Exit status 1 if there is one, if credentials cannot be had, or if a mount does not
    answer.
    """
    if mountpoint is not None and pid is not None:
        raise UsageError("a mount point and --pid are given", hint="name the mount by one of them")
    named = daemons.find(mountpoint) if pid is None else {control_socket.find_socket(pid): f"process {pid}"}
    answers, failures = daemons.ask(
        named, lambda path: control_socket.run_to_end(path, "reload"), _show_reload, as_json=as_json
    )
    end_with([failure for answer in answers for failure in find_failures(answer)] + failures)


def _show_reload(answer: control_socket.Reply) -> None:
    point, outcome = answer["mountpoint"], parse(ReloadStatus, answer)
    for line in describe_reload(outcome):
        say(f"{point}: {line}")
    for warning in outcome.warnings:
        say(f"d7yfs: warning: {point}: {warning}", err=True)


def describe_reload(outcome: ReloadStatus) -> list[str]:
    """The lines for a person about one mount; `find_failures` are told apart."""
    changed = [f"{name} = {value}" for name, value in outcome.changed.items()]
    changed += [f"credentials of {name or 'the repository'}" for name in outcome.credentials]
    lines = [f"changed: {', '.join(changed)}"] if changed else []
    if outcome.later:
        lines.append(f"takes effect at the next mount: {', '.join(outcome.later)}")
    if outcome.error:
        return lines or ["nothing has changed"]
    return lines or ["no setting has changed; credentials were read again"]


def find_failures(answer: control_socket.Reply) -> list[MountError]:
    """The failures at one mount."""
    point, outcome = answer["mountpoint"], parse(ReloadStatus, answer)
    found = [
        MountError(f"{point}: the credentials of {name or 'the repository'}: {reason}")
        for name, reason in outcome.refused.items()
    ]
    if outcome.error:
        found.insert(0, MountError(f"{point}: the settings stay as they are: {outcome.error}", hint=outcome.hint))
    return found
