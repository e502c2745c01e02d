"""How many movers a rate is worth."""

from __future__ import annotations

import pytest

from d7yfs.movers.demand import Demand
from d7yfs.movers.pool import default_limit


def movers(limit: int, bytes_s: float, seconds: float = 1.0) -> int:
    demand, step_s = Demand(limit), 0.01
    for step in range(int(seconds / step_s)):
        demand.count(int(bytes_s * step_s), 100 + step * step_s)
    return demand.movers


@pytest.mark.parametrize(
    ("limit", "bytes_s", "wanted"), [(4, 0, 0), (4, 50e6, 0), (4, 200e6, 1), (4, 700e6, 2), (4, 9e9, 4), (0, 9e9, 0)]
)
def test_more_bytes_are_worth_more_movers(limit: int, bytes_s: float, wanted: int) -> None:
    assert movers(limit, bytes_s) == wanted


def test_a_burst_after_a_pause_is_no_rate() -> None:
    demand = Demand(4)
    demand.count(1 << 30, 100)
    demand.count(1 << 30, 110)
    assert demand.movers == 0


def test_a_number_that_is_asked_for_is_worth_it_at_once() -> None:
    assert Demand(3, at_once=True).movers == 3


@pytest.mark.parametrize(("processors", "limit"), [(1, 0), (2, 1), (4, 3), (64, 8)])
def test_one_processor_is_left_to_the_daemon(processors: int, limit: int) -> None:
    assert default_limit(processors) == limit
