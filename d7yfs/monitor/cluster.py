"""The figures of a cluster, over all hosts: as queries to Prometheus, and as lines for people. Pure.

Owns the queries: `deploy/prometheus/cluster.yaml` records the same ones, for the dashboard, and a test
compares them. A rollout is what happened in the last hours (`WINDOW`).

- A counter's gain in a window is its `increase`, and of a mount that began in the window its first value
  too. `increase` alone leaves out what came before the first scrape, which is most of a cold start.
- What dfdaemon's proxy brings may be from peers or the store. Only dfdaemon's own metrics know.

Called by `cluster` in `cli`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from d7yfs.stats.words import show_count, show_size_roughly

WINDOW = "6h"

WAYS = {"store": "origin|back_to_source", "proxy": "proxy", "socket": "local_peer|remote_peer", "cache": "cache"}
"""The ways of bytes, and the sources in the metrics that each has."""
QUANTILES = {"0.5": 0.5, "0.95": 0.95, "1": 1.0}
"""By the label of the record: half, nearly all, and the slowest host."""

Labels = tuple[tuple[str, str], ...]
"""The labels that a recording rule adds."""


def gain(series: str, window: str) -> str:
    """The gain of each counter of `series` in `window`, as a query."""
    rise, first = (
        f"increase({series}[{window}])",
        f"(min_over_time({series}[{window}]) unless {series} offset {window})",
    )
    return f"({rise} + {first} or {rise} or {first})"


def queries(window: str = WINDOW) -> dict[tuple[str, Labels], str]:
    """The queries, by the name and the labels under which they are recorded."""
    store = f'd7yfs_model_source_bytes_total{{source=~"{WAYS["store"]}"}}'
    size = "max by (repository, model) (d7yfs_model_bytes)"
    fallback = gain('d7yfs_direct_bytes_total{reason="fallback"}', "15m")
    falling = " or ".join(
        [
            f"sum by (instance, job) ({fallback}) > 0",
            'max by (instance, job) (d7yfs_proxy_breaker{state="closed"}) == 0',
            "max by (instance, job) (d7yfs_handover_up) == 0",
        ]
    )
    found: dict[tuple[str, Labels], str] = {
        ("d7yfs:hosts:count", ()): "count(count by (instance, job) (d7yfs_info))",
        ("d7yfs:hosts_falling_back:count", ()): f"count({falling}) or vector(0)",
        ("d7yfs:model_bytes:max", ()): size,
        ("d7yfs:model_store_bytes:gain", ()): f"sum by (repository, model) ({gain(store, window)})",
        ("d7yfs:model_store_copies:ratio", ()): f"sum by (repository, model) ({gain(store, window)}) / ({size} > 0)",
        (
            "d7yfs:model_hosts:count",
            (),
        ): f"count by (repository, model) ({gain('d7yfs_model_loads_total', window)} > 0)",
    }
    for way, sources in WAYS.items():
        series = f'd7yfs_source_bytes_total{{source=~"{sources}"}}'
        found["d7yfs:way_bytes:gain", (("way", way),)] = f"sum({gain(series, window)})"
    for label, quantile in QUANTILES.items():
        expression = f"quantile by (repository, model) ({quantile:g}, d7yfs_model_load_seconds)"
        found["d7yfs:model_ready_seconds:quantile", (("quantile", label),)] = expression
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFigures:
    """One model, over all hosts. None: no host has told of it."""

    repository: str
    model: str
    size_bytes: float | None
    store_copies: float | None
    """Bytes from the store on all hosts, as a multiple of its size."""
    hosts: float | None
    """Hosts that have loaded it."""
    ready_s: Mapping[str, float]
    """By quantile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterFigures:
    """The figures of a cluster."""

    hosts: float
    hosts_falling_back: float
    way_bytes: Mapping[str, float]
    models: Sequence[ModelFigures]


def read_value(sample: Any) -> tuple[Mapping[str, str], float]:
    """Labels and value of a sample in Prometheus's answer. Raises ValueError."""
    try:
        labels, (_, text) = sample["metric"], sample["value"]
        value = float(text)
    except (TypeError, KeyError, ValueError):
        raise ValueError("a sample that is none of Prometheus's") from None
    if not isinstance(labels, dict):
        raise ValueError("a sample without labels")
    return {str(name): str(each) for name, each in labels.items()}, value


def read_figures(answers: Mapping[tuple[str, Labels], Sequence[Any]]) -> ClusterFigures:
    """The figures in the samples that `queries` gave. Raises ValueError."""
    by_model: dict[tuple[str, str], dict[str, float]] = {}
    single: dict[str, float] = {}
    for (record, added), samples in answers.items():
        name = f"{record} {added[0][1]}" if added else record
        for labels, value in map(read_value, samples):
            if not math.isfinite(value):
                continue
            if "model" in labels:
                by_model.setdefault((labels.get("repository", ""), labels["model"]), {})[name] = value
            else:
                single[name] = value
    models = [
        ModelFigures(
            repository=repository,
            model=model,
            size_bytes=each.get("d7yfs:model_bytes:max"),
            store_copies=each.get("d7yfs:model_store_copies:ratio"),
            hosts=each.get("d7yfs:model_hosts:count"),
            ready_s={
                label: each[name]
                for label in QUANTILES
                if (name := f"d7yfs:model_ready_seconds:quantile {label}") in each
            },
        )
        for (repository, model), each in sorted(by_model.items())
    ]
    return ClusterFigures(
        hosts=single.get("d7yfs:hosts:count", 0),
        hosts_falling_back=single.get("d7yfs:hosts_falling_back:count", 0),
        way_bytes={way: single.get(f"d7yfs:way_bytes:gain {way}", 0) for way in WAYS},
        models=models,
    )


def describe(figures: ClusterFigures, window: str) -> Iterator[str]:
    """The lines above the table of models."""
    falling = round(figures.hosts_falling_back)
    said = f"{show_count(falling, 'falls', 'fall')} back to the store" if falling else "none falls back to the store"
    yield f"{show_count(round(figures.hosts), 'mount')}, {said}"
    total = sum(figures.way_bytes.values())
    shares = [
        f"{way} {show_size_roughly(size)} ({size / total:.0%})" for way, size in figures.way_bytes.items() if size
    ]
    yield f"bytes in {window}: {', '.join(shares) if shares else 'none'}"


COLUMNS = ("model", "size", "from the store", "mounts", "ready: half", "95 %", "slowest")


def rows(figures: ClusterFigures) -> Iterator[tuple[str, ...]]:
    """The rows of the table of models, under `COLUMNS`."""
    for each in figures.models:
        name = f"{each.repository}/{each.model}".removeprefix("/")
        size = "" if each.size_bytes is None else show_size_roughly(each.size_bytes)
        copies = "" if each.store_copies is None else f"{each.store_copies:.2f} ×"
        hosts = "" if each.hosts is None else f"{each.hosts:.0f}"
        ready = (f"{each.ready_s[label]:.1f} s" if label in each.ready_s else "" for label in QUANTILES)
        yield name, size, copies, hosts, *ready
