"""The files of Triton and TorchServe that a host has, which of them are needed, and the settings
that they give.

Owns the order among them. A file that a user names must exist and be valid; one at its default path
is read only if it is needed. Called by `sources`; the formats are `triton`'s and `torchserve`'s.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from d7yfs.config import torchserve, triton
from d7yfs.config.layers import Found, Value
from d7yfs.config.url import RepositoryUrl
from d7yfs.errors import ConfigError


@dataclass(frozen=True, slots=True)
class PluginFile:
    """The file of an earlier TorchServe plugin, if there is one; read when it is needed."""

    path: Path | None
    chosen: bool = False
    """True if the user told d7yfs, rather than the plugin, to read it."""
    named: bool = False
    content: torchserve.TorchServeFile | None = None
    ignored: str = ""
    """Why the file at the default path does not count."""

    @classmethod
    def locate(cls, chosen: Path | None, environ: Mapping[str, str], default: Path) -> PluginFile:
        """Find the file, and read it if it was named. Raises ConfigError."""
        if chosen is not None:
            return cls(chosen, chosen=True, named=True).read()
        found = triton.locate(environ, torchserve.ENDPOINT_VARIABLE, default)
        file = cls(found.path, named=found.named, ignored=found.ignored)
        return file.read() if file.named else file

    def read(self) -> PluginFile:
        """The same with its content. Raises ConfigError."""
        if self.path is None or self.content is not None:
            return self
        return replace(self, content=torchserve.read(self.path))

    @property
    def storage(self) -> torchserve.ObjectStore | None:
        """The object store that the file names."""
        return self.content.storage if self.content else None

    def credentials_of(self, url: RepositoryUrl) -> Found | None:
        """The credentials for `url`, and its bucket's place, if it lies in the file's object store."""
        held = self.storage
        # A user who names both the file and another address of the bucket means these keys for it:
        # the S3 file cannot give an address.
        if not held or not (held.is_bucket_of(url) if self.chosen else held.holds(url)):
            return None
        said = {"region": held.region, "endpoint_url": held.endpoint_url}
        place = {name: Value(value, str(self.path)) for name, value in said.items() if value}
        return Value(held.credentials, str(self.path)), place

    def check(self, urls: Collection[RepositoryUrl]) -> None:
        """Raise ConfigError when the user chose this file, and it is for none of `urls`."""
        if self.chosen and self.storage and not any(map(self.credentials_of, urls)):
            said = ", ".join(map(str, urls))
            raise ConfigError(
                f"{self.path} is for {self.storage.url}, not for {said}",
                hint="omit the URL, or name another file",
            )


@dataclass(frozen=True, slots=True)
class HostFiles:
    """The files that were found and are needed."""

    credentials: triton.CredentialFile | None
    dragonfly: triton.DragonflyFile | None
    plugin: PluginFile
    ignored: tuple[str, ...] = ()
    """Why files at their default paths do not count."""

    def credentials_of(self, url: RepositoryUrl) -> Found | None:
        """The credentials for `url` in Triton's file, if that has a section for it. Raises
        ConfigError."""
        file = self.credentials
        if file is None or url.scheme not in file.sections:
            return None
        entry = file.match(url)
        where = f'{file.path}, key "{entry.key}"'
        return Value(entry.credentials, where), {"region": Value(entry.region, where)} if entry.region else {}

    def warnings(self, schemes: Collection[str]) -> tuple[str, ...]:
        """The warnings of all files that matter to repositories of these schemes."""
        files = (self.credentials, self.dragonfly, self.plugin.content)
        found = self.ignored + tuple(text for file in files if file for text in file.warnings)
        sections = self.credentials.section_warnings if self.credentials else {}
        return found + tuple(text for scheme in sections if scheme in schemes for text in sections[scheme])


def read_files(
    environ: Mapping[str, str], home: Path, plugin: PluginFile, *, credentials: bool, proxy: bool
) -> HostFiles:
    """Read the files that are named, and those at their default paths that are needed: for
    `credentials`, for the `proxy`.

    `home` is Triton's. Raises ConfigError.
    """
    held = triton.locate(environ, triton.CREDENTIAL_VARIABLE, home / triton.CREDENTIAL_FILE)
    keys = triton.read_credentials(held.path) if held.path and (held.named or credentials) else None
    agent = triton.locate(environ, triton.DRAGONFLY_VARIABLE, home / triton.DRAGONFLY_FILE)
    dragonfly = triton.read_dragonfly(agent.path) if agent.path and (agent.named or proxy) else None
    if credentials or (proxy and not dragonfly):
        plugin = plugin.read()
    endpoint = plugin.content.dragonfly if plugin.content else None
    if endpoint and (plugin.chosen or (not dragonfly and (plugin.named or proxy))):
        dragonfly = endpoint
    ignored = [held.ignored] * credentials + [agent.ignored] * proxy + [plugin.ignored] * (credentials or proxy)
    return HostFiles(keys, dragonfly, plugin, tuple(filter(None, ignored)))
