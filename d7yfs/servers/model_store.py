"""Model stores: the models in a directory from TorchServe's point of view, and the store that a
running TorchServe has.

TorchServe 0.12 takes archives (a zip called .mar, a tar of any other name) and directories
(no-archive) directly in its model store. Its launcher (ts/model_server.py) always passes the store
to Java as `-s`, from --model-store or from config.properties, so the process overrides every file.
The process is found in /proc (proc_pid_fd(5), proc_net(5)) by the socket that it listens on. So
another one, or one in its own network namespace, is never mistaken for it. Without the right to
read its process, none is found. Called by the command line and `torchserve_api`.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from d7yfs.errors import ModelServerError, UsageError

ALL = "all"
ARCHIVES = (".mar", ".tar.gz", ".tgz")
"""Endings of archives; `torch-model-archiver` makes the first two."""

_PROC = Path("/proc")
_CLASS = "org.pytorch.serve.ModelServer"
_OPTIONS = ("-s", "--model-store")
_LISTENS = "0A"
_SHOWN = 100
_WHY = "TorchServe takes archives only from its model store itself"


@dataclass(frozen=True, slots=True)
class Store:
    """The models in a directory, and the archives too deep to be registered."""

    path: str
    models: tuple[str, ...]
    """The API's names of them, sorted: of archives, or of directories with an unpacked one
    (no-archive)."""
    deeper: tuple[str, ...] = ()
    """Archives one directory further down, where TorchServe does not look: `sub/name.mar`."""

    def passed_over(self) -> str:
        """The archives that cannot be registered, and why, in words; empty for none."""
        return f"not registered: {shown(self.deeper)}: {_WHY}" if self.deeper else ""


def look(path: Path) -> Store:
    """The models TorchServe could load from `path`. Raises UsageError, ModelServerError."""
    models, deeper = [], []
    try:
        for entry in sorted(path.iterdir()):
            if entry.name.startswith("."):
                continue
            if not entry.is_dir():
                models += [entry.name] if entry.name.endswith(ARCHIVES) else []
            elif (entry / "MAR-INF").is_dir():
                models.append(entry.name)
            else:
                deeper += [f"{entry.name}/{below.name}" for below in entry.iterdir() if below.name.endswith(ARCHIVES)]
    except (FileNotFoundError, NotADirectoryError) as error:
        raise UsageError(
            f"{path} is not a directory: {error.strerror}", hint="name the mount point, or a directory in it"
        ) from None
    except OSError as error:
        raise ModelServerError(
            f"{path} cannot be read: {error.strerror}", hint="d7yfs status shows whether it is mounted"
        ) from None
    models.sort(key=lambda model: (bare(model), model))
    return Store(str(path), tuple(models), tuple(sorted(deeper)))


def choose(store: Store, wanted: Sequence[str]) -> tuple[str, ...]:
    """The models that `wanted` names (`all`, or names with or without their ending). Raises
    UsageError, which lists the models there."""
    if not wanted:
        raise UsageError(
            f"no model is named; {_inventory(store)}",
            hint=f"--model {ALL}, or --model NAME,NAME",
        )
    if not store.models:
        raise UsageError(f"{store.path} {_inventory(store)}", hint=_too_deep(store, store.deeper))
    if ALL in wanted:
        return store.models
    by_name = {bare(model): model for model in store.models} | {model: model for model in store.models}
    lacking = [name for name in wanted if name not in by_name]
    if lacking:
        meant = [path for path in store.deeper if {name := path.rpartition("/")[2], bare(name)} & set(lacking)]
        raise UsageError(
            f"{store.path} has no model {', '.join(lacking)}; {_inventory(store)}", hint=_too_deep(store, meant)
        )
    return tuple(dict.fromkeys(by_name[name] for name in wanted))


def bare(name: str) -> str:
    """The name of an archive without its ending: nearly always the name that is registered."""
    return next((name.removesuffix(end) for end in ARCHIVES if name.endswith(end)), name)


def shown(names: Sequence[str]) -> str:
    """Names for a message: all of them, or the first ones of very many."""
    rest = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + rest


def _inventory(store: Store) -> str:
    if not store.models:
        return "holds no model: neither an archive (.mar, .tar.gz) nor a directory with MAR-INF"
    return f"there is: {shown([*map(bare, store.models)])}"


def _too_deep(store: Store, paths: Sequence[str]) -> str:
    """The hint for archives that were meant and are too deep; empty for none."""
    if not paths:
        return ""
    directory, _, name = paths[0].rpartition("/")
    return f"{name} lies in {directory}/: {_WHY}, so name {store.path}/{directory}"


@dataclass(frozen=True, slots=True)
class Process:
    """A running TorchServe on this host."""

    pid: int
    model_store: Path
    """The path as it was given, made absolute."""
    seen: Path
    """The same directory as that process sees it, perhaps in a container: a path below /proc."""

    def check_store(self, path: Path) -> bool:
        """True if `path` is the model store, False if unknown. Raises UsageError if it is not."""
        try:
            if path.samefile(self.seen):
                return True
        except OSError:
            return False
        what = f"{path} is not TorchServe's model store: "
        if os.path.realpath(path) == os.path.realpath(self.model_store):
            raise UsageError(
                f"{what}process {self.pid} has another directory of that name",
                hint="TorchServe does not see this mount: share it with its container or service",
            )
        raise UsageError(
            f"{what}process {self.pid} has --model-store {self.model_store}",
            hint=f"TorchServe loads models only from its model store itself: mount there, or start it with --model-store {path}",
        )


def listening(port: int | None, socket_path: str | None) -> Process | None:
    """The TorchServe that listens on a port or Unix socket here; None for none, or several."""
    links = {f"socket:[{inode}]" for inode in _inodes(port, socket_path)}
    found = [each for directory in _PROC.glob("[0-9]*") if links and (each := _server(directory, links))]
    # A child before its exec looks like its parent.
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
    """The TorchServe in a directory of /proc that has one of these sockets; else None."""
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
    except OSError:  # it has ended, or is another user's
        return None


def _open_files(directory: Path) -> Iterator[str]:
    for each in (directory / "fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed since
            yield str(each.readlink())
