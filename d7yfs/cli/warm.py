"""`d7yfs warm`: have the daemon behind a mount fetch whole files into its cache, and show how it goes on."""

from __future__ import annotations

from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from d7yfs.cli import daemons
from d7yfs.cli.as_json import print_line
from d7yfs.cli.failures import end_with
from d7yfs.cli.place import Place
from d7yfs.cli.status import line, show_size_roughly
from d7yfs.control import control_socket
from d7yfs.errors import D7yfsError, MountError
from d7yfs.host import mount_table

_Report = dict[str, Any]


@click.command()
@click.argument("paths", nargs=-1, required=True, type=Place(), metavar="PATH...")
@click.option("--background", is_flag=True, help="Return when the files are counted; the daemon goes on by itself.")
@click.option("--json", "as_json", is_flag=True, help="Print reports as they come, one JSON object per line.")
@click.pass_context
def warm(ctx: click.Context, paths: tuple[Path, ...], background: bool, as_json: bool) -> None:
    """Fetch whole files, and all files below directories, into the cache of the mount that they are in.

    What is cached already is not fetched again: a warm-up that was stopped (Ctrl-C) goes on where it was. Exit status 1 when a file could
    not be brought, or not all of them fit into the cache; other mounts are warmed all the same.
    """
    is_whole = True
    failures: list[D7yfsError] = []
    for point, below in paths_by_mount(paths).items():
        try:
            is_whole = _warm(point, below, background=background, as_json=as_json) and is_whole
        except D7yfsError as error:
            failures.append(error)
    end_with(failures)
    ctx.exit(0 if is_whole else 1)


def paths_by_mount(paths: tuple[Path, ...]) -> dict[Path, list[str]]:
    """`paths` by the mount point they are in, relative to it. Raises MountError for one that is in none."""
    found: dict[Path, list[str]] = {}
    for path in paths:
        point, below = mount_table.containing(path)
        found.setdefault(point, []).append(below)
    return found


def _warm(point: Path, paths: list[str], *, background: bool, as_json: bool) -> bool:
    """Whether all of one mount's went well."""
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    columns = (BarColumn(bar_width=30), TextColumn("{task.description}"))
    report: _Report = {}
    told = False
    with (
        daemons.naming(point),
        closing(
            control_socket.follow(control_socket.socket_path(point), "warm", paths=paths, background=background)
        ) as reports,
        Progress(*columns, console=console, transient=True, disable=as_json or not console.is_terminal) as bar,
    ):
        task = bar.add_task("counting files", total=None)
        for report in reports:
            if as_json:
                print_line({"mountpoint": str(point), **report})
            elif report["state"] != "planning":
                if not told and not report["fits"]:
                    console.print(f"d7yfs: warning: {too_much(report)}", style="yellow")
                told = True
                bar.update(
                    task,
                    description=line(report),
                    completed=report["fetched_bytes"],
                    total=max(report["missing_bytes"], 1),
                )
    if not as_json:
        click.echo(outcome(report))
    for path, reason in report["failures"].items():
        click.echo(f"d7yfs: error: {point / path}: {reason}", err=True)
    if (unnamed := report["files_failed"] - len(report["failures"])) > 0:
        click.echo(f"d7yfs: error: {unnamed} files more failed; the log names them", err=True)
    if report["state"] in ("planning", "running") and not background:
        raise MountError(f"the daemon behind {point} ended before the warm-up did", hint="d7yfs status, and its log")
    return not report["files_failed"] and not report["files_left_out"]


def too_much(report: _Report) -> str:
    """What is said before a warm-up that does not fit."""
    return (
        f"{show_size_roughly(report['size_bytes'])} in {report['files']} files is more than the cache keeps at once "
        f"({show_size_roughly(report['room_bytes'])}): what comes first is brought, the rest is left out; raise --cache-size "
        "or name fewer paths"
    )


def outcome(report: _Report) -> str:
    """The last line."""
    size, cached = show_size_roughly(report["size_bytes"]), report["size_bytes"] - report["missing_bytes"]
    known = f"{report['files']} files, {size}, of which {show_size_roughly(cached)} was cached"
    if report["state"] == "running":
        return f"warming in the background: {known}; d7yfs status shows how far it is"
    fetched = f"{show_size_roughly(report['fetched_bytes'])} fetched in {timedelta(seconds=round(report['elapsed_s']))}"
    if report["files_done"] == report["files"]:
        return f"warm: {known}; {fetched}"
    return (
        f"{report['files_done']} of {known}; {fetched}; {report['files_failed']} failed, "
        f"{report['files_left_out']} left out"
    )
