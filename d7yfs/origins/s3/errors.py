"""What a failed S3 call means: botocore's exceptions and S3's error codes as `d7yfs.errors`, with a hint. Pure.

Owns the wording. No message repeats botocore's own text, which may hold URLs and headers: only codes, statuses, hosts, a KMS key's
name and the operating system's reasons. Called by `s3.py` and by nothing else.

Codes: https://docs.aws.amazon.com/AmazonS3/latest/API/ErrorResponses.html. A reply to HEAD has no body, so its code is
only the status, and 403 there may be any of the reasons.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

from botocore import exceptions as aws
from botocore.parsers import ResponseParserError

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
from d7yfs.origins.encryption import undecryptable
from d7yfs.origins.http_time import date_of, retry_after_s
from d7yfs.origins.request_id import request_id

_NO_SUCH_KEY = {"NoSuchKey", "NoSuchVersion", "NotFound", "404", "405", "MethodNotAllowed"}
_UNKNOWN_KEY_ID = {"InvalidAccessKeyId", "InvalidSecurity", "NotSignedUp"}
_EXPIRED = {"ExpiredToken", "ExpiredTokenException", "InvalidToken", "TokenRefreshRequired", "RequestExpired"}
_WRONG_REGION = {
    "AuthorizationHeaderMalformed",
    "AuthorizationQueryParametersError",
    "IllegalLocationConstraintException",
    "IncorrectEndpoint",
    "PermanentRedirect",
    "Redirect",
    "TemporaryRedirect",
}
_THROTTLED = {
    "SlowDown",
    "Throttling",
    "ThrottlingException",
    "TooManyRequests",
    "RequestLimitExceeded",
    "RequestTimeout",
}
_CREDENTIALS = (
    aws.NoCredentialsError,
    aws.PartialCredentialsError,
    aws.CredentialRetrievalError,
    aws.TokenRetrievalError,
    aws.NoAuthTokenError,
    aws.SSOError,
    aws.LoginError,
    aws.RefreshWithMFAUnsupportedError,
    aws.MetadataRetrievalError,
)
_CONFIGURATION = (
    aws.ProfileNotFound,
    aws.ConfigNotFound,
    aws.ConfigParseError,
    aws.InvalidConfigError,
    aws.UnknownCredentialError,
    aws.InvalidRegionError,
    aws.EndpointProviderError,
    aws.EndpointVariantError,
    aws.MissingDependencyException,
)


class WrongRegion(AccessDenied):
    """The bucket is in another region than the request was signed for; `region` is where, or empty when S3 did not say."""

    def __init__(self, message: str, *, hint: str, region: str) -> None:
        super().__init__(message, hint=hint)
        self.region = region


@dataclass(frozen=True, slots=True)
class Call:
    """What was asked of whom, in words fit for a message."""

    subject: str
    """`s3://bucket/key`."""
    needs: str
    """The permission that the call needs: `s3:ListBucket`."""
    endpoint: str
    """`http://host:port`, or `AWS`."""
    region: str
    credentials: str
    """Where the credentials came from: `static keys`, `profile x`, …"""
    now: float
    """time.time(), to tell a skewed clock."""


def translate(error: Exception, call: Call) -> D7yfsError:
    """The D7yfsError for what boto3 raised during `call`; anything it does not know is OriginUnavailable by class name."""
    headers = _headers(error) if isinstance(error, aws.ClientError) else {}
    return _meaning(error, call).about(object=call.subject, store_request=request_id(headers))


def _meaning(error: Exception, call: Call) -> D7yfsError:
    if isinstance(error, aws.ClientError):
        return _from_reply(error, call)
    if isinstance(error, ResponseParserError):
        return BadReply(
            f"{call.subject}: the reply of {call.endpoint} is not S3's",
            hint="does the endpoint URL name an S3 service?",
        )
    if isinstance(error, aws.SSLError):
        untrusted = any(isinstance(each, ssl.SSLCertVerificationError) for each in _behind(error))
        return (OriginUntrusted if untrusted else OriginUnavailable)(
            f"{call.subject}: TLS with {call.endpoint} failed: {reason(error)}",
            hint="a private certificate authority is set with ca_bundle; a plain-text server has an http:// endpoint URL",
        )
    if isinstance(error, aws.ConnectTimeoutError | aws.ReadTimeoutError):
        return OriginUnavailable(f"{call.subject}: {call.endpoint} did not answer in time", hint=_REACH)
    if isinstance(error, aws.ProxyConnectionError):
        return OriginUnavailable(
            f"{call.subject}: the control proxy does not let through to {call.endpoint}: {reason(error)}",
            hint="is control_proxy right, and up?",
        )
    if isinstance(error, aws.HTTPClientError | aws.ConnectionError):
        unresolved = any(isinstance(each, socket.gaierror) for each in _behind(error))
        said = f"{call.subject}: {call.endpoint} cannot be reached: {reason(error)}"
        return OriginUnavailable(said, hint=_RESOLVE if unresolved else _REACH)
    if isinstance(error, aws.ParamValidationError):
        return NotFound(f"{call.subject}: not a name that S3 allows")
    if isinstance(error, _CREDENTIALS + _CONFIGURATION):
        return from_credentials(error, call)
    return OriginUnavailable(f"{call.subject}: {type(error).__name__}: {reason(error)}")


def from_credentials(error: Exception, call: Call) -> D7yfsError:
    """The D7yfsError for credentials or settings that could not be had."""
    where = f"{call.subject}: credentials ({call.credentials})"
    if isinstance(error, aws.NoCredentialsError):
        return AccessDenied(f"{where}: there are none", hint=_GIVE_CREDENTIALS)
    if isinstance(error, _CREDENTIALS):
        return AccessDenied(f"{where} could not be loaded: {_own_words(error)}", hint=_GIVE_CREDENTIALS)
    if isinstance(error, aws.ProfileNotFound):
        return ConfigError(
            f"{call.subject}: there is no profile {error.kwargs.get('profile')!r}",
            hint="see `aws configure list-profiles`; AWS_CONFIG_FILE and AWS_SHARED_CREDENTIALS_FILE name other files",
        )
    if isinstance(error, _CONFIGURATION):
        return ConfigError(f"{call.subject}: AWS settings cannot be used: {_own_words(error)}")
    if isinstance(error, aws.ClientError):
        code = _code(error)
        if code in _THROTTLED or _status(error) == 429 or _status(error) >= 500:
            return OriginUnavailable(f"{where} could not be fetched: {code}")
        return AccessDenied(f"{where} were refused while they were fetched: {code}", hint=_GIVE_CREDENTIALS)
    if isinstance(error, RuntimeError):  # botocore's words for a refresh that yields expired credentials
        return AccessDenied(f"{where} have expired and could not be refreshed", hint="renew them")
    if isinstance(error, aws.HTTPClientError | aws.ConnectionError):
        return OriginUnavailable(f"{where} could not be fetched: {reason(error)}", hint=_REACH)
    return AccessDenied(f"{where} could not be loaded: {type(error).__name__}", hint=_GIVE_CREDENTIALS)


def reason(error: BaseException) -> str:
    """The operating system's or TLS library's reason under botocore's and urllib3's wrappers, which repeat the URL."""
    found = ""
    for each in _behind(error):
        if isinstance(each, OSError) and isinstance(each.strerror, str):
            found = getattr(each, "verify_message", "") or each.strerror
    return found or "connection failed"


def _behind(error: BaseException) -> Iterator[BaseException]:
    """`error` and what it wraps."""
    seen: set[int] = set()
    pending: list[object] = [error]
    while pending:
        current = pending.pop()
        if not isinstance(current, BaseException) or id(current) in seen:
            continue
        seen.add(id(current))
        yield current
        kwargs = getattr(current, "kwargs", {})
        pending += [current.__context__, current.__cause__, getattr(current, "reason", None), kwargs.get("error")]


_RESOLVE = (
    "is the endpoint's host name right? With addressing_style = virtual the bucket's name stands before it, which many stores of one's own "
    "have no name for: set addressing_style = path"
)
_REACH = "is the endpoint right, the service up, and the network open?"
_GIVE_CREDENTIALS = (
    "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, name a --profile, point TRITON_CLOUD_CREDENTIAL_PATH at Triton's file, or read a "
    "public bucket with --anonymous"
)


def _from_reply(error: aws.ClientError, call: Call) -> D7yfsError:
    code, subject = _code(error), call.subject
    status, headers = _status(error), _headers(error)
    says = f"{subject}: {call.endpoint} says {code}" + (f" ({status})" if code != str(status) else "")

    if code in _THROTTLED or status == 429 or status >= 500:
        return OriginUnavailable(says, retry_after_s=retry_after_s(headers, call.now))
    if code == "NoSuchBucket":
        return BucketNotFound(
            f"{subject}: there is no such bucket at {call.endpoint}",
            hint="check the spelling; a bucket elsewhere needs its endpoint URL",
        )
    region = headers.get("x-amz-bucket-region") or str(error.response.get("Error", {}).get("Region", ""))
    if code in _WRONG_REGION or 300 <= status < 400 or (status == 400 and region not in ("", call.region)):
        there = f"the bucket is in {region}" if region else "the bucket is in another region"
        return WrongRegion(
            f"{subject}: {there}, not in {call.region}", hint=f"set region = {region or '…'}", region=region
        )
    if code in _NO_SUCH_KEY or status == 404:
        return NotFound(f"{subject}: no such object")
    if code == "InvalidObjectState":
        return ObjectArchived(f"{subject}: archived", hint="restore it before it is read")
    if encryption := undecryptable(code, str(error.response.get("Error", {}).get("Message", ""))):
        return AccessDenied(f"{says}: {encryption.reason}", hint=encryption.hint)
    if code in _UNKNOWN_KEY_ID:
        return AccessDenied(
            f"{says}: the access key id is not known there",
            hint=f"is it a key of this service? It came from {call.credentials}",
        )
    if code == "SignatureDoesNotMatch":
        return AccessDenied(
            f"{says}: the secret key does not fit the key id", hint=f"copy both anew; they came from {call.credentials}"
        )
    if code in _EXPIRED:
        return AccessDenied(
            f"{says}: the credentials have expired", hint=f"renew them; they came from {call.credentials}"
        )
    if code == "RequestTimeTooSkewed":
        date = date_of(headers)
        skew = f" by {abs(call.now - date):.0f} s" if date is not None else ""
        return AccessDenied(f"{says}: the clocks differ{skew}", hint="set this host's clock (timedatectl, chrony)")
    if code == "AccountProblem" or code == "AllAccessDisabled":
        return AccessDenied(f"{says}: the account is barred")
    if status in (401, 403):
        return AccessDenied(
            says, hint=f"the credentials ({call.credentials}) must be valid and allow {call.needs} here"
        )
    hint = f"endpoint {call.endpoint}, region {call.region}"
    if code == "400":  # of a HEAD, whose replies have no body
        hint += "; a session token that has expired, or an object under a key of the customer's own (SSE-C)?"
    return AccessDenied(f"{says}: the request was refused", hint=hint)


def _code(error: aws.ClientError) -> str:
    return str(error.response.get("Error", {}).get("Code", "")) or "an error without a code"


def _status(error: aws.ClientError) -> int:
    return int(cast("dict[str, Any]", error.response.get("ResponseMetadata", {})).get("HTTPStatusCode", 0))


def _headers(error: aws.ClientError) -> Mapping[str, str]:
    metadata = cast("dict[str, Any]", error.response.get("ResponseMetadata", {}))
    return cast("Mapping[str, str]", metadata.get("HTTPHeaders", {}))


def _own_words(error: Exception) -> str:
    """botocore's message for its own configuration and credential errors, in one line. They name files, profiles and
    variables; those that wrap a reply or a helper program's output could repeat a secret and are named by class only."""
    wraps_foreign_text = (aws.CredentialRetrievalError, aws.MetadataRetrievalError, aws.TokenRetrievalError)
    if isinstance(error, wraps_foreign_text):
        provider = error.kwargs.get("provider", "")
        return f"{type(error).__name__}" + (f" from {provider}" if provider else "")
    return " ".join(str(error).split())
