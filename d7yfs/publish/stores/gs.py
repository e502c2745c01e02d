"""Writes to Google Cloud Storage over its XML API, which takes tokens and HMAC keys alike.

https://cloud.google.com/storage/docs/xml-api/put-object-upload; the condition:
https://cloud.google.com/storage/docs/xml-api/reference-headers#xgoogifgenerationmatch.
"""

from __future__ import annotations

from collections.abc import Mapping

from d7yfs.origins.gs.origin import GsOrigin


class WritableGs(GsOrigin):
    """A bucket of Cloud Storage as a `store_writer.WritableStore`."""

    scope = "https://www.googleapis.com/auth/devstorage.read_write"

    async def put(self, key: str, data: bytes, headers: Mapping[str, str]) -> None:
        await self._call("PUT", self._xml.stat_path(self._bucket, key), {}, key, "put", headers, data)

    def condition(self, before: str) -> Mapping[str, str]:
        return {"x-goog-if-generation-match": before or "0"}
