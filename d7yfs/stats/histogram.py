"""How long requests take, as a histogram that costs next to nothing to keep. Pure.

Observing is one bisection and two additions, and makes no object that stays. Kept by the FUSE adapter, shown by `status` and `metrics`.
"""

from __future__ import annotations

from bisect import bisect_left

BOUNDS_S = (0.0001, 0.00025, 0.001, 0.0025, 0.01, 0.025, 0.1, 0.25, 1.0, 2.5, 10.0, 30.0, 60.0)
"""Upper bounds of the buckets: what the kernel could have answered, memory, a disk, a store near and far, patience."""


class Histogram:
    """Durations by bucket; the last bucket has no bound."""

    __slots__ = ("counts", "sum_s")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_S) + 1)
        self.sum_s = 0.0

    def observe(self, took_s: float) -> None:
        """One request has taken `took_s` seconds."""
        self.counts[bisect_left(BOUNDS_S, took_s)] += 1
        self.sum_s += took_s
