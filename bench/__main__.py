"""`make bench`: every case through d7yfs and its peers, interleaved; see bench/README.md."""

from __future__ import annotations

import argparse
import compileall
import fnmatch
import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from bench import dataset, store
from bench.cases import CASES
from bench.cases.case import Case
from bench.children import ReadError
from bench.measure import Bench, turn
from bench.peers import NAMES, PeerError, is_missing
from bench.processes import memory_bytes
from bench.report import as_json, markdown, tables
from bench.results import OURS, Results

_WIDTH = 150
"""Columns of the tables if the output is no terminal."""

console = Console(highlight=False, width=None if sys.stdout.isatty() else _WIDTH)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description="Compare d7yfs with its peers.")
    parser.add_argument(
        "--case", action="append", help=f"run only these cases, or patterns ('wan-*'): {', '.join(CASES)}"
    )
    parser.add_argument("--peer", action="append", help=f"run only these peers: {', '.join(NAMES)}")
    parser.add_argument(
        "--rounds", type=int, default=3, help="turns of every peer in every case (default: %(default)s)"
    )
    parser.add_argument("--store", choices=("loopback", "wan"), help="run only the cases with this kind of store")
    parser.add_argument(
        "--cpus", default="all", help="run peers and readers, not the store, on this many processors (default: all)"
    )
    parser.add_argument("--quick", action="store_true", help="one round, objects of a quarter of the size")
    parser.add_argument("--output", type=Path, help="write all results, with every sample, to this JSON file")
    parser.add_argument("--markdown", type=Path, help="write the table as Markdown")
    parser.add_argument("--plot", type=Path, help="write a PNG (needs matplotlib)")
    parser.add_argument(
        "--scratch", type=Path, default=Path("/var/tmp"), help="directory of the caches (default: %(default)s)"
    )
    arguments = parser.parse_args()
    if arguments.rounds < 1:
        parser.error("--rounds starts at 1")
    usable = sorted(os.sched_getaffinity(0))
    if arguments.cpus != "all" and not (arguments.cpus.isdecimal() and 0 < int(arguments.cpus) <= len(usable)):
        parser.error(f"--cpus is a number up to {len(usable)}, or all")
    if arguments.plot and importlib.util.find_spec("matplotlib") is None:
        parser.error("--plot needs matplotlib, which the locked development dependencies contain: make setup")
    if not arguments.scratch.is_dir():
        parser.error(f"--scratch {arguments.scratch} is no directory")
    if os.geteuid() != 0:
        parser.error("a cold read needs an empty page cache, and only root can drop it")
    try:
        cases = [CASES[name] for name in chosen(arguments.case, CASES)]
        peers = [name for name in chosen(arguments.peer, NAMES) if not is_missing(name)]
    except LookupError as error:
        parser.error(str(error))
    cases = [case for case in cases if arguments.store in (None, case.profile.kind)]
    # With this, `kill` unmounts and stops the store as Ctrl-C does.
    signal.signal(signal.SIGTERM, lambda signum, _: sys.exit(128 + signum))

    # As pip does when it installs: a start that compiles takes twice as long.
    compileall.compile_dir(Path(__file__).resolve().parent.parent / "d7yfs", quiet=1)
    sizes, rounds, limit_s = (dataset.QUICK, 1, 6.0) if arguments.quick else (dataset.FULL, arguments.rounds, 15.0)
    sizes = sizes.scaled(len(usable), memory_bytes())
    with (
        store.running(lambda buckets: dataset.make(buckets, sizes), sizes.total_bytes, arguments.scratch) as served,
        tempfile.TemporaryDirectory(prefix="d7yfs-bench-", dir=arguments.scratch) as scratch,
    ):
        ceiling_mb_s = served.ceiling_bytes_per_s() / 1e6
        console.print(f"the store alone: {ceiling_mb_s:,.0f} MB/s to a client that throws the bytes away")
        if arguments.cpus != "all":  # the store has begun, and its processes keep all
            os.sched_setaffinity(0, usable[: int(arguments.cpus)])
        results = Results(cases, peers, sizes)
        try:
            run_all(Bench(served, sizes, Path(scratch), limit_s), results, rounds)
        except KeyboardInterrupt:
            console.print("interrupted: the results so far follow", style="yellow")
    console.print(tables(results))
    if arguments.output:
        machine = {"peers_cpus": len(os.sched_getaffinity(0)), "store_mb_s": ceiling_mb_s, "rounds": rounds}
        arguments.output.write_text(json.dumps(as_json(results, machine), indent=1) + "\n")
    if arguments.markdown:
        arguments.markdown.write_text(markdown(results))
    if arguments.plot:
        from bench.plot import draw

        draw(results, arguments.plot)
    return 1 if any(peer == OURS for _, peer in results.failures) else 0


def chosen(wanted: Iterable[str] | None, known: Iterable[str]) -> list[str]:
    """The known names that the patterns choose, in their own order; all without patterns. Raises
    LookupError for a pattern that matches none.
    """
    names = list(known)
    if wanted is None:
        return names
    patterns = [pattern for each in wanted for pattern in each.split(",")]
    for pattern in patterns:
        if not fnmatch.filter(names, pattern):
            raise LookupError(f"no such name: {pattern}; there are {', '.join(names)}")
    return [name for name in names if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)]


def run_all(bench: Bench, results: Results, rounds: int) -> None:
    """Run the rounds outermost and the peers innermost, so that a disturbance meets every peer. A
    peer that failed a case skips it afterwards.

    Each round begins with another peer. A turn that used much memory leaves it at hand for the next
    peer, while a virtual machine's host takes back idle memory.
    """
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=rounds * len(results.cases) * len(results.peers))
        for number in range(rounds):
            for case in results.cases:
                if case.once and number:
                    progress.advance(task, len(results.peers))
                    continue
                shift = number * len(results.peers) // rounds
                for peer in [*results.peers[shift:], *results.peers[:shift]]:
                    where = f"round {number + 1}/{rounds}: {case.name}: {peer}"
                    progress.update(task, description=where)
                    one_turn(bench, results, case, peer, where, verify=number == 0)
                    progress.advance(task)


def one_turn(bench: Bench, results: Results, case: Case, peer: str, where: str, *, verify: bool) -> None:
    """Run one turn, keep its sample and print a line about it."""
    key = (case.name, peer)
    if key in results.failures:
        return
    try:
        sample = turn(bench, case, peer, verify=verify)
    except (ReadError, PeerError, OSError, subprocess.SubprocessError) as error:
        results.failures[key] = " | ".join((str(error), *getattr(error, "__notes__", ())))
        console.print(f"{where}: {escape(results.failures[key])}", style="red")
        return
    if sample is None:
        return
    results.samples.setdefault(key, []).append(sample)
    console.print(f"{where}: {_line(sample.figures.items(), case)} {sample.note}".rstrip(), style="dim")


def _line(figures: Iterable[tuple[str, float]], case: Case) -> str:
    units: dict[str, str] = {metric.name: metric.unit for metric in case.metrics}
    parts: Sequence[str] = [f"{name} {value:,.4g} {units.get(name, '')}".rstrip() for name, value in figures]
    return ", ".join(parts)


if __name__ == "__main__":
    sys.exit(main())
