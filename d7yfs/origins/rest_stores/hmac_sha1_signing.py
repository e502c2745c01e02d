"""The signature that OSS calls V1 and OBS has as its own: HMAC-SHA1 over a few lines, in headers and in the URL. Pure; see `origin`.

After OSS's "Include a V1 signature in the header" and "… in a URL"
(https://www.alibabacloud.com/help/en/oss/developer-reference/include-signatures-in-the-authorization-header) and OBS's "Authentication of
Signature in a Header" and "… in a URL" (https://support.huaweicloud.com/intl/en-us/api-obs/obs_04_0010.html and obs_04_0011.html). The
providers' SDKs are not used for it: `oss_signing` says why for OSS; esdk-obs-python is published as source alone, brings a whole client
and pycryptodome for one HMAC, and signs URLs by the wall clock.

Neither the host nor `Range` and `If-*` are signed: one signature serves every range.
"""

from __future__ import annotations

import base64
import hmac
from collections.abc import Mapping
from email.utils import formatdate
from urllib.parse import quote

from d7yfs.origins.rest_stores.access_keys import AccessKeys


class HmacSha1Signer:
    """See `origin.Signer`. `scheme` begins the Authorization, `header` the provider's header names; `subresources` are those
    parameters that d7yfs sends and the provider signs, `quotes_keys` whether it signs a key as it stands in the URL."""

    def __init__(
        self,
        scheme: str,
        *,
        header: str,
        key_id_param: str,
        token_param: str,
        subresources: frozenset[str],
        quotes_keys: bool,
    ) -> None:
        self.params = frozenset({key_id_param, "Expires", "Signature", token_param})
        self._scheme = scheme
        self._header = header
        self._key_id_param = key_id_param
        self._token_param = token_param
        self._subresources = subresources
        self._quotes_keys = quotes_keys

    def in_headers(
        self,
        method: str,
        bucket: str,
        key: str,
        query: Mapping[str, str],
        headers: Mapping[str, str],
        keys: AccessKeys,
        now: float,
    ) -> dict[str, str]:
        """`headers` with the signature, which is accepted for 15 minutes."""
        signed = {"Date": formatdate(now, usegmt=True), **headers}
        if keys.token:
            signed[f"{self._header}security-token"] = keys.token
        signature = self._signature(method, bucket, key, query, signed, signed["Date"], keys)
        return {**signed, "Authorization": f"{self._scheme} {keys.key_id}:{signature}"}

    def in_query(
        self,
        bucket: str,
        key: str,
        query: Mapping[str, str],
        keys: AccessKeys,
        now: float,  # noqa: ARG002 - this signature names its end alone
        expires_at: float,
    ) -> dict[str, str]:
        """`query` with the signature of a GET without headers."""
        expires = str(int(expires_at))
        signed = {**query, self._key_id_param: keys.key_id, "Expires": expires}
        if keys.token:
            signed[self._token_param] = keys.token
        return {**signed, "Signature": self._signature("GET", bucket, key, signed, {}, expires, keys)}

    def _signature(
        self,
        method: str,
        bucket: str,
        key: str,
        query: Mapping[str, str],
        headers: Mapping[str, str],
        date: str,
        keys: AccessKeys,
    ) -> str:
        named = {name.lower(): value for name, value in headers.items()}
        own = "".join(f"{name}:{value}\n" for name, value in sorted(named.items()) if name.startswith(self._header))
        pairs = sorted((name, value) for name, value in query.items() if name in self._subresources)
        subresources = "&".join(f"{name}={value}" if value else name for name, value in pairs)
        resource = f"/{bucket}/{quote(key, safe='/') if self._quotes_keys else key}"
        lines = [
            method,
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
