"""Where `d7yfs publish` writes: a store, or a directory whose files another tool uploads.

Owns the choice. A store gets a writer of its own in a module here, which is imported when it is used.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import Protocol

from d7yfs.config.schema import Credentials, RepositoryConfig
from d7yfs.errors import ConfigError, UsageError


class Writer(Protocol):
    """The place of a publication. Keys are below the repository's prefix."""

    def write_snapshot(self, key: str, data: bytes) -> None:
        """Write an object of which the key names the content. Blocks. Raises D7yfsError."""

    def write_pointer(self, key: str, data: bytes, before: str) -> None:
        """Write an object in the place of the one with the ETag `before`; empty if there is none.

        Blocks. Raises D7yfsError, also if another one is there meanwhile.
        """


def open_writer(config: RepositoryConfig, credentials: Credentials, directory: Path | None) -> Writer:
    """The writer of a repository, or of `directory` if that is given. Raises ConfigError."""
    if directory is not None:
        return DirectoryWriter(directory)
    if config.url.scheme != "s3":
        raise ConfigError(
            f"{config.url}: publish writes to s3:// only",
            hint="--to DIR writes the files to a directory; upload them with the store's own tool, `published` last",
        )
    from d7yfs.publish.s3_writer import S3Writer

    return S3Writer(config, credentials)


class DirectoryWriter:
    """A directory of files with the names of the keys."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def write_snapshot(self, key: str, data: bytes) -> None:
        path = self._directory / key
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            new = path.with_name(f".{path.name}-{secrets.token_hex(8)}")
            new.write_bytes(data)
            new.replace(path)
        except OSError as error:
            raise UsageError(f"{path} cannot be written: {os.strerror(error.errno or 0)}") from None

    def write_pointer(self, key: str, data: bytes, before: str) -> None:  # noqa: ARG002 - the directory is its caller's
        self.write_snapshot(key, data)
