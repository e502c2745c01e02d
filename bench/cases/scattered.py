"""Single pages at random places, and the first byte."""

from __future__ import annotations

from bench import dataset, reads
from bench.cases.case import Case, Figures, Goal, Metric, Run
from bench.store import LOOPBACK, WAN, Profile

_RANDOM = "streams/0.bin"
_NEAR_LOCAL = Goal(0.7, "local")
_WARM_TIMES = 8
"""A warm read takes microseconds: so many times as many are measured."""


def _faults(run: Run) -> Figures:
    before = run.counters()
    done = run.do(reads.random_faults, run.directory / _RANDOM, run.sizes.random_reads, run.limit_s)
    return {"cold": done.per_s, "origin": (run.counters() - before).bytes / run.sizes.stream_bytes}


def _warm_faults(run: Run) -> Figures:
    path = run.directory / _RANDOM
    run.do(reads.sequential, path, run.limit_s)
    return {"warm": run.do(reads.random_faults, path, _WARM_TIMES * run.sizes.random_reads, run.limit_s).per_s}


def _preads(run: Run) -> Figures:
    done = run.do(reads.random_reads, run.directory / _RANDOM, run.sizes.random_reads, run.limit_s)
    return {"cold": done.per_s}


def _warm_preads(run: Run) -> Figures:
    path = run.directory / _RANDOM
    run.do(reads.sequential, path, run.limit_s)
    return {"warm": run.do(reads.random_reads, path, _WARM_TIMES * run.sizes.random_reads, run.limit_s).per_s}


def _first_byte(run: Run) -> Figures:
    before = run.counters()
    elapsed_s = run.do(reads.first_byte, run.directory / dataset.LARGE)
    return {"cold": elapsed_s * 1e3, "fetched": (run.counters() - before).bytes / 2**20}


def _first_byte_case(name: str, title: str, profile: Profile, goal_ms: float) -> Case:
    return Case(
        name,
        title,
        (
            Metric("cold", "ms", "lower", (Goal(goal_ms, "constant"),)),
            Metric("fetched", "MiB", "lower", (Goal(2.0, "constant"),)),
        ),
        _first_byte,
        profile=profile,
        references=profile is LOOPBACK,
    )


CASES = (
    Case(
        "mmap-random",
        "mmap, random 4 KiB",
        (
            Metric("cold", "faults/s", "higher", (Goal(2.0, "best"),)),
            Metric("origin", "× the file", "lower", (Goal(1.1, "constant"),)),
            Metric("warm", "faults/s", "higher", (_NEAR_LOCAL,)),
        ),
        _faults,
        _warm_faults,
        verified=lambda _: (_RANDOM,),
    ),
    Case(
        "pread-random",
        "pread, random 4 KiB",
        (
            Metric("cold", "reads/s", "higher", (Goal(2.0, "best"),)),
            Metric("warm", "reads/s", "higher", (_NEAR_LOCAL,)),
        ),
        _preads,
        _warm_preads,
        verified=lambda _: (_RANDOM,),
    ),
    _first_byte_case("first-byte", "first byte of a large file", LOOPBACK, 2.0),
    _first_byte_case("wan-first-byte", "WAN: first byte of a large file", WAN, 30.0),
)
