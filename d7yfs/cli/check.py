"""`d7yfs check`: a dry run of a mount."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import asdict
from functools import partial

import click
import trio
from rich.console import Console

from d7yfs.check.dry_run import check as findings_of
from d7yfs.check.findings import Finding, Severity
from d7yfs.cli import ungrouped
from d7yfs.cli.as_json import print_list
from d7yfs.cli.mount import split_arguments
from d7yfs.cli.options import Command, Given, settings_options
from d7yfs.cli.terminal import cell
from d7yfs.config.sources import Settings

_STYLE = {Severity.OK: "green", Severity.WARNING: "yellow", Severity.FAILED: "red"}


@click.command(cls=Command)
@click.argument("arguments", nargs=-1, metavar="[NAME=]URL... [MOUNTPOINT]")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list of findings.")
@click.option(
    "--settings",
    "show_settings",
    is_flag=True,
    help="Also print each setting and its source; with --json on stderr.",
)
@settings_options()
@click.pass_context
def check(ctx: click.Context, arguments: tuple[str, ...], as_json: bool, show_settings: bool, given: Given) -> None:
    """Test everything a mount needs, without mounting: credentials, region, endpoint, listing, a
    ranged read, proxy, cache, FUSE.

    Each line is ok, or says what is wrong and what to do. Exit status 1 if something would stop the
    mount from working.
    """
    load = partial(given.load, *split_arguments(arguments))
    settings = load()
    # The log's warnings are findings here.
    logging.getLogger("d7yfs").addHandler(logging.NullHandler())
    console = Console(soft_wrap=True, highlight=False)
    found: list[Finding] = []
    with ungrouped():
        trio.run(_run, settings, partial(load, quiet=True), found, None if as_json else console)
    if as_json:
        print_list(asdict(each) | {"verdict": each.verdict.value} for each in found)
    if show_settings:
        console.stderr = as_json
        for name, row in settings.explain().items():
            console.print(cell(f"  {name} = {row['value']}  (from {row['from']})"))
    ctx.exit(1 if any(each.verdict is Severity.FAILED for each in found) else 0)


async def _run(settings: Settings, load: Callable[[], Settings], found: list[Finding], console: Console | None) -> None:
    async for finding in findings_of(settings, load):
        found.append(finding)
        if console is not None:
            console.print(f"[{_STYLE[finding.verdict]}]{finding.verdict.value:<8}[/] {finding.probe:<13}", end="")
            console.print(cell(finding.said))
            if finding.hint:
                console.print(cell(f"{'':<22}→ {finding.hint}"))
