"""V4 signatures against Google's published vectors.

They are in googleapis/conformance-tests, storage/v1/v4_signatures.json."""

from __future__ import annotations

from datetime import datetime

import pytest

from d7yfs.origins.gs.signing import RSA, HmacKey, unsigned_url

EMAIL = "test-iam-credentials@dummy-project-id.iam.gserviceaccount.com"
BUCKET_URL = "https://storage.googleapis.com/test-bucket"
CREDENTIAL = (
    "test-iam-credentials%40dummy-project-id.iam.gserviceaccount.com%2F20190201%2Fauto%2Fstorage%2Fgoog4_request"
)
SIMPLE = (
    f"X-Goog-Algorithm=GOOG4-RSA-SHA256&X-Goog-Credential={CREDENTIAL}"
    "&X-Goog-Date=20190201T090000Z&X-Goog-Expires=10&X-Goog-SignedHeaders=host"
)


def at(moment: str) -> float:
    return datetime.fromisoformat(moment).timestamp()


@pytest.mark.parametrize(
    ("moment", "life_s", "digest"),
    [
        ("2019-02-01T09:00:00Z", 10, "00e2fb794ea93d7adb703edaebdd509821fcc7d4f1a79ac5c8d2b394df109320"),
        ("2019-03-01T09:00:00Z", 20, "779f19fdb6fd381390e2d5af04947cf21750277ee3c20e0c97b7e46a1dff8907"),
    ],
)
def test_what_is_signed(moment: str, life_s: int, digest: str) -> None:
    rest = unsigned_url(f"{BUCKET_URL}/test-object", {}, algorithm=RSA, name=EMAIL, now=at(moment), life_s=life_s)
    day = moment[:10].replace("-", "")
    assert rest.text == f"GOOG4-RSA-SHA256\n{day}T090000Z\n{day}/auto/storage/goog4_request\n{digest}"


@pytest.mark.parametrize(
    ("query", "sent"),
    [
        ({}, SIMPLE),
        ({"soufflé": "=%-_.~"}, f"{SIMPLE}&souffl%C3%A9=%3D%25-_.~"),
        (
            {"prefix": "/foo", "X-Goog-Meta-Foo": "bar"},
            SIMPLE.replace("&X-Goog-SignedHeaders", "&X-Goog-Meta-Foo=bar&X-Goog-SignedHeaders") + "&prefix=%2Ffoo",
        ),
    ],
    ids=["simple", "encoding", "ordering"],
)
def test_url(query: dict[str, str], sent: str) -> None:
    now = at("2019-02-01T09:00:00Z")
    rest = unsigned_url(f"{BUCKET_URL}/test-object", query, algorithm=RSA, name=EMAIL, now=now, life_s=10)
    assert rest.add_signature(b"\xab\xcd") == f"{BUCKET_URL}/test-object?{sent}&X-Goog-Signature=abcd"


def test_nothing_shows_a_secret() -> None:
    key = HmacKey("GOOG1E", "the-secret")
    assert "the-secret" not in repr(key)
    assert "the-secret" not in key.presign(BUCKET_URL, {}, now=0.0)
    assert "the-secret" not in str(key.sign_headers("GET", BUCKET_URL, {}, now=0.0))
