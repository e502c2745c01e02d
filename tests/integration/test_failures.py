"""Readers get right bytes when a part dies or hangs. Only these tests take real time, because
dfdaemon has no settable clock.
"""

from __future__ import annotations

import itertools

import pytest

from tests.integration.scene import (
    LONG_S,
    MIB,
    SIZE,
    HangAt,
    MakeCluster,
    Store,
    Through,
    put,
)
from tests.mount.conftest import bytes_of
from tests.mount.mounted import Mounted, in_background, until

HEDGED_S = 9.0
"""Seconds; a hung scheduler silences dfdaemon for 10 s, so a faster reader has not waited for it.
"""


@pytest.mark.parametrize("victim", ["p1", "scheduler", "seed"])
def test_kill_during_a_read(through: Through, faulty: Store, make_cluster: MakeCluster, victim: str) -> None:
    cluster = make_cluster()
    bodies = {"one.bin": bytes_of(700, SIZE), "two.bin": bytes_of(701, SIZE)}
    for name, body in bodies.items():
        put(faulty, name, body)
    mounted = through(cluster.peers[0])
    hang = HangAt(SIZE // 2)
    faulty.do(lambda: faulty.server.script(hang, key="b/one.bin", forever=True))
    reader = in_background(lambda: (mounted.point / "one.bin").read_bytes())
    faulty.wait(hang.reached, timeout_s=LONG_S)
    (part,) = (part for part in cluster.parts if part.name == victim)
    part.kill()
    faulty.do(hang.resume.set)
    assert reader.result(LONG_S) == bodies["one.bin"]
    assert mounted.read("two.bin", timeout_s=LONG_S) == bodies["two.bin"]


@pytest.mark.parametrize("tuned", [True, False], ids=["tuned", "default"])
def test_a_hung_scheduler(through: Through, faulty: Store, make_cluster: MakeCluster, tuned: bool) -> None:
    """A hedged request brings the first bytes from the store, before dfdaemon gives up on its
    scheduler.
    """
    cluster = make_cluster(tuned=tuned, peers=1, seed=False)
    body = bytes_of(800, SIZE)
    put(faulty, "weights.bin", body)
    mounted = through(cluster.peers[0], "--p2p", "always")
    cluster.scheduler.stop()
    assert mounted.pread("weights.bin", SIZE // 2, 4096, timeout_s=HEDGED_S) == body[SIZE // 2 :][:4096]
    assert mounted.read("weights.bin", timeout_s=LONG_S) == body


def by_dragonfly(mounted: Mounted) -> int:
    """Bytes that came through the proxy or the socket."""
    traffic = mounted.status()["repositories"][0]["traffic"]
    return sum(traffic[f"{name}_bytes"] for name in ("proxy", "local_peer", "remote_peer", "back_to_source"))


def test_a_daemon_that_comes_back_is_used_again(through: Through, faulty: Store, make_cluster: MakeCluster) -> None:
    cluster = make_cluster(peers=1, seed=False)
    (daemon,) = cluster.peers
    body = bytes_of(900, 8 * MIB)
    for number in range(1000):
        put(faulty, f"{number}.bin", body)
    mounted = through(daemon)
    names = (f"{number}.bin" for number in itertools.count())
    assert mounted.read(next(names)) == body
    daemon.kill()
    assert mounted.read(next(names)) == body
    before = by_dragonfly(mounted)
    daemon.restart()

    def used_again() -> bool:
        assert mounted.read(next(names)) == body
        return by_dragonfly(mounted) > before

    until(used_again, "bytes through the restarted daemon", timeout_s=LONG_S)
