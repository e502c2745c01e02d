"""Writes to S3 and stores of its protocol.

Conditions: https://docs.aws.amazon.com/AmazonS3/latest/userguide/conditional-writes.html. A store that
does not know them says 501, and is asked without. Ceph's gateway before
https://github.com/ceph/ceph/pull/63348 compares an ETag of a PUT with its quotes to its own without.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from d7yfs.errors import D7yfsError, OriginUnavailable, VersionGone
from d7yfs.origins.rest import ControlReply
from d7yfs.origins.s3.origin import S3Origin
from d7yfs.publish.stores.bucket import WritableBucket

_CONDITIONS = frozenset({"If-Match", "If-None-Match"})

log = logging.getLogger(__name__)


class _NotImplementedThere(OriginUnavailable):
    """The refusal of a request that the store does not know."""


class WritableS3(WritableBucket, S3Origin):
    """An S3 bucket as a `store_writer.WritableStore`."""

    write_permission = "s3:PutObject"

    def condition(self, before: str) -> Mapping[str, str]:
        return {"If-Match": before} if before else {"If-None-Match": "*"}

    async def put(self, key: str, data: bytes, headers: Mapping[str, str]) -> None:
        try:
            await super().put(key, data, headers)
        except _NotImplementedThere:
            if _CONDITIONS.isdisjoint(headers):
                raise
            log.info("%s: the store knows no conditional writes", self.url)
            await super().put(key, data, {name: headers[name] for name in headers.keys() - _CONDITIONS})
        except VersionGone:
            before = headers.get("If-Match", "")
            if not before or (await self.stat(key)).validator != before:
                raise
            await super().put(key, data, {**headers, "If-Match": before.strip('"')})

    def _failure(self, reply: ControlReply, code: str, needs: str, subject: str) -> D7yfsError:
        found = super()._failure(reply, code, needs, subject)
        return _NotImplementedThere(found.message, hint=found.hint) if reply.status == 501 else found
