"""The account of one repository, collected from its parts: its state, the way of its bytes, and
possible faults. No secrets, no I/O.

Called by `commands`, which adds the parts of the whole mount.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from copy import deepcopy
from dataclasses import asdict, replace

import trio

from d7yfs.errors import D7yfsError
from d7yfs.fetch.dragonfly_proxy import Proxy
from d7yfs.fs.filesystem import Filesystem
from d7yfs.objects import ObjectVersion, StoreIdentity
from d7yfs.repository.repository import Repository
from d7yfs.repository.tree_keeper import TreeKeeper
from d7yfs.stats.repository_status import (
    REACHABLE,
    STALE,
    UNREACHABLE,
    ModelStatus,
    ProxyStatus,
    RepositoryStatus,
    TrafficStatus,
)
from d7yfs.stats.status import blank, parse
from d7yfs.tree.refresher import Refresher
from d7yfs.tree.visibility import EXCLUDED, NAME, UNPUBLISHED

JUDGED_BYTES = 256 << 20
"""Less traffic is not judged: small files and headers come straight from the store in any case."""

InUse = Iterable[tuple[StoreIdentity, ObjectVersion, int]]
"""The versions in use: identity of their origin, version, and how much of it is cached."""


def describe_repository(
    repository: Repository,
    filesystem: Filesystem,
    refresher: Refresher,
    failure: D7yfsError | None,
    keeper: TreeKeeper | None,
    in_use: InUse,
) -> RepositoryStatus:
    """The account of `repository` in `filesystem`; `failure`: why it cannot be read for now."""
    offline_since = repository.shown.offline_since
    name, url = repository.config.name, str(repository.config.url)
    lister, hidden = filesystem.listers[name], filesystem.tree.hidden_by_reason(name)
    fetcher, handover, proxies = repository.fetcher, repository.handover, repository.fetcher.proxy
    since, expires_at = fetcher.failures.names.since, repository.origin.credentials_expire_at
    is_empty = failure is not None and offline_since is None
    unlisted_s = 0.0 if since is None else max(0.0, time.time() - since)
    total = fetcher.models.total
    fetched = replace(deepcopy(fetcher.counters), direct_bytes=total.direct_bytes, proxy_bytes=total.proxy_bytes)
    traffic = parse(TrafficStatus, asdict(total) | {"direct_bytes_by_reason": fetched.direct_bytes_by_reason})
    warnings: tuple[str, ...] = ()
    if proxies is not None or handover is not None:
        tokens = fetcher.tokens.warning
        warnings = (f"{url}: {tokens}",) if tokens else tuple(filter(None, [judge_traffic(url, traffic)]))
    return RepositoryStatus(
        name=name,
        url=url,
        state=REACHABLE if failure is None and since is None else UNREACHABLE if is_empty else STALE,
        unlisted_s=round(unlisted_s, 3),
        error=str(failure) if is_empty else "",
        credentials_expire_at=expires_at if math.isfinite(expires_at) else None,
        origin={**repository.origin.describe()},
        proxy=proxies.url if proxies is not None else "",
        proxy_usable=proxies.usable if proxies is not None else None,
        proxy_required=proxies is not None and proxies.required,
        proxy_trips=proxies.trips if proxies is not None else 0,
        breaker=proxies.breaker.state if proxies is not None else "",
        proxies=tuple(map(_describe_proxy, proxies.all)) if proxies is not None else (),
        hidden={reason: hidden.get(reason, 0) for reason in (NAME, EXCLUDED, UNPUBLISHED)},
        way=_way(repository),
        handover=handover.describe() if handover is not None else None,
        fetched=fetched,
        failures=deepcopy(fetcher.failures),
        load=fetcher.load(),
        read_bytes=total.read_bytes,
        traffic=traffic,
        fills=fetcher.journal.describe(),
        models=_describe_models(repository, filesystem.fullness[name].measure(trio.current_time()), in_use),
        warnings=warnings,
        listing=lister.describe(),
        freshness=replace(refresher.counters),
        tree_cache=keeper.describe() if keeper is not None else None,
        publication=repository.publication.describe(),
    )


def _way(repository: Repository) -> str:
    if repository.fetcher.tokens.is_direct(trio.current_time()):
        return "origin"
    if repository.handover is not None and repository.handover.usable:
        return "socket"
    proxies = repository.fetcher.proxy
    return "proxy" if proxies is not None and proxies.usable else "origin"


def _describe_proxy(proxy: Proxy) -> ProxyStatus:
    state, trips = proxy.breaker.state, proxy.breaker.trips
    return ProxyStatus(url=proxy.url, breaker=state, trips=trips, binds_content_ids=proxy.binds_content_ids)


def _describe_models(repository: Repository, shown: dict[str, ModelStatus], in_use: InUse) -> dict[str, ModelStatus]:
    """The models that were touched, by name, as far as they have counters of their own."""
    models = repository.fetcher.models
    for identity, version, cached_bytes in in_use:
        if identity == repository.origin.identity and models.holds(version.key):
            model = shown.setdefault(models.label_of(version.key), blank(ModelStatus))
            model.open_bytes += version.size_bytes
            model.open_cached_bytes += cached_bytes
    return shown


def judge_traffic(name: str, traffic: TrafficStatus) -> str:
    """The fault in traffic that is configured to come through Dragonfly; empty if there is none."""
    if traffic.fetched_bytes <= JUDGED_BYTES or traffic.p2p_bytes:
        return ""
    reasons = sorted(traffic.direct_bytes_by_reason.items(), key=lambda pair: -pair[1])
    why = f" (most of it: {reasons[0][0]})" if reasons and not traffic.back_to_source_bytes else ""
    return (
        f"{name}: P2P is configured but every byte comes from the source{why}: see whether dfdaemon runs, knows its scheduler and has "
        "peers; d7yfs check tries it"
    )
