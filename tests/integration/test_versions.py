"""Readers get the right version although dfdaemon never revalidates a task and serves its store
unchecked.
"""

from __future__ import annotations

import errno

import pytest

from tests.integration.scene import (
    LONG_S,
    MIB,
    SIZE,
    HangAt,
    MakeCluster,
    Store,
    Through,
    outcome,
    put,
)
from tests.mount.conftest import bytes_of
from tests.mount.mounted import in_background, until
from tests.servers.dragonfly_cluster import Cluster


@pytest.mark.parametrize("peers", [1, 2])
def test_overwritten_between_reads(through: Through, faulty: Store, cluster: Cluster, peers: int) -> None:
    """The same size, then shorter, then longer; each mount has read the version before."""
    put(faulty, "weights.bin", b"")  # An empty bucket does not exist.
    mounts = [through(daemon, "--metadata-ttl", "0") for daemon in cluster.peers[:peers]]
    if peers == 1:
        mounts.append(through(cluster.peers[0], "--metadata-ttl", "0"))
    for seed, size_bytes in enumerate((24 * MIB, 24 * MIB, 11 * MIB, 40 * MIB + 5)):
        body = bytes_of(500 + seed, size_bytes)
        put(faulty, "weights.bin", body)
        for mounted in mounts:
            assert mounted.read("weights.bin", timeout_s=LONG_S) == body


@pytest.mark.parametrize("mode", ["auto", "always"])
@pytest.mark.parametrize("peers", [1, 2])
def test_overwritten_during_a_read(through: Through, faulty: Store, cluster: Cluster, peers: int, mode: str) -> None:
    """A reader with the old version open gets all of it or ESTALE; a later open gets the new
    version.
    """
    old, new = bytes_of(600, SIZE), bytes_of(601, SIZE)
    put(faulty, "weights.bin", old)
    mounts = [through(daemon, "--p2p", mode, "--metadata-ttl", "0") for daemon in cluster.peers[:peers]]
    hang = HangAt(SIZE // 2)
    faulty.do(lambda: faulty.server.script(hang, key="b/weights.bin", forever=True))
    readers = [
        in_background(lambda each=each: outcome((each.point / "weights.bin").read_bytes))  # type: ignore[misc]
        for each in mounts
    ]
    faulty.wait(hang.reached, timeout_s=LONG_S)
    put(faulty, "weights.bin", new)
    faulty.do(hang.resume.set)
    for reader in readers:
        assert reader.result(LONG_S) in (old, errno.ESTALE)
    for mounted in mounts:
        assert mounted.read("weights.bin", timeout_s=LONG_S) == new


@pytest.mark.parametrize("how", ["wiped", "restarted", "spoilt"])
def test_a_store_that_has_changed(through: Through, faulty: Store, make_cluster: MakeCluster, how: str) -> None:
    """dfdaemon serves its store's bytes unchecked; the store's checksum reveals wrong ones."""
    (daemon,) = make_cluster(peers=1, seed=False).peers
    body = bytes_of(1000, SIZE)
    put(faulty, "weights.bin", body)
    faulty.do(faulty.server.record_crc32c, "b/weights.bin")
    assert through(daemon).read("weights.bin", timeout_s=LONG_S) == body
    if how == "wiped":
        daemon.wipe()
    elif how == "restarted":
        daemon.restart()
    else:
        daemon.spoil(SIZE // 2)
    mounted = through(daemon)
    until(lambda: mounted.read("weights.bin", timeout_s=LONG_S) == body, "the right bytes")
    if how == "spoilt":
        status = mounted.status()
        handover = status["repositories"][0]["handover"]
        # The socket checks a piece before a read; the proxy's bytes are checked once all have come.
        found = (handover["wrong_pieces"] if handover else 0) + status["cache"]["checksum_mismatches"]
        assert found == 1
