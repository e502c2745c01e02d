"""How the bytes of files come, and how they are kept: traffic, requests, proxies, hand-over, cache, warm-ups."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from d7yfs.monitor.metrics.tables import (
    Repositories,
    Status,
    by_repository,
    fields_by_repository,
    kinds_by_repository,
    plain,
)

SOURCES = {
    "cache": "cache_bytes",
    "proxy": "proxy_bytes",
    "local_peer": "local_peer_bytes",
    "remote_peer": "remote_peer_bytes",
    "back_to_source": "back_to_source_bytes",
    "origin": "direct_bytes",
}
"""Where bytes come from, by the fields of `fetch.traffic.Traffic` and `models.Model`."""

_BREAKER_STATES = ("closed", "open", "probing")
_REFUSED = {
    "resigned": (
        "d7yfs_resigned_requests",
        "Requests that were refused, and signed again with credentials looked for anew",
    ),
    "unbound": (
        "d7yfs_unbound_replies",
        "Replies of a proxy that were not used because they were not provably this version's",
    ),
}
_LOAD = {
    "transfers": ("d7yfs_transfers", "Ranges under way"),
    "transfers_limit": ("d7yfs_transfers_limit", "Most of them at once (--max-connections)"),
    "transfers_queued": ("d7yfs_transfers_queued", "Ranges that wait for a turn"),
    "prefetches": ("d7yfs_prefetches", "Of those under way, what nobody waits for yet"),
    "prefetches_limit": ("d7yfs_prefetches_limit", "Most of them at once"),
    "prefetches_queued": ("d7yfs_prefetches_queued", "Ranges ahead of readers that wait for a turn"),
}
_HANDOVER = {
    "handovers": ("d7yfs_handovers", "Files that dfdaemon handed over whole"),
    "checked_pieces": ("d7yfs_handover_checked_pieces", "Pieces that were compared with dfdaemon's own checksum"),
    "wrong_pieces": ("d7yfs_handover_wrong_pieces", "Pieces whose bytes did not match dfdaemon's own checksum"),
    "link_failures": ("d7yfs_handover_link_failures", "Files that dfdaemon could not link into the cache directory"),
    "trips": ("d7yfs_handover_trips", "How often the socket, or the link, was found not to work"),
}
_CACHE = {
    "memory_bytes": "Data that found no room on disk and is in memory",
    "memory_limit_bytes": "Most of that",
    "open_versions": "Object versions in use",
}
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


def traffic(repositories: Repositories) -> Iterator[Metric]:
    """Bytes that the kernel got, and whence they came."""
    yield by_repository(
        CounterMetricFamily,
        "d7yfs_read_bytes",
        "Bytes that the kernel asked for and got",
        repositories,
        lambda each: each["read_bytes"],
    )
    yield kinds_by_repository(
        CounterMetricFamily,
        "d7yfs_source_bytes",
        "Bytes by where they came from: cache for those that were there when they were asked for, the others as they were fetched. "
        "What the proxy brings may be from peers or the store, dfdaemon knows",
        "source",
        repositories,
        lambda each: {source: each["traffic"][field] for source, field in SOURCES.items()},
    )
    yield kinds_by_repository(
        CounterMetricFamily,
        "d7yfs_direct_bytes",
        "Bytes straight from the store, by reason",
        "reason",
        repositories,
        lambda each: each["traffic"]["direct_bytes_by_reason"],
    )


def requests(repositories: Repositories) -> Iterator[Metric]:
    """What was asked for, what failed, what is under way."""
    yield kinds_by_repository(
        CounterMetricFamily,
        "d7yfs_requests",
        "Requests for file data",
        "way",
        repositories,
        lambda each: {"origin": each["fetched"]["direct_requests"], "proxy": each["fetched"]["proxy_requests"]},
    )
    yield kinds_by_repository(
        CounterMetricFamily,
        "d7yfs_retries",
        "Requests for file data that were repeated, by what had failed",
        "reason",
        repositories,
        lambda each: each["fetched"]["retries"],
    )
    yield from fields_by_repository(CounterMetricFamily, "fetched", _REFUSED, repositories)
    yield from fields_by_repository(GaugeMetricFamily, "load", _LOAD, repositories)


def proxies(repositories: Repositories) -> Iterator[Metric]:
    """How each proxy of dfdaemon is; one that repositories share is shown under each of them."""
    breaker = GaugeMetricFamily(
        "d7yfs_proxy_breaker",
        "1 for the state that a proxy's breaker is in",
        labels=["repository", "proxy", "state"],
    )
    trips = CounterMetricFamily(
        "d7yfs_proxy_trips", "How often a proxy was found not to answer", labels=["repository", "proxy"]
    )
    for label, each in repositories.items():
        for proxy in each["proxies"]:
            trips.add_metric([label, proxy["url"]], proxy["trips"])
            for state in _BREAKER_STATES:
                breaker.add_metric([label, proxy["url"], state], float(state == proxy["breaker"]))
    yield from (breaker, trips)


def handover(repositories: Repositories) -> Iterator[Metric]:
    """What dfdaemon hands over by its socket, where that is configured."""
    labels = ["repository", "socket"]
    up = GaugeMetricFamily("d7yfs_handover_up", "1 while dfdaemon hands files over by its socket", labels=labels)
    counters = {field: CounterMetricFamily(name, text, labels=labels) for field, (name, text) in _HANDOVER.items()}
    for label, each in repositories.items():
        if (found := each["handover"]) is not None:
            up.add_metric([label, found["socket"]], float(found["state"] in ("in use", "not tried yet")))
            for field, family in counters.items():
                family.add_metric([label, found["socket"]], found[field])
    yield from (up, *counters.values())


def cache(kept: Status) -> Iterator[Metric]:
    """What the cache directory holds, and what became of reads."""
    yield GaugeMetricFamily("d7yfs_cache_bytes", "What the cache directory takes on disk", kept["used_bytes"])
    yield GaugeMetricFamily("d7yfs_cache_limit_bytes", "What it may take", kept["limit_bytes"])
    yield GaugeMetricFamily(
        "d7yfs_cache_disk_stalled_seconds",
        "For how long the cache's disk has not answered, 0 while it does",
        kept["disk_stalled_s"],
    )
    yield from plain(GaugeMetricFamily, "d7yfs_cache_", _CACHE, kept)
    yield from plain(CounterMetricFamily, "d7yfs_cache_", _CACHE_COUNTERS, kept)


def warm_ups(running: Sequence[Status]) -> Iterator[Metric]:
    """Those that run now, together: which ones they are, who asked for them knows."""
    yield GaugeMetricFamily("d7yfs_warm_ups", "Warm-ups that run", len(running))
    rest_bytes = sum(max(0, each["missing_bytes"] - each["fetched_bytes"]) for each in running)
    yield GaugeMetricFamily("d7yfs_warm_up_rest_bytes", "What running warm-ups have still to bring", rest_bytes)
    yield GaugeMetricFamily(
        "d7yfs_warm_up_failed_files", "Files that these could not bring", sum(each["files_failed"] for each in running)
    )
