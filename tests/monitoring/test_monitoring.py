"""The alert rules, the dashboard and a scrape, by a real Prometheus and its promtool."""

from __future__ import annotations

import re
import subprocess
import urllib.request
from pathlib import Path

import pytest

from tests.monitoring.prometheus import ALERTS, ALERTS_TEST, CLUSTER, CLUSTER_TEST, Prometheus, panels
from tests.mount.mounted import Mounted, until

pytestmark = [pytest.mark.mount, pytest.mark.store]

NOTHING_TO_SHOW = {
    "Credentials end in",  # The last one that the test sees.
    "Stores and proxies that do not answer",  # All answer.
    "Retries by reason",  # There were none.
}
ONLY_SOMETIMES = {
    "d7yfs_credentials_expire_timestamp_seconds",
    "d7yfs_config_last_reload_successful",
    "d7yfs_handover_link_failures_total",
    "d7yfs_handover_trips_total",
    "d7yfs_handover_up",
    "d7yfs_handover_wrong_pieces_total",
    "d7yfs_retries_total",
}
"""Metrics that a mount has only if there is something to report."""


def promtool(*arguments: str | Path, stdin: bytes = b"") -> str:
    done = subprocess.run(
        ["promtool", *arguments], input=stdin, capture_output=True, cwd=ALERTS.parent, timeout=120, check=False
    )
    said = (done.stdout + done.stderr).decode()
    assert done.returncode == 0, said
    return said


def page(mounted: Mounted) -> bytes:
    with urllib.request.urlopen(f"http://{mounted.status()['metrics']['listens_on']}/metrics", timeout=30) as reply:
        text: bytes = reply.read()
        return text


def test_rules() -> None:
    promtool("check", "rules", ALERTS, CLUSTER)
    assert "SUCCESS" in promtool("test", "rules", ALERTS_TEST)
    assert "SUCCESS" in promtool("test", "rules", CLUSTER_TEST)


@pytest.mark.usefixtures("readers")
def test_a_scrape_keeps_to_prometheus_conventions(mounted: Mounted) -> None:
    promtool("check", "metrics", stdin=page(mounted))


@pytest.mark.usefixtures("readers")
def test_rules_and_dashboard_ask_for_what_there_is(mounted: Mounted) -> None:
    known = set(re.findall(rb"^(\w+)(?:\{| )", page(mounted), re.MULTILINE))
    asked = "\n".join([ALERTS.read_text(), *(expression for each in panels() for expression, _ in each.expressions)])
    names = set(re.findall(r"\b(?:d7yfs|process)_\w+", asked)) - ONLY_SOMETIMES
    assert {name for name in names if name.encode() not in known} == set()


def test_a_live_scrape(prometheus: Prometheus, mounted: Mounted, request: pytest.FixtureRequest) -> None:
    until(lambda: len(prometheus.query("up{job='d7yfs'} == 1")) == 1, "a first scrape", timeout_s=30)
    request.getfixturevalue("readers")
    total = "sum(d7yfs_read_bytes_total)"
    read_bytes = mounted.status()["repositories"][0]["read_bytes"]
    until(
        lambda: float(prometheus.query(total)[0]["value"][1]) == read_bytes,
        "a scrape that has seen all reads",
        timeout_s=30,
    )

    def empty() -> set[str]:
        return {
            panel.title
            for panel in panels(interval="1m")
            if not any(prometheus.query(expression) for expression, _ in panel.expressions)
        }

    # A rate takes two scrapes of a series, and some series begin with the last one.
    until(lambda: empty() <= NOTHING_TO_SHOW, "something to show in each panel", timeout_s=30)
    by_source = {
        each["metric"]["source"]: float(each["value"][1]) for each in prometheus.query("d7yfs_source_bytes_total")
    }
    assert by_source["proxy"] > 40 << 20
    assert by_source["cache"] > 100 << 20
    models = {each["metric"]["model"] for each in prometheus.query("d7yfs_model_read_bytes_total > 0")}
    assert models == {"resnet", "bert", "llm"}
    # Each model is whole, and no reader has it open.
    full = "d7yfs_model_cached_bytes / d7yfs_model_bytes"
    until(lambda: [each["value"][1] for each in prometheus.query(full)] == ["1"] * 3, "full models", timeout_s=30)
    assert all(0 < float(each["value"][1]) < 60 for each in prometheus.query("d7yfs_model_load_seconds"))
    rules = [rule for group in prometheus.ask("rules")["groups"] for rule in group["rules"]]
    assert {rule["health"] for rule in rules} == {"ok"}
    assert [rule["name"] for rule in rules if rule.get("state") == "firing"] == []
