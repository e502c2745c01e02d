"""The directories of a Triton model repository, as a mount shows them. Pure.

Owns which directories are models, and which of their subdirectories Triton takes for versions. Source:
what Triton 2.51 does (`tests/triton/test_corpus.py`).

Called by `check_triton`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from d7yfs.objects import ObjectVersion

CONFIG = "config.pbtxt"
MODEL_FILES = {
    "model.plan": "tensorrt",
    "model.onnx": "onnxruntime",
    "model.xml": "openvino",
    "model.pt": "pytorch",
    "model.py": "python",
}
"""The files by which Triton guesses a backend, in its order; also the default file of each."""
SAVED_MODEL, GRAPH_DEF = "model.savedmodel", "model.graphdef"

Tree = Mapping[str, Mapping[str, ObjectVersion | None]]
"""The entries of each directory that is known as a whole, by prefix; None is a directory."""

_NO_VERSIONS = ("warmup", "initial_state")
_LEADING_NUMBER = re.compile(r"\s*([+-]?[0-9]+)")
"""The part of a name that C's strtoll reads."""
_VERSIONS = range(-(2**63), 2**63)


@dataclass(frozen=True, slots=True)
class ModelDirectory:
    """One directory of a model repository."""

    tree: Tree
    prefix: str
    name: str
    """Its name in the repository; empty if the URL is that of the model, which may be mounted by any name."""

    @property
    def config(self) -> ObjectVersion | None:
        return self.tree[self.prefix].get(CONFIG)

    def subdirectories(self) -> list[str]:
        """The names of its directories, in Triton's order."""
        return sorted(name for name, version in self.tree[self.prefix].items() if version is None)

    def find(self, path: str) -> str:
        """The kind of the entry at a path below it: `file`, `directory`, or empty if there is none."""
        above, _, name = f"{self.prefix}{path.strip('/')}".rpartition("/")
        entries = self.tree.get(f"{above}/" if above else "", {})
        if name not in entries:
            return ""
        return "file" if entries[name] else "directory"

    def versions(self) -> set[int]:
        """The versions that Triton takes its subdirectories for. A directory `2x` counts as version 2."""
        numbers = map(_version, self.subdirectories())
        return {each for each in numbers if each is not None and each in _VERSIONS}

    def zero_led(self) -> list[str]:
        """The subdirectories that Triton leaves out for their leading zeros."""
        return [each for each in self.subdirectories() if re.fullmatch("0[0-9]+", each)]

    def endless(self) -> list[str]:
        """The subdirectories with a number that ends Triton: it fits no version."""
        return [
            each for each in self.subdirectories() if (number := _version(each)) is not None and number not in _VERSIONS
        ]


def _version(name: str) -> int | None:
    if name in _NO_VERSIONS or (name.startswith("0") and len(name) > 1):
        return None
    found = _LEADING_NUMBER.match(name)
    return int(found[1][:25]) if found else None


def find_models(tree: Tree, top: str) -> list[ModelDirectory]:
    """All directories of all model repositories in the tree, whose uppermost directory is `top`.

    A directory with a config.pbtxt is a model, and all directories next to it have to be models too.
    Without any configuration only the files of a version tell that `top` is a repository.
    """
    configured = {prefix for prefix, entries in tree.items() if entries.get(CONFIG)}
    configured = {each for each in configured if configured.isdisjoint(_above(each))}
    if top in configured:
        return [ModelDirectory(tree, top, "")]
    repositories = {_parent(each) for each in configured}
    if not repositories and _looks_like_repository(tree, top):
        repositories = {top}
    passed = {above for each in repositories for above in (each, *_above(each))}
    return [
        ModelDirectory(tree, prefix, name)
        for repository in sorted(repositories)
        for name, version in tree.get(repository, {}).items()
        if version is None and (prefix := f"{repository}{name}/") in tree and prefix not in passed
    ]


def _above(prefix: str) -> Iterator[str]:
    """All directories above, the nearest first."""
    while prefix:
        prefix = _parent(prefix)
        yield prefix


def _parent(prefix: str) -> str:
    return prefix[: prefix.rfind("/", 0, -1) + 1]


def _looks_like_repository(tree: Tree, top: str) -> bool:
    known = {*MODEL_FILES, SAVED_MODEL, GRAPH_DEF}
    return any(
        re.fullmatch(rf"{re.escape(top)}[^/]+/[0-9]+/", prefix) and not known.isdisjoint(entries)
        for prefix, entries in tree.items()
    )
