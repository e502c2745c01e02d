"""Seconds until a real Triton has a model ready: from a d7yfs mount, a local directory, and
Triton's own s3:// client, in one run.

    python -m bench.triton [--rounds 3] [--sizes 64,1024] [--shape shaped|loopback]     as root

The time is from the server's start to the model's READY; the mount exists before. A model reads its
file of weights whole.

- *cold*: this host has nothing of the model.
- *warm*: a second start and a third, in turn with the local directory's.
- *again*: the mount and its daemon were restarted. The page cache is empty, d7yfs's cache is not.
  For a local directory only the page cache is empty.

Triton's own client has no *warm*: its second start is one. With D7YFS_DRAGONFLY_BIN set, the bench
also goes through a real Dragonfly, as `bench.dragonfly` does. Rounds are interleaved. The table
shows medians and the store's bytes. A server whose model has no weights shows Triton's own time;
*load* is the time beyond that. scripts/triton.sh installs the server.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy

from bench import dataset, store
from bench.catalog import BUCKET
from bench.dragonfly import PROXY, SHAPES, SOCKET, STAGES, Bench, Way
from bench.peers import PeerError
from bench.processes import drop_page_cache
from bench.store import LOOPBACK, Profile, Store
from tests.servers import dragonfly_cluster, triton
from tests.servers.dragonfly_cluster import ClusterError
from tests.servers.triton import TritonError

MIB = 1 << 20
_LIMIT_S = 180.0
_WARM_STARTS = 2
_ROOT = Path(__file__).resolve().parent.parent

OWN_START = "a model without weights"
LOCAL_WARM, LOCAL_AGAIN = "local directory, warm", "local directory, again"
NATIVE, NATIVE_WARM = "Triton's own s3:// client", "Triton's own s3:// client, second start"
COLD, WARM, AGAIN = "d7yfs cold", "d7yfs warm", "d7yfs again"

_MODEL = """\
import numpy
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        directory = args["model_repository"] + "/" + args["model_version"]
        with open(directory + "/weights.bin", "rb") as file:
            self.weights = numpy.frombuffer(file.read(), dtype=numpy.uint64)
        wanted = int(open(directory + "/sum").read())
        if int(self.weights.sum(dtype=numpy.uint64)) != wanted:
            raise pb_utils.TritonModelException("the weights are wrong")

    def execute(self, requests):
        raise NotImplementedError
"""
_CONFIG = """\
backend: "python"
input [ { name: "IN" data_type: TYPE_INT32 dims: [ 1 ] } ]
output [ { name: "OUT" data_type: TYPE_INT32 dims: [ 1 ] } ]
instance_group [ { kind: KIND_CPU count: 1 } ]
"""


@dataclass(frozen=True, slots=True)
class Start:
    """The figures of one start of a server."""

    elapsed_s: float
    origin_bytes: int


@dataclass
class Table:
    """The starts by (store, MiB, row), with their report."""

    starts: dict[tuple[str, int, str], list[Start]] = field(default_factory=dict)

    def add(self, shape: Profile, size_mib: int, row: str, start: Start) -> None:
        self.starts.setdefault((shape.name, size_mib, row), []).append(start)
        print(f"  {shape.name}, {size_mib} MiB, {row}: {start.elapsed_s:.2f} s", flush=True)

    def _elapsed_s(self, shape: str, size_mib: int, row: str) -> float | None:
        found = self.starts.get((shape, size_mib, row))
        return statistics.median(start.elapsed_s for start in found) if found else None

    def _load_s(self, shape: str, size_mib: int, row: str) -> float | None:
        elapsed_s, own_s = self._elapsed_s(shape, size_mib, row), self._elapsed_s(shape, 0, OWN_START)
        return max(elapsed_s - own_s, 0.0) if elapsed_s is not None and own_s is not None else None

    def markdown(self) -> str:
        lines = [
            "| store | MiB | from | ready after s | of it load s | from the store |",
            "|---|---:|---|---:|---:|---:|",
        ]
        for (shape, size_mib, row), found in sorted(self.starts.items(), key=lambda each: (each[0][0], each[0][1])):
            load_s = self._load_s(shape, size_mib, row)
            origin = statistics.median(start.origin_bytes for start in found) / (size_mib * MIB) if size_mib else 0.0
            load = "" if load_s is None or not size_mib else f"{load_s:.2f}"
            lines.append(
                f"| {shape} | {size_mib:,} | {row} | {self._elapsed_s(shape, size_mib, row):.2f} | {load} | {origin:.3f} × |"
            )
        return "\n".join([*lines, "", *self._verdicts(), ""])

    def _verdicts(self) -> Iterator[str]:
        for size_mib in sorted({size_mib for _, size_mib, _ in self.starts if size_mib}):
            for shape, row, other, most in (
                ("loopback", COLD, NATIVE, 1.0),
                ("shaped", COLD, NATIVE, 1.0),
                ("loopback", WARM, LOCAL_WARM, 1.1),
                ("loopback", WARM, NATIVE_WARM, 1.0),
            ):
                one, two = self._elapsed_s(shape, size_mib, row), self._elapsed_s(shape, size_mib, other)
                if one and two:
                    yield _verdict(f"{shape}, {size_mib:,} MiB, ready: {row}", one / two, other, most)
        largest = max(size_mib for _, size_mib, _ in self.starts)
        for way in (PROXY, SOCKET):
            for stage, most in (("remote peer", 0.5), ("local peer", 0.1)):
                one = self._load_s("shaped", largest, f"{way.name} {stage}")
                two = self._load_s("shaped", largest, COLD)
                if one is not None and two:
                    yield _verdict(f"shaped, {largest:,} MiB, load: {way.name} {stage}", one / two, COLD, most)


def _verdict(what: str, ratio: float, other: str, most: float) -> str:
    met = "met" if ratio <= most else "**missed**"
    return f"- {what} {ratio:.2f} × {other} (goal: at most {most:.2f}) {met}"


@dataclass(frozen=True, slots=True)
class Server:
    """A Triton that can be started and timed."""

    program: Path
    served: Store
    scratch: Path

    def start(self, repository: Path | str) -> Start:
        """Start until model m of `repository` serves. Raises TritonError."""
        os.sync()  # Earlier writes must not delay this start.
        counted = self.served.counters()
        environment: Mapping[str, str] = self.served.environment
        with tempfile.TemporaryDirectory(prefix="triton-", dir=self.scratch) as name:
            # Triton's own client downloads to this directory, on the same disk for every source.
            env = {**environment, "TRITON_AWS_MOUNT_DIRECTORY": name}
            begin = time.perf_counter()
            with triton.running(self.program, repository, Path(name) / "log", env=env) as server:
                server.wait_for("m", timeout_s=_LIMIT_S)
                elapsed_s = time.perf_counter() - begin
            return Start(elapsed_s, (self.served.counters() - counted).bytes)

    def empty_page_cache(self, local: Path) -> None:
        """Empty the page cache, but keep the server's own program in it, whose reading no row
        should pay for. Raises TritonError.
        """
        drop_page_cache()
        self.start(local / repository_of(0, "direct"))


def one_round(
    table: Table, server: Server, shape: Profile, sizes_mib: Sequence[int], dragonfly: Path | None, local: Path
) -> None:
    """Measure every source once. A failure is printed, and is missing in the table."""
    server.served.shape(shape)
    table.add(shape, 0, OWN_START, server.start(local / repository_of(0, "direct")))
    for size_mib in sizes_mib:
        name = repository_of(size_mib, "direct")
        try:
            if shape is LOOPBACK:
                server.empty_page_cache(local)
                table.add(shape, size_mib, LOCAL_AGAIN, server.start(local / name))
            url = f"s3://{server.served.endpoint_url(shape)}/{BUCKET}/{name}"
            table.add(shape, size_mib, NATIVE, server.start(url))
            if shape is LOOPBACK:
                table.add(shape, size_mib, NATIVE_WARM, server.start(url))
            with tempfile.TemporaryDirectory(prefix="d7y-", dir=server.scratch) as directory:
                direct(table, Bench(server.served, Path(directory)), server, shape, size_mib, local)
                if dragonfly is not None:
                    through_dragonfly(table, server, shape, size_mib, dragonfly, Path(directory))
        except (PeerError, TritonError, ClusterError, OSError) as error:
            print(f"{shape.name}, {size_mib} MiB: {error}", file=sys.stderr)


def direct(table: Table, bench: Bench, server: Server, shape: Profile, size_mib: int, local: Path) -> None:
    """Measure cold; warm, in turn with a warm local directory; and after a restart of the daemon.
    Raises PeerError, TritonError.
    """
    name = repository_of(size_mib, "direct")
    with bench.mounted(shape, ()) as (mount, point):
        server.empty_page_cache(local)
        table.add(shape, size_mib, COLD, server.start(point / name))
        if shape is not LOOPBACK:
            return
        server.start(local / name)  # Its pages were dropped.
        for _ in range(_WARM_STARTS):
            table.add(shape, size_mib, LOCAL_WARM, server.start(local / name))
            table.add(shape, size_mib, WARM, server.start(point / name))
        mount.unmount()
        server.empty_page_cache(local)
        mount.mount()
        table.add(shape, size_mib, AGAIN, server.start(point / name))


def through_dragonfly(
    table: Table, server: Server, shape: Profile, size_mib: int, binaries: Path, directory: Path
) -> None:
    """Measure each route's stages in order through a new cluster, each with an empty cache of
    d7yfs. Raises the errors of its parts.
    """
    with dragonfly_cluster.running(directory / "c", binaries) as cluster:
        bench = Bench(server.served, directory)
        first, second = cluster.peers
        for way in (PROXY, SOCKET):
            for stage, daemon in zip(STAGES, (first, second, second), strict=True):
                with bench.mounted(shape, way.options(daemon)) as (_, point):
                    start = server.start(point / repository_of(size_mib, way.name))
                    table.add(shape, size_mib, f"{way.name} {stage}", start)


def repository_of(size_mib: int, way: str) -> str:
    """The name of a route's own copy: other keys are other tasks of Dragonfly."""
    return f"{size_mib}-{way}"


def make(directory: Path, sizes_mib: Sequence[int], ways: Sequence[str]) -> None:
    """Write a model repository per size and route; the weights of one size are one file in memory."""
    directory.mkdir(parents=True, exist_ok=True)
    for size_mib in sizes_mib:
        weights = b"".join(os.urandom(MIB) for _ in range(size_mib))
        checksum = int(numpy.frombuffer(weights, dtype=numpy.uint64).sum(dtype=numpy.uint64))
        first: Path | None = None
        for way in ways:
            version = directory / repository_of(size_mib, way) / "m" / "1"
            version.mkdir(parents=True)
            if first is None:
                first = version / "weights.bin"
                first.write_bytes(weights)
            else:
                (version / "weights.bin").hardlink_to(first)
            (version / "sum").write_text(str(checksum))
            (version / "model.py").write_text(_MODEL)
            (version.parent / "config.pbtxt").write_text(_CONFIG)


def make_store(buckets: Path, sizes_mib: Sequence[int], ways: Sequence[Way]) -> None:
    """Write the store's bucket with `make`."""
    directory = buckets / BUCKET
    make(directory, sizes_mib, ["direct", *(way.name for way in ways)])
    # The store's ceiling is measured with this file.
    (directory / dataset.LARGE).hardlink_to(
        directory / repository_of(sizes_mib[0], "direct") / "m" / "1" / "weights.bin"
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.triton", description="Time until Triton has a model ready.")
    parser.add_argument("--rounds", type=int, default=3, help="number of rounds (default: %(default)s)")
    parser.add_argument("--sizes", default="64,1024", help="sizes of the weights in MiB (default: %(default)s)")
    parser.add_argument(
        "--shape",
        choices=[shape.name for shape in SHAPES],
        help="measure only with the store shaped to 100 MB/s, or only without",
    )
    parser.add_argument(
        "--scratch", type=Path, default=Path("/var/tmp"), help="directory of stores and caches (default: %(default)s)"
    )
    parser.add_argument("--markdown", type=Path, help="write the table to this file too")
    arguments = parser.parse_args()
    if os.geteuid() != 0:
        parser.error("a mount, and a cold read, need root")
    signal.signal(signal.SIGTERM, lambda signum, _: sys.exit(128 + signum))
    program = Path(_printed_by("triton.sh"))
    dragonfly = Path(_printed_by("dragonfly.sh")) if os.environ.get("D7YFS_DRAGONFLY_BIN") else None
    sizes_mib = [int(size) for size in arguments.sizes.split(",")]
    shapes = [shape for shape in SHAPES if arguments.shape in (None, shape.name)]
    ways = [PROXY, SOCKET]
    table = Table()
    with (
        store.running(
            lambda buckets: make_store(buckets, sizes_mib, ways), sum(sizes_mib) * MIB, arguments.scratch
        ) as served,
        tempfile.TemporaryDirectory(prefix="d7yfs-bench-triton-", dir=arguments.scratch) as scratch,
    ):
        print(f"the store alone: {served.ceiling_bytes_per_s() / 1e6:,.0f} MB/s to a client that throws the bytes away")
        local = Path(scratch) / "local"
        make(local, [0], ["direct"])
        for size_mib in sizes_mib:
            name = repository_of(size_mib, "direct")
            shutil.copytree(served.data / name, local / name)
        server = Server(program, served, Path(scratch))
        try:
            for number in range(arguments.rounds):
                for shape in shapes:
                    print(
                        f"round {number + 1}/{arguments.rounds}, {shape.name}: load {os.getloadavg()[0]:.1f}",
                        flush=True,
                    )
                    one_round(table, server, shape, sizes_mib, dragonfly, local)
        except KeyboardInterrupt:
            print("interrupted: the results so far follow")
    text = table.markdown()
    print(text)
    if arguments.markdown:
        arguments.markdown.write_text(text)
    return 0


def _printed_by(script: str) -> str:
    """The directory that the script installs to, as it prints it. Raises CalledProcessError; the
    script prints the reason.
    """
    return subprocess.run([_ROOT / "scripts" / script], stdout=subprocess.PIPE, text=True, check=True).stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
