"""An S3 store that recomputes every signature, and plays the features that SeaweedFS lacks.

It has regions, requester pays, versions, objects under KMS keys and under a customer's own keys. It
refuses each with the status and message of AWS. It has one bucket, and refuses requests without a
signature. botocore's signer recomputes the signature from the request as received. A reply to HEAD
has no body.

Sources: https://docs.aws.amazon.com/AmazonS3/latest/API/ErrorResponses.html and the pages named at
each refusal's test.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from urllib.parse import parse_qs, urlsplit

from botocore.auth import S3SigV4Auth, S3SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.credentials import ReadOnlyCredentials

from tests.servers.http11 import Answer, Request
from tests.servers.s3_faults import S3Faults

KEY_ID = "AKIAREADER"
SECRET = "reader-s3cr3t"
BUCKET = "models"
REGION = "eu-west-3"
SKEW_S = 900
_KMS_KEY_ID = "x-amz-server-side-encryption-aws-kms-key-id"


class VerifyingS3(S3Faults):
    """A fake S3 store; `objects` are by key, without the bucket."""

    def __init__(self, objects: Mapping[str, bytes], *, ssl_context: ssl.SSLContext | None = None) -> None:
        super().__init__({f"{BUCKET}/{key}": body for key, body in objects.items()})
        self._ssl_context = ssl_context
        self.region = REGION
        self.requester_pays = False
        self.versioned = False
        self.kms_keys: dict[str, str] = {}
        """ARNs of KMS keys, by object key."""
        self.kms_denies = False
        self.kms_state = ""
        """An error code of S3 about the KMS key, such as `KMS.DisabledException`."""
        self.customer_keys: set[str] = set()
        """Objects under a key of the customer's own."""
        self.refused: list[str] = []
        """The code of each refusal."""
        self._versions: dict[tuple[str, str], bytes] = {}
        self._current: dict[str, str] = {}

    def store(self, key: str, body: bytes) -> None:
        """Put `key`. A versioned bucket keeps the version before, by its id."""
        name = f"{BUCKET}/{key}"
        self.put(name, body)
        if self.versioned:
            self._current[name] = f"v/{len(self._versions)}+"
            self._versions[name, self._current[name]] = body

    def etag(self, key: str) -> str:
        """The object's ETag. Under KMS it is not the MD5, but looks like one."""
        plain = super().etag(key)
        return f'"{plain.strip(chr(34))[::-1]}"' if key.removeprefix(f"{BUCKET}/") in self.kms_keys else plain

    async def answer(self, request: Request) -> Answer:
        refusal = self._refusal(request)
        if refusal is not None:
            return (
                Answer(refusal.status, {**refusal.headers, "Content-Length": "0"})
                if request.method == "HEAD"
                else refusal
            )
        query = parse_qs(urlsplit(request.target).query)
        key = request.key
        if version_id := query.get("versionId", [""])[0]:
            body = self._versions.get((key, version_id))
            if body is None:
                return self._refuse(404, "NoSuchVersion", "The specified version does not exist.")
            current, self.objects[key] = self.objects.get(key), body
            try:
                answer = await super().answer(request)
            finally:
                if current is None:
                    del self.objects[key]
                else:
                    self.objects[key] = current
        else:
            answer = await super().answer(request)
        if answer.status in (200, 206) and key in self.objects:
            headers = dict(answer.headers)
            if arn := self.kms_keys.get(key.removeprefix(f"{BUCKET}/")):
                headers |= {"x-amz-server-side-encryption": "aws:kms", _KMS_KEY_ID: arn}
            if shown := version_id or self._current.get(key, "null" if self.versioned else ""):
                headers["x-amz-version-id"] = shown
            answer = replace(answer, headers=headers)
        return answer

    def _refusal(self, request: Request) -> Answer | None:
        signed = self._signed(request)
        key = request.key.removeprefix(f"{BUCKET}/")
        if signed is None:
            if key in self.kms_keys:
                return self._refuse(400, "InvalidArgument", f"{_KMS_REQUESTS} require AWS Signature Version 4.")
            return self._refuse(403, "AccessDenied", "Access Denied")
        if isinstance(signed, Answer):
            return signed
        if self.requester_pays and signed.get("x-amz-request-payer") != "requester":
            return self._refuse(403, "AccessDenied", "Access Denied")
        if key in self.customer_keys:
            words = "The object was stored using a form of Server Side Encryption. The correct parameters must be provided to retrieve it."
            return self._refuse(400, "InvalidRequest", words)
        if key not in self.kms_keys or (request.method == "HEAD" and "x-amz-checksum-mode" not in request.headers):
            return None
        if self._ssl_context is None:
            return self._refuse(400, "InvalidArgument", f"{_KMS_REQUESTS} must be made over a secure connection.")
        if self.kms_state:
            return self._refuse(400, self.kms_state, f"{self.kms_keys[key]} is disabled.")
        if self.kms_denies:
            return self._refuse(
                403,
                "AccessDenied",
                "User: arn:aws:sts::123456789012:assumed-role/reader/i-0 is not authorized to perform: kms:Decrypt on resource: "
                f"{self.kms_keys[key]} because no identity-based policy allows the kms:Decrypt action",
            )
        return None

    def _signed(self, request: Request) -> dict[str, str] | Answer | None:
        """The headers and parameters that the signature covers; a refusal if it is wrong; None
        without a signature.
        """
        query = {name: values[0] for name, values in parse_qs(urlsplit(request.target).query).items()}
        in_query = "X-Amz-Signature" in query
        if in_query:
            scope, names, signature = (query[f"X-Amz-{name}"] for name in ("Credential", "SignedHeaders", "Signature"))
            stamp, life_s = query["X-Amz-Date"], float(query["X-Amz-Expires"])
            path, _, parameters = request.target.partition("?")
            target = (
                f"{path}?{'&'.join(each for each in parameters.split('&') if not each.startswith('X-Amz-Signature='))}"
            )
        elif "authorization" in request.headers:
            _, _, parameters = request.headers["authorization"].partition(" ")
            scope, names, signature = (each.strip().partition("=")[2] for each in parameters.split(","))
            stamp, life_s, target = request.headers["x-amz-date"], float(SKEW_S), request.target
        else:
            return None
        key_id, _, region, service, _ = scope.split("/")
        if key_id != KEY_ID:
            return self._refuse(
                403, "InvalidAccessKeyId", "The AWS Access Key Id you provided does not exist in our records."
            )
        if region != self.region:
            code = "AuthorizationQueryParametersError" if in_query else "AuthorizationHeaderMalformed"
            return self._refuse(400, code, f"expecting '{self.region}'", f"<Region>{self.region}</Region>")
        age_s = time.time() - datetime.strptime(stamp, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC).timestamp()
        if not -SKEW_S < age_s < life_s:
            code = "AccessDenied" if in_query else "RequestTimeTooSkewed"
            return self._refuse(403, code, "Request has expired")
        headers = {name: request.headers[name] for name in names.split(";")}
        unsigned = [name for name in request.headers if name.startswith("x-amz-") and name not in headers]
        auth = (S3SigV4QueryAuth if in_query else S3SigV4Auth)(
            ReadOnlyCredentials(KEY_ID, SECRET, None), service, region
        )
        recomputed = AWSRequest(request.method, f"{self.url}{target}", headers=headers)
        recomputed.context["timestamp"] = stamp
        expected = auth.signature(auth.string_to_sign(recomputed, auth.canonical_request(recomputed)), recomputed)
        if signature != expected or unsigned:
            return self._refuse(403, "SignatureDoesNotMatch", "The request signature we calculated does not match.")
        return {**headers, **query}

    def _refuse(self, status: int, code: str, message: str, extra: str = "") -> Answer:
        self.refused.append(code)
        body = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>{message}</Message>{extra}</Error>"
        headers = {"Content-Type": "application/xml"}
        if extra:
            headers["x-amz-bucket-region"] = self.region
        return Answer(status, headers, body.encode())


_KMS_REQUESTS = "Requests specifying Server Side Encryption with AWS KMS managed keys"
