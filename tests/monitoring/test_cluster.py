"""The figures of a cluster of two mounts, by a real Prometheus: rules, dashboard, and `d7yfs status --cluster`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.monitoring.conftest import Bucket
from tests.monitoring.prometheus import CLUSTER_DASHBOARD, Prometheus, panels, scraping
from tests.mount.conftest import MIB, bytes_of
from tests.mount.mounted import Mounted, Mounter, free_port, run, until

pytestmark = [pytest.mark.mount, pytest.mark.store]

SIZE = 24 * MIB


@pytest.fixture
def pair(mounter: Mounter, bucket: Bucket, tmp_path: Path) -> list[Mounted]:
    """Two mounts of one repository, each with a cache of its own; the proxy of the second is dead."""
    bucket.put("cluster/llm/weights.safetensors", bytes_of(7, SIZE))
    found = []
    for number, proxy in enumerate(("none", f"http://127.0.0.1:{free_port()}")):
        options = ["--metrics-listen", f"127.0.0.1:{free_port()}", "--cache-dir", str(tmp_path / f"cache-{number}")]
        found.append(mounter.mount(f"models={bucket.url('cluster')}", *options, "--proxy", proxy, env=bucket.env))
    for each in found:
        until(lambda each=each: bool(each.status()["metrics"]["listens_on"]), "the listener")  # type: ignore[misc]
    return found


@pytest.fixture
def prometheus(pair: list[Mounted], tmp_path: Path) -> Iterator[Prometheus]:
    """It begins to scrape after both mounts have loaded the model."""
    for each in pair:
        assert len(each.read("models/llm/weights.safetensors")) == SIZE
        assert len(each.read_anew("models/llm/weights.safetensors")) == SIZE
        until(
            lambda each=each: each.status()["repositories"][0]["models"]["llm"]["load_s"] is not None,  # type: ignore[misc]
            "the end of the load",
        )
    with scraping([each.status()["metrics"]["listens_on"] for each in pair], tmp_path) as found:
        yield found


def told(prometheus: Prometheus) -> dict[str, Any]:
    done = run("status", "--cluster", "--prometheus", prometheus.url, "--json")
    assert done.returncode in (0, 1), done.stderr
    answer: dict[str, Any] = json.loads(done.stdout) if done.stdout else {}
    return answer


def test_two_mounts_as_one(prometheus: Prometheus) -> None:
    until(lambda: told(prometheus).get("hosts") == 2, "scrapes of both", timeout_s=60)
    until(lambda: told(prometheus)["hosts_falling_back"] == 1, "the dead proxy", timeout_s=60)
    figures = told(prometheus)
    (llm,) = figures["models"]
    assert (llm["repository"], llm["model"], llm["size_bytes"], llm["hosts"]) == ("models", "llm", SIZE, 2)
    # Each has brought it from the store by itself, before the first scrape.
    assert 1.99 < llm["store_copies"] < 2.1
    assert figures["way_bytes"]["store"] >= 2 * SIZE
    assert figures["way_bytes"]["cache"] > 0
    assert 0 < llm["ready_s"]["0.5"] <= llm["ready_s"]["1"] < 60

    # The rules record the same.
    ratio = 'd7yfs:model_store_copies:ratio{repository="models",model="llm"}'
    until(lambda: bool(prometheus.query(ratio)), "the records", timeout_s=60)
    assert 1.99 < float(prometheus.query(ratio)[0]["value"][1]) < 2.1

    def empty() -> set[str]:
        return {
            panel.title
            for panel in panels(CLUSTER_DASHBOARD)
            if not any(prometheus.query(expression) for expression, _ in panel.expressions)
        }

    until(lambda: not empty(), "something to show in each panel", timeout_s=60)
    rules = [rule for group in prometheus.ask("rules")["groups"] for rule in group["rules"]]
    assert {rule["health"] for rule in rules} == {"ok"}


def test_people_get_a_table(prometheus: Prometheus) -> None:
    until(lambda: told(prometheus).get("hosts") == 2, "scrapes of both", timeout_s=60)
    done = run("status", "--cluster", "--prometheus", prometheus.url)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("2 mounts, ")
    assert "models/llm" in done.stdout
    assert "24 MiB" in done.stdout
