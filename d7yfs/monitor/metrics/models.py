"""The same by model: what it was asked for, where that came from, how full it is."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from d7yfs.monitor.metrics.data import SOURCES
from d7yfs.monitor.metrics.tables import Repositories

_COUNTERS = {
    "opens": ("d7yfs_model_opens", "Files opened"),
    "read_bytes": ("d7yfs_model_read_bytes", "Bytes given to readers"),
    "fills": ("d7yfs_model_fills", "Files brought whole in one go"),
    "fill_s": ("d7yfs_model_fill_seconds", "Time that these took, added up"),
    "loads": (
        "d7yfs_model_loads",
        "How often files of it were opened of which something was missing, after half a minute in which nothing was",
    ),
}
_GAUGES = {
    "files": (
        "d7yfs_model_files",
        "Of its files that were opened since the mount was made, those opened last, 256 at most",
    ),
    "size_bytes": ("d7yfs_model_bytes", "Size of these"),
    "cached_bytes": (
        "d7yfs_model_cached_bytes",
        "How much of these is cached, whether anybody has them open or not: with d7yfs_model_bytes, how full the model is",
    ),
    "load_s": (
        "d7yfs_model_load_seconds",
        "How long its last load took, from the first file opened until nothing was missing of those that were; absent before the first",
    ),
    "open_bytes": ("d7yfs_model_open_bytes", "Size of its files that are in use"),
    "open_cached_bytes": ("d7yfs_model_open_cached_bytes", "How much of these is cached"),
}


def models(repositories: Repositories) -> Iterator[Metric]:
    """Each model that was touched, as far as it has counters of its own; the rest is one called `other`."""
    labels = ["repository", "model"]
    sources = CounterMetricFamily(
        "d7yfs_model_source_bytes", "As d7yfs_source_bytes_total, of one model", labels=[*labels, "source"]
    )
    families: dict[str, CounterMetricFamily | GaugeMetricFamily] = {}
    for field, (name, text) in _COUNTERS.items():
        families[field] = CounterMetricFamily(name, text, labels=labels)
    for field, (name, text) in _GAUGES.items():
        families[field] = GaugeMetricFamily(name, text, labels=labels)
    for label, repository in repositories.items():
        for model, seen in repository["models"].items():
            for source, field in SOURCES.items():
                sources.add_metric([label, model, source], seen[field])
            for field, family in families.items():
                if seen[field] is not None:
                    family.add_metric([label, model], seen[field])
    yield sources
    yield from families.values()
