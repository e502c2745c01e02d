"""Refusals by S3 and failures of credentials: the class and words of each, and no quoted secret."""

from __future__ import annotations

import re
from typing import Any

import pytest
from botocore import exceptions as aws

from d7yfs.errors import (
    AccessDenied,
    BucketNotFound,
    ConfigError,
    D7yfsError,
    NotFound,
    NotPermitted,
    ObjectArchived,
    OriginUnavailable,
)
from d7yfs.origins.refusal import Call
from d7yfs.origins.rest import ControlReply
from d7yfs.origins.s3.errors import from_credentials, refused

CALL = Call("s3://models/a", "s3:GetObject", "AWS", "profile 'x'", now=1_800_000_000.0, region="us-east-1")
DATE = "Fri, 15 Jan 2027 08:20:00 GMT"
"""1,200 s after CALL.now."""


def reply(code: str, status: int, *, region: str = "", **headers: str) -> ControlReply:
    body = f"<Error><Code>{code}</Code><Message>secret words</Message><Region>{region}</Region></Error>"
    return ControlReply(status, {name.replace("_", "-"): value for name, value in headers.items()}, body.encode())


def client_error(code: str, status: int) -> aws.ClientError:
    response: Any = {
        "Error": {"Code": code, "Message": "secret words"},
        "ResponseMetadata": {"HTTPStatusCode": status},
    }
    return aws.ClientError(response, "AssumeRole")


@pytest.mark.parametrize(
    ("refusal", "expected", "words"),
    [
        (reply("NoSuchBucket", 404), BucketNotFound, "no such bucket"),
        (reply("NoSuchKey", 404), NotFound, "no such object"),
        (reply("404", 404), NotFound, "no such object"),
        (reply("405", 405), NotFound, "no such object"),
        (reply("InvalidObjectState", 403), ObjectArchived, "restore"),
        (reply("InvalidAccessKeyId", 403), AccessDenied, "not known"),
        (reply("SignatureDoesNotMatch", 403), AccessDenied, "secret key"),
        (reply("AccessDenied", 403), NotPermitted, "s3:GetObject"),
        (reply("403", 403), NotPermitted, "s3:GetObject"),
        (reply("ExpiredToken", 400), AccessDenied, "renew"),
        (reply("RequestTimeTooSkewed", 403, date=DATE), AccessDenied, "by 1200 s"),
        (reply("SlowDown", 503), OriginUnavailable, "SlowDown"),
        (reply("429", 429), OriginUnavailable, "429"),
        (reply("InternalError", 500), OriginUnavailable, "InternalError"),
        (reply("RequestTimeout", 400), OriginUnavailable, "RequestTimeout"),
        (reply("AuthorizationHeaderMalformed", 400, region="eu-1"), AccessDenied, "region = eu-1"),
        (reply("PermanentRedirect", 301, x_amz_bucket_region="eu-1"), AccessDenied, "is in eu-1, not in us-east-1"),
        (reply("400", 400, x_amz_bucket_region="eu-1"), AccessDenied, "eu-1"),
        (reply("400", 400, x_amz_bucket_region="us-east-1"), AccessDenied, "refused"),
        (reply("InvalidRequest", 400), AccessDenied, "InvalidRequest"),
        (reply("400", 400), AccessDenied, "SSE-C"),
        (reply("KMS.NotFoundException", 400), AccessDenied, "its KMS key cannot be used"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_meaning_of_a_refusal(refusal: ControlReply, expected: type[D7yfsError], words: str) -> None:
    found = re.search(rb"<Code>(.*?)</Code>", refusal.body)
    assert found is not None
    meant = refused(refusal, found[1].decode(), CALL)
    assert type(meant) is expected
    assert words in str(meant)
    assert "s3://models/a" in str(meant)
    assert "secret words" not in str(meant)


@pytest.mark.parametrize(
    ("error", "expected", "words"),
    [
        (aws.ParamValidationError(report="secret words"), ConfigError, "not a name"),
        (aws.PartialCredentialsError(provider="env", cred_var="aws_secret_access_key"), AccessDenied, "aws_secret_acc"),
        (
            aws.CredentialRetrievalError(provider="custom-process", error_msg="secret words"),
            AccessDenied,
            "custom-process",
        ),
        (aws.ProfileNotFound(profile="prod"), ConfigError, "no profile 'prod'"),
        (aws.InvalidRegionError(region_name="no region"), ConfigError, "no region"),
        (ZeroDivisionError("secret words"), AccessDenied, "ZeroDivisionError"),
    ],
    ids=lambda value: str(value)[:40] if isinstance(value, Exception) else "",
)
def test_meaning(error: Exception, expected: type[D7yfsError], words: str) -> None:
    meant = from_credentials(error, CALL.subject, CALL.credentials)
    assert type(meant) is expected
    assert words in str(meant)
    assert "s3://models/a" in str(meant)
    assert "secret words" not in str(meant)
    assert "X-Amz" not in str(meant)


@pytest.mark.parametrize(("value", "wait_s"), [("7", 7.0), (DATE, 1200.0), ("soon", 0.0), ("", 0.0)])
def test_retry_after(value: str, wait_s: float) -> None:
    meant = refused(reply("SlowDown", 503, retry_after=value), "SlowDown", CALL)
    assert isinstance(meant, OriginUnavailable)
    assert meant.retry_after_s == wait_s


@pytest.mark.parametrize(("code", "status"), [("Throttling", 400), ("TooManyRequests", 429), ("InternalFailure", 500)])
def test_a_credential_service_that_is_busy_is_not_a_refusal(code: str, status: int) -> None:
    meant = from_credentials(client_error(code, status), CALL.subject, CALL.credentials)
    assert type(meant) is OriginUnavailable
    assert "could not be fetched" in str(meant)
    assert meant.transient


def test_refused_while_fetching_credentials_is_not_the_buckets_word() -> None:
    meant = from_credentials(client_error("AccessDenied", 403), CALL.subject, CALL.credentials)
    assert type(meant) is AccessDenied
    assert "while they were fetched" in str(meant)
