"""Sizes, durations and percentages as people write them. Pure; raises ValueError whose message says what is allowed."""

from __future__ import annotations

import math
import re
from decimal import Decimal

SIZE_ALLOWED = (
    "bytes, or a number with K, M, G or T (powers of 1024; KiB, MiB, GiB, TiB mean the same), such as 50GiB or 500M"
)
DURATION_ALLOWED = "seconds, or a number with ms, s, m, h or d, such as 30s or 5m"
FOREVER = "forever"
PERCENT_ALLOWED = "a number from 0 to 100, with or without %, such as 0.4%"

_NUMBER = r"([0-9]{1,20}(?:\.[0-9]{1,20})?)\s*"
_SIZE = re.compile(_NUMBER + r"(?:([KMGT])i?)?B?", re.IGNORECASE)
_DURATION = re.compile(_NUMBER + r"(ms|s|m|h|d)?", re.IGNORECASE)
_PERCENT = re.compile(_NUMBER + "%?")
_SIZE_FACTORS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_DURATION_MS = {"ms": 1, "": 1000, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_MAX_SIZE_BYTES = 1 << 62
_MAX_DURATION_S = 10 * 365 * 86400


def parse_size(value: object) -> int:
    """Bytes in an int or in text such as `20GiB`; part of a byte is dropped. Raises ValueError."""
    match = _SIZE.fullmatch(_text(value))
    if not match:
        raise ValueError(f"is no size; allowed: {SIZE_ALLOWED}")
    size_bytes = int(Decimal(match[1]) * _SIZE_FACTORS[(match[2] or "").upper()])
    if size_bytes > _MAX_SIZE_BYTES:
        raise ValueError("is larger than any disk; allowed: up to 4194304T")
    return size_bytes


def parse_duration(value: object) -> float:
    """Seconds in a number or in text such as `5m`. Raises ValueError."""
    match = _DURATION.fullmatch(_text(value))
    if not match:
        raise ValueError(f"is no duration; allowed: {DURATION_ALLOWED}")
    duration_s = float(Decimal(match[1]) * _DURATION_MS[(match[2] or "").lower()] / 1000)
    if duration_s > _MAX_DURATION_S:
        raise ValueError("is longer than ten years; allowed: up to 3650d")
    return duration_s


def parse_lifetime(value: object) -> float:
    """As `parse_duration`, or infinity for the word `forever`. Raises ValueError."""
    if isinstance(value, str) and value.strip().lower() == FOREVER:
        return math.inf
    try:
        return parse_duration(value)
    except ValueError as error:
        raise ValueError(f"{error}, or {FOREVER}") from None


def parse_percent(value: object) -> float:
    """Hundredths in a number or in text such as `0.4%`. Raises ValueError."""
    match = _PERCENT.fullmatch(_text(value))
    if not match or (percent := float(match[1])) > 100:
        raise ValueError(f"is no percentage; allowed: {PERCENT_ALLOWED}")
    return percent


def show_size(size_bytes: int) -> str:
    """The shortest exact spelling that `parse_size` reads back: `50GiB`, `1536KiB`, `1000`."""
    for unit in ("T", "G", "M", "K"):
        if size_bytes and size_bytes % _SIZE_FACTORS[unit] == 0:
            return f"{size_bytes // _SIZE_FACTORS[unit]}{unit}iB"
    return str(size_bytes)


def show_duration(duration_s: float) -> str:
    """Seconds with their unit, as `parse_lifetime` reads them back: `60s`, `0.5s`, `forever`."""
    if math.isinf(duration_s):
        return FOREVER
    return f"{Decimal(repr(duration_s)).normalize():f}s"


def show_percent(percent: float) -> str:
    """As `parse_percent` reads it back: `0.4%`."""
    return f"{Decimal(repr(percent)).normalize():f}%"


def _text(value: object) -> str:
    """Numbers and text as text; everything else (bool is an int in Python) as text that no unit matches."""
    if isinstance(value, float):
        return f"{Decimal(repr(value)):f}"
    return str(value).strip() if isinstance(value, str | int) and not isinstance(value, bool) else ""
