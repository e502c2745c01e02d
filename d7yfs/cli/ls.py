"""`d7yfs ls`: list a repository without mounting it, by the rules of a mount."""

from __future__ import annotations

from datetime import UTC, datetime
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
from d7yfs.repository.repository import open_repositories
from d7yfs.tree.listing import DirectoryListing
from d7yfs.tree.visibility import in_words


@click.command(cls=Command)
@click.argument("url")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list.")
@settings_options(REPOSITORY, DRAGONFLY)
def ls(url: str, as_json: bool, given: Given) -> None:
    """List a repository without mounting it: sizes, dates, versions, names.

    Entries that a mount would not show, because of their names or --include, --exclude and
    --publish-marker, are counted on stderr.
    """
    settings = given.load((url,), None)
    with ungrouped():
        listing = trio.run(_listing, settings)
    rows = [_row(name, version) for name, version in sorted(listing.entries.items())]
    if as_json:
        print_list(rows)
    else:
        shown = [["" if value is None else str(value) for value in row.values()] for row in rows]
        width = max((len(size) for _, size, _, _ in shown), default=0)
        for name, size, modified, version in shown:
            say(f"{size:>{width}}  {modified:<20}  {version:<34}  {printable(name)}")
    if listing.hidden_count:
        first = listing.hidden[0]
        say(f"{listing.hidden_count} keys cannot be shown, such as {first.key!r}: {first.reason}", err=True)
    if listing.withheld:
        say(f"not shown: {in_words(listing.withheld)}", err=True)


async def _listing(settings: Settings) -> DirectoryListing:
    (repository,) = open_repositories(settings)
    try:
        return await repository.list_directory(await repository.locate(allow_empty=False))
    finally:
        await repository.aclose()


def _row(name: str, version: ObjectVersion | None) -> dict[str, Any]:
    if version is None:
        return {"name": f"{name}/", "size_bytes": None, "modified": None, "version": None}
    modified = datetime.fromtimestamp(version.mtime_ns / 1e9, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {"name": name, "size_bytes": version.size_bytes, "modified": modified, "version": version.validator}
