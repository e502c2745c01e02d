"""The activity of a mount: rates, from two looks at its counters. Pure.

A look (`Totals`) has the counters that rates are made of, and little else, so that many can be kept.
`d7yfs top` and the status page show the same.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from d7yfs.stats.problems import ProblemStatus
from d7yfs.stats.status import MountStatus, MoversStatus, RequestStatus

WAYS = ("cache", "p2p", "store")
"""The ways of bytes, as `Totals` and `ActivityStatus` name them."""
BUSIEST = 10
"""Models of which rates are told."""


@dataclass(frozen=True, slots=True)
class Totals:
    """The counters of one mount at one moment, since its daemon began."""

    started_at: float
    uptime_s: float
    cache: int
    p2p: int
    store: int
    passthrough_opens: int
    models: Mapping[tuple[str, str], tuple[int, int]] = field(default_factory=dict)
    """Bytes that readers of a model got from the daemon, and bytes that came for it, by repository and
    model."""

    @classmethod
    def of(cls, account: MountStatus) -> Totals:
        """The counters of an account."""
        traffic = [each.traffic for each in account.repositories]
        return cls(
            started_at=account.started_at,
            uptime_s=account.uptime_s,
            cache=sum(each.cache_bytes for each in traffic),
            p2p=sum(each.p2p_bytes for each in traffic),
            store=sum(each.direct_bytes + each.back_to_source_bytes for each in traffic),
            passthrough_opens=account.fuse.passthrough_opens,
            models={
                (each.name, name): (model.read_bytes, sum(model.by_source.values()) - model.cache_bytes)
                for each in account.repositories
                for name, model in each.models.items()
            },
        )

    def span_since(self, before: Totals) -> float:
        """Seconds from `before` to this. Infinite between two daemons, whose counters cannot be compared."""
        span_s = self.uptime_s - before.uptime_s
        return span_s if self.started_at == before.started_at and span_s > 0 else math.inf

    def rate_since(self, before: Totals, counter: str) -> float:
        """The rise of a counter per second."""
        rise: int = getattr(self, counter) - getattr(before, counter)
        return max(0, rise) / self.span_since(before)

    def busiest_since(self, before: Totals) -> list[tuple[tuple[str, str], float, float]]:
        """The models with most bytes: repository and model, and bytes per second read and fetched."""
        span_s = self.span_since(before)
        found = []
        for name, (read, fetched) in self.models.items():
            read_before, fetched_before = before.models.get(name, (0, 0))
            rates = (max(0, read - read_before) / span_s, max(0, fetched - fetched_before) / span_s)
            if any(rates):
                found.append((name, *rates))
        return sorted(found, key=lambda each: (-max(each[1:]), each[0]))[:BUSIEST]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelActivity:
    """One model that is read, or fetched."""

    repository: str
    """Its name; empty if the repository is the root of the mount."""
    model: str
    """The top-level directory; `.`: files in none; `other`: models beyond `--metrics-per-model`."""
    read_bytes_s: float
    """Bytes per second that readers got from the daemon."""
    fetched_bytes_s: float
    """Bytes per second that came for it, by whatever way."""
    size_bytes: int
    """Size of its files that were opened, the last 256."""
    cached_bytes: int
    """How much of these is cached."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivityStatus:
    """The activity of one mount now. Rates are per second."""

    problems: tuple[ProblemStatus, ...]
    """As in `status`."""
    over_s: float
    """The time over which the rates are averages."""
    cache_bytes_s: float
    """Bytes to readers that were cached before they asked."""
    p2p_bytes_s: float
    """Bytes by Dragonfly that peers have, or may have, brought."""
    store_bytes_s: float
    """Bytes from the store, by dfdaemon too."""
    passthrough: bool
    """True if the kernel reads whole files by itself: how many bytes it reads is not known."""
    passthrough_opens_s: float
    """Opens of such files."""
    models: tuple[ModelActivity, ...]
    """The ten with most bytes: `repository`, `model`, `read_bytes_s`, `fetched_bytes_s`, `size_bytes`, `cached_bytes`."""
    in_flight: int
    """Requests of the kernel that are not answered yet."""
    waiting_reads: Mapping[str, int]
    """As in `status`, by uid."""
    oldest_requests: tuple[RequestStatus, ...]
    """As in `status`: `operation`, `path`, `waited_s`."""
    cache_used_bytes: int
    cache_limit_bytes: int
    movers: MoversStatus
    """As in `status`."""


def measure(account: MountStatus, before: Totals, models_before: Totals | None = None) -> ActivityStatus:
    """The rates from `before` to `account`, those of models from `models_before`, and the present state."""
    now, fuse = Totals.of(account), account.fuse
    models = {(each.name, name): model for each in account.repositories for name, model in each.models.items()}
    span_s = now.span_since(before)
    return ActivityStatus(
        problems=account.problems,
        over_s=round(span_s, 3) if math.isfinite(span_s) else 0.0,
        cache_bytes_s=round(now.rate_since(before, "cache"), 1),
        p2p_bytes_s=round(now.rate_since(before, "p2p"), 1),
        store_bytes_s=round(now.rate_since(before, "store"), 1),
        passthrough=fuse.passthrough,
        passthrough_opens_s=round(now.rate_since(before, "passthrough_opens"), 3),
        models=tuple(
            ModelActivity(
                repository=name[0],
                model=name[1],
                read_bytes_s=round(read_bytes_s, 1),
                fetched_bytes_s=round(fetched_bytes_s, 1),
                size_bytes=models[name].size_bytes,
                cached_bytes=models[name].cached_bytes,
            )
            for name, read_bytes_s, fetched_bytes_s in now.busiest_since(models_before or before)
        ),
        in_flight=fuse.in_flight,
        waiting_reads=fuse.waiting_reads,
        oldest_requests=fuse.oldest_requests,
        cache_used_bytes=account.cache.used_bytes,
        cache_limit_bytes=account.cache.limit_bytes,
        movers=account.movers,
    )


def rates_between(looks: Sequence[Totals], way: str) -> list[float]:
    """The bytes per second by one way, from look to look."""
    return [after.rate_since(before, way) for before, after in pairwise(looks)]
