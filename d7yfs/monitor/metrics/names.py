"""How the names in each store are learnt: whether it answers, by which way it is listed, what that took, what is hidden."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from d7yfs.monitor.metrics.tables import Repositories, Status, by_repository, fields_by_repository, kinds_by_repository

_WAYS = ("whole", "directory", "exact")
_LAST_SCAN = {
    "objects": ("d7yfs_last_scan_objects", "Objects that the last listing of the whole repository had"),
    "directories": ("d7yfs_last_scan_directories", "Directories that it had"),
    "pages": ("d7yfs_last_scan_pages", "Requests that it took"),
    "took_s": ("d7yfs_last_scan_seconds", "How long it took"),
}
_FRESHNESS = {
    "refreshes": ("d7yfs_refreshes", "Rounds of listing again what is in use, before it expires"),
    "refreshes_failed": ("d7yfs_refreshes_failed", "Of these, those that failed"),
    "refreshed_directories": ("d7yfs_refreshed_directories", "Directories that were listed again so"),
    "refresh_s": ("d7yfs_refresh_seconds", "Time that was spent on it"),
}


def health(repositories: Repositories) -> Iterator[Metric]:
    """Whether each store answers, and for how long it will."""
    yield by_repository(
        GaugeMetricFamily,
        "d7yfs_repository_up",
        "1 while the store answers listings, 0 while it does not",
        repositories,
        lambda each: float(each["state"] == "reachable"),
    )
    yield by_repository(
        GaugeMetricFamily,
        "d7yfs_repository_stale_seconds",
        "For how long listings have failed and older ones were served; 0 while they succeed",
        repositories,
        lambda each: each["unlisted_s"],
    )
    yield by_repository(
        GaugeMetricFamily,
        "d7yfs_credentials_expire_timestamp_seconds",
        "When the credentials in use end unless they are renewed; absent for those that last",
        repositories,
        lambda each: each["credentials_expire_at"],
    )


def listing(repositories: Repositories) -> Iterator[Metric]:
    """By which way names are learnt, and what that asked for."""
    yield kinds_by_repository(
        GaugeMetricFamily,
        "d7yfs_listing_mode",
        "1 for the way in which names are learnt at present",
        "mode",
        repositories,
        lambda each: {way: float(way == each["listing"]["in_use"]) for way in _WAYS},
    )
    yield by_repository(
        GaugeMetricFamily,
        "d7yfs_listing_limit",
        "Objects up to which it is listed whole (--listing-limit)",
        repositories,
        lambda each: each["listing"]["limit"],
    )
    yield by_repository(
        GaugeMetricFamily,
        "d7yfs_listing_age_seconds",
        "Since its store last answered a question about names; nobody asks while nobody uses the mount. Absent before the first",
        repositories,
        lambda each: each["listing"]["answered_s"],
    )
    yield kinds_by_repository(
        CounterMetricFamily,
        "d7yfs_listings",
        "Listings that were begun: of the whole repository, of one directory",
        "kind",
        repositories,
        lambda each: _by_kind(each["listing"], whole="scans", directory="listings"),
    )
    yield kinds_by_repository(
        CounterMetricFamily,
        "d7yfs_listing_requests",
        "Requests about names: pages of listings of the whole repository, of a directory, of a directory too large to be kept (stream); "
        "and names asked for by themselves, which take up to two each",
        "kind",
        repositories,
        lambda each: _by_kind(
            each["listing"],
            whole="scan_pages",
            directory="listing_pages",
            stream="streamed_pages",
            name="exact_lookups",
        ),
    )
    scans = {name: each["listing"] for name, each in repositories.items()}
    yield from fields_by_repository(GaugeMetricFamily, "last_scan", _LAST_SCAN, scans)


def _by_kind(counted: Status, **fields: str) -> dict[str, float]:
    return {kind: counted[field] for kind, field in fields.items()}


def freshness(repositories: Repositories) -> Iterator[Metric]:
    """What was asked for again ahead of time."""
    yield from fields_by_repository(CounterMetricFamily, "freshness", _FRESHNESS, repositories)


def hidden(repositories: Repositories) -> Iterator[Metric]:
    """What the mount does not show."""
    yield kinds_by_repository(
        GaugeMetricFamily,
        "d7yfs_hidden_entries",
        "Entries of listed directories that are not shown: for their name, or by settings",
        "reason",
        repositories,
        lambda each: each["hidden"],
    )
