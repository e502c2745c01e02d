"""The row of the contract suite for `s3://` on MinIO; `make integration` runs it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from tests.contract.stores import S3OnSeaweedFS


class S3OnMinio(S3OnSeaweedFS):
    """The row of SeaweedFS, with the names that MinIO can keep."""

    cannot: ClassVar[Mapping[str, str]] = {
        "test_empty_segments": "MinIO refuses a//b and keeps /a as a",
        "test_key_and_prefix_of_one_name": "MinIO keeps keys as files: a/b and a cannot both be",
        "test_long_components": "MinIO refuses segments over 255 bytes",
    }
    unstorable = frozenset({"x" * 255})  # its test goes on to store a longer one
