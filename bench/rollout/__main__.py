"""Rollouts of a model to simulated clusters: `python -m bench.rollout [--hosts 3,6,100,1000,10000]
[--markdown FILE] [--plot FILE] [--real FILE]`.

It prints what each rollout costs the store (times the model), and how long hosts wait for their
last byte, for ways of deciding (`Deciding`), sizes of clusters, and failures. `--real` reads what
`python -m bench.hosts` measured with a real Dragonfly, and prints the simulation of the same beside
it: the difference is the simulation's error.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path

from bench.rollout.cluster import Cluster, Deciding, Outcome, rollout
from d7yfs.fill.p2p_budget import Policy

MIB, GIB = 1 << 20, 1 << 30


class EarlierPolicy(Policy):
    """The budget before it was a share of the file and of the cluster: at least 4 MiB a host."""

    def budget_bytes(self, size_bytes: int) -> int:
        return max(4 * MIB, super().budget_bytes(size_bytes))


EARLIER = Deciding(name="each host 4 MiB", policy=lambda _, chance: EarlierPolicy(chance=chance), learns=False)
UNKNOWN = Deciding(name="d7yfs", policy=lambda _, chance: Policy(chance=chance))
KNOWN = Deciding(name="d7yfs --p2p-hosts", policy=lambda hosts, chance: Policy(hosts=hosts, chance=chance))
COPY = Deciding(name="the agent's copy", policy=lambda _, chance: Policy(chance=chance), way="copy")
DIRECT = Deciding(name="direct", policy=lambda _, chance: Policy(chance=chance), way="direct")
WAYS = (EARLIER, UNKNOWN, KNOWN, COPY, DIRECT)

MODEL = (5 * GIB,) * 4
"""A model of 20 GiB in four files."""
DATACENTRE = Cluster(hosts=1000, files_bytes=MODEL, store_rate=12.5e9, connection_rate=90e6, registrations_per_s=2000)
"""A store that gives 100 Gbit/s in all and 90 MB/s a connection; hosts and seeds with 10 Gbit/s."""

FAILURES: Mapping[str, Mapping[str, object]] = {
    "none": {},
    "dfdaemon dead on 10 % of hosts": {"dead_share": 0.1},
    "scheduler gone": {"scheduler": "gone"},
    "scheduler hangs": {"scheduler": "hung"},
    "store throttled to a tenth": {"store_rate": DATACENTRE.store_rate / 10},
    "all hosts in the same second": {"spread_s": 1.0},
    "all hosts within a minute": {"spread_s": 60.0},
    "10 % of hosts give a hundredth": {"slow_share": 0.1},
    "slow scheduler: 100 registrations a second": {"registrations_per_s": 100.0},
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the simulations that the arguments name."""
    parser = argparse.ArgumentParser(prog="python -m bench.rollout", description=__doc__.partition("\n\n")[2])
    parser.add_argument(
        "--hosts", default="3,6,100,1000,10000", help="sizes of clusters; the last but one has the failures"
    )
    parser.add_argument("--markdown", type=Path, help="write the tables here")
    parser.add_argument("--plot", type=Path, help="write the picture here")
    parser.add_argument("--real", type=Path, help="the JSON of python -m bench.hosts")
    arguments = parser.parse_args(argv)
    sizes = [int(each) for each in arguments.hosts.split(",")]
    lines: list[str] = []
    failing = sizes[-2] if len(sizes) > 1 else sizes[-1]
    for line in chain(_calibration(arguments.real), _sizes(sizes, arguments.plot), _failures(failing)):
        print(line, flush=True)
        lines.append(line)
    if arguments.markdown:
        arguments.markdown.write_text("\n".join(lines) + "\n")
    return 0


def _sizes(sizes: Sequence[int], plot: Path | None) -> Iterator[str]:
    yield "| hosts | way | origin × | first byte p50 | p99 | ready p50 | p99 | limit | s |"
    yield "|---:|---|---:|---:|---:|---:|---:|---:|---:|"
    found: dict[str, list[Outcome]] = {}
    for hosts in sizes:
        cluster = replace(DATACENTRE, hosts=hosts)
        for way in WAYS:
            began = time.perf_counter()
            outcome = rollout(cluster, way)
            found.setdefault(way.name, []).append(outcome)
            yield _row(f"{hosts:,} | {way.name}", outcome, _limit_s(cluster), time.perf_counter() - began)
    if plot is not None:
        _draw(sizes, found, plot)


def _failures(hosts: int) -> Iterator[str]:
    yield ""
    yield f"| {hosts:,} hosts | way | origin × | first byte p50 | p99 | ready p50 | p99 | limit | s |"
    yield "|---|---|---:|---:|---:|---:|---:|---:|---:|"
    for name, changes in FAILURES.items():
        cluster = replace(DATACENTRE, hosts=hosts, **changes)  # type: ignore[arg-type]
        for way in (EARLIER, UNKNOWN, KNOWN):
            began = time.perf_counter()
            yield _row(f"{name} | {way.name}", rollout(cluster, way), _limit_s(cluster), time.perf_counter() - began)


def _row(name: str, outcome: Outcome, limit_s: float, took_s: float) -> str:
    first = sorted(outcome.first_byte_s)
    figures = (
        f"{outcome.origin_times:.3f}",
        *(f"{1000 * first[int(share * (len(first) - 1))]:.0f} ms" for share in (0.5, 0.99)),
        *(f"{outcome.percentile_s(percent):.1f}" for percent in (50, 99)),
        f"{limit_s:.1f}",
        f"{took_s:.0f}",
    )
    return f"| {name} | {' | '.join(figures)} |"


def _limit_s(cluster: Cluster) -> float:
    """The least time of any way: the model at a host's own rate, or once from the store."""
    total = sum(cluster.files_bytes)
    return max(total / cluster.down_rate, total / cluster.store_rate)


def _calibration(real: Path | None) -> Iterator[str]:
    """The rollouts that were measured, each beside the simulation of the same."""
    if real is None:
        return
    yield "| hosts | model | origin ×, measured | simulated | ready, measured | simulated |"
    yield "|---:|---|---:|---:|---:|---:|"
    rows = json.loads(real.read_text())
    # Hosts that come late show what a peer gives, and how soon: these two are taken from there.
    late = {_kind(each): each for each in rows if each["is_warm"]}
    for each in rows:
        if (warm := late.get(_kind(each))) is None or each["mode"] == "always":
            continue
        begun_s = len(warm["files_bytes"]) * warm["first_byte_s"]  # each file begins by itself
        peer_rate = sum(warm["files_bytes"]) / max(warm["ready_s"] - begun_s, 0.1 * warm["ready_s"])
        cluster = Cluster(
            hosts=each["hosts"],
            files_bytes=tuple(each["files_bytes"]),
            store_rate=each["store_rate"],
            connection_rate=each["store_rate"],
            store_latency_s=0.005,
            seeds=1,
            seed_rate=peer_rate * each["hosts"],
            up_rate=peer_rate,
            down_rate=peer_rate,
            registration_s=warm["first_byte_s"],
            spread_s=0.05,
            is_warm=each["is_warm"],
        )
        outcome = rollout(cluster, UNKNOWN, seeds=range(5))
        files = f"{len(each['files_bytes'])} × {each['files_bytes'][0] // MIB} MiB"
        yield (
            f"| {each['hosts']} {'warm' if each['is_warm'] else 'cold'} | {files}, {each['way']} | {each['origin_times']:.3f} "
            f"| {outcome.origin_times:.3f} | {each['ready_s']:.2f} s | {outcome.percentile_s(50):.2f} s |"
        )
    yield ""


def _kind(row: Mapping[str, object]) -> tuple[object, ...]:
    return (str(row["files_bytes"]), row["way"], row["mode"])


def _draw(sizes: Sequence[int], found: Mapping[str, Sequence[Outcome]], path: Path) -> None:
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 4), layout="constrained")
    for name, outcomes in found.items():
        left.loglog(sizes, [each.origin_times for each in outcomes], marker="o", label=name)
        right.loglog(sizes, [each.percentile_s(99) for each in outcomes], marker="o", label=name)
    left.set(xlabel="hosts", ylabel="bytes from the store, × the model")
    right.set(xlabel="hosts", ylabel="seconds until 99 % of hosts have all")
    left.legend()
    figure.savefig(path)


if __name__ == "__main__":
    raise SystemExit(main())
