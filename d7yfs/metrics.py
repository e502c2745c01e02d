"""A mount's numbers as Prometheus has them: translated from what `status` says, at the moment of a scrape. Pure.

There is one account of a mount, that of `d7yfs status --json`; nothing is counted here, so the two never disagree. Names follow Prometheus'
conventions (base units, `_total`). Labels are bounded: operations, ways and reasons are words of this program, repositories are configured,
models are limited by `--metrics-per-model`. No value and no label holds a secret.

Called by `metrics_http`, which runs it for each scrape.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

Status = Mapping[str, Any]
"""What `d7yfs status --json` shows of one mount (docs/status.md)."""

_SOURCES = {
    "cache": "cache_bytes",
    "proxy": "proxy_bytes",
    "local_peer": "local_peer_bytes",
    "remote_peer": "remote_peer_bytes",
    "back_to_source": "back_to_source_bytes",
    "origin": "direct_bytes",
}
"""Where bytes come from, by the fields of `fetch.traffic.Traffic` and `models.Model`."""

_BREAKER_STATES = ("closed", "open", "probing")

_CACHE_COUNTERS = {
    "hits": "Reads that found all their bytes in the cache",
    "misses": "Reads that had to wait for bytes",
    "disk_bytes_written": "Bytes written to the cache",
    "taken_over_blocks": "Blocks that other daemons on the cache directory brought",
    "evicted_files": "Files deleted to make room",
    "corrupt_blocks": "Blocks that did not match their checksum and were fetched again",
    "checksum_mismatches": "Files that were not what the store had recorded at their upload",
    "uncached_opens": "Files that could not be kept on disk when they were opened",
}
_TREE_COUNTERS = {
    "stale_listings_total": "Listings that failed while an older one was served",
    "stale_answers_total": "Lookups answered from such an older listing",
    "dropped_inodes_total": "Inodes dropped to stay below the limit",
    "hidden_keys": "Keys seen that cannot be shown as files",
}


def render(status: Status) -> bytes:
    """The text that a scrape gets: the mount's numbers, and the process' own (memory, descriptors, processor time)."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Mount(status))
    ProcessCollector(registry=registry)
    return generate_latest(registry)


CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
"""Of what `render` returns."""


class _Mount(Collector):
    def __init__(self, status: Status) -> None:
        self._status = status

    def collect(self) -> Iterable[Metric]:
        return families(self._status)


def families(status: Status) -> Iterator[Metric]:
    """Every metric of one mount."""
    info = GaugeMetricFamily(
        "d7yfs_info", "Always 1; the labels say which mount this is", labels=["version", "mountpoint"]
    )
    info.add_metric([status["version"], status["mountpoint"]], 1)
    yield info
    yield from _fuse(status["fuse"])
    yield from _cache(status["cache"])
    yield from _tree(status["tree"])
    repositories = {each["name"] or each["url"]: each for each in status["repositories"]}
    yield from _traffic(repositories)
    yield from _requests(repositories)
    yield from _health(repositories)
    yield from _dragonfly(repositories)
    yield from _models(repositories)
    warm_ups = status["warm_ups"]
    yield GaugeMetricFamily("d7yfs_warm_ups", "Warm-ups that run", len(warm_ups))
    rest_bytes = sum(max(0, each["missing_bytes"] - each["fetched_bytes"]) for each in warm_ups)
    yield GaugeMetricFamily("d7yfs_warm_up_rest_bytes", "What running warm-ups have still to bring", rest_bytes)


def _fuse(fuse: Status) -> Iterator[Metric]:
    took = HistogramMetricFamily(
        "d7yfs_fuse_request_duration_seconds",
        "Time from the kernel's request to its answer; what the kernel answers from its own caches is not in it",
        labels=["operation"],
    )
    bounds = [*map(str, fuse["latency_bounds_s"]), "+Inf"]
    for operation, seen in fuse["latency"].items():
        total, buckets = 0, []
        for bound, count in zip(bounds, seen["counts"], strict=True):
            total += count
            buckets.append((bound, total))
        took.add_metric([operation], buckets, seen["sum_s"])
    yield took
    errors = CounterMetricFamily("d7yfs_fuse_errors", "Requests answered with an error", labels=["operation"])
    for operation, count in fuse["errors"].items():
        errors.add_metric([operation], count)
    yield errors
    yield GaugeMetricFamily("d7yfs_fuse_requests_in_flight", "Requests not answered yet", fuse["in_flight"])
    yield GaugeMetricFamily("d7yfs_open_files", "Files of the mount that are open", fuse["open_files"])


def _cache(cache: Status) -> Iterator[Metric]:
    yield GaugeMetricFamily("d7yfs_cache_bytes", "What the cache directory takes on disk", cache["used_bytes"])
    yield GaugeMetricFamily("d7yfs_cache_limit_bytes", "What it may take", cache["limit_bytes"])
    yield GaugeMetricFamily(
        "d7yfs_cache_memory_bytes", "Data that found no room on disk and is in memory", cache["memory_bytes"]
    )
    yield GaugeMetricFamily("d7yfs_cache_memory_limit_bytes", "Most of that", cache["memory_limit_bytes"])
    yield GaugeMetricFamily("d7yfs_cache_open_versions", "Object versions in use", cache["open_versions"])
    for field, text in _CACHE_COUNTERS.items():
        yield CounterMetricFamily(f"d7yfs_cache_{field}", text, cache[field])


def _tree(tree: Status) -> Iterator[Metric]:
    yield GaugeMetricFamily("d7yfs_tree_inodes", "Files and directories that are known", tree["inodes"])
    yield GaugeMetricFamily(
        "d7yfs_tree_inodes_limit", "How many are kept at most, but for those in use", tree["inodes_limit"]
    )
    for field, text in _TREE_COUNTERS.items():
        yield CounterMetricFamily(f"d7yfs_tree_{field.removesuffix('_total')}", text, tree[field])


def _by_repository(
    kind: type[CounterMetricFamily] | type[GaugeMetricFamily],
    name: str,
    text: str,
    repositories: Mapping[str, Status],
    value: Callable[[Status], float | None],
) -> Metric:
    """One value for each repository that has one."""
    family = kind(name, text, labels=["repository"])
    for label, repository in repositories.items():
        if (number := value(repository)) is not None:
            family.add_metric([label], number)
    return family


def _traffic(repositories: Mapping[str, Status]) -> Iterator[Metric]:
    yield _by_repository(
        CounterMetricFamily,
        "d7yfs_read_bytes",
        "Bytes that the kernel asked for and got",
        repositories,
        lambda each: each["read_bytes"],
    )
    sources = CounterMetricFamily(
        "d7yfs_source_bytes",
        "Bytes by where they came from: cache for those that were there when they were asked for, the others as they were fetched. "
        "What the proxy brings may be from peers or the store, dfdaemon knows",
        labels=["repository", "source"],
    )
    direct = CounterMetricFamily(
        "d7yfs_direct_bytes", "Bytes straight from the store, by reason", labels=["repository", "reason"]
    )
    for label, each in repositories.items():
        for source, field in _SOURCES.items():
            sources.add_metric([label, source], each["traffic"][field])
        for reason, size_bytes in each["traffic"]["direct_bytes_by_reason"].items():
            direct.add_metric([label, reason], size_bytes)
    yield sources
    yield direct


def _requests(repositories: Mapping[str, Status]) -> Iterator[Metric]:
    requests = CounterMetricFamily("d7yfs_requests", "Requests for file data", labels=["repository", "way"])
    retries = CounterMetricFamily(
        "d7yfs_retries",
        "Requests for file data that were repeated, by what had failed",
        labels=["repository", "reason"],
    )
    for label, each in repositories.items():
        requests.add_metric([label, "origin"], each["fetched"]["direct_requests"])
        requests.add_metric([label, "proxy"], each["fetched"]["proxy_requests"])
        for reason, count in each["fetched"]["retries"].items():
            retries.add_metric([label, reason], count)
    yield requests
    yield retries
    for field, text in {
        "transfers": "Ranges under way",
        "transfers_limit": "Most of them at once (--max-connections)",
        "transfers_queued": "Ranges that wait for a turn",
        "prefetches": "Of those under way, what nobody waits for yet",
        "prefetches_queued": "Ranges ahead of readers that wait for a turn",
    }.items():
        yield _by_repository(GaugeMetricFamily, f"d7yfs_{field}", text, repositories, _loads(field))


def _loads(field: str) -> Callable[[Status], float]:
    return lambda each: float(each["load"][field])


def _health(repositories: Mapping[str, Status]) -> Iterator[Metric]:
    yield _by_repository(
        GaugeMetricFamily,
        "d7yfs_repository_up",
        "1 while the store answers listings, 0 while it does not",
        repositories,
        lambda each: float(each["state"] == "reachable"),
    )
    yield _by_repository(
        GaugeMetricFamily,
        "d7yfs_repository_stale_seconds",
        "For how long listings have failed and older ones were served; 0 while they succeed",
        repositories,
        lambda each: each["unlisted_s"],
    )
    yield _by_repository(
        GaugeMetricFamily,
        "d7yfs_credentials_expire_timestamp_seconds",
        "When the credentials in use end unless they are renewed; absent for those that last",
        repositories,
        lambda each: each["credentials_expire_at"],
    )


def _dragonfly(repositories: Mapping[str, Status]) -> Iterator[Metric]:
    breaker = GaugeMetricFamily(
        "d7yfs_proxy_breaker",
        "1 for the state that a proxy's breaker is in",
        labels=["repository", "proxy", "state"],
    )
    trips = CounterMetricFamily(
        "d7yfs_proxy_trips", "How often a proxy was found not to answer", labels=["repository", "proxy"]
    )
    handover = GaugeMetricFamily(
        "d7yfs_handover_up", "1 while dfdaemon hands files over by its socket", labels=["repository", "socket"]
    )
    pieces = CounterMetricFamily(
        "d7yfs_handover_wrong_pieces",
        "Pieces whose bytes did not match dfdaemon's own checksum",
        labels=["repository", "socket"],
    )
    for label, each in repositories.items():
        for proxy in each["proxies"]:
            trips.add_metric([label, proxy["url"]], proxy["trips"])
            for state in _BREAKER_STATES:
                breaker.add_metric([label, proxy["url"], state], float(state == proxy["breaker"]))
        if each["handover"]:
            socket = each["handover"]["socket"]
            handover.add_metric([label, socket], float(each["handover"]["state"] in ("in use", "not tried yet")))
            pieces.add_metric([label, socket], each["handover"]["wrong_pieces"])
    yield from (breaker, trips, handover, pieces)


def _models(repositories: Mapping[str, Status]) -> Iterator[Metric]:
    labels = ["repository", "model"]
    sources = CounterMetricFamily(
        "d7yfs_model_source_bytes", "As d7yfs_source_bytes_total, of one model", labels=[*labels, "source"]
    )
    counters = {
        "opens": CounterMetricFamily("d7yfs_model_opens", "Files opened", labels=labels),
        "read_bytes": CounterMetricFamily("d7yfs_model_read_bytes", "Bytes given to readers", labels=labels),
        "fills": CounterMetricFamily("d7yfs_model_fills", "Files brought whole in one go", labels=labels),
        "fill_s": CounterMetricFamily("d7yfs_model_fill_seconds", "Time that these took, added up", labels=labels),
    }
    gauges = {
        "open_bytes": GaugeMetricFamily("d7yfs_model_open_bytes", "Size of its files that are in use", labels=labels),
        "open_cached_bytes": GaugeMetricFamily(
            "d7yfs_model_open_cached_bytes",
            "How much of these is cached: with d7yfs_model_open_bytes, how full",
            labels=labels,
        ),
    }
    for label, repository in repositories.items():
        for model, seen in repository["models"].items():
            for source, field in _SOURCES.items():
                sources.add_metric([label, model, source], seen[field])
            for field, family in (counters | gauges).items():
                family.add_metric([label, model], seen[field])
    yield sources
    yield from counters.values()
    yield from gauges.values()
