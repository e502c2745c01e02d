"""Large files, read whole: in order, several at once, by many threads or processes, and mapped."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from bench import dataset, reads
from bench.cases.case import Case, Download, Figures, Goal, Metric, Run
from bench.dataset import Sizes
from bench.processes import page_cache_bytes
from bench.store import LOOPBACK, LOOPBACK_TLS, WAN, WAN_TLS, Profile

_MB = 1e6
_THREADS = 8
_PROCESSES = 8
_COSTS = (
    Metric("page cache", "× the bytes", "lower"),
    Metric("busiest", "% of a processor", "lower", (Goal(60, "constant"),)),
)
"""Costs of the host that are not in the account of every case."""


def _rate(name: str = "cold", *goals: Goal) -> Metric:
    return Metric(name, "MB/s", "higher", goals)


def _large(_: Sizes) -> Sequence[str]:
    return (dataset.LARGE,)


def _read(run: Run, done: reads.Done) -> Figures:
    run.payload_bytes = done.amount
    return {"cold": done.per_s / _MB}


def _sequential(run: Run) -> Figures:
    """The rate, the memory of the host that it leaves in use, and the part of a processor that the
    busiest process took."""
    held_bytes, before_s = page_cache_bytes(), run.mount.busy_s()
    done = run.do(reads.sequential, run.directory / dataset.LARGE, run.limit_s)
    held_bytes = page_cache_bytes() - held_bytes
    spent_s = [after_s - before_s.get(pid, 0.0) for pid, after_s in run.mount.busy_s().items()]
    return {
        **_read(run, done),
        "page cache": held_bytes / done.amount,
        "busiest": max(spent_s, default=0.0) / done.elapsed_s * 100,
    }


def _again(run: Run) -> Figures:
    """Read a second time, and again after unmount and mount."""
    path = run.directory / dataset.LARGE
    second = run.do(reads.sequential, path, run.limit_s).per_s / _MB
    run.remount()
    before, spent_s = run.counters(), run.mount.cpu_s()
    remounted = run.do(reads.sequential, path, run.limit_s)
    return {
        "second": second,
        "remount": remounted.per_s / _MB,
        "remount GETs": (run.counters() - before).gets,
        "remount CPU": (run.mount.cpu_s() - spent_s) / remounted.amount * 2**30,
    }


def _sequential_case(
    name: str, title: str, profile: Profile, metrics: Sequence[Metric], then: Callable[[Run], Figures] = lambda _: {}
) -> Case:
    return Case(
        name,
        title,
        metrics,
        _sequential,
        then,
        verified=_large,
        profile=profile,
        download=Download(_large, 1, lambda sizes, elapsed_s: {"cold": sizes.large_bytes / elapsed_s / _MB}),
        references=profile is LOOPBACK,
    )


def _threads(run: Run) -> Figures:
    done = run.do(reads.scattered_blocks, run.directory / dataset.MEDIUM, _THREADS, run.limit_s)
    return _read(run, done)


def _threads_case(name: str, title: str, profile: Profile, own_sequential: str) -> Case:
    return Case(
        name,
        title,
        (_rate("cold", Goal(0.9, "d7yfs", own_sequential)),),
        _threads,
        verified=lambda _: (dataset.MEDIUM,),
        profile=profile,
        references=profile is LOOPBACK,
    )


def _load(run: Run) -> float:
    return run.do(reads.safetensors, run.directory / dataset.WEIGHTS)


def _safetensors(run: Run) -> Figures:
    run.payload_bytes = run.sizes.large_bytes
    return {"cold": _load(run)}


def _load_again(run: Run) -> Figures:
    warm_s = _load(run)
    run.remount()
    return {"warm": warm_s, "remount": _load(run)}


def _safetensors_case(name: str, title: str, profile: Profile, *goals: Goal) -> Case:
    return Case(
        name,
        title,
        (Metric("cold", "s", "lower", goals), Metric("warm", "s", "lower"), Metric("remount", "s", "lower")),
        _safetensors,
        _load_again,
        verified=lambda _: (dataset.WEIGHTS,),
        profile=profile,
        references=profile is LOOPBACK,
    )


def _streams(run: Run) -> Figures:
    paths = [run.directory / name for name in run.sizes.stream_names]
    return _read(run, run.do(reads.several, paths, run.limit_s))


def _shards(run: Run) -> Figures:
    return _read(run, run.do(reads.whole_files, run.directory, run.sizes.shard_names, _THREADS, run.limit_s))


def _map(run: Run) -> reads.Done:
    return run.do(reads.mapped, run.directory / dataset.LARGE, run.limit_s)


def _read_by_all(run: Run) -> float:
    return run.do(reads.herd, run.directory / dataset.LARGE, _PROCESSES)


def _herd(run: Run) -> Figures:
    before = run.counters()
    elapsed_s = _read_by_all(run)
    run.payload_bytes = run.sizes.large_bytes
    return {"cold": elapsed_s, "origin": (run.counters() - before).bytes / run.sizes.large_bytes}


CASES = (
    _sequential_case(
        "sequential",
        "one file in order",
        LOOPBACK,
        (
            _rate("cold", Goal(1.3, "best"), Goal(1.9, "s3fs"), Goal(1.0, "curl")),
            _rate("second", Goal(1.0, "local")),
            _rate("remount", Goal(0.9, "local")),
            Metric("remount GETs", "", "lower", (Goal(0, "constant"),)),
            Metric("remount CPU", "s/GiB", "lower"),
            *_COSTS,
        ),
        _again,
    ),
    Case(
        "streams",
        "four files at once, or as many as there are processors",
        (_rate("cold", Goal(1.3, "best"), Goal(1.7, "s3fs")),),
        _streams,
        verified=lambda sizes: sizes.stream_names,
        download=Download(
            lambda sizes: sizes.stream_names,
            4,
            lambda sizes, elapsed_s: {"cold": sizes.streams * sizes.stream_bytes / elapsed_s / _MB},
        ),
    ),
    Case(
        "shards",
        "files of 16 MiB, 8 threads, each file opened, read and closed",
        (_rate("cold", Goal(1.2, "best")),),
        _shards,
        verified=lambda sizes: sizes.shard_names[::8],
    ),
    _threads_case("threads", "one descriptor, 8 threads, scattered 1 MiB preads", LOOPBACK, "sequential.cold"),
    Case(
        "mmap",
        "mmap in order",
        (_rate("cold", Goal(1.2, "best"), Goal(1.7, "s3fs")), _rate("warm")),
        lambda run: _read(run, _map(run)),
        lambda run: {"warm": _map(run).per_s / _MB},
        verified=_large,
    ),
    _safetensors_case(
        "safetensors", "safetensors load_file", LOOPBACK, Goal(1.4, "constant"), Goal(1.4 / 2.12, "s3fs")
    ),
    Case(
        "herd",
        "8 processes, one file",
        (
            Metric("cold", "s", "lower", (Goal(0.65, "s3fs"),)),
            Metric("origin", "× the file", "lower", (Goal(1.01, "constant"),)),
            Metric("warm", "s", "lower"),
        ),
        _herd,
        lambda run: {"warm": _read_by_all(run)},
        verified=_large,
    ),
    _sequential_case(
        "wan-sequential", "WAN: one file in order", WAN, (_rate("cold", Goal(1.2, "best"), Goal(1.5, "s3fs")),)
    ),
    _threads_case("wan-threads", "WAN: one descriptor, 8 threads", WAN, "wan-sequential.cold"),
    _safetensors_case("wan-safetensors", "WAN: safetensors load_file", WAN, Goal(1.7, "constant")),
    _sequential_case(
        "tls-sequential",
        "TLS: one file in order",
        LOOPBACK_TLS,
        (_rate("cold", Goal(1.3, "best"), Goal(1.0, "curl"), Goal(0.8, "d7yfs", "sequential.cold")), *_COSTS),
    ),
    _sequential_case("wan-tls-sequential", "WAN, TLS: one file in order", WAN_TLS, (_rate("cold", Goal(1.2, "best")),)),
)
