"""Huawei Cloud OBS: `obs://bucket/prefix`.

Owns OBS's settings, endpoints, error codes and header names; `bucket` has the rest.

Facts: https://support.huaweicloud.com/intl/en-us/api-obs/obs_04_0022.html (listing),
obs_04_0084.html (HEAD) and obs_04_0115.html (codes). Listings go by marker: some private clouds
lack those by token.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from typing import ClassVar

from d7yfs.config.place import OBS_DOMAIN, OBS_HOST
from d7yfs.config.schema import Anonymous, Credentials, ProviderChain, RepositoryConfig, StaticKeys
from d7yfs.errors import ConfigError
from d7yfs.origins.bucket import Address, BucketRest, configured_endpoint
from d7yfs.origins.refusal import Vocabulary, codes
from d7yfs.origins.rest_stores.hmac_sha1_signing import OBS
from d7yfs.origins.rest_stores.obs_credentials import GIVE_CREDENTIALS, METADATA_URL, ObsCredentials
from d7yfs.origins.xml_listing import XmlListing


class ObsOrigin(BucketRest):
    """One bucket of OBS under one set of credentials, as an `Origin`."""

    scheme = "obs"
    service = "OBS"
    header = "x-obs-"
    kinds = (Anonymous, StaticKeys, ProviderChain)
    give_credentials = GIVE_CREDENTIALS
    archives = frozenset({"COLD", "DEEP_ARCHIVE"})
    list_permission = "obs:bucket:ListBucket"
    read_permission = "obs:object:GetObject"
    words: ClassVar[Vocabulary] = Vocabulary(
        no_such_bucket=codes("NoSuchBucket"),
        no_such_key=codes("NoSuchKey NoSuchVersion MethodNotAllowed"),
        unknown_key_id=codes("InvalidAccessKeyId"),
        bad_signature=codes("SignatureDoesNotMatch"),
        expired=codes("ExpiredToken InvalidToken InvalidSecurity"),
        skewed=codes("RequestTimeTooSkewed"),
        throttled=codes("SlowDown ServiceUnavailable TooManyRequests RequestTimeout"),
        archived=codes("InvalidObjectState"),
        barred=codes("AccountProblem AllAccessDisabled InArrearOrInsufficientBalance NotSignedUp"),
        elsewhere=codes("PermanentRedirect TemporaryRedirect"),
        hints={
            "VirtualHostDomainRequired": 'OBS wants the bucket in the host name: addressing_style = "virtual"',
            "BadDomainName": "OBS does not know this host name: is the endpoint right?",
        },
    )

    def __init__(
        self,
        repository: RepositoryConfig,
        credentials: Credentials,
        *,
        environ: Mapping[str, str] = os.environ,
        metadata_url: str = METADATA_URL,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Make no request. Raises ConfigError.

        `metadata_url` is the instance's metadata service, which has its agency's keys.
        """
        subject = f"obs://{repository.url.bucket}"
        self._configured_region = region = repository.region
        address = repository.url.endpoint_url or repository.endpoint_url
        address = address or _endpoint(subject, region, repository.endpoint_suffix, environ)
        finder = ObsCredentials(subject, environ, metadata_url, clock)
        place = Address.of(address, repository.url.bucket, repository.addressing_style)
        super().__init__(repository, credentials, place, OBS, finder, clock=clock)

    def describe(self) -> dict[str, str]:
        """The endpoint, the region and the source of the credentials, as far as known."""
        named = OBS_HOST.fullmatch(self._address.host)
        return {**super().describe(), "region": (named and named["region"]) or self._configured_region or "not named"}

    def _listing_query(self, token: str) -> dict[str, str]:
        return {"marker": token} if token else {}

    def _next_token(self, page: XmlListing) -> str:
        """The next marker, else the last entry: prefixes and keys of a page are in one order."""
        last = [page.objects[-1].key] if page.objects else []
        return page.next_marker or max([*last, *page.prefixes[-1:]], key=str.encode, default="")


def _endpoint(subject: str, region: str, domain: str, environ: Mapping[str, str]) -> str:
    """The region's endpoint, else that of OBS_ENDPOINT. Raises ConfigError without both."""
    if region:
        return f"https://obs.{region}.{domain or OBS_DOMAIN}"
    hint = 'set region = "cn-north-4" or the like, or endpoint_url (OBS_ENDPOINT)'
    named = configured_endpoint(subject, "OBS_ENDPOINT", environ, hint=hint)
    if not named:
        raise ConfigError(f"{subject}: in which region is the bucket?", hint=hint)
    return named
