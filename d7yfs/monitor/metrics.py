"""A mount's numbers for Prometheus, translated from its account (`stats.status`) at the moment of a
scrape. Pure.

Nothing is counted here, so a scrape and `d7yfs status --json` never disagree. Every number of the
account is here too, apart from those that tests/monitor/status_numbers.py names with a reason.
Names follow Prometheus' conventions (base units, `_total`). Labels are bounded: operations, ways
and reasons are words of this program, repositories are configured, models are limited by
`--metrics-per-model`. No value and no label holds a secret.

Called by `reporter`, for each scrape, in a worker thread.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from d7yfs.stats.status import LatencyStatus, MountStatus

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
"""The content type of `render`'s result."""

_TABLE = """
gauge d7yfs_config_last_reload_successful last_reload.succeeded: 1 when the settings could be read again the last time
    that this was tried; absent before
gauge d7yfs_config_last_reload_timestamp_seconds last_reload.at: When that was
histogram d7yfs_fuse_request_duration_seconds fuse.latency: Time from the kernel's request to its answer; requests
    that the kernel answers from its own caches are not in it
counter d7yfs_fuse_errors_total fuse.errors: Requests answered with an error
gauge d7yfs_fuse_requests_in_flight fuse.in_flight: Requests not answered yet
gauge d7yfs_fuse_oldest_request_age_seconds fuse.oldest_request_s: For how long the oldest of these has waited; 0 when
    there is none
gauge d7yfs_open_files fuse.open_files: Files of the mount that are open
counter d7yfs_passthrough_opens_total fuse.passthrough_opens: Opens of files that the kernel then reads by itself
gauge d7yfs_open_files_limit fuse.open_files_limit: How many may be at most; one over 8 MiB may count as several
gauge d7yfs_open_directories fuse.open_directories: Directories of the mount that are open
gauge d7yfs_open_directories_limit fuse.open_directories_limit: How many may be at most; one of a thousand names or
    more counts as several
counter d7yfs_worker_restarts_total takeover.restarts: Workers that died, and were followed by another
counter d7yfs_upgrades_total takeover.upgrades: Workers that left for one of newer code
gauge d7yfs_movers movers.processes: Processes that receive file data beside the daemon
gauge d7yfs_movers_limit movers.processes_limit: How many there may be at most
gauge d7yfs_movers_ready movers.ready: Those that take jobs
gauge d7yfs_mover_jobs movers.jobs: Bodies of replies that they receive now
counter d7yfs_mover_received_bytes_total movers.received_bytes: Bytes that they have brought
counter d7yfs_movers_lost_total movers.lost: Those that died, or hung, with jobs
gauge d7yfs_mover_tls_connections movers.tls_connections: Connections whose TLS they end
counter d7yfs_kernel_notices_total kernel_notices.notices: Entries that the kernel was told to forget
counter d7yfs_kernel_notices_known_total kernel_notices.known: Of these, those that it had
counter d7yfs_kernel_notices_overflow_total kernel_notices.overflow: Entries that it was not told of because too many
    waited: they live until their time is over
gauge d7yfs_tree_inodes tree.inodes: Files and directories that are known
gauge d7yfs_tree_inodes_limit tree.inodes_limit: How many are kept at most, but for those in use
gauge d7yfs_tree_directories tree.directories: Of these, directories
gauge d7yfs_tree_files tree.files: Of these, files
gauge d7yfs_tree_directories_listed tree.directories_listed: Directories of which all entries are known
gauge d7yfs_tree_remembered tree.remembered: Inodes that the kernel or an open handle remembers
gauge d7yfs_tree_unlinked tree.unlinked: Of these, those that are no entries any more
gauge d7yfs_tree_hidden_keys tree.hidden_keys: Keys that cannot be shown as files, in directories that are listed at
    present
counter d7yfs_tree_stale_listings_total tree.stale_listings_total: Listings that failed while an older one was served
counter d7yfs_tree_stale_answers_total tree.stale_answers_total: Lookups answered from such an older listing
counter d7yfs_tree_dropped_inodes_total tree.dropped_inodes_total: Inodes, and names known to be absent, dropped to
    stay below the limit
counter d7yfs_tree_unmatched_forgets_total tree.unmatched_forgets_total: Inodes that the kernel gave back and was not
    known to have
gauge d7yfs_cache_bytes cache.used_bytes: Bytes that the cache directory takes on disk
gauge d7yfs_cache_limit_bytes cache.limit_bytes: Bytes that it may take
gauge d7yfs_cache_disk_stalled_seconds cache.disk_stalled_s: For how long the cache's disk has not answered, 0 while
    it does
gauge d7yfs_cache_memory_bytes cache.memory_bytes: Data that found no room on disk and is in memory
gauge d7yfs_cache_memory_limit_bytes cache.memory_limit_bytes: Most of that
gauge d7yfs_cache_open_versions cache.open_versions: Object versions in use
counter d7yfs_cache_hits_total cache.hits: Reads that found all their bytes in the cache
counter d7yfs_cache_misses_total cache.misses: Reads that had to wait for bytes
counter d7yfs_cache_disk_bytes_written_total cache.disk_bytes_written: Bytes written to the cache
counter d7yfs_cache_taken_over_blocks_total cache.taken_over_blocks: Blocks that other daemons on the cache directory
    brought
counter d7yfs_cache_evicted_files_total cache.evicted_files: Files deleted to make room
counter d7yfs_cache_corrupt_blocks_total cache.corrupt_blocks: Blocks that did not match their checksum and were
    fetched again
counter d7yfs_cache_checksum_mismatches_total cache.checksum_mismatches: Files that were not what the store had
    recorded at their upload
counter d7yfs_cache_uncached_opens_total cache.uncached_opens: Files that could not be kept on disk when they were
    opened
gauge d7yfs_cache_disk_free_bytes cache.free_bytes: Bytes that are free on the cache's disk
gauge d7yfs_cache_min_free_bytes cache.min_free_bytes: Bytes that the cache leaves free there (--cache-min-free)
gauge d7yfs_cache_keepable_bytes cache.keepable_bytes: Bytes that it can keep at once; 0 if it caches nothing
gauge d7yfs_cache_full_seconds cache.full_s: For how long nothing has found room, 0 while something does
gauge d7yfs_problem problems_by_code: How many problems of this code the mount has now, 0 for none; `d7yfs status` says
    which, and what to do
gauge d7yfs_warm_ups warm_ups_running: Warm-ups that run
gauge d7yfs_warm_up_rest_bytes warm_ups_rest_bytes: Bytes that running warm-ups have still to bring
gauge d7yfs_warm_up_failed_files warm_ups_failed_files: Files that these could not bring
gauge d7yfs_repository_up repositories.is_up: 1 while the store answers listings, 0 while it does not
gauge d7yfs_repository_stale_seconds repositories.unlisted_s: For how long listings have failed and older ones were
    served; 0 while they succeed
gauge d7yfs_credentials_expire_timestamp_seconds repositories.credentials_expire_at: When the credentials in use end
    unless they are renewed; absent for those that last
gauge d7yfs_listing_limit repositories.listing.limit: Objects up to which it is listed whole (--listing-limit)
gauge d7yfs_listing_age_seconds repositories.listing.answered_s: Since its store last answered a question about names;
    no client asks while the mount is not in use. Absent before the first
gauge d7yfs_last_scan_objects repositories.listing.last_scan.objects: Objects that the last listing of the whole
    repository had
gauge d7yfs_last_scan_directories repositories.listing.last_scan.directories: Directories that it had
gauge d7yfs_last_scan_pages repositories.listing.last_scan.pages: Requests that it took
gauge d7yfs_last_scan_seconds repositories.listing.last_scan.took_s: How long it took
gauge d7yfs_recalled_names repositories.tree_cache.recalled: Names that this mount took from an earlier one
gauge d7yfs_recalled_names_timestamp_seconds repositories.tree_cache.listed_at: When the oldest of these were listed;
    absent if there are none
gauge d7yfs_kept_names_timestamp_seconds repositories.tree_cache.saved_at: When names were kept last for the next
    mount; absent before
gauge d7yfs_kept_names_bytes repositories.tree_cache.saved_bytes: How much room that took
gauge d7yfs_repository_offline_timestamp_seconds repositories.tree_cache.offline_since: Since when names of an earlier
    mount are served without the store; absent while it is not so
counter d7yfs_refreshes_total repositories.freshness.refreshes: Rounds of listing directories in use again, before
    they expire
counter d7yfs_refreshes_failed_total repositories.freshness.refreshes_failed: Of these, those that failed
counter d7yfs_refreshed_directories_total repositories.freshness.refreshed_directories: Directories that were listed
    again so
counter d7yfs_refresh_seconds_total repositories.freshness.refresh_s: Time that was spent on it
counter d7yfs_read_bytes_total repositories.read_bytes: Bytes that the kernel asked for and got
gauge d7yfs_failures repositories.failures.by_part: Failures since the last success: of questions about names, of
    requests for data, of proxies; and reads that failed for programs in the last minutes
counter d7yfs_resigned_requests_total repositories.fetched.resigned: Requests that were refused, and signed again with
    credentials looked for anew
counter d7yfs_unbound_replies_total repositories.fetched.unbound: Replies of a proxy that were not used because they
    were not provably this version's
gauge d7yfs_transfers repositories.load.transfers: Ranges under way
gauge d7yfs_transfers_limit repositories.load.transfers_limit: Most of them at once (--max-connections)
gauge d7yfs_transfers_queued repositories.load.transfers_queued: Ranges that wait for a turn
gauge d7yfs_prefetches repositories.load.prefetches: Of those under way, those that no reader waits for yet
gauge d7yfs_prefetches_limit repositories.load.prefetches_limit: Most of them at once
gauge d7yfs_prefetches_queued repositories.load.prefetches_queued: Ranges ahead of readers that wait for a turn
gauge d7yfs_listing_mode repositories.listing.modes: 1 for the way in which names are learnt at present
counter d7yfs_listings_total repositories.listing.listings_by_kind: Listings that were begun: of the whole repository,
    of one directory
counter d7yfs_listing_requests_total repositories.listing.requests_by_kind: Requests about names: pages of listings of
    the whole repository, of a directory, of a directory too large to be kept (stream); and names asked for by
    themselves, which take up to two each
gauge d7yfs_hidden_entries repositories.hidden: Entries of listed directories that are not shown: for their name, or
    by settings
counter d7yfs_source_bytes_total repositories.traffic.by_source: Bytes by where they came from: cache for those that
    were there when they were asked for, the others as they were fetched. What the proxy brings may be from peers or
    the store, dfdaemon knows
counter d7yfs_direct_bytes_total repositories.traffic.direct_bytes_by_reason: Bytes straight from the store, by reason
counter d7yfs_requests_total repositories.fetched.requests_by_way: Requests for file data
counter d7yfs_retries_total repositories.fetched.retries: Requests for file data that were repeated, by failure
counter d7yfs_p2p_versions_total repositories.fetched.p2p_versions: Versions that came through Dragonfly, by how they
    were compared with the store
gauge d7yfs_proxy_breaker repositories.proxies.states: 1 for the state that a proxy's breaker is in
counter d7yfs_proxy_trips_total repositories.proxies.trips: How often a proxy was found not to answer
gauge d7yfs_handover_up repositories.handover.works: 1 while dfdaemon hands files over by its socket
counter d7yfs_handovers_total repositories.handover.handovers: Files that dfdaemon handed over whole
counter d7yfs_handover_checked_pieces_total repositories.handover.checked_pieces: Pieces that were compared with
    dfdaemon's own checksum
counter d7yfs_handover_wrong_pieces_total repositories.handover.wrong_pieces: Pieces whose bytes did not match
    dfdaemon's own checksum
counter d7yfs_handover_link_failures_total repositories.handover.link_failures: Files that dfdaemon could not link
    into the cache directory
counter d7yfs_handover_trips_total repositories.handover.trips: How often the socket, or the link, was found not to
    work
counter d7yfs_model_source_bytes_total repositories.models.by_source: As d7yfs_source_bytes_total, of one model
counter d7yfs_model_opens_total repositories.models.opens: Files opened
counter d7yfs_model_read_bytes_total repositories.models.read_bytes: Bytes given to readers
counter d7yfs_model_fills_total repositories.models.fills: Files brought whole in one go
counter d7yfs_model_fill_seconds_total repositories.models.fill_s: Time that these took, added up
counter d7yfs_model_loads_total repositories.models.loads: How often files of it were opened of which something was
    missing, after half a minute in which nothing was
gauge d7yfs_model_files repositories.models.files: Of its files that were opened since the mount was made, those
    opened last, 256 at most
gauge d7yfs_model_bytes repositories.models.size_bytes: Size of these
gauge d7yfs_model_cached_bytes repositories.models.cached_bytes: How much of these is cached, whether they are open or
    not: with d7yfs_model_bytes, how full the model is
gauge d7yfs_model_load_seconds repositories.models.load_s: How long its last load took, from the first file opened
    until nothing was missing of those that were; absent before the first
gauge d7yfs_model_open_bytes repositories.models.open_bytes: Size of its files that are in use
gauge d7yfs_model_open_cached_bytes repositories.models.open_cached_bytes: How much of these is cached
"""
"""The metrics, in the order of a scrape: kind, name, path of the field in the account, and help. A
row goes on in indented lines.

The steps of `_LABELS` on a path give a metric its labels. A metric without labels is absent while
the account has no value for it.
"""

_LABELS = {
    "by_part": "part",
    "by_source": "source",
    "direct_bytes_by_reason": "reason",
    "errors": "operation",
    "handover": "socket",
    "hidden": "reason",
    "latency": "operation",
    "listings_by_kind": "kind",
    "models": "model",
    "p2p_versions": "proof",
    "problems_by_code": "code",
    "modes": "mode",
    "proxies": "proxy",
    "repositories": "repository",
    "requests_by_kind": "kind",
    "requests_by_way": "way",
    "retries": "reason",
    "states": "state",
}
"""The label of each step of a path that leads to several values."""

_NAMES = {"handover": "socket", "proxies": "url", "repositories": "label"}
"""The field that names a part after such a step; the others lead to values by name."""

_KINDS: Mapping[str, Any] = {
    "counter": CounterMetricFamily,
    "gauge": GaugeMetricFamily,
    "histogram": HistogramMetricFamily,
}
_ROWS = [" ".join(row.split()).split(" ", 3) for row in re.split(r"\n(?! )", _TABLE.strip())]


def render(status: MountStatus) -> bytes:
    """The text of a scrape: the mount's numbers, and the process' own (memory, descriptors)."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_StatusCollector(status))
    ProcessCollector(registry=registry)
    return generate_latest(registry)


class _StatusCollector(Collector):
    def __init__(self, status: MountStatus) -> None:
        self._status = status

    def collect(self) -> Iterable[Metric]:
        return families(self._status)


def families(status: MountStatus) -> Iterator[Metric]:
    """Every metric of one mount."""
    info = GaugeMetricFamily(
        "d7yfs_info", "Always 1; the labels say which mount this is", labels=["version", "mountpoint"]
    )
    info.add_metric([status.version, status.mountpoint], 1)
    yield info
    for kind, name, path, text in _ROWS:
        steps = path.rstrip(":").split(".")
        labels = [_LABELS[step] for step in steps if step in _LABELS]
        family = _KINDS[kind](name, text, labels=labels)
        for label_values, value in _values(status, steps):
            if isinstance(value, LatencyStatus):
                bounds = [*map(str, status.fuse.latency_bounds_s), "+Inf"]
                buckets = [*zip(bounds, accumulate(value.counts), strict=True)]
                family.add_metric(label_values, buckets, value.sum_s)
            else:
                family.add_metric(label_values, value)
        if labels or family.samples:
            yield family


def _values(part: Any, steps: Sequence[str], labels: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """The values at the end of a path that begins at `part`, each with its labels."""
    if part is None:
        return
    if not steps:
        yield labels, part
        return
    step, *rest = steps
    below = getattr(part, step)
    if step not in _LABELS:
        yield from _values(below, rest, labels)
    elif isinstance(below, Mapping):
        for name, each in below.items():
            yield from _values(each, rest, (*labels, name))
    else:
        for each in below if isinstance(below, tuple) else filter(None, [below]):
            yield from _values(each, rest, (*labels, getattr(each, _NAMES[step])))
