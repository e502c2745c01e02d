"""Counters of what the kernel asks of a mount, and of what it is told. Counted by `fuse`; shown by `status` and metrics."""

from __future__ import annotations

from dataclasses import dataclass, field
from time import perf_counter

from d7yfs.stats.histogram import Histogram


@dataclass(slots=True)
class OperationCounters:
    """The requests of one mount's kernel by operation: how many came, how many failed, and how long they took."""

    errors: dict[str, int]
    """By every operation from the start: a counter that appears with its first error has not grown, and alarms nobody."""
    calls: dict[str, int] = field(default_factory=dict)
    took: dict[str, Histogram] = field(default_factory=dict)
    """How long requests took that have been answered."""
    under_way: dict[int, float] = field(default_factory=dict)
    """When each request came that has no answer yet (perf_counter), by its number, the oldest first."""

    @property
    def oldest_s(self) -> float:
        """For how long the oldest request has waited, in seconds; 0 when there is none."""
        began_at = next(iter(self.under_way.values()), None)
        return 0.0 if began_at is None else perf_counter() - began_at


@dataclass(slots=True)
class NoticeCounters:
    """The notices of one mount to its kernel since the mount was made."""

    notices: int = 0
    """Entries that the kernel was told to forget."""
    known: int = 0
    """Of these, those that it had."""
    overflow: int = 0
    """Names that were dropped because too many waited."""
