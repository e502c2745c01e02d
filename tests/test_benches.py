"""Each bench puts its data where its store looks, and its goals name what there is: otherwise it would
fail only after its start, or never.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from bench import dataset, dragonfly, loaders, triton
from bench.cases import CASES
from bench.peers import NAMES
from bench.rollout.__main__ import DATACENTRE, EARLIER, KNOWN, UNKNOWN
from bench.rollout.cluster import rollout
from bench.store import Store
from bench.store_server import Control

WAYS = [dragonfly.PROXY, dragonfly.SOCKET]

MAKERS: dict[str, tuple[Callable[[Path], None], set[str]]] = {
    "reads": (
        lambda buckets: dataset.make(buckets, dataset.TINY),
        {dataset.MEDIUM, dataset.WEIGHTS, *dataset.TINY.stream_names, *dataset.TINY.shard_names},
    ),
    "loaders": (
        lambda buckets: loaders.make(buckets, dataset.TINY.large_bytes),
        {file for loader in loaders.loaders(None) for file in loader.files},
    ),
    "triton": (
        lambda buckets: triton.make_store(buckets, [1], WAYS),
        {f"{triton.repository_of(1, way)}/m/config.pbtxt" for way in ("direct", "proxy", "socket")},
    ),
    "dragonfly": (
        lambda buckets: dragonfly.make(buckets, [1], WAYS),
        {dragonfly.key(1, way) for way in (dragonfly.DIRECT, "proxy", "socket", f"proxy-{dragonfly.FILL}")},
    ),
}
"""The makers as `store.running` calls them, and some files that their benches read."""


@pytest.mark.parametrize(("make", "names"), MAKERS.values(), ids=MAKERS)
def test_the_store_finds_what_a_bench_makes(
    make: Callable[[Path], None], names: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loaders, "_LAYER", 16)
    make(tmp_path / "buckets")
    control = tmp_path / "control"
    control.write_bytes(bytes(Control.size_bytes(1)))
    store = Store(tmp_path / "buckets", tmp_path / "no-ca.pem", 0, 0, Control(control))
    assert (store.data / dataset.LARGE).stat().st_size >= dataset.TINY.large_bytes, (
        "the ceiling is measured with this file"
    )
    assert [name for name in sorted(names) if not (store.data / name).is_file()] == []


@pytest.mark.parametrize("name", CASES)
def test_goals_compare_with_peers_and_figures_that_exist(name: str) -> None:
    known = {f"{case.name}.{metric.name}" for case in CASES.values() for metric in case.metrics}
    goals = [goal for metric in CASES[name].metrics for goal in metric.goals]
    assert [goal for goal in goals if goal.peer not in (*NAMES, "best", "constant")] == []
    assert [goal for goal in goals if goal.metric and goal.metric not in known] == []
    assert [peer for peer in CASES[name].only if peer not in NAMES] == []


def test_a_rollout_costs_the_store_one_model_where_the_hosts_are_counted() -> None:
    """The simulation decides by the product's own code. Three hosts of 200 have a budget."""
    cluster = replace(DATACENTRE, hosts=200, files_bytes=(1 << 30,))
    counted, uncounted, earlier = (rollout(cluster, way) for way in (KNOWN, UNKNOWN, EARLIER))
    assert 1 <= counted.origin_times <= 1.02
    assert counted.origin_times < uncounted.origin_times <= earlier.origin_times
    assert counted.percentile_s(99) <= 1.1 * earlier.percentile_s(99)


def test_hosts_of_a_large_cluster_wait_for_a_slow_scheduler() -> None:
    cluster = replace(DATACENTRE, hosts=200, files_bytes=(1 << 30,), registrations_per_s=50.0)
    assert rollout(cluster, KNOWN).origin_times <= 1.02
    assert rollout(cluster, EARLIER).origin_times > 1.5
