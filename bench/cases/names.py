"""Many names and many small files."""

from __future__ import annotations

import os

from bench import dataset, reads
from bench.cases.case import Case, Download, Figures, Goal, Metric, Run
from bench.store import LOOPBACK, WAN, Profile

_THREADS = 8


def _find(run: Run) -> float:
    directories, files = run.sizes.tree_directories, run.sizes.tree_files
    lines = directories * files + directories + 1
    return run.do(reads.command, ["find"], run.directory, lines) * 1e3


def _find_cold(run: Run) -> Figures:
    before = run.counters()
    return {"cold": _find(run), "cold requests": (run.counters() - before).requests}


def _find_warm(run: Run) -> Figures:
    before = run.counters()
    return {"warm": _find(run), "warm requests": (run.counters() - before).requests}


def _beside(run: Run) -> Figures:
    lines = run.sizes.beside_directories * (run.sizes.tree_files + 1) + 2
    found = run.do(reads.beside_listing, run.directory / dataset.MEDIUM, lines, run.limit_s)
    run.payload_bytes = found.read.amount
    return {
        "read": found.read.per_s / 1e6,
        "longest read": found.longest_s * 1e3,
        "listing": found.listing_s * 1e3,
    }


def _ls(run: Run, directory: str, entries: int) -> float:
    lines = entries + 1  # One line is "total".
    return run.do(reads.command, ["ls", "-l", "--numeric-uid-gid"], run.directory / directory, lines) * 1e3


def _ls_flat(run: Run) -> float:
    return _ls(run, "flat", run.sizes.flat_files)


def _ls_one(run: Run) -> Figures:
    """List the last directory, which is behind all others in a flat listing."""
    before = run.counters()
    elapsed_ms = _ls(run, f"{run.sizes.many_directories - 1:03}", run.sizes.tree_files)
    return {"cold": elapsed_ms, "cold requests": (run.counters() - before).requests}


def _ls_one_case(name: str, title: str, profile: Profile, *goals: Goal) -> Case:
    return Case(
        name,
        title,
        (Metric("cold", "ms", "lower", goals), Metric("cold requests", "", "lower")),
        _ls_one,
        profile=profile,
        bucket=dataset.MANY,
        references=profile is LOOPBACK,
    )


def _rates(run: Run) -> Figures:
    """Ask for names that the kernel does not know, of a repository that is listed."""
    directories, files = run.sizes.tree_directories, run.sizes.tree_files
    run.do(os.stat, run.directory / f"{directories - 1:03}" / f"{files - 1:05}.bin")  # The last of the listing.
    return {"lookup": run.do(reads.look_up, run.directory, directories, files, run.limit_s).per_s}


def _more_rates(run: Run) -> Figures:
    arguments = (run.directory, run.sizes.tree_directories, run.sizes.tree_files, run.limit_s)
    return {
        "stat": run.do(reads.look_up, *arguments).per_s,
        "readdir": run.do(reads.list_names, *arguments).per_s,
        "readdir again": run.do(reads.list_names, *arguments).per_s,
    }


def _read_small(run: Run) -> reads.Done:
    return run.do(reads.small_files, run.directory / dataset.SMALL, run.sizes.small_files, _THREADS, run.limit_s)


def _small(run: Run) -> Figures:
    done = _read_small(run)
    run.payload_bytes = done.amount * run.sizes.small_bytes
    return {"cold": done.per_s}


def _small_again(run: Run) -> Figures:
    warm = _read_small(run).per_s
    run.remount()
    return {"warm": warm, "remount": _read_small(run).per_s}


def _small_case(name: str, title: str, profile: Profile, *goals: Goal) -> Case:
    return Case(
        name,
        title,
        (
            Metric("cold", "files/s", "higher", goals),
            Metric("warm", "files/s", "higher"),
            Metric("remount", "files/s", "higher"),
        ),
        _small,
        _small_again,
        verified=lambda sizes: [f"{dataset.SMALL}/{number:05}.bin" for number in range(0, sizes.small_files, 10)],
        profile=profile,
        download=Download(
            lambda sizes: [f"{dataset.SMALL}/{number:05}.bin" for number in range(sizes.small_files)],
            _THREADS,
            lambda sizes, elapsed_s: {"cold": sizes.small_files / elapsed_s},
        ),
        references=profile is LOOPBACK,
    )


CASES = (
    Case(
        "find",
        "find over 10,000 files",
        (
            Metric("cold", "ms", "lower", (Goal(1.0, "best"),)),
            Metric("cold requests", "", "lower", (Goal(11, "constant"),)),
            Metric("warm", "ms", "lower", (Goal(30, "constant"),)),
            Metric("warm requests", "", "lower", (Goal(0, "constant"),)),
        ),
        _find_cold,
        _find_warm,
        bucket=dataset.TREE,
    ),
    Case(
        "rates",
        "lookups, stats and listings of 10,000 files, one after the other",
        (
            Metric("lookup", "lookups/s", "higher"),
            Metric("stat", "stats/s", "higher"),
            Metric("readdir", "names/s", "higher"),
            Metric("readdir again", "names/s", "higher"),
        ),
        _rates,
        _more_rates,
        bucket=dataset.TREE,
    ),
    Case(
        "ls",
        "ls -l of 5,000 entries",
        (
            Metric("cold", "ms", "lower", (Goal(1.0, "best"),)),
            Metric("warm", "ms", "lower", (Goal(1 / 0.9, "local"),)),
        ),
        lambda run: {"cold": _ls_flat(run)},
        lambda run: {"warm": _ls_flat(run)},
        bucket=dataset.FLAT,
    ),
    Case(
        "beside",
        "one file in order while find lists 100,000 names",
        (
            Metric("read", "MB/s", "higher", (Goal(1.2, "best"),)),
            Metric("longest read", "ms", "lower"),
            Metric("listing", "ms", "lower"),
        ),
        _beside,
        verified=lambda _: (dataset.MEDIUM,),
        bucket=dataset.BESIDE,
        references=False,
    ),
    _ls_one_case("ls-one", "ls -l of one directory among 16,000 objects", LOOPBACK, Goal(1.0, "best")),
    _ls_one_case("wan-ls-one", "WAN: ls -l of one directory among 16,000 objects", WAN, Goal(1.0, "best")),
    _small_case("small", "128 KiB files, 8 threads", LOOPBACK, Goal(1.9, "s3fs")),
    _small_case("wan-small", "WAN: 128 KiB files, 8 threads", WAN, Goal(1.2, "best"), Goal(2.2, "rclone")),
)
