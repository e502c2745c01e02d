"""Huawei Cloud OBS: `obs://bucket/prefix`.

Owns what is OBS's own: settings, error codes and header names. The rest is `origin`'s; keys come from `obs_credentials`, signatures
from `hmac_sha1_signing`. Built by the registry in `d7yfs.origins`.

Facts: https://support.huaweicloud.com/intl/en-us/api-obs/obs_04_0022.html (listing), obs_04_0084.html (HEAD) and obs_04_0115.html (codes).
Listings are asked for by marker: the newer ones by token are not in every private cloud.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import ClassVar, Self

from d7yfs.checksum import plain_md5
from d7yfs.config.place import OBS_DOMAIN, OBS_HOST
from d7yfs.config.schema import Credentials, RepositoryConfig
from d7yfs.config.url import normal_endpoint
from d7yfs.errors import ConfigError
from d7yfs.origins.refusal import Vocabulary
from d7yfs.origins.renewal import Renewal
from d7yfs.origins.rest import Rest
from d7yfs.origins.rest_stores.hmac_sha1_signing import OBS
from d7yfs.origins.rest_stores.obs_credentials import METADATA_URL, ObsCredentials
from d7yfs.origins.rest_stores.origin import Address, BucketRest
from d7yfs.origins.xml_listing import XmlListing
from d7yfs.tls import ssl_context


class ObsOrigin(BucketRest):
    """See `origin.BucketRest` and `origins.origin.Origin`."""

    scheme = "obs"
    service = "OBS"
    header = "x-obs-"
    archives = frozenset({"COLD", "DEEP_ARCHIVE"})
    list_permission = "obs:bucket:ListBucket"
    read_permission = "obs:object:GetObject"
    words: ClassVar[Vocabulary] = Vocabulary(
        no_such_bucket=frozenset({"NoSuchBucket"}),
        no_such_key=frozenset({"NoSuchKey", "NoSuchVersion", "MethodNotAllowed"}),
        unknown_key_id=frozenset({"InvalidAccessKeyId"}),
        bad_signature=frozenset({"SignatureDoesNotMatch"}),
        expired=frozenset({"ExpiredToken", "InvalidToken", "InvalidSecurity"}),
        skewed=frozenset({"RequestTimeTooSkewed"}),
        throttled=frozenset({"SlowDown", "ServiceUnavailable", "TooManyRequests", "RequestTimeout"}),
        archived=frozenset({"InvalidObjectState"}),
        barred=frozenset({"AccountProblem", "AllAccessDisabled", "InArrearOrInsufficientBalance", "NotSignedUp"}),
        elsewhere=frozenset({"PermanentRedirect", "TemporaryRedirect"}),
        hints={
            "VirtualHostDomainRequired": 'OBS wants the bucket in the host name: addressing_style = "virtual"',
            "BadDomainName": "OBS does not know this host name: is the endpoint right?",
        },
    )

    def __init__(
        self,
        bucket: str,
        credentials: Credentials,
        *,
        endpoint_url: str = "",
        endpoint_suffix: str = "",
        region: str = "",
        addressing_style: str = "auto",
        versioned: bool = False,
        verify_tls: bool = True,
        ca_bundle: Path | None = None,
        control_proxy: str = "",
        environ: Mapping[str, str] = os.environ,
        metadata_url: str = METADATA_URL,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """The parameters are the options of the same names; `metadata_url` is where the instance's agency is asked for.

        No request is made. Raises ConfigError.
        """
        subject = f"obs://{bucket}"
        self._configured_region = region
        address = endpoint_url or _endpoint(subject, region, endpoint_suffix, environ)
        source = ObsCredentials(credentials, subject=subject, environ=environ, metadata_url=metadata_url, clock=clock)
        super().__init__(
            Address.of(address, bucket, addressing_style),
            OBS,
            Renewal(source.load, name=f"{subject}: the credentials", clock=clock),
            Rest(ssl_context(ca_bundle, verify=verify_tls), proxy=control_proxy, clock=clock),
            credentials=credentials.describe(),
            shown_endpoint=endpoint_url,
            versioned=versioned,
            clock=clock,
        )

    @classmethod
    def open(cls, repository: RepositoryConfig, credentials: Credentials) -> Self:
        """What the registry calls. Raises ConfigError."""
        return cls(
            repository.url.bucket,
            credentials,
            endpoint_url=repository.url.endpoint_url or repository.endpoint_url,
            endpoint_suffix=repository.endpoint_suffix,
            region=repository.region,
            addressing_style=repository.addressing_style,
            versioned=repository.versioned,
            verify_tls=repository.verify_tls,
            ca_bundle=repository.ca_bundle,
            control_proxy=repository.control_proxy,
        )

    def describe(self) -> dict[str, str]:
        """Endpoint, region and where the credentials were found, as far as it has looked."""
        named = OBS_HOST.fullmatch(self._address.host)
        return {**super().describe(), "region": (named and named["region"]) or self._configured_region or "not named"}

    def _listing_query(self, token: str) -> dict[str, str]:
        return {"marker": token} if token else {}

    def _next_token(self, page: XmlListing) -> str:
        """OBS names the next marker; should it not, it is the last entry (of one page, prefixes and keys are in one order)."""
        last = [page.objects[-1].key] if page.objects else []
        return page.next_marker or max([*last, *page.prefixes[-1:]], key=str.encode, default="")

    def _moved(self, address: Address) -> None:
        """OBS signs for no region."""

    def _md5(self, headers: Mapping[str, str]) -> str | None:
        """The ETag of a simple upload is its MD5, unless keys of KMS or the customer's encrypt the object."""
        if headers.get("x-obs-object-type", "Normal") != "Normal":
            return None
        if headers.get("x-obs-server-side-encryption", "AES256") != "AES256":
            return None
        if "x-obs-server-side-encryption-customer-algorithm" in headers:
            return None
        return plain_md5(headers.get("etag", "").lower())


def _endpoint(subject: str, region: str, domain: str, environ: Mapping[str, str]) -> str:
    """The region's endpoint, else what OBS_ENDPOINT names. Raises ConfigError where nothing says it."""
    if region:
        return f"https://obs.{region}.{domain or OBS_DOMAIN}"
    hint = 'set region = "cn-north-4" or the like, or endpoint_url (OBS_ENDPOINT)'
    named = environ.get("OBS_ENDPOINT", "")
    if not named:
        raise ConfigError(f"{subject}: in which region is the bucket?", hint=hint)
    try:
        return normal_endpoint(named if "://" in named else f"https://{named}")
    except ValueError as error:
        raise ConfigError(f"{subject}: OBS_ENDPOINT {error}", hint=hint) from None
