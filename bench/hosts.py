"""Several hosts that read one model at the same time through a real Dragonfly, with `--p2p auto` and
`always`: `python -m bench.hosts [--rounds 3] [--hosts 3] [--output FILE]`, as root.

Each host is a dfdaemon of its own with a mount that has an empty cache. A store that gives 100 MB/s
in all counts what it sends. *late* are two more hosts that read once the others have all.

`--output` is what `python -m bench.rollout --real FILE` simulates again. As in every benchmark
here: compare ratios of one run.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench import dataset, store
from bench.catalog import BUCKET
from bench.dragonfly import MIB, PROXY, SHAPES, SOCKET, Bench, Way
from bench.peers import PeerError
from bench.processes import drop_page_cache
from tests.servers import dragonfly_cluster
from tests.servers.dragonfly_cluster import Daemon

SHAPE = SHAPES[0]
LATE_HOSTS = 2
_LIMIT_S = 180.0
_ROOT = Path(__file__).resolve().parent.parent

_READ = """
import sys, time
buffer = memoryview(bytearray(1 << 20))
began = time.monotonic()
first = None
for path in sys.argv[1:]:
    with open(path, "rb", buffering=0) as file:
        while file.readinto(buffer):
            first = first or time.monotonic() - began
print(first, time.monotonic() - began)
"""


@dataclass(frozen=True, slots=True)
class Model:
    """A model: so many files of one size."""

    name: str
    files: int
    size_mib: int

    @property
    def size_bytes(self) -> int:
        return self.files * self.size_mib * MIB

    def keys(self, case: str) -> Sequence[str]:
        """The names of its files in a case, which shares its tasks with no other."""
        return [f"{self.name}-{case}-{number}.safetensors" for number in range(self.files)]


MODELS = (Model("one", 1, 1024), Model("shards", 24, 16))
CASES = [(model, way, mode) for model in MODELS for way in (PROXY, SOCKET) for mode in ("auto", "always")]


@dataclass(frozen=True, slots=True)
class Reading:
    """Hosts that have read a model at the same time."""

    first_byte_s: float
    """The median of the hosts, like the next one."""
    ready_s: float
    origin_times: float


def at_once(bench: Bench, daemons: Sequence[Daemon], model: Model, way: Way, mode: str) -> Reading:
    """Have a host at each of `daemons` read `model`. Raises PeerError."""
    with contextlib.ExitStack() as stack:
        options = [(*way.options(daemon), "--p2p", mode) for daemon in daemons]
        points = [stack.enter_context(bench.mounted(SHAPE, each))[1] for each in options]
        keys = model.keys(f"{way.name}-{mode}")
        drop_page_cache()
        os.sync()
        counted = bench.served.counters()
        readers = [
            subprocess.Popen([sys.executable, "-c", _READ, *(point / key for key in keys)], stdout=subprocess.PIPE)
            for point in points
        ]
        try:
            told = [reader.communicate(timeout=_LIMIT_S)[0].split() for reader in readers]
        finally:
            for reader in readers:
                reader.kill()
        if any(len(each) != 2 for each in told):
            raise PeerError(f"{model.name} by {way.name}, {mode}: a reader failed")
        time.sleep(1)  # the store's counters are of requests that have ended
        sent_bytes = (bench.served.counters() - counted).bytes
        first, ready = (statistics.median(float(each[place]) for each in told) for place in (0, 1))
        return Reading(first, ready, sent_bytes / model.size_bytes)


def one_round(bench: Bench, binaries: Path, hosts: int) -> Iterator[tuple[str, Reading]]:
    """All cases with a new Dragonfly."""
    with (
        tempfile.TemporaryDirectory(prefix="d7y-", dir=bench.scratch) as name,
        dragonfly_cluster.running(Path(name), binaries, peers=hosts + LATE_HOSTS) as cluster,
    ):
        for model, way, mode in CASES:
            for label, daemons in (("at once", cluster.peers[:hosts]), ("late", cluster.peers[hosts:])):
                row = f"{model.files} × {model.size_mib} MiB | {way.name} | {mode} | {len(daemons)} {label}"
                try:
                    yield row, at_once(bench, daemons, model, way, mode)
                except (PeerError, subprocess.TimeoutExpired) as error:
                    print(f"{row}: {error}", file=sys.stderr)


def make(buckets: Path) -> None:
    """Write each model once, and link it under the names of its cases."""
    directory = buckets / BUCKET
    directory.mkdir(parents=True)
    for model in MODELS:
        sources = [directory / f"{model.name}-{number}" for number in range(model.files)]
        for source in sources:
            source.write_bytes(os.urandom(model.size_mib * MIB))
        for other, way, mode in CASES:
            if other is model:
                for source, key in zip(sources, model.keys(f"{way.name}-{mode}"), strict=True):
                    (directory / key).hardlink_to(source)
    (directory / dataset.LARGE).hardlink_to(directory / f"{MODELS[0].name}-0")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.hosts", description="Hosts that read at the same time.")
    parser.add_argument("--rounds", type=int, default=3, help="number of rounds (default: %(default)s)")
    parser.add_argument("--hosts", type=int, default=3, help="hosts that read at the same time (default: %(default)s)")
    parser.add_argument("--output", type=Path, help="write the medians here, as JSON")
    parser.add_argument("--scratch", type=Path, default=Path("/var/tmp"), help="directory of stores and caches")
    arguments = parser.parse_args()
    if os.geteuid() != 0:
        parser.error("a mount, and a cold read, need root")
    signal.signal(signal.SIGTERM, lambda signum, _: sys.exit(128 + signum))
    built = subprocess.run([_ROOT / "scripts" / "dragonfly.sh"], stdout=subprocess.PIPE, text=True, check=True)
    binaries = Path(built.stdout.strip())
    found: dict[str, list[Reading]] = {}
    total_bytes = sum(model.size_bytes for model in MODELS)
    with store.running(make, total_bytes, arguments.scratch) as served:
        served.shape(SHAPE)
        for number in range(arguments.rounds):
            for row, reading in one_round(Bench(served, arguments.scratch), binaries, arguments.hosts):
                found.setdefault(row, []).append(reading)
                print(f"round {number + 1}: {row}: {reading}", flush=True)
    print("| model | way | mode | hosts | origin × | first byte | ready |")
    print("|---|---|---|---|---:|---:|---:|")
    medians = {row: _median(readings) for row, readings in found.items()}
    for row, each in medians.items():
        print(f"| {row} | {each.origin_times:.3f} | {1000 * each.first_byte_s:.0f} ms | {each.ready_s:.2f} s |")
    if arguments.output:
        described = [_described(row, each, arguments.hosts) for row, each in medians.items()]
        arguments.output.write_text(json.dumps(described, indent=1))
    return 0


def _median(readings: Sequence[Reading]) -> Reading:
    columns = ([getattr(each, name) for each in readings] for name in ("first_byte_s", "ready_s", "origin_times"))
    return Reading(*(statistics.median(column) for column in columns))


def _described(row: str, reading: Reading, hosts: int) -> dict[str, object]:
    """One row as `bench.rollout` reads it."""
    name, way, mode, which = row.split(" | ")
    (model,) = (each for each in MODELS if name == f"{each.files} × {each.size_mib} MiB")
    return {
        "files_bytes": [model.size_mib * MIB] * model.files,
        "way": way,
        "mode": mode,
        "hosts": hosts if which.endswith("at once") else LATE_HOSTS,
        "is_warm": which.endswith("late"),
        "store_rate": SHAPE.total_bytes_per_s,
        "first_byte_s": reading.first_byte_s,
        "ready_s": reading.ready_s,
        "origin_times": reading.origin_times,
    }


if __name__ == "__main__":
    sys.exit(main())
