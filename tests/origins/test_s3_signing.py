"""S3Signer against botocore: the same URLs and signatures for all keys, moments and credentials."""

from __future__ import annotations

import hashlib
import string
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from functools import cache
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

import boto3
import pytest
from botocore import UNSIGNED
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.config import Config
from botocore.credentials import ReadOnlyCredentials
from hypothesis import example, given, settings
from hypothesis import strategies as st

from d7yfs.config.schema import Anonymous, Credentials, RepositoryConfig, StaticKeys
from d7yfs.config.url import RepositoryUrl
from d7yfs.errors import ConfigError
from d7yfs.objects import ObjectVersion, SecretStr
from d7yfs.origins.access_keys import AccessKeys, BucketRequest
from d7yfs.origins.bucket import SIGNATURE_LIFE_S
from d7yfs.origins.origin import ReadRequest
from d7yfs.origins.s3.origin import S3Origin
from d7yfs.origins.s3.signing import S3Signer
from tests.contract.test_list_and_stat import ODD_NAMES

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

STORES: dict[str, dict[str, Any]] = {
    "path": {"endpoint_url": "http://127.0.0.1:9000", "style": "path", "region": "us-east-1"},
    "path-tls": {"endpoint_url": "https://store.example", "style": "path", "region": "eu-west-3"},
    "path-below": {"endpoint_url": "http://store.example:8080/s3", "style": "path", "region": "us-east-1"},
    "path-ipv6": {"endpoint_url": "http://[::1]:9000", "style": "path", "region": "us-east-1"},
    "virtual": {"endpoint_url": "http://store.example:9000", "style": "virtual", "region": "us-east-1"},
    "aws": {"endpoint_url": None, "style": "auto", "region": "us-east-1"},
    "aws-china": {"endpoint_url": None, "style": "auto", "region": "cn-north-1"},
    "aws-path": {"endpoint_url": None, "style": "path", "region": "ap-south-1"},
    "aws-dots": {"endpoint_url": None, "style": "auto", "region": "us-west-2", "bucket": "models.example.com"},
}
"""Each way in which an endpoint and an addressing style make URLs."""

TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=40)
KEYS = TEXT | st.text("/.~%+?#&= '\"\\\x00é", min_size=1, max_size=20) | st.sampled_from(ODD_NAMES)
# Header values, so neither control characters nor blanks at the ends.
SECRETS = st.text(string.ascii_letters + string.digits + "+/=", min_size=1, max_size=60)
TOKENS = st.none() | SECRETS
MOMENTS = st.datetimes(datetime(2000, 1, 1), datetime(2100, 1, 1))
STORE = st.sampled_from(sorted(STORES))


@cache
def opened(store: str, *, anonymous: bool = False) -> tuple[S3Client, str]:
    """A client of `store` with the origin's settings, and the bucket."""
    options = STORES[store]
    client = boto3.client(
        "s3",
        region_name=options["region"],
        endpoint_url=options["endpoint_url"],
        aws_access_key_id="template",
        aws_secret_access_key="template",
        config=Config(
            signature_version=UNSIGNED if anonymous else "s3v4",
            s3={"addressing_style": options["style"]},
        ),
    )
    return client, options.get("bucket", "models")


@cache
def origin_of(store: str, *, anonymous: bool = False, requester_pays: bool = False) -> S3Origin:
    """An origin with the settings of `store`; each call of `sign` brings the keys."""
    options = STORES[store]
    repository = RepositoryConfig(
        url=RepositoryUrl.parse(f"s3://{options.get('bucket', 'models')}"),
        endpoint_url=options["endpoint_url"] or "",
        region=options["region"],
        addressing_style=options["style"],
        requester_pays=requester_pays,
    )
    credentials: Credentials = Anonymous() if anonymous else StaticKeys("unused", SecretStr("unused"))
    return S3Origin(repository, credentials, clock=lambda: 0.0)


def sign(
    origin: S3Origin, version: ObjectVersion, credentials: ReadOnlyCredentials | None, *, presigned: bool
) -> ReadRequest:
    keys = None
    if credentials is not None:
        keys = AccessKeys(str(credentials.access_key), str(credentials.secret_key), credentials.token or "")
    return origin._sign(version, keys, presigned=presigned)


@contextmanager
def signing_as(client: S3Client, credentials: ReadOnlyCredentials, moment: datetime) -> Iterator[None]:
    """Make `client` sign with `credentials`, and all of botocore at `moment`, inside the block."""
    held = client._request_signer._credentials  # type: ignore[attr-defined]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("botocore.auth.get_current_datetime", lambda: moment)
        patch.setattr(held, "get_frozen_credentials", lambda: credentials)
        yield


def version(key: str, version_id: str = "") -> ObjectVersion:
    return ObjectVersion(key, 3, '"abc"', 0, version_id)


@example("path", "/lead", "", "AKID", "secret", None, datetime(2026, 1, 1))
@example("path", "a//b/../c/./d", "v/1 +", "AKID", "secret", "t+/=", datetime(2026, 1, 1))
@example("virtual", "..", "", "AKID/x", "secret", None, datetime(2026, 1, 1))
@given(STORE, KEYS, st.just("") | TEXT, SECRETS, SECRETS, TOKENS, MOMENTS)
@settings(deadline=None, max_examples=300)
def test_presigned_is_botocores(
    store: str, key: str, version_id: str, key_id: str, secret: str, token: str | None, moment: datetime
) -> None:
    client, bucket = opened(store)
    credentials = ReadOnlyCredentials(key_id, secret, token)
    parameters = {"Bucket": bucket, "Key": key} | ({"VersionId": version_id} if version_id else {})
    with signing_as(client, credentials, moment):
        expected = client.generate_presigned_url("get_object", Params=parameters, ExpiresIn=SIGNATURE_LIFE_S)
        request = sign(origin_of(store), version(key, version_id), credentials, presigned=True)
    assert request.url == expected
    assert dict(request.headers) == {"If-Match": '"abc"'}
    assert ("X-Amz-Security-Token" in request.signature_params) == (token is not None)
    assert {"X-Amz-Signature", "X-Amz-Credential"} <= request.signature_params
    assert "versionId" not in request.signature_params


@given(STORE, KEYS, st.just("") | TEXT, SECRETS, SECRETS, TOKENS, MOMENTS)
@settings(deadline=None, max_examples=300)
def test_signed_is_botocores(
    store: str, key: str, version_id: str, key_id: str, secret: str, token: str | None, moment: datetime
) -> None:
    client, bucket = opened(store, anonymous=True)
    credentials = ReadOnlyCredentials(key_id, secret, token)
    parameters = {"Bucket": bucket, "Key": key} | ({"VersionId": version_id} if version_id else {})
    expected = AWSRequest("GET", client.generate_presigned_url("get_object", Params=parameters))
    with signing_as(opened(store)[0], credentials, moment):
        S3SigV4Auth(credentials, "s3", STORES[store]["region"]).add_auth(expected)
        request = sign(origin_of(store), version(key, version_id), credentials, presigned=False)
    assert request.url == expected.url
    assert dict(request.headers) == {**expected.headers, "If-Match": '"abc"'}
    assert not request.signature_params


@pytest.mark.parametrize("body", [b"", b"data" * 1000], ids=["empty", "data"])
def test_a_written_body_is_signed(body: bytes) -> None:
    origin, headers, moment = origin_of("path"), {"If-Match": '"1"', "Content-Type": "text/plain"}, datetime(2026, 1, 1)
    url = "http://127.0.0.1:9000/models/key"
    expected = AWSRequest("PUT", url, headers={"Host": "127.0.0.1:9000", **headers}, data=body)
    credentials = ReadOnlyCredentials("AKID", "secret", None)
    with signing_as(opened("path")[0], credentials, moment):
        S3SigV4Auth(credentials, "s3", "us-east-1").add_auth(expected)
        asked = BucketRequest("PUT", "models", "key", {}, headers, body)
        signed = origin._signer.sign_headers(asked, AccessKeys("AKID", "secret"), 0.0)
    del expected.headers["Host"]
    assert signed == dict(expected.headers)
    assert signed["X-Amz-Content-SHA256"] == hashlib.sha256(body).hexdigest()


@given(STORE, KEYS, st.booleans())
@settings(deadline=None, max_examples=50)
def test_anonymous_is_botocores(store: str, key: str, presigned: bool) -> None:
    client, bucket = opened(store, anonymous=True)
    request = sign(origin_of(store, anonymous=True), version(key), None, presigned=presigned)
    assert request.url == client.generate_presigned_url("get_object", Params={"Bucket": bucket, "Key": key})
    assert dict(request.headers) == {"If-Match": '"abc"'}


@pytest.mark.parametrize("key", ["", "\ud800"])
def test_key_that_has_no_url(key: str) -> None:
    with pytest.raises(ValueError, match=r"key|surrogate"):
        sign(origin_of("path"), version(key), None, presigned=False)


def test_scope_is_the_one_that_the_endpoint_asks_for() -> None:
    repository = RepositoryConfig(url=RepositoryUrl.parse("s3://models"), region="eu-west-3")
    arn = "arn:aws:s3-object-lambda:us-east-1:123456789012:accesspoint/models"
    repository = replace(repository, url=replace(repository.url, bucket=arn))
    signer = S3Origin(repository, Anonymous())._signer
    assert isinstance(signer, S3Signer)
    assert (signer.region, signer.service) == ("us-east-1", "s3-object-lambda")


async def test_objects_of_a_directory_bucket_are_refused() -> None:
    repository = RepositoryConfig(url=RepositoryUrl.parse("s3://b--usw2-az1--x-s3"), region="us-west-2")
    origin = S3Origin(repository, StaticKeys("unused", SecretStr("unused")))
    assert "s3express-usw2-az1" in origin._address.base_url
    with pytest.raises(ConfigError, match="directory buckets"):
        await origin.read_request(version("k"), presigned=False)


@pytest.mark.parametrize("version_id", ["", "v/1 +"])
def test_consent_to_be_charged_is_signed(version_id: str) -> None:
    client, _bucket = opened("aws")
    credentials = ReadOnlyCredentials("AKID", "secret", None)
    moment = datetime(2026, 1, 1)
    origin = origin_of("aws", requester_pays=True)
    with signing_as(client, credentials, moment):
        signed = sign(origin, version("a b", version_id), credentials, presigned=False)
        presigned = sign(origin, version("a b", version_id), credentials, presigned=True)
        expected = AWSRequest("GET", signed.url, headers={"x-amz-request-payer": "requester"})
        S3SigV4Auth(credentials, "s3", "us-east-1").add_auth(expected)
    assert dict(signed.headers) == {**expected.headers, "If-Match": '"abc"'}
    assert "x-amz-request-payer" in signed.headers["Authorization"]
    query = parse_qs(urlsplit(presigned.url).query)
    assert query["x-amz-request-payer"] == ["requester"]
    assert query.get("versionId", [""]) == [version_id]
    assert "x-amz-request-payer" in presigned.signature_params
    assert dict(presigned.headers) == {"If-Match": '"abc"'}


def test_a_signature_ends_with_the_credentials() -> None:
    for life_s, expected_s in ((100.0, 100.0), (1e6, SIGNATURE_LIFE_S)):
        keys = AccessKeys("K", "s", expires_at=life_s)
        for presigned in (True, False):
            assert origin_of("path")._sign(version("a"), keys, presigned=presigned).expires_at == expected_s


def test_secrets_stay_out_of_the_repr() -> None:
    held = AccessKeys("K", "s3cr3t", "t0ken")
    for shown in (repr(held), repr(origin_of("path")._signer)):
        assert "s3cr3t" not in shown
        assert "t0ken" not in shown
