"""`d7yfs ls`: look into a repository without mounting it, by the rules by which a mount would show it."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from functools import partial
from typing import Any

import click
import trio

from d7yfs.cli.failures import ungrouped
from d7yfs.cli.options import Command, Given, settings_options
from d7yfs.config.schema import DRAGONFLY, REPOSITORY
from d7yfs.config.sources import Settings
from d7yfs.listing import DirectoryListing
from d7yfs.repository import open_repositories
from d7yfs.visibility import in_words


@click.command(cls=Command)
@click.argument("url")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list.")
@settings_options(REPOSITORY, DRAGONFLY)
def ls(url: str, as_json: bool, given: Given) -> None:
    """List a repository without mounting it: sizes, dates, versions, names.

    What a mount does not show, for its name or by --include, --exclude and --publish-marker, is counted on stderr.
    """
    settings = given.load((url,), None)
    with ungrouped():
        listing = trio.run(partial(_listing, settings))
    rows = [_row(name, version) for name, version in sorted(listing.entries.items())]
    if as_json:
        click.echo(json.dumps(rows, indent=2))
    else:
        width = max((len(str(row["size"])) for row in rows), default=0)
        for row in rows:
            click.echo(f"{row['size']!s:>{width}}  {row['modified']:<20}  {row['version']:<34}  {row['name']}")
    if listing.hidden_count:
        first = listing.hidden[0]
        click.echo(f"{listing.hidden_count} keys cannot be shown, such as {first.key!r}: {first.reason}", err=True)
    if listing.withheld:
        click.echo(f"not shown: {in_words(listing.withheld)}", err=True)


async def _listing(settings: Settings) -> DirectoryListing:
    (repository,) = open_repositories(settings)
    try:
        return await repository.list_directory(await repository.locate(allow_empty=False))
    finally:
        await repository.aclose()


def _row(name: str, version: Any) -> dict[str, Any]:
    if version is None:
        return {"name": f"{name}/", "size": "", "modified": "", "version": ""}
    modified = datetime.fromtimestamp(version.mtime_ns / 1e9, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {"name": name, "size": version.size_bytes, "modified": modified, "version": version.validator}
