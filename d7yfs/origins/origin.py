"""The `Origin` protocol: list, stat, checksums, and a signed GET for one object version.

The contract suite is its test. Control plane only: an origin never moves a body. What blocks runs
in worker threads, so every method may be awaited from the trio thread. None sends a mutating
request.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from d7yfs.objects import ListingPage, ObjectVersion, SecretStr, StoreIdentity

ANONYMOUS = "anonymous"
"""The `Origin.principal` of unsigned requests."""
SESSION = "session "
"""Begins the `Origin.principal` of temporary keys whose owner is not known: the next keys have
another."""


@dataclass(frozen=True, slots=True, repr=False)
class ReadRequest:
    """A GET for one object version, ready for any range of it.

    `Range` and `If-*` are never signed: the fetcher adds them. Holds secrets (signature, session
    token): no repr, never logged.
    """

    url: str
    headers: Mapping[str, str]
    """Headers the signature needs, plus the version pin (`If-Match`) where the origin has one."""
    expires_at: float
    """time.time() after which the signature must not be used any more; infinity when unsigned."""
    signature_params: frozenset[str] = frozenset()
    """Names of the query parameters that belong to the signature, not to the object's identity."""


@dataclass(frozen=True, slots=True)
class Checksums:
    """A whole object's checksums, as recorded by the provider on upload; None if absent."""

    crc32c: int | None = None
    crc64nvme: int | None = None
    md5: str | None = None
    """In lower-case hex."""


class Origin(Protocol):
    """One bucket (or container) under one set of credentials.

    MUST raise only `d7yfs.errors.D7yfsError`s: NotFound, BucketNotFound, AccessDenied,
    OriginUnavailable (transient), BadReply.
    MUST page listings in key order (UTF-8 binary) and show each key at most once.
    """

    @property
    def url(self) -> str:
        """The bucket's name without secrets: `s3://bucket` or `s3://http://host:port/bucket`."""

    @property
    def identity(self) -> StoreIdentity:
        """The store behind this origin, for cache keys and Dragonfly tasks; equal on all hosts."""

    async def list(self, prefix: str, *, delimiter: str = "/", token: str = "", page_size: int = 1000) -> ListingPage:
        """One page of the keys under `prefix` or equal to it; `delimiter=""` lists flat."""

    async def stat(self, key: str) -> ObjectVersion:
        """The current version of `key`. Raises NotFound."""

    async def read_request(self, version: ObjectVersion, *, presigned: bool, fresh: bool = False) -> ReadRequest:
        """A GET of `version`, signed in the URL alone if `presigned` (for dfdaemon), else in
        headers.

        Cached and reused until shortly before it expires. `fresh` signs anew with reloaded
        credentials (after a 403).
        """

    async def checksums(self, version: ObjectVersion) -> Checksums:
        """The recorded checksums of `version`; none when another version has taken its place.

        One request. Raises NotFound.
        """

    @property
    def credentials_expire_at(self) -> float:
        """time.time() at which the credentials in use expire unless renewed.

        Infinity for lasting ones and while none are known.
        """

    @property
    def principal(self) -> str:
        """The identity behind the credentials in use, equal after their rotation where it can be
        told. No secret. Empty where it cannot be told, and while it is not known."""

    @property
    def lasting_secret(self) -> SecretStr:
        """The secret of lasting keys, which proves them where the store cannot; empty for all other
        credentials, and while none are known."""

    def describe(self) -> Mapping[str, str]:
        """Endpoint, region and source of the credentials, without secrets, as far as known."""

    async def aclose(self) -> None:
        """Close the SDK's connections."""
