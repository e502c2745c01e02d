"""CRCs against check values, and combined ones against those of the whole bytes."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from d7yfs.checksum import crc32c, crc32c_of_blocks, crc64nvme, plain_md5
from d7yfs.objects import BLOCK_BYTES

BODY = random.Random(7).randbytes(3 * BLOCK_BYTES + 17)


@given(st.binary(max_size=50), st.binary(max_size=300))
@pytest.mark.parametrize("sum_of", [crc32c, crc64nvme])
def test_a_sum_goes_on_from_another(sum_of: Callable[..., int], first: bytes, second: bytes) -> None:
    whole = sum_of(first + second)
    assert sum_of(memoryview(second), sum_of(bytearray(first))) == whole


def test_the_sums_of_the_standards() -> None:
    """The check values of both CRCs, those of "123456789"."""
    assert crc32c(b"123456789") == 0xE3069283
    assert crc64nvme(b"123456789") == 0xAE8B14860A799888


@pytest.mark.parametrize(
    "size_bytes", [0, 1, BLOCK_BYTES - 1, BLOCK_BYTES, BLOCK_BYTES + 1, 3 * BLOCK_BYTES, len(BODY)]
)
def test_blocks_of_an_object(size_bytes: int) -> None:
    body = BODY[:size_bytes]
    crcs = [crc32c(body[start : start + BLOCK_BYTES]) for start in range(0, size_bytes, BLOCK_BYTES)]
    assert crc32c_of_blocks(crcs, size_bytes) == crc32c(body)


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
