"""A real manager and a real scheduler, with a seed of ours that records its orders: what `d7yfs warm --cluster`
has seeds do, and what it says of a seed that fails.

`test_preheat` has real seeds.
"""

from __future__ import annotations

import json
import tempfile
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.contract import oss_store
from tests.contract.bucket_store import BUCKET
from tests.integration.conftest import MANAGER, PROGRAMS
from tests.integration.scene import LONG_S, MIB, OSS_KEYS
from tests.mount.mounted import Mounted, Mounter, run, until
from tests.servers import dragonfly_cluster, dragonfly_manager, fake_seed
from tests.servers.dfdaemon_socket import identify
from tests.servers.dragonfly_manager import Manager
from tests.servers.fake_seed import NAME, FakeSeed
from tests.servers.in_thread import InThread
from tests.servers.oss import OssServer

FILES = ("llm/a.bin", "llm/b ü.bin")


@pytest.fixture(scope="module")
def managed() -> Iterator[tuple[Manager, FakeSeed]]:
    with (
        tempfile.TemporaryDirectory(prefix="d7y-", dir="/var/tmp") as name,
        dragonfly_manager.running(Path(name) / "m", Path(MANAGER)) as manager,
        fake_seed.running() as seed,
        dragonfly_cluster.running(
            Path(name) / "c", Path(PROGRAMS), peers=0, seed=False, scheduler_settings=manager.scheduler_settings
        ) as cluster,
    ):
        seed.announce(cluster.address)
        yield manager, seed


@pytest.fixture
def store() -> Iterator[InThread[OssServer]]:
    """A bucket with versions, whose signatures are verified."""
    with InThread(OssServer(oss_store.IDENTITY, bucket=BUCKET)) as served:
        for key in FILES:
            served.do(served.server.put, key, key.encode() * MIB)
        yield served


@pytest.fixture
def mounted(mounter: Mounter, store: InThread[OssServer], managed: tuple[Manager, FakeSeed], tmp_path: Path) -> Mounted:
    token = tmp_path / "token"
    token.write_text(dragonfly_manager.TOKEN)
    token.chmod(0o600)
    server = store.server
    options = ["--endpoint-url", server.url, "--region", server.region, "--versioned", "--proxy", "http://127.0.0.1:9"]
    options += ["--dragonfly-manager", managed[0].url, "--dragonfly-manager-token-file", str(token)]
    options += ["--p2p-tag", "llm", "--p2p-application", "triton", "--p2p-piece-length", "8MiB"]
    return mounter.mount(f"oss://{BUCKET}", *options, env=OSS_KEYS)


def _preheat(mounted: Mounted) -> tuple[int, dict[str, Any], str]:
    done = run("warm", "--cluster", "--json", mounted.point, timeout_s=LONG_S)
    return done.returncode, json.loads(done.stdout.splitlines()[-1]), done.stderr


def test_seeds_are_asked_for_the_tasks_of_mounts(mounted: Mounted, managed: tuple[Manager, FakeSeed]) -> None:
    _, seed = managed

    def preheated() -> bool:
        """The manager learns of a scheduler, and that of a seed, within 30 s; before that a job fails."""
        seed.orders.clear()
        done = run("warm", "--cluster", mounted.point, timeout_s=LONG_S)
        assert done.returncode == 0 or "schedulers not found" in done.stderr or "no available seed peer" in done.stderr
        return f"({NAME}: {len(FILES)})" in done.stdout

    until(preheated, "a job that a seed has done", timeout_s=LONG_S)
    wanted = [json.loads(run("stat", "--json", mounted.point / key).stdout)["task_id"] for key in FILES]
    assert sorted(map(identify, seed.orders)) == sorted(wanted)
    for order in seed.orders:
        assert not order.request_header
        with urllib.request.urlopen(order.url, timeout=20) as reply:  # the signature holds
            assert len(reply.read()) in [len(key.encode()) * MIB for key in FILES]


def test_a_seed_that_fails_is_noticed(mounted: Mounted, managed: tuple[Manager, FakeSeed]) -> None:
    manager, seed = managed
    seed.refused = ("a.bin",)
    code, report, said = _preheat(mounted)
    seed.refused = ()
    assert code == 1
    assert manager.jobs()[-1]["state"] == "SUCCESS"  # for all that one file is missing
    assert report["files_done"] == 1
    assert "llm/a.bin did not arrive: no host says that it has it" in said
    assert "Signature" not in said
