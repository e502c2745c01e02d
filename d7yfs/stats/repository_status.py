"""The account of one repository, in types: a part of its mount's account (`status`). Pure.

The parts that are not frozen are counters: their owners count in them, and the account has copies.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from d7yfs.stats.failures import FailuresStatus

REACHABLE, STALE, UNREACHABLE = "reachable", "stale", "unreachable"
IN_USE, NOT_TRIED = "in use", "not tried yet"
"""The states of a hand-over that is not known to fail."""

OMITTED: Mapping[str, Any] = {"omitted": True}
"""Metadata of a field that JSON lacks while it is None."""

SOURCES = {name: f"{name}_bytes" for name in ("cache", "proxy", "local_peer", "remote_peer", "back_to_source")}
SOURCES["origin"] = "direct_bytes"
"""The sources of bytes, by the fields of `TrafficStatus` and `ModelStatus`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LastScanStatus:
    """The last flat listing of a whole repository that came to its end."""

    objects: int
    directories: int
    pages: int
    """Requests that it took."""
    took_s: float


@dataclass(slots=True, kw_only=True)
class ListingStatus:
    """The way in which names are learnt, and the requests about them since start."""

    mode: str
    """The configured way: `auto`, `whole`, `directory`, `exact`, `published`."""
    in_use: str
    """The way in use: `whole`, `directory`, `exact` or `published`."""
    reason: str
    """Why `in_use` is not `whole`, in words."""
    limit: int
    """Up to this number of objects the repository is listed whole (`--listing-limit`)."""
    last_scan: LastScanStatus
    """The last listing of the whole repository; zeros before the first."""
    answered_s: float | None
    """Time since the store last answered about names; null before the first answer."""
    scans: int
    """Listings of the whole repository that were begun."""
    scan_pages: int
    """Requests that these took."""
    listings: int
    """Listings of single directories that were begun."""
    listing_pages: int
    """Requests that these took."""
    exact_lookups: int
    """Single names that were asked for, by up to two requests each."""
    streamed_pages: int
    """Pages of directories that are too large to be kept."""

    @property
    def modes(self) -> dict[str, bool]:
        """The ways of learning names; True for the way in use."""
        return {way: way == self.in_use for way in ("whole", "directory", "exact", "published")}

    @property
    def listings_by_kind(self) -> dict[str, int]:
        """Listings that were begun."""
        return {"whole": self.scans, "directory": self.listings}

    @property
    def requests_by_kind(self) -> dict[str, int]:
        """Requests about names."""
        return {
            "whole": self.scan_pages,
            "directory": self.listing_pages,
            "stream": self.streamed_pages,
            "name": self.exact_lookups,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeCacheStatus:
    """The names that the cache directory keeps from one mount to the next."""

    recalled: int
    """Names that this mount took from an earlier one."""
    listed_at: float | None
    """When the oldest of these were listed; null if there are none."""
    saved_at: float | None
    """When this mount's names were kept last; null before."""
    saved_bytes: int
    """How much that took."""
    offline_since: float | None
    """Since when an earlier mount's names are served without the store; null while not."""
    offline_reason: str
    """Why the store does not answer; empty otherwise."""


@dataclass(slots=True, kw_only=True)
class PublicationStatus:
    """The published tree that a repository follows instead of listings."""

    is_followed: bool = False
    """True while names come from it; false if it cannot be used, and the store is listed."""
    sha256: str = ""
    """The digest of the snapshot that is shown; empty before the first."""
    published_at: float | None = None
    """When it was published; null before the first."""
    publisher: str = ""
    """The program that published it."""
    files: int = 0
    """Files that it has."""
    size_bytes: int = 0
    """Size of the snapshot."""
    checked_at: float | None = None
    """When the store last said that this is what is published."""
    pointer_requests: int = 0
    """Questions whether something else is published."""
    snapshots_fetched: int = 0
    """Snapshots that were fetched; others were in the cache directory."""
    unpublished: int = 0
    """Files that a read found changed since they were published."""
    trouble: str = ""
    """Why what is published now cannot be shown."""
    trouble_since: float | None = None
    """Since when; null while it can."""


@dataclass(slots=True, kw_only=True)
class FreshnessStatus:
    """The listings that were refreshed before they expired."""

    refreshes: int
    """Rounds of refreshing the directories in use."""
    refreshes_failed: int
    """Rounds that failed."""
    refreshed_directories: int
    """Directories that were listed again by themselves."""
    refresh_s: float
    """Time spent on these rounds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyStatus:
    """One proxy of dfdaemon."""

    url: str
    breaker: str
    """State of its circuit breaker: `closed`, `open` or `probing`."""
    trips: int
    """How often the breaker opened."""
    binds_content_ids: bool
    """True unless a reply has proved that its content ids are wrong."""

    @property
    def states(self) -> dict[str, bool]:
        """The states of a breaker; True for that of this proxy."""
        return {state: state == self.breaker for state in ("closed", "open", "probing")}


@dataclass(slots=True, kw_only=True)
class HandoverStatus:
    """The hand-over of whole files by dfdaemon's socket. Bytes are those of readable pieces."""

    socket: str
    state: str
    """`in use`, `not tried yet`, or why it is not in use."""
    handovers: int
    """Files that came whole."""
    source_bytes: int
    """Brought by dfdaemon from the store."""
    remote_peer_bytes: int
    """Brought by dfdaemon from other hosts."""
    local_peer_bytes: int
    """In dfdaemon's own store already."""
    checked_pieces: int
    """Pieces that were compared with dfdaemon's checksum."""
    wrong_pieces: int
    """Pieces that did not match it."""
    link_failures: int
    """Files that dfdaemon could not link into the cache directory."""
    trips: int
    """How often the socket, or the link, was found not to work."""

    @property
    def works(self) -> bool:
        """True unless it is known to fail."""
        return self.state in (IN_USE, NOT_TRIED)


@dataclass(slots=True, kw_only=True)
class FetchedStatus:
    """The requests for file data of one repository, by way."""

    direct_requests: int
    direct_bytes: int
    direct_bytes_by_reason: dict[str, int]
    """Why these bytes did not come through Dragonfly."""
    proxy_requests: int
    proxy_bytes: int
    unbound: int
    """Replies of a proxy that were refused because they were not provably of this version."""
    resigned: int
    """Requests that were signed anew after a refusal."""
    retries: dict[str, int]
    """Repeated requests, by the failure that caused them."""
    p2p_versions: dict[str, int]
    """Versions through Dragonfly, by proof, an earlier mount's too: `proved`, `sampled`, `not
    provable`, `wrong`."""

    def count_proof(self, proof: str) -> None:
        """Count a version that came through Dragonfly."""
        self.p2p_versions[proof] = self.p2p_versions.get(proof, 0) + 1

    def count_direct(self, received_bytes: int, reason: str) -> None:
        """Count bytes that have come straight from the origin."""
        self.direct_bytes_by_reason[reason] = self.direct_bytes_by_reason.get(reason, 0) + received_bytes

    def count_retry(self, error: Exception) -> None:
        """Count a request that is repeated because of `error`."""
        kind = type(error).__name__
        self.retries[kind] = self.retries.get(kind, 0) + 1

    @property
    def requests_by_way(self) -> dict[str, int]:
        """Requests for file data."""
        return {"origin": self.direct_requests, "proxy": self.proxy_requests}


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadStatus:
    """The requests for file data that are under way, and those that wait for a free connection."""

    transfers: int
    """Ranges under way."""
    transfers_limit: int
    """Most ranges at once (`--max-connections`)."""
    transfers_queued: int
    prefetches: int
    """Ranges under way for which no reader waits yet."""
    prefetches_limit: int
    prefetches_queued: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficStatus:
    """Bytes by the source that they came from.

    dfdaemon tells the source of each piece over its socket only. Bytes of its proxy may be from
    peers or from the store.
    """

    cache_bytes: int = 0
    """Given to readers, and cached before they asked; read-ahead included."""
    proxy_bytes: int = 0
    """By dfdaemon's proxy, from peers or from the store."""
    local_peer_bytes: int = 0
    """By dfdaemon's socket, from its own store."""
    remote_peer_bytes: int = 0
    """By dfdaemon's socket, from other hosts."""
    back_to_source_bytes: int = 0
    """By dfdaemon's socket, fetched by it from the store."""
    direct_bytes: int = 0
    """Straight from the store."""
    direct_bytes_by_reason: Mapping[str, int] = field(default_factory=dict)
    """Why these bytes did not come through Dragonfly."""

    @property
    def p2p_bytes(self) -> int:
        """Bytes that peers have, or may have, brought."""
        return self.proxy_bytes + self.local_peer_bytes + self.remote_peer_bytes

    @property
    def fetched_bytes(self) -> int:
        """All bytes that were not in the cache."""
        return self.p2p_bytes + self.back_to_source_bytes + self.direct_bytes

    @property
    def by_source(self) -> dict[str, int]:
        """Bytes by their source, as in the metrics."""
        return {source: getattr(self, field) for source, field in SOURCES.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class FillStatus:
    """One file that was brought whole, or is under way."""

    fetched_bytes: int
    """Bytes that it has brought so far."""
    outcome: str
    """`under way`, `complete`, or how it ended, in words."""
    object: str
    """URL of the object."""
    route: str
    """`socket`, `proxy` or `origin`."""
    size_bytes: int
    task_id: str | None = field(default=None, metadata=OMITTED)
    """Dragonfly's task; absent if there is none."""
    seconds: float | None = field(default=None, metadata=OMITTED)
    """Time that it took; absent while it is under way."""


@dataclass(slots=True, kw_only=True)
class ModelStatus:
    """One model: its readers, the sources of its bytes, and how much of it is cached."""

    opens: int
    """Files that were opened."""
    read_bytes: int
    """Given to readers."""
    cache_bytes: int
    """Given to readers, and cached before they asked."""
    proxy_bytes: int
    local_peer_bytes: int
    remote_peer_bytes: int
    back_to_source_bytes: int
    direct_bytes: int
    fills: int
    """Files that were brought whole in one go."""
    fill_s: float
    """Time that these fills took, added up."""
    files: int
    """Files that were opened since the mount began, the last 256."""
    size_bytes: int
    """Size of these `files`."""
    cached_bytes: int
    """How much of these `files` is cached."""
    loads: int
    """Loads that have begun."""
    load_s: float | None
    """How long the last load took; null before the first."""
    open_bytes: int
    """Size of the files that are in use."""
    open_cached_bytes: int
    """How much of the files in use is cached."""

    def count_piece(self, size_bytes: int, traffic: str) -> None:
        """Count a piece that dfdaemon handed over, which had it from `traffic`."""
        if traffic == "source":
            self.back_to_source_bytes += size_bytes
        elif traffic == "remote_peer":
            self.remote_peer_bytes += size_bytes
        elif traffic == "local_peer":
            self.local_peer_bytes += size_bytes

    @property
    def by_source(self) -> dict[str, int]:
        """Bytes by their source, as in the metrics."""
        return {source: getattr(self, field) for source, field in SOURCES.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class RepositoryStatus:
    """One repository: the health of its store, its names, and the ways of its bytes."""

    name: str
    """Empty if the repository is the root of the mount."""
    url: str
    state: str
    """`reachable`; `stale`: old listings are served; `unreachable`: empty, its store has not
    answered yet."""
    unlisted_s: float
    """For how long questions about names have failed; 0 while they succeed."""
    error: str
    """Why it is unreachable."""
    credentials_expire_at: float | None
    """When the credentials expire unless they are renewed; null if they do not."""
    origin: Mapping[str, str]
    """In words: `endpoint`, the source of the `credentials`, and where there is one `region`,
    `account`."""
    proxy: str
    """The proxy that would be asked now; the first if none would; empty without proxies."""
    proxy_usable: bool | None
    """True if a proxy may be asked now; null without proxies."""
    proxy_required: bool = False
    """True with `--no-fallback`: nothing but a proxy brings large files."""
    proxy_trips: int
    """How often the breakers of all proxies opened."""
    breaker: str
    """State of that proxy's circuit breaker; empty without proxies."""
    proxies: tuple[ProxyStatus, ...]
    """All configured proxies, in the order of preference."""
    hidden: Mapping[str, int]
    """Entries of listed directories that are not shown, by reason: `name`, `excluded`,
    `unpublished`."""
    way: str
    """The way by which the next large file would come: `socket`, `proxy`, `origin`."""
    handover: HandoverStatus | None
    """The hand-over by dfdaemon's socket; null without `--dfdaemon-socket`."""
    fetched: FetchedStatus
    """Requests for file data since start."""
    failures: FailuresStatus = field(default_factory=FailuresStatus)
    """Failures since the last success, by part."""
    load: LoadStatus
    """Requests for file data under way now."""
    read_bytes: int
    """Bytes that the kernel asked for and got."""
    traffic: TrafficStatus
    """Bytes by source."""
    fills: tuple[FillStatus, ...]
    """The latest files that were brought whole, then those under way."""
    models: Mapping[str, ModelStatus]
    """By top-level directory; `.`: files in none; `other`: models beyond `--metrics-per-model`."""
    warnings: tuple[str, ...]
    """Possible faults, in words."""
    listing: ListingStatus
    """How names are learnt."""
    freshness: FreshnessStatus
    """Listings that were refreshed before they expired."""
    tree_cache: TreeCacheStatus | None
    """Names that outlive the mount; null with `--tree-cache off` or `--listing exact`."""
    publication: PublicationStatus | None = None
    """The published tree that is shown; null where names come from listings."""

    @property
    def label(self) -> str:
        """The name; the URL if the repository is the root of the mount."""
        return self.name or self.url

    @property
    def is_up(self) -> bool:
        """True while its store answers."""
        return self.state == REACHABLE
