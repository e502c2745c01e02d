"""Checksums that stores and the cache use, and that of an object from those of its blocks. Pure.

The sums are those of AWS's C library (package awscrt): CRC32C is RFC 3720's, and CRC64NVME is the
one that S3 takes for new uploads. This is the only module that knows the package.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Protocol

from awscrt import checksums

from d7yfs.objects import BLOCK_BYTES

_PLAIN_MD5 = re.compile(r'"?([0-9a-f]{32})"?')


class RunningSum(Protocol):
    """A sum over bytes that goes on from the sum over those before them."""

    def __call__(self, data: bytes | bytearray | memoryview, before: int = 0, /) -> int: ...


crc32c: RunningSum = checksums.crc32c
crc64nvme: RunningSum = checksums.crc64nvme


def crc32c_of_blocks(crcs: Sequence[int], size_bytes: int) -> int:
    """CRC32C of an object of `size_bytes` whose blocks (BLOCK_BYTES each, the last one shorter)
    have these, in order.

    Takes a fifth of a microsecond for each block. No byte is read.
    """
    whole = 0
    for crc in crcs[:-1]:
        whole = checksums.combine_crc32c(whole, crc, BLOCK_BYTES)
    last_bytes = size_bytes - max(0, len(crcs) - 1) * BLOCK_BYTES
    return int(checksums.combine_crc32c(whole, crcs[-1], last_bytes)) if crcs else 0


def plain_md5(etag: str) -> str | None:
    """The MD5, in hex, that an ETag looks like; None for those of multipart uploads and others."""
    matched = _PLAIN_MD5.fullmatch(etag)
    return matched[1] if matched else None
