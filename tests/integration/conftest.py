"""Fixtures of the tests against a real Dragonfly. These are collected only where D7YFS_TEST_DRAGONFLY names the directory of its
programs, which `make integration-dragonfly` sees to."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.integration.scene import MakeCluster, Store, Through
from tests.mount.conftest import _can_mount, bucket, faulty, faulty_url
from tests.mount.mounted import Mounted, Mounter
from tests.servers import dragonfly_cluster
from tests.servers.dragonfly_cluster import Cluster, Daemon

pytest.register_assert_rewrite("tests.mount.test_proxy", "tests.servers.test_dfdaemon")

__all__ = ["_can_mount", "bucket", "faulty"]

_programs = os.environ.get("D7YFS_TEST_DRAGONFLY", "")  # now: the session takes such variables out of the environment
collect_ignore_glob = [] if _programs else ["*.py"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Their own file systems, and processes that are killed: none of them belongs into a run of `-m 'not mount'`."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.mount)


@pytest.fixture
def ground() -> Iterator[Path]:
    """Where dfdaemon's stores and d7yfs's caches lie on one file system; its path leaves room for a socket's name."""
    with tempfile.TemporaryDirectory(prefix="d7y-", dir="/var/tmp") as name:
        yield Path(name)


@pytest.fixture
def mounter(ground: Path) -> Iterator[Mounter]:
    with Mounter(ground) as made:
        yield made


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """Shared: a seed and three peers. Who kills parts or looks into stores takes `make_cluster`."""
    with (
        tempfile.TemporaryDirectory(prefix="d7y-", dir="/var/tmp") as name,
        dragonfly_cluster.running(Path(name) / "c", Path(_programs), peers=3) as made,
    ):
        yield made


@pytest.fixture
def make_cluster(ground: Path) -> Iterator[MakeCluster]:
    with ExitStack() as stack:

        def make(**options: Any) -> Cluster:
            return stack.enter_context(dragonfly_cluster.running(ground / "c", Path(_programs), **options))

        yield make


@pytest.fixture(params=["proxy", "socket"])
def through(request: pytest.FixtureRequest, mounter: Mounter, faulty: Store) -> Through:
    def mount(daemon: Daemon, *options: str) -> Mounted:
        way = {
            "proxy": ("--proxy", daemon.proxy_url),
            "socket": ("--dfdaemon-socket", f"unix://{daemon.socket_path}"),
        }[request.param]
        return mounter.mount(faulty_url(faulty), "--anonymous", *way, *options)

    return mount
