"""`d7yfs ls`: list a repository without mounting it, by the rules of a mount."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Any

import click
import trio

from d7yfs.cli import ungrouped
from d7yfs.cli.as_json import print_list
from d7yfs.cli.options import Command, Given, settings_options
from d7yfs.cli.terminal import say
from d7yfs.config.schema import DRAGONFLY, REPOSITORY
from d7yfs.config.sources import Settings
from d7yfs.objects import ObjectVersion, printable
from d7yfs.repository.repository import Repository, open_repositories
from d7yfs.repository.slow_store import tell_while_slow
from d7yfs.stats.words import show_count, show_size_roughly
from d7yfs.tree.listing import DirectoryListing, HiddenKey
from d7yfs.tree.visibility import in_words


@click.command(cls=Command)
@click.argument("url")
@click.option("-R", "--recursive", is_flag=True, help="List directories below, too, each by a request of its own.")
@click.option("-l", "--long", "is_long", is_flag=True, help="Show sizes in bytes, and versions.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list.")
@settings_options(REPOSITORY, DRAGONFLY)
def ls(url: str, recursive: bool, is_long: bool, as_json: bool, given: Given) -> None:
    """List a repository without mounting it: sizes, dates, names; with -l versions.

    Entries that a mount would not show, because of their names or --include, --exclude and
    --publish-marker, are counted on stderr.
    """
    settings = given.load((url,), None)
    left_out = _LeftOut()
    rows: list[dict[str, Any]] = []

    async def list_all() -> None:
        async with aclosing(_entries(settings, left_out, recursive=recursive)) as entries:
            async for row in entries:
                if as_json:
                    rows.append(row)
                else:
                    say(show_row(row, is_long=is_long))

    with ungrouped():
        trio.run(list_all)
    if as_json:
        print_list(rows)
    if (first := left_out.first) is not None:
        said = f"{show_count(left_out.count, 'key')} cannot be shown, such as"
        say(f"{said} {first.key!r}: {first.reason}", err=True)
    if left_out.withheld:
        say(f"not shown: {in_words(left_out.withheld)}", err=True)


@dataclass(slots=True)
class _LeftOut:
    """The keys that listings did not show."""

    count: int = 0
    first: HiddenKey | None = None
    withheld: Counter[str] = field(default_factory=Counter)

    def add(self, listing: DirectoryListing) -> None:
        self.count += listing.hidden_count
        self.first = self.first or next(iter(listing.hidden), None)
        self.withheld.update(listing.withheld)


async def _entries(settings: Settings, left_out: _LeftOut, *, recursive: bool) -> AsyncGenerator[dict[str, Any], None]:
    """The entries in the order of their names, each directory's after it if `recursive`."""
    (repository,) = open_repositories(settings)

    def entries_of(listing: DirectoryListing, above: str) -> Iterator[tuple[str, str, ObjectVersion | None]]:
        left_out.add(listing)
        entries = sorted(listing.entries.items())
        return ((f"{listing.prefix}{name}/", f"{above}{name}", version) for name, version in entries)

    try:
        top = await tell_while_slow(
            partial(_look, repository), repository, lambda text: say(f"d7yfs: {text}", err=True)
        )
        waiting = [entries_of(top, "")]
        while waiting:
            prefix, name, version = next(waiting[-1], ("", "", None))
            if not name:
                waiting.pop()
                continue
            yield _row(name, version)
            if recursive and version is None:
                waiting.append(entries_of(await repository.list_directory(prefix), f"{name}/"))
    finally:
        await repository.aclose()


async def _look(repository: Repository) -> DirectoryListing:
    return await repository.list_directory(await repository.locate(allow_empty=False))


def show_row(row: Mapping[str, Any], *, is_long: bool) -> str:
    """An entry in one line: with fixed columns, so that each can be printed when it is known."""
    size, modified, version = (
        "-" if row[name] is None else str(row[name]) for name in ("size_bytes", "modified", "version")
    )
    if not is_long and row["size_bytes"] is not None:
        size = show_size_roughly(row["size_bytes"])
    columns = f"{size:>13}  {modified:<20}  {version:<34}" if is_long else f"{size:>8}  {modified:<20}"
    return f"{columns}  {printable(row['name'])}"


def _row(name: str, version: ObjectVersion | None) -> dict[str, Any]:
    if version is None:
        return {"name": f"{name}/", "size_bytes": None, "modified": None, "version": None}
    modified = datetime.fromtimestamp(version.mtime_ns / 1e9, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {"name": name, "size_bytes": version.size_bytes, "modified": modified, "version": version.validator}
