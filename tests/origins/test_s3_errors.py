"""Each failure of an S3 call: its class, what it says, and that it quotes nothing it should not."""

from __future__ import annotations

import socket
import ssl
from typing import Any

import pytest
from botocore import exceptions as aws
from botocore.parsers import ResponseParserError
from urllib3.exceptions import NewConnectionError

from d7yfs.errors import (
    AccessDenied,
    BadReply,
    BucketNotFound,
    ConfigError,
    D7yfsError,
    NotFound,
    ObjectArchived,
    OriginUnavailable,
    OriginUntrusted,
)
from d7yfs.origins.s3.errors import Call, WrongRegion, from_credentials, translate

CALL = Call("s3://models/a", "s3:GetObject", "AWS", "us-east-1", "profile 'x'", now=1_800_000_000.0)
DATE = "Fri, 15 Jan 2027 08:20:00 GMT"
"""1,200 s after CALL.now."""


def reply(code: str, status: int, *, region: str = "", **headers: str) -> aws.ClientError:
    error: dict[str, Any] = {"Code": code, "Message": "secret words", "Region": region}
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    response: Any = {"Error": error, "ResponseMetadata": {"HTTPStatusCode": status, "HTTPHeaders": named}}
    return aws.ClientError(response, "GetObject")


@pytest.mark.parametrize(
    ("error", "expected", "words"),
    [
        (reply("NoSuchBucket", 404), BucketNotFound, "no such bucket"),
        (reply("NoSuchKey", 404), NotFound, "no such object"),
        (reply("404", 404), NotFound, "no such object"),
        (reply("405", 405), NotFound, "no such object"),
        (reply("InvalidObjectState", 403), ObjectArchived, "restore"),
        (reply("InvalidAccessKeyId", 403), AccessDenied, "not known"),
        (reply("SignatureDoesNotMatch", 403), AccessDenied, "secret key"),
        (reply("AccessDenied", 403), AccessDenied, "s3:GetObject"),
        (reply("403", 403), AccessDenied, "s3:GetObject"),
        (reply("ExpiredToken", 400), AccessDenied, "renew"),
        (reply("RequestTimeTooSkewed", 403, date=DATE), AccessDenied, "by 1200 s"),
        (reply("SlowDown", 503), OriginUnavailable, "SlowDown"),
        (reply("429", 429), OriginUnavailable, "429"),
        (reply("InternalError", 500), OriginUnavailable, "InternalError"),
        (reply("RequestTimeout", 400), OriginUnavailable, "RequestTimeout"),
        (reply("AuthorizationHeaderMalformed", 400, region="eu-1"), WrongRegion, "region = eu-1"),
        (reply("PermanentRedirect", 301, x_amz_bucket_region="eu-1"), WrongRegion, "is in eu-1, not in us-east-1"),
        (reply("400", 400, x_amz_bucket_region="eu-1"), WrongRegion, "eu-1"),
        (reply("400", 400, x_amz_bucket_region="us-east-1"), AccessDenied, "refused"),
        (reply("InvalidRequest", 400), AccessDenied, "InvalidRequest"),
        (reply("400", 400), AccessDenied, "SSE-C"),
        (reply("KMS.NotFoundException", 400), AccessDenied, "its KMS key cannot be used"),
        (aws.ReadTimeoutError(endpoint_url="u?X-Amz-Signature=1"), OriginUnavailable, "did not answer"),
        (aws.ConnectTimeoutError(endpoint_url="u?X-Amz-Signature=1"), OriginUnavailable, "did not answer"),
        (
            aws.ProxyConnectionError(proxy_url="http://u:secret words@p", error=OSError(111, "Connection refused")),
            OriginUnavailable,
            "control proxy does not let through to AWS: Connection refused",
        ),
        (
            aws.SSLError(endpoint_url="u?X-Amz-Signature=1", error=ssl.SSLError(1, "wrong version")),
            OriginUnavailable,
            "TLS with",
        ),
        (
            aws.SSLError(endpoint_url="u?X-Amz-Signature=1", error=ssl.SSLCertVerificationError(1, "verify failed")),
            OriginUntrusted,
            "TLS with",
        ),
        (aws.ConnectionClosedError(endpoint_url="u?X-Amz-Signature=1"), OriginUnavailable, "connection failed"),
        (ResponseParserError("secret words"), BadReply, "not S3's"),
        (aws.ParamValidationError(report="secret words"), NotFound, "not a name"),
        (aws.NoCredentialsError(), AccessDenied, "there are none"),
        (aws.PartialCredentialsError(provider="env", cred_var="aws_secret_access_key"), AccessDenied, "aws_secret_acc"),
        (
            aws.CredentialRetrievalError(provider="custom-process", error_msg="secret words"),
            AccessDenied,
            "custom-process",
        ),
        (aws.ProfileNotFound(profile="prod"), ConfigError, "no profile 'prod'"),
        (aws.InvalidRegionError(region_name="no region"), ConfigError, "no region"),
        (ZeroDivisionError("secret words"), OriginUnavailable, "ZeroDivisionError"),
    ],
    ids=lambda value: str(value)[:40] if isinstance(value, Exception) else "",
)
def test_meaning(error: Exception, expected: type[D7yfsError], words: str) -> None:
    meant = translate(error, CALL)
    assert type(meant) is expected
    assert words in str(meant)
    assert "s3://models/a" in str(meant)
    assert "secret words" not in str(meant)
    assert "X-Amz" not in str(meant)


@pytest.mark.parametrize(("value", "wait_s"), [("7", 7.0), (DATE, 1200.0), ("soon", 0.0), ("", 0.0)])
def test_retry_after(value: str, wait_s: float) -> None:
    meant = translate(reply("SlowDown", 503, retry_after=value), CALL)
    assert isinstance(meant, OriginUnavailable)
    assert meant.retry_after_s == wait_s


def test_reason_is_the_operating_systems() -> None:
    refused = ConnectionRefusedError(111, "Connection refused")
    wrapped = NewConnectionError(None, f"http://h/?X-Amz-Signature=1 {refused}")  # type: ignore[arg-type]
    wrapped.__cause__ = refused
    error = aws.EndpointConnectionError(endpoint_url="http://h/?X-Amz-Signature=1", error=wrapped)
    assert "cannot be reached: Connection refused" in str(translate(error, CALL))


@pytest.mark.parametrize(("code", "status"), [("Throttling", 400), ("TooManyRequests", 429), ("InternalFailure", 500)])
def test_a_credential_service_that_is_busy_is_not_a_refusal(code: str, status: int) -> None:
    meant = from_credentials(reply(code, status), CALL)
    assert type(meant) is OriginUnavailable
    assert "could not be fetched" in str(meant)
    assert meant.transient


def test_refused_while_fetching_credentials_is_not_the_buckets_word() -> None:
    meant = from_credentials(reply("AccessDenied", 403), CALL)
    assert type(meant) is AccessDenied
    assert "while they were fetched" in str(meant)


def test_a_host_name_without_an_address_may_be_the_buckets() -> None:
    try:
        try:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        except socket.gaierror as cause:
            raise aws.EndpointConnectionError(endpoint_url="http://models.store.example", error=cause) from cause
    except aws.EndpointConnectionError as error:
        failure = translate(error, CALL)
    assert isinstance(failure, OriginUnavailable)
    assert "Name or service not known" in failure.message
    assert "addressing_style = path" in failure.hint
