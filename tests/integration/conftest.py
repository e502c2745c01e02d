"""Fixtures of the tests against a real Dragonfly.

These are collected only if D7YFS_TEST_DRAGONFLY names the directory of its programs, as in `make
integration-dragonfly`.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import tempfile
from collections.abc import Generator, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.integration.scene import MakeCluster, Store, Through
from tests.mount.conftest import _can_mount, bucket, faulty, faulty_url
from tests.mount.mounted import Mounted, Mounter
from tests.servers import dragonfly_cluster
from tests.servers.dragonfly_cluster import Cluster, ClusterError, Daemon

pytest.register_assert_rewrite("tests.mount.test_proxy", "tests.servers.test_dfdaemon")

__all__ = ["_can_mount", "bucket", "faulty"]

PROGRAMS = os.environ.get("D7YFS_TEST_DRAGONFLY", "")  # Read now: the session removes such variables.
MANAGER = os.environ.get("D7YFS_TEST_DRAGONFLY_MANAGER", "")
collect_ignore_glob = [] if PROGRAMS else ["*.py"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test here: each has file systems and killed processes, which do not belong in a
    run of `-m 'not mount'`.
    """
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.mount)


@pytest.fixture
def ground() -> Iterator[Path]:
    """A directory with dfdaemon's stores and d7yfs's caches on one file system. Its path leaves
    room for a socket's name.
    """
    with tempfile.TemporaryDirectory(prefix="d7y-", dir="/var/tmp") as name:
        yield Path(name)


_failed = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    item.stash[_failed] = item.stash.get(_failed, False) or report.failed
    return report


@pytest.fixture
def mounter(ground: Path, request: pytest.FixtureRequest) -> Iterator[Mounter]:
    with Mounter(ground) as made:
        yield made
        if request.node.stash.get(_failed, False):
            for mounted in made.made:
                with contextlib.suppress(OSError, ValueError, subprocess.SubprocessError):
                    print(json.dumps(mounted.status()["repositories"], indent=1))
                print(mounted.log()[-20_000:])


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """A shared seed and three peers. A test that kills parts or reads their stores takes
    `make_cluster`.
    """
    with (
        tempfile.TemporaryDirectory(prefix="d7y-", dir="/var/tmp") as name,
        dragonfly_cluster.running(Path(name) / "c", Path(PROGRAMS), peers=3) as made,
    ):
        yield made


@pytest.fixture
def make_cluster(ground: Path) -> Iterator[MakeCluster]:
    with ExitStack() as stack:

        def make(**options: Any) -> Cluster:
            try:
                return stack.enter_context(dragonfly_cluster.running(ground / "c", Path(PROGRAMS), **options))
            except ClusterError:  # On a busy machine, another process may take a port first.
                return stack.enter_context(dragonfly_cluster.running(ground / "d", Path(PROGRAMS), **options))

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
