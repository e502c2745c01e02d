"""V4 signatures against vectors of Alibaba's SDK, and for odd names.

The vectors are in alibabacloud-oss-v2, tests/unit/signer/test_v4.py."""

from __future__ import annotations

import pytest

from d7yfs.origins.access_keys import AccessKeys, BucketRequest
from d7yfs.origins.rest_stores.oss_signing import OssSignerV4

KEYS = AccessKeys("ak", "sk")
TEMPORARY = AccessKeys("ak", "sk", "token")
HEADERS = {"x-oss-head1": "value", "abc": "value", "ZAbc": "value", "XYZ": "value", "content-type": "text/plain"}
QUERY = {"param1": "value1", "+param1": "value3", "|param1": "value4", "+param2": "", "|param2": "", "param2": ""}
ODD = "a b/ü+%/~'x"


@pytest.mark.parametrize(
    ("keys", "now", "date", "signature"),
    [
        (KEYS, 1702743657, "20231216", "e21d18daa82167720f9b1047ae7e7f1ce7cb77a31e8203a7d5f4624fa0284afe"),
        (TEMPORARY, 1702784856, "20231217", "b94a3f999cf85bcdc00d332fbd3734ba03e48382c36fa4d5af5df817395bd9ea"),
    ],
    ids=["keys", "token"],
)
def test_published_vectors(keys: AccessKeys, now: float, date: str, signature: str) -> None:
    signed = OssSignerV4("cn-hangzhou").sign_headers(
        BucketRequest("PUT", "bucket", "1234+-/123/1.txt", QUERY, HEADERS), keys, now
    )
    scope = f"{date}/cn-hangzhou/oss/aliyun_v4_request"
    assert signed["Authorization"] == f"OSS4-HMAC-SHA256 Credential=ak/{scope},Signature={signature}"
    assert signed.get("x-oss-security-token", "") == keys.token


def test_odd_name_in_headers() -> None:
    signed = OssSignerV4("cn-hangzhou").sign_headers(
        BucketRequest("GET", "bucket", ODD, {"versionId": "v1+/"}, {}), KEYS, 1702743657
    )
    assert signed["Authorization"].endswith(
        ",Signature=071a07dbadaa4e01ebd8941ccc74a8f4ae8c9fa3302c17b8962f45f48e5dd18d"
    )
    assert set(signed) == {"Authorization", "x-oss-content-sha256", "x-oss-date"}


def test_url() -> None:
    signed = OssSignerV4("cn-hangzhou").sign_query(
        BucketRequest("GET", "bucket", "key", {}, {}), KEYS, 1702743657, 1702743657 + 900
    )
    assert signed == {
        "x-oss-signature-version": "OSS4-HMAC-SHA256",
        "x-oss-date": "20231216T162057Z",
        "x-oss-expires": "900",
        "x-oss-credential": "ak/20231216/cn-hangzhou/oss/aliyun_v4_request",
        "x-oss-signature": "845ed62d24fc711195e56ae7184fc2e1833b7b3dc1eab6065f128bbc983860bc",
    }
    assert set(signed) <= OssSignerV4.params


def test_url_with_everything() -> None:
    query = {"versionId": "v1+/", "x-oss-request-payer": "requester"}
    keys = AccessKeys("ak", "sk", "to+k/en=")
    signed = OssSignerV4("cn-hangzhou").sign_query(
        BucketRequest("GET", "bucket", ODD, query, {}), keys, 1702743657, 1702743657 + 900
    )
    assert signed["x-oss-signature"] == "790ca8905d921d5547fe48025d3ae4962a01788d6f795e40b1582da81d2c87eb"
    assert signed["x-oss-security-token"] == "to+k/en="
