"""Alert rules, their tests, their documentation and the dashboard agree with each other and with what a scrape has; that the rules fire is
promtool's to say (`make integration-monitoring`)."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import yaml

from d7yfs.monitor import metrics
from d7yfs.stats.problems import CODES
from d7yfs.stats.status import MountStatus, parse
from tests.monitor.test_metrics import STATUS

ROOT = Path(__file__).parents[2]
DASHBOARD = json.loads((ROOT / "deploy" / "grafana" / "d7yfs.json").read_text())
OF_PROMETHEUS = {"up", "ALERTS"}


def rules() -> dict[str, dict[str, Any]]:
    read = yaml.safe_load((ROOT / "deploy" / "prometheus" / "alerts.yaml").read_text())
    return {rule["alert"]: rule for group in read["groups"] for rule in group["rules"]}


def cases() -> dict[str, dict[str, Any]]:
    read = yaml.safe_load((ROOT / "deploy" / "prometheus" / "alerts.test.yaml").read_text())
    return {case["name"]: case for case in read["tests"]}


def expressions() -> list[str]:
    """All that the dashboard asks."""
    return [target["expr"] for panel in DASHBOARD["panels"] for target in panel.get("targets", [])]


def asked(expression: str) -> set[str]:
    """The metrics of an expression."""
    bare = re.sub(r"\{[^}]*\}|by \([^)]*\)|on \([^)]*\)", "", expression)
    return set(re.findall(r"\b(?:d7yfs_\w+|process_\w+|up)\b", bare))


def labels() -> dict[str, set[str]]:
    """The metrics of a scrape, as Prometheus calls them, and their labels."""
    return {
        sample.name: set(sample.labels)
        for family in metrics.families(parse(MountStatus, STATUS))
        for sample in family.samples
    }


def test_alerts_and_dashboard_ask_for_what_a_scrape_has() -> None:
    names = set().union(*(asked(rule["expr"]) for rule in rules().values()), *map(asked, expressions()))
    assert {name for name in names if not name.startswith("process_")} - labels().keys() - OF_PROMETHEUS == set()


def test_a_healthy_mount_has_all_that_alerts_ask_for() -> None:
    series = {each["series"].partition("{")[0] for each in cases()["a healthy mount is silent"]["input_series"]}
    assert set().union(*(asked(rule["expr"]) for rule in rules().values())) == series


def test_each_problem_has_one_alert() -> None:
    asking = [set(re.findall(r"[a-z]+(?:-[a-z]+)+", rule["expr"])) & set(CODES) for rule in rules().values()]
    assert Counter(code for codes in asking for code in codes) == Counter(CODES)
    of_the_cache = {
        name
        for name, rule in rules().items()
        if asked(rule["expr"]) & {"d7yfs_cache_memory_bytes", "d7yfs_cache_uncached_opens_total"}
    }
    assert of_the_cache == set(), "no-room-to-cache and cache-disk-failing say it"


def test_every_alert_fires_in_a_test() -> None:
    fired = set()
    for case in cases().values():
        fired |= {each["alertname"] for each in case.get("alert_rule_test", []) if each["exp_alerts"]}
        for each in case.get("promql_expr_test", []):
            fired |= {re.findall(r'alertname="(\w+)"', sample["labels"])[0] for sample in each["exp_samples"]}
    assert fired == rules().keys()


def test_every_alert_has_its_row_in_the_documentation() -> None:
    text = (ROOT / "docs" / "operations.md").read_text()
    section = text.partition("### Alerts")[2].partition("\n## ")[0]
    documented: dict[str, str] = {}
    for line in section.splitlines():
        if line.startswith("| `"):
            names, means, do = line.strip("| ").split(" | ", 2)
            assert means
            assert do
            documented |= dict.fromkeys(re.findall(r"`(\w+)`", names), line)
    assert documented.keys() == rules().keys()


def test_the_dashboard_narrows_all_that_it_can() -> None:
    known = labels()
    for expression in expressions():
        for name, selector in re.findall(r"\b((?:d7yfs|process)_\w+|up)\{([^}]*)\}", expression):
            assert 'instance=~"$instance"' in selector, expression
            has = "repository" in known.get(name, set())
            assert ('repository=~"$repository"' in selector) == has, expression
    variables = {each["name"] for each in DASHBOARD["templating"]["list"]}
    used = set(re.findall(r'"\$(\w+)"', " ".join(expressions())))
    assert used == variables - {"datasource"}


def test_panels_have_ids_of_their_own_and_do_not_overlap() -> None:
    panels = DASHBOARD["panels"]
    assert len({each["id"] for each in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for each in panels:
        at = each["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert at["x"] + at["w"] <= 24
        assert not cells & taken, each["title"]
        taken |= cells
