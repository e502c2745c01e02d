"""`d7yfs status`: the accounts of mounts, as their daemons tell them."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from d7yfs.cli import daemons, end_with
from d7yfs.cli.daemons import UntouchedPath
from d7yfs.cli.terminal import cell
from d7yfs.control import control_socket
from d7yfs.errors import MountError, UsageError
from d7yfs.logs import show_time
from d7yfs.monitor.problems import show_span
from d7yfs.stats.cache_status import CacheStatus
from d7yfs.stats.repository_status import ListingStatus, PublicationStatus, RepositoryStatus, TrafficStatus
from d7yfs.stats.status import FuseStatus, MountStatus, MoversStatus, TakeoverStatus, WarmUpStatus, parse
from d7yfs.stats.words import show_count, show_size_roughly
from d7yfs.tree.visibility import in_words

_SLOW_S = 1.0
"""Requests that wait for less are no news."""


@click.command()
@click.argument("mountpoint", type=UntouchedPath(), required=False)
@click.option("--json", "as_json", is_flag=True, help="Print everything, as JSON: a list with one object per mount.")
@click.option("--settings", is_flag=True, help="Also print each setting and where it came from.")
@click.option(
    "--cluster", is_flag=True, help="Show the figures of all hosts, as the Prometheus that scrapes them has them."
)
@click.option("--prometheus", metavar="URL", help="Address of that Prometheus, with --cluster.")
@click.option("--over", metavar="TIME", default="6h", show_default=True, help="How far back --cluster looks.")
def status(
    mountpoint: Path | None, as_json: bool, settings: bool, cluster: bool, prometheus: str | None, over: str
) -> None:
    """Show what is mounted, and first what is wrong with it now; from where, for how long; its cache and
    counters.

    For root also the mounts of other users, who alone can ask about them.

    Exit status 1 if a mount does not answer. Problems do not change it: d7yfs health tells by its exit
    status whether a mount can be read.
    """
    if cluster != bool(prometheus) or (cluster and mountpoint):
        raise UsageError(
            "--cluster asks a Prometheus about all mounts",
            hint="d7yfs status --cluster --prometheus http://prometheus:9090",
        )
    if cluster and prometheus:
        from d7yfs.cli.cluster import show_cluster  # only here: it loads an HTTP client

        show_cluster(prometheus, over, as_json=as_json)
        return
    console = Console(soft_wrap=True, highlight=False)

    def show(answer: control_socket.Reply) -> None:
        mount = parse(MountStatus, answer)
        for line in describe_problems(mount):
            console.print(line)
        console.print(_table(mount))
        if settings:
            console.print(_settings_table(mount))

    found = daemons.find(mountpoint)
    failures: list[MountError] = []
    others = daemons.describe_others() if mountpoint is None and not as_json and os.geteuid() == 0 else []
    if found or not others:
        _, failures = daemons.ask(found, lambda path: control_socket.ask(path, "status"), show, as_json=as_json)
    for line in others:
        console.print(cell(line))
    end_with(failures)


def _table(mount: MountStatus) -> Table:
    table = Table(show_header=False, title=cell(mount.mountpoint), title_justify="left", title_style="bold")

    def row(label: str, text: str | Text, style: str = "") -> None:
        table.add_row(Text(label, style), cell(text) if isinstance(text, str) else text)

    for each in mount.repositories:
        row("repository", f"{each.name}={each.url}".removeprefix("=") + f", {_describe_way(each)}")
        if each.error:
            row("error", f"{each.error}; it is an empty directory until it can be read", "red")
        if (kept := each.tree_cache) is not None and kept.offline_since is not None and kept.listed_at is not None:
            since, listed = (show_time(moment) for moment in (kept.offline_since, kept.listed_at))
            row("offline", f"since {since}, with names as of {listed}: {kept.offline_reason}", "red")
        for warning in each.warnings:
            row("warning", warning, "yellow")
        row("names", describe_listing(each.listing))
        if each.publication is not None and each.publication.published_at is not None:
            row("published", describe_publication(each.publication))
        if hidden := in_words(each.hidden):
            row("hidden", hidden)
        row("bytes", describe_traffic(each.traffic))
        said = f"{each.fetched.direct_requests} direct"
        if each.proxy:
            said += f", {each.fetched.proxy_requests} by proxy"
        retries = sum(each.fetched.retries.values())
        row("requests", said + (f", {show_count(retries, 'retry', 'retries')}" if retries else ""))
    for warm_up in mount.warm_ups:
        state = describe_warm_up(warm_up) if warm_up.state == "running" else warm_up.state
        paths = ", ".join(f"/{path}" for path in warm_up.paths)
        row(f"warm-up {warm_up.id}", f"{paths}: {state}")
    uptime = timedelta(seconds=int(mount.uptime_s))
    row("daemon", f"pid {mount.pid}, up {uptime}, {show_size_roughly(mount.rss_bytes)} resident")
    row("cache", _describe_cache(mount.cache))
    row("known", f"{show_count(mount.tree.files, 'file')}, {_directories(mount.tree.directories)}")
    fuse = mount.fuse
    opens = show_count(fuse.passthrough_opens, "open")
    itself = f", {opens} of files that the kernel reads by itself" * fuse.passthrough
    opened = f"{show_count(fuse.open_files, 'file')} and {_directories(fuse.open_directories)} open"
    row("read", f"{show_size_roughly(fuse.read_bytes)} from the daemon, {opened}{itself}")
    if waits := describe_waiting(fuse):
        row("waiting", waits, "yellow")
    row("engine", fuse.engine)
    if mount.movers.processes or mount.movers.lost:
        row("movers", describe_movers(mount.movers))
    row("takeover", describe_takeover(mount.takeover))
    row("log", mount.log)
    where = mount.metrics.listens_on
    row("metrics", f"http://{where}/metrics, for people http://{where}" if where else mount.metrics.error or "none")
    for warning in mount.warnings:
        row("warning", warning)
    if (reload := mount.last_reload) is not None:
        if reload.error:
            row("error", f"the settings could not be read again: {reload.error}", "red")
        if reload.later:
            row("next mount", f"changes {', '.join(reload.later)}")
    return table


def describe_problems(mount: MountStatus) -> list[Text]:
    """The problems of a mount, a line for each, the worst first."""
    lines = [cell(f"{mount.mountpoint}: {each.line}") for each in mount.problems]
    for line in lines:
        line.stylize("bold red")
    return lines


def describe_waiting(fuse: FuseStatus) -> str:
    """The requests that wait, and the oldest of them, in one line; empty while none has waited for long."""
    if fuse.oldest_request_s < _SLOW_S or not fuse.oldest_requests:
        return ""
    oldest = fuse.oldest_requests[0]
    said = f"{show_count(fuse.in_flight, 'request')}, the oldest for {show_span(oldest.waited_s)}"
    return f"{said}: {oldest.operation} {oldest.path}"


def _directories(count: int) -> str:
    return show_count(count, "directory", "directories")


def _describe_cache(cache: CacheStatus) -> Text:
    used, limit = show_size_roughly(cache.used_bytes), show_size_roughly(cache.limit_bytes)
    reads = f"{show_count(cache.hits, 'hit')}, {show_count(cache.misses, 'miss', 'misses')}"
    said = cell(f"{cache.directory}: {used} of {limit}, {reads}")
    if cache.disk_stalled_s:
        said.append(f", its disk has not answered for {cache.disk_stalled_s:.0f} s", "red")
    return said


def _describe_way(repository: RepositoryStatus) -> str:
    """The configured ways, those of them that do not work, and the way in use instead."""
    handover, proxy = repository.handover, repository.proxy
    said = []
    if handover:
        trouble = "" if handover.works else f" ({handover.state})"
        said.append(f"handed over at {handover.socket}{trouble}")
    if proxy:
        breaker = repository.breaker
        said.append(f"through {proxy}" + (f" (breaker {breaker})" if breaker != "closed" else ""))
    if said and repository.way == "origin":
        said.append("for now direct")
    return ", ".join(said) or "direct"


def describe_listing(listing: ListingStatus) -> str:
    """How names are learnt, why so, and how much was asked for."""
    scan = listing.last_scan
    said = {
        "whole": f"listed whole, {show_count(scan.objects, 'object')} in {show_count(scan.pages, 'request')} "
        f"({scan.took_s:g} s)"
        if scan.pages
        else "to be listed whole; no listing has come to its end yet",
        "directory": "listed directory by directory",
        "exact": "each asked for by itself",
        "published": "as published",
    }[listing.in_use]
    said += f" ({listing.reason})" if listing.reason else ""
    asked = (
        (listing.scans, "listing of all", "listings of all"),
        (listing.listings, "of a directory", "of directories"),
        (listing.exact_lookups, "of a single name", "of single names"),
    )
    counted = ", ".join(show_count(count, one, many) for count, one, many in asked if count)
    return f"{said}; since start {counted}" if counted else said


def describe_publication(published: PublicationStatus) -> str:
    """The published tree, its publisher, and when the store last said so."""
    moments = [show_time(moment) for moment in (published.published_at, published.checked_at) if moment is not None]
    said = f"{show_count(published.files, 'file')} at {moments[0]}"
    said += f" by {published.publisher}" if published.publisher else ""
    said += f", snapshot {published.sha256[:12]}; asked at {moments[-1]}"
    if published.unpublished:
        said += f"; {show_count(published.unpublished, 'file has', 'files have')} changed since"
    return said


def describe_traffic(traffic: TrafficStatus) -> str:
    """The sources of bytes, without those that brought none, apart from the first and the last."""
    ways = (
        ("from dfdaemon's cache", traffic.local_peer_bytes),
        ("from other hosts", traffic.remote_peer_bytes),
        ("from the store by dfdaemon", traffic.back_to_source_bytes),
        ("by proxy", traffic.proxy_bytes),
    )
    said = [f"{show_size_roughly(traffic.cache_bytes)} from cache"]
    said += [f"{show_size_roughly(size_bytes)} {way}" for way, size_bytes in ways if size_bytes]
    reasons = {reason: size for reason, size in traffic.direct_bytes_by_reason.items() if reason != "direct" and size}
    why = ", ".join(f"{reason} {show_size_roughly(size)}" for reason, size in reasons.items())
    said.append(f"{show_size_roughly(traffic.direct_bytes)} direct" + (f" ({why})" if why else ""))
    return ", ".join(said)


def describe_movers(movers: MoversStatus) -> str:
    """The processes that receive file data, in one line."""
    said = f"{movers.processes} of {show_count(movers.processes_limit, 'process', 'processes')}, {show_count(movers.jobs, 'job')}"
    said += f", {show_size_roughly(movers.received_bytes)} received"
    said += f", {show_count(movers.tls_connections, 'TLS connection')}" * bool(movers.tls_connections)
    return said + f", {movers.lost} lost" * bool(movers.lost)


def describe_takeover(takeover: TakeoverStatus) -> str:
    """The takeover of a mount: the workers, and how often one was replaced, in one line."""
    if takeover.off:
        return f"none: {takeover.off}"
    said = f"worker {takeover.generation} (pid {takeover.worker_pid}), standby {takeover.standby}"
    counted = ((takeover.restarts, "restart"), (takeover.upgrades, "upgrade"))
    said += "".join(f", {show_count(count, what)}" for count, what in counted if count)
    return said + (f"; the last one ended: {takeover.last_reason}" if takeover.last_reason else "")


def describe_warm_up(warm_up: WarmUpStatus) -> str:
    """The progress of a warm-up, in one line."""
    files = f"{warm_up.files_done}/{show_count(warm_up.files, 'file')}"
    size = f"{show_size_roughly(warm_up.fetched_bytes)} of {show_size_roughly(warm_up.missing_bytes)}"
    rate = f"{show_size_roughly(warm_up.rate_bytes_s)}/s"
    rest = "" if warm_up.eta_s is None else f", {timedelta(seconds=round(warm_up.eta_s))} left"
    return f"{files}, {size}, {rate}{rest}"


def _settings_table(mount: MountStatus) -> Table:
    table = Table("setting", "value", "from")
    for name, setting in mount.settings.items():
        table.add_row(cell(name), cell(setting.value), cell(setting.from_))
    return table
