"""`mount.d7yfs`: the helper that mount(8) and fstab call for `-t d7yfs`; it translates their
arguments into `d7yfs mount`.

mount.d7yfs SOURCE DIR [-sfnv] [-N NAMESPACE] [-t TYPE] -o OPTIONS          (mount(8), "External
helpers")

SOURCE is as for `d7yfs mount`, several repositories joined by `;`, or `none` with `-o config=FILE`.
A flag that restricts the mount is honoured: `noexec` is passed on, also if `user` implies it, and
`ro`, `nosuid` and `nodev` hold for every mount.

Every option of `d7yfs mount` is a mount option (`proxy=http://127.0.0.1:4001`, `allow_other`,
`no_fallback`, `fallback=false`); fstab's options for all file systems are accepted. Measured on
util-linux 2.38: mount strips `defaults`, `noauto` and `x-*`, and passes on quotes and backslashes
unread. It passes `rw` unless the user says `ro`, so `rw` cannot be an error.
"""

from __future__ import annotations

import getopt
import re
import sys
from collections.abc import Iterable, Iterator, Sequence

from d7yfs.config.layers import spellings, suggestion
from d7yfs.config.schema import OPTIONS
from d7yfs.config.sources import split_sources
from d7yfs.errors import D7yfsError, UsageError

_USAGE = "mount.d7yfs SOURCE DIR [-sfnv] [-o OPTION[,OPTION]…]"

_OF_ALL_FILE_SYSTEMS = (
    "defaults ro rw auto noauto nofail _netdev user nouser users owner group "
    "suid nosuid dev nodev symfollow nosymfollow sync async dirsync silent loud mand nomand "
    "atime noatime relatime norelatime strictatime nostrictatime diratime nodiratime lazytime nolazytime "
    "iversion noiversion comment "
    # of FUSE file systems: what they ask for is so here, or the kernel does it unasked (mount.fuse3(8))
    "default_permissions nonempty fsname subtype kernel_cache auto_cache big_writes async_read auto_unmount max_read"
)
_EXECUTABLE = {"exec": True, "noexec": False, "user": False, "users": False}
"""The options that say whether files may be executed; the last one counts (mount(8), "user")."""

_FILES = ("config", "torchserve_config", "credentials")
"""The options that name files of settings, and are no settings themselves."""
OWN_OPTIONS = {
    "config=FILE": "TOML file with settings, and repositories.",
    "torchserve_config=FILE": "File of an earlier TorchServe plugin: where the models are, and with which keys to read them.",
    "credentials=FILE": "File with KEY=value lines, such as AWS_ACCESS_KEY_ID=..., for root alone (mode 0600).",
    "ro": "The mount is read-only, with or without it.",
    "noexec": "Nobody can execute a file of the mount; user and users imply it.",
}
"""The options that are no settings, with their lines in the manual."""
UNLESS_MOUNTED = "--unless-mounted"
"""The flag of `d7yfs mount` with which a mount that is there already is a success."""
IGNORED = {*_OF_ALL_FILE_SYSTEMS.split(), *_EXECUTABLE}

REFUSED = {
    "remount": "unmount it, and mount it again",
    "bind": "a bind mount needs no file system type: mount --bind",
    "umask": "file_mode=0444 and dir_mode=0555 say it",
    "fmask": "file_mode=0444 says it",
    "dmask": "dir_mode=0555 says it",
    "allow_root": "allow_other lets all users read, and file_mode and gid say who of them",
    "use_cache": "cache_dir=DIR",
    "cache": "cache_dir=DIR",
    "url": "endpoint_url=URL",
    "endpoint": "endpoint_url=URL, or region=NAME",
    "passwd_file": "credentials=FILE with AWS_ACCESS_KEY_ID=… and AWS_SECRET_ACCESS_KEY=… in it, or profile=NAME",
    "iam_role": "nothing is to be said: an instance's role is used if there is one",
    "foreground": "use `d7yfs mount --foreground`: mount(8) waits until its helper returns",
}


def translate(argv: Sequence[str]) -> list[str]:
    """Arguments of `d7yfs` for those of `mount.d7yfs`; none for `-f`. Raises UsageError."""
    try:
        switches, operands = getopt.gnu_getopt(list(argv), "sfnvN:t:o:")
    except getopt.GetoptError as error:
        raise UsageError(str(error), hint=f"usage: {_USAGE}") from None
    if len(operands) != 2:
        raise UsageError("a source and a directory are needed", hint=f"usage: {_USAGE}")
    given = dict(switches)
    if "-N" in given:
        raise UsageError("-N is not supported", hint="run mount inside the namespace: nsenter --mount=FILE mount …")
    arguments = translate_options([value for switch, value in switches if switch == "-o"], sloppy="-s" in given)
    if "-v" in given and "--log-level" not in arguments:
        arguments += ["--log-level", "debug"]
    source, directory = operands
    if source == "none":
        # mount(8) compares a line's source with the mount table, and so takes this one for absent each time.
        arguments, sources = [*arguments, UNLESS_MOUNTED], []
    else:
        sources = split_sources(source)
    return [] if "-f" in given else ["mount", *arguments, "--", *sources, directory]


def translate_options(texts: Iterable[str], *, sloppy: bool = False) -> list[str]:
    """Flags of `d7yfs mount` for the values of `-o`; `sloppy`: unknown ones are left out. Raises
    UsageError."""
    arguments, executable = [], True
    for item in (item for text in texts for item in split_options(text)):
        executable = _EXECUTABLE.get(item.partition("=")[0].strip(), executable)
        arguments += _argument(item, sloppy=sloppy)
    return arguments if executable else [*arguments, "--noexec"]


def split_options(text: str) -> Iterator[str]:
    """The options of one `-o` list, unquoted; a quoted or escaped comma belongs to the value."""
    for match in re.finditer(r'(?:[^,"\\]|\\.|"[^"]*"|["\\])+', text, re.DOTALL):
        yield re.sub(r'"([^"]*)"|\\([,"\\])', lambda part: part[1] if part[1] is not None else part[2], match[0])


def main() -> None:
    """Entry point of `mount.d7yfs`."""
    from d7yfs.cli import main as d7yfs
    from d7yfs.cli import report

    try:
        arguments = translate(sys.argv[1:])
    except D7yfsError as error:
        sys.exit(report(error))
    if arguments:
        # The background daemon is started from sys.argv, so that must be d7yfs' own.
        sys.argv = ["d7yfs", *arguments]
        d7yfs(prog_name="d7yfs")


def _argument(item: str, *, sloppy: bool) -> list[str]:
    name, separator, value = item.partition("=")
    name = name.strip()
    if name in REFUSED:
        raise UsageError(f"mount option {name!r} is not supported", hint=REFUSED[name])
    if not name or name in IGNORED or name.lower().startswith("x-"):
        return []
    key = name.replace("-", "_")
    if key in _FILES and value:
        return [f"--{key.replace('_', '-')}", value]
    option = OPTIONS.get(key)
    if option and not option.off_flag:
        if not value:
            raise UsageError(f"mount option {name!r} needs a value", hint=f"write {name}={option.kind.metavar}")
        return [option.flag, value]
    negated = {
        spelling: candidate
        for candidate in OPTIONS.values()
        if candidate.off_flag
        for spelling in (candidate.off_flag[2:].replace("-", "_"), f"no{candidate.name}")
    }
    if holder := option or negated.get(key):
        try:
            wanted = bool(holder.kind.parse(value if separator else "true"))
        except ValueError as error:
            raise UsageError(f"mount option {key}={value!r} {error}") from None
        return [holder.flag if wanted is (option is not None) else holder.off_flag]
    if sloppy:
        return []
    known = {name: name for name in (*_FILES, "ro")} | spellings(OPTIONS.values())
    raise UsageError(f"mount option {name!r} is unknown", hint=suggestion(key, known))
