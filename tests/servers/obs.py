"""A fake of Huawei Cloud OBS, for the requests of d7yfs: it recomputes each signature (header and
URL) from the documentation's text.

See https://support.huaweicloud.com/intl/en-us/api-obs/obs_04_0010.html and obs_04_0011.html. It
shares no code with the package's signer.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from email.utils import parsedate_to_datetime

from tests.servers.bucket_server import SKEW_S, Asked, BucketServer, Identity, Refused

_SUBRESOURCES = {
    "acl", "attname", "cors", "delete", "encryption", "lifecycle", "location", "logging", "metadata", "partNumber", "policy",
    "quota", "replication", "response-content-type", "restore", "storageClass", "tagging", "uploadId", "uploads", "versionId",
    "versioning", "versions", "website", "x-obs-security-token",
}  # fmt: skip


class ObsServer(BucketServer):
    header = "x-obs-"
    lists_by_token = False

    def verify(self, asked: Asked) -> None:
        query, headers = asked.query, asked.request.headers
        if authorization := headers.get("authorization", ""):
            scheme, _, rest = authorization.partition(" ")
            assert scheme == "OBS"
            key_id, _, signature = rest.partition(":")
            date = headers["date"]
            if abs(self.clock() - parsedate_to_datetime(date).timestamp()) > SKEW_S:
                raise Refused(403, "RequestTimeTooSkewed")
            token = headers.get("x-obs-security-token", "")
            own = "".join(sorted(f"{name}:{value}\n" for name, value in headers.items() if name.startswith("x-obs-")))
            self._check(asked, date, own, signature, self._identity(key_id, token))
        elif "Signature" in query:
            if self.clock() > int(query["Expires"]):
                raise Refused(403, "AccessDenied", message="Request has expired.")
            identity = self._identity(query["AccessKeyId"], query.get("x-obs-security-token", ""))
            self._check(asked, query["Expires"], "", query["Signature"], identity)
        elif not self.public:
            raise Refused(403, "AccessDenied")

    def _check(self, asked: Asked, date: str, own: str, signature: str, identity: Identity) -> None:
        found = sorted((name, value) for name, value in asked.query.items() if name in _SUBRESOURCES)
        resource = f"/{asked.bucket}/{asked.raw_key}"
        if found:
            resource += "?" + "&".join(f"{name}={value}" if value else name for name, value in found)
        headers = asked.request.headers
        kind = f"{headers.get('content-md5', '')}\n{headers.get('content-type', '')}"
        to_sign = f"{asked.method}\n{kind}\n{date}\n{own}{resource}"
        digest = hmac.new(identity.secret.encode(), to_sign.encode(), hashlib.sha1).digest()
        if base64.b64encode(digest).decode() != signature:
            raise Refused(403, "SignatureDoesNotMatch")

    def _identity(self, key_id: str, token: str) -> Identity:
        identity = self.identities.get(key_id)
        if identity is None:
            raise Refused(403, "InvalidAccessKeyId")
        if identity.token != token:
            raise Refused(403, "ExpiredToken")
        return identity
