"""The commands about paths in mounts: `d7yfs warm` fetches whole files into the cache, with
progress, `refresh` lists again now, and `stat` shows the daemon's knowledge of a file."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from d7yfs.cli import daemons, end_with
from d7yfs.cli.as_json import print_line, print_object
from d7yfs.cli.daemons import UntouchedPath
from d7yfs.cli.preheat import preheat
from d7yfs.cli.status import describe_warm_up
from d7yfs.cli.terminal import cell, say
from d7yfs.control import control_socket
from d7yfs.errors import D7yfsError, MountError, UsageError
from d7yfs.host import mount_table
from d7yfs.objects import printable
from d7yfs.stats.preheat import SCOPES
from d7yfs.stats.status import RefreshStatus, WarmUpStatus, parse
from d7yfs.stats.words import show_count, show_size_roughly

_SHOWN = 20
"""Most changed paths of a kind that `refresh` shows; `--json` has more."""

_paths = click.argument("paths", nargs=-1, required=True, type=UntouchedPath(), metavar="PATH...")


@click.command()
@_paths
@click.option("--background", is_flag=True, help="Return when the files are counted; the daemon goes on by itself.")
@click.option(
    "--cluster", is_flag=True, help="Have Dragonfly's manager bring the files to its daemons, not to this cache."
)
@click.option(
    "--scope",
    type=click.Choice(SCOPES),
    help="The daemons that fetch each file, with --cluster: one seed (the default), all seeds, or all that are no seeds.",
)
@click.option("--json", "as_json", is_flag=True, help="Print reports as they come, one JSON object per line.")
def warm(paths: tuple[Path, ...], background: bool, cluster: bool, scope: str | None, as_json: bool) -> None:
    """Fetch whole files, and all files below directories, into the cache of the mount that they are
    in.

    Cached bytes are not fetched again: a warm-up that was stopped (Ctrl-C) goes on where it was.
    With --cluster the files come to Dragonfly's daemons, under the names by which all mounts ask for
    them (--dragonfly-manager). The manager goes on after Ctrl-C.

    Exit status 1 if a file could not be brought, or not all of them fit into the cache; other
    mounts are warmed all the same.
    """
    if scope and not cluster:
        raise UsageError("--scope says which daemons of a cluster fetch", hint="add --cluster")
    if cluster and background:
        raise UsageError(
            "--cluster goes without --background", hint="after Ctrl-C the manager ends the jobs that it has by itself"
        )
    if cluster:
        _on_each_mount(paths, lambda point, below: preheat(point, below, scope=scope or SCOPES[0], as_json=as_json))
    else:
        _on_each_mount(paths, lambda point, below: _warm(point, below, background=background, as_json=as_json))


def _on_each_mount(paths: tuple[Path, ...], work: Callable[[Path, list[str]], bool]) -> None:
    """Do `work` at each mount point with the paths below it, after a failure too. Raises MountError
    for a path in no mount, SystemExit for a failure and if one `work` says False."""
    found: dict[Path, list[str]] = {}
    for path in paths:
        point, below = mount_table.containing(path)
        found.setdefault(point, []).append(below)
    is_whole = True
    failures: list[D7yfsError] = []
    for point, belows in found.items():
        try:
            with daemons.naming(point):
                is_whole = work(point, belows) and is_whole
        except D7yfsError as error:
            failures.append(error)
    end_with(failures)
    if not is_whole:
        raise SystemExit(1)


def _warm(point: Path, paths: list[str], *, background: bool, as_json: bool) -> bool:
    """Warm one mount; True if all files were brought."""
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    columns = (BarColumn(bar_width=30), TextColumn("{task.description}"))
    report: WarmUpStatus
    told = False
    with (
        closing(
            control_socket.follow(control_socket.socket_path(point), "warm", paths=paths, background=background)
        ) as answers,
        Progress(*columns, console=console, transient=True, disable=as_json or not console.is_terminal) as bar,
    ):
        task = bar.add_task("counting files", total=None)
        for answer in answers:
            report = parse(WarmUpStatus, answer)
            if as_json:
                print_line({"mountpoint": str(point), **answer})
            elif report.state != "planning":
                if not told and not report.fits:
                    console.print(cell(f"d7yfs: warning: {warn_of_size(report)}"), style="yellow")
                told = True
                bar.update(
                    task,
                    description=describe_warm_up(report),
                    completed=report.fetched_bytes,
                    total=max(report.missing_bytes, 1),
                )
    if not as_json:
        say(summarize_warm_up(report))
    for path, reason in report.failures.items():
        say(f"d7yfs: error: {point / printable(path)}: {reason}", err=True)
    if (unnamed := report.files_failed - len(report.failures)) > 0:
        say(f"d7yfs: error: {show_count(unnamed, 'more file')} failed; the log names them", err=True)
    if report.state in ("planning", "running") and not background:
        raise MountError(f"the daemon behind {point} ended before the warm-up did", hint="d7yfs status, and its log")
    return not report.files_failed and not report.files_left_out


def warn_of_size(report: WarmUpStatus) -> str:
    """The warning before a warm-up that does not fit."""
    return (
        f"{show_size_roughly(report.size_bytes)} in {show_count(report.files, 'file')} is more than the cache keeps at once "
        f"({show_size_roughly(report.room_bytes)}): what comes first is brought, the rest is left out; raise --cache-size "
        "or name fewer paths"
    )


def summarize_warm_up(report: WarmUpStatus) -> str:
    """The last line about a warm-up."""
    size, cached = show_size_roughly(report.size_bytes), report.size_bytes - report.missing_bytes
    known = f"{show_count(report.files, 'file')}, {size}, of which {show_size_roughly(cached)} was cached"
    if report.state == "running":
        return f"warming in the background: {known}; d7yfs status shows how far it is"
    fetched = f"{show_size_roughly(report.fetched_bytes)} fetched in {timedelta(seconds=round(report.elapsed_s))}"
    if report.files_done == report.files:
        return f"warm: {known}; {fetched}"
    return f"{report.files_done} of {known}; {fetched}; {report.files_failed} failed, {report.files_left_out} left out"


@click.command()
@_paths
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per mount, each on a line.")
def refresh(paths: tuple[Path, ...], as_json: bool) -> None:
    """See now what has changed in the store.

    A directory is listed again with all that is known below it, even if it is fresh. A file stands
    for its directory, and a path that does not exist for the nearest directory that does. When the
    command returns, readers see what the store had when it was asked. Open files stay as they are.
    Exit status 1 if a store could not be asked; other mounts are refreshed all the same.
    """
    _on_each_mount(paths, lambda point, below: _refresh(point, below, as_json=as_json))


def _refresh(point: Path, paths: list[str], *, as_json: bool) -> bool:
    outcome = control_socket.run_to_end(control_socket.socket_path(point), "refresh", paths=paths)
    if as_json:
        print_line({"mountpoint": str(point), **outcome})
    else:
        say(summarize_refresh(point, parse(RefreshStatus, outcome)))
    return True


def summarize_refresh(point: Path, outcome: RefreshStatus) -> str:
    """The lines for a person: a summary, and some changed paths."""
    counts = {"added": outcome.added, "removed": outcome.removed, "replaced": outcome.replaced}
    counted = ", ".join(f"{count} {kind}" for kind, count in counts.items())
    lines = [f"{point}: {show_count(outcome.directories, 'directory', 'directories')} refreshed: {counted}"]
    for kind, count in counts.items():
        names = outcome.names[kind][:_SHOWN]
        lines += [f"  {kind:<9} {printable(name)}" for name in names]
        if (more := count - len(names)) > 0:
            lines.append(f"  {kind:<9} {more} more")
    return "\n".join(lines)


@click.command()
@click.argument("path", type=UntouchedPath())
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def stat(path: Path, as_json: bool) -> None:
    """Show URL, ETag, version, cached bytes, route and Dragonfly's task of a path in a mount."""
    point, below = mount_table.containing(path)
    with daemons.naming(point):
        answer = control_socket.ask(control_socket.socket_path(point), "stat", path=below)
    if as_json:
        print_object(answer)
        return
    for label, text in describe_stat(answer):
        say(f"{label + ':':<14}{printable(text)}")


def describe_stat(answer: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The lines about a path for a person: label and text."""
    if answer["directory"]:
        yield "directory", f"{answer['path'] or '.'} in {answer['mountpoint']}"
    else:
        yield "file", f"{answer['path']} in {answer['mountpoint']}"
    for name, value in answer.items():
        if name == "size_bytes":
            yield "size", _both(value)
        elif name == "cached_bytes":
            size_bytes = answer["size_bytes"]
            yield "cached", f"{_both(value)}, {value / size_bytes:.0%}" if size_bytes else "all"
        elif name not in ("schema", "mountpoint", "path", "directory"):
            yield name, str(value)


def _both(size_bytes: int) -> str:
    exactly = show_count(size_bytes, "byte")
    return f"{show_size_roughly(size_bytes)} ({exactly})" if size_bytes >= 1000 else exactly
