"""Writes the pages of the manual, man/d7yfs.1 and man/mount.d7yfs.8: `python scripts/man_pages.py`.

Commands and options come from where `--help` has them, so nothing is written twice. With `--check` it
compares the files with what it would write, and exits 1 if they differ.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import click

from d7yfs import __version__
from d7yfs.cli import main as d7yfs
from d7yfs.cli import mount_helper
from d7yfs.cli.options import Flag
from d7yfs.config.schema import GROUPS, OPTIONS

MAN = Path(__file__).resolve().parent.parent / "man"

_INTRODUCTION = """
d7yfs mounts model repositories from object stores (Amazon S3 and stores that speak its protocol, Google
Cloud Storage, Azure Blob Storage, Alibaba Cloud OSS, Huawei Cloud OBS) as a local, read-only directory tree.
Bytes are fetched when they are read, straight from the store or through Dragonfly, and kept in a cache on the
host's disk.

Every command has --help.
"""
_SETTINGS = """
Each setting is a flag of d7yfs mount and d7yfs check, a variable, a key of the TOML file (--cache-size,
D7YFS_CACHE_SIZE, cache_size), and an option of mount(8). The first of these wins: flags, variables, the TOML
file (--config), files of Triton and TorchServe, the provider's own configuration. Keys and tokens have no
setting.
"""
_FILES = (
    ("/etc/d7yfs/NAME.toml", "Settings of the service d7yfs@NAME. /etc/d7yfs/example.toml has the usual ones."),
    (
        "/etc/d7yfs/NAME.env",
        "Its variables, such as AWS_ACCESS_KEY_ID, as KEY=value lines; for root alone (mode 0600).",
    ),
    ("/var/cache/d7yfs, ~/.cache/d7yfs", "The cache of root, and of another user."),
    (
        "/run/d7yfs, $XDG_RUNTIME_DIR/d7yfs",
        "The control sockets of running mounts; D7YFS_RUNTIME_DIR names another place.",
    ),
)
_STATUSES = (
    ("0", "It was done."),
    ("1", "It failed, or a mount does not answer."),
    ("2", "A mistake in the command or in the settings: a repetition does not help."),
)
_HELPER = """
mount(8) runs this program for file systems of the type d7yfs, so for lines of /etc/fstab, too. It makes the mount
as d7yfs mount does, and returns when the mount answers. SOURCE is a URL such as s3://bucket/prefix, or several,
each as NAME=URL, with ; between them. It is none if a TOML file (config=FILE) names the repositories.
"""
_FSTAB = """
A mount at boot, and one at the first access that is unmounted after ten minutes without one:

\b
s3://models/triton /mnt/models d7yfs ro,_netdev 0 0
s3://models/triton /mnt/models d7yfs ro,_netdev,noauto,x-systemd.automount,x-systemd.idle-timeout=10min 0 0
"""


def escape(text: str) -> str:
    """Text as roff has it, at the beginning of a line and elsewhere."""
    text = text.replace("…", "...").replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{text}" if text.startswith((".", "'")) else text


def prose(text: str) -> Iterator[str]:
    """The lines of paragraphs; `\\b` before one keeps its lines, as in click."""
    for paragraph in re.split(r"\n\s*\n", inspect.cleandoc(text)):
        kept = paragraph.startswith("\b\n")
        yield ".PP"
        if kept:
            yield from (".nf", *map(escape, paragraph.removeprefix("\b\n").splitlines()), ".fi")
        else:
            yield escape(" ".join(paragraph.split()))


def described(entries: Iterable[tuple[str, str]]) -> Iterator[str]:
    """A list of terms, in bold, each with its text."""
    for term, text in entries:
        yield from (".TP", f"\\fB{escape(term)}\\fR", escape(" ".join(text.split())) or "\\&")


def commands(command: click.Command, context: click.Context) -> Iterator[tuple[click.Command, click.Context]]:
    """A command, and all below it."""
    yield command, context
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield from commands(below, click.Context(below, info_name=name, parent=context))


def records(command: click.Command, context: click.Context, *, settings: bool) -> dict[str, list[tuple[str, str]]]:
    """The options of a command as its help has them, by group: the settings, or the others (group "")."""
    found: dict[str, list[tuple[str, str]]] = {}
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context) if isinstance(parameter, click.Option) else None
        if record is not None and "--help" not in parameter.opts and isinstance(parameter, Flag) is settings:
            found.setdefault(parameter.option.group if isinstance(parameter, Flag) else "", []).append(record)
    return found


def command_page() -> str:
    """d7yfs(1)."""
    root = click.Context(d7yfs, info_name="d7yfs")
    lines = [
        f'.TH D7YFS 1 "" "d7yfs {__version__}" "User Commands"',
        *(".SH NAME", "d7yfs \\- mount model repositories from object stores"),
        *(".SH SYNOPSIS", "\\fBd7yfs\\fR \\fICOMMAND\\fR [\\fIARGUMENT\\fR]..."),
        *(".SH DESCRIPTION", *prose(_INTRODUCTION)),
        *(".SH COMMANDS",),
    ]
    every: dict[str, list[tuple[str, str]]] = {}
    for command, context in commands(d7yfs, root):
        if command is d7yfs:
            continue
        shared = records(command, context, settings=True)
        every = every or shared  # the first one is mount, which has all
        usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
        lines += [f".SS {escape(context.command_path)}", f"\\fB{escape(usage)}\\fR", *prose(command.help or "")]
        lines += described(records(command, context, settings=False).get("", []))
        if shared:
            groups = ", ".join(group for group in GROUPS if group in shared)
            lines += prose(f"Also the settings below: {groups if len(shared) < len(GROUPS) else 'all of them'}.")
    lines += [".SH SETTINGS", *prose(_SETTINGS)]
    for group in GROUPS:
        lines += [f".SS {escape(group)}", *described(every[group])]
    lines += [".SH FILES", *described(_FILES), ".SH EXIT STATUS", *described(_STATUSES)]
    lines += [".SH EXAMPLES", *prose(inspect.cleandoc(d7yfs.help or "").partition("\n\n")[2])]
    lines += [".SH SEE ALSO", "mount.d7yfs(8), fuse(4), systemd.service(5)"]
    return "\n".join(lines) + "\n"


def helper_page() -> str:
    """mount.d7yfs(8)."""
    lines = [
        f'.TH MOUNT.D7YFS 8 "" "d7yfs {__version__}" "System Administration"',
        *(".SH NAME", "mount.d7yfs \\- mount model repositories from object stores, for mount(8) and fstab(5)"),
        *(
            ".SH SYNOPSIS",
            "\\fBmount \\-t d7yfs\\fR [\\fB\\-o\\fR \\fIOPTION\\fR[,\\fIOPTION\\fR]...] \\fISOURCE DIR\\fR",
        ),
        *(".SH DESCRIPTION", *prose(_HELPER), ".SH OPTIONS"),
        *prose("These, and all settings of d7yfs mount. In their names - may stand for _."),
        *described(mount_helper.OWN_OPTIONS.items()),
    ]
    for group in GROUPS:
        lines += [f".SS {escape(group)}", *described(_mount_options(group))]
    lines += [".SS Of other file systems", *prose("These are accepted, and change nothing or only what mount(8) does:")]
    lines += prose(", ".join(sorted(mount_helper.IGNORED - mount_helper.OWN_OPTIONS.keys())))
    lines += [
        ".SH EXAMPLES",
        *prose(_FSTAB),
        ".SH SEE ALSO",
        "d7yfs(1), mount(8), fstab(5), systemd.mount(5), systemd.automount(5)",
    ]
    return "\n".join(lines) + "\n"


def _mount_options(group: str) -> Iterator[tuple[str, str]]:
    for option in OPTIONS.values():
        if option.group == group and option.name not in mount_helper.REFUSED:
            if option.on_by_default is None:
                yield f"{option.name}={option.kind.metavar}", f"{option.help} Default: {option.default}."
            else:
                name = option.off_flag[2:].replace("-", "_") if option.on_by_default else option.name
                yield name, option.help


def main(arguments: list[str]) -> int:
    """Write both pages, or with `--check` compare them. Returns the exit status."""
    pages = {MAN / "d7yfs.1": command_page(), MAN / "mount.d7yfs.8": helper_page()}
    stale = [path for path, text in pages.items() if not path.exists() or path.read_text() != text]
    for path in stale:
        if "--check" in arguments:
            print(f"{path} is out of date: run `make reference`")
        else:
            path.parent.mkdir(exist_ok=True)
            path.write_text(pages[path])
    return 1 if stale and "--check" in arguments else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
