"""`d7yfs cache`: list, verify and drop cached files, with or without a daemon."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from d7yfs.cache import earlier, inspection
from d7yfs.cache.inspection import CheckedVersion, Stored
from d7yfs.cli import daemons
from d7yfs.cli.as_json import print_list, print_object
from d7yfs.cli.terminal import say
from d7yfs.config.layers import first
from d7yfs.config.place import Place
from d7yfs.config.schema import OPTIONS, default_cache_dir
from d7yfs.config.sources import CONFIG_VARIABLE
from d7yfs.config.toml import read_toml
from d7yfs.control import control_socket
from d7yfs.errors import NotFound, UsageError
from d7yfs.host import mount_table, privileges
from d7yfs.host.privileges import WorkerUser
from d7yfs.objects import printable
from d7yfs.stats.words import show_count, show_size_roughly

_OPTION = OPTIONS["cache_dir"]


def _directory_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--cache-dir`, resolved as `mount` does: flag, variable, TOML file, default."""
    path = click.Path(path_type=Path)
    text = f"Directory of the cache. [{_OPTION.variable}; default: {_OPTION.default}]"
    named = click.option("--config", type=path, envvar=CONFIG_VARIABLE, metavar="FILE", help="TOML file that names it.")
    given = click.option(_OPTION.flag, type=path, envvar=_OPTION.variable, metavar=_OPTION.kind.metavar, help=text)
    return given(named(function))


def _directory(cache_dir: Path | None, config: Path | None) -> Path:
    """The cache directory. Root works in that of another user (`--worker-user`) as this user."""
    if cache_dir is None and config is not None:
        found = first(_OPTION.name, (read_toml(config.absolute()).layer,))
        cache_dir = found.value if found else None
    directory = cache_dir or default_cache_dir(os.environ, root=os.geteuid() == 0)
    if os.geteuid() == 0 and directory.is_dir() and (owner := directory.stat().st_uid):
        privileges.become(WorkerUser.find(str(owner)), os.environ)
    return directory


def _chosen(directory: Path, url: str | None, *, must_exist: bool = True) -> list[Stored]:
    """Everything, or the files at or below a URL. Raises NotFound for a URL that names nothing: a
    typo, or another endpoint."""
    everything = inspection.stored(directory)
    if url is None:
        return everything
    place = Place.parse(url)
    chosen = [each for each in everything if each.map.lies_in(place)]
    if chosen or not must_exist:
        return chosen
    known = {each.map.store for each in everything}
    same = (place.store.scheme, place.store.account, place.store.bucket)
    others = [str(Place(each)) for each in sorted(known) if (each.scheme, each.account, each.bucket) == same]
    elsewhere = [each for each in others if each != str(Place(place.store))]
    hint = (
        f"cached from a bucket of that name at other endpoints: {', '.join(elsewhere)}"
        if elsewhere
        else "d7yfs cache ls shows the URLs"
    )
    raise NotFound(f"nothing of {place} is in the cache {directory}", hint=hint)


@click.group()
def cache() -> None:
    """Show the cache directory, verify it, delete from it.

    Safe while daemons run: files in use are never deleted.
    """


@cache.command()
@click.argument("url", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@_directory_options
def ls(url: str | None, as_json: bool, cache_dir: Path | None, config: Path | None) -> None:
    """List cached files, all or those at and below URL: bytes, share of the object, last use,
    whether it is open somewhere."""
    directory = _directory(cache_dir, config)
    found = _chosen(directory, url, must_exist=False)
    if as_json:
        print_object({"directory": str(directory), "files": [_row(each) for each in found]})
        return
    for each in found:
        share = 100 * each.cached_bytes // each.map.size_bytes if each.map.size_bytes else 100
        used = datetime.fromtimestamp(each.used_at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        state = "in use" if each.in_use else ""
        say(f"{show_size_roughly(each.cached_bytes):>9}  {share:>3}%  {used}  {state:<6}  {printable(each.name)}")
    cached, disk = (sum(sizes) for sizes in ([e.cached_bytes for e in found], [e.disk_bytes for e in found]))
    say(
        f"{show_count(len(found), 'file')}, {show_size_roughly(cached)} cached, {show_size_roughly(disk)} on disk in {directory}"
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
@click.option("--md5", is_flag=True, help="Also compare the MD5 of complete files with their ETags; reads them twice.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@_directory_options
def verify(url: str | None, md5: bool, as_json: bool, cache_dir: Path | None, config: Path | None) -> None:
    """Compare cached blocks with their checksums, all or those at and below URL.

    Exit status 1 when something is wrong, or nothing of URL is cached. Bad blocks are fetched again
    when their file is next opened. A running mount that has the file open keeps using them until
    the last handle is closed.

    --md5 proves files right, and none wrong. An ETag is no MD5 after a multipart upload, nor where the
    store encrypts with keys of KMS or the customer's. Such files are counted as not comparable.
    """
    found = _chosen(_directory(cache_dir, config), url)
    began = time.monotonic()
    console = Console(stderr=True)
    with Progress(
        TextColumn("verifying"),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    ) as progress:
        task = progress.add_task("verify", total=sum(each.cached_bytes for each in found))
        verdicts = inspection.verify(found, lambda size: progress.advance(task, size), md5=md5)
    wrong = [each for each in verdicts if not each.good]
    if as_json:
        print_list(map(_verdict_row, verdicts))
    else:
        for each in wrong:
            say(_complaint(each))
        blocks, bad = sum(e.checked_blocks for e in verdicts), sum(len(e.bad_blocks) for e in verdicts)
        compared = f", {show_count(sum(each.md5 for each in verdicts), 'MD5 sum')} compared" if md5 else ""
        looked = f"{show_count(len(verdicts), 'file')}, {show_count(blocks, 'block')}"
        say(f"{looked}: {bad} bad{compared}, in {time.monotonic() - began:.1f} s")
        for reason, count in Counter(each.not_comparable for each in verdicts if each.not_comparable).items():
            say(f"not comparable: {show_count(count, 'file')}, because {reason}")
        if any(each.not_comparable == inspection.DIFFERS for each in verdicts):
            say("--json names them; d7yfs cache drop URL fetches anew, and --verify full asks the store then")
    if wrong:
        raise SystemExit(1)


def _complaint(each: CheckedVersion) -> str:
    said = f"{each.stored.name}: {show_count(len(each.bad_blocks), 'bad block')}, to be fetched again"
    return said + ("; in use: a mount that has it open may serve them until it is closed" if each.stored.in_use else "")


def _verdict_row(each: CheckedVersion) -> dict[str, Any]:
    row = {"checked_blocks": each.checked_blocks, "bad_blocks": each.bad_blocks, "md5": each.md5 or None}
    row["not_comparable"] = each.not_comparable
    return {"name": each.stored.name, "validator": each.stored.map.validator, "in_use": each.stored.in_use} | row


@cache.command()
@click.argument("place", required=False, metavar="[URL|PATH]")
@click.option("--all", "everything", is_flag=True, help="Drop everything that is not in use.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@_directory_options
def drop(place: str | None, everything: bool, as_json: bool, cache_dir: Path | None, config: Path | None) -> None:
    """Delete cached files at and below URL, or at and below PATH in a mount.

    Files that a process has open are kept and listed. Exit status 1 if there are such, or if
    nothing of URL is cached. --all also drops what earlier versions of d7yfs have left. With PATH,
    the daemon of the mount drops them, and the kernel its pages, so the next read comes from the
    store.
    """
    if (place is None) != everything:
        raise UsageError(
            "drop needs exactly one of a URL, a path in a mount, or --all", hint="d7yfs cache ls shows the URLs"
        )
    if place is not None and "://" not in place:
        point, below = mount_table.containing(Path(place))
        with daemons.naming(point):
            answer = control_socket.run_to_end(control_socket.socket_path(point), "cache-drop", paths=[below])
    else:
        answer = _drop(_directory(cache_dir, config), place)
        daemons.tell_all("cache-recount")
    if as_json:
        print_object(answer)
    else:
        for name in answer["kept"]:
            say(f"in use, kept: {printable(name)}")
        if (unnamed := answer["kept_files"] - len(answer["kept"])) > 0:
            say(f"in use, kept: {unnamed} more")
        say(f"{show_count(answer['files'], 'file')} dropped, {show_size_roughly(answer['disk_bytes'])} freed")
    if answer["kept_files"]:
        raise SystemExit(1)


def _drop(directory: Path, url: str | None) -> dict[str, Any]:
    """Drop files at and below `url`, or everything; answers as the daemon to `cache-drop`."""
    gone, kept = inspection.drop(_chosen(directory, url))
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
