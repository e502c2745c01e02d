"""Signed GETs of one bucket's objects, without I/O: botocore resolves the bucket's URL once, and its signers sign each GET.

Owns what a signed GET consists of. botocore's way to one, `generate_presigned_url`, resolves the endpoint and validates anew for every
key; reading thousands of small files must not wait for that, nor for a thread, so a `Signer` holds all that signing needs and may be
used on the trio thread: it never refreshes credentials. `s3.py`, its only caller, replaces it when there are others.

The algorithm: https://docs.aws.amazon.com/AmazonS3/latest/API/sig-v4-authenticating-requests.html. `Range` and `If-*` stay unsigned, so
that one signature serves every range.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import parse_qs

from botocore.auth import S3SigV4Auth, S3SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.utils import percent_encode

from d7yfs.errors import ConfigError
from d7yfs.objects import ObjectVersion
from d7yfs.origins.origin import ReadRequest
from d7yfs.origins.s3.credentials import Held

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

SIGNATURE_LIFE_S = 900
"""How long a signed GET is valid: the longest that S3 grants a header signature (its clock-skew window)."""

_SIGNATURE_PREFIX = "X-Amz-"
_PAYER = "x-amz-request-payer"
"""Consent to be charged: a signed header, or a signed parameter of a presigned URL
(https://docs.aws.amazon.com/AmazonS3/latest/userguide/ObjectsinRequesterPaysBuckets.html)."""


@dataclass(frozen=True, slots=True)
class Target:
    """Where a bucket's objects are, and the scope they are signed for; the same for every key."""

    base_url: str
    """An object's URL is this and its key, percent-encoded."""
    region: str
    service: str

    @classmethod
    def of(cls, client: S3Client, bucket: str) -> Target:
        """As `client` resolves it. May block: it signs, with credentials that may have to be refreshed.

        Raises what botocore raises, and ConfigError for a bucket whose requests need a session of their own.
        """
        key = "k"
        url = client.generate_presigned_url("get_object", Params={"Bucket": bucket, "Key": key}, ExpiresIn=1)
        address, _, query = url.partition("?")
        names = parse_qs(query)
        if "X-Amz-S3session-Token" in names:
            raise ConfigError(f"s3://{bucket}: objects of directory buckets (S3 Express One Zone) cannot be read yet")
        _, _, region, service, _ = names.get("X-Amz-Credential", ["////"])[0].rsplit("/", 4)
        return cls(address.removesuffix(key), region, service)


class Signer:
    """Signs GETs at `target` with `held` credentials (None: anonymous). Holds secrets: no repr."""

    def __init__(self, target: Target, held: Held | None, *, requester_pays: bool = False) -> None:
        self.held = held
        self._target = target
        self._payer = {_PAYER: "requester"} if requester_pays else {}
        self._in_headers = self._in_query = None
        self._expires_at = float("inf")
        if held is not None:
            self._expires_at = held.expires_at
            self._in_headers = S3SigV4Auth(held.frozen, target.service, target.region)
            self._in_query = S3SigV4QueryAuth(held.frozen, target.service, target.region, expires=SIGNATURE_LIFE_S)
            # Else each signature parses it from the URL twice, a quarter of its cost.
            self._host = str(self._in_headers.headers_to_sign(AWSRequest("GET", target.base_url))["host"])

    def sign(self, version: ObjectVersion, *, presigned: bool, now: float) -> ReadRequest:
        """A GET of `version`, valid for SIGNATURE_LIFE_S or until the credentials end.

        Raises ValueError for a key that has no URL: an empty one, or one that is not Unicode.
        """
        if not version.key:
            raise ValueError("an empty key")
        url = self._target.base_url + str(percent_encode(version.key, safe="/~"))
        if version.version_id:
            url += f"?versionId={percent_encode(version.version_id)}"
        pin = {"If-Match": version.validator}
        if self._in_headers is None or self._in_query is None:
            return ReadRequest(url, pin, expires_at=float("inf"))
        expires_at = min(now + SIGNATURE_LIFE_S, self._expires_at)
        if presigned:
            if self._payer:
                url += f"{'&' if version.version_id else '?'}{_PAYER}={self._payer[_PAYER]}"
            request = AWSRequest("GET", url, headers={"Host": self._host})
            self._in_query.add_auth(request)
            signed_url = str(request.url)
            names = (pair.partition("=")[0] for pair in signed_url.partition("?")[2].split("&"))
            # Who pays says nothing about the object either.
            params = frozenset(name for name in names if name.startswith(_SIGNATURE_PREFIX) or name == _PAYER)
            return ReadRequest(signed_url, pin, expires_at, params)
        request = AWSRequest("GET", url, headers={"Host": self._host, **self._payer})
        self._in_headers.add_auth(request)
        del request.headers["Host"]  # the transport's own
        return ReadRequest(url, {**request.headers, **pin}, expires_at)
