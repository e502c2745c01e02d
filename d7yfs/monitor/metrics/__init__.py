"""A mount's numbers as Prometheus has them: translated from what `status` says, at the moment of a scrape. Pure.

There is one account of a mount, that of `d7yfs status --json`; nothing is counted here, so the two never disagree, and every number in it
is here too, but for those that tests/status_numbers.py names with a reason. Names follow Prometheus' conventions (base units, `_total`).
Labels are bounded: operations, ways and reasons are words of this program, repositories are configured, models are limited by
`--metrics-per-model`. No value and no label holds a secret.

`kernel`: what the kernel asks, and what is known of the tree; `names`: how the names in stores are learnt; `data`: how bytes come, and are
kept; `models`: the same by model. Called by `monitoring`, for each scrape, in a worker thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from d7yfs.monitor.metrics import data, kernel, models, names
from d7yfs.monitor.metrics.tables import Status, named

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
"""Of what `render` returns."""


def render(status: Status) -> bytes:
    """The text that a scrape gets: the mount's numbers, and the process' own (memory, descriptors, processor time)."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Mount(status))
    ProcessCollector(registry=registry)
    return generate_latest(registry)


class _Mount(Collector):
    def __init__(self, status: Status) -> None:
        self._status = status

    def collect(self) -> Iterable[Metric]:
        return families(self._status)


def families(status: Status) -> Iterator[Metric]:
    """Every metric of one mount."""
    yield from _mount(status)
    repositories = named(status["repositories"])
    yield from kernel.requests(status["fuse"])
    yield from kernel.notices(status["kernel_notices"])
    yield from kernel.tree(status["tree"])
    yield from names.health(repositories)
    yield from names.listing(repositories)
    yield from names.freshness(repositories)
    yield from names.hidden(repositories)
    yield from data.traffic(repositories)
    yield from data.requests(repositories)
    yield from data.proxies(repositories)
    yield from data.handover(repositories)
    yield from data.cache(status["cache"])
    yield from data.warm_ups(status["warm_ups"])
    yield from models.models(repositories)


def _mount(status: Status) -> Iterator[Metric]:
    info = GaugeMetricFamily(
        "d7yfs_info", "Always 1; the labels say which mount this is", labels=["version", "mountpoint"]
    )
    info.add_metric([status["version"], status["mountpoint"]], 1)
    yield info
    if (reload := status["last_reload"]) is not None:
        successful = not reload["error"] and not reload["refused"]
        yield GaugeMetricFamily(
            "d7yfs_config_last_reload_successful",
            "1 when the settings could be read again the last time that this was tried; absent before",
            float(successful),
        )
        yield GaugeMetricFamily("d7yfs_config_last_reload_timestamp_seconds", "When that was", reload["at"])
