"""Fixtures of the tests with a real Triton.

These are collected only if D7YFS_TEST_TRITON names its program, as in `make integration-triton`.
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
from tests.servers import triton
from tests.servers.fault_proxy import FaultProxy
from tests.servers.in_thread import InThread
from tests.servers.triton import Triton
from tests.triton.models import Models

__all__ = ["_can_mount", "bucket"]

PROGRAM = Path(os.environ.get("D7YFS_TEST_TRITON", ""))  # Read now: the session removes such variables.
collect_ignore_glob = [] if PROGRAM.is_absolute() else ["*.py"]

_numbers = itertools.count(1)


class Start(Protocol):
    """A function that starts a test's own server; its arguments are those of `Triton` after the
    program.
    """

    def __call__(self, repository: Path | str, **options: Any) -> Triton: ...


@pytest.fixture
def ground() -> Iterator[Path]:
    """A directory for caches of a gigabyte, which ends with the test and which every user may
    enter.
    """
    with tempfile.TemporaryDirectory(prefix="d7yfs-triton-", dir="/var/tmp") as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.fixture
def mounter(ground: Path) -> Iterator[Mounter]:
    with Mounter(ground) as made:
        yield made


@pytest.fixture
def start(ground: Path, mounter: Mounter) -> Iterator[Start]:
    """A function that starts servers, which end before the mounts that they read."""
    with ExitStack() as stack:

        def starting(repository: Path | str, **options: Any) -> Triton:
            log = ground / f"triton{next(_numbers)}.log"
            return stack.enter_context(triton.running(PROGRAM, repository, log, **options))

        yield starting


@pytest.fixture
def models(bucket: Bucket) -> Models:
    return Models(bucket, f"triton{next(_numbers)}")


@pytest.fixture
def counted(bucket: Bucket) -> Iterator[InThread[FaultProxy]]:
    """A proxy in front of the store; its `requests` are the requests to the store."""
    with InThread(FaultProxy(bucket.server.endpoint_url)) as running:
        yield running
