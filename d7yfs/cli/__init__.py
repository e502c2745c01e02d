"""The command line: arguments in, exit status out.

Owns the top-level group, which imports a subcommand's module only when that subcommand runs (boto3 and pyfuse3 cost more
start-up time than everything else together), and the one place where expected failures become text and an exit status:
2 for what the user can put right in the command or its configuration, 1 for the rest. Anything else is a bug and shows its
traceback.
"""

from __future__ import annotations

import importlib
from typing import Any

import click

from d7yfs.errors import D7yfsError, UsageError

COMMANDS = {
    "mount": "Mount model repositories as a directory.",
    "umount": "Unmount, and end the daemon behind the mount.",
    "status": "What is mounted, from where, cache and counters.",
    "health": "Whether mounts are alive and ready, as an exit status.",
    "warm": "Fetch files of a mount into its cache before they are read.",
    "refresh": "See now what has changed in the store.",
    "check": "Try a repository without mounting it: what is wrong, and what to do.",
    "ls": "List a repository without mounting it.",
    "stat": "ETag, version, cached bytes and route of a file in a mount.",
    "cache": "List, verify and drop what is cached, with or without a daemon.",
    "torchserve": "Register the models of a mount with a running TorchServe.",
    "log-level": "See or change what running mounts log.",
    "reload": "Have running mounts read their settings and credentials again.",
    "fuse-helper": "The privileged half of a mount whose daemon has no privilege.",
    "completion": "Print the completion script for a shell.",
}
"""Subcommands with the line that the help shows; NAME is the command NAME in the module d7yfs.cli.NAME, `_` for `-`."""


class LazyGroup(click.Group):
    """A group whose commands are modules, imported when needed."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """All names, in the order of the help."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """The command, imported now."""
        if cmd_name not in COMMANDS:
            return None
        module = cmd_name.replace("-", "_")
        command: click.Command = getattr(importlib.import_module(f"d7yfs.cli.{module}"), module)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """The list in `--help`, without importing anything."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; expected failures end here."""
        try:
            return super().invoke(ctx)
        except D7yfsError as error:
            ctx.exit(report(error))


def report(error: D7yfsError) -> int:
    """Tell the user on stderr what failed and what to do; returns the exit status."""
    click.echo(f"d7yfs: error: {error.message}", err=True)
    if error.hint:
        click.echo(f"hint: {error.hint}", err=True)
    return exit_status(error)


def exit_status(error: D7yfsError) -> int:
    """2 for what the user can put right in the command or its configuration, 1 for the rest."""
    return 2 if isinstance(error, UsageError) else 1


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="d7yfs", prog_name="d7yfs")
def main() -> None:
    """Mount model repositories from object stores as a local, cached, read-only directory tree.

    \b
    d7yfs mount s3://models/triton /mnt/models
    d7yfs mount llm=s3://a/x vision=s3://b/y /mnt/models
    d7yfs check s3://models/triton --proxy http://127.0.0.1:4001
    """
