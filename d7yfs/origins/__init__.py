"""Which provider serves which URL scheme. The registry of origins: a new provider is one file here and one line below.

A provider's module is imported only when its scheme is used: boto3 and one client cost 40 MiB and 0.25 s.
"""

from __future__ import annotations

from collections.abc import Callable

from d7yfs.config.schema import Credentials, RepositoryConfig
from d7yfs.errors import ConfigError
from d7yfs.origins.origin import Origin


def open_origin(repository: RepositoryConfig, credentials: Credentials) -> Origin:
    """The origin behind one repository. Makes no request. Raises ConfigError for a scheme that is not supported."""
    opener = _OPENERS.get(repository.url.scheme)
    if opener is None:
        supported = ", ".join(f"{scheme}://" for scheme in sorted(_OPENERS))
        raise ConfigError(
            f"{repository.url}: {repository.url.scheme}:// is not supported", hint=f"supported: {supported}"
        )
    return opener(repository, credentials)


def _open_s3(repository: RepositoryConfig, credentials: Credentials) -> Origin:
    from d7yfs.origins.s3 import S3Origin

    return S3Origin.open(repository, credentials)


_OPENERS: dict[str, Callable[[RepositoryConfig, Credentials], Origin]] = {"s3": _open_s3}
