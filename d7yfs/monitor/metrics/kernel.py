"""What the kernel asks and is told, and what is known of the tree."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from d7yfs.monitor.metrics.tables import Status, plain

_NOTICES = {
    "d7yfs_kernel_notices": ("notices", "Entries that the kernel was told to forget"),
    "d7yfs_kernel_notices_known": ("known", "Of these, those that it had"),
    "d7yfs_kernel_notices_overflow": (
        "overflow",
        "Entries that it was not told of because too many waited: they live until their time is over",
    ),
}
_TREE = {
    "inodes": "Files and directories that are known",
    "inodes_limit": "How many are kept at most, but for those in use",
    "directories": "Of these, directories",
    "files": "Of these, files",
    "directories_listed": "Directories of which all entries are known",
    "remembered": "What the kernel or an open handle remembers",
    "unlinked": "Of these, what is no entry any more",
    "hidden_keys": "Keys that cannot be shown as files, in directories that are listed at present",
}
_TREE_COUNTERS = {
    "stale_listings_total": "Listings that failed while an older one was served",
    "stale_answers_total": "Lookups answered from such an older listing",
    "dropped_inodes_total": "Inodes, and names known to be absent, dropped to stay below the limit",
    "unmatched_forgets_total": "What the kernel gave back and was not known to have",
}


def requests(fuse: Status) -> Iterator[Metric]:
    """How long they took, how many failed, how many wait."""
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
    yield GaugeMetricFamily(
        "d7yfs_fuse_oldest_request_age_seconds",
        "For how long the oldest of these has waited; 0 when there is none",
        fuse["oldest_request_s"],
    )
    yield GaugeMetricFamily("d7yfs_open_files", "Files of the mount that are open", fuse["open_files"])


def notices(counted: Status) -> Iterator[Metric]:
    """What the kernel was told has changed."""
    for name, (field, text) in _NOTICES.items():
        yield CounterMetricFamily(name, text, counted[field])


def tree(known: Status) -> Iterator[Metric]:
    """How many files and directories are known, and what was done about their number."""
    yield from plain(GaugeMetricFamily, "d7yfs_tree_", _TREE, known)
    yield from plain(CounterMetricFamily, "d7yfs_tree_", _TREE_COUNTERS, known)
