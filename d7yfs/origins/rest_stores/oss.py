"""Alibaba Cloud OSS: `oss://bucket/prefix`.

Owns OSS's settings, endpoints, error codes, header names and choice of signature; `bucket` has the
rest.

Facts: https://www.alibabacloud.com/help/en/oss/developer-reference/listobjectsv2, .../headobject,
https://www.alibabacloud.com/help/en/oss/user-guide/regions-and-endpoints and
https://www.alibabacloud.com/help/en/oss/user-guide/http-403-error-code (codes). A refused HEAD has
its error, in base64, in `x-oss-err`.
"""

from __future__ import annotations

import base64
import binascii
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import ClassVar
from urllib.parse import urlsplit

from d7yfs.config.place import OSS_DOMAIN, OSS_HOST
from d7yfs.config.schema import Anonymous, Credentials, RepositoryConfig
from d7yfs.errors import ConfigError
from d7yfs.origins.access_keys import BucketSigner
from d7yfs.origins.bucket import Address, BucketRest, configured_endpoint
from d7yfs.origins.refusal import Vocabulary, codes
from d7yfs.origins.rest import ControlReply
from d7yfs.origins.rest_stores.hmac_sha1_signing import OSS_V1
from d7yfs.origins.rest_stores.oss_credentials import GIVE_CREDENTIALS, OssCredentials
from d7yfs.origins.rest_stores.oss_signing import OssSignerV4

_HINT = 'set region = "cn-hangzhou" or the like (OSS_REGION), or endpoint_url (OSS_ENDPOINT)'


class OssOrigin(BucketRest):
    """One bucket of OSS under one set of credentials, as an `Origin`."""

    scheme = "oss"
    service = "OSS"
    header = "x-oss-"
    give_credentials = GIVE_CREDENTIALS
    archives = frozenset({"Archive", "ColdArchive", "DeepColdArchive"})
    list_permission = "oss:ListObjects"
    read_permission = "oss:GetObject"
    words: ClassVar[Vocabulary] = Vocabulary(
        no_such_bucket=codes("NoSuchBucket"),
        no_such_key=codes("NoSuchKey NoSuchVersion SymlinkTargetNotExist MethodNotAllowed"),
        unknown_key_id=codes("InvalidAccessKeyId"),
        bad_signature=codes("SignatureDoesNotMatch"),
        expired=codes("SecurityTokenExpired InvalidSecurityToken AccessKeyIdAndSecurityTokenNotMatch"),
        skewed=codes("RequestTimeTooSkewed"),
        throttled=codes("RequestIsThrottled TooManyRequests QpsLimitExceeded RequestTimeout Busy"),
        archived=codes("InvalidObjectState"),
        replaced=codes("FileAlreadyExists"),
        barred=codes("UserDisable InDebt InDebtOverdue AbnormalBucketOwnerStatus BucketDisable"),
        elsewhere=codes("PermanentRedirect TemporaryRedirect"),
        key_denied=codes("UbsmsInvalidBid KmsServiceNotEnabled"),
        hints={
            "SecondLevelDomainForbidden": 'OSS wants the bucket in the host name: addressing_style = "virtual"',
            "NonStandardHostForbidden": "OSS does not know this host name: is the endpoint right?",
            "InvalidArgument": "does region name the region that the bucket is in?",
        },
    )

    def __init__(
        self,
        repository: RepositoryConfig,
        credentials: Credentials,
        *,
        environ: Mapping[str, str] = os.environ,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Make no request. Raises ConfigError."""
        subject = f"oss://{repository.url.bucket}"
        region = _plain_region(repository.region)
        address = (
            repository.url.endpoint_url or repository.endpoint_url or _endpoint(subject, region, repository, environ)
        )
        region = region or _region_of(address) or _plain_region(environ.get("OSS_REGION", ""))
        self._v4 = repository.signature == "v4"
        if self._v4 and not region and not isinstance(credentials, Anonymous):
            raise ConfigError(
                f"{subject}: signatures name the bucket's region, which the endpoint {address} does not tell",
                hint='set region = "cn-hangzhou" or the like, or signature = "v1"',
            )
        self._region = region
        finder = OssCredentials(subject, repository.control_proxy, environ)
        place = Address.of(address, repository.url.bucket, repository.addressing_style)
        super().__init__(repository, credentials, place, self._signer_for(region), finder, clock=clock)

    def describe(self) -> dict[str, str]:
        """The endpoint, the region and the source of the credentials, as far as known."""
        return {**super().describe(), "region": self._region or "not named"}

    def _signer_for(self, region: str) -> BucketSigner:
        return OssSignerV4(region) if self._v4 else OSS_V1

    async def _follow(self, reply: ControlReply, code: str) -> bool:
        """Sign for the new endpoint's region, too."""
        has_moved = await super()._follow(reply, code)
        if has_moved:
            self._region = _region_of(self._address.endpoint_url) or self._region
            self._signer = self._signer_for(self._region)
        return has_moved

    def _with_error(self, reply: ControlReply) -> ControlReply:
        told = reply.headers.get("x-oss-err", "")
        if reply.body or not told:
            return reply
        try:
            return replace(reply, body=base64.b64decode(told))
        except binascii.Error:
            return reply


def _endpoint(subject: str, region: str, repository: RepositoryConfig, environ: Mapping[str, str]) -> str:
    """The region's public or internal endpoint, else that of OSS_ENDPOINT or OSS_REGION.

    Raises ConfigError where nothing names the endpoint.
    """
    if not region and (named := configured_endpoint(subject, "OSS_ENDPOINT", environ, hint=_HINT)):
        return named
    region = region or _plain_region(environ.get("OSS_REGION", ""))
    if not region:
        raise ConfigError(f"{subject}: in which region is the bucket?", hint=_HINT)
    internal = "-internal" if repository.internal_endpoint else ""
    return f"https://oss-{region}{internal}.{repository.endpoint_suffix or OSS_DOMAIN}"


def _plain_region(text: str) -> str:
    """The region without prefix: `oss-cn-hangzhou` and `cn-hangzhou` are both in use."""
    return text.removeprefix("oss-")


def _region_of(endpoint_url: str) -> str:
    """The region that an endpoint of OSS's names; empty for others and for the accelerating one."""
    named = OSS_HOST.fullmatch(urlsplit(endpoint_url).hostname or "")
    return "" if named is None or named["region"].startswith("accelerate") else named["region"]
