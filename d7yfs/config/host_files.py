"""Which of the files of Triton and TorchServe a host has, which of them are needed, and what they amount to.

Owns the order among them, and the rule that a file which somebody names must be there and right, while one that merely lies there
must not hinder who does not need it. Called by `sources`; the formats are `triton`'s and `torchserve`'s.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from d7yfs.config import torchserve, triton
from d7yfs.config.layers import Value
from d7yfs.config.schema import Credentials, CredentialsFile, ProviderChain, StaticKeys
from d7yfs.config.url import RepositoryUrl
from d7yfs.errors import ConfigError


@dataclass(frozen=True, slots=True)
class PluginFile:
    """The file of an earlier TorchServe plugin, if there is one; read when it is needed."""

    path: Path | None
    chosen: bool = False
    """Whether d7yfs was told to read it, rather than the plugin."""
    named: bool = False
    content: torchserve.TorchServeFile | None = None

    @classmethod
    def locate(cls, chosen: Path | None, environ: Mapping[str, str], default: Path) -> PluginFile:
        """Where it is; one that was named is read. Raises ConfigError."""
        if chosen is not None:
            return cls(chosen, chosen=True, named=True).read()
        path, named = triton.locate(environ, torchserve.ENDPOINT_VARIABLE, default)
        file = cls(path, named=named)
        return file.read() if named else file

    def read(self) -> PluginFile:
        """With its content. Raises ConfigError."""
        if self.path is None or self.content is not None:
            return self
        return replace(self, content=torchserve.read(self.path))

    @property
    def storage(self) -> Value | None:
        """Its object store."""
        return Value(self.content.storage, str(self.path)) if self.content and self.content.storage else None

    def storage_of(self, url: RepositoryUrl) -> Value | None:
        """The same, if it is where `url` is."""
        if self.storage is None:
            return None
        held: torchserve.ObjectStore = self.storage.value
        # Who names both the file and another address of the bucket means these keys for it: the S3 file has no word for an address.
        return self.storage if (held.is_bucket_of(url) if self.chosen else held.holds(url)) else None

    def check(self, urls: Collection[RepositoryUrl]) -> None:
        """Raise ConfigError when d7yfs was told to read it, and it is for none of `urls`."""
        if self.chosen and self.storage and not any(map(self.storage_of, urls)):
            said = ", ".join(map(str, urls))
            raise ConfigError(
                f"{self.path} is for {self.storage.value.url}, not for {said}",
                hint="leave the URL out, or name another file",
            )


@dataclass(frozen=True, slots=True)
class HostFiles:
    """All that was found and needed."""

    credentials: triton.CredentialFile | None
    dragonfly: triton.DragonflyFile | None
    plugin: PluginFile

    @property
    def warnings(self) -> tuple[str, ...]:
        """Those of all files."""
        files = (self.credentials, self.dragonfly, self.plugin.content)
        return tuple(text for file in files if file for text in file.warnings)


def read_files(
    environ: Mapping[str, str], home: Path, plugin: PluginFile, *, credentials: bool, proxy: bool
) -> HostFiles:
    """Read what is named, and of what lies at its default place what is needed: for `credentials`, for the `proxy`.

    `home` is Triton's. Raises ConfigError.
    """
    path, named = triton.locate(environ, triton.CREDENTIAL_VARIABLE, home / triton.CREDENTIAL_FILE)
    keys = triton.read_credentials(path) if path and (named or credentials) else None
    path, named = triton.locate(environ, triton.DRAGONFLY_VARIABLE, home / triton.DRAGONFLY_FILE)
    dragonfly = triton.read_dragonfly(path) if path and (named or proxy) else None
    if credentials or (proxy and not dragonfly):
        plugin = plugin.read()
    endpoint = plugin.content.dragonfly if plugin.content else None
    if endpoint and (plugin.chosen or (not dragonfly and (plugin.named or proxy))):
        dragonfly = endpoint
    return HostFiles(keys, dragonfly, plugin)


def place_of(storage: Value) -> dict[str, Value]:
    """The options that say where the bucket of a plugin's file is."""
    said = {"region": storage.value.region, "endpoint_url": storage.value.endpoint_url}
    return {name: Value(value, storage.where) for name, value in said.items() if value}


def from_triton(entry: triton.KeyEntry | triton.GoogleEntry | triton.AzureEntry, account: str) -> Credentials:
    """What an entry of Triton's file amounts to, for the storage `account` of an Azure URL."""
    match entry:
        case triton.KeyEntry():
            return entry.credentials()
        case triton.GoogleEntry(path=path):
            return CredentialsFile(Path(path)) if path else ProviderChain(else_anonymous=True)
        case triton.AzureEntry(account_str=named, account_key=key):
            return StaticKeys(named.lower() or account, key) if key else ProviderChain()
