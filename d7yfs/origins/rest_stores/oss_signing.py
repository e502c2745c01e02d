"""OSS's signature V4 (OSS4-HMAC-SHA256), in headers or in the URL. Pure.

After the documentation, "Include V4 signatures in the Authorization header" and "Include a V4
signature in a URL"
(https://www.alibabacloud.com/help/en/oss/developer-reference/add-signatures-to-urls), and tested
against the vectors of Alibaba's SDKs. alibabacloud-oss-v2 has signers, but they cannot be imported
without its whole client (28 MiB), and its V1 leaves the token of temporary keys unsigned.

Neither the host nor `Range` and `If-*` are signed: one signature serves every range.
"""

from __future__ import annotations

import hashlib
import hmac
import time
from dataclasses import replace
from urllib.parse import quote

from d7yfs.origins.access_keys import AccessKeys, BucketRequest
from d7yfs.origins.bucket import encoded_query

_ALGORITHM = "OSS4-HMAC-SHA256"
_UNSIGNED_PAYLOAD = "UNSIGNED-PAYLOAD"


class OssSignerV4:
    """An `access_keys.BucketSigner` for one region of OSS, such as `cn-hangzhou`."""

    params = frozenset(
        {
            "x-oss-credential",
            "x-oss-date",
            "x-oss-expires",
            "x-oss-security-token",
            "x-oss-signature",
            "x-oss-signature-version",
        }
    )

    def __init__(self, region: str) -> None:
        self._region = region

    def sign_headers(self, request: BucketRequest, keys: AccessKeys, now: float) -> dict[str, str]:
        moment = _moment(now)
        signed = {**request.headers, "x-oss-content-sha256": _UNSIGNED_PAYLOAD, "x-oss-date": moment}
        if keys.token:
            signed["x-oss-security-token"] = keys.token
        signature = self._signature(replace(request, headers=signed), keys, moment)
        signed["Authorization"] = f"{_ALGORITHM} Credential={keys.key_id}/{self._scope(moment)},Signature={signature}"
        return signed

    def sign_query(self, request: BucketRequest, keys: AccessKeys, now: float, expires_at: float) -> dict[str, str]:
        moment = _moment(now)
        signed = {
            **request.query,
            "x-oss-signature-version": _ALGORITHM,
            "x-oss-date": moment,
            "x-oss-expires": str(max(1, int(expires_at - now))),
            "x-oss-credential": f"{keys.key_id}/{self._scope(moment)}",
        }
        if keys.token:
            signed["x-oss-security-token"] = keys.token
        signed["x-oss-signature"] = self._signature(replace(request, query=signed), keys, moment)
        return signed

    def _scope(self, moment: str) -> str:
        return f"{moment[:8]}/{self._region}/oss/aliyun_v4_request"

    def _signature(self, request: BucketRequest, keys: AccessKeys, moment: str) -> str:
        named = sorted((name.lower(), value) for name, value in request.headers.items())
        canonical_request = "\n".join(
            [
                request.method,
                quote(f"/{request.bucket}/{request.key}", safe="/"),
                "&".join(sorted(encoded_query(request.query).split("&"), key=lambda pair: pair.partition("="))),
                "".join(f"{name}:{value}\n" for name, value in named if _is_signed(name)),
                "",  # no additional headers
                _UNSIGNED_PAYLOAD,
            ]
        )
        digest = hashlib.sha256(canonical_request.encode()).hexdigest()
        derived = f"aliyun_v4{keys.secret}".encode()
        for part in self._scope(moment).split("/"):
            derived = hmac.digest(derived, part.encode(), "sha256")
        to_sign = "\n".join([_ALGORITHM, moment, self._scope(moment), digest])
        return hmac.digest(derived, to_sign.encode(), "sha256").hex()


def _is_signed(name: str) -> bool:
    return name.startswith("x-oss-") or name in ("content-type", "content-md5")


def _moment(now: float) -> str:
    return time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(now))
