"""Fixtures of the tests of the output of kustomize for deploy/kubernetes.

These are collected only if D7YFS_TEST_KUSTOMIZE names it, as in scripts/kubernetes-check.sh.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

KUBERNETES = Path(__file__).parent.parent.parent / "deploy" / "kubernetes"

_KUSTOMIZE = os.environ.get("D7YFS_TEST_KUSTOMIZE", "")  # Read now: the session removes such variables.
collect_ignore_glob = [] if _KUSTOMIZE else ["test_*.py"]

Object = dict[str, Any]
Render = Callable[[Path], list[Object]]


@pytest.fixture(scope="session")
def render() -> Render:
    """A function that builds a directory."""
    known: dict[Path, list[Object]] = {}

    def built(directory: Path) -> list[Object]:
        if directory not in known:
            done = subprocess.run(
                [_KUSTOMIZE, "build", str(directory)], capture_output=True, text=True, timeout=60, check=False
            )
            assert done.returncode == 0, done.stderr
            known[directory] = list(yaml.safe_load_all(done.stdout))
        return known[directory]

    return built
