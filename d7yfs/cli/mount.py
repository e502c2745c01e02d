"""`d7yfs mount`: become the daemon, or start one and wait until its mount answers."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import click

from d7yfs.cli import exit_status, report, ungrouped
from d7yfs.cli.options import Command, Given, settings_options
from d7yfs.cli.terminal import say
from d7yfs.config.sources import Settings
from d7yfs.errors import D7yfsError, MountError
from d7yfs.host.launch import Readiness, launch


@click.command(cls=Command)
@click.argument("arguments", nargs=-1, metavar="[NAME=]URL... [MOUNTPOINT]")
@settings_options()
@click.pass_context
def mount(ctx: click.Context, arguments: tuple[str, ...], given: Given) -> None:
    """Mount model repositories as a directory.

    One URL becomes the directory itself; several, each as NAME=URL, become its top-level
    directories. Without --foreground, the command returns when the mount answers, or says why it
    failed.

    \b
    URL: s3://bucket[/prefix], s3://host:port/bucket[/prefix] (plain http),
         s3://http://host:port/..., s3://https://host:port/...;
         gs://, oss:// and obs:// likewise; as://account/container[/prefix]

    \b
    d7yfs mount s3://models/triton /mnt/models
    d7yfs mount llm=s3://a/x vision=s3://b/y /mnt/models
    d7yfs mount --config /etc/d7yfs/config.toml --foreground
    """
    readiness = Readiness(os.environ)
    try:
        settings = given.load(*split_arguments(arguments), quiet=readiness.in_background)
        settings.require_mountpoint()
    except D7yfsError as error:
        readiness.tell_failed(error)
        raise
    if settings.config.foreground or readiness.in_background:
        # A daemon leaves its working directory; relative paths must keep their meaning.
        read_again = partial(given.load, *split_arguments(arguments), quiet=True, here=Path.cwd())
        ctx.exit(_serve(settings, readiness, read_again))
    said = launch(sys.argv[1:])
    for warning in said["warnings"]:
        say(f"d7yfs: warning: {warning}", err=True)
    say(said["ready"])


def split_arguments(arguments: tuple[str, ...]) -> tuple[tuple[str, ...], Path | None]:
    """Repositories first, the mount point last; only a repository contains `://`."""
    if arguments and "://" not in arguments[-1]:
        return arguments[:-1], Path(arguments[-1])
    return arguments, None


def _serve(settings: Settings, readiness: Readiness, read_again: Callable[[], Settings]) -> int:
    """Run the daemon in this process; return the exit status."""
    # These imports cost start-up time that the waiting command need not pay.
    import trio

    from d7yfs import logs
    from d7yfs.control import control_socket
    from d7yfs.daemon import run

    config = settings.config
    try:
        background = None
        if readiness.in_background:
            control_socket.prepare_runtime_directory()
            background = control_socket.socket_path(settings.require_mountpoint()).with_suffix(".log")
        try:
            logs.configure(config.log_level, config.log_format, config.log_file, background=background)
        except OSError as error:
            raise MountError(
                f"the log file {error.filename} cannot be written: {error.strerror}", hint="see --log-file"
            ) from error
        with ungrouped():
            trio.run(lambda: run(settings, readiness, read_again, stderr=config.log_file or background))
    except D7yfsError as error:
        readiness.tell_failed(error)
        return exit_status(error) if readiness.in_background else report(error)
    return 0
