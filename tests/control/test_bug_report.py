"""The masking of what looks like a secret in a bug report, and what must stay readable."""

from __future__ import annotations

import pytest

from d7yfs.control.bug_report import mask


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("GET http://user:pass@proxy:1/", "GET http://…@proxy:1/"),
        ("/k?X-Amz-Signature=0a1b&versionId=7", "/k…&versionId=7"),
        ("/k?sv=2020&sig=a%2Bb", "/k?sv=2020…"),
        ("Authorization: AWS4 x=1, y=2", "…"),
        ('"authorization": "Bearer abcdefghij"', '"…'),
        ("with Bearer abc.def-ghi_jkl", "with …"),
        ("-----BEGIN PRIVATE KEY-----\nMII\n-----END PRIVATE KEY-----\nrest", "…\nrest"),
        ("key0123456789 twice key0123456789", "… twice …"),
    ],
)
def test_what_looks_like_a_secret(text: str, masked: str) -> None:
    assert mask(text, {"MY_API_KEY": "key0123456789"}) == masked


@pytest.mark.parametrize(
    "text",
    [
        "s3://http://127.0.0.1:9000/b/models/a@1/b: read",
        "credentials = environment variables (AWS_ACCESS_KEY_ID, …)  (from default)",
        "p2p_secret_file = none  (from default)",
        "the authority is unknown; basic rules",
        "token file /run/secrets/token",
    ],
)
def test_what_stays(text: str) -> None:
    assert mask(text, {"AWS_WEB_IDENTITY_TOKEN_FILE": "/run/secrets/token", "KEY": "none"}) == text
