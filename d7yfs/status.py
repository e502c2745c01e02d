"""What `d7yfs status` tells of one repository: where it is, by which way its bytes come, and what looks wrong. No secrets, no I/O.

Called by `daemon`, for the control socket.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from d7yfs.errors import D7yfsError
from d7yfs.fetch import traffic
from d7yfs.fetch.handover import HandoverCounters
from d7yfs.fetch.proxies import Proxies
from d7yfs.fetch.traffic import Traffic
from d7yfs.filesystem import Served
from d7yfs.repository import Repository
from d7yfs.visibility import EXCLUDED, NAME, UNPUBLISHED


def describe(
    repository: Repository, served: Served, hidden: Mapping[str, int], failure: D7yfsError | None
) -> dict[str, Any]:
    """As JSON. `hidden`: entries that are not shown, by reason; `failure`: why it cannot be read for now."""
    fetcher = repository.fetcher
    counted = _traffic(repository, served)
    handover = repository.handover
    through_p2p = fetcher.proxy is not None or handover is not None
    warning = traffic.warning(str(repository.config.url), counted) if through_p2p else ""
    return {
        "name": repository.config.name,
        "url": str(repository.config.url),
        "error": str(failure) if failure is not None else "",
        "origin": dict(repository.origin.describe()),
        **_proxy(fetcher.proxy),
        "hidden": {reason: hidden.get(reason, 0) for reason in (NAME, EXCLUDED, UNPUBLISHED)},
        "way": _way(repository),
        "handover": handover.describe() if handover is not None else None,
        "fetched": asdict(fetcher.counters),
        "read_bytes": served.read_bytes,
        "traffic": asdict(counted),
        "fills": fetcher.journal.describe(),
        "warnings": [warning] if warning else [],
    }


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
