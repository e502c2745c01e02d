"""The figures of a cluster: what is recorded is what is asked for, and the words about it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from d7yfs.monitor.cluster import WAYS, describe, queries, read_figures, rows
from d7yfs.stats.repository_status import SOURCES
from tests.monitor.test_alerts import asked, labels

DEPLOY = Path(__file__).parents[2] / "deploy"
RULES = [
    rule
    for group in yaml.safe_load((DEPLOY / "prometheus" / "cluster.yaml").read_text())["groups"]
    for rule in group["rules"]
]
DASHBOARD = json.loads((DEPLOY / "grafana" / "d7yfs-cluster.json").read_text())


def test_what_is_recorded_is_what_is_asked_for() -> None:
    recorded = {
        (rule["record"], tuple(rule.get("labels", {}).items())): " ".join(rule["expr"].split()) for rule in RULES
    }
    assert recorded == queries()


def test_the_rules_ask_for_what_a_scrape_has() -> None:
    names = set().union(*(asked(rule["expr"]) for rule in RULES))
    assert names
    assert names - labels().keys() == set()


def test_every_source_has_one_way() -> None:
    assert sorted(source for sources in WAYS.values() for source in sources.split("|")) == sorted(SOURCES)


def test_every_rule_is_in_the_test_of_the_rules() -> None:
    cases = yaml.safe_load((DEPLOY / "prometheus" / "cluster.test.yaml").read_text())["tests"]
    expected = {
        name
        for case in cases
        for each in case["promql_expr_test"]
        for name in re.findall(r"d7yfs:\w+:\w+", each["expr"])
    }
    assert expected == {rule["record"] for rule in RULES}


def test_the_dashboard_asks_for_what_is_recorded() -> None:
    expressions = [target["expr"] for panel in DASHBOARD["panels"] for target in panel.get("targets", [])]
    used = {name for each in expressions for name in re.findall(r"d7yfs[\w:]*", each)}
    known = {rule["record"] for rule in RULES}
    assert used <= known
    assert known - used == {"d7yfs:model_store_bytes:gain"}  # shown as a multiple of the model's size
    for each in expressions:
        assert (":model_" in each) == ('repository=~"$repository"' in each), each


def test_panels_have_ids_of_their_own_and_do_not_overlap() -> None:
    panels = DASHBOARD["panels"]
    assert len({each["id"] for each in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for at in (each["gridPos"] for each in panels):
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert at["x"] + at["w"] <= 24
        assert not cells & taken
        taken |= cells


def _sample(value: object, **labels: str) -> dict[str, Any]:
    return {"metric": labels, "value": [1.0, str(value)]}


def _answers(**samples: list[Any]) -> dict[Any, list[Any]]:
    """The answers to all queries; `samples` by the record's name without prefix, and the added label's value."""
    found: dict[Any, list[Any]] = {}
    for name, added in queries():
        short = name.removeprefix("d7yfs:").replace(":", "_") + (f"_{added[0][1]}" if added else "")
        found[name, added] = samples.pop(short, [])
    assert not samples
    return found


def test_the_words() -> None:
    llm = {"repository": "models", "model": "llm"}
    figures = read_figures(
        _answers(
            hosts_count=[_sample(12)],
            hosts_falling_back_count=[_sample(1)],
            way_bytes_gain_store=[_sample(1 << 30)],
            way_bytes_gain_socket=[_sample(3 << 30)],
            model_bytes_max=[_sample(1 << 30, **llm), _sample(1 << 20, model="bert")],
            model_store_copies_ratio=[_sample(1.014, **llm), _sample("NaN", model="bert")],
            model_hosts_count=[_sample(11, **llm)],
            **{
                "model_ready_seconds_quantile_0.5": [_sample(3.25, **llm)],
                "model_ready_seconds_quantile_1": [_sample(60, **llm)],
            },
        )
    )
    assert list(describe(figures, "2h")) == [
        "12 mounts, 1 falls back to the store",
        "bytes in 2h: store 1 GiB (25%), socket 3 GiB (75%)",
    ]
    assert list(rows(figures)) == [
        ("bert", "1 MiB", "", "", "", "", ""),
        ("models/llm", "1 GiB", "1.01 ×", "11", "3.2 s", "", "60.0 s"),
    ]


def test_nothing_to_tell() -> None:
    figures = read_figures(_answers())
    assert list(describe(figures, "6h")) == ["0 mounts, none falls back to the store", "bytes in 6h: none"]
    assert list(rows(figures)) == []


@pytest.mark.parametrize(
    "sample",
    [None, {}, [], {"metric": {}, "value": "x"}, {"metric": {}, "value": [1, "x"]}, {"metric": 1, "value": [1, "2"]}],
)
def test_a_sample_that_is_none(sample: object) -> None:
    with pytest.raises(ValueError, match="sample"):
        read_figures(_answers(hosts_count=[sample]))
