"""S3 and stores of its dialect: `s3://bucket/prefix`.

Owns S3's names and the way to a bucket in another region; `bucket` has the rest.
`sdk` has the settings and the credentials that botocore finds, `signing` its signature. An endpoint
that the SDK's own settings name is part of `identity`.

S3 lists in UTF-8 order; SeaweedFS lists each directory's keys together instead. Each key comes once
in any case.
"""

from __future__ import annotations

import base64
import binascii
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import replace

import trio

from d7yfs.config.schema import Credentials, RepositoryConfig
from d7yfs.errors import D7yfsError
from d7yfs.origins.bucket import BucketRest
from d7yfs.origins.origin import Checksums
from d7yfs.origins.refusal import Call
from d7yfs.origins.rest import ControlReply
from d7yfs.origins.s3.errors import GIVE_CREDENTIALS, WORDS, is_elsewhere, refused, region_in
from d7yfs.origins.s3.sdk import AwsSdk

log = logging.getLogger(__name__)


class S3Origin(BucketRest):
    """One S3 bucket under one set of credentials, as an `Origin`."""

    scheme = "s3"
    service = "S3"
    header = "x-amz-"
    give_credentials = GIVE_CREDENTIALS
    archives = frozenset({"GLACIER", "DEEP_ARCHIVE"})
    list_permission = "s3:ListBucket"
    read_permission = "s3:GetObject"
    words = WORDS
    checksum_headers: Mapping[str, str] = {"x-amz-checksum-mode": "ENABLED"}

    def __init__(
        self, repository: RepositoryConfig, credentials: Credentials, *, clock: Callable[[], float] = time.time
    ) -> None:
        """Read the SDK's own settings; make no request and load no credential. Raises ConfigError."""
        self._sdk = sdk = AwsSdk(repository, credentials)
        super().__init__(repository, credentials, *sdk.resolve(sdk.region), sdk, clock=clock)
        self._shown_endpoint = sdk.endpoint_url
        self._region = sdk.region
        self._region_is_set = bool(repository.region)
        if not sdk.endpoint_url:
            self.list_headers = {"x-amz-optional-object-attributes": "RestoreStatus"}  # others may refuse the header

    def describe(self) -> dict[str, str]:
        """Endpoint, region and the source of the credentials, as far as the SDK has looked."""
        return {
            **super().describe(),
            "endpoint": self._sdk.endpoint_url or "the provider's own",
            "region": self._region,
        }

    def _crcs(self, headers: Mapping[str, str]) -> Checksums:
        """The CRCs of a whole object.

        Those of type COMPOSITE, of multipart uploads, are no sums of the bytes. CRC32, SHA-1 and
        SHA-256, S3's other sums, are not taken:
        https://docs.aws.amazon.com/AmazonS3/latest/userguide/checking-object-integrity.html.
        """
        if headers.get("x-amz-checksum-type", "FULL_OBJECT") != "FULL_OBJECT":
            return Checksums()
        return Checksums(crc32c=_crc(headers, "crc32c", 4), crc64nvme=_crc(headers, "crc64nvme", 8))

    @property
    def _endpoint(self) -> str:
        return self._sdk.endpoint_url or "AWS"

    def _describe_call(self, needs: str, subject: str) -> Call:
        return replace(super()._describe_call(needs, subject), region=self._region)

    def _failure(self, reply: ControlReply, code: str, needs: str, subject: str) -> D7yfsError:
        return refused(reply, code, self._describe_call(needs, subject))

    async def _follow(self, reply: ControlReply, code: str) -> bool:
        """Go to the region that the refusal names, else to that which a HEAD of the bucket does."""
        if not is_elsewhere(reply, code, self._region):
            return False
        region = region_in(reply)
        if not region:
            region = region_in(await self._send("HEAD", "", {}, {}, await self._keys(), ""))
        if region in ("", self._region):
            return False
        log.log(
            logging.WARNING if self._region_is_set else logging.INFO,
            "s3://%s is in region %s, not in %s: going there",
            self._bucket,
            region,
            self._region,
        )
        self._address, self._signer = await trio.to_thread.run_sync(self._sdk.resolve, region)
        self._region = region
        self._signed.clear()
        return True


def _crc(headers: Mapping[str, str], name: str, size_bytes: int) -> int | None:
    """The CRC in a header: base64 of its bytes, big-endian. None for a composite one, too, which
    ends in `-N`.
    """
    try:
        value = base64.b64decode(headers.get(f"x-amz-checksum-{name}", ""), validate=True)
    except (binascii.Error, ValueError):  # "-" is no letter of its alphabet
        return None
    return int.from_bytes(value, "big") if len(value) == size_bytes else None
