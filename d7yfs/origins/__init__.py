"""The registry of origins, by URL scheme. A new provider is one folder here and one line below.

A provider's module is imported only when its scheme is used. botocore and one client cost 40 MiB
and 0.25 s, and the SDKs of the other clouds are optional extras of the package.
"""

from __future__ import annotations

import importlib
import sys

from d7yfs.config.schema import Credentials, RepositoryConfig
from d7yfs.errors import ConfigError
from d7yfs.origins.origin import Origin

# httpx imports a command line of its own, and with that rich and pygments, where they are installed: 30 ms
# and 4 MiB of each mount. None means that a module is absent (the Python reference, 5.3.1), and httpx
# does without.
sys.modules.setdefault("httpx._main", None)  # type: ignore[arg-type]

_ORIGINS = {
    "s3": ("d7yfs.origins.s3.origin", "S3Origin", ""),
    "gs": ("d7yfs.origins.gs.origin", "GsOrigin", "gs"),
    "as": ("d7yfs.origins.azure.origin", "AzureOrigin", "azure"),
    "oss": ("d7yfs.origins.rest_stores.oss", "OssOrigin", "oss"),
    "obs": ("d7yfs.origins.rest_stores.obs", "ObsOrigin", "obs"),
}
"""Module, class, and the extra that installs what the module imports."""


def open_origin(repository: RepositoryConfig, credentials: Credentials) -> Origin:
    """The origin behind one repository. Makes no request.

    Raises ConfigError for a scheme that is not supported, a missing SDK, or settings without sense.
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
            hint=f"install d7yfs with its extra [{extra}]: in a clone, `make install`, or pipx install '.[{extra}]'",
        ) from None
    origin: Origin = found(repository, credentials)
    return origin
