"""A PUT for the stores of S3's dialect: `origins.bucket` signs it, and says what a refusal means."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from d7yfs.origins.bucket import BucketRest


class WritableBucket(BucketRest):
    """The common part of S3, OSS and OBS as a `store_writer.WritableStore`."""

    write_permission: ClassVar[str]

    async def put(self, key: str, data: bytes, headers: Mapping[str, str]) -> None:
        await self._call("PUT", key, {}, headers, needs=self.write_permission, subject=key, body=data)
