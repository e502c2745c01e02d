"""The signature of S3 (SigV4), without I/O: in headers our own, in a URL botocore's.

botocore's `generate_presigned_url` resolves the endpoint and validates anew for every key. A reader
of thousands of small files must not wait for that, nor for a thread. So `sdk` resolves the bucket's
URL once, and this runs on the trio thread and never refreshes credentials. botocore's signer for
headers takes five times as long as the one here, which derives the signing key once a day.

The algorithm: https://docs.aws.amazon.com/AmazonS3/latest/API/sig-v4-authenticating-requests.html.
`Range` and `If-*` stay unsigned, so that one signature serves every range.
"""

from __future__ import annotations

import hashlib
import hmac
import time
from urllib.parse import quote, unquote, urlsplit

from botocore.auth import S3SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.credentials import ReadOnlyCredentials

from d7yfs.errors import ConfigError
from d7yfs.origins.access_keys import AccessKeys, BucketRequest
from d7yfs.origins.bucket import SIGNATURE_LIFE_S, Address

_ALGORITHM = "AWS4-HMAC-SHA256"
_EMPTY_SHA256 = hashlib.sha256().hexdigest()


class S3Signer:
    """An `access_keys.BucketSigner` for requests to `address`, in the scope of region and service."""

    params = frozenset(
        {f"X-Amz-{name}" for name in ("Algorithm", "Credential", "Date", "Expires", "Security-Token", "Signature")}
        # Consent to pay is no part of the object's identity either
        # (https://docs.aws.amazon.com/AmazonS3/latest/userguide/ObjectsinRequesterPaysBuckets.html).
        | {"X-Amz-SignedHeaders", "x-amz-request-payer"}
    )

    def __init__(self, address: Address, region: str, service: str) -> None:
        self.region = region
        self.service = service
        self._address = address
        parts = urlsplit(address.base_url)
        self._path_at = len(f"{parts.scheme}://{parts.netloc}")
        """Where the path begins in each URL."""
        # Known once; else botocore parses it from the URL twice, a quarter of a signature's cost.
        auth = S3SigV4QueryAuth(ReadOnlyCredentials("", "", None), service, region)
        self._host = str(auth.headers_to_sign(AWSRequest("GET", address.base_url))["host"])
        self._day_and_secret = ("", "")
        self._signing_key = b""
        """Derived from these; it is good for a day."""

    def sign_headers(self, request: BucketRequest, keys: AccessKeys, now: float) -> dict[str, str]:
        self._refuse_express(request)
        moment = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(now))
        scope = f"{moment[:8]}/{self.region}/{self.service}/aws4_request"
        sent = {**request.headers, "X-Amz-Date": moment}
        if keys.token:
            sent["X-Amz-Security-Token"] = keys.token
        sent["X-Amz-Content-SHA256"] = _EMPTY_SHA256
        signed = sorted([("host", self._host), *((name.lower(), value) for name, value in sent.items())])
        names = ";".join([name for name, _ in signed])
        path, _, _ = self._address.build_url(request.key, request.query)[self._path_at :].partition("?")
        query = sorted((quote(name, safe=""), quote(value, safe="")) for name, value in request.query.items())
        canonical = [request.method, path, "&".join([f"{name}={value}" for name, value in query])]
        canonical += [f"{name}:{' '.join(value.split())}" for name, value in signed]
        digest = hashlib.sha256("\n".join([*canonical, "", names, _EMPTY_SHA256]).encode()).hexdigest()
        text = f"{_ALGORITHM}\n{moment}\n{scope}\n{digest}"
        signature = hmac.digest(self._key(keys.secret, moment[:8]), text.encode(), "sha256").hex()
        credential = f"Credential={keys.key_id}/{scope}"
        sent["Authorization"] = f"{_ALGORITHM} {credential}, SignedHeaders={names}, Signature={signature}"
        return sent

    def _key(self, secret: str, day: str) -> bytes:
        if self._day_and_secret != (day, secret):
            key = f"AWS4{secret}".encode()
            for part in (day, self.region, self.service, "aws4_request"):
                key = hmac.digest(key, part.encode(), "sha256")
            self._day_and_secret, self._signing_key = (day, secret), key
        return self._signing_key

    def sign_query(
        self,
        request: BucketRequest,
        keys: AccessKeys,
        now: float,  # noqa: ARG002 - botocore has a clock
        expires_at: float,  # noqa: ARG002 - the store knows when the keys expire
    ) -> dict[str, str]:
        self._refuse_express(request)
        url = self._address.build_url(request.key, request.query)
        signed = AWSRequest(request.method, url, headers={"Host": self._host, **request.headers})
        S3SigV4QueryAuth(_frozen(keys), self.service, self.region, expires=SIGNATURE_LIFE_S).add_auth(signed)
        pairs = (pair.partition("=") for pair in str(signed.url).partition("?")[2].split("&"))
        return {name: unquote(value) for name, _, value in pairs}

    def _refuse_express(self, request: BucketRequest) -> None:
        if self.service == "s3express" and request.method == "GET" and request.key:
            raise ConfigError(
                f"s3://{request.bucket}: objects of directory buckets (S3 Express One Zone) cannot be read yet"
            )


def _frozen(keys: AccessKeys) -> ReadOnlyCredentials:
    return ReadOnlyCredentials(keys.key_id, keys.secret, keys.token or None)
