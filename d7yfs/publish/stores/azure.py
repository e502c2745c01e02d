"""Writes to Azure Blob Storage: https://learn.microsoft.com/rest/api/storageservices/put-blob."""

from __future__ import annotations

from collections.abc import Mapping

from d7yfs.origins.azure.errors import words_for
from d7yfs.origins.azure.origin import AzureOrigin

_OWN_NAMES = {"Cache-Control": "x-ms-blob-cache-control"}
"""The names of headers that the service keeps under its own name."""
_ROLE = "Storage Blob Data Contributor"


class WritableAzure(AzureOrigin):
    """A container as a `store_writer.WritableStore`."""

    permissions = "rwl"
    words = words_for(_ROLE, permissions)

    async def put(self, key: str, data: bytes, headers: Mapping[str, str]) -> None:
        named = {_OWN_NAMES.get(name, name): value for name, value in headers.items()}
        headers = {"x-ms-blob-type": "BlockBlob", **named}
        reply, grant = await self._send("PUT", self._blob_url(key), "", key, headers, data)
        if reply.status != 201:
            raise self._refused(reply, grant, key, needs=f"write (w), as the role {_ROLE} does,")

    def condition(self, before: str) -> Mapping[str, str]:
        return {"If-Match": before} if before else {"If-None-Match": "*"}
