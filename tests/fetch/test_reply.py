"""Which reply heads are believed, and what the others mean."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from d7yfs.errors import AccessDenied, BadReply, D7yfsError, ObjectArchived, OriginUnavailable, VersionGone
from d7yfs.fetch.reply import MAX_RETRY_AFTER_S, check_head, error_of
from d7yfs.objects import ByteRange, ObjectVersion

ETAG = '"0123abcd"'
VERSION = ObjectVersion("m/model.onnx", 1000, ETAG, 1)
GENERATION = ObjectVersion("m/model.onnx", 1000, "1700000000000000", 1)
PART, WHOLE = ByteRange(100, 200), VERSION.whole
NAME = "s3://models/m/model.onnx"
PART_HEAD = {"content-range": "bytes 100-199/1000", "content-length": "100", "etag": ETAG}
WHOLE_HEAD = {"content-length": "1000", "etag": ETAG}


def without(head: dict[str, str], name: str) -> dict[str, str]:
    return {key: value for key, value in head.items() if key != name}


def check(status: int, head: dict[str, str], wanted: ByteRange, version: ObjectVersion = VERSION) -> None:
    check_head(status, head, version=version, wanted=wanted, name=NAME)


@pytest.mark.parametrize(
    ("status", "head", "wanted"),
    [
        (206, PART_HEAD, PART),
        (200, PART_HEAD, PART),  # rclone, dfdaemon before 1.3.11
        (200, WHOLE_HEAD, WHOLE),
        (206, {**WHOLE_HEAD, "content-range": "bytes 0-999/1000"}, WHOLE),
        (200, {**WHOLE_HEAD, "content-range": "bytes 0-999/1000"}, WHOLE),
        (206, without(PART_HEAD, "content-length"), PART),  # chunked
        (206, PART_HEAD | {"content-range": " bytes 100-199/1000 "}, PART),
        (206, PART_HEAD | {"etag": ETAG.strip('"')}, PART),
        (206, PART_HEAD | {"content-encoding": "identity"}, PART),
        (206, PART_HEAD | {"content-encoding": ""}, PART),
        (
            206,
            PART_HEAD | {"content-encoding": "gzip"},
            PART,
        ),  # stored so: size and strong ETag are those of the listing
        (200, WHOLE_HEAD | {"content-encoding": "aws-chunked"}, WHOLE),
    ],
)
def test_good_heads(status: int, head: dict[str, str], wanted: ByteRange) -> None:
    check(status, head, wanted)


@pytest.mark.parametrize(
    ("status", "head", "wanted", "words"),
    [
        (206, PART_HEAD | {"content-range": "bytes 101-200/1000"}, PART, r"asked for \[100, 200\), got \[101, 201\)"),
        (206, PART_HEAD | {"content-range": "bytes 100-198/1000"}, PART, "got"),
        (206, PART_HEAD | {"content-range": "bytes 100-299/1000"}, PART, "got"),
        (206, PART_HEAD | {"content-range": "bytes 100-199/1001"}, PART, "1001 bytes in all, the listing of 1000"),
        (200, PART_HEAD | {"content-range": "bytes 100-199/1"}, PART, "1 bytes in all"),
        (206, PART_HEAD | {"content-range": "bytes 100-199/*"}, PART, "cannot read"),
        (206, PART_HEAD | {"content-range": "bytes */1000"}, PART, "cannot read"),
        (206, PART_HEAD | {"content-range": f"bytes 100-{'9' * 5000}/1000"}, PART, "cannot read"),
        (206, PART_HEAD | {"content-range": "bytes 100-199/\u0661000"}, PART, "cannot read"),
        (206, PART_HEAD | {"content-length": "9" * 5000}, PART, r"the reply announces 9{20}$"),
        (206, PART_HEAD | {"content-range": "bytes 100-199/1000, bytes 1-2/1000"}, PART, "cannot read"),
        (206, PART_HEAD | {"content-range": "items 100-199/1000"}, PART, "cannot read"),
        (206, PART_HEAD | {"content-range": "bytes -100-199/1000"}, PART, "cannot read"),
        (206, without(PART_HEAD, "content-range"), PART, "206 without Content-Range"),
        (206, WHOLE_HEAD, WHOLE, "206 without Content-Range"),
        (200, WHOLE_HEAD, PART, "got the whole object"),
        (200, WHOLE_HEAD | {"content-length": "1"}, WHOLE, "asked for 1000 bytes, the reply announces 1"),
        (200, WHOLE_HEAD | {"content-length": "1001"}, WHOLE, "announces 1001"),
        (206, PART_HEAD | {"content-length": "99"}, PART, "announces 99"),
        (206, PART_HEAD | {"content-length": "0"}, PART, "announces 0"),
        (206, PART_HEAD | {"content-encoding": "gzip", "content-length": "50"}, PART, "announces 50"),
        (206, without(PART_HEAD, "content-length") | {"content-encoding": "br"}, PART, "encoded as 'br'"),
        (206, PART_HEAD | {"content-range": f"bytes 100-199/{'9' * 5000}"}, PART, "cannot read"),
        (200, {"etag": ETAG, "content-encoding": "gzip", "transfer-encoding": "chunked"}, WHOLE, "encoded as 'gzip'"),
    ],
)
def test_bad_heads(status: int, head: dict[str, str], wanted: ByteRange, words: str) -> None:
    with pytest.raises(BadReply, match=words) as caught:
        check(status, head, wanted)
    assert caught.value.message.startswith(f"{NAME}: ")


@pytest.mark.parametrize("etag", ['"other"', 'W/"other"', "other", '"0123abcde"'])
def test_another_version(etag: str) -> None:
    with pytest.raises(VersionGone, match="was replaced"):
        check(206, PART_HEAD | {"etag": etag}, PART)


@pytest.mark.parametrize(
    ("head", "words"),
    [
        (without(WHOLE_HEAD, "etag"), "no ETag"),
        ({"content-type": "text/html", "transfer-encoding": "chunked"}, "no ETag"),
        (WHOLE_HEAD | {"etag": ""}, "no ETag"),
        (WHOLE_HEAD | {"etag": " "}, "no ETag"),
        (WHOLE_HEAD | {"etag": f"W/{ETAG}"}, "weak ETag"),
        (without(WHOLE_HEAD, "etag") | {"x-goog-generation": "7"}, "no ETag"),
    ],
)
def test_without_proof_something_else_has_answered(head: dict[str, str], words: str) -> None:
    """For any status and length."""
    for status, more, wanted in ((200, {}, WHOLE), (206, {"content-range": "bytes 0-999/1000"}, WHOLE)):
        with pytest.raises(OriginUnavailable, match=words):
            check(status, head | more, wanted)
    with pytest.raises(OriginUnavailable, match=words):
        check(206, head | without(PART_HEAD, "etag"), PART)


@pytest.mark.parametrize("validator", ["", '""', f"W/{ETAG}"])
def test_a_version_that_is_listed_without_a_strong_validator_cannot_be_read(validator: str) -> None:
    """Its versions could not be told apart, in the cache either."""
    version = replace(VERSION, validator=validator)
    for etag in (ETAG, validator, ""):
        with pytest.raises(BadReply, match="without a strong ETag") as caught:
            check(206, PART_HEAD | {"etag": etag}, PART, version)
        assert caught.value.lasting


def test_a_generation_is_not_compared_with_an_etag() -> None:
    same = {"x-goog-generation": GENERATION.validator}
    check(206, PART_HEAD | same | {"etag": '"something"'}, PART, GENERATION)
    with pytest.raises(OriginUnavailable, match="no generation"):
        check(206, PART_HEAD | {"etag": GENERATION.validator}, PART, GENERATION)
    check(
        206, PART_HEAD | same | {"content-encoding": "gzip", "x-goog-stored-content-encoding": "gzip"}, PART, GENERATION
    )
    # Some store's header; the version is an ETag.
    check(206, PART_HEAD | {"x-goog-generation": "7"}, PART)
    with pytest.raises(VersionGone, match="generation 7"):
        check(206, PART_HEAD | {"x-goog-generation": "7"}, PART, GENERATION)


def test_what_the_store_decoded_on_the_way_is_refused() -> None:
    same = {"x-goog-generation": GENERATION.validator}
    head = same | {"transfer-encoding": "chunked", "x-goog-stored-content-encoding": "gzip"}
    for wanted in (PART, WHOLE):
        with pytest.raises(BadReply, match="decoded"):
            check(200, head, wanted, GENERATION)
    check(200, same | WHOLE_HEAD | {"x-goog-stored-content-encoding": "identity"}, WHOLE, GENERATION)


def xml(code: str) -> bytes:
    return f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>secret</Message></Error>".encode()


@pytest.mark.parametrize(
    ("status", "body", "kind", "words"),
    [
        (403, xml("AccessDenied"), AccessDenied, r"refused \(403 AccessDenied\)"),
        (403, b"", AccessDenied, "403"),
        (401, b"", AccessDenied, "401"),
        (400, xml("ExpiredToken"), AccessDenied, "ExpiredToken"),
        (400, b"", AccessDenied, "400"),  # dfdaemon drops the body: sign again before giving up
        (400, xml("InvalidArgument"), BadReply, "unexpected status 400 InvalidArgument"),
        (400, xml("RequestTimeout"), OriginUnavailable, "RequestTimeout"),
        (403, xml("InvalidObjectState"), ObjectArchived, "archive"),
        (404, xml("NoSuchKey"), VersionGone, "deleted"),
        (410, b"", VersionGone, "deleted"),
        (412, xml("PreconditionFailed"), VersionGone, "replaced"),
        (416, xml("InvalidRange"), VersionGone, "replaced"),
        (408, b"", OriginUnavailable, "408"),
        (429, b"", OriginUnavailable, "429"),
        (500, xml("InternalError"), OriginUnavailable, "500 InternalError"),
        (503, xml("SlowDown"), OriginUnavailable, "503 SlowDown"),
        (301, xml("PermanentRedirect"), BadReply, "redirects"),
        (307, b"", BadReply, "redirects"),
        (304, b"", BadReply, "unexpected status 304"),
        (204, b"", BadReply, "unexpected status 204"),
    ],
)
def test_errors(status: int, body: bytes, kind: type[D7yfsError], words: str) -> None:
    head = {"location": "http://elsewhere/?X-Amz-Signature=secret"}
    with pytest.raises(kind, match=words) as caught:
        check_head(status, head, version=VERSION, wanted=PART, name=NAME, error_body=body)
    assert type(caught.value) is kind
    assert "secret" not in str(caught.value)


KMS_DENIED = (
    b"<Error><Code>AccessDenied</Code><Message>User: arn:aws:iam::1:user/secret is not authorized to perform: kms:Decrypt on resource: "
    b"arn:aws:kms:eu-west-3:1:key/k because of secret</Message></Error>"
)
CUSTOMERS_KEY = (
    b"<Error><Code>InvalidRequest</Code><Message>The object was stored using a form of Server Side Encryption. "
    b"secret</Message></Error>"
)


@pytest.mark.parametrize(
    ("status", "body", "words"),
    [
        (
            403,
            KMS_DENIED,
            r"403 AccessDenied\): the credentials may not decrypt with the KMS key arn:aws:kms:eu-west-3:1:key/k ",
        ),
        (400, CUSTOMERS_KEY, r"400 InvalidRequest\): it is encrypted with a key of the customer's own"),
        (400, b"<Code>KMS.DisabledException</Code>", "its KMS key cannot be used"),
    ],
)
def test_what_cannot_be_decrypted_says_so(status: int, body: bytes, words: str) -> None:
    error = error_of(status, {}, name=NAME, body=body)
    assert type(error) is AccessDenied
    assert re.search(words, str(error))
    assert "secret" not in str(error)


def test_retry_after_reaches_the_error() -> None:
    for status in (429, 503):
        error = error_of(status, {"retry-after": "7"}, name=NAME)
        assert isinstance(error, OriginUnavailable)
        assert error.retry_after_s == 7.0


@pytest.mark.parametrize("asked", ["100000", "9" * 400, "Fri, 02 Jan 2099 03:04:00 GMT"])
def test_retry_after_is_bounded(asked: str) -> None:
    error = error_of(503, {"retry-after": asked}, name=NAME)
    assert isinstance(error, OriginUnavailable)
    assert error.retry_after_s == MAX_RETRY_AFTER_S
