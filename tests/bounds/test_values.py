"""Numbers, times and JSON as an attacker would send them."""

from __future__ import annotations

import json
from email.utils import formatdate

import pytest

from d7yfs.bounds.values import excerpt, read_integer, read_json, read_size, read_time


@pytest.mark.parametrize(
    "value",
    ["", "-1", "+1", " 1", "1_0", "1e3", "0x1", "\u0667", "9" * 19, "9" * 5000, 1 << 63, -1, 1.0, True, None, [1]],
)
def test_what_is_no_number(value: object) -> None:
    with pytest.raises(ValueError, match="no number from 0 to") as caught:
        read_integer(value)
    assert len(str(caught.value)) < 120


def test_numbers() -> None:
    assert [read_integer(each) for each in ("0", "007", 5, (1 << 63) - 1)] == [0, 7, 5, (1 << 63) - 1]
    with pytest.raises(ValueError, match="from 0 to 3"):
        read_integer(4, most=3)


def test_the_largest_objects_of_all_providers_have_a_size() -> None:
    assert read_size(str(50_000 * 4000 << 20)) == 50_000 * 4000 << 20  # Azure's 190.7 TiB
    with pytest.raises(ValueError, match="a size that no object has"):
        read_size(1 << 50)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "yesterday",
        "0001-01-01T00:00:00Z",
        "1969-12-31T23:59:59Z",
        "2262-04-12T00:00:00Z",
        "9999-12-31T23:59:59Z",
        "2026-01-01T00:00:00Z" + "0" * 5000,
        "Mon, 01 Jan 2026 00:00:00 +" + "9" * 30,
        "Mon, 01 Jan " + "9" * 30 + " 00:00:00 GMT",
        "Mon, 01 Jan 2026 00:00:00 +9999",
    ],
)
def test_what_is_no_time(text: str) -> None:
    with pytest.raises(ValueError, match="a time that no file can have"):
        read_time(text)


def test_times() -> None:
    moments = ("2023-11-14T22:13:20Z", "2023-11-14T22:13:20", formatdate(1_700_000_000, usegmt=True))
    assert {read_time(each).timestamp() for each in moments} == {1_700_000_000.0}


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xff",
        b"[" * 100_000 + b"]" * 100_000,
        b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
        b'{"status_code": 1e999}',
        b"NaN",
        b"-Infinity",
        b"9" * 5000,
        b"[" + b"1," * (1 << 20) + b"1]",
        b"[" + b"[]," * (1 << 19) + b"[]]",
    ],
)
def test_what_is_no_json(body: bytes) -> None:
    with pytest.raises(ValueError, match=r".+"):
        read_json(body)


def test_json() -> None:
    document = {"a": [1, -2.5, None, True, "\u20ac"], "b": {"c": "9" * 5000}}
    assert read_json(json.dumps(document)) == read_json(json.dumps(document).encode()) == document


def test_an_excerpt_is_short_and_printable() -> None:
    assert excerpt("\x1b[31m" * 1000).isprintable()
    assert len(excerpt("\x1b[31m" * 1000)) < 200
