"""`python -m bench.transport`: the cost in Python of each path from a socket into a file, alone and
while the process serves FUSE.

The store is that of `make bench`, on loopback. In the runs with a reader, the downloading process
is also a pyfuse3 file system (`bench.pyfuse3_memory`). `dd` reads from it without pause: both share
one interpreter, as in d7yfs. The rounds are interleaved.
"""

from __future__ import annotations

import argparse
import contextlib
import inspect
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple, cast

import pyfuse3
import trio
from rich.console import Console
from rich.table import Table

from bench import dataset, pyfuse3_memory, store
from bench.catalog import BUCKET
from bench.children import in_child
from bench.processes import drop_page_cache
from bench.ways import WAYS, Job, Way, context

_WIDTH = 130
"""Columns of the table if the output is no terminal."""

console = Console(highlight=False, width=None if sys.stdout.isatty() else _WIDTH)

_CURL = "curl -o file"
_PLAIN = (
    (_CURL, 1),
    *(("trio, recv_into + pwrite", connections) for connections in (1, 2, 4)),
    *(("threads, recv_into + pwrite", connections) for connections in (1, 2, 4)),
    *(("threads, splice", connections) for connections in (1, 2, 4)),
    ("threads, recv_into the mapped file", 2),
)
_TLS = (
    (_CURL, 1),
    *(("trio, recv_into + pwrite", connections) for connections in (1, 4)),
    *(("threads, recv_into + pwrite", connections) for connections in (1, 2, 4)),
)
_LIMIT_S = 60.0


class Figures(NamedTuple):
    """The figures of one run; processor time is the downloading process's, the serving of the
    reader included.
    """

    mb_s: float
    cpu_s_per_gib: float
    reader_mb_s: float


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the table."""

    way: str
    connections: int
    tls: bool
    reader: bool


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.transport", description="Compare paths from a socket into a file."
    )
    parser.add_argument("--size-mib", type=int, default=1024, help="size of the object (default: %(default)s)")
    parser.add_argument("--part-mib", type=int, default=16, help="size of one range (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="number of rounds (default: %(default)s)")
    parser.add_argument(
        "--scratch", type=Path, default=Path("/var/tmp"), help="directory of the files (default: %(default)s)"
    )
    parser.add_argument("--output", type=Path, help="also write every run to this JSON file")
    arguments = parser.parse_args()
    if os.geteuid() != 0:
        parser.error("emptying the page cache and mounting take root")
    size_bytes = arguments.size_mib << 20
    rows = [
        Row(way, connections, tls, reader)
        for tls, ways in ((False, _PLAIN), (True, _TLS))
        for way, connections in ways
        for reader in (False, True)
        if not (way == _CURL and reader)
    ]
    samples: dict[Row, list[Figures]] = {row: [] for row in rows}
    sizes = replace(dataset.TINY, large_bytes=size_bytes)
    with store.running(lambda buckets: dataset.make(buckets, sizes), sizes.total_bytes, arguments.scratch) as served:
        for number in range(arguments.rounds):
            with console.status("") as status:
                for row in rows:
                    beside = " with FUSE" if row.reader else ""
                    status.update(f"round {number + 1}/{arguments.rounds}: {row.way}, {row.connections}{beside}")
                    with tempfile.TemporaryDirectory(prefix="d7yfs-bench-", dir=arguments.scratch) as scratch:
                        drop_page_cache()
                        samples[row].append(_measured(served, row, Path(scratch), arguments.part_mib << 20))
    medians = {
        row: Figures(*(statistics.median(column) for column in zip(*each, strict=True)))
        for row, each in samples.items()
    }
    console.print(_table(medians, arguments.size_mib))
    if arguments.output:
        found = [
            {
                **{name: getattr(row, name) for name in ("way", "connections", "tls", "reader")},
                "runs": [run._asdict() for run in runs],
            }
            for row, runs in samples.items()
        ]
        arguments.output.write_text(json.dumps(found, indent=1) + "\n")
    return 0


def _measured(served: store.Store, row: Row, scratch: Path, part_bytes: int) -> Figures:
    profile = store.LOOPBACK_TLS if row.tls else store.LOOPBACK
    target = scratch / "target"
    if row.way == _CURL:
        return _curl(served.url(profile, dataset.LARGE), served.ca_file, target)
    mountpoint = None
    if row.reader:
        mountpoint = scratch / "mnt"
        mountpoint.mkdir()
    try:
        return in_child(_LIMIT_S, _in_process, served, row, target, mountpoint, part_bytes)
    finally:
        if mountpoint and mountpoint.is_mount():
            subprocess.run(["umount", "--lazy", mountpoint], check=False)


def _curl(url: str, ca_file: Path, target: Path) -> Figures:
    start = time.perf_counter()
    process = subprocess.Popen(["curl", "--silent", "--fail", "--cacert", str(ca_file), "--output", str(target), url])
    _, status, usage = os.wait4(process.pid, 0)
    elapsed_s = time.perf_counter() - start
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise OSError(f"curl ended with status {process.returncode}")
    size_bytes = target.stat().st_size
    return Figures(size_bytes / elapsed_s / 1e6, (usage.ru_utime + usage.ru_stime) / size_bytes * 2**30, 0.0)


def _in_process(served: store.Store, row: Row, target: Path, mountpoint: Path | None, part_bytes: int) -> Figures:
    """Run in a child: this process downloads, and serves the mount if there is one."""
    source = served.data / dataset.LARGE
    size_bytes = source.stat().st_size
    with target.open("w+b") as out:
        out.truncate(size_bytes)
        port, tls = (served.tls_port, context(served.ca_file)) if row.tls else (served.plain_port, None)
        job = Job(port, f"/{BUCKET}/{dataset.LARGE}", size_bytes, part_bytes, out.fileno(), tls)
        job.cut()
        figures = trio.run(_timed, job, row, served.data, mountpoint)
    # A path counts only if it brings the right bytes.
    if subprocess.run(["cmp", "--silent", source, target], check=False).returncode:
        raise OSError(f"{row.way}: wrong bytes")
    return figures


async def _timed(job: Job, row: Row, data: Path, mountpoint: Path | None) -> Figures:
    async with _reader(data, mountpoint) as served_bytes:
        before, start, spent_s = served_bytes(), time.perf_counter(), _cpu_s()
        async with trio.open_nursery() as nursery:
            for _ in range(row.connections):
                nursery.start_soon(_run, WAYS[row.way], job)
        elapsed_s, spent_s = time.perf_counter() - start, _cpu_s() - spent_s
        reader_bytes = served_bytes() - before
    return Figures(job.size_bytes / elapsed_s / 1e6, spent_s / job.size_bytes * 2**30, reader_bytes / elapsed_s / 1e6)


async def _run(way: Way, job: Job) -> None:
    if inspect.iscoroutinefunction(way):
        await way(job)
    else:
        await trio.to_thread.run_sync(cast(Callable[[Job], None], way), job)


@contextlib.asynccontextmanager
async def _reader(data: Path, mountpoint: Path | None) -> AsyncIterator[Callable[[], int]]:
    """A mount served by this process, from which `dd` reads again and again; yields a function that
    gives the bytes it got.
    """
    if mountpoint is None:
        yield lambda: 0
        return
    memory = pyfuse3_memory.mount(data, mountpoint)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(pyfuse3_memory.serve, mountpoint)
        dd = _start_dd(mountpoint / dataset.WEIGHTS)
        try:
            await trio.to_thread.run_sync((mountpoint / dataset.LARGE).stat)  # The mount answers.
            yield lambda: memory.served_bytes
        finally:
            os.killpg(dd.pid, 9)
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(dd.wait)
            nursery.cancel_scope.cancel()
    pyfuse3.close(unmount=True)


def _start_dd(path: Path) -> subprocess.Popen[bytes]:
    """Start dd in its own session, so that the shell and its dd end together."""
    script = 'while dd if="$0" of=/dev/null bs=1M status=none; do :; done'
    return subprocess.Popen(["sh", "-c", script, path], start_new_session=True)


def _cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def _table(medians: dict[Row, Figures], size_mib: int) -> Table:
    table = Table(title=f"{size_mib} MiB from loopback into a file: medians", title_justify="left")
    table.add_column("way", no_wrap=True)
    for name in ("connections", "TLS", "MB/s", "CPU s/GiB", "MB/s with FUSE", "CPU s/GiB of both", "FUSE MB/s"):
        table.add_column(name, justify="right")
    for row, alone in medians.items():
        if row.reader:
            continue
        beside = medians.get(Row(row.way, row.connections, row.tls, reader=True))
        cells = [f"{beside.mb_s:,.0f}", f"{beside.cpu_s_per_gib:.2f}", f"{beside.reader_mb_s:,.0f}"] if beside else []
        tls = "TLS" if row.tls else ""
        table.add_row(row.way, str(row.connections), tls, f"{alone.mb_s:,.0f}", f"{alone.cpu_s_per_gib:.2f}", *cells)
    return table


if __name__ == "__main__":
    sys.exit(main())
