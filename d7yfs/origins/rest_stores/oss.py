"""Alibaba Cloud OSS: `oss://bucket/prefix`.

Owns what is OSS's own: settings, error codes, header names and which signature. The rest is `origin`'s; keys come from
`oss_credentials`, addresses from `oss_endpoint`. Built by the registry in `d7yfs.origins`.

Facts: https://www.alibabacloud.com/help/en/oss/developer-reference/listobjectsv2, .../headobject and
https://www.alibabacloud.com/help/en/oss/user-guide/http-403-error-code (codes). A refused HEAD has its error, in base64, in `x-oss-err`.
"""

from __future__ import annotations

import base64
import binascii
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import ClassVar, Self

from d7yfs.checksum import plain_md5
from d7yfs.config.schema import Anonymous, Credentials, RepositoryConfig
from d7yfs.errors import ConfigError
from d7yfs.origins.refusal import Vocabulary
from d7yfs.origins.renewal import Renewal
from d7yfs.origins.rest import Reply, Rest
from d7yfs.origins.rest_stores.hmac_sha1_signing import OSS_V1
from d7yfs.origins.rest_stores.origin import Address, BucketRest, Signer
from d7yfs.origins.rest_stores.oss_credentials import OssCredentials
from d7yfs.origins.rest_stores.oss_endpoint import endpoint, plain_region, region_of
from d7yfs.origins.rest_stores.oss_signing import SignerV4
from d7yfs.origins.xml_listing import XmlListing
from d7yfs.tls import ssl_context


class OssOrigin(BucketRest):
    """See `origin.BucketRest` and `origins.origin.Origin`."""

    scheme = "oss"
    service = "OSS"
    header = "x-oss-"
    archives = frozenset({"Archive", "ColdArchive", "DeepColdArchive"})
    list_permission = "oss:ListObjects"
    read_permission = "oss:GetObject"
    words: ClassVar[Vocabulary] = Vocabulary(
        no_such_bucket=frozenset({"NoSuchBucket"}),
        no_such_key=frozenset({"NoSuchKey", "NoSuchVersion", "SymlinkTargetNotExist", "MethodNotAllowed"}),
        unknown_key_id=frozenset({"InvalidAccessKeyId"}),
        bad_signature=frozenset({"SignatureDoesNotMatch"}),
        expired=frozenset({"SecurityTokenExpired", "InvalidSecurityToken", "AccessKeyIdAndSecurityTokenNotMatch"}),
        skewed=frozenset({"RequestTimeTooSkewed"}),
        throttled=frozenset({"RequestIsThrottled", "TooManyRequests", "QpsLimitExceeded", "RequestTimeout", "Busy"}),
        archived=frozenset({"InvalidObjectState"}),
        barred=frozenset({"UserDisable", "InDebt", "InDebtOverdue", "AbnormalBucketOwnerStatus", "BucketDisable"}),
        elsewhere=frozenset({"PermanentRedirect", "TemporaryRedirect"}),
        key_denied=frozenset({"UbsmsInvalidBid", "KmsServiceNotEnabled"}),
        hints={
            "SecondLevelDomainForbidden": 'OSS wants the bucket in the host name: addressing_style = "virtual"',
            "NonStandardHostForbidden": "OSS does not know this host name: is the endpoint right?",
            "InvalidArgument": "does region name the region that the bucket is in?",
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
        internal_endpoint: bool = False,
        addressing_style: str = "auto",
        signature: str = "v4",
        versioned: bool = False,
        requester_pays: bool = False,
        verify_tls: bool = True,
        ca_bundle: Path | None = None,
        control_proxy: str = "",
        environ: Mapping[str, str] = os.environ,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """The parameters are the options of the same names. No request is made. Raises ConfigError."""
        subject = f"oss://{bucket}"
        region = plain_region(region)
        address = endpoint(
            subject,
            configured=endpoint_url,
            region=region,
            domain=endpoint_suffix,
            internal=internal_endpoint,
            environ=environ,
        )
        region = region or region_of(address) or plain_region(environ.get("OSS_REGION", ""))
        if signature == "v4" and not region and not isinstance(credentials, Anonymous):
            raise ConfigError(
                f"{subject}: signatures name the bucket's region, which the endpoint {address} does not tell",
                hint='set region = "cn-hangzhou" or the like, or signature = "v1"',
            )
        self._v4 = signature == "v4"
        self._region = region
        source = OssCredentials(credentials, subject=subject, proxy=control_proxy, environ=environ)
        super().__init__(
            Address.of(address, bucket, addressing_style),
            self._signer_for(region),
            Renewal(source.load, name=f"{subject}: the credentials", clock=clock),
            Rest(ssl_context(ca_bundle, verify=verify_tls), proxy=control_proxy, clock=clock),
            credentials=credentials.describe(),
            shown_endpoint=endpoint_url,
            versioned=versioned,
            requester_pays=requester_pays,
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
            internal_endpoint=repository.internal_endpoint,
            addressing_style=repository.addressing_style,
            signature=repository.signature,
            versioned=repository.versioned,
            requester_pays=repository.requester_pays,
            verify_tls=repository.verify_tls,
            ca_bundle=repository.ca_bundle,
            control_proxy=repository.control_proxy,
        )

    def describe(self) -> dict[str, str]:
        """Endpoint, region and where the credentials were found, as far as it has looked."""
        return {**super().describe(), "region": self._region or "not named"}

    def _signer_for(self, region: str) -> Signer:
        return SignerV4(region) if self._v4 else OSS_V1

    def _listing_query(self, token: str) -> dict[str, str]:
        return {"list-type": "2", **({"continuation-token": token} if token else {})}

    def _next_token(self, page: XmlListing) -> str:
        return page.next_token

    def _moved(self, address: Address) -> None:
        self._region = region_of(address.endpoint_url) or self._region
        self._signer = self._signer_for(self._region)

    def _md5(self, headers: Mapping[str, str]) -> str | None:
        """The ETag of a simple upload is its MD5; of encrypted ones it is said of no more than AES256."""
        if headers.get("x-oss-object-type", "Normal") != "Normal":
            return None
        if headers.get("x-oss-server-side-encryption", "AES256") != "AES256":
            return None
        return plain_md5(headers.get("etag", "").lower())

    def _told(self, reply: Reply) -> Reply:
        told = reply.headers.get("x-oss-err", "")
        if reply.body or not told:
            return reply
        try:
            return replace(reply, body=base64.b64decode(told))
        except binascii.Error:
            return reply
