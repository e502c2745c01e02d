"""The row of the contract suite for `s3://` on MinIO; `make integration` runs it."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any, ClassVar

from d7yfs.checksum import crc64nvme
from tests.contract.stores import S3OnSeaweedFS

_PART_BYTES = 8 << 20


class S3OnMinio(S3OnSeaweedFS):
    """The row of SeaweedFS, with the names that MinIO can keep."""

    cannot: ClassVar[Mapping[str, str]] = {
        "test_empty_segments": "MinIO refuses a//b and keeps /a as a",
        "test_key_and_prefix_of_one_name": "MinIO keeps keys as files: a/b and a cannot both be",
        "test_long_components": "MinIO refuses segments over 255 bytes",
        "test_a_refused_write_names_the_right": "the only user here is the root user",
    }
    unstorable = frozenset({"x" * 255})  # its test goes on to store a longer one

    def put(self, name: str, body: bytes) -> str:
        """Upload with the checksum that AWS's own S3 takes where the client sends none; over 8 MiB
        in parts. It is ours: botocore would need parts of awscrt that d7yfs leaves out.
        """
        client: Any = self._client  # its types know no arguments in a mapping
        key = self.prefix + name
        place = {"Bucket": self.BUCKET, "Key": key}
        if len(body) <= _PART_BYTES:
            client.put_object(**place, Body=body, ChecksumCRC64NVME=_sum(body))
            return key
        kind = {"ChecksumType": "FULL_OBJECT"}
        place["UploadId"] = client.create_multipart_upload(**place, ChecksumAlgorithm="CRC64NVME", **kind)["UploadId"]
        parts = []
        for number, start in enumerate(range(0, len(body), _PART_BYTES), 1):
            part = body[start : start + _PART_BYTES]
            known = {"PartNumber": number, "ChecksumCRC64NVME": _sum(part)}
            parts.append({**known, "ETag": client.upload_part(**place, **known, Body=part)["ETag"]})
        client.complete_multipart_upload(**place, MultipartUpload={"Parts": parts}, **kind)
        return key


def _sum(data: bytes) -> str:
    return base64.b64encode(crc64nvme(data).to_bytes(8, "big")).decode()
