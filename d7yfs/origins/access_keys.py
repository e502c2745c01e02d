"""The access keys of S3, OSS and OBS at one moment, and the two things that a provider adds to them:
where they are found, and how they sign a request.

`renewal` keeps them valid.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True, repr=False)
class AccessKeys:
    """A key pair, with a token when it is temporary. Holds secrets: no repr."""

    key_id: str
    secret: str
    token: str = ""
    expires_at: float = math.inf
    """time.time() at which they expire."""
    check_again_s: float = math.inf
    """Seconds until their source is read again: a file may have changed."""
    source: str = ""
    """Their source, in words."""
    role: str = ""
    """The role that they are for, of which there are other keys later; empty where unknown."""


def from_environment(environ: Mapping[str, str], names: Iterable[tuple[str, str, str]]) -> AccessKeys | None:
    """The keys in the first triple of variables (key id, secret, token) whose first two are set."""
    for key_id, secret, token in names:
        if environ.get(key_id) and environ.get(secret):
            source = f"environment variables ({key_id}, …)"
            return AccessKeys(environ[key_id], environ[secret], environ.get(token, ""), source=source)
    return None


class KeyFinder(Protocol):
    """The sources of a provider's access keys, beside those that the configuration holds."""

    async def find(self, profile: str, held: AccessKeys | None) -> AccessKeys | None:
        """The keys as they are now: those of `profile`, or the chain's (empty); None without any.

        `held` are those of the last time, None to begin anew. Raises D7yfsErrors.
        """

    def places(self) -> list[str]:
        """The places that `find` looks at, each with what it lacks (`d7yfs.origins.places`)."""


@dataclass(frozen=True, slots=True)
class BucketRequest:
    """A request to a bucket before it is signed; an empty `key` is the bucket itself."""

    method: str
    bucket: str
    key: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes = b""


class BucketSigner(Protocol):
    """The signature of a provider. Never blocks; `now` and `expires_at` are time.time()."""

    @property
    def params(self) -> frozenset[str]:
        """The names that `sign_query` may add."""

    def sign_headers(self, request: BucketRequest, keys: AccessKeys, now: float) -> dict[str, str]:
        """The headers of `request`, and those that sign it for 15 minutes."""

    def sign_query(self, request: BucketRequest, keys: AccessKeys, now: float, expires_at: float) -> dict[str, str]:
        """The query of `request` (a GET without headers), and the parameters that sign it."""
