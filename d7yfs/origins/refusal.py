"""What a refused control-plane call means: status and error code as `d7yfs.errors`, in words with a hint. Pure.

Owns the wording that the providers have in common; each brings a `Vocabulary` of its own codes. No message repeats a provider's text,
which may hold a URL, a canonical request or a key: only codes and statuses.

A reply to HEAD has no body, so its code is then only the status, and 403 there may be any of the reasons.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from d7yfs.errors import (
    AccessDenied,
    BucketNotFound,
    D7yfsError,
    NotFound,
    ObjectArchived,
    OriginUnavailable,
    VersionGone,
)
from d7yfs.origins.request_id import request_id
from d7yfs.origins.rest import Reply

_XML_CODE = re.compile(rb"<Code>\s*([A-Za-z0-9._-]{1,80})\s*</Code>")


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """A provider's error codes by meaning."""

    bucket: str = "bucket"
    """What it calls a bucket."""
    no_such_bucket: frozenset[str] = frozenset()
    no_such_key: frozenset[str] = frozenset()
    unknown_key_id: frozenset[str] = frozenset()
    bad_signature: frozenset[str] = frozenset()
    expired: frozenset[str] = frozenset()
    skewed: frozenset[str] = frozenset()
    throttled: frozenset[str] = frozenset()
    archived: frozenset[str] = frozenset()
    barred: frozenset[str] = frozenset()
    elsewhere: frozenset[str] = frozenset()
    """The bucket is at another endpoint or in another region."""
    key_denied: frozenset[str] = frozenset()
    """The key service refused to decrypt."""
    hints: dict[str, str] = field(default_factory=dict)
    """What to do about a code, where the provider has mistakes of its own."""


@dataclass(frozen=True, slots=True)
class Call:
    """What was asked of whom, in words fit for a message."""

    subject: str
    """`oss://bucket/key`."""
    needs: str
    """The permission that the call needs: `oss:ListObjects`."""
    endpoint: str
    credentials: str
    """Where the credentials came from: `access key`, `profile x`, …"""
    now: float
    """time.time(), to tell a skewed clock."""


def xml_code(reply: Reply) -> str:
    """The `<Code>` of an XML error (S3, OSS, OBS, Azure, GCS' XML API); empty without one."""
    match = _XML_CODE.search(reply.body[:16384])
    return match[1].decode() if match else ""


def refusal(reply: Reply, code: str, call: Call, words: Vocabulary) -> D7yfsError:
    """The D7yfsError for a reply that is no success. `code` is the provider's, empty when it gave none."""
    return _meaning(reply, code, call, words).about(object=call.subject, store_request=request_id(reply.headers))


def _meaning(reply: Reply, code: str, call: Call, words: Vocabulary) -> D7yfsError:
    status, subject = reply.status, call.subject
    says = f"{subject}: {call.endpoint} says {code} ({status})" if code else f"{subject}: {call.endpoint} says {status}"
    own_hint = words.hints.get(code, "")

    if code in words.throttled or status == 429 or status >= 500:
        return OriginUnavailable(says, hint=own_hint, retry_after_s=reply.retry_after_s(call.now))
    if code in words.no_such_bucket:
        return BucketNotFound(
            f"{subject}: there is no such {words.bucket} at {call.endpoint}",
            hint=own_hint or f"check the spelling; a {words.bucket} elsewhere needs its endpoint",
        )
    if code in words.archived:
        return ObjectArchived(f"{subject}: archived", hint="restore it before it is read")
    if code in words.no_such_key or status == 404:
        return NotFound(f"{subject}: no such object", hint=own_hint)
    if status == 412:
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
        said, hint = "the access key is not known there", f"is it one of this service? It came from {call.credentials}"
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
        hint = f"the credentials ({call.credentials}) must be valid and allow {call.needs} here"
    return AccessDenied(f"{says}: {said}" if said else says, hint=own_hint or hint)
