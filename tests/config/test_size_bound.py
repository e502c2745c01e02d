"""Sizes that may be parts of a file system."""

from __future__ import annotations

import pytest

from d7yfs.config import kinds
from d7yfs.config.size_bound import SizeBound

GIB = 1 << 30


@pytest.mark.parametrize(
    ("text", "shown", "size_bytes"),
    [
        ("20GiB", "20GiB", 20 * GIB),
        ("50%", "50%", 500 * GIB),
        ("50%,200G", "50%,200GiB", 200 * GIB),
        ("10%,200G", "10%,200GiB", 100 * GIB),
        ("0%", "0%", 0),
    ],
)
def test_of_a_disk_of_a_thousand_gib(text: str, shown: str, size_bytes: int) -> None:
    bound = kinds.SIZE.parse(text)
    assert isinstance(bound, SizeBound)
    assert bound.of(1000 * GIB) == size_bytes
    assert kinds.SIZE.show(bound) == shown
