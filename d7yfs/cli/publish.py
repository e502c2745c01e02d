"""`d7yfs publish`: write a repository's tree for mounts to follow."""

from __future__ import annotations

from contextlib import aclosing
from pathlib import Path

import click
import trio

from d7yfs.cli import ungrouped
from d7yfs.cli.as_json import print_object
from d7yfs.cli.options import Command, Given, settings_options
from d7yfs.cli.terminal import say
from d7yfs.config.schema import REPOSITORY
from d7yfs.config.sources import Settings
from d7yfs.origins import open_origin
from d7yfs.publish.publisher import Published
from d7yfs.publish.publisher import publish as publish_tree
from d7yfs.publish.writer import open_writer
from d7yfs.stats.words import show_count, show_size_roughly
from d7yfs.tree.published import POINTER


@click.command(cls=Command)
@click.argument("url")
@click.option(
    "--to",
    "directory",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Write the files to this directory instead of the store, for another tool to upload.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@settings_options(REPOSITORY)
def publish(url: str, directory: Path | None, as_json: bool, given: Given) -> None:
    """List a repository once, and publish its tree for all mounts.

    Mounts with --listing published, or auto, show exactly this state until the next publication, and
    list nothing. Needs the right to write below .d7yfs/ there. Run it when uploads are over.
    """
    settings = given.load((url,), None)
    (repository,) = settings.config.repositories
    with ungrouped():
        made = trio.run(_publish, settings, directory)
    pointer = made.pointer
    if as_json:
        print_object({"url": str(repository.url), **_row(made)})
        return
    if made.sample is not None:
        said = f"{show_count(made.hidden, 'key')} cannot be shown by a mount, such as"
        say(f"{said} {made.sample.key!r}: {made.sample.reason}", err=True)
    files, directories = show_count(pointer.files, "file"), show_count(pointer.directories, "directory", "directories")
    size, sha = show_size_roughly(pointer.size_bytes), pointer.sha256[:12]
    where = f"written to {directory}" if directory is not None else f"published at {repository.url}"
    say(f"{where}: {files} in {directories}, snapshot {sha} of {size}, {show_count(made.requests, 'listing request')}")
    if directory is not None:
        say(f"upload the files below {directory} to {repository.url}, {POINTER} last")


async def _publish(settings: Settings, directory: Path | None) -> Published:
    (repository,) = settings.config.repositories
    credentials = settings.credentials[repository.name]
    async with (
        aclosing(open_origin(repository, credentials)) as origin,
        aclosing(open_writer(repository, credentials, directory)) as writer,
    ):
        return await publish_tree(origin, repository.url.prefix, writer, allow_empty=settings.config.allow_empty)


def _row(made: Published) -> dict[str, object]:
    pointer = made.pointer
    return {
        "sha256": pointer.sha256,
        "size_bytes": pointer.size_bytes,
        "files": pointer.files,
        "directories": pointer.directories,
        "published_at": pointer.published_at,
        "hidden": made.hidden,
    }
