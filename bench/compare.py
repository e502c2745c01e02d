"""`make bench`: one large object read through d7yfs, s3fs, rclone mount and curl, side by side in one run.

The rounds are interleaved, so that whatever else the machine does meets everyone; medians are shown. Absolute figures say little
about another machine, ratios do.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from bench import stores
from bench.peers import PEERS, PeerError, Sample
from bench.stores import STORES, Store

console = Console(highlight=False)


def main() -> int:
    parser = argparse.ArgumentParser(prog="make bench", description="Compare d7yfs with its peers.")
    parser.add_argument("--peers", default=",".join(PEERS), help="which, with commas between (default: %(default)s)")
    parser.add_argument("--store", choices=STORES, default="rclone", help="server to read from (default: %(default)s)")
    parser.add_argument("--size-mib", type=int, default=1024, help="size of the object (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each peer (default: %(default)s)")
    parser.add_argument("--scratch", type=Path, default=Path("/var/tmp"), help="where caches go (default: %(default)s)")
    parser.add_argument("--output", type=Path, help="also write everything to this JSON file")
    arguments = parser.parse_args()
    names = arguments.peers.split(",")
    if unknown := set(names) - set(PEERS):
        parser.error(f"no such peer: {', '.join(sorted(unknown))}; there are {', '.join(PEERS)}")
    if os.geteuid() != 0:
        parser.error("a cold read needs an empty page cache, and only root can drop it")
    # So that `kill` unmounts and stops the store as Ctrl-C does.
    signal.signal(signal.SIGTERM, lambda signum, _: sys.exit(128 + signum))

    with stores.running(arguments.store, arguments.size_mib << 20) as store:
        samples, failures = measure(names, store, arguments.rounds, arguments.scratch)
    console.print(table(samples, store))
    for name, failure in failures.items():
        console.print(f"[bold red]{name} failed:", escape(failure), soft_wrap=True)
    if arguments.output:
        arguments.output.write_text(json.dumps(report(samples, failures, store), indent=2) + "\n")
    return 1 if failures else 0


def measure(
    names: Iterable[str], store: Store, rounds: int, scratch: Path
) -> tuple[Mapping[str, list[Sample]], Mapping[str, str]]:
    """Samples and failures by peer. The bytes are verified in the first round; a peer that failed is left out thereafter."""
    samples: dict[str, list[Sample]] = {name: [] for name in names}
    failures: dict[str, str] = {}
    for number in range(rounds):
        for name in [name for name in samples if name not in failures]:
            with tempfile.TemporaryDirectory(prefix=f"d7yfs-bench-{name}-", dir=scratch) as directory:
                drop_page_cache()
                store.warm()
                try:
                    sample = PEERS[name].sample(store, Path(directory).resolve(), verify=number == 0)
                except (PeerError, OSError, subprocess.SubprocessError) as error:
                    failures[name] = str(error)
                    continue
            samples[name].append(sample)
            rate = store.size_bytes / sample.cold_s / 1e6
            console.print(f"round {number + 1}: {name}: cold {rate:,.0f} MB/s, {sample.cpu_s:.2f} CPU s", style="dim")
    return samples, failures


def drop_page_cache() -> None:
    """Write back what the run before left behind, then empty the page cache."""
    os.sync()
    Path("/proc/sys/vm/drop_caches").write_text("3")


def medians(samples: Iterable[Sample], size_bytes: int) -> dict[str, float]:
    """What the table shows of one peer: rates in MB/s, CPU seconds per GiB, memory in MB."""
    rows = list(samples)
    return {
        "cold_mb_s": statistics.median(size_bytes / row.cold_s / 1e6 for row in rows),
        "second_mb_s": statistics.median(size_bytes / row.second_s / 1e6 for row in rows),
        "cpu_s_per_gib": statistics.median(row.cpu_s / size_bytes * 2**30 for row in rows),
        "peak_rss_mb": max(row.peak_rss_bytes for row in rows) / 1e6,
    }


def table(samples: Mapping[str, list[Sample]], store: Store) -> Table:
    """One line per peer."""
    result = Table(
        title=f"{store.size_bytes >> 20} MiB from {store.name} on loopback",
        caption="medians; second read of curl: its local file; memory: the largest of all rounds",
    )
    result.add_column("peer")
    for column in ("cold MB/s", "d7yfs is ×", "second MB/s", "CPU s/GiB", "peak RSS MB"):
        result.add_column(column, justify="right")
    figures = {name: medians(rows, store.size_bytes) for name, rows in samples.items() if rows}
    ours = figures.get("d7yfs")
    for name, row in figures.items():
        result.add_row(
            name,
            f"{row['cold_mb_s']:,.0f}",
            f"{ours['cold_mb_s'] / row['cold_mb_s']:.2f}" if ours else "",
            f"{row['second_mb_s']:,.0f}",
            f"{row['cpu_s_per_gib']:.2f}",
            f"{row['peak_rss_mb']:,.0f}" if row["peak_rss_mb"] else "",
        )
    return result


def report(samples: Mapping[str, list[Sample]], failures: Mapping[str, str], store: Store) -> dict[str, Any]:
    """Everything, for a JSON file."""
    return {
        "store": store.name,
        "size_bytes": store.size_bytes,
        "machine": {"cpus": os.cpu_count(), "kernel": platform.release(), "python": platform.python_version()},
        "failures": failures,
        "peers": {
            name: {"medians": medians(rows, store.size_bytes), "samples": [asdict(row) for row in rows]}
            for name, rows in samples.items()
            if rows
        },
    }


if __name__ == "__main__":
    sys.exit(main())
