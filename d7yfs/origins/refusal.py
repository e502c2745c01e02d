"""The meaning of a refused control-plane call, as `d7yfs.errors` with hints. Pure.

Owns the wording that all providers share; each brings a `Vocabulary` of its own codes. No message
repeats a provider's text, which may hold a URL, a canonical request or a key: only codes and
statuses.

A reply to HEAD has no body, so its code is only the status, and a 403 may have any reason.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from d7yfs.config.schema import Credentials, StaticKeys
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
from d7yfs.origins.headers import request_id, retry_after_s
from d7yfs.origins.rest import ControlReply

_XML_CODE = re.compile(rb"<Code>\s*([A-Za-z0-9._-]{1,80})\s*</Code>")


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The error codes of one provider, by meaning."""

    bucket: str = "bucket"
    """The provider's word for a bucket."""
    no_such_bucket: frozenset[str] = frozenset()
    no_such_key: frozenset[str] = frozenset()
    unknown_key_id: frozenset[str] = frozenset()
    bad_signature: frozenset[str] = frozenset()
    expired: frozenset[str] = frozenset()
    skewed: frozenset[str] = frozenset()
    throttled: frozenset[str] = frozenset()
    archived: frozenset[str] = frozenset()
    replaced: frozenset[str] = frozenset()
    """Another version is there than the request was for. So it is after each 412."""
    barred: frozenset[str] = frozenset()
    elsewhere: frozenset[str] = frozenset()
    """The bucket is at another endpoint or in another region."""
    unpermitted: frozenset[str] = frozenset()
    """A permission is missing. So it is after a 401 or 403 with a code that nobody has a remedy for."""
    key_denied: frozenset[str] = frozenset()
    """The key service refused to decrypt."""
    hints: dict[str, str] = field(default_factory=dict)
    """Remedies by code, for mistakes that only this provider knows."""


@dataclass(frozen=True, slots=True)
class Call:
    """One call of the control plane, in words fit for a message."""

    subject: str
    """`oss://bucket/key`."""
    needs: str
    """The permission that the call needs: `oss:ListObjects`."""
    endpoint: str
    credentials: str
    """Where the credentials came from: `access key in FILE: s3[""]`, `profile x`, … (`place_of`)"""
    now: float
    """time.time(), to tell a skewed clock."""
    region: str = ""
    """The region that was signed for, where the provider has a use for it."""


def place_of(credentials: Credentials, shown: str) -> str:
    """Where credentials that are `shown` so came from; keys are looked for where they were written."""
    given_in = credentials.given_in if isinstance(credentials, StaticKeys) else ""
    return f"{shown} in {given_in}" if given_in else shown


def codes(names: str) -> frozenset[str]:
    """A provider's codes, written with blanks between them."""
    return frozenset(names.split())


def xml_code(reply: ControlReply) -> str:
    """The `<Code>` of an XML error (S3, OSS, OBS, Azure, GCS' XML API); empty without one."""
    match = _XML_CODE.search(reply.body[:16384])
    return match[1].decode() if match else ""


def refusal(reply: ControlReply, code: str, call: Call, words: Vocabulary) -> D7yfsError:
    """The error for a refusal with a provider's `code`, which is empty when it gave none."""
    return _meaning(reply, code, call, words).about(object=call.subject, store_request=request_id(reply.headers))


def statement(reply: ControlReply, code: str, call: Call) -> str:
    """The call, the endpoint, and the code and status that it answered."""
    said = f"{code} ({reply.status})" if code not in ("", str(reply.status)) else str(reply.status)
    return f"{call.subject}: {call.endpoint} says {said}"


def _meaning(reply: ControlReply, code: str, call: Call, words: Vocabulary) -> D7yfsError:
    status, subject = reply.status, call.subject
    says = statement(reply, code, call)
    own_hint = words.hints.get(code, "")

    if code in words.throttled or status == 429 or status >= 500:
        return OriginUnavailable(says, hint=own_hint, retry_after_s=retry_after_s(reply.headers, call.now))
    if code in words.no_such_bucket:
        return BucketNotFound(
            f"{subject}: there is no such {words.bucket} at {call.endpoint}",
            hint=own_hint or f"check the spelling; a {words.bucket} elsewhere needs its endpoint",
        )
    if code in words.archived:
        return ObjectArchived(f"{subject}: archived", hint="restore it before it is read")
    if code in words.no_such_key or status == 404:
        return NotFound(f"{subject}: no such object", hint=own_hint)
    if status == 412 or code in words.replaced:
        return VersionGone(f"{subject}: was replaced at the origin")
    if code in words.elsewhere or 300 <= status < 400:
        return AccessDenied(
            f"{says}: the {words.bucket} is not at this endpoint",
            hint=own_hint or "set region or endpoint_url to where it is",
        )
    if code in words.skewed:
        skew = f" by {abs(call.now - reply.date):.0f} s" if reply.date is not None else ""
        return AccessDenied(f"{says}: the clocks differ{skew}", hint="set this host's clock (timedatectl, chrony)")
    if code in words.unknown_key_id:
        said = "the access key id is not known there"
        hint = f"is it one of this service? It came from {call.credentials}"
    elif code in words.bad_signature:
        said, hint = "the secret key does not fit", f"copy it anew; it came from {call.credentials}"
    elif code in words.expired:
        said, hint = "the credentials have expired", f"renew them; they came from {call.credentials}"
    elif code in words.key_denied:
        said, hint = "the key service refuses to decrypt", "the credentials need the right to decrypt with its key"
    elif code in words.barred:
        said, hint = "the account is barred", "ask the provider"
    else:
        said = "" if status in (401, 403) else "the request was refused"
        hint = f"the credentials must be valid and allow {call.needs} here: {call.credentials}"
        if said and call.region:
            hint = f"endpoint {call.endpoint}, region {call.region}"
    if not said and (code in words.unpermitted or not own_hint):
        return NotPermitted(says, hint=own_hint or hint)
    return AccessDenied(f"{says}: {said}" if said else says, hint=own_hint or hint)
