"""Fixtures of the tests of monitoring against a real Prometheus, and in a real browser.

These are collected only if D7YFS_TEST_MONITORING is set, as in `make integration-monitoring`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.monitoring.prometheus import Prometheus, scraping
from tests.mount.conftest import MIB, _can_mount, bucket, bytes_of, faulty, mounter
from tests.mount.conftest import Bucket as Bucket
from tests.mount.mounted import Mounted, Mounter, free_port, in_background, until
from tests.servers.dfdaemon import FakeDfdaemon
from tests.servers.in_thread import InThread

__all__ = ["_can_mount", "bucket", "faulty", "mounter"]

# Read now: the session removes such variables.
PLOT = os.environ.get("D7YFS_TEST_MONITORING_PLOT", "")
STATUS_PAGE = os.environ.get("D7YFS_TEST_STATUS_PAGE", "")
collect_ignore_glob = [] if os.environ.get("D7YFS_TEST_MONITORING") else ["test_*.py"]
if not PLOT:
    collect_ignore_glob.append("test_picture.py")
if not STATUS_PAGE:
    collect_ignore_glob.append("test_status_page_picture.py")


@pytest.fixture
def mounted(mounter: Mounter, bucket: Bucket) -> Iterator[Mounted]:
    """A mount of three models through a proxy."""
    for number, name in enumerate(("resnet", "bert", "llm")):
        bucket.put(f"monitored/{name}/1/weights.safetensors", bytes_of(number, 24 * MIB))
        bucket.put(f"monitored/{name}/config.pbtxt", f'name: "{name}"'.encode())
    with InThread(FakeDfdaemon()) as dfdaemon:
        mounted = mounter.mount(
            f"models={bucket.url('monitored')}",
            *("--proxy", dfdaemon.server.url, "--metrics-listen", f"127.0.0.1:{free_port()}", "--metadata-ttl", "1s"),
            env=bucket.env,
        )
        until(lambda: bool(mounted.status()["metrics"]["listens_on"]), "the listener")
        yield mounted


@pytest.fixture
def prometheus(mounted: Mounted, tmp_path: Path) -> Iterator[Prometheus]:
    """A Prometheus that scrapes `mounted` every second, with this project's rules."""
    with scraping([mounted.status()["metrics"]["listens_on"]], tmp_path) as found:
        yield found


@pytest.fixture
def readers(mounted: Mounted) -> None:
    """Reads before the test: a cold read of each model, of a small file, warm ones, and an absent name."""
    weights = [mounted.point / "models" / name / "1" / "weights.safetensors" for name in ("resnet", "bert", "llm")]
    background = [in_background(path.read_bytes) for path in weights]
    for each in background:
        each.result(60)
    assert mounted.read("models/llm/config.pbtxt") == b'name: "llm"'
    for _ in range(5):
        mounted.read_anew("models/llm/1/weights.safetensors")
    with pytest.raises(FileNotFoundError):
        mounted.read("models/absent")
