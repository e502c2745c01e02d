"""Origins of a repository whose options a test chooses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from d7yfs.config.schema import Credentials, RepositoryConfig
from d7yfs.config.url import RepositoryUrl

T = TypeVar("T")

_KEYWORDS = frozenset({"clock", "environ", "metadata_url", "iam_endpoint_url", "identity"})
"""Keywords of the origins' classes; the other options are the repository's."""


def opened_at(kind: Callable[..., T], url: str | RepositoryUrl, credentials: Credentials, **options: Any) -> T:
    """An origin of that class for the repository at `url`."""
    own = {name: options.pop(name) for name in _KEYWORDS & options.keys()}
    address = RepositoryUrl.parse(url) if isinstance(url, str) else url
    return kind(RepositoryConfig(url=address, **options), credentials, **own)
