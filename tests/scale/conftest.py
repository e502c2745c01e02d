"""Fixtures of tests that are too long for the suite.

These are collected only if D7YFS_TEST_SCALE is set, as in `make integration-scale`.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.mount.conftest import _can_mount, mounter

__all__ = ["_can_mount", "mounter"]

_wanted = os.environ.get("D7YFS_TEST_SCALE", "")  # Read now: the session removes such variables.
collect_ignore_glob = [] if _wanted else ["*.py"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.mount)
