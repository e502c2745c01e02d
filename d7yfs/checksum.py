"""Checksums that stores and the cache use, and that of an object from those of its blocks. Pure.

The sums are those of AWS's C library (package awscrt): CRC32C is RFC 3720's, and CRC64NVME is the
one that S3 takes for new uploads.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from typing import Any

from d7yfs.objects import BLOCK_BYTES

_PLAIN_MD5 = re.compile(r'"?([0-9a-f]{32})"?')


def crc32c(data: bytes | bytearray | memoryview, before: int = 0, /) -> int:
    """CRC32C of bytes that follow others whose sum is `before`."""
    return int(load().crc32c(data, before))


def crc64nvme(data: bytes | bytearray | memoryview, before: int = 0, /) -> int:
    """CRC64NVME of bytes that follow others whose sum is `before`."""
    return int(load().crc64nvme(data, before))


def crc32c_of_blocks(crcs: Sequence[int], size_bytes: int) -> int:
    """CRC32C of an object of `size_bytes` whose blocks (BLOCK_BYTES each, the last one shorter)
    have these, in order.

    Takes a fifth of a microsecond for each block. No byte is read.
    """
    combine, whole = load().combine_crc32c, 0
    for crc in crcs[:-1]:
        whole = combine(whole, crc, BLOCK_BYTES)
    last_bytes = size_bytes - max(0, len(crcs) - 1) * BLOCK_BYTES
    return int(combine(whole, crcs[-1], last_bytes)) if crcs else 0


@functools.cache
def load() -> Any:
    """AWS's library. Its 12 MiB take 20 to 30 ms, so a new mount loads them once it answers."""
    from awscrt import checksums

    return checksums


def plain_md5(etag: str) -> str | None:
    """The MD5, in hex, that an ETag looks like; None for those of multipart uploads and others."""
    matched = _PLAIN_MD5.fullmatch(etag)
    return matched[1] if matched else None
