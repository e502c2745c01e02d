"""`d7yfs status`: what is mounted, as the daemons behind the mounts tell it."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from d7yfs.cli import daemons
from d7yfs.cli.as_json import print_list
from d7yfs.cli.failures import end_with
from d7yfs.cli.place import Place
from d7yfs.control import control_socket
from d7yfs.tree.visibility import in_words


@click.command()
@click.argument("mountpoint", type=Place(), required=False)
@click.option("--json", "as_json", is_flag=True, help="Print everything, as JSON: a list with one object per mount.")
@click.option("--settings", is_flag=True, help="Also print each setting and where it came from.")
def status(mountpoint: Path | None, as_json: bool, settings: bool) -> None:
    """What is mounted, from where, for how long; its cache and counters. Exit status 1 when a mount does not answer."""
    answers = daemons.ask(daemons.of_mounts(mountpoint), lambda path: control_socket.ask(path, "status"))
    if as_json:
        print_list(answers.said)
    else:
        console = Console(soft_wrap=True, highlight=False)
        for answer in answers.said:
            console.print(_table(answer))
            if settings:
                console.print(_settings_table(answer["settings"]))
        if not answers.said and not answers.failures:
            console.print("nothing is mounted")
    end_with(answers.failures)


def _table(answer: dict[str, Any]) -> Table:
    cache, tree, fuse = answer["cache"], answer["tree"], answer["fuse"]
    table = Table(show_header=False, title=answer["mountpoint"], title_justify="left", title_style="bold")
    for each in answer["repositories"]:
        table.add_row("repository", f"{each['name']}={each['url']}".removeprefix("=") + f", {_way(each)}")
        if each["error"]:
            table.add_row("[red]error[/red]", Text(f"{each['error']}; it is an empty directory until it can be read"))
        for warning in each["warnings"]:
            table.add_row("[yellow]warning[/yellow]", Text(warning))
        table.add_row("names", listing_line(each["listing"]))
        if hidden := in_words(each["hidden"]):
            table.add_row("hidden", hidden)
        table.add_row("bytes", traffic_line(each["traffic"]))
        fetched = each["fetched"]
        said = f"{fetched['direct_requests']} direct"
        if each["proxy"]:
            said += f", {fetched['proxy_requests']} by proxy"
        retries = sum(fetched["retries"].values())
        table.add_row("requests", said + (f", {retries} retries" if retries else ""))
    for each in answer["warm_ups"]:
        state = line(each) if each["state"] == "running" else each["state"]
        paths = ", ".join(f"/{path}" for path in each["paths"])
        table.add_row(f"warm-up {each['id']}", Text(f"{paths}: {state}"))
    uptime = timedelta(seconds=int(answer["uptime_s"]))
    table.add_row("daemon", f"pid {answer['pid']}, up {uptime}, {show_size_roughly(answer['rss_bytes'])} resident")
    used, limit = show_size_roughly(cache["used_bytes"]), show_size_roughly(cache["limit_bytes"])
    stalled_s = cache.get("disk_stalled_s", 0)
    stalled = f", [red]its disk has not answered for {stalled_s:.0f} s[/red]" if stalled_s else ""
    counted = f"{used} of {limit}, {cache['hits']} hits, {cache['misses']} misses"
    table.add_row("cache", f"{escape(cache['directory'])}: {counted}{stalled}")
    table.add_row("known", f"{tree['files']} files, {tree['directories']} directories")
    table.add_row("read", f"{show_size_roughly(fuse['read_bytes'])} by the kernel, {fuse['open_files']} files open")
    table.add_row("log", answer["log"])
    metrics = answer.get("metrics") or {"listens_on": "", "error": "known to newer daemons only"}
    table.add_row(
        "metrics", f"http://{metrics['listens_on']}/metrics" if metrics["listens_on"] else metrics["error"] or "none"
    )
    for warning in answer["warnings"]:
        table.add_row("warning", warning)
    if reload := answer.get("last_reload"):
        if reload["error"]:
            table.add_row("[red]error[/red]", Text(f"the settings could not be read again: {reload['error']}"))
        if reload["later"]:
            table.add_row("next mount", f"changes {', '.join(reload['later'])}")
    return table


def _way(repository: dict[str, Any]) -> str:
    """Which ways are configured, which of them do not work, and what is in use instead."""
    handover, proxy = repository["handover"], repository["proxy"]
    said = []
    if handover:
        known = {"in use": "", "not tried yet": ""}
        trouble = known.get(handover["state"], f" ({handover['state']})")
        said.append(f"handed over at {handover['socket']}{trouble}")
    if proxy:
        said.append(
            f"through {proxy}" + (f" (breaker {repository['breaker']})" if repository["breaker"] != "closed" else "")
        )
    if said and repository["way"] == "origin":
        said.append("for now direct")
    return ", ".join(said) or "direct"


def listing_line(listing: dict[str, Any]) -> str:
    """How names are learnt, why so, and how much was asked for."""
    scan = listing["last_scan"]
    said = {
        "whole": f"listed whole, {scan['objects']} objects in {scan['pages']} requests ({scan['took_s']:g} s)",
        "directory": "listed directory by directory",
        "exact": "each asked for by itself",
    }[listing["in_use"]]
    said += f" ({listing['reason']})" if listing["reason"] else ""
    asked = (
        (listing["scans"], "whole listings"),
        (listing["listings"], "of directories"),
        (listing["exact_lookups"], "of single names"),
    )
    counted = ", ".join(f"{count} {what}" for count, what in asked if count)
    return f"{said}; since start {counted}" if counted else said


def traffic_line(traffic: dict[str, Any]) -> str:
    """Where bytes have come from; a way that brought none is left out, but for the first and the last."""
    ways = (
        ("from dfdaemon's cache", traffic["local_peer_bytes"]),
        ("from other hosts", traffic["remote_peer_bytes"]),
        ("from the store by dfdaemon", traffic["back_to_source_bytes"]),
        ("by proxy", traffic["proxy_bytes"]),
    )
    said = [f"{show_size_roughly(traffic['cache_bytes'])} from cache"]
    said += [f"{show_size_roughly(size_bytes)} {way}" for way, size_bytes in ways if size_bytes]
    reasons = {
        reason: size for reason, size in traffic["direct_bytes_by_reason"].items() if reason != "direct" and size
    }
    why = ", ".join(f"{reason} {show_size_roughly(size)}" for reason, size in reasons.items())
    said.append(f"{show_size_roughly(traffic['direct_bytes'])} direct" + (f" ({why})" if why else ""))
    return ", ".join(said)


def line(report: dict[str, Any]) -> str:
    """How far a warm-up is."""
    files = f"{report['files_done']}/{report['files']} files"
    size = f"{show_size_roughly(report['fetched_bytes'])} of {show_size_roughly(report['missing_bytes'])}"
    rate = f"{show_size_roughly(report['rate_bytes_s'])}/s"
    rest = "" if report["eta_s"] is None else f", {timedelta(seconds=round(report['eta_s']))} left"
    return f"{files}, {size}, {rate}{rest}"


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
            return f"{amount:.0f} {unit}" if amount >= 100 else f"{amount:.3g} {unit}"
        amount /= 1024
    return f"{amount:.4g} TiB"
