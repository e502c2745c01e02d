"""Which directory a TorchServe of this host really has as its model store: the word of its process, which outdoes every file.

Owns the reading of /proc (proc_pid_fd(5), proc_net(5)). The server is found by the socket that it listens on, so that another one, or one
in a network namespace of its own, is never taken for it; who may not look into its process is told nothing. TorchServe's launcher
(ts/model_server.py of 0.12) always passes the store to Java as `-s`, be it from --model-store or from config.properties. Called by the
command line.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from d7yfs.errors import UsageError

_PROC = Path("/proc")
_CLASS = "org.pytorch.serve.ModelServer"
_OPTIONS = ("-s", "--model-store")
_LISTENS = "0A"


@dataclass(frozen=True, slots=True)
class Process:
    """A running TorchServe."""

    pid: int
    model_store: Path
    """As it was named, and absolute."""
    seen: Path
    """The same with this process's eyes, which may be in a container: a path below /proc."""

    def check_store(self, path: Path) -> bool:
        """Whether it could be compared. Raises UsageError when `path` is not the model store."""
        try:
            if path.samefile(self.seen):
                return True
        except OSError:
            return False
        what = f"{path} is not TorchServe's model store: "
        if os.path.realpath(path) == os.path.realpath(self.model_store):
            raise UsageError(
                f"{what}process {self.pid} has another directory of that name",
                hint="it was mounted where TorchServe does not see it: share the mount with its container or service",
            )
        raise UsageError(
            f"{what}process {self.pid} has --model-store {self.model_store}",
            hint=f"TorchServe loads only what lies directly in its model store: mount there, or start it with --model-store {path}",
        )


def listening(port: int | None, socket_path: str | None) -> Process | None:
    """The TorchServe that listens on a port of this host, or on a unix socket; None when none is found, or several that differ."""
    links = {f"socket:[{inode}]" for inode in _inodes(port, socket_path)}
    found = [each for directory in _PROC.glob("[0-9]*") if links and (each := _server(directory, links))]
    # A child that has not become another program yet looks like its parent.
    return found[0] if len({each.model_store for each in found}) == 1 else None


def _inodes(port: int | None, socket_path: str | None) -> Iterator[str]:
    if socket_path:
        for row in _rows("unix"):
            if row[7:] == [socket_path]:
                yield row[6]
        return
    for row in (*_rows("tcp"), *_rows("tcp6")):
        if row[3] == _LISTENS and int(row[1].rpartition(":")[2], 16) == port:
            yield row[9]


def _rows(table: str) -> list[list[str]]:
    try:
        lines = (_PROC / "net" / table).read_text(errors="surrogateescape").splitlines()[1:]
    except OSError:  # such as a kernel without IPv6
        return []
    return [line.split() for line in lines]


def _server(directory: Path, links: set[str]) -> Process | None:
    """The TorchServe in a directory of /proc, if it is one and has one of these sockets."""
    try:
        words = os.fsdecode((directory / "cmdline").read_bytes()).split("\0")
        if _CLASS not in words or links.isdisjoint(_open_files(directory)):
            return None
        options = words[words.index(_CLASS) + 1 :]
        store = next((value for option, value in itertools.pairwise(options) if option in _OPTIONS), "")
        if not store:
            return None
        base = directory / ("root" if store.startswith("/") else "cwd")
        return Process(int(directory.name), (directory / "cwd").readlink() / store, base / store.lstrip("/"))
    except OSError:  # it has ended meanwhile, or is none of ours
        return None


def _open_files(directory: Path) -> Iterator[str]:
    for each in (directory / "fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            yield str(each.readlink())
