"""Which provider serves which URL scheme. The registry of origins: a new provider is one file here and one line below.

A provider's module is imported only when its scheme is used: boto3 and one client cost 40 MiB and 0.25 s, and the SDKs of the other clouds
are optional extras of the package, which need not be there.
"""

from __future__ import annotations

import importlib
from typing import Protocol, cast

from d7yfs.config.schema import Credentials, RepositoryConfig
from d7yfs.errors import ConfigError
from d7yfs.origins.origin import Origin

_ORIGINS = {
    "s3": ("d7yfs.origins.s3.origin", "S3Origin", ""),
    "gs": ("d7yfs.origins.gs.origin", "GsOrigin", "gs"),
    "as": ("d7yfs.origins.azure.origin", "AzureOrigin", "azure"),
    "oss": ("d7yfs.origins.rest_stores.oss", "OssOrigin", "oss"),
    "obs": ("d7yfs.origins.rest_stores.obs", "ObsOrigin", "obs"),
}
"""Module, class, and the extra that installs what the module imports."""


class _OriginClass(Protocol):
    def open(self, repository: RepositoryConfig, credentials: Credentials) -> Origin: ...


def open_origin(repository: RepositoryConfig, credentials: Credentials) -> Origin:
    """The origin behind one repository. Makes no request.

    Raises ConfigError for a scheme that is not supported, whose SDK is not installed, or whose settings make no sense.
    """
    scheme = repository.url.scheme
    if scheme not in _ORIGINS:
        supported = ", ".join(f"{each}://" for each in sorted(_ORIGINS))
        raise ConfigError(f"{repository.url}: {scheme}:// is not supported", hint=f"supported: {supported}")
    module, name, extra = _ORIGINS[scheme]
    try:
        found = getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as error:
        if not extra or (error.name or "").startswith("d7yfs"):
            raise
        raise ConfigError(
            f"{repository.url}: {scheme}:// needs the package {error.name}, which is not installed",
            hint=f"pip install 'd7yfs[{extra}]', or 'd7yfs[all]' for every cloud",
        ) from None
    return cast("_OriginClass", found).open(repository, credentials)
