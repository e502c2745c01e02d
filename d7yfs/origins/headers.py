"""The header fields of replies that all stores share. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

from d7yfs.bounds.values import parse_header_time, read_time

_REQUEST_IDS = (
    "x-amz-request-id",
    "x-guploader-uploadid",
    "x-ms-request-id",
    "x-oss-request-id",
    "x-obs-request-id",
)
_PLAIN_ID = re.compile(r"[A-Za-z0-9_.=+/-]{1,128}")


def retry_after_s(headers: Mapping[str, str], now: float) -> float:
    """Seconds that `Retry-After` asks for (RFC 9110, 10.2.3); 0 when absent or malformed.

    `now` is time.time().
    """
    value = headers.get("retry-after", "").strip()
    if value.isascii() and value.isdigit():
        return float(value)
    date = parse_date(value)
    return max(0.0, date - now) if date is not None else 0.0


def request_id(headers: Mapping[str, str]) -> str:
    """The store's id of a request, by which the provider's support finds it in its logs. No secret.

    Empty when the headers (lower-case names) have none, or none that can be an id.
    """
    named = next((headers[name] for name in _REQUEST_IDS if headers.get(name)), "")
    return named if _PLAIN_ID.fullmatch(named) else ""


def entity_tag(etag: str) -> str:
    """`etag` in the quotes that RFC 9110, 8.8.3 demands; some stores leave them out in listings."""
    return etag if etag.startswith(('"', "W/")) else f'"{etag}"'


def parse_date(value: str) -> float | None:
    """The time of a date field in seconds since the epoch; None when absent or malformed."""
    moment = parse_header_time(value)
    if moment is None or moment.tzinfo is None:
        return None
    try:
        return read_time(value).timestamp()
    except ValueError:
        return None
