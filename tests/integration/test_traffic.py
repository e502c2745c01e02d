"""The store sends each object about once for any number of hosts; the rest comes from peers."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

import pytest

from d7yfs.fill.p2p_budget import Policy
from tests.integration.scene import (
    LONG_S,
    MIB,
    SIZE,
    MakeCluster,
    Store,
    Through,
    Traffic,
    big,
    digest,
    put,
    sent_bytes,
)
from tests.mount.conftest import bytes_of
from tests.mount.mounted import Mounted, in_background, until, within
from tests.servers.dragonfly_cluster import Cluster

GIB = 1 << 30
_READ_TENSORS = """
import hashlib, json, mmap, random, sys
path, seed = sys.argv[1:]
with open(path, "rb") as file:
    memory = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
start = 8 + int.from_bytes(memory[:8], "little")
tensors = list(json.loads(memory[8:start]).items())
random.Random(seed).shuffle(tensors)
digests = {}
for name, tensor in tensors:
    first, last = tensor["data_offsets"]
    digests[name] = hashlib.sha256(memory[start + first : start + last]).hexdigest()
print(json.dumps(digests))
"""
"""A separate program: a page fault in the mapping blocks the interpreter, which the store needs to
answer.
"""


def test_a_gigabyte_comes_from_the_store_once(through: Through, faulty: Store, cluster: Cluster) -> None:
    body = big(1, GIB)
    expected = hashlib.sha256(body).hexdigest()
    put(faulty, "weights.bin", body)
    del body
    first, second, *_ = cluster.peers
    assert digest(through(first, "--p2p", "always"), "weights.bin") == expected
    traffic = Traffic(second)
    assert digest(through(second, "--p2p", "always"), "weights.bin") == expected
    assert sent_bytes(faulty, "weights.bin") <= 1.01 * GIB
    assert set(traffic.bytes()) - {"LOCAL_PEER"} == {"REMOTE_PEER"}
    assert traffic.bytes()["REMOTE_PEER"] >= 0.99 * GIB


@pytest.mark.parametrize("tuned", [True, False], ids=["tuned", "default"])
def test_two_cold_hosts_at_once(through: Through, faulty: Store, make_cluster: MakeCluster, tuned: bool) -> None:
    """The tuned retries answer soon and let each daemon go to the store itself: seed and peers,
    three times at most.
    """
    cluster = make_cluster(tuned=tuned)
    body = big(2, 2 * SIZE)
    put(faulty, "weights.bin", body)
    mounts = [through(daemon, "--p2p", "always") for daemon in cluster.peers]
    reads = [in_background(lambda each=each: each.read("weights.bin", timeout_s=LONG_S)) for each in mounts]  # type: ignore[misc]
    assert all(each.result(LONG_S) == body for each in reads)
    assert sent_bytes(faulty, "weights.bin") <= (3.05 if tuned else 1.01) * len(body)


@pytest.mark.parametrize("mode", ["always", "auto"])
def test_three_mounts_read_a_thousand_small_files_at_once(
    through: Through, faulty: Store, make_cluster: MakeCluster, mode: str
) -> None:
    """With `auto`, every host takes files of at most 4 MiB straight from the store."""
    cluster = make_cluster(peers=3, tuned=False)
    bodies = {f"small/{number:04}.bin": bytes_of(number, 16_000 + number) for number in range(1000)}
    for name, body in bodies.items():
        put(faulty, name, body)
    mounts = [through(daemon, "--p2p", mode) for daemon in cluster.peers]

    def read_all(mounted: Mounted) -> bool:
        with ThreadPoolExecutor(8) as pool:
            found = pool.map(lambda name: (mounted.point / name).read_bytes(), bodies)
            return dict(zip(bodies, found, strict=True)) == bodies

    readers = [in_background(lambda each=each: read_all(each)) for each in mounts]  # type: ignore[misc]
    assert [each.result(5 * LONG_S) for each in readers] == [True] * 3
    total = sum(map(len, bodies.values()))
    assert sent_bytes(faulty, "small/") <= (1.01 if mode == "always" else 3) * total


@pytest.mark.parametrize("mode", ["always", "auto"])
def test_three_mounts_map_a_cold_safetensors_file_at_once(
    through: Through, faulty: Store, make_cluster: MakeCluster, mode: str
) -> None:
    cluster = make_cluster(peers=3, tuned=False)
    body, expected = safetensors(2 * SIZE)
    put(faulty, "model.safetensors", body)
    mounts = [through(daemon, "--p2p", mode) for daemon in cluster.peers]
    children = [
        subprocess.Popen(
            [sys.executable, "-c", _READ_TENSORS, mounted.point / "model.safetensors", str(seed)],
            stdout=subprocess.PIPE,
        )
        for seed, mounted in enumerate(mounts)
    ]
    assert [json.loads(child.communicate(timeout=2 * LONG_S)[0]) for child in children] == [expected] * 3
    direct = 0 if mode == "always" else len(mounts) * Policy().budget_bytes(len(body))
    # A reader that would wait seconds for the stream sends a range request in parallel. dfdaemon
    # gets it from the store each time.
    waited_for = sum(_beside_the_stream(each, len(body)) for each in mounts)
    assert sent_bytes(faulty, "model.safetensors") <= 1.01 * len(body) + direct + waited_for


def _beside_the_stream(mounted: Mounted, size_bytes: int) -> int:
    (repository,) = mounted.status()["repositories"]
    proxy_bytes = repository["fetched"]["proxy_bytes"]
    return max(0, int(proxy_bytes - size_bytes if repository["way"] == "proxy" else proxy_bytes))


def test_what_one_host_reads_from_the_middle_others_have_whole_from_peers(
    through: Through, faulty: Store, make_cluster: MakeCluster
) -> None:
    """Through the proxy that is a range, of which the seed would fetch no more than that. On a busy
    machine dfdaemon may bring the range twice itself, so only the others' bytes are counted, after
    it has the whole.
    """
    cluster = make_cluster(peers=3, tuned=False)
    body = big(3, 2 * SIZE)
    put(faulty, "table.parquet", body)
    first, *others = (through(daemon) for daemon in cluster.peers)
    traffic = Traffic(cluster.peers[0])

    def read_from_the_middle() -> bytes:
        with (first.point / "table.parquet").open("rb", buffering=0) as file:
            file.seek(SIZE)
            return b"".join(iter(lambda: file.read(MIB), b""))

    def has_the_whole() -> bool:
        brought = traffic.bytes()
        return brought.get("REMOTE_PEER", 0) + brought.get("BACK_TO_SOURCE", 0) >= len(body)

    assert within(LONG_S, read_from_the_middle) == body[SIZE:]
    until(has_the_whole, "the first host's dfdaemon has the whole file", timeout_s=LONG_S)
    before = sent_bytes(faulty, "table.parquet")
    for mounted in others:
        assert digest(mounted, "table.parquet") == hashlib.sha256(body).hexdigest()
    assert sent_bytes(faulty, "table.parquet") - before <= 2 * Policy().budget_bytes(len(body)) + 0.01 * len(body)


def safetensors(size_bytes: int) -> tuple[bytes, Mapping[str, str]]:
    """A file of 48 tensors (the format's README), and the SHA-256 of each."""
    each_bytes = size_bytes // 48
    parts = {f"layer.{number}": big(number, each_bytes) for number in range(48)}
    described = {
        name: {"dtype": "U8", "shape": [each_bytes], "data_offsets": [at * each_bytes, (at + 1) * each_bytes]}
        for at, name in enumerate(parts)
    }
    header = json.dumps(described).encode()
    header += b" " * (-len(header) % 8)
    digests = {name: hashlib.sha256(part).hexdigest() for name, part in parts.items()}
    return len(header).to_bytes(8, "little") + header + b"".join(parts.values()), digests
