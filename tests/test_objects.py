from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from d7yfs.objects import BLOCK_BYTES, PART_BYTES, ByteRange, ObjectVersion, printable

ranges = st.tuples(st.integers(0, 300), st.integers(0, 300)).map(lambda pair: ByteRange(min(pair), max(pair)))
units = st.integers(1, 40)
sizes = st.integers(0, 300)


def test_a_part_is_whole_blocks() -> None:
    assert PART_BYTES % BLOCK_BYTES == 0


@pytest.mark.parametrize(("start", "stop"), [(-1, 0), (2, 1), (-3, -2)])
def test_refuses_what_is_no_range(start: int, stop: int) -> None:
    with pytest.raises(ValueError, match="not a byte range"):
        ByteRange(start, stop)


def test_http_form_has_an_inclusive_end() -> None:
    assert ByteRange(0, 1).http() == "bytes=0-0"
    assert ByteRange(5, 10).http() == "bytes=5-9"
    with pytest.raises(ValueError, match="empty"):
        ByteRange(5, 5).http()


@pytest.mark.parametrize(
    ("start", "stop", "size_bytes", "clipped"),
    [
        (0, 10, 10, ByteRange(0, 10)),
        (0, 11, 10, ByteRange(0, 10)),
        (9, 20, 10, ByteRange(9, 10)),
        (10, 20, 10, ByteRange(10, 10)),
        (15, 20, 10, ByteRange(10, 10)),
        (0, 5, 0, ByteRange(0, 0)),
    ],
)
def test_clip(start: int, stop: int, size_bytes: int, clipped: ByteRange) -> None:
    assert ByteRange(start, stop).clip(size_bytes) == clipped


def test_adjacent_and_empty_ranges() -> None:
    assert not ByteRange(0, 5).intersects(ByteRange(5, 9))
    assert ByteRange(0, 6).intersects(ByteRange(5, 9))
    assert not ByteRange(3, 3)
    assert ByteRange(3, 4)
    assert str(ByteRange(3, 4)) == "[3, 4)"


@given(ranges, ranges)
def test_intersects_means_a_common_byte(a: ByteRange, b: ByteRange) -> None:
    if a and b:
        assert a.intersects(b) == bool(set(range(a.start, a.stop)) & set(range(b.start, b.stop)))


@given(ranges, units)
def test_split_covers_exactly_and_cuts_at_units(whole: ByteRange, unit: int) -> None:
    pieces = whole.split(unit)
    assert [byte for piece in pieces for byte in range(piece.start, piece.stop)] == list(range(whole.start, whole.stop))
    assert all(0 < piece.size <= unit for piece in pieces)
    assert all(piece.start % unit == 0 for piece in pieces[1:])


@given(ranges, units, sizes)
def test_aligned_is_the_smallest_of_whole_units(wanted: ByteRange, unit: int, size_bytes: int) -> None:
    wanted = wanted.clip(size_bytes)
    aligned = wanted.aligned(unit, size_bytes)
    assert aligned.start <= wanted.start
    assert wanted.stop <= aligned.stop <= size_bytes
    if wanted:
        assert aligned.start % unit == 0
        assert aligned.stop % unit == 0 or aligned.stop == size_bytes
        assert wanted.start - aligned.start < unit
        assert aligned.stop - wanted.stop < unit


def test_identity_is_key_validator_and_size_alone() -> None:
    version = ObjectVersion("a", 3, '"e"', mtime_ns=1)
    assert ObjectVersion("a", 3, '"e"', 2, version_id="v", archived="GLACIER").identity == version.identity
    for other in (ObjectVersion("b", 3, '"e"', 1), ObjectVersion("a", 4, '"e"', 1), ObjectVersion("a", 3, '"f"', 1)):
        assert other.identity != version.identity
    assert version.whole == ByteRange(0, 3)


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("model/1/weights-ü-模型.bin", "model/1/weights-ü-模型.bin"),
        ("a\nERROR forged", "a\\nERROR forged"),
        ("\x1b]0;owned\x07\x1b[2J", "\\x1b]0;owned\\x07\\x1b[2J"),
        ("\x9b31m", "\\x9b31m"),
        ("a\u202egnp.exe", "a\\u202egnp.exe"),
        ("a\u2028b\u2067c", "a\\u2028b\\u2067c"),
        ("half\udc80", "half\\udc80"),
    ],
)
def test_names_of_an_attacker_are_printable(name: str, shown: str) -> None:
    assert printable(name) == shown
    assert printable(name).encode()
