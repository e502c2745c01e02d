"""The words of `d7yfs warm --cluster`: progress by host, and which files did not arrive, and why."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import closing
from datetime import timedelta
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from d7yfs.cli.as_json import print_line
from d7yfs.cli.terminal import say
from d7yfs.control import control_socket
from d7yfs.errors import MountError
from d7yfs.objects import printable
from d7yfs.stats.preheat import PreheatStatus
from d7yfs.stats.status import parse
from d7yfs.stats.words import show_count, show_size_roughly

_HOSTS = 4
"""Most hosts in the line of progress; the summary has more."""
_EXAMPLES = 3
"""Files that are named for each reason."""


def preheat(point: Path, paths: list[str], *, scope: str, as_json: bool) -> bool:
    """Have Dragonfly's manager preheat files of one mount; True if all of them arrived."""
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    columns = (BarColumn(bar_width=30), TextColumn("{task.description}", markup=False))
    report: PreheatStatus
    with (
        closing(
            control_socket.follow(control_socket.socket_path(point), "preheat", paths=paths, scope=scope)
        ) as answers,
        Progress(*columns, console=console, transient=True, disable=as_json or not console.is_terminal) as bar,
    ):
        task = bar.add_task("counting files", total=None)
        for answer in answers:
            report = parse(PreheatStatus, answer)
            if as_json:
                print_line({"mountpoint": str(point), **answer})
            else:
                total = max(report.size_bytes, 1) if report.counted else None
                bar.update(task, description=describe_preheat(report), completed=report.done_bytes, total=total)
    if not as_json:
        for line in summarize_preheat(report):
            say(line)
    for line in explain_preheat(report, point):
        say(f"d7yfs: error: {line}", err=True)
    if report.state != "done":
        raise MountError(f"the daemon behind {point} ended before the preheat did", hint="d7yfs status, and its log")
    return not report.files_failed and not report.files_left_out


def describe_preheat(report: PreheatStatus) -> str:
    """The line of progress."""
    files = f"{report.files_done} of {show_count(report.files, 'file')}"
    sizes = f"{show_size_roughly(report.done_bytes)} of {show_size_roughly(report.size_bytes)}"
    return f"{files}, {sizes}{_by_host(report.hosts, _HOSTS)}"


def summarize_preheat(report: PreheatStatus) -> Iterator[str]:
    """The last lines about a preheat, without its failures."""
    whole = report.files_done == report.files
    arrived = (
        show_count(report.files, "file") if whole else f"{report.files_done} of {show_count(report.files, 'file')}"
    )
    took = timedelta(seconds=round(report.elapsed_s))
    if report.files:
        jobs = f"; {show_count(len(report.jobs), 'job')} of the manager: {', '.join(map(str, report.jobs))}"
        size = show_size_roughly(report.done_bytes)
        yield f"preheated: {arrived}, {size} in {took}{_by_host(report.hosts, 100)}{jobs if report.jobs else ''}"
    else:
        yield "preheated: nothing"
    if report.files_direct:
        yield f"{show_count(report.files_direct, 'file')} that mounts fetch from the store, as --p2p and their size have it"


def explain_preheat(report: PreheatStatus, point: Path) -> Iterator[str]:
    """The lines about files that cannot be preheated, grouped by reason, and about those that failed."""
    by_reason = defaultdict[str, list[str]](list)
    for path, reason in report.left_out.items():
        by_reason[reason].append(str(point / printable(path)))
    for reason, paths in by_reason.items():
        more = len(paths) - _EXAMPLES
        examples = ", ".join(paths[:_EXAMPLES]) + (f" and {more} more" if more > 0 else "")
        yield f"{show_count(len(paths), 'file')} cannot be preheated: {reason}: {examples}"
    if (unnamed := report.files_left_out - len(report.left_out)) > 0:
        yield f"{show_count(unnamed, 'more file')} cannot be preheated"
    for path, reason in report.failures.items():
        yield f"{point / printable(path)} did not arrive: {reason}"
    if (unnamed := report.files_failed - len(report.failures)) > 0:
        yield f"{show_count(unnamed, 'more file')} did not arrive; the log names them"


def _by_host(hosts: Mapping[str, int], most: int) -> str:
    shown = [f"{printable(host)}: {count}" for host, count in sorted(hosts.items())]
    if not shown:
        return ""
    more = f" and {show_count(len(shown) - most, 'more host')}" if len(shown) > most else ""
    return f" ({', '.join(shown[:most])}{more})"
