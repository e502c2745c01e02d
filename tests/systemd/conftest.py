"""Fixtures of the tests with a real systemd.

These are collected only if D7YFS_TEST_SYSTEMD is set, as in `make integration-systemd`.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mount.conftest import _can_mount, bucket
from tests.servers import systemd
from tests.servers.systemd import Systemd

__all__ = ["_can_mount", "bucket"]

_ROOT = Path(__file__).parent.parent.parent
_wanted = os.environ.get("D7YFS_TEST_SYSTEMD", "")  # Read now: the session removes such variables.
collect_ignore_glob = [] if _wanted else ["*.py"]


@pytest.fixture(scope="module")
def manager() -> Iterator[Systemd]:
    with (
        tempfile.TemporaryDirectory(prefix="d7yfs-systemd-", dir="/var/tmp") as directory,
        systemd.running(Path(directory), _ROOT / ".venv" / "bin") as made,
    ):
        made.install(_ROOT / "systemd" / "d7yfs@.service")
        yield made
