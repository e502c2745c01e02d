"""The signature of S3 (SigV4), by botocore's signers, without I/O.

botocore's `generate_presigned_url` resolves the endpoint and validates anew for every key. A reader
of thousands of small files must not wait for that, nor for a thread. So `sdk` resolves the bucket's
URL once, and this runs on the trio thread and never refreshes credentials.

The algorithm: https://docs.aws.amazon.com/AmazonS3/latest/API/sig-v4-authenticating-requests.html.
`Range` and `If-*` stay unsigned, so that one signature serves every range.
"""

from __future__ import annotations

import hashlib
from urllib.parse import unquote

from botocore.auth import EMPTY_SHA256_HASH, S3SigV4Auth, S3SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.credentials import ReadOnlyCredentials

from d7yfs.errors import ConfigError
from d7yfs.origins.access_keys import AccessKeys, BucketRequest
from d7yfs.origins.bucket import SIGNATURE_LIFE_S, Address


class _KnownBodyAuth(S3SigV4Auth):
    """S3's signature of a request whose body is at hand: botocore would look for one at a fifth of its time."""

    def payload(self, request: AWSRequest) -> str:
        return hashlib.sha256(request.data).hexdigest() if request.data else EMPTY_SHA256_HASH


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
        # Known once; else each signature parses it from the URL twice, a quarter of its cost.
        auth = S3SigV4Auth(ReadOnlyCredentials("", "", None), service, region)
        self._host = str(auth.headers_to_sign(AWSRequest("GET", address.base_url))["host"])

    def sign_headers(self, request: BucketRequest, keys: AccessKeys, now: float) -> dict[str, str]:  # noqa: ARG002 - botocore has a clock
        signed = self._request(request)
        _KnownBodyAuth(_frozen(keys), self.service, self.region).add_auth(signed)
        del signed.headers["Host"]  # the transport's own
        return dict(signed.headers)

    def sign_query(
        self,
        request: BucketRequest,
        keys: AccessKeys,
        now: float,  # noqa: ARG002 - botocore has a clock
        expires_at: float,  # noqa: ARG002 - the store knows when the keys expire
    ) -> dict[str, str]:
        signed = self._request(request)
        S3SigV4QueryAuth(_frozen(keys), self.service, self.region, expires=SIGNATURE_LIFE_S).add_auth(signed)
        pairs = (pair.partition("=") for pair in str(signed.url).partition("?")[2].split("&"))
        return {name: unquote(value) for name, _, value in pairs}

    def _request(self, request: BucketRequest) -> AWSRequest:
        if self.service == "s3express" and request.method == "GET" and request.key:
            raise ConfigError(
                f"s3://{request.bucket}: objects of directory buckets (S3 Express One Zone) cannot be read yet"
            )
        url = self._address.build_url(request.key, request.query)
        return AWSRequest(request.method, url, headers={"Host": self._host, **request.headers}, data=request.body)


def _frozen(keys: AccessKeys) -> ReadOnlyCredentials:
    return ReadOnlyCredentials(keys.key_id, keys.secret, keys.token or None)
