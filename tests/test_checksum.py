"""Combined CRCs against the CRCs of the whole bytes."""

from __future__ import annotations

import random

import crc32c
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from d7yfs.checksum import combine_crc32c, crc32c_of_blocks, plain_md5
from d7yfs.objects import BLOCK_BYTES

BODY = random.Random(7).randbytes(3 * BLOCK_BYTES + 17)


@given(st.binary(max_size=300), st.binary(max_size=300))
def test_two_runs_of_bytes(first: bytes, second: bytes) -> None:
    combined = combine_crc32c(crc32c.crc32c(first), crc32c.crc32c(second), len(second))
    assert combined == crc32c.crc32c(first + second)


@given(st.binary(max_size=50), st.integers(min_value=0, max_value=BLOCK_BYTES))
@settings(max_examples=30)
def test_long_second_runs(first: bytes, second_size_bytes: int) -> None:
    second = BODY[:second_size_bytes]
    combined = combine_crc32c(crc32c.crc32c(first), crc32c.crc32c(second), len(second))
    assert combined == crc32c.crc32c(first + second)


@given(
    st.integers(min_value=0, max_value=0xFFFFFFFF),
    st.tuples(st.integers(min_value=0, max_value=0xFFFFFFFF), st.integers(min_value=0, max_value=1 << 40)),
    st.tuples(st.integers(min_value=0, max_value=0xFFFFFFFF), st.integers(min_value=0, max_value=1 << 40)),
)
def test_it_does_not_matter_which_two_come_first(first: int, second: tuple[int, int], third: tuple[int, int]) -> None:
    from_left = combine_crc32c(combine_crc32c(first, *second), *third)
    from_right = combine_crc32c(first, combine_crc32c(second[0], *third), second[1] + third[1])
    assert from_left == from_right


@pytest.mark.parametrize(
    "size_bytes", [0, 1, BLOCK_BYTES - 1, BLOCK_BYTES, BLOCK_BYTES + 1, 3 * BLOCK_BYTES, len(BODY)]
)
def test_blocks_of_an_object(size_bytes: int) -> None:
    body = BODY[:size_bytes]
    crcs = [crc32c.crc32c(body[start : start + BLOCK_BYTES]) for start in range(0, size_bytes, BLOCK_BYTES)]
    assert crc32c_of_blocks(crcs, size_bytes) == crc32c.crc32c(body)


@given(st.lists(st.integers(min_value=0, max_value=0xFFFFFFFF), min_size=1, max_size=40))
def test_blocks_are_combined_one_by_one(crcs: list[int]) -> None:
    whole = 0
    for crc in crcs:
        whole = combine_crc32c(whole, crc, BLOCK_BYTES)
    assert crc32c_of_blocks(crcs, len(crcs) * BLOCK_BYTES) == whole


@pytest.mark.parametrize(
    ("etag", "md5"),
    [
        ('"d41d8cd98f00b204e9800998ecf8427e"', "d41d8cd98f00b204e9800998ecf8427e"),
        ("d41d8cd98f00b204e9800998ecf8427e", "d41d8cd98f00b204e9800998ecf8427e"),
        ('"d41d8cd98f00b204e9800998ecf8427e-2"', None),
        ('W/"d41d8cd98f00b204e9800998ecf8427e"', None),
        ('"0x8DBC5"', None),
        ("", None),
    ],
)
def test_an_etag_that_is_an_md5(etag: str, md5: str | None) -> None:
    assert plain_md5(etag) == md5
