"""What the headers of a reply say of time. Pure; used by `rest` and by the reading of S3's errors."""

from __future__ import annotations

from collections.abc import Mapping
from email.utils import parsedate_to_datetime


def date_of(headers: Mapping[str, str]) -> float | None:
    """The reply's `Date` as seconds since the epoch; None when absent or malformed."""
    return _parsed(headers.get("date", ""))


def retry_after_s(headers: Mapping[str, str], now: float) -> float:
    """RFC 9110, 10.2.3: seconds or a date. 0 when absent or malformed; `now` is time.time()."""
    value = headers.get("retry-after", "")
    if value.isdecimal():
        return float(value)
    date = _parsed(value)
    return max(0.0, date - now) if date is not None else 0.0


def _parsed(value: str) -> float | None:
    try:
        return parsedate_to_datetime(value).timestamp()
    except (ValueError, TypeError):
        return None
