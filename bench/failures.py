"""A part of a real Dragonfly that dies or hangs while a model is read: `python -m bench.failures
[--rounds 3] [--only NAME…]`, as root.

One host reads 1 GiB, cold, from a store that gives 100 MB/s in all. When it has read a quarter, a
part fails. *origin ×* is what the store sends, by whomever, in models; *longest wait* is the longest
time that one read of 1 MiB took after that.

Each case has a Dragonfly of its own (a seed and one peer). As in every benchmark here: compare
ratios of one run.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench import dataset, store
from bench.catalog import BUCKET
from bench.dragonfly import MIB, PROXY, SHAPES, SOCKET, Bench, Way
from bench.peers import PeerError
from bench.processes import drop_page_cache
from tests.servers import dragonfly_cluster
from tests.servers.dragonfly_cluster import Cluster, Part

SHAPE = SHAPES[0]
MODEL_BYTES = 1024 * MIB
BACK_S = 4.0
"""The time for which a part is away that comes back."""
_LIMIT_S = 180.0
_ROOT = Path(__file__).resolve().parent.parent

_READ = """
import sys, time
buffer = memoryview(bytearray(1 << 20))
began = last = time.monotonic()
read, longest = 0, 0.0
with open(sys.argv[1], "rb", buffering=0) as file:
    while size := file.readinto(buffer):
        now = time.monotonic()
        read += size
        if read > int(sys.argv[2]):
            longest = max(longest, now - last)
        elif read == int(sys.argv[2]):
            print("failing", flush=True)
            sys.stdin.readline()
        last = time.monotonic()
print(read, longest, last - began)
"""


def _back(part: Part) -> None:
    """Kill a part, and start it again after `BACK_S`."""
    part.kill()
    threading.Timer(BACK_S, part.start).start()


CASES: dict[str, Callable[[Cluster], None]] = {
    "nothing fails": lambda _: None,
    f"dfdaemon dies, back after {BACK_S:g} s": lambda cluster: _back(cluster.peers[0]),
    "dfdaemon dies": lambda cluster: cluster.peers[0].kill(),
    "dfdaemon hangs": lambda cluster: cluster.peers[0].stop(),
    "scheduler dies": lambda cluster: cluster.scheduler.kill(),
    "scheduler hangs": lambda cluster: cluster.scheduler.stop(),
    "seed dies": lambda cluster: _seed(cluster).kill(),
    "seed hangs": lambda cluster: _seed(cluster).stop(),
}
EARLY = "scheduler hung before"
"""The scheduler hangs before the file is opened."""


def _seed(cluster: Cluster) -> Part:
    assert cluster.seed is not None
    return cluster.seed


@dataclass(frozen=True, slots=True)
class Reading:
    """One host that has read the model."""

    origin_times: float
    longest_wait_s: float
    ready_s: float


def one(bench: Bench, binaries: Path, way: Way, mode: str, name: str) -> Reading:
    """Read the model while a part fails. Raises PeerError."""
    with (
        tempfile.TemporaryDirectory(prefix="d7y-", dir=bench.scratch) as directory,
        dragonfly_cluster.running(Path(directory), binaries, peers=1) as cluster,
        bench.mounted(SHAPE, (*way.options(cluster.peers[0]), "--p2p", mode)) as (_, point),
    ):
        drop_page_cache()
        os.sync()
        if name == EARLY:
            cluster.scheduler.stop()
        counted = bench.served.counters()
        quarter = str(MODEL_BYTES // 4)
        command = [sys.executable, "-c", _READ, str(point / dataset.LARGE), quarter]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as reader:
            assert reader.stdout is not None
            reader.stdout.readline()
            if name != EARLY:
                CASES[name](cluster)
            try:
                told = reader.communicate("go\n", timeout=_LIMIT_S)[0].split()
            finally:
                reader.kill()
        if len(told) != 3 or int(told[0]) != MODEL_BYTES:
            raise PeerError(f"{name}, {way.name}, {mode}: the reader failed: {told}")
        time.sleep(1)  # the store's counters are of requests that have ended
        sent_bytes = (bench.served.counters() - counted).bytes
        return Reading(sent_bytes / MODEL_BYTES, float(told[1]), float(told[2]))


def make(buckets: Path) -> None:
    """Write the model."""
    directory = buckets / BUCKET
    directory.mkdir(parents=True)
    with (directory / dataset.LARGE).open("wb") as file:
        for _ in range(MODEL_BYTES // (16 * MIB)):
            file.write(os.urandom(16 * MIB))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.failures", description="Parts of Dragonfly that fail.")
    parser.add_argument("--rounds", type=int, default=3, help="number of rounds (default: %(default)s)")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="only the cases whose rows contain one of these")
    parser.add_argument("--scratch", type=Path, default=Path("/var/tmp"), help="directory of stores and caches")
    arguments = parser.parse_args()
    if os.geteuid() != 0:
        parser.error("a mount, and a cold read, need root")
    signal.signal(signal.SIGTERM, lambda signum, _: sys.exit(128 + signum))
    built = subprocess.run([_ROOT / "scripts" / "dragonfly.sh"], stdout=subprocess.PIPE, text=True, check=True)
    binaries = Path(built.stdout.strip())
    cases = [(name, way, mode) for name in (*CASES, EARLY) for way in (PROXY, SOCKET) for mode in ("auto", "always")]
    found: dict[str, list[Reading]] = {}
    with store.running(make, MODEL_BYTES, arguments.scratch) as served:
        served.shape(SHAPE)
        bench = Bench(served, arguments.scratch)
        for number in range(arguments.rounds):
            for name, way, mode in cases:
                row = f"{name} | {way.name} | {mode}"
                if arguments.only and not any(each in row for each in arguments.only):
                    continue
                try:
                    reading = one(bench, binaries, way, mode, name)
                except (PeerError, subprocess.TimeoutExpired) as error:
                    print(f"{row}: {error}", file=sys.stderr)
                    continue
                found.setdefault(row, []).append(reading)
                print(f"round {number + 1}: {row}: {reading}", flush=True)
    print("| failure | way | mode | origin × | longest wait | ready |")
    print("|---|---|---|---:|---:|---:|")
    for row, readings in found.items():
        each = _median(readings)
        print(f"| {row} | {each.origin_times:.3f} | {each.longest_wait_s:.2f} s | {each.ready_s:.2f} s |")
    return 0


def _median(readings: Sequence[Reading]) -> Reading:
    columns = ([getattr(each, name) for each in readings] for name in ("origin_times", "longest_wait_s", "ready_s"))
    return Reading(*(statistics.median(column) for column in columns))


if __name__ == "__main__":
    sys.exit(main())
