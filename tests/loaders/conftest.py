"""Fixtures of the tests with real loaders of models.

These are collected only if D7YFS_TEST_LOADERS names the Python of scripts/loaders.sh, as in `make
integration-loaders`.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mount.conftest import Bucket, _can_mount, bucket
from tests.servers.model_loaders import ModelLoaders

__all__ = ["_can_mount", "bucket"]

_python = os.environ.get("D7YFS_TEST_LOADERS", "")  # Read now: the session removes such variables.
collect_ignore_glob = [] if _python else ["*.py"]

SIZES_MIB = {"llama": 24, "gguf": 24, "adapters": 4, "torch": 24}
"""The models. Four MiB are 204 adapters."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.mount)


@pytest.fixture(scope="module")
def ground() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="d7yfs-loaders-", dir="/var/tmp") as name:
        yield Path(name)


@pytest.fixture(scope="module")
def loaders(ground: Path) -> Iterator[ModelLoaders]:
    home = ground / "home"
    home.mkdir()
    with ModelLoaders(Path(_python), home) as made:
        yield made


@pytest.fixture(scope="module")
def local(ground: Path, loaders: ModelLoaders, bucket: Bucket) -> Path:
    """A local directory with a model of each kind, which the bucket has below `loading/` too."""
    directory = ground / "models"
    for kind, size_mib in SIZES_MIB.items():
        loaders.make(kind, directory / kind, size_mib)
    for path in sorted(directory.rglob("*")):
        if path.is_file():
            bucket.put(f"loading/{path.relative_to(directory)}", path.read_bytes())
    return directory
