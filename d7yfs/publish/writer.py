"""Where `d7yfs publish` writes: a store, or a directory whose files another tool uploads.

Owns the choice. What writes to a store is imported when it is used.
"""

from __future__ import annotations

import importlib
import os
import secrets
from pathlib import Path
from typing import Protocol

import trio

from d7yfs.config.schema import Anonymous, Credentials, RepositoryConfig
from d7yfs.errors import ConfigError, UsageError
from d7yfs.publish.store_writer import StoreWriter

_STORES = {
    "s3": ("d7yfs.publish.stores.s3", "WritableS3"),
    "gs": ("d7yfs.publish.stores.gs", "WritableGs"),
    "as": ("d7yfs.publish.stores.azure", "WritableAzure"),
    "oss": ("d7yfs.publish.stores.oss", "WritableOss"),
    "obs": ("d7yfs.publish.stores.obs", "WritableObs"),
}
"""Module and class by URL scheme."""


class Writer(Protocol):
    """The place of a publication. Keys are below the repository's prefix."""

    async def find(self, key: str) -> str:
        """The version of an object; empty if there is none. Raises D7yfsError, also without credentials."""

    async def write_snapshot(self, key: str, data: bytes) -> None:
        """Write an object of which the key names the content. Raises D7yfsError."""

    async def write_pointer(self, key: str, data: bytes, before: str) -> None:
        """Write an object in the place of the one that `find` found.

        Raises D7yfsError, also if another one is there meanwhile.
        """

    async def aclose(self) -> None:
        """Close the connections."""


def open_writer(config: RepositoryConfig, credentials: Credentials, directory: Path | None) -> Writer:
    """The writer of a repository, or of `directory` if that is given. Raises ConfigError.

    The repository's origin was opened before, so the packages that the store needs are there.
    """
    if directory is not None:
        return DirectoryWriter(directory)
    if isinstance(credentials, Anonymous):
        raise ConfigError(f"{config.url}: publish writes, which needs credentials")
    module, name = _STORES[config.url.scheme]
    store = getattr(importlib.import_module(module), name)
    return StoreWriter(store(config, credentials), config.url.prefix)


class DirectoryWriter:
    """A directory of files with the names of the keys."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    async def find(self, key: str) -> str:  # noqa: ARG002 - the directory is its caller's
        return ""

    async def write_snapshot(self, key: str, data: bytes) -> None:
        await trio.to_thread.run_sync(self._write, self._directory / key, data)

    async def write_pointer(self, key: str, data: bytes, before: str) -> None:  # noqa: ARG002 - as above
        await self.write_snapshot(key, data)

    async def aclose(self) -> None:
        """Do nothing: no file stays open."""

    def _write(self, path: Path, data: bytes) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            new = path.with_name(f".{path.name}-{secrets.token_hex(8)}")
            new.write_bytes(data)
            new.replace(path)
        except OSError as error:
            raise UsageError(f"{path} cannot be written: {os.strerror(error.errno or 0)}") from None
