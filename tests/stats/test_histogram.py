"""Durations by bucket."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from d7yfs.stats.histogram import BOUNDS_S, Histogram


@given(st.lists(st.floats(0, 1000)))
def test_each_duration_is_in_the_first_bucket_that_has_room_for_it(durations: list[float]) -> None:
    histogram = Histogram()
    for took_s in durations:
        histogram.observe(took_s)
    total = 0
    for bound_s, count in zip(BOUNDS_S, histogram.counts, strict=False):
        total += count
        assert total == sum(took_s <= bound_s for took_s in durations)
    assert sum(histogram.counts) == len(durations)
    assert histogram.sum_s == sum(durations)
