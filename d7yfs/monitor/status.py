"""What `d7yfs status` tells of one repository: where it is, by which way its bytes come, and what looks wrong. No secrets, no I/O.

Its fields are a promise (docs/status.md); `metrics` is a translation of them. Called by `commands`, for the control socket and for scrapes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

import trio

from d7yfs.errors import D7yfsError
from d7yfs.fetch.proxies import Proxies
from d7yfs.fill.handover import HandoverCounters
from d7yfs.fs.filesystem import Served
from d7yfs.monitor import traffic
from d7yfs.monitor.traffic import Traffic
from d7yfs.objects import ObjectVersion, StoreIdentity
from d7yfs.repository.repository import Repository
from d7yfs.stats.load_times import Full
from d7yfs.stats.models import Model, Models
from d7yfs.tree.visibility import EXCLUDED, NAME, UNPUBLISHED

REACHABLE, STALE, UNREACHABLE = "reachable", "stale", "unreachable"
"""How a repository is: its store answers; it does not, and what was listed before is served; it has not answered yet."""

InUse = Iterable[tuple[StoreIdentity, ObjectVersion, int]]
"""The versions in use: identity of their origin, version, and how much of it is cached."""


def describe(
    repository: Repository,
    served: Served,
    hidden: Mapping[str, int],
    unanswered_since: float | None,
    failure: D7yfsError | None,
    in_use: InUse,
    full: Mapping[str, Full],
) -> dict[str, Any]:
    """As JSON.

    `hidden`: entries that are not shown, by reason; `unanswered_since`: from when on its store has not answered questions about names, in
    trio's seconds; `failure`: why it cannot be read for now; `full`: how full its models are.
    """
    fetcher = repository.fetcher
    counted = _traffic(repository, served)
    handover = repository.handover
    through_p2p = fetcher.proxy is not None or handover is not None
    warning = traffic.warning(str(repository.config.url), counted) if through_p2p else ""
    return {
        "name": repository.config.name,
        "url": str(repository.config.url),
        "state": UNREACHABLE if failure is not None else REACHABLE if unanswered_since is None else STALE,
        "unlisted_s": 0.0 if unanswered_since is None else round(trio.current_time() - unanswered_since, 3),
        "error": str(failure) if failure is not None else "",
        "credentials_expire_at": expires_at
        if math.isfinite(expires_at := repository.origin.credentials_expire_at)
        else None,
        "origin": dict(repository.origin.describe()),
        **_proxy(fetcher.proxy),
        "hidden": {reason: hidden.get(reason, 0) for reason in (NAME, EXCLUDED, UNPUBLISHED)},
        "way": _way(repository),
        "handover": handover.describe() if handover is not None else None,
        "fetched": asdict(fetcher.counters),
        "load": fetcher.load(),
        "read_bytes": served.read_bytes,
        "traffic": asdict(counted),
        "fills": fetcher.journal.describe(),
        "models": _models(fetcher.models, repository, in_use, full),
        "warnings": [warning] if warning else [],
    }


def _models(
    models: Models, repository: Repository, in_use: InUse, full: Mapping[str, Full]
) -> dict[str, dict[str, Any]]:
    """By name; those that were touched, as far as they have counters of their own."""
    counted = models.all()

    def empty(name: str) -> dict[str, Any]:
        held = asdict(counted.get(name) or Model()) | asdict(full.get(name) or Full())
        return held | {"open_bytes": 0, "open_cached_bytes": 0}

    shown = {name: empty(name) for name in (*counted, *full)}
    for identity, version, cached_bytes in in_use:
        if identity == repository.origin.identity and models.holds(version.key):
            name = models.label_of(version.key)
            model = shown.setdefault(name, empty(name))
            model["open_bytes"] += version.size_bytes
            model["open_cached_bytes"] += cached_bytes
    return shown


def _way(repository: Repository) -> str:
    """By which way the next large file would come: `socket`, `proxy` or `origin`."""
    if repository.handover is not None and repository.handover.usable:
        return "socket"
    proxies = repository.fetcher.proxy
    return "proxy" if proxies is not None and proxies.usable else "origin"


def _proxy(proxies: Proxies | None) -> dict[str, Any]:
    if proxies is None:
        return {"proxy": "", "proxy_usable": None, "proxy_trips": 0, "breaker": "", "proxies": []}
    return {
        "proxy": proxies.url,
        "proxy_usable": proxies.usable,
        "proxy_trips": proxies.trips,
        "breaker": proxies.breaker.state,
        "proxies": [
            {
                "url": each.url,
                "breaker": each.breaker.state,
                "trips": each.breaker.trips,
                "binds_content_ids": each.binds_content_ids,
            }
            for each in proxies.all
        ],
    }


def _traffic(repository: Repository, served: Served) -> Traffic:
    counters = repository.fetcher.counters
    handed_over = repository.handover.counters if repository.handover is not None else HandoverCounters()
    return Traffic(
        cache_bytes=served.cache_bytes,
        proxy_bytes=counters.proxy_bytes,
        local_peer_bytes=handed_over.local_peer_bytes,
        remote_peer_bytes=handed_over.remote_peer_bytes,
        back_to_source_bytes=handed_over.source_bytes,
        direct_bytes=counters.direct_bytes,
        direct_bytes_by_reason=counters.direct_bytes_by_reason,
    )
