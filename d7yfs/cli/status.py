"""`d7yfs status`: what is mounted, as the daemons behind the mounts tell it."""

from __future__ import annotations

import json
import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from d7yfs import control, mounts
from d7yfs.errors import MountError


@click.command()
@click.argument("mountpoint", type=click.Path(path_type=Path), required=False)
@click.option("--json", "as_json", is_flag=True, help="Print everything, as JSON: a list with one object per mount.")
@click.option("--settings", is_flag=True, help="Also print each setting and where it came from.")
def status(mountpoint: Path | None, as_json: bool, settings: bool) -> None:
    """What is mounted, from where, for how long; its cache and counters. Exit status 1 when a mount does not answer."""
    if mountpoint is not None:
        answers = [control.ask(control.socket_path(mountpoint.absolute()), "status")]
    else:
        answers = [control.ask(path, "status") for path in control.sockets()]
    silent = _silent(answers) if mountpoint is None else []
    if as_json:
        click.echo(json.dumps(answers, indent=2))
    else:
        console = Console(soft_wrap=True, highlight=False)
        for answer in answers:
            console.print(_table(answer))
            if settings:
                console.print(_settings_table(answer["settings"]))
        if not answers and not silent:
            console.print("nothing is mounted")
    if silent:
        points = ", ".join(map(str, silent))
        raise MountError(f"no daemon answers for {points}", hint="if it is dead, d7yfs umount cleans up")


def _silent(answers: list[dict[str, Any]]) -> list[Path]:
    """This user's d7yfs mounts for which nobody answered."""
    answered = {answer["mountpoint"] for answer in answers}
    own = [each for each in mounts.mount_table() if each.fstype == mounts.FSTYPE and each.owner == os.geteuid()]
    return [each.point for each in own if str(each.point) not in answered]


def _table(answer: dict[str, Any]) -> Table:
    cache, tree, fuse = answer["cache"], answer["tree"], answer["fuse"]
    table = Table(show_header=False, title=answer["mountpoint"], title_justify="left", title_style="bold")
    for each in answer["repositories"]:
        way = f"through {each['proxy']}" if each["proxy"] else "direct"
        if each["proxy_usable"] is False:
            way += " (not answering: direct for now)"
        table.add_row("repository", f"{each['name']}={each['url']}".removeprefix("=") + f", {way}")
        if each["error"]:
            table.add_row("[red]error[/red]", Text(f"{each['error']}; it is an empty directory until it can be read"))
        fetched = each["fetched"]
        said = f"{show_size_roughly(fetched['direct_bytes'])} direct in {fetched['direct_requests']} requests"
        if each["proxy"]:
            said += f", {show_size_roughly(fetched['proxy_bytes'])} by proxy in {fetched['proxy_requests']}"
        retries = sum(fetched["retries"].values())
        table.add_row("fetched", said + (f", {retries} retries" if retries else ""))
    uptime = timedelta(seconds=int(answer["uptime_s"]))
    table.add_row("daemon", f"pid {answer['pid']}, up {uptime}, {show_size_roughly(answer['rss_bytes'])} resident")
    used, limit = show_size_roughly(cache["used_bytes"]), show_size_roughly(cache["limit_bytes"])
    table.add_row("cache", f"{cache['directory']}: {used} of {limit}, {cache['hits']} hits, {cache['misses']} misses")
    table.add_row("known", f"{tree['files']} files, {tree['directories']} directories")
    table.add_row("read", f"{show_size_roughly(fuse['read_bytes'])} by the kernel, {fuse['open_files']} files open")
    table.add_row("log", answer["log"])
    for warning in answer["warnings"]:
        table.add_row("warning", warning)
    return table


def _settings_table(settings: dict[str, dict[str, str]]) -> Table:
    table = Table("setting", "value", "from")
    for name, row in settings.items():
        table.add_row(name, row["value"], row["from"])
    return table


def show_size_roughly(size_bytes: int) -> str:
    """For people: three digits and a binary unit."""
    amount = float(size_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024:
            return f"{amount:.3g} {unit}"
        amount /= 1024
    return f"{amount:.4g} TiB"
