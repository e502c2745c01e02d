"""A fake of Alibaba Cloud OSS, for the requests of d7yfs: it recomputes each signature (V4 and V1,
header and URL) from the documentation's text.

See
https://www.alibabacloud.com/help/en/oss/developer-reference/recommend-to-use-signature-version-4,
https://www.alibabacloud.com/help/en/oss/developer-reference/add-signatures-to-urls and the same two
pages for V1. It shares no code with the package's signers.
"""

from __future__ import annotations

import base64
import calendar
import hashlib
import hmac
import time
from collections.abc import Mapping
from dataclasses import replace
from email.utils import parsedate_to_datetime
from urllib.parse import quote

from tests.servers.bucket_server import SKEW_S, Asked, BucketServer, Identity, Refused
from tests.servers.http11 import Answer

_V1_SUBRESOURCES = {
    "acl", "append", "bucketInfo", "continuation-token", "delete", "location", "objectMeta", "partNumber", "position",
    "resourceGroup", "response-content-type", "restore", "security-token", "stat", "symlink", "tagging", "uploadId",
    "uploads", "versionId", "versioning", "versions", "x-oss-process", "x-oss-request-payer", "x-oss-traffic-limit",
}  # fmt: skip


class OssServer(BucketServer):
    """A fake of OSS; `payer` is true if each request must agree to pay."""

    header = "x-oss-"
    lists_by_token = True
    region = "cn-test-1"
    payer = False
    versioned = True
    """OSS ignores x-oss-forbid-overwrite where versioning is enabled or suspended."""

    def put(self, key: str, body: bytes, *, storage_class: str = "", headers: Mapping[str, str] | None = None) -> None:
        own = {"x-oss-object-type": "Normal", "x-oss-hash-crc64ecma": "12345678901234567890", **(headers or {})}
        super().put(key, body, storage_class=storage_class, headers=own)

    def check_overwrite(self, asked: Asked, *, is_there: bool) -> None:
        if is_there and not self.versioned and asked.request.headers.get("x-oss-forbid-overwrite") == "true":
            raise Refused(409, "FileAlreadyExists", message="The object you specified already exists")

    def refusal(self, asked: Asked, refused: Refused) -> Answer:
        answer = super().refusal(asked, refused)
        assert isinstance(answer.body, bytes)
        if asked.method == "HEAD":
            answer.headers |= {"x-oss-err": base64.b64encode(answer.body).decode(), "Content-Length": "0"}
        return answer

    def verify(self, asked: Asked) -> None:
        query, headers = asked.query, asked.request.headers
        if self.payer and "requester" not in (query.get("x-oss-request-payer"), headers.get("x-oss-request-payer")):
            raise Refused(403, "AccessDenied")
        authorization = headers.get("authorization", "")
        if authorization.startswith("OSS4-HMAC-SHA256 "):
            self._verify_v4_header(asked, authorization)
        elif authorization.startswith("OSS "):
            self._verify_v1_header(asked, authorization)
        elif "x-oss-signature" in query:
            self._verify_v4_query(asked)
        elif "Signature" in query:
            self._verify_v1_query(asked)
        elif not self.public:
            raise Refused(403, "AccessDenied")

    def _verify_v4_header(self, asked: Asked, authorization: str) -> None:
        fields = dict(part.split("=", 1) for part in authorization.removeprefix("OSS4-HMAC-SHA256 ").split(","))
        headers = asked.request.headers
        moment = headers["x-oss-date"]
        self._check_skew(calendar.timegm(time.strptime(moment, "%Y%m%dT%H%M%SZ")))
        identity = self._identity(fields["Credential"].split("/")[0], headers.get("x-oss-security-token", ""))
        assert headers["x-oss-content-sha256"] == "UNSIGNED-PAYLOAD"
        self._check_v4(asked, fields["Credential"], moment, fields["Signature"], identity)

    def _verify_v4_query(self, asked: Asked) -> None:
        query = asked.query
        assert query["x-oss-signature-version"] == "OSS4-HMAC-SHA256"
        signed_at = calendar.timegm(time.strptime(query["x-oss-date"], "%Y%m%dT%H%M%SZ"))
        if self.clock() > signed_at + int(query["x-oss-expires"]):
            raise Refused(403, "AccessDenied", message="Request has expired.")
        identity = self._identity(query["x-oss-credential"].split("/")[0], query.get("x-oss-security-token", ""))
        pairs = [pair for pair in asked.raw_query.split("&") if not pair.startswith("x-oss-signature=")]
        unsigned = replace(asked, raw_query="&".join(pairs))
        self._check_v4(unsigned, query["x-oss-credential"], query["x-oss-date"], query["x-oss-signature"], identity)

    def _check_v4(self, asked: Asked, credential: str, moment: str, signature: str, identity: Identity) -> None:
        _, date, region, product, terminator = credential.split("/")
        if region != self.region:
            raise Refused(400, "InvalidArgument", message="Invalid signing region in Authorization header.")
        assert (product, terminator) == ("oss", "aliyun_v4_request")
        assert date == moment[:8]
        signed_headers = sorted(
            f"{name}:{value}\n"
            for name, value in asked.request.headers.items()
            if name.startswith("x-oss-") or name in ("content-type", "content-md5")
        )
        pairs = sorted(tuple(pair.split("=", 1)) for pair in asked.raw_query.split("&") if pair)
        canonical = (
            f"{asked.method}\n/{quote(asked.bucket)}/{quote(asked.key, safe='/')}\n{'&'.join('='.join(p) for p in pairs)}\n"
            f"{''.join(signed_headers)}\n\nUNSIGNED-PAYLOAD"
        )
        to_sign = f"OSS4-HMAC-SHA256\n{moment}\n{date}/{region}/oss/aliyun_v4_request\n"
        to_sign += hashlib.sha256(canonical.encode()).hexdigest()
        key = ("aliyun_v4" + identity.secret).encode()
        for step in (date, region, "oss", "aliyun_v4_request"):
            key = hmac.new(key, step.encode(), hashlib.sha256).digest()
        if hmac.new(key, to_sign.encode(), hashlib.sha256).hexdigest() != signature:
            raise Refused(403, "SignatureDoesNotMatch")

    def _verify_v1_header(self, asked: Asked, authorization: str) -> None:
        key_id, _, signature = authorization.removeprefix("OSS ").partition(":")
        headers = asked.request.headers
        self._check_skew(parsedate_to_datetime(headers["date"]).timestamp())
        identity = self._identity(key_id, headers.get("x-oss-security-token", ""))
        own = "".join(sorted(f"{name}:{value}\n" for name, value in headers.items() if name.startswith("x-oss-")))
        self._check_v1(asked, headers["date"], own, signature, identity)

    def _verify_v1_query(self, asked: Asked) -> None:
        query = asked.query
        if self.clock() > int(query["Expires"]):
            raise Refused(403, "AccessDenied", message="Request has expired.")
        identity = self._identity(query["OSSAccessKeyId"], query.get("security-token", ""))
        self._check_v1(asked, query["Expires"], "", query["Signature"], identity)

    def _check_v1(self, asked: Asked, date: str, own: str, signature: str, identity: Identity) -> None:
        found = sorted((name, value) for name, value in asked.query.items() if name in _V1_SUBRESOURCES)
        resource = f"/{asked.bucket}/{asked.key}" + (
            "?" + "&".join(f"{n}={v}" if v else n for n, v in found) if found else ""
        )
        headers = asked.request.headers
        kind = f"{headers.get('content-md5', '')}\n{headers.get('content-type', '')}"
        to_sign = f"{asked.method}\n{kind}\n{date}\n{own}{resource}"
        digest = hmac.new(identity.secret.encode(), to_sign.encode(), hashlib.sha1).digest()
        if base64.b64encode(digest).decode() != signature:
            raise Refused(403, "SignatureDoesNotMatch")

    def _check_skew(self, signed_at: float) -> None:
        if abs(self.clock() - signed_at) > SKEW_S:
            raise Refused(403, "RequestTimeTooSkewed")

    def _identity(self, key_id: str, token: str) -> Identity:
        identity = self.identities.get(key_id)
        if identity is None:
            raise Refused(403, "InvalidAccessKeyId")
        if identity.token != token:
            raise Refused(403, "InvalidSecurityToken")
        return identity
