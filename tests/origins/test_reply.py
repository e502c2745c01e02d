"""The headers that all stores share: Retry-After and Date."""

from __future__ import annotations

import math
from datetime import UTC, datetime

import pytest

from d7yfs.origins.headers import retry_after_s
from d7yfs.origins.rest import ControlReply

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC).timestamp()


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("7", 7.0),
        (" 7 ", 7.0),
        ("0", 0.0),
        ("100000", 100_000.0),
        ("9" * 400, math.inf),
        ("Fri, 02 Jan 2026 03:04:25 GMT", 20.0),
        ("Fri, 02 Jan 2026 03:04:00 GMT", 0.0),
        ("Fri, 02 Jan 2026 03:04:25 -0000", 0.0),  # without a zone: not comparable
        ("-7", 0.0),
        ("soon", 0.0),
        ("7.5", 0.0),
        ("²", 0.0),
        ("", 0.0),
    ],
)
def test_retry_after(text: str, seconds: float) -> None:
    assert retry_after_s({"retry-after": text}, NOW) == seconds


def test_no_retry_after() -> None:
    assert retry_after_s({}, NOW) == 0.0


@pytest.mark.parametrize(
    ("date", "expected_ns"),
    [("Fri, 02 Jan 2026 03:04:25 GMT", int((NOW + 20) * 1e9)), ("soon", int(NOW * 1e9)), ("", int(NOW * 1e9))],
)
def test_date_is_the_replys_or_ours(date: str, expected_ns: int) -> None:
    assert ControlReply(200, {"date": date}).date_ns(NOW) == expected_ns
