from __future__ import annotations

import math

import pytest

from d7yfs.fetch.transfer import LEAST_WINDOW_BYTES, MOST_WINDOW_BYTES, Bandwidth
from d7yfs.objects import PART_BYTES

MB = 1_000_000


def run(
    bandwidth: Bandwidth,
    *,
    start: float = 0.0,
    seconds: float,
    rate: float,
    first_byte_s: float,
    connection_rate: float,
) -> None:
    """An origin that gives `rate` in all, in parts of which each takes its time."""
    step = 0.01
    for tick in range(int(seconds / step)):
        bandwidth.count_bytes(int(rate * step), start + tick * step)
    bandwidth.count_reply(PART_BYTES, first_byte_s, PART_BYTES / connection_rate)


def test_nothing_is_known_at_first() -> None:
    bandwidth = Bandwidth()
    assert bandwidth.window_bytes == LEAST_WINDOW_BYTES
    assert bandwidth.total_bytes_s == 0


def test_near_and_fast_needs_little_in_flight() -> None:
    bandwidth = Bandwidth()
    run(bandwidth, seconds=2, rate=1000 * MB, first_byte_s=0.0005, connection_rate=1500 * MB)
    assert bandwidth.window_bytes == LEAST_WINDOW_BYTES


def test_the_window_grows_as_long_as_more_in_flight_brings_more() -> None:
    """25 ms and 90 MB/s a response: what comes is what is in flight, per the time of a part; up to
    where the link is full.
    """
    bandwidth = Bandwidth()
    part_s = 0.025 + PART_BYTES / (90 * MB)
    link = 950 * MB
    windows = []
    for round_ in range(8):
        rate = min(bandwidth.window_bytes / part_s, link)
        run(bandwidth, start=round_, seconds=1, rate=rate, first_byte_s=0.025, connection_rate=90 * MB)
        windows.append(bandwidth.window_bytes)
    assert windows == sorted(windows)
    assert windows[-1] == pytest.approx(2 * link * part_s, rel=0.1)


def test_a_queue_of_our_own_making_is_no_delay() -> None:
    bandwidth = Bandwidth()
    run(bandwidth, seconds=1, rate=500 * MB, first_byte_s=0.01, connection_rate=500 * MB)
    before = bandwidth.window_bytes
    for n in range(5):
        run(bandwidth, start=1 + n, seconds=1, rate=500 * MB, first_byte_s=0.5, connection_rate=50 * MB)
    assert bandwidth.window_bytes < 1.3 * before


def test_it_is_bounded() -> None:
    bandwidth = Bandwidth()
    run(bandwidth, seconds=2, rate=10_000 * MB, first_byte_s=1, connection_rate=10 * MB)
    assert bandwidth.window_bytes == MOST_WINDOW_BYTES


def test_an_old_rate_is_forgotten() -> None:
    bandwidth = Bandwidth()
    run(bandwidth, seconds=1, rate=800 * MB, first_byte_s=0.025, connection_rate=90 * MB)
    assert bandwidth.total_bytes_s == pytest.approx(800 * MB, rel=0.05)
    run(bandwidth, start=20, seconds=1, rate=100 * MB, first_byte_s=0.025, connection_rate=90 * MB)
    assert bandwidth.total_bytes_s == pytest.approx(100 * MB, rel=0.05)


def test_small_replies_tell_of_the_delay_only() -> None:
    bandwidth = Bandwidth()
    bandwidth.count_reply(1000, 0.02, 0.000001)
    assert bandwidth.first_byte_s == 0.02
    assert bandwidth.connection_bytes_s == 0


def test_how_long_bytes_are_expected_to_take() -> None:
    bandwidth = Bandwidth()
    assert bandwidth.expected_s(4 * MB) == 0, "one reply brings it, as soon as anything"
    assert bandwidth.expected_s(5 * MB) == math.inf
    bandwidth.count_reply(MB, 0.02, 0.01)
    assert bandwidth.expected_s(4 * MB) == 0.02
    for tenth in range(20):
        bandwidth.count_bytes(10 * MB, tenth / 10)
    assert bandwidth.expected_s(50 * MB) == pytest.approx(0.02 + 0.5, rel=0.2)
