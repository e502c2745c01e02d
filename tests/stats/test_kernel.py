"""Durations by bucket."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from d7yfs.stats.kernel import BOUNDS_S, OperationCounters


@given(st.lists(st.floats(0, 1000), min_size=1))
def test_each_duration_is_in_the_first_bucket_that_has_room_for_it(durations: list[float]) -> None:
    counters = OperationCounters(errors={})
    for took_s in durations:
        counters.observe("read", took_s)
    histogram = counters.took["read"]
    total = 0
    for bound_s, count in zip(BOUNDS_S, histogram.counts, strict=False):
        total += count
        assert total == sum(took_s <= bound_s for took_s in durations)
    assert sum(histogram.counts) == len(durations)
    assert histogram.sum_s == sum(durations)
