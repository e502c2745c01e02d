"""`d7yfs cache`: what is cached, whether it is right, and away with it; with or without a daemon."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from d7yfs.cache import earlier, inspection
from d7yfs.cache.inspection import Stored, Verdict
from d7yfs.cli import daemons
from d7yfs.cli.as_json import print_list, print_object
from d7yfs.cli.status import show_size_roughly
from d7yfs.config.layers import first
from d7yfs.config.place import Place
from d7yfs.config.schema import OPTIONS, default_cache_dir
from d7yfs.config.sources import CONFIG_VARIABLE
from d7yfs.config.toml import read_toml
from d7yfs.control import control_socket
from d7yfs.errors import NotFound, UsageError
from d7yfs.host import mount_table

_OPTION = OPTIONS["cache_dir"]


def _directory_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """`--cache-dir`, found as `mount` finds it: flag, variable, TOML file, default."""
    path = click.Path(path_type=Path)
    for decorate in (
        click.option("--config", type=path, envvar=CONFIG_VARIABLE, metavar="FILE", help="TOML file that names it."),
        click.option(
            _OPTION.flag,
            type=path,
            envvar=_OPTION.variable,
            metavar=_OPTION.kind.metavar,
            help=f"Directory of the cache. [{_OPTION.variable}; default: {_OPTION.default}]",
        ),
    ):
        function = decorate(function)
    return function


def _directory(cache_dir: Path | None, config: Path | None) -> Path:
    if cache_dir is None and config is not None:
        found = first(_OPTION.name, (read_toml(config.absolute()).layer,))
        cache_dir = found.value if found else None
    return cache_dir or default_cache_dir(os.environ, root=os.geteuid() == 0)


def _chosen(directory: Path, url: str | None) -> list[Stored]:
    """Everything, or what lies at or below a URL."""
    place = Place.parse(url) if url is not None else None
    return [each for each in inspection.stored(directory) if place is None or each.map.lies_in(place)]


def _named(directory: Path, url: str | None) -> list[Stored]:
    """As `_chosen`. Raises NotFound when a URL names nothing: it was mistyped, or is another spelling than that of a mount's settings."""
    chosen = _chosen(directory, url)
    if chosen or url is None:
        return chosen
    place = Place.parse(url)
    known = {each.map.store for each in inspection.stored(directory)}
    same = (place.store.scheme, place.store.account, place.store.bucket)
    others = [str(Place(each)) for each in sorted(known) if (each.scheme, each.account, each.bucket) == same]
    elsewhere = [each for each in others if each != str(Place(place.store))]
    hint = (
        f"cached of that name at other endpoints: {', '.join(elsewhere)}"
        if elsewhere
        else "d7yfs cache ls shows the URLs"
    )
    raise NotFound(f"nothing of {place} is in the cache {directory}", hint=hint)


@click.group()
def cache() -> None:
    """Look into the cache directory, verify it, delete from it.

    Safe beside running daemons: what is in use is never deleted.
    """


@cache.command()
@click.argument("url", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@_directory_options
def ls(url: str | None, as_json: bool, cache_dir: Path | None, config: Path | None) -> None:
    """List what is cached, all or at and below URL: bytes, share of the object, last use, whether it is open somewhere."""
    directory = _directory(cache_dir, config)
    found = _chosen(directory, url)
    if as_json:
        print_object({"directory": str(directory), "files": [_row(each) for each in found]})
        return
    for each in found:
        share = 100 * each.cached_bytes // each.map.size_bytes if each.map.size_bytes else 100
        used = datetime.fromtimestamp(each.used_at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        state = "in use" if each.in_use else ""
        click.echo(f"{show_size_roughly(each.cached_bytes):>9}  {share:>3}%  {used}  {state:<6}  {each.name}")
    cached, disk = (sum(sizes) for sizes in ([e.cached_bytes for e in found], [e.disk_bytes for e in found]))
    click.echo(
        f"{len(found)} files, {show_size_roughly(cached)} cached, {show_size_roughly(disk)} on disk in {directory}"
    )


def _row(each: Stored) -> dict[str, Any]:
    return {
        "name": each.name,
        "validator": each.map.validator,
        "size_bytes": each.map.size_bytes,
        "cached_bytes": each.cached_bytes,
        "disk_bytes": each.disk_bytes,
        "used_at": each.used_at,
        "in_use": each.in_use,
    }


@cache.command()
@click.argument("url", required=False)
@click.option("--md5", is_flag=True, help="Also compare complete files with ETags that look like an MD5; reads twice.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@_directory_options
def verify(url: str | None, md5: bool, as_json: bool, cache_dir: Path | None, config: Path | None) -> None:
    """Compare cached blocks with their checksums, all or at and below URL. Exit status 1 when something is wrong, or nothing of URL cached.

    Bad blocks are fetched again when their file is opened the next time. Where a running mount has the file open now, it goes on with
    what it has until the last handle is closed there. An ETag that differs from the MD5 is reported only: with KMS encryption it never was
    one.
    """
    found = _named(_directory(cache_dir, config), url)
    began = time.monotonic()
    with Progress(
        TextColumn("verifying"),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    ) as progress:
        task = progress.add_task("verify", total=sum(each.cached_bytes for each in found))
        verdicts = inspection.verify(found, lambda size: progress.advance(task, size), md5=md5)
    wrong = [each for each in verdicts if not each.good]
    if as_json:
        print_list(map(_verdict_row, verdicts))
    else:
        for each in wrong:
            click.echo(_complaint(each))
        blocks, bad = sum(e.checked_blocks for e in verdicts), sum(len(e.bad_blocks) for e in verdicts)
        compared = f", {sum(each.md5 is not None for each in verdicts)} MD5 sums compared" if md5 else ""
        click.echo(f"{len(verdicts)} files, {blocks} blocks: {bad} bad{compared}, in {time.monotonic() - began:.1f} s")
    if wrong:
        raise SystemExit(1)


def _complaint(each: Verdict) -> str:
    if not each.bad_blocks:
        return f"{each.stored.name}: its MD5 is not its ETag {each.stored.map.validator}; d7yfs cache drop has it fetched again"
    said = f"{each.stored.name}: {len(each.bad_blocks)} bad blocks, to be fetched again"
    return said + ("; in use: a mount that has it open may serve them until it is closed" if each.stored.in_use else "")


def _verdict_row(each: Verdict) -> dict[str, Any]:
    row = {"checked_blocks": each.checked_blocks, "bad_blocks": each.bad_blocks, "md5": each.md5}
    return {"name": each.stored.name, "validator": each.stored.map.validator, "in_use": each.stored.in_use} | row


@cache.command()
@click.argument("place", required=False, metavar="[URL|PATH]")
@click.option("--all", "everything", is_flag=True, help="Drop everything that nobody has open.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@_directory_options
def drop(place: str | None, everything: bool, as_json: bool, cache_dir: Path | None, config: Path | None) -> None:
    """Delete what is cached at and below URL, or at and below PATH in a mount.

    What some process has open is kept and named; exit status 1 then, and where nothing of URL is cached. --all drops what earlier versions
    of d7yfs have left, too. With PATH the daemon behind the mount does it, and the kernel drops
    its pages too, so the next read comes from the store.
    """
    if (place is None) != everything:
        raise UsageError(
            "drop needs a URL, a path in a mount or --all, one of them", hint="d7yfs cache ls shows the URLs"
        )
    if place is not None and "://" not in place:
        point, below = mount_table.containing(Path(place))
        with daemons.naming(point):
            answer = control_socket.outcome(control_socket.socket_path(point), "cache-drop", paths=[below])
    else:
        answer = _drop(_directory(cache_dir, config), place)
    if as_json:
        print_object(answer)
    else:
        for name in answer["kept"]:
            click.echo(f"in use, kept: {name}")
        if (unnamed := answer["kept_files"] - len(answer["kept"])) > 0:
            click.echo(f"in use, kept: {unnamed} more")
        click.echo(f"{answer['files']} files dropped, {show_size_roughly(answer['disk_bytes'])} freed")
    if answer["kept_files"]:
        raise SystemExit(1)


def _drop(directory: Path, url: str | None) -> dict[str, Any]:
    """As the daemon answers `cache-drop`; None for everything."""
    gone, kept = inspection.drop(_named(directory, url))
    dropped = earlier.Dropped()
    if url is None:
        inspection.drop_remains(directory)
        dropped = earlier.drop(directory)
    return {
        "files": len(gone) + dropped.files,
        "disk_bytes": sum(each.disk_bytes for each in gone) + dropped.disk_bytes,
        "kept_files": len(kept) + len(dropped.kept),
        "kept": [*(each.name for each in kept), *map(str, dropped.kept)],
    }
