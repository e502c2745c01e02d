"""Counters of the kernel's requests. Counted by `fuse`, for `status`."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice
from time import perf_counter
from typing import NamedTuple

from d7yfs.stats.status import FuseStatus, LatencyStatus, RequestStatus

BOUNDS_S = (0.0001, 0.00025, 0.001, 0.0025, 0.01, 0.025, 0.1, 0.25, 1.0, 2.5, 10.0, 30.0, 60.0)
"""Upper bounds of the buckets, in seconds: answers of the kernel, memory, a disk, stores,
patience."""
OLDEST = 10
"""Requests under way that are described one by one."""


class Unanswered(NamedTuple):
    """A request of the kernel that is under way."""

    operation: str
    arguments: tuple[object, ...]
    began_at: float
    """By perf_counter."""


@dataclass(slots=True)
class OperationCounters:
    """The requests of one mount's kernel, by operation: calls, failures, durations."""

    errors: dict[str, int]
    """Every operation from the start: a counter that appears with its first error raises no
    alarm."""
    calls: dict[str, int] = field(default_factory=dict)
    took: dict[str, LatencyStatus] = field(default_factory=dict)
    """The durations of the requests that were answered."""
    under_way: dict[int, Unanswered] = field(default_factory=dict)
    """By number, the oldest first."""
    path_of: Callable[[Unanswered], str] = lambda _: "?"
    """The path of the file that a request is about; set by the guard."""
    waiting_reads: Counter[int] = field(default_factory=Counter)
    """Reads that are not answered, by the user who opened the file."""
    open_files_limit: int = 0
    open_directories_limit: int = 0
    engine: str = ""
    passthrough: bool = False
    passthrough_opens: int = 0
    """See `FuseStatus`, as `engine` and `passthrough`."""

    def observe(self, operation: str, took_s: float) -> None:
        """Count a request that was answered after `took_s` seconds."""
        if (took := self.took.get(operation)) is None:
            took = self.took[operation] = LatencyStatus(counts=[0] * (len(BOUNDS_S) + 1), sum_s=0.0)
        took.counts[bisect_left(BOUNDS_S, took_s)] += 1
        took.sum_s += took_s

    @property
    def oldest_s(self) -> float:
        """For how long the oldest request has waited, in seconds; 0 if there is none."""
        oldest = next(iter(self.under_way.values()), None)
        return 0.0 if oldest is None else perf_counter() - oldest.began_at

    def _describe(self, request: Unanswered) -> RequestStatus:
        waited_s = round(perf_counter() - request.began_at, 3)
        return RequestStatus(operation=request.operation, path=self.path_of(request), waited_s=waited_s)

    def describe(self, *, open_files: int, open_directories: int, read_bytes: int) -> FuseStatus:
        """The account of the requests now; the arguments are the file system's."""
        return FuseStatus(
            calls={**self.calls},
            errors={**self.errors},
            in_flight=len(self.under_way),
            oldest_request_s=round(self.oldest_s, 3),
            waiting_reads={str(uid): count for uid, count in self.waiting_reads.items()},
            oldest_requests=tuple(map(self._describe, islice(self.under_way.values(), OLDEST))),
            latency_bounds_s=BOUNDS_S,
            latency={
                name: LatencyStatus(counts=[*took.counts], sum_s=round(took.sum_s, 6))
                for name, took in self.took.items()
            },
            open_files=open_files,
            open_files_limit=self.open_files_limit,
            open_directories=open_directories,
            open_directories_limit=self.open_directories_limit,
            read_bytes=read_bytes,
            engine=self.engine,
            passthrough=self.passthrough,
            passthrough_opens=self.passthrough_opens,
        )
