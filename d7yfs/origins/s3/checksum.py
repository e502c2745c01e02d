"""What a HeadObject's reply tells of the object's checksums. Pure; called by `s3.py`.

Of the sums that S3 keeps only a whole object's CRC32C can be compared without another look at every byte, and the MD5 is there for those
who want that: CRC32, CRC64NVME, SHA-1 and SHA-256 are not used. Sources:
https://docs.aws.amazon.com/AmazonS3/latest/userguide/checking-object-integrity.html and
https://docs.aws.amazon.com/AmazonS3/latest/API/API_Object.html (which ETags are an MD5).
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping

from d7yfs.checksum import plain_md5
from d7yfs.origins.origin import Checksums


def recorded(head: Mapping[str, object]) -> Checksums:
    """The checksums in `head`, a HeadObject's reply as boto3 gives it when asked with ChecksumMode=ENABLED."""
    return Checksums(crc32c=_crc32c(head), md5=_md5(head))


def _crc32c(head: Mapping[str, object]) -> int | None:
    """Base64 of four bytes, big-endian. Of a multipart upload's parts it is no sum of the bytes: COMPOSITE, and the value ends in `-N`."""
    if head.get("ChecksumType", "FULL_OBJECT") != "FULL_OBJECT":
        return None
    try:
        value = base64.b64decode(str(head.get("ChecksumCRC32C", "")), validate=True)  # "-" is no letter of its alphabet
    except (binascii.Error, ValueError):
        return None
    return int.from_bytes(value, "big") if len(value) == 4 else None


def _md5(head: Mapping[str, object]) -> str | None:
    """The ETag of a simple upload, unless keys of KMS or the customer's encrypt the object: then it only looks like an MD5."""
    if head.get("ServerSideEncryption", "AES256") != "AES256" or "SSECustomerAlgorithm" in head:
        return None
    return plain_md5(str(head.get("ETag", "")))
