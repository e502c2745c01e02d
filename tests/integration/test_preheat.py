"""`d7yfs warm --cluster` with a real manager, scheduler, seed and peers: what was preheated is what mounts ask for."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.contract import oss_store
from tests.contract.bucket_store import BUCKET
from tests.integration.conftest import MANAGER, PROGRAMS
from tests.integration.scene import LONG_S, MIB, OSS_KEYS, Traffic
from tests.mount.conftest import bytes_of
from tests.mount.mounted import Mounted, Mounter, run
from tests.servers import dragonfly_cluster, dragonfly_manager
from tests.servers.dragonfly_cluster import Cluster, Daemon
from tests.servers.dragonfly_manager import Manager
from tests.servers.faults import status
from tests.servers.in_thread import InThread
from tests.servers.oss import OssServer

SIZE = 24 * MIB


@pytest.fixture(scope="module")
def managed() -> Iterator[tuple[Manager, Cluster]]:
    """A manager, and a seed and two peers that it knows."""
    with (
        tempfile.TemporaryDirectory(prefix="d7y-", dir="/var/tmp") as name,
        dragonfly_manager.running(Path(name) / "m", Path(MANAGER)) as manager,
        dragonfly_cluster.running(
            Path(name) / "c",
            Path(PROGRAMS),
            peers=2,
            settings=manager.daemon_settings,
            scheduler_settings=manager.scheduler_settings,
        ) as cluster,
    ):
        yield manager, cluster


@pytest.fixture
def store() -> Iterator[InThread[OssServer]]:
    """A bucket with versions, whose signatures are verified."""
    with InThread(OssServer(oss_store.IDENTITY, bucket=BUCKET)) as served:
        yield served


@pytest.fixture
def token(tmp_path: Path) -> Path:
    file = tmp_path / "token"
    file.write_text(dragonfly_manager.TOKEN)
    file.chmod(0o600)
    return file


def _mount(
    mounter: Mounter, store: InThread[OssServer], manager: Manager, token: Path, way: tuple[str, str], *options: str
) -> Mounted:
    server = store.server
    where = ["--endpoint-url", server.url, "--region", server.region, "--versioned"]
    asked = ["--dragonfly-manager", manager.url, "--dragonfly-manager-token-file", str(token)]
    return mounter.mount(f"oss://{BUCKET}", *where, *asked, *way, *options, env=OSS_KEYS)


def _way(daemon: Daemon, name: str) -> tuple[str, str]:
    return {"proxy": ("--proxy", daemon.proxy_url), "socket": ("--dfdaemon-socket", f"unix://{daemon.socket_path}")}[
        name
    ]


def _preheat(mounted: Mounted, *options: str) -> tuple[int, dict[str, Any], str]:
    done = run("warm", "--cluster", "--json", *options, mounted.point, timeout_s=LONG_S)
    return done.returncode, json.loads(done.stdout.splitlines()[-1]), done.stderr


@pytest.mark.parametrize("way", ["proxy", "socket"])
def test_a_seed_has_what_a_mount_then_asks_for(
    mounter: Mounter, store: InThread[OssServer], managed: tuple[Manager, Cluster], token: Path, way: str
) -> None:
    manager, cluster = managed
    assert cluster.seed is not None
    bodies = {f"llm/{number}.safetensors": bytes_of(800 + number, SIZE) for number in range(2)}
    for key, body in bodies.items():
        store.do(store.server.put, key, body)
    mounted = _mount(mounter, store, manager, token, _way(cluster.peers[0], way), "--p2p", "always", "--p2p-tag", way)
    seed = Traffic(cluster.seed)
    code, report, said = _preheat(mounted)
    assert code == 0, said
    assert (report["files"], report["files_done"]) == (2, 2)
    assert report["hosts"] == {"seed": 2}
    assert seed.bytes()["BACK_TO_SOURCE"] == 2 * SIZE

    # A reader's bytes come from the seed: its dfdaemon brings none from the store.
    peer = Traffic(cluster.peers[0])
    for key, body in bodies.items():
        assert mounted.read(key, timeout_s=LONG_S) == body
    assert "BACK_TO_SOURCE" not in peer.bytes()
    assert seed.bytes()["BACK_TO_SOURCE"] == 2 * SIZE
    assert peer.bytes()["REMOTE_PEER"] == 2 * SIZE
    log = mounted.log()
    assert "Signature=" not in log
    assert dragonfly_manager.TOKEN not in log


def test_all_peers_and_a_file_that_fails(
    mounter: Mounter, store: InThread[OssServer], managed: tuple[Manager, Cluster], token: Path
) -> None:
    manager, cluster = managed
    for key in ("good.bin", "bad.bin"):
        store.do(store.server.put, key, bytes_of(len(key) + 900, SIZE))
    mounted = _mount(mounter, store, manager, token, _way(cluster.peers[0], "proxy"))
    # It then knows the version, which it could not ask for any more.
    assert run("stat", mounted.point / "bad.bin").returncode == 0
    store.do(lambda: store.server.script(status(403), key=f"{BUCKET}/bad.bin", forever=True))
    code, report, said = _preheat(mounted, "--scope", "all_peers")
    assert code == 1
    assert "bad.bin did not arrive" in said
    assert "Signature" not in said
    assert "bad.bin" in report["failures"]
    code, report, said = _preheat(mounted, "--scope", "single_seed_peer")
    assert code == 1
    assert (report["files_done"], report["files_failed"]) == (1, 1)
    # The first job has brought it, whatever it said; the scheduler does not name a host that has it already.
    assert report["hosts"] == {"unknown": 1}
