"""`d7yfs check`: a dry run of a mount, or a look at one that runs."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial

import click
import trio
from rich.console import Console
from rich.text import Text

from d7yfs.cache.directory import CacheDirectory
from d7yfs.check.dry_run import check as findings_of
from d7yfs.check.findings import Finding, Severity, warning
from d7yfs.cli import ungrouped
from d7yfs.cli.as_json import print_list
from d7yfs.cli.daemons import naming
from d7yfs.cli.mount import split_arguments
from d7yfs.cli.options import Command, Given, settings_options
from d7yfs.cli.terminal import cell, say, wrap
from d7yfs.config.schema import OPTIONS
from d7yfs.config.sources import DEFAULT, Settings
from d7yfs.control import live_mount
from d7yfs.control.live_mount import LiveMount
from d7yfs.errors import MountError
from d7yfs.objects import printable
from d7yfs.stats.words import show_count, show_size_roughly

_STYLE = {Severity.OK: "green", Severity.WARNING: "yellow", Severity.FAILED: "red"}
_PROBE_COLUMN = 8
_SAID_COLUMN = 22


@click.command(cls=Command)
@click.argument("arguments", nargs=-1, metavar="[[NAME=]URL...] [MOUNTPOINT]")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list of findings.")
@click.option(
    "--settings",
    "show_settings",
    is_flag=True,
    help="Also print each setting and its source; with --json on stderr.",
)
@click.option(
    "-v",
    "--verbose",
    is_flag=True,
    help="Also name each object that is not shown, up to a thousand of a kind; --json always does.",
)
@settings_options()
@click.pass_context
def check(
    ctx: click.Context, arguments: tuple[str, ...], as_json: bool, show_settings: bool, verbose: bool, given: Given
) -> None:
    """Test everything a mount needs, without mounting: credentials, region, endpoint, listing, a
    ranged read, proxy, cache, FUSE.

    Where MOUNTPOINT is a running mount, its daemon is asked: it tests the stores with its own settings
    and credentials, and tells its problems. Then no URL is needed.

    Each line is ok, or says what is wrong and what to do. Exit status 1 if something would stop the
    mount from working.
    """
    sources, point = split_arguments(arguments)
    names_settings = bool(sources or given.config or given.torchserve_config)
    load = partial(given.load, sources, point)
    report = _Report(as_json=as_json, verbose=verbose)
    live = live_mount.look_at(point.absolute()) if point and not names_settings else None
    settings = load() if live is None else None
    if settings is not None and settings.config.mountpoint is not None:
        source = live_mount.name_source((each.name, each.url) for each in settings.config.repositories)
        live = live_mount.look_at(settings.config.mountpoint, source)
    # The log's warnings are findings here.
    logging.getLogger("d7yfs").addHandler(logging.NullHandler())
    for finding in live.findings if live is not None else ():
        report.add(finding)
    shown: dict[str, dict[str, str]] = {}
    means: dict[str, int] = {}
    if live is not None and live.status is not None:
        shown = {name: {"value": each.value, "from": each.from_} for name, each in live.status.settings.items()}
        means = {"cache_size": live.status.cache.limit_bytes, "cache_min_free": live.status.cache.min_free_bytes}
        for finding in live_mount.compare_settings(_asked(settings, given), live.status):
            report.add(finding)
        _ask(live, report)
    elif settings is not None:
        shown, config = settings.explain(), settings.config
        directory = CacheDirectory.bounded(config.cache_dir, config.cache_size, config.cache_min_free)
        means = {"cache_size": directory.size_limit_bytes, "cache_min_free": directory.min_free_bytes}
        if live is not None:  # it is told of above
            settings = replace(settings, config=replace(config, mountpoint=None))
        with ungrouped():
            trio.run(_run, settings, partial(load, quiet=True), report)
    report.end(is_mounted=live is not None and live.status is not None, would_mount=settings is not None)
    if show_settings:
        for name, row in shown.items():
            now = f", now {show_size_roughly(means[name])}" if "%" in row["value"] and name in means else ""
            say(f"  {name} = {row['value']}{now}  (from {row['from']})", err=as_json)
    ctx.exit(1 if report.has_failed else 0)


class _Report:
    """The findings as they come, for a person or as JSON at the end. Lines about waits go to stderr."""

    def __init__(self, *, as_json: bool, verbose: bool) -> None:
        self._as_json, self._verbose = as_json, verbose
        self._found: list[Finding] = []
        self._console = Console(soft_wrap=True, highlight=False)

    @property
    def has_failed(self) -> bool:
        return any(each.verdict is Severity.FAILED for each in self._found)

    def add(self, found: Finding) -> None:
        """Take a finding, and print it for a person."""
        self._found.append(found)
        if self._as_json:
            return
        indent = " " * _SAID_COLUMN
        word = f"{found.verdict.value:<{_PROBE_COLUMN}}"
        lines = wrap(printable(found.said), indent, f"{word} {found.probe:<{_SAID_COLUMN - _PROBE_COLUMN - 2}} ")
        lines += wrap(found.hint, f"{indent}  ", f"{indent}→ ") if found.hint else []
        lines += [f"{indent}  {printable(name)}" for name in found.names] if self._verbose else []
        for number, line in enumerate(lines):
            text = Text(line)
            if not number:
                text.stylize(_STYLE[found.verdict], 0, len(found.verdict.value))
            self._console.print(text)

    def wait(self, text: str) -> None:
        """Say for what a person has been waiting."""
        for line in wrap(text, " " * _SAID_COLUMN, f"{'waits':<{_SAID_COLUMN}}"):
            click.echo(line, err=True)

    def end(self, *, is_mounted: bool, would_mount: bool) -> None:
        """Print JSON, or what all of it comes to."""
        if self._as_json:
            print_list(asdict(each) | {"verdict": each.verdict.value} for each in self._found)
            return
        count = Counter(each.verdict for each in self._found)
        warnings = count[Severity.WARNING]
        said = f"{count[Severity.OK]} ok, {show_count(warnings, 'warning')}, {count[Severity.FAILED]} failed"
        if is_mounted:
            meant = "it is mounted, with trouble" if self.has_failed or warnings else "it is mounted"
        elif would_mount:
            meant = "it would not mount, or not work" if self.has_failed else "it would mount"
        else:
            meant = "nothing of it could be tested"
        self._console.print(cell(f"{said}: {meant}"), style="bold")


def _asked(settings: Settings | None, given: Given) -> dict[str, str]:
    """The settings that the command gives, in words."""
    if settings is None:
        kinds = {name: OPTIONS[name].kind for name in given.flags}
        return {name: kinds[name].show(kinds[name].parse(value)) for name, value in given.flags.items()}
    return {name: row["value"] for name, row in settings.explain().items() if row["from"] != DEFAULT}


def _ask(live: LiveMount, report: _Report) -> None:
    """Have the daemon test its stores."""
    try:
        with naming(live.point):
            for said in live_mount.ask_daemon(live):
                if isinstance(said, Finding):
                    report.add(said)
                else:
                    report.wait(said)
    except MountError as error:
        report.add(warning("stores", f"{live.point}: not tested: {error.message}", error.hint))


async def _run(settings: Settings, load: Callable[[], Settings], report: _Report) -> None:
    async for finding in findings_of(settings, load, report.wait):
        report.add(finding)
