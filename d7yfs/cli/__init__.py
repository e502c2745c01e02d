"""The command line: arguments in, exit status out.

Owns the top-level group, which imports a subcommand's module only when that subcommand runs:
botocore and pyfuse3 cost more start-up time than everything else together. Expected failures become
text and an exit status here: 2 for what the user can correct in the command or its configuration, 1
for the rest. Anything else is a bug and shows its traceback.
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import click

from d7yfs import __version__
from d7yfs.cli.terminal import say
from d7yfs.errors import D7yfsError, UsageError

COMMANDS = {
    "mount": "Mount model repositories as a directory.",
    "umount": "Unmount, and end the daemon behind the mount.",
    "status": "Show mounts, their repositories, cache and counters.",
    "top": "Show live what mounts do: rates, requests that wait, models.",
    "health": "Tell by the exit status whether mounts are alive and ready.",
    "warm": "Fetch files of a mount into its cache before they are read.",
    "refresh": "Look for changes in the store now.",
    "check": "Test a repository or a mount: what is wrong, and what to do.",
    "doctor": "Write one file for a bug report: settings, status, problems, log; no secrets.",
    "ls": "List a repository without mounting it.",
    "publish": "Write a repository's tree for mounts to follow.",
    "stat": "Show version, cached bytes and route of a file in a mount.",
    "cache": "List, verify and drop cached files, with or without a daemon.",
    "torchserve": "Register the models of a mount with a running TorchServe.",
    "trace": "Show each request of a running mount, live.",
    "log-level": "Show or change the log level of running mounts.",
    "reload": "Make running mounts read their settings and credentials again.",
    "upgrade": "Have newly installed code serve a mount, without an error.",
    "fuse-helper": "Run the privileged half of a mount without privilege.",
    "completion": "Print the completion script for a shell.",
    "help": "Show the help of a command.",
}
"""Each subcommand NAME (in the module d7yfs.cli.NAME, `_` for `-`) with its line in the help."""

_OTHER_NAMES = {"version": "--version", "list": "ls", "info": "status", "prefetch": "warm", "mnt": "mount"}
"""Names that other tools have, and ours."""

_TOGETHER = {"health": "mounts", "log-level": "mounts", "reload": "mounts"} | dict.fromkeys(
    ("refresh", "stat", "warm"), "paths"
)
"""The module of each subcommand that shares one with others."""


class LazyGroup(click.Group):
    """A group of commands whose modules are imported when needed."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """All names, in the order of the help."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Import the command."""
        if cmd_name == "unmount":
            cmd_name = "umount"
        if cmd_name == "help":
            return show_help
        if cmd_name not in COMMANDS:
            return None
        name = cmd_name.replace("-", "_")
        module = importlib.import_module(f"d7yfs.cli.{_TOGETHER.get(cmd_name, name)}")
        command: click.Command = getattr(module, name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command; a name that is none of ours gets the nearest one as a hint."""
        name = args[0]
        if self.get_command(ctx, name) is None and not name.startswith("-"):
            close = difflib.get_close_matches(name, [*COMMANDS, *_OTHER_NAMES], 1)
            meant = _OTHER_NAMES.get(close[0], close[0]) if close else ""
            hint = f"did you mean `d7yfs {meant}`?" if meant else "`d7yfs --help` lists them"
            raise UsageError(f"there is no command {name!r}", hint=hint)
        return super().resolve_command(ctx, args)

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
    """Tell the user on stderr what failed and what to do; return the exit status."""
    say(f"d7yfs: error: {error.message}", err=True)
    if error.hint:
        say(f"hint: {error.hint}", err=True)
    return exit_status(error)


def exit_status(error: D7yfsError) -> int:
    """2 for what the user can correct in the command or its configuration, 1 for the rest."""
    return 2 if isinstance(error, UsageError) else 1


@contextmanager
def ungrouped() -> Iterator[None]:
    """Raise the first D7yfsError inside an exception group, unless something else is in it."""
    try:
        yield
    except BaseExceptionGroup as group:
        expected, other = group.split(D7yfsError)
        if expected is None or other is not None:
            raise
        raise _leaf(expected) from None


def end_with(failures: Sequence[D7yfsError]) -> None:
    """Report each on stderr, and end with the worst exit status; return if there is none."""
    if failures:
        raise SystemExit(max(report(each) for each in failures))


def _leaf(group: BaseExceptionGroup[D7yfsError]) -> D7yfsError:
    first = group.exceptions[0]
    return _leaf(first) if isinstance(first, BaseExceptionGroup) else first


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, "-V", "--version", prog_name="d7yfs")
def main() -> None:
    """Mount model repositories from object stores as a local, cached, read-only directory tree.

    \b
    d7yfs mount s3://models/triton /mnt/models
    d7yfs mount llm=s3://a/x vision=s3://b/y /mnt/models
    d7yfs check s3://models/triton --proxy http://127.0.0.1:4001
    """


@click.command("help")
@click.argument("command", required=False)
@click.pass_context
def show_help(ctx: click.Context, command: str | None) -> None:
    """Show the help of a command, or of all."""
    assert ctx.parent is not None
    if command is None:
        click.echo(ctx.parent.get_help())
        return
    _, found, _ = main.resolve_command(ctx.parent, [command])
    assert found is not None
    click.echo(found.get_help(click.Context(found, info_name=command, parent=ctx.parent)))
