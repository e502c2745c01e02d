"""When the breaker lets the proxy be asked."""

from __future__ import annotations

import trio
from trio.testing import MockClock

from d7yfs.fetch.proxy import Breaker, Proxy
from d7yfs.fetch.transport import Transport


def tripped(times: int = 1) -> tuple[Breaker, float]:
    """A breaker whose first request and all probes failed at once, and the time of its last failure."""
    breaker, now = Breaker(), 100.0
    breaker.failed(now)
    for pause_s in (5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 300.0, 300.0)[: times - 1]:
        assert not breaker.admits(now + pause_s - 0.01)
        now += pause_s
        assert breaker.admits(now)
        breaker.asked(now)
        breaker.failed(now)
    return breaker, now


def test_closed_at_first() -> None:
    breaker = Breaker()
    for _ in range(3):
        assert breaker.admits(0.0)
        breaker.asked(0.0)
    assert breaker.trips == 0


def test_opens_at_a_failure_and_waits_twice_as_long_each_time_up_to_a_limit() -> None:
    breaker, now = tripped(9)
    assert breaker.trips == 9
    assert not breaker.admits(now + 299)
    assert breaker.admits(now + 300)


def test_failures_of_requests_that_were_under_way_count_once() -> None:
    breaker = Breaker()
    for moment in (100.0, 100.1, 103.0):
        breaker.failed(moment)
    assert breaker.trips == 1
    assert breaker.admits(105.0)


def test_one_probe_at_a_time() -> None:
    breaker, now = tripped()
    assert breaker.admits(now + 5)
    assert breaker.admits(now + 5), "asking whether does not use it up"
    breaker.asked(now + 5)
    assert not breaker.admits(now + 5)
    breaker.failed(now + 8)
    assert not breaker.admits(now + 17.9)
    assert breaker.admits(now + 18)
    assert breaker.trips == 2


def test_a_probe_that_never_tells_is_replaced() -> None:
    breaker, now = tripped()
    breaker.asked(now + 5)
    assert not breaker.admits(now + 14.9)
    assert breaker.admits(now + 15)


def test_a_byte_closes_it_and_forgets_the_past() -> None:
    breaker, now = tripped(4)
    breaker.asked(now + 40)
    breaker.succeeded()
    for _ in range(3):
        assert breaker.admits(now + 40)
        breaker.asked(now + 40)
    breaker.failed(now + 41)
    assert not breaker.admits(now + 45.9)
    assert breaker.admits(now + 46)


def test_a_stream_from_before_that_still_flows_closes_it() -> None:
    breaker, now = tripped()
    breaker.succeeded()
    assert breaker.admits(now)


async def test_a_required_proxy_is_always_usable(mock_clock: MockClock) -> None:
    for required in (False, True):
        proxy = Proxy("http://127.0.0.1:1", Transport(), required=required, headers={"X-Team": "secret"})
        assert proxy.usable
        proxy.breaker.failed(trio.current_time())
        assert proxy.usable is required
        assert "secret" not in repr(proxy)
    mock_clock.jump(5)
    assert proxy.usable
