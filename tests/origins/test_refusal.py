"""The meaning of a refused control-plane call, for all providers."""

from __future__ import annotations

from email.utils import formatdate

import httpx
import pytest

from d7yfs.errors import (
    AccessDenied,
    BucketNotFound,
    D7yfsError,
    NotFound,
    NotPermitted,
    ObjectArchived,
    OriginUnavailable,
    VersionGone,
)
from d7yfs.origins.refusal import Call, Vocabulary, refusal, xml_code
from d7yfs.origins.rest import ControlReply

NOW = 1_700_000_000.0
CALL = Call("t://bucket/key", "t:Get", "https://t.example", "access key", NOW)
WORDS = Vocabulary(
    bucket="container",
    no_such_bucket=frozenset({"NoBucket"}),
    no_such_key=frozenset({"NoKey"}),
    unknown_key_id=frozenset({"BadId"}),
    bad_signature=frozenset({"BadSignature"}),
    expired=frozenset({"Expired"}),
    skewed=frozenset({"Skewed"}),
    throttled=frozenset({"Slow"}),
    archived=frozenset({"Frozen"}),
    barred=frozenset({"Barred"}),
    elsewhere=frozenset({"Elsewhere"}),
    key_denied=frozenset({"KeyDenied"}),
    hints={"Firewall": "open it"},
)


def reply(status: int, headers: dict[str, str] | None = None, body: bytes = b"") -> ControlReply:
    return ControlReply(status, httpx.Headers(headers or {}), body)


@pytest.mark.parametrize(
    ("status", "code", "kind", "words"),
    [
        (400, "Slow", OriginUnavailable, "says Slow"),
        (429, "", OriginUnavailable, "says 429"),
        (503, "Whatever", OriginUnavailable, "says Whatever"),
        (404, "NoBucket", BucketNotFound, "no such container at https://t.example"),
        (404, "NoKey", NotFound, "no such object"),
        (404, "", NotFound, "no such object"),
        (403, "Frozen", ObjectArchived, "restore it"),
        (412, "", VersionGone, "replaced"),
        (301, "", AccessDenied, "not at this endpoint"),
        (403, "Elsewhere", AccessDenied, "not at this endpoint"),
        (403, "BadId", AccessDenied, "not known there"),
        (403, "BadSignature", AccessDenied, "does not fit"),
        (403, "Expired", AccessDenied, "have expired"),
        (403, "KeyDenied", AccessDenied, "refuses to decrypt"),
        (403, "Barred", AccessDenied, "barred"),
        (403, "Firewall", AccessDenied, "open it"),
        (403, "", NotPermitted, "allow t:Get"),
        (400, "Odd", AccessDenied, "was refused"),
    ],
)
def test_meaning(status: int, code: str, kind: type[D7yfsError], words: str) -> None:
    error = refusal(reply(status), code, CALL, WORDS)
    assert type(error) is kind
    assert words in str(error)
    assert str(error).startswith("t://bucket/key: ")
    if kind is AccessDenied:
        assert error.hint


def test_a_skewed_clock_is_measured() -> None:
    error = refusal(reply(403, {"Date": formatdate(NOW - 3600, usegmt=True)}), "Skewed", CALL, WORDS)
    assert "the clocks differ by 3600 s" in str(error)


def test_retry_after_is_kept() -> None:
    error = refusal(reply(503, {"Retry-After": "7"}), "", CALL, WORDS)
    assert isinstance(error, OriginUnavailable)
    assert error.retry_after_s == 7


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"<Error><Code>NoSuchKey</Code><Message>secret</Message></Error>", "NoSuchKey"),
        (b"<?xml version='1.0'?><Error>\n <Code> InvalidArgument </Code></Error>", "InvalidArgument"),
        (b"", ""),
        (b"<html>", ""),
        (b"<Code>no code, but a sentence</Code>", ""),
        (b" " * 20_000 + b"<Code>TooFarDown</Code>", ""),
    ],
)
def test_xml_code(body: bytes, code: str) -> None:
    assert xml_code(reply(403, body=body)) == code
