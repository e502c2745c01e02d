"""Fixtures of the tests with a real TorchServe.

These are collected only if D7YFS_TEST_TORCHSERVE names the directory of its programs, as in `make
integration-torchserve`.
"""

from __future__ import annotations

import itertools
import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol

import pytest

from tests.mount.conftest import Bucket, _can_mount, bucket
from tests.mount.mounted import Mounter
from tests.servers import torchserve
from tests.servers.torchserve import TorchServe
from tests.torchserve.models import Models

__all__ = ["_can_mount", "bucket"]

_programs = os.environ.get("D7YFS_TEST_TORCHSERVE", "")  # Read now: the session removes such variables.
collect_ignore_glob = [] if _programs else ["*.py"]

_numbers = itertools.count(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.mount)


class Start(Protocol):
    """A function that starts a test's own server on a model store; further arguments are those of
    `TorchServe`.
    """

    def __call__(self, store: Path, **options: Any) -> TorchServe: ...


@pytest.fixture
def ground() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="d7yfs-torchserve-", dir="/var/tmp") as name:
        yield Path(name)


@pytest.fixture
def mounter(ground: Path) -> Iterator[Mounter]:
    with Mounter(ground) as made:
        yield made


@pytest.fixture
def start(ground: Path, mounter: Mounter) -> Iterator[Start]:
    """A function that starts servers, which end before the mounts that they read."""
    with ExitStack() as stack:

        def starting(store: Path, **options: Any) -> TorchServe:
            directory = ground / f"torchserve{next(_numbers)}"
            return stack.enter_context(torchserve.running(Path(_programs), store, directory, **options))

        yield starting


@pytest.fixture
def models(bucket: Bucket, ground: Path) -> Models:
    work = ground / "made"
    work.mkdir()
    return Models(bucket, f"torchserve{next(_numbers)}", Path(_programs), work)
