"""The hand-over's promise: the cache file *is* dfdaemon's store file, which d7yfs only reads; and
the fallback on another file system.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from d7yfs.fill.p2p_budget import Policy
from tests.integration.scene import LONG_S, SIZE, MakeCluster, Store, put, sent_bytes
from tests.mount.conftest import bytes_of, faulty_url
from tests.mount.mounted import Mounted, Mounter, run
from tests.servers.dragonfly_cluster import Cluster, Daemon

BODY_SEED = 1100


def socket_of(daemon: Daemon) -> tuple[str, str]:
    return ("--dfdaemon-socket", f"unix://{daemon.socket_path}")


def linked(mounted: Mounted, daemon: Daemon) -> list[Path]:
    """Task files that are also in the cache."""
    ours = {path.stat().st_ino for path in mounted.cache_dir.rglob("*") if path.is_file()}
    return [path for path in daemon.task_files() if path.stat().st_ino in ours]


@pytest.fixture
def body(faulty: Store) -> bytes:
    made = bytes_of(BODY_SEED, SIZE)
    put(faulty, "weights.bin", made)
    return made


def test_the_cache_file_is_the_store_file(
    mounter: Mounter, faulty: Store, make_cluster: MakeCluster, body: bytes
) -> None:
    cluster = make_cluster()
    mounts = [mounter.mount(faulty_url(faulty), "--anonymous", *socket_of(daemon)) for daemon in cluster.peers]
    for mounted, daemon in zip(mounts, cluster.peers, strict=True):
        assert mounted.read("weights.bin", timeout_s=LONG_S) == body
        (store_file,) = linked(mounted, daemon)
        assert store_file.read_bytes() == body
    # The store sends it once for both hosts, and to each the bytes fetched directly while its
    # reader waits.
    assert sent_bytes(faulty, "weights.bin") <= 1.01 * SIZE + len(mounts) * Policy().budget_bytes(SIZE)


def test_it_outlives_the_daemon_and_its_store(
    mounter: Mounter, faulty: Store, make_cluster: MakeCluster, body: bytes
) -> None:
    (daemon,) = make_cluster(peers=1, seed=False).peers
    mounted = mounter.mount(faulty_url(faulty), "--anonymous", *socket_of(daemon))
    assert mounted.read("weights.bin", timeout_s=LONG_S) == body
    assert linked(mounted, daemon)
    daemon.kill()
    daemon.wipe()
    before = sent_bytes(faulty, "weights.bin")
    assert mounted.read_anew("weights.bin") == body
    assert run("umount", mounted.point).returncode == 0
    again = mounter.mount(
        faulty_url(faulty), "--anonymous", *socket_of(daemon), point=mounted.point, cache_dir=mounted.cache_dir
    )
    assert again.read("weights.bin") == body
    assert sent_bytes(faulty, "weights.bin") == before


def test_another_file_system_means_the_proxy(mounter: Mounter, faulty: Store, cluster: Cluster, body: bytes) -> None:
    daemon = cluster.peers[0]
    with tempfile.TemporaryDirectory(prefix="d7y-", dir="/dev/shm") as elsewhere:
        cache_dir = Path(elsewhere) / "cache"
        options = (*socket_of(daemon), "--proxy", daemon.proxy_url)
        mounted = mounter.mount(faulty_url(faulty), "--anonymous", *options, cache_dir=cache_dir)
        assert mounted.read("weights.bin", timeout_s=LONG_S) == body
        assert linked(mounted, daemon) == []
        assert mounted.fetched()["proxy_bytes"] > 0.9 * SIZE
        assert run("umount", mounted.point).returncode == 0
