"""`d7yfs doctor`: one file for a bug report."""

from __future__ import annotations

import os
import time
from pathlib import Path

import click

from d7yfs.cli.daemons import UntouchedPath, mounts_here
from d7yfs.cli.terminal import say
from d7yfs.control.bug_report import LOG_LINES, write_report
from d7yfs.errors import UsageError


@click.command()
@click.argument("mountpoint", type=UntouchedPath(), required=False)
@click.option(
    "-o", "--output", metavar="FILE", help="The file to write, `-` for stdout; by default d7yfs-doctor-TIME.txt here."
)
@click.option(
    "--config",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="TOML file of the mount, for one that does not run.",
)
@click.option("--no-names", is_flag=True, help="Leave out the log and the status, which name objects.")
def doctor(mountpoint: Path | None, output: str | None, config: Path | None, no_names: bool) -> None:
    """Write one text file for a bug report: versions, settings and where each came from, status,
    problems, the end of the log, mounts, cache, limits, FUSE.

    About one mount, or all that are here. It works with a daemon that hangs, a dead one, or none. No
    secret is in the file, which only its owner can read. Read it before you send it.
    """
    points = [mountpoint.absolute()] if mountpoint is not None else sorted({each.point for each in mounts_here()})
    path = Path(output or time.strftime("d7yfs-doctor-%Y%m%d-%H%M%S.txt"))
    text = write_report(points, os.environ, config, names=not no_names)
    if output == "-":
        click.echo(text, nl=False)
        return
    try:
        # Made here and nowhere else: root may well stand in a directory that others can write.
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(text)
    except OSError as error:
        raise UsageError(f"{path} cannot be made: {error.strerror}", hint="name a new file with -o") from None
    size = path.stat().st_size
    say(f"{path}: {size >> 10} KiB, which only its owner can read (mode 600)")
    say("in it: versions, settings and their sources, problems, mounts, cache, processes, limits, FUSE")
    if not no_names:
        say(f"and: status, and the last {LOG_LINES} lines of the log")
    say("secrets are left out; names of hosts, users, buckets" + (" and objects" * (not no_names)) + " are in it")
