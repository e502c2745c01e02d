"""What lies in a directory, from TorchServe's point of view: the models that can be registered, and what only looks like one.

Owns the reading of the directory and the choice among what is there. TorchServe 0.12 takes archives (a zip called .mar, a tar of any other
name) and directories (no-archive) that lie directly in its model store; whether a directory is that store is the business of
`torchserve_process` and `torchserve_api`. Called by the command line.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from d7yfs.errors import ModelServerError, UsageError

ALL = "all"
ARCHIVES = (".mar", ".tar.gz", ".tgz")
"""How archives end; `torch-model-archiver` makes the first two."""

_SHOWN = 100
_WHY = "TorchServe takes archives only from its model store itself"


@dataclass(frozen=True, slots=True)
class Model:
    """Something in a model store that can be registered."""

    url: str
    """What the API calls it: the name of an archive, or of a directory that is one unpacked (`no-archive`)."""

    @property
    def name(self) -> str:
        """What people call it; the name that it is registered under stands inside, and is nearly always the same."""
        return bare(self.url)


@dataclass(frozen=True, slots=True)
class Store:
    """What lies in a directory."""

    path: str
    models: tuple[Model, ...]
    """Sorted by name."""
    deeper: tuple[str, ...] = ()
    """Archives one directory further down, where TorchServe does not look: `sub/name.mar`."""

    def passed_over(self) -> str:
        """What cannot be registered from here, and why; empty when there is nothing."""
        return f"not registered: {shown(self.deeper)}: {_WHY}" if self.deeper else ""


def look(path: Path) -> Store:
    """What TorchServe could load from `path`. Raises UsageError, ModelServerError when it cannot be read."""
    models, deeper = [], []
    try:
        for entry in sorted(path.iterdir()):
            if entry.name.startswith("."):
                continue
            if not entry.is_dir():
                models += [Model(entry.name)] if entry.name.endswith(ARCHIVES) else []
            elif (entry / "MAR-INF").is_dir():
                models.append(Model(entry.name))
            else:
                deeper += [f"{entry.name}/{below.name}" for below in entry.iterdir() if below.name.endswith(ARCHIVES)]
    except (FileNotFoundError, NotADirectoryError) as error:
        raise UsageError(
            f"{path} is no directory: {error.strerror}", hint="name the mount point, or a directory in it"
        ) from None
    except OSError as error:
        raise ModelServerError(
            f"{path} cannot be read: {error.strerror}", hint="d7yfs status shows whether it is mounted"
        ) from None
    models.sort(key=lambda model: (model.name, model.url))
    return Store(str(path), tuple(models), tuple(sorted(deeper)))


def choose(store: Store, wanted: Sequence[str]) -> tuple[Model, ...]:
    """The models that `wanted` names (`all`, or names with or without their ending). Raises UsageError that lists what there is."""
    if not wanted:
        raise UsageError(
            f"no model is named; {_inventory(store)}",
            hint=f"--model {ALL}, or --model with names and commas between them",
        )
    if not store.models:
        raise UsageError(f"{store.path} {_inventory(store)}", hint=_too_deep(store, store.deeper))
    if ALL in wanted:
        return store.models
    by_name = {model.name: model for model in store.models} | {model.url: model for model in store.models}
    lacking = [name for name in wanted if name not in by_name]
    if lacking:
        meant = [path for path in store.deeper if {name := path.rpartition("/")[2], bare(name)} & set(lacking)]
        raise UsageError(
            f"{store.path} has no model {', '.join(lacking)}; {_inventory(store)}", hint=_too_deep(store, meant)
        )
    return tuple(dict.fromkeys(by_name[name] for name in wanted))


def bare(name: str) -> str:
    """The name of an archive without its ending."""
    return next((name.removesuffix(end) for end in ARCHIVES if name.endswith(end)), name)


def shown(names: Sequence[str]) -> str:
    """Names for a message: all of them, unless there are very many."""
    rest = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + rest


def _inventory(store: Store) -> str:
    if not store.models:
        return "holds no model: neither an archive (.mar, .tar.gz) nor a directory with MAR-INF"
    return f"there is: {shown([model.name for model in store.models])}"


def _too_deep(store: Store, paths: Sequence[str]) -> str:
    """The hint for archives that were meant and lie too deep; empty without one."""
    if not paths:
        return ""
    directory, _, name = paths[0].rpartition("/")
    return f"{name} lies in {directory}/: {_WHY}, so name {store.path}/{directory}"
