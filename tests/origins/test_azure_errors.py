"""Azure's refusals: the class and words of each, and no quoted secret."""

from __future__ import annotations

import re

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
from d7yfs.origins.azure.errors import is_no_directory, refused
from d7yfs.origins.refusal import Call
from d7yfs.origins.rest import ControlReply

NOW = 1_800_000_000.0
DATE = "Fri, 15 Jan 2027 08:00:00 GMT"
"""NOW in HTTP's form."""
LATER = "Fri, 15 Jan 2027 08:20:00 GMT"
CALL = Call("as://account/models/a", "read (r)", "https://account.blob.core.windows.net", "account key", NOW)
NEVER = float("inf")


def reply(status: int, code: str, *, date: str = DATE, in_body: bool = False) -> ControlReply:
    body = f"\ufeff<?xml version='1.0'?><Error><Code>{code}</Code><Message>secret words</Message></Error>".encode()
    headers = {"Date": date} | ({} if in_body else {"x-ms-error-code": code})
    return ControlReply(status, httpx.Headers(headers), body if in_body else b"")


def failure(
    status: int, code: str, *, date: str = DATE, listing: bool = False, signs: bool = False, expires_at: float = NEVER
) -> D7yfsError:
    found = [
        refused(
            reply(status, code, date=date, in_body=in_body),
            CALL,
            listing=listing,
            anonymous=False,
            signs=signs,
            expires_at=expires_at,
        )
        for in_body in (False, True)
    ]
    assert str(found[0]) == str(found[1]), "the header says what the body does"
    assert "secret words" not in str(found[0])
    return found[0]


@pytest.mark.parametrize(
    ("status", "code", "expected", "words"),
    [
        (404, "ContainerNotFound", BucketNotFound, "no such container"),
        (404, "BlobNotFound", NotFound, "no such object"),
        (404, "ResourceNotFound", NotFound, "no such object"),
        (400, "InvalidResourceName", NotFound, "no such object"),
        (400, "InvalidUri", NotFound, "no such object"),
        (412, "ConditionNotMet", VersionGone, "replaced"),
        (409, "BlobArchived", ObjectArchived, "rehydrate|restore"),
        (409, "BlobBeingRehydrated", ObjectArchived, "archived"),
        (503, "ServerBusy", OriginUnavailable, "ServerBusy"),
        (500, "OperationTimedOut", OriginUnavailable, "OperationTimedOut"),
        (429, "", OriginUnavailable, "429"),
        (403, "AuthorizationPermissionMismatch", NotPermitted, "Storage Blob Data Reader"),
        (403, "AuthorizationFailure", AccessDenied, "firewall"),
        (403, "AuthorizationSourceIPMismatch", AccessDenied, "sip"),
        (403, "AuthorizationProtocolMismatch", AccessDenied, "https"),
        (403, "AuthorizationServiceMismatch", AccessDenied, "ss=b"),
        (403, "AuthorizationResourceTypeMismatch", AccessDenied, "srt=co"),
        (403, "KeyBasedAuthenticationNotPermitted", AccessDenied, "forbids its keys"),
        (409, "PublicAccessNotPermitted", AccessDenied, "anonymous"),
        (401, "NoAuthenticationInformation", AccessDenied, "not public"),
        (401, "InvalidAuthenticationInfo", AccessDenied, "AZURE_TENANT_ID"),
        (403, "AccountIsDisabled", AccessDenied, "barred"),
        (409, "BlobUsesCustomerSpecifiedEncryption", AccessDenied, "key of the client"),
        (400, "InvalidHeaderValue", AccessDenied, "too old"),
        (403, "", NotPermitted, "account key"),
    ],
)
def test_codes(status: int, code: str, expected: type[D7yfsError], words: str) -> None:
    error = failure(status, code)
    assert type(error) is expected
    assert re.search(words, str(error))
    assert "as://account/models/a" in str(error)


@pytest.mark.parametrize("code", ["ContainerNotFound", "ResourceNotFound", "InvalidResourceName"])
def test_absent_container_of_a_listing(code: str) -> None:
    assert type(failure(404, code, listing=True)) is BucketNotFound


def test_wrong_key() -> None:
    error = failure(403, "AuthenticationFailed", signs=True, expires_at=NOW + 900)
    assert "does not fit" in str(error)


@pytest.mark.parametrize("code", ["AuthenticationFailed", "AuthorizationFailure"])
def test_signature_that_has_ended_by_the_services_clock(code: str) -> None:
    ours = failure(403, code, date=LATER, signs=True, expires_at=NOW + 900)
    assert "clocks differ by 1200 s" in str(ours)
    theirs = failure(403, code, date=LATER, expires_at=NOW + 900)
    assert "have expired" in str(theirs)
    assert "firewall" not in f"{ours}{theirs}"


def test_signature_that_is_good_by_its_time() -> None:
    assert "expired" not in str(failure(403, "AuthenticationFailed", expires_at=NOW + 900))
    assert "firewall" in str(failure(403, "AuthorizationFailure", expires_at=NOW + 900, signs=True))


def test_anonymous_at_what_is_not_public() -> None:
    error = refused(
        reply(404, "ResourceNotFound"), CALL, listing=True, anonymous=True, signs=False, expires_at=float("inf")
    )
    assert isinstance(error, AccessDenied)
    assert "public" in str(error)


@pytest.mark.parametrize(
    ("status", "code", "expected"),
    [
        (409, "ResourceTypeMismatch", True),
        (404, "PathNotFound", True),
        (404, "ContainerNotFound", False),
        (404, "ResourceNotFound", False),
        (409, "PublicAccessNotPermitted", False),
        (404, "", False),
        (403, "AuthorizationFailure", False),
    ],
)
def test_file_in_the_path_of_a_listing(status: int, code: str, expected: bool) -> None:
    assert is_no_directory(reply(status, code)) is expected
