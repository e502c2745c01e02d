"""The row of the contract suite for `s3://` on MinIO; `make integration` runs it."""

from __future__ import annotations

import io
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

    def put(self, name: str, body: bytes) -> str:
        """Upload with the checksum that AWS's own S3 takes where the client sends none; over 8 MiB
        in parts.
        """
        key = self.prefix + name
        checksum = {"ChecksumAlgorithm": "CRC64NVME"}
        self._client.upload_fileobj(io.BytesIO(body), self.BUCKET, key, ExtraArgs=checksum)
        return key
