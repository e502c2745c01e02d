"""A cluster in simulation: hosts that read one model at the same time, each as `d7yfs` decides.

What is decided is decided by the product: `fill.route.plan` with `fill.p2p_budget.Policy`, the
patience of `fetch.silence`, `fetch.dragonfly_proxy.Limits` and its `Breaker`, and
`fetch.proxy_outage.FallbackLimiter`. What is modelled is everything else, as flows: a store with a
rate, one connection's rate and a latency; seeds and hosts with rates up and down; a scheduler that
takes so many registrations a second. Pieces spread perfectly, so that hosts that have bytes give
them on at their own rate. A reader reads in order, as fast as bytes come.

Time goes in steps. A step first lets each host that has nothing to wait for decide, then moves all
bytes.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from d7yfs.fetch.dragonfly_proxy import Breaker, Limits
from d7yfs.fetch.proxy_outage import FallbackLimiter
from d7yfs.fetch.silence import patience_s
from d7yfs.fill.p2p_budget import Policy
from d7yfs.fill.route import Stream, plan
from d7yfs.objects import BLOCK_BYTES, ByteRange, ObjectVersion

MIB = 1 << 20
_LIMIT_S = 3600.0
_STEPS_TO_DOUBLE = 400
"""Steps grow with time: what happens in the first seconds is seen in hundredths."""
_FIRST_STEP_S = 0.01
_DIRECT_CONNECTIONS = 8
"""Of a host that reads without Dragonfly (`proxy_outage.MAX_CONNECTIONS`)."""
_PIECES_AT_ONCE = 8
"""Connections to the store of a dfdaemon that brings a file from there."""
_LEAVES_SCHEDULER_S = 10.0
"""dfdaemon's patience with a scheduler that hangs: then it asks the store by itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """A cluster, its store, and what one rollout asks of it. Rates are in bytes a second."""

    hosts: int
    files_bytes: tuple[int, ...]
    """The model: files that each host reads one after the other."""
    store_rate: float
    connection_rate: float
    store_latency_s: float = 0.025
    seeds: int = 3
    seed_rate: float = 1.25e9
    up_rate: float = 1.25e9
    down_rate: float = 1.25e9
    registration_s: float = 0.1
    """From a request to its first byte, where a peer has the bytes."""
    registrations_per_s: float = 2000.0
    spread_s: float = 1.0
    """All hosts begin within this."""
    is_warm: bool = False
    """True if the seeds have the model."""
    dead_share: float = 0.0
    """Of the hosts: their dfdaemon does not answer."""
    scheduler: str = "well"
    """`well`, `gone` (each dfdaemon asks the store at once) or `hung` (so it does after 10 s)."""
    slow_share: float = 0.0
    """Of the hosts: they give a hundredth of their rate, and those that depend on them wait."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deciding:
    """The way in which hosts decide: that of the product, or an earlier one to compare with."""

    name: str
    policy: Callable[[int, Callable[[], float]], Policy]
    """A host's policy, of the number of hosts and its chance."""
    learns: bool = True
    """True if patience follows what was usual."""
    way: str = "d7yfs"
    """`d7yfs`, `direct` (all from the store), or `copy` (the whole model through Dragonfly, then read)."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a rollout."""

    ready_s: NDArray[np.float64]
    """For each host, from its own begin to its last byte."""
    first_byte_s: NDArray[np.float64]
    origin_bytes: float
    model_bytes: int

    @property
    def origin_times(self) -> float:
        return self.origin_bytes / self.model_bytes

    def percentile_s(self, percent: float) -> float:
        return float(np.percentile(self.ready_s, percent, method="higher"))


@dataclass(slots=True)
class _Host:
    """One host: its knowledge, and the event that it waits for."""

    policy: Policy
    limits: Limits
    begins_at: float
    is_dead: bool
    fallback: FallbackLimiter
    breaker: Breaker = field(default_factory=Breaker)
    file: int = 0
    touched: bool = False
    asked_at: float = -1.0
    """When its stream was asked for; -1: it was not."""
    follows: bool = False
    """It waits for its stream, and asks for nothing else."""
    acts_at: float = 0.0
    """Not before this does it decide again."""


class Rollout:
    """One rollout, step by step. `run` gives the outcome."""

    def __init__(self, cluster: Cluster, deciding: Deciding, *, seed: int = 1) -> None:
        self._cluster, self._deciding = cluster, deciding
        lots = random.Random(seed)
        count = cluster.hosts
        starts = sorted(lots.random() * cluster.spread_s for _ in range(count))
        self._hosts = [
            _Host(
                deciding.policy(count, lots.random),
                Limits(),
                starts[i],
                lots.random() < cluster.dead_share,
                fallback=FallbackLimiter(lots.random),
            )
            for i in range(count)
        ]
        self._versions = [ObjectVersion(f"{i}", size, '"e"', 0) for i, size in enumerate(cluster.files_bytes)]
        self._read = np.zeros(count)
        """Where each host's reader is in its file."""
        self._stream = np.zeros(count)
        """Where its stream is; -1 before the first byte."""
        self._begins = np.full(count, np.inf)
        """When its stream's first byte can come."""
        self._direct = np.zeros(count)
        """Bytes that are still to come straight from the store, for a reader that waits."""
        self._direct_from = np.full(count, np.inf)
        """When the first of them can come."""
        self._connections = np.ones(count)
        self._up = np.full(count, cluster.up_rate)
        self._up[[lots.random() < cluster.slow_share for _ in range(count)]] /= 100
        self._done = np.zeros(count, dtype=bool)
        self._ready = np.zeros(count)
        self._first = np.full(count, np.nan)
        files = len(self._versions)
        self._seeded = np.array(cluster.files_bytes, dtype=float) if cluster.is_warm else np.zeros(files)
        self._seeds_from = np.full(files, np.inf)
        self._alone = np.zeros(count, dtype=bool)
        """Its dfdaemon brings the file from the store by itself."""
        self._scheduler_free_at = 0.0
        self._origin_bytes = 0.0

    def run(self) -> Outcome:
        now = 0.0
        while not self._done.all() and now < _LIMIT_S:
            for i in np.flatnonzero(~self._done):
                self._decide(int(i), now)
            step = max(_FIRST_STEP_S, now / _STEPS_TO_DOUBLE)
            self._move(now, step)
            now += step
        self._ready[~self._done] = np.inf
        starts = np.array([host.begins_at for host in self._hosts])
        total = sum(self._cluster.files_bytes)
        extra = 0.0 if self._deciding.way != "copy" else total / 2e9  # the copy is read once more, from memory
        return Outcome(self._ready - starts + extra, self._first - starts, self._origin_bytes, total)

    # --- deciding: the product's own code ---

    def _decide(self, i: int, now: float) -> None:
        host = self._hosts[i]
        if now < host.acts_at or now < host.begins_at or self._direct[i] > 0:
            return
        version = self._versions[host.file]
        if self._read[i] >= version.size_bytes:
            self._end_file(i, host, now)
        elif self._deciding.way == "direct" or (host.is_dead and not self._asks_dfdaemon(host, now)):
            hold_s = host.fallback.hold_s(now, urgent=True) if host.is_dead else 0.0
            self._fetch(i, version.size_bytes - self._read[i], now + hold_s, _DIRECT_CONNECTIONS)
        elif self._deciding.way == "copy":
            if host.asked_at < 0:
                self._ask_for_stream(i, host, now)
            host.follows = True
        elif not host.follows or self._is_silent(i, host, now):
            self._plan(i, host, version, now)

    def _asks_dfdaemon(self, host: _Host, now: float) -> bool:
        """Have a host learn that its dfdaemon is dead; always False."""
        if host.breaker.admits(now):
            host.breaker.begin(now)
            host.breaker.record_failure(now)
        return False

    def _is_silent(self, i: int, host: _Host, now: float) -> bool:
        return self._stream[i] < 0 and now - host.asked_at >= self._patience_s(host)

    def _patience_s(self, host: _Host) -> float:
        if not self._deciding.learns:
            return patience_s(np.inf)
        return max(host.limits.patience(), host.policy.patience_s(self._versions[host.file].key))

    def _plan(self, i: int, host: _Host, version: ObjectVersion, now: float) -> None:
        start = int(self._read[i]) // BLOCK_BYTES * BLOCK_BYTES
        missing = ByteRange(start, min(start + BLOCK_BYTES, version.size_bytes))
        step = plan(
            version.size_bytes,
            missing,
            self._state(i, host, version, now),
            touched=host.touched,
            model=True,
            run_bytes=start,
            direct_left_bytes=host.policy.direct_left_bytes(version, required=False),
            prompt=self._deciding.learns and host.limits.is_prompt,
        )
        host.touched = True
        if step.stream_from is not None:
            self._ask_for_stream(i, host, now)
        wanted = step.direct
        if wanted is None and step.proxied is not None:
            if host.asked_at < 0:
                self._ask_for_stream(i, host, now)  # a range brings the whole, after its own first byte
            elif self._is_silent(i, host, now):
                wanted = step.proxied  # the store stands in for a way that is silent
        if wanted is not None:
            host.policy.spend(version, wanted.size)
            self._fetch(i, wanted.stop - self._read[i], now, 1)
        else:
            host.follows = True
            host.acts_at = max(now, host.asked_at + self._patience_s(host)) if self._stream[i] < 0 else now + _LIMIT_S

    def _state(self, i: int, host: _Host, version: ObjectVersion, now: float) -> Stream | None:
        if host.asked_at < 0:
            return None
        begun = self._stream[i] >= 0
        begun_s = now - self._begins[i] if begun else 0.0
        rate = self._stream[i] / max(begun_s, 0.1) if begun else 0.0
        silent_s = 0.0 if begun else now - host.asked_at
        position = max(0, int(self._stream[i]))
        return Stream(0, position, version.size_bytes, rate, silent_s, begun_s, self._patience_s(host))

    def _ask_for_stream(self, i: int, host: _Host, now: float) -> None:
        cluster = self._cluster
        host.asked_at = now
        self._stream[i] = -1
        self._scheduler_free_at = max(self._scheduler_free_at, now) + 1 / cluster.registrations_per_s
        self._begins[i] = self._scheduler_free_at + cluster.registration_s
        if cluster.scheduler != "well":
            self._alone[i] = True
            self._begins[i] = now + cluster.store_latency_s
            self._begins[i] += _LEAVES_SCHEDULER_S if cluster.scheduler == "hung" else 0.0
        elif np.isinf(self._seeds_from[host.file]):
            self._seeds_from[host.file] = self._scheduler_free_at + cluster.store_latency_s

    def _fetch(self, i: int, size_bytes: float, at: float, connections: int) -> None:
        self._direct[i] = size_bytes
        self._direct_from[i] = at + self._cluster.store_latency_s
        self._connections[i] = connections

    def _end_file(self, i: int, host: _Host, now: float) -> None:
        host.file += 1
        host.touched = host.follows = False
        host.asked_at, host.acts_at = -1.0, now
        self._read[i] = self._stream[i] = 0
        self._begins[i] = np.inf
        if host.file == len(self._versions):
            self._done[i], self._ready[i] = True, now
            host.file -= 1

    # --- moving: the model ---

    def _move(self, now: float, step: float) -> None:
        files = np.array([host.file for host in self._hosts])
        sizes = np.array(self._cluster.files_bytes, dtype=float)
        unbegun = self._stream < 0
        self._move_from_store(now, step, sizes, files)
        streaming = (self._begins <= now) & ~self._done
        supplied = streaming & ~self._alone
        # A peer passes on what it has; what the seeds have is the front of all. Slow peers are avoided
        # by the scheduler only once their children have waited for them: they count with their rate.
        supply = self._cluster.seeds * self._cluster.seed_rate + self._up[streaming | self._done].sum()
        each = min(self._cluster.down_rate, supply / max(1, int(supplied.sum())))
        front = self._seeded[files]
        before = np.maximum(self._stream, 0)
        after = np.where(supplied, np.minimum(before + each * step, front), before)
        self._stream = np.where(supplied & (after > 0), after, self._stream)
        for i in np.flatnonzero(unbegun & (self._stream > 0)):
            host = self._hosts[i]
            host.limits.note_first_byte(now + step - host.asked_at, now)
            host.acts_at = now
        follows = self._direct <= 0
        self._read = np.where(follows & ~self._done, np.maximum(self._read, self._stream), self._read)
        ended = (self._read >= sizes[files]) & ~self._done
        for i in np.flatnonzero(ended):
            self._hosts[i].acts_at = now
        self._first = np.where(np.isnan(self._first) & (self._read > 0), now + step, self._first)

    def _move_from_store(self, now: float, step: float, sizes: NDArray[np.float64], files: NDArray[np.int64]) -> None:
        direct = (self._direct > 0) & (self._direct_from <= now)
        alone = self._alone & (self._begins <= now) & ~self._done & (self._stream < sizes[files])
        seeding = (self._seeds_from <= now) & (self._seeded < sizes)
        flows = self._connections[direct].sum() + _PIECES_AT_ONCE * (alone.sum() + seeding.sum())
        if not flows:
            return
        each = min(self._cluster.connection_rate, self._cluster.store_rate / flows)
        host_rate = self._cluster.down_rate
        came = np.where(direct, np.minimum(self._direct, np.minimum(each * self._connections, host_rate) * step), 0)
        self._direct -= came
        self._direct[self._direct < 1] = 0
        self._read += came
        before = np.maximum(self._stream, 0)
        brought = np.where(alone, np.minimum(sizes[files] - before, min(_PIECES_AT_ONCE * each, host_rate) * step), 0)
        self._stream = np.where(alone, before + brought, self._stream)
        seeded = np.where(seeding, np.minimum(sizes - self._seeded, _PIECES_AT_ONCE * each * step), 0)
        self._seeded += seeded
        self._origin_bytes += float(came.sum() + brought.sum() + seeded.sum())


def rollout(cluster: Cluster, deciding: Deciding, *, seeds: Sequence[int] = (1,)) -> Outcome:
    """Run a rollout; with several `seeds` the outcomes of all their hosts together."""
    outcomes = [Rollout(cluster, deciding, seed=seed).run() for seed in seeds]
    return Outcome(
        np.concatenate([each.ready_s for each in outcomes]),
        np.concatenate([each.first_byte_s for each in outcomes]),
        sum(each.origin_bytes for each in outcomes) / len(outcomes),
        outcomes[0].model_bytes,
    )
