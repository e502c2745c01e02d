"""Numbers, times and JSON that came over a network, read within bounds. Pure.

Python reads digits of any script, dates that overflow, numbers that are infinite, and structures so
deep that its stack ends. Each reader here raises ValueError for all of that, in words that show a
few characters of what came.
"""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

OBJECT_MAX_BYTES = 200 << 40
"""More than any provider's largest object: S3 has 50 TB, Azure 190.7 TiB."""

_INTEGER_MAX_DIGITS = 19
_TIME_MAX_CHARACTERS = 64
_TIME_END_S = (1 << 63) // 1_000_000_000
"""The first second whose nanoseconds do not fit into 64 bits, in the year 2262."""
_JSON_MAX_VALUES = 1 << 20
"""A thousand entries of a listing have 6,000 values; their keys may hold a thousand commas each."""
_TEXT_MAX_CHARACTERS = 1024
_SHOWN_CHARACTERS = 40


def excerpt(value: object) -> str:
    """A few characters of what came, in Python's quotes, which escape all that is not printable."""
    text = value if isinstance(value, str) else repr(value)
    return repr(text) if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]!r}…"


def bounded_text(value: object) -> str:
    """A validator, an encoding or the like. Raises ValueError for one that nobody uses."""
    if not isinstance(value, str) or len(value) > _TEXT_MAX_CHARACTERS:
        raise ValueError(f"a text that is too long, or none: {excerpt(value)}")
    return value


def read_integer(value: object, *, most: int = (1 << 63) - 1) -> int:
    """The number from 0 to `most` in `value`, which is ASCII digits or JSON's number. Raises
    ValueError."""
    if isinstance(value, str) and len(value) <= _INTEGER_MAX_DIGITS and value.isascii() and value.isdigit():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
        raise ValueError(f"no number from 0 to {most}: {excerpt(value)}")
    return value


def read_size(value: object) -> int:
    """The size of an object in bytes. Raises ValueError for one that no object has."""
    try:
        return read_integer(value, most=OBJECT_MAX_BYTES)
    except ValueError:
        raise ValueError(f"a size that no object has: {excerpt(value)}") from None


def read_time(text: str) -> datetime:
    """The moment in an ISO 8601 or a header's time, in UTC without a zone.

    Raises ValueError for a time that no file can have: before 1970 or after 2262.
    """
    moment = _parse_time(text) if isinstance(text, str) and len(text) <= _TIME_MAX_CHARACTERS else None
    if moment is not None and moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    if moment is None or not 0 <= moment.timestamp() < _TIME_END_S:
        raise ValueError(f"a time that no file can have: {excerpt(text)}")
    return moment


def _parse_time(text: str) -> datetime | None:
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return parse_header_time(text)


def parse_header_time(text: str) -> datetime | None:
    """The moment in a header's time (RFC 9110, 5.6.7); None when there is none."""
    if len(text) > _TIME_MAX_CHARACTERS:
        return None
    try:
        return parsedate_to_datetime(text)
    except (ValueError, TypeError, OverflowError, IndexError):  # a zone or a year of many digits overflows
        return None


def read_json(body: bytes | bytearray | str) -> Any:
    """The value in a JSON document. Raises ValueError, also for one too deep or with too many
    values, and for numbers that are none."""
    if isinstance(body, str):
        body = body.encode(errors="surrogatepass")
    if body.count(b",") + body.count(b"[") > _JSON_MAX_VALUES:
        raise ValueError(f"JSON of more than {_JSON_MAX_VALUES:,} values")
    try:
        return json.loads(body, parse_float=_read_float, parse_constant=_refuse_constant)
    except RecursionError:
        raise ValueError("JSON that is too deep") from None


def _read_float(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"JSON with the number {excerpt(text)}")
    return number


def _refuse_constant(name: str) -> float:
    raise ValueError(f"JSON with the number {name}")
