"""The measurements of a run: samples by case and peer, their medians, and the verdicts on goals.
Pure.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from bench.cases.case import Case, Goal, Metric
from bench.dataset import Sizes
from bench.measure import Sample
from bench.peers import CURL, PEERS

OURS = "d7yfs"
RSS_GOAL_MB = 210
CPU_GOAL_S_PER_GB = 1.0


@dataclass(frozen=True, slots=True)
class Verdict:
    """A goal in numbers; `met` is None if a figure that it needs is missing."""

    text: str
    met: bool | None


@dataclass(frozen=True, slots=True)
class Costs:
    """The costs of a case's cold part: medians over the rounds, and the largest memory."""

    cpu_s_per_gib: float | None
    peak_rss_mb: float | None
    gets: float
    lists: float
    heads: float
    bytes: float


@dataclass(slots=True)
class Results:
    """The samples and failures of a run, filled during its rounds."""

    cases: Sequence[Case]
    peers: Sequence[str]
    sizes: Sizes
    samples: dict[tuple[str, str], list[Sample]] = field(default_factory=dict)
    failures: dict[tuple[str, str], str] = field(default_factory=dict)

    def median(self, case: str, metric: str, peer: str) -> float | None:
        """The median; None if the peer took no part or failed before its first figure."""
        values = [sample.figures[metric] for sample in self.samples.get((case, peer), ()) if metric in sample.figures]
        return statistics.median(values) if values else None

    def best(self, case: str, metric: Metric) -> float | None:
        """The best figure of the competing mounts that ran."""
        rivals = [name for name in self.peers if name not in (OURS, CURL) and not PEERS[name].reference]
        values = [value for name in rivals if (value := self.median(case, metric.name, name)) is not None]
        if not values:
            return None
        return max(values) if metric.better == "higher" else min(values)

    def ratio(self, case: str, metric: Metric) -> float | None:
        """The ratio to the best competitor: above 1 is better, for either direction of the metric."""
        ours, best = self.median(case, metric.name, OURS), self.best(case, metric)
        if ours is None or best is None:
            return None
        above, below = (ours, best) if metric.better == "higher" else (best, ours)
        return above / below if below else None

    def verdicts(self, case: str, metric: Metric) -> list[Verdict]:
        """A verdict for each of the metric's goals."""
        ours = self.median(case, metric.name, OURS)
        sign = "≥" if metric.better == "higher" else "≤"
        found = []
        for goal in metric.goals:
            target = self._target(case, metric, goal)
            if goal.peer == "constant":
                text = f"{sign} {goal.factor:g}"
            else:
                whose = f"{goal.peer}'s {goal.metric}" if goal.metric else goal.peer
                text = f"{sign} {goal.factor:.3g} × {whose}"
            met = None
            if ours is not None and target is not None:
                met = ours >= target if metric.better == "higher" else ours <= target
            found.append(Verdict(text, met))
        return found

    def _target(self, case: str, metric: Metric, goal: Goal) -> float | None:
        if goal.peer == "constant":
            return goal.factor
        if goal.peer == "best":
            reference = self.best(case, metric)
        else:
            there, _, name = goal.metric.partition(".") if goal.metric else (case, "", metric.name)
            reference = self.median(there, name, goal.peer)
        return None if reference is None else goal.factor * reference

    def costs(self, case: Case, peer: str) -> Costs | None:
        rows = self.samples.get((case.name, peer))
        if not rows:
            return None
        cpu = [row.cpu_s / row.payload_bytes * 2**30 for row in rows if row.payload_bytes]
        return Costs(
            statistics.median(cpu) if cpu else None,
            max(row.peak_rss_bytes for row in rows) / 1e6 or None,
            statistics.median(row.gets for row in rows),
            statistics.median(row.lists for row in rows),
            statistics.median(row.heads for row in rows),
            statistics.median(row.bytes for row in rows),
        )

    def bounds(self) -> list[Verdict]:
        """The goals that hold for all cases together."""
        found = []
        costs = [self.costs(case, OURS) for case in self.cases]
        memory = [each.peak_rss_mb for each in costs if each and each.peak_rss_mb]
        if memory:
            largest = max(memory)
            found.append(
                Verdict(f"peak RSS ≤ {RSS_GOAL_MB} MB in every case: {largest:.0f} MB", largest <= RSS_GOAL_MB)
            )
        for case in self.cases:
            each = self.costs(case, OURS)
            if case.name == "sequential" and each and each.cpu_s_per_gib is not None:
                per_gb = each.cpu_s_per_gib / 2**30 * 1e9
                text = f"CPU seconds per cold GB ≤ {CPU_GOAL_S_PER_GB:g}: {per_gb:.2f}"
                found.append(Verdict(text, per_gb <= CPU_GOAL_S_PER_GB))
        return found

    def rows(self) -> Iterator[tuple[Case, Metric]]:
        """Every metric of every case that ran."""
        for case in self.cases:
            for metric in case.metrics:
                yield case, metric
