"""Writes a publication to a store, with the settings and credentials of a mount.

Owns the order: what is published is looked at again before the pointer is written. A store that knows a
condition then writes only in the place of what was there. So of two publishers at once one is told; where
the store knows none, unless both write within one round trip.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from d7yfs.errors import AccessDenied, BadReply, BucketNotFound, NotFound, NotPermitted, VersionGone
from d7yfs.origins.origin import ANONYMOUS, Origin
from d7yfs.origins.rest import ask_again


class WritableStore(Origin, Protocol):
    """An origin whose objects can be written."""

    async def put(self, key: str, data: bytes, headers: Mapping[str, str]) -> None:
        """Write an object. Raises D7yfsError: VersionGone if a condition among `headers` is not met."""

    def condition(self, before: str) -> Mapping[str, str]:
        """The headers of a `put` in the place of version `before` alone (empty: of none).

        Empty where the store has no such condition.
        """


class StoreWriter:
    """The `Writer` of one repository."""

    def __init__(self, store: WritableStore, prefix: str) -> None:
        """`prefix` is the repository's, without a slash at its end."""
        self._store = store
        self._base = f"{prefix}/" if prefix else ""

    async def find(self, key: str) -> str:
        found = await self._version(key)
        if self._store.principal == ANONYMOUS:  # only known after a request
            raise AccessDenied(f"{self._store.url}: publish writes, and no credentials are found")
        return found

    async def write_snapshot(self, key: str, data: bytes) -> None:
        await self._put(key, data, {"Content-Type": "application/octet-stream"})

    async def write_pointer(self, key: str, data: bytes, before: str) -> None:
        headers = {"Content-Type": "application/json", "Cache-Control": "no-cache"}
        try:
            if await self._version(key) != before:
                raise VersionGone(key)
            await self._put(key, data, headers | dict(self._store.condition(before)))
        except VersionGone:
            name = self._name(key)
            raise BadReply(
                f"{name}: was published by another at the same time", hint="publish again", lasting=True
            ) from None

    async def aclose(self) -> None:
        await self._store.aclose()

    async def _version(self, key: str) -> str:
        try:
            return (await ask_again(lambda: self._store.stat(self._base + key))).validator
        except BucketNotFound:
            raise
        except NotFound:
            return ""

    async def _put(self, key: str, data: bytes, headers: Mapping[str, str]) -> None:
        try:
            await self._store.put(self._base + key, data, headers)
        except NotPermitted as error:
            raise NotPermitted(f"{error.message}: must not be written", hint=error.hint).about(**error.facts) from None
        except BucketNotFound:
            raise
        except NotFound:  # a 404 or 405 of a PUT is about no object
            raise NotPermitted(
                f"{self._name(key)}: cannot be written: objects cannot be put there",
                hint="is the URL right, and the store one that can be written?",
            ) from None

    def _name(self, key: str) -> str:
        return f"{self._store.url}/{self._base}{key}"
