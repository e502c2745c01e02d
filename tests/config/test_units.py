"""Sizes, durations and percentages in all spellings."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from d7yfs.config.kinds import (
    parse_duration,
    parse_lifetime,
    parse_percent,
    parse_size,
    show_duration,
    show_percent,
    show_size,
)


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("0", 0),
        ("1000", 1000),
        (1000, 1000),
        ("10B", 10),
        ("500M", 500 << 20),
        ("500MB", 500 << 20),
        ("20GiB", 20 << 30),
        ("20 gib", 20 << 30),
        ("1.5K", 1536),
        (" 2T ", 2 << 40),
    ],
)
def test_size(text: object, size_bytes: int) -> None:
    assert parse_size(text) == size_bytes


@pytest.mark.parametrize(
    "text",
    ["", "x", "-1", -1, "5X", "5i", "1e9", "G", "1,5G", True, None, float("nan"), float("inf"), "9" * 19, "5000000T"],
)
def test_no_size(text: object) -> None:
    with pytest.raises(ValueError, match="allowed: "):
        parse_size(text)


@pytest.mark.parametrize(
    ("text", "duration_s"),
    [
        ("30s", 30),
        ("5m", 300),
        ("1h", 3600),
        ("2d", 172800),
        ("0", 0),
        (60, 60),
        (0.5, 0.5),
        ("100ms", 0.1),
        ("1.5 M", 90),
        ("5min", 300),
        ("1h30m", 5400),
        ("1h 30 minutes", 5400),
        ("1w", 604_800),
        ("2 weeks", 1_209_600),
        ("1m 500ms", 60.5),
    ],
)
def test_duration(text: object, duration_s: float) -> None:
    assert parse_duration(text) == duration_s


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "-1s",
        -1,
        "5y",
        "1h30",
        "1h30x",
        "2 months",
        "ms",
        "inf",
        True,
        None,
        float("nan"),
        float("inf"),
        "9999999999",
    ],
)
def test_no_duration(text: object) -> None:
    with pytest.raises(ValueError, match="allowed: "):
        parse_duration(text)


@pytest.mark.parametrize(("text", "lifetime_s"), [("forever", math.inf), (" Forever ", math.inf), ("5m", 300), (0, 0)])
def test_lifetime(text: object, lifetime_s: float) -> None:
    assert parse_lifetime(text) == lifetime_s
    assert parse_lifetime(show_duration(lifetime_s)) == lifetime_s


@pytest.mark.parametrize("text", ["", "never", "for ever", None, -1, float("inf")])
def test_no_lifetime(text: object) -> None:
    with pytest.raises(ValueError, match=r"allowed: .* or forever"):
        parse_lifetime(text)


@given(st.integers(0, 1 << 62))
def test_sizes_shown_read_back(size_bytes: int) -> None:
    assert parse_size(show_size(size_bytes)) == size_bytes


@given(st.integers(0, 300_000_000_000))
def test_durations_shown_read_back(duration_ms: int) -> None:
    duration_s = duration_ms / 1000
    assert parse_duration(show_duration(duration_s)) == duration_s


def test_shown_shortest() -> None:
    assert [show_size(size) for size in (0, 1000, 1024, 1536 << 10, 50 << 30)] == [
        "0",
        "1000",
        "1KiB",
        "1536KiB",
        "50GiB",
    ]
    assert [show_duration(duration) for duration in (0.0, 0.5, 60.0, 3600.0)] == ["0s", "0.5s", "60s", "3600s"]


@pytest.mark.parametrize(
    ("value", "percent"), [("0.4%", 0.4), (" 5 % ", 5.0), ("100", 100.0), (0, 0.0), (0.25, 0.25), ("0%", 0.0)]
)
def test_percent(value: object, percent: float) -> None:
    assert parse_percent(value) == percent


@pytest.mark.parametrize("value", ["", "x", "%", -1, "-1%", 101, "100.1%", "4/1000", True, None, float("nan"), "4 MiB"])
def test_no_percent(value: object) -> None:
    with pytest.raises(ValueError, match="allowed: "):
        parse_percent(value)


@given(st.integers(0, 10_000))
def test_a_percentage_is_shown_as_it_is_read(hundredths: int) -> None:
    percent = hundredths / 100
    assert parse_percent(show_percent(percent)) == percent
