"""The meaning of S3's error codes and of botocore's exceptions, as `d7yfs.errors`. Pure.

Owns S3's codes and the words for botocore's exceptions; `refusal` owns the wording that all
providers share. No message repeats botocore's own text, which may hold URLs and headers: only
codes, statuses, hosts, a KMS key's name and the operating system's reasons.

Codes: https://docs.aws.amazon.com/AmazonS3/latest/API/ErrorResponses.html.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from botocore import exceptions as aws

from d7yfs.errors import (
    AccessDenied,
    ConfigError,
    D7yfsError,
    NotPermitted,
    OriginUnavailable,
)
from d7yfs.origins.encryption import undecryptable
from d7yfs.origins.failure import REACH, reason
from d7yfs.origins.refusal import Call, Vocabulary, codes, refusal, statement
from d7yfs.origins.rest import ControlReply

_REGION = re.compile(rb"<Region>\s*([A-Za-z0-9-]{1,64})\s*</Region>")
_MESSAGE = re.compile(rb"<Message>([^<]{0,4096})</Message>")
WORDS = Vocabulary(
    no_such_bucket=codes("NoSuchBucket"),
    no_such_key=codes("NoSuchKey NoSuchVersion NotFound 404 405 MethodNotAllowed"),
    unknown_key_id=codes("InvalidAccessKeyId InvalidSecurity NotSignedUp"),
    bad_signature=codes("SignatureDoesNotMatch"),
    expired=codes("ExpiredToken ExpiredTokenException InvalidToken TokenRefreshRequired RequestExpired"),
    skewed=codes("RequestTimeTooSkewed"),
    throttled=codes("SlowDown Throttling ThrottlingException TooManyRequests RequestLimitExceeded RequestTimeout"),
    archived=codes("InvalidObjectState"),
    replaced=codes("ConditionalRequestConflict"),
    barred=codes("AccountProblem AllAccessDisabled"),
    elsewhere=codes(
        "AuthorizationHeaderMalformed AuthorizationQueryParametersError IllegalLocationConstraintException "
        "IncorrectEndpoint PermanentRedirect Redirect TemporaryRedirect"
    ),
)
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
GIVE_CREDENTIALS = (
    "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, name a --profile, point TRITON_CLOUD_CREDENTIAL_PATH at Triton's file, or read a "
    "public bucket with --anonymous"
)


T = TypeVar("T")


def is_elsewhere(reply: ControlReply, code: str, region: str) -> bool:
    """True if a refusal of a request that was signed for `region` says that the bucket is not there."""
    if code in WORDS.elsewhere or 300 <= reply.status < 400:
        return True
    return reply.status == 400 and region_in(reply) not in ("", region)


def region_in(reply: ControlReply) -> str:
    """The bucket's region, by the headers or the body of any reply; empty when it tells none."""
    told = _REGION.search(reply.body[:16384])
    return reply.headers.get("x-amz-bucket-region", "") or (told[1].decode() if told else "")


def refused(reply: ControlReply, code: str, call: Call) -> D7yfsError:
    """The error for a reply that is no success."""
    # Of a HEAD, whose replies have no body.
    hint = (
        f"endpoint {call.endpoint}, region {call.region}; a session token that has expired, or an object under a key of "
        "the customer's own (SSE-C)?"
    )
    meant = refusal(reply, code, call, replace(WORDS, hints={"400": hint}))
    if type(meant) not in (AccessDenied, NotPermitted):
        return meant
    told = _MESSAGE.search(reply.body[:16384])
    if is_elsewhere(reply, code, call.region):
        region = region_in(reply)
        there = f"the bucket is in {region}" if region else "the bucket is in another region"
        message, hint = f"{call.subject}: {there}, not in {call.region}", f"set region = {region or '…'}"
    elif encryption := undecryptable(code, told[1].decode(errors="replace") if told else ""):
        message, hint = f"{statement(reply, code, call)}: {encryption.reason}", encryption.hint
    else:
        return meant
    return AccessDenied(message, hint=hint).about(**meant.facts)


def guarded(call: Callable[[], T], subject: str, credentials: str) -> T:
    """The result of `call`, whose failures with settings or credentials become D7yfsErrors."""
    try:
        return call()
    except D7yfsError:
        raise
    except Exception as error:
        failure = from_credentials(error, subject, credentials)
    raise failure


def from_credentials(error: Exception, subject: str, credentials: str) -> D7yfsError:
    """The error for credentials or settings that could not be loaded."""
    where = f"{subject}: credentials ({credentials})"
    if isinstance(error, _CREDENTIALS):
        return AccessDenied(f"{where} could not be loaded: {_own_words(error)}", hint=GIVE_CREDENTIALS)
    if isinstance(error, aws.ProfileNotFound):
        return ConfigError(
            f"{subject}: there is no profile {error.kwargs.get('profile')!r}",
            hint="see `aws configure list-profiles`; AWS_CONFIG_FILE and AWS_SHARED_CREDENTIALS_FILE name other files",
        )
    if isinstance(error, _CONFIGURATION):
        return ConfigError(f"{subject}: AWS settings cannot be used: {_own_words(error)}")
    if isinstance(error, aws.ParamValidationError):
        return ConfigError(f"{subject}: not a name that S3 allows")
    if isinstance(error, aws.ClientError):
        code = str(error.response.get("Error", {}).get("Code", "")) or "an error without a code"
        status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
        if code in WORDS.throttled or status == 429 or status >= 500:
            return OriginUnavailable(f"{where} could not be fetched: {code}")
        return AccessDenied(f"{where} were refused while they were fetched: {code}", hint=GIVE_CREDENTIALS)
    if isinstance(error, RuntimeError):  # botocore's word for a refresh that yields expired credentials
        return AccessDenied(f"{where} have expired and could not be refreshed", hint="renew them")
    if isinstance(error, aws.HTTPClientError | aws.ConnectionError):
        return OriginUnavailable(f"{where} could not be fetched: {reason(error)}", hint=REACH)
    return AccessDenied(f"{where} could not be loaded: {type(error).__name__}", hint=GIVE_CREDENTIALS)


def _own_words(error: Exception) -> str:
    """botocore's message for its own configuration and credential errors, in one line.

    They name files, profiles and variables. Errors that wrap a reply or a helper program's output
    could repeat a secret, so they are named by class only.
    """
    wraps_foreign_text = (aws.CredentialRetrievalError, aws.MetadataRetrievalError, aws.TokenRetrievalError)
    if isinstance(error, wraps_foreign_text):
        provider = error.kwargs.get("provider", "")
        return f"{type(error).__name__}" + (f" from {provider}" if provider else "")
    return " ".join(str(error).split())
