"""The routes through a real Dragonfly, compared in one run: direct, dfdaemon's proxy, its socket,
and d7yfs's own cache.

    python -m bench.dragonfly [--rounds 3] [--sizes 1024,64] [--shape shaped|loopback]
        [--store minio]     as root

Each route reads a whole file through a d7yfs mount with an empty cache. *Cold*: no daemon has the
object. *Remote peer*: another host's daemon has it. *Local peer*: this host's daemon has it.

Each round has its own Dragonfly (a seed and two peers) and goes through all routes and sizes. The
table shows medians. The store counts its bytes. It is shaped to 100 MB/s in all, like the store of
Dragonfly's own published measurements, or not at all. `--store minio` takes MinIO, which those
measurements used. scripts/dragonfly.sh builds the programs.

As in every benchmark here: compare ratios of one run.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bench import dataset, minio, reads, store
from bench.catalog import BUCKET
from bench.children import ReadError, in_child
from bench.peers import PEERS, Mount, Peer, PeerError, Setting
from bench.processes import drop_page_cache
from bench.store import LOOPBACK, Profile, Store
from tests.servers import dragonfly_cluster
from tests.servers.dragonfly_cluster import Cluster, Daemon

SHAPES = (Profile("shaped", total_bytes_per_s=100e6), LOOPBACK)
MIB = 1 << 20
_LIMIT_S = 120.0
_ROOT = Path(__file__).resolve().parent.parent

DIRECT, CACHE_HIT = "direct", "d7yfs cache hit"
STAGES = ("cold", "remote peer", "local peer")
"""The stages of one object, in this order: on the first host, on the second, there again with an
empty cache.
"""
FILL = "fill"
"""The fill of a cold object by `d7yfs warm`, which shows the cost without a reader."""


@dataclass(frozen=True, slots=True)
class Way:
    """The route from d7yfs to a daemon.

    Each route has its own objects, so that the other's tasks do not warm them.
    """

    name: str

    def options(self, daemon: Daemon) -> Sequence[str]:
        if self.name == "proxy":
            return ("--proxy", daemon.proxy_url)
        return ("--dfdaemon-socket", f"unix://{daemon.socket_path}")


PROXY, SOCKET = Way("proxy"), Way("socket")


@dataclass(frozen=True, slots=True)
class Read:
    """The figures of one whole file read through one mount."""

    elapsed_s: float
    origin_bytes: int
    cpu_s: float
    """Seconds of processor time of the d7yfs process, which was mounted and idle before."""


@dataclass
class Table:
    """The reads by (shape, MiB, row), with their report."""

    reads: dict[tuple[str, int, str], list[Read]] = field(default_factory=dict)

    def add(self, shape: Profile, size_mib: int, row: str, read: Read) -> None:
        self.reads.setdefault((shape.name, size_mib, row), []).append(read)

    def median_s(self, shape: str, size_mib: int, row: str) -> float | None:
        found = self.reads.get((shape, size_mib, row))
        return statistics.median(read.elapsed_s for read in found) if found else None

    def markdown(self) -> str:
        lines = [
            "| store | MiB | way | s | MB/s | × direct | from the store | d7yfs CPU s/GiB |",
            "|---|---:|---|---:|---:|---:|---:|---:|",
        ]
        for (shape, size_mib, row), found in self.reads.items():
            elapsed_s = statistics.median(read.elapsed_s for read in found)
            direct_s = self.median_s(shape, size_mib, DIRECT)
            size_bytes = size_mib * MIB
            origin = statistics.median(read.origin_bytes for read in found) / size_bytes
            cpu_s = statistics.median(read.cpu_s for read in found) * 1024 / size_mib
            ratio = f"{elapsed_s / direct_s:.2f}" if direct_s else ""
            lines.append(
                f"| {shape} | {size_mib:,} | {row} | {elapsed_s:.2f} | {size_bytes / elapsed_s / 1e6:,.0f} | {ratio} "
                f"| {origin:.3f} × | {cpu_s:.2f} |"
            )
        return "\n".join([*lines, "", *self._verdicts(), ""])

    def _verdicts(self) -> Iterator[str]:
        """The published ratios, and this project's own goals, for the largest objects."""
        largest = max(size_mib for _, size_mib, _ in self.reads)
        for shape, row, other, most in (
            ("shaped", "proxy cold", DIRECT, 1.04),
            ("shaped", "proxy remote peer", DIRECT, 0.5),
            ("shaped", "proxy local peer", DIRECT, 0.1),
            ("shaped", "socket local peer", DIRECT, 0.1),
            ("loopback", "socket cold", "proxy cold", 1 / 1.5),
        ):
            one, two = self.median_s(shape, largest, row), self.median_s(shape, largest, other)
            if one and two:
                met = "met" if one / two <= most else "**missed**"
                yield f"- {shape}, {largest:,} MiB: {row} {one / two:.2f} × {other} (goal: at most {most:.2f}) {met}"


@dataclass(frozen=True, slots=True)
class Bench:
    """The parts that all reads share."""

    served: Store
    scratch: Path

    @contextlib.contextmanager
    def mounted(self, shape: Profile, options: Sequence[str]) -> Iterator[tuple[Mount, Path]]:
        """A d7yfs with an empty cache, on the file system of the daemons' stores. Raises PeerError."""
        ours = PEERS["d7yfs"]
        peer = Peer(ours.name, lambda setting: [*ours.command(setting), *options])
        with tempfile.TemporaryDirectory(prefix="mount-", dir=self.scratch) as name:
            directory = Path(name)
            point, cache = directory / "mnt", directory / "cache"
            point.mkdir()
            cache.mkdir(mode=0o700)
            mount = Mount(peer, Setting(self.served, shape, point, cache), directory / "log")
            try:
                mount.mount()
                yield mount, point
            finally:
                mount.unmount()

    def read(self, mount: Mount, path: Path) -> Read:
        """Read the whole file in order. Raises ReadError."""
        return self._measured(mount, lambda: in_child(_LIMIT_S, reads.sequential, path, _LIMIT_S).elapsed_s)

    def fill(self, mount: Mount, path: Path) -> Read:
        """Bring the whole file into the cache. Raises ReadError."""

        def warm() -> float:
            start = time.perf_counter()
            command = [sys.executable, "-m", "d7yfs", "warm", str(path)]
            done = subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT_S)
            if done.returncode:
                raise ReadError(f"d7yfs warm: {done.stderr[-300:]}")
            return time.perf_counter() - start

        return self._measured(mount, warm)

    def _measured(self, mount: Mount, reading: Callable[[], float]) -> Read:
        os.sync()  # The earlier read's writes must not delay this one.
        counted, cpu_s = self.served.counters(), mount.cpu_s()
        elapsed_s = reading()
        return Read(elapsed_s, (self.served.counters() - counted).bytes, mount.cpu_s() - cpu_s)

    def round(
        self, table: Table, cluster: Cluster, shape: Profile, size_mib: int, *, verify: bool, ways: Sequence[Way]
    ) -> None:
        """Measure every route once. Raises PeerError, ReadError."""
        self.served.shape(shape)
        with self.mounted(shape, ()) as (mount, point):
            path = point / key(size_mib, DIRECT)
            drop_page_cache()
            table.add(shape, size_mib, DIRECT, self.read(mount, path))
            in_child(_LIMIT_S, _forget_pages, path)
            table.add(shape, size_mib, CACHE_HIT, self.read(mount, path))
            self._verify(path, verify=verify)
        first, second = cluster.peers
        for way in ways:
            for stage, daemon in zip((*STAGES, FILL), (first, second, second, first), strict=True):
                if stage == FILL and shape is not LOOPBACK:
                    continue
                with self.mounted(shape, way.options(daemon)) as (mount, point):
                    path = point / key(size_mib, f"{way.name}-{FILL}" if stage == FILL else way.name)
                    reading = self.fill if stage == FILL else self.read
                    table.add(shape, size_mib, f"{way.name} {stage}", reading(mount, path))
                    self._verify(path, verify=verify)

    def _verify(self, path: Path, *, verify: bool) -> None:
        if verify:
            in_child(_LIMIT_S, reads.compare, [(path, self.served.data / path.name)])


def key(size_mib: int, way: str) -> str:
    return f"{size_mib}-{way}.bin"


def make(buckets: Path, sizes_mib: Sequence[int], ways: Sequence[Way]) -> None:
    """Write one file of random bytes per size, under one name per route: other keys are other
    versions in the same memory.
    """
    directory = buckets / BUCKET
    directory.mkdir(parents=True)
    for size_mib in sizes_mib:
        source = directory / key(size_mib, DIRECT)
        source.write_bytes(b"".join(os.urandom(MIB) for _ in range(size_mib)))
        for way in ways:
            for name in (way.name, f"{way.name}-{FILL}"):
                (directory / key(size_mib, name)).hardlink_to(source)
    (directory / dataset.LARGE).hardlink_to(
        directory / key(sizes_mib[0], DIRECT)
    )  # The store's ceiling is measured with this file.


def _forget_pages(path: Path) -> None:
    """Drop the kernel's pages of the mounted file, but not those of the cache file."""
    with path.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.dragonfly", description="Compare the routes through Dragonfly."
    )
    parser.add_argument("--rounds", type=int, default=3, help="number of rounds (default: %(default)s)")
    parser.add_argument("--sizes", default="1024,64", help="sizes of the objects in MiB (default: %(default)s)")
    parser.add_argument(
        "--shape",
        choices=[shape.name for shape in SHAPES],
        help="measure only with the store shaped to 100 MB/s, or only without",
    )
    parser.add_argument(
        "--store",
        choices=("own", "minio"),
        default="own",
        help="minio: as in Dragonfly's own measurements, always shaped; it must be on the PATH",
    )
    parser.add_argument(
        "--scratch", type=Path, default=Path("/var/tmp"), help="directory of stores and caches (default: %(default)s)"
    )
    parser.add_argument("--markdown", type=Path, help="write the table to this file too")
    arguments = parser.parse_args()
    if os.geteuid() != 0:
        parser.error("a mount, and a cold read, need root")
    signal.signal(signal.SIGTERM, lambda signum, _: sys.exit(128 + signum))
    built = subprocess.run([_ROOT / "scripts" / "dragonfly.sh"], stdout=subprocess.PIPE, text=True, check=True)
    binaries = Path(built.stdout.strip())
    sizes_mib = [int(size) for size in arguments.sizes.split(",")]
    chosen = "shaped" if arguments.store == "minio" else arguments.shape
    shapes = [shape for shape in SHAPES if chosen in (None, shape.name)]
    ways = [PROXY, SOCKET]
    table = Table()

    def making(data: Path) -> None:
        make(data, sizes_mib, ways)

    serving = (
        minio.running(making, arguments.scratch)
        if arguments.store == "minio"
        else store.running(making, sum(sizes_mib) * MIB, arguments.scratch)
    )
    with serving as served:
        print(f"the store alone: {served.ceiling_bytes_per_s() / 1e6:,.0f} MB/s to a client that throws the bytes away")
        try:
            for number in range(arguments.rounds):
                for shape in shapes:
                    one_round(served, binaries, arguments.scratch, table, shape, sizes_mib, ways, verify=number == 0)
                    load = os.getloadavg()[0]
                    print(f"round {number + 1}/{arguments.rounds}, {shape.name}: load {load:.1f}", flush=True)
        except KeyboardInterrupt:
            print("interrupted: the results so far follow")
    text = table.markdown()
    print(text)
    if arguments.markdown:
        arguments.markdown.write_text(text)
    return 0


def one_round(
    served: Store,
    binaries: Path,
    scratch: Path,
    table: Table,
    shape: Profile,
    sizes_mib: Sequence[int],
    ways: Sequence[Way],
    *,
    verify: bool,
) -> None:
    """Measure all sizes and routes with a new Dragonfly. A failure is printed, and is missing in
    the table.
    """
    with tempfile.TemporaryDirectory(prefix="d7y-", dir=scratch) as name:
        directory = Path(name)
        with dragonfly_cluster.running(directory / "c", binaries) as cluster:
            bench = Bench(served, directory)
            for size_mib in sizes_mib:
                try:
                    bench.round(table, cluster, shape, size_mib, verify=verify, ways=ways)
                except (PeerError, ReadError) as error:
                    print(f"{shape.name}, {size_mib} MiB: {error}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
