"""The signatures of OBS and of OSS's V1: HMAC-SHA1, in headers or in the URL. Pure.

After OSS's "Include a V1 signature in the header" and "… in a URL"
(https://www.alibabacloud.com/help/en/oss/developer-reference/include-signatures-in-the-authorization-header)
and OBS's "Authentication of Signature in a Header" and "… in a URL"
(https://support.huaweicloud.com/intl/en-us/api-obs/obs_04_0010.html and obs_04_0011.html).

The providers' SDKs are not used for it. `oss_signing` says why for OSS. esdk-obs-python is
published as source alone, brings a whole client and pycryptodome for one HMAC, and signs URLs by
the wall clock.

Neither the host nor `Range` and `If-*` are signed: one signature serves every range.
"""

from __future__ import annotations

import base64
import hmac
from dataclasses import dataclass, replace
from email.utils import formatdate
from urllib.parse import quote

from d7yfs.origins.access_keys import AccessKeys, BucketRequest


@dataclass(frozen=True)
class HmacSha1Signer:
    """An `access_keys.BucketSigner` by HMAC-SHA1."""

    scheme: str
    """The first word of the Authorization."""
    header: str
    """The prefix of the provider's header names."""
    key_id_param: str
    token_param: str
    subresources: frozenset[str]
    """The parameters that d7yfs sends and the provider signs."""
    quotes_keys: bool
    """True if it signs a key as it stands in the URL."""

    @property
    def params(self) -> frozenset[str]:
        """The names that `sign_query` may add."""
        return frozenset({self.key_id_param, "Expires", "Signature", self.token_param})

    def sign_headers(self, request: BucketRequest, keys: AccessKeys, now: float) -> dict[str, str]:
        signed = {"Date": formatdate(now, usegmt=True), **request.headers}
        if keys.token:
            signed[f"{self.header}security-token"] = keys.token
        signature = self._signature(replace(request, headers=signed), signed["Date"], keys)
        return {**signed, "Authorization": f"{self.scheme} {keys.key_id}:{signature}"}

    def sign_query(
        self,
        request: BucketRequest,
        keys: AccessKeys,
        now: float,  # noqa: ARG002 - this signature names only its end
        expires_at: float,
    ) -> dict[str, str]:
        expires = str(int(expires_at))
        signed = {**request.query, self.key_id_param: keys.key_id, "Expires": expires}
        if keys.token:
            signed[self.token_param] = keys.token
        return {**signed, "Signature": self._signature(replace(request, query=signed), expires, keys)}

    def _signature(self, request: BucketRequest, date: str, keys: AccessKeys) -> str:
        named = {name.lower(): value for name, value in request.headers.items()}
        own = "".join(f"{name}:{value}\n" for name, value in sorted(named.items()) if name.startswith(self.header))
        pairs = sorted((name, value) for name, value in request.query.items() if name in self.subresources)
        subresources = "&".join(f"{name}={value}" if value else name for name, value in pairs)
        resource = f"/{request.bucket}/{quote(request.key, safe='/') if self.quotes_keys else request.key}"
        lines = [
            request.method,
            named.get("content-md5", ""),
            named.get("content-type", ""),
            date,
            own + resource + (f"?{subresources}" if subresources else ""),
        ]
        return base64.b64encode(hmac.digest(keys.secret.encode(), "\n".join(lines).encode(), "sha1")).decode()


OSS_V1 = HmacSha1Signer(
    "OSS",
    header="x-oss-",
    key_id_param="OSSAccessKeyId",
    token_param="security-token",  # noqa: S106 - a name
    subresources=frozenset({"continuation-token", "security-token", "versionId", "x-oss-request-payer"}),
    quotes_keys=False,
)
OBS = HmacSha1Signer(
    "OBS",
    header="x-obs-",
    key_id_param="AccessKeyId",
    token_param="x-obs-security-token",  # noqa: S106 - a name
    subresources=frozenset({"versionId", "x-obs-security-token"}),
    quotes_keys=True,
)
