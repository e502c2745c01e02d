"""The signatures of OSS's V1 and of OBS, against the providers' own values.

These come from SDK tests, signature tools and SDKs (alibabacloud-oss-v2 1.4.1, esdk-obs-python
3.26.6)."""

from __future__ import annotations

import pytest

from d7yfs.origins.access_keys import AccessKeys, BucketRequest
from d7yfs.origins.rest_stores.hmac_sha1_signing import OBS, OSS_V1

NOW = 1702743657  # Sat, 16 Dec 2023 16:20:57 GMT
ODD = "a b/ü+%/~'x"
OSS_KEYS = AccessKeys("ak", "sk")
OBS_KEYS = AccessKeys("access_key", "123456")


def test_oss_published_header() -> None:
    headers = {
        "Content-MD5": "eB5eJF1ptWaXm4bijSPyxw==",
        "Content-Type": "text/html",
        "Date": "Wed, 28 Dec 2022 10:27:41 GMT",
        "x-oss-date": "Wed, 28 Dec 2022 10:27:41 GMT",
        "x-oss-meta-author": "alice",
        "x-oss-meta-magic": "abracadabra",
    }
    signed = OSS_V1.sign_headers(BucketRequest("PUT", "examplebucket", "nelson", {}, headers), OSS_KEYS, NOW)
    assert signed["Authorization"] == "OSS ak:kSHKmLxlyEAKtZPkJhG9bZb5k7M="


@pytest.mark.parametrize(
    ("keys", "key", "expires", "signature"),
    [
        (OSS_KEYS, "key", 1699807420, "dcLTea+Yh9ApirQ8o8dOPqtvJXQ="),
        (AccessKeys("ak", "sk", "token"), "key+123", 1699808204, "jzKYRrM5y6Br0dRFPaTGOsbrDhY="),
    ],
)
def test_oss_published_url(keys: AccessKeys, key: str, expires: int, signature: str) -> None:
    signed = OSS_V1.sign_query(BucketRequest("GET", "bucket", key, {"versionId": "versionId"}, {}), keys, NOW, expires)
    assert signed["Signature"] == signature
    assert signed["Expires"] == str(expires)
    assert set(signed) <= OSS_V1.params | {"versionId"}


def test_oss_signs_keys_as_they_are() -> None:
    signed = OSS_V1.sign_headers(BucketRequest("GET", "bucket", ODD, {"versionId": "v1+/"}, {}), OSS_KEYS, NOW)
    assert signed == {"Date": "Sat, 16 Dec 2023 16:20:57 GMT", "Authorization": "OSS ak:irqWkJ9WwnZxNnLJybLDyouXKA8="}


def test_oss_agreeing_to_pay_is_signed() -> None:
    query = {"versionId": "v1+/", "x-oss-request-payer": "requester"}
    signed = OSS_V1.sign_query(
        BucketRequest("GET", "bucket", ODD, query, {}), AccessKeys("ak", "sk", "to+k/en="), NOW, NOW + 900
    )
    assert signed["Signature"] == "RvKhSSVr/SWHjMd29AJX6VzUHHc="


def test_oss_token_is_signed_in_headers() -> None:
    """The documentation has the token among the signed headers; the SDK does not."""
    keys = AccessKeys("ak", "sk", "token")
    signed = OSS_V1.sign_headers(BucketRequest("GET", "bucket", "key", {}, {}), keys, NOW)
    assert signed["x-oss-security-token"] == "token"
    assert (
        signed["Authorization"]
        != OSS_V1.sign_headers(BucketRequest("GET", "bucket", "key", {}, {}), OSS_KEYS, NOW)["Authorization"]
    )


def test_obs_signature_tool() -> None:
    """https://obs-community.obs.cn-north-1.myhuaweicloud.com/sign/header_signature.html"""
    headers = {"Content-MD5": "abc", "Content-Type": "text/plain", "Date": "Mon, 15 Aug 2022 16:50:12 GMT"}
    signed = OBS.sign_headers(
        BucketRequest("GET", "bucket", "object.txt", {"prefix": "unsigned"}, headers), OBS_KEYS, NOW
    )
    assert signed["Authorization"] == "OBS access_key:9gUZ4ol2W19LyYcc92Bu3U0V09E="


def test_obs_headers() -> None:
    keys = AccessKeys("access_key", "123456", "to+k/en=")
    signed = OBS.sign_headers(BucketRequest("GET", "bucket", ODD, {"versionId": "v1+/"}, {}), keys, NOW)
    assert signed == {
        "Date": "Sat, 16 Dec 2023 16:20:57 GMT",
        "x-obs-security-token": "to+k/en=",
        "Authorization": "OBS access_key:UxAb2xKdb4getzEFJzJ6b9GCy4Q=",
    }
    listing = OBS.sign_headers(BucketRequest("GET", "bucket", "", {"prefix": "a/", "marker": "b"}, {}), OBS_KEYS, NOW)
    assert listing["Authorization"] == "OBS access_key:Wp7LHCRY9JOkkWUDU2c5S1Qiq4w="


def test_obs_url() -> None:
    signed = OBS.sign_query(BucketRequest("GET", "bucket", "key", {}, {}), OBS_KEYS, NOW, NOW + 900)
    assert signed == {"AccessKeyId": "access_key", "Expires": "1702744557", "Signature": "Z+1CzJIrrj3c4V39sdJDkB0DylA="}
    keys = AccessKeys("access_key", "123456", "to+k/en=")
    odd = OBS.sign_query(BucketRequest("GET", "bucket", ODD, {"versionId": "v1+/"}, {}), keys, NOW, NOW + 900)
    assert odd["Signature"] == "ZDWYwmQKgDtuX8U4XO3F3yz8WzI="
    assert set(odd) <= OBS.params | {"versionId"}
