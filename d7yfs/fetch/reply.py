"""Judges the head of a reply to a GET for a range of one object version: the right bytes, or which
error. Pure.

Believes no reply that does not prove its version. The proof is the strong validator that the
listing showed: the `ETag`, or on Google Cloud Storage `x-goog-generation`. Every provider sends it
with each 200 and 206 (docs/clouds.md has the pages that say so); a page of a captive portal, a
gateway or a load balancer does not. dfdaemon passes on the origin's header, so its replies carry
the proof too, and the task's id, which the fetcher compares. Beyond the proof, status,
Content-Range, total size, length and encoding must all fit the request.

Used by `Fetcher` for origins and proxies alike.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping

from d7yfs.errors import AccessDenied, BadReply, D7yfsError, ObjectArchived, OriginUnavailable, VersionGone
from d7yfs.objects import ByteRange, ObjectVersion
from d7yfs.origins.encryption import undecryptable
from d7yfs.origins.headers import request_id, retry_after_s

_CONTENT_RANGE = re.compile(r"bytes ([0-9]{1,19})-([0-9]{1,19})/([0-9]{1,19})")
_EXPIRED_CODES = {"ExpiredToken", "InvalidToken", "TokenRefreshRequired"}
"""S3 answers 400 for an expired session token."""
_BUSY_CODES = {"RequestTimeout", "SlowDown"}
_ERROR_CODE = re.compile(rb"<Code>([A-Za-z0-9_.]{1,64})</Code>")
_ERROR_MESSAGE = re.compile(rb"<Message>([^<]{1,4096})</Message>")
MAX_RETRY_AFTER_S = 30.0


def check_head(
    status: int,
    headers: Mapping[str, str],
    *,
    version: ObjectVersion,
    wanted: ByteRange,
    name: str,
    error_body: bytes = b"",
) -> None:
    """Return if the body of this reply is exactly `wanted` of `version`, else raise its error.

    `headers` has lower-case names. `name` is the object as people know it (`s3://bucket/key`).
    Accepts 206; also 200 where Content-Range says the same (rclone, dfdaemon before 1.3.11) or
    where the whole object was asked for. RFC 9110, 14.4 and 15.3.7.

    Raises OriginUnavailable for a reply without proof: another server has answered. Raises
    VersionGone for the proof of another version, and BadReply where the proof is right and the rest
    contradicts the request.
    """
    if status not in (200, 206):
        raise error_of(status, headers, name=name, body=error_body)
    _check_proof(headers, version, name)
    _check_coding(headers, version, name)
    content_range = headers.get("content-range")
    if content_range is not None:
        match = _CONTENT_RANGE.fullmatch(content_range.strip())
        if not match:
            raise BadReply(f"{name}: cannot read Content-Range {content_range[:80]!r}")
        first, last, total = map(int, match.groups())
        if total != version.size_bytes:
            raise BadReply(f"{name}: the reply speaks of {total} bytes in all, the listing of {version.size_bytes}")
        if (first, last + 1) != (wanted.start, wanted.stop):
            raise BadReply(f"{name}: asked for {wanted}, got [{first}, {last + 1})")
    elif status == 206:
        raise BadReply(f"{name}: 206 without Content-Range")
    elif wanted != version.whole:
        raise BadReply(
            f"{name}: asked for {wanted}, got the whole object",
            hint="the server ignores Range; it cannot be mounted",
            lasting=True,
        )
    length = headers.get("content-length")
    if length is not None and length.strip() != str(wanted.size):
        raise BadReply(f"{name}: asked for {wanted.size} bytes, the reply announces {length[:20]}")


def _check_proof(headers: Mapping[str, str], version: ObjectVersion, name: str) -> None:
    """Return if the reply has `version`'s validator, by strong comparison (RFC 9110, 8.8.3.2)."""
    validator = version.validator
    if not is_strong(validator):
        raise BadReply(
            f"{name}: the store lists it without a strong ETag, so the bytes of its versions cannot be told apart",
            hint="it cannot be read through a mount",
            lasting=True,
        )
    kind, header = ("generation", "x-goog-generation") if validator.isdecimal() else ("ETag", "etag")
    sent = headers.get(header, "").strip()
    if sent and _opaque_tag(sent) != _opaque_tag(validator):
        raise VersionGone(f"{name}: was replaced (the server sent {kind} {sent[:80]})")
    if not sent:
        raise OriginUnavailable(
            f"{name}: the reply has no {kind}, so it is not the store's",
            hint="does a captive portal, a gateway or a load balancer answer in its place?",
        )
    if sent.startswith("W/"):
        raise OriginUnavailable(
            f"{name}: the reply has a weak ETag, which does not prove its bytes",
            hint="a proxy that changes replies on the way (compression?) weakens ETags",
        )


def proves(headers: Mapping[str, str], version: ObjectVersion) -> bool:
    """True if the head carries the validator of `version`, in any reply."""
    try:
        _check_proof(headers, version, "")
    except D7yfsError:
        return False
    return True


def is_strong(validator: str) -> bool:
    """True if a validator is unique to a version: a generation, or a strong non-empty ETag."""
    return validator.isdecimal() or (not validator.startswith("W/") and bool(_opaque_tag(validator)))


def _check_coding(headers: Mapping[str, str], version: ObjectVersion, name: str) -> None:
    """Return if the body is the bytes as they are stored, in any coding."""
    stored_coding = _coding(headers, "x-goog-stored-content-encoding")
    coding = _coding(headers, "content-encoding")
    if stored_coding and not coding and "content-length" not in headers:
        raise BadReply(
            f"{name}: is stored as {stored_coding[:40]!r}, and the server decoded it on the way", lasting=True
        )
    sent = (headers.get("etag"), headers.get("x-goog-generation"))
    if coding and ("content-length" not in headers or version.validator not in sent):
        # Stores hand out the Content-Encoding that an object was stored with, and the bytes as
        # stored: those have the listed size and the strong ETag, or the generation. A server that
        # compresses on the way weakens the ETag and leaves out or changes the length.
        raise BadReply(f"{name}: the reply is encoded as {coding[:40]!r}, which was not asked for", lasting=True)


def error_of(status: int, headers: Mapping[str, str], *, name: str, body: bytes = b"") -> D7yfsError:
    """The error that a reply without usable body stands for."""
    return _meaning(status, headers, name, body).about(store_request=request_id(headers))


def _meaning(status: int, headers: Mapping[str, str], name: str, body: bytes) -> D7yfsError:
    code_match = _ERROR_CODE.search(body)
    code = code_match.group(1).decode() if code_match else ""
    said = f"{status} {code}".strip() + (f", request {named}" if (named := request_id(headers)) else "")
    if status in (404, 410):
        return VersionGone(f"{name}: was deleted while it was open ({said})")
    if status in (412, 416):
        return VersionGone(f"{name}: was replaced while it was open ({said})")
    if code == "InvalidObjectState":
        return ObjectArchived(f"{name}: lies in an archive storage class", hint="restore it, then read it again")
    message_match = _ERROR_MESSAGE.search(body)
    message = message_match.group(1).decode(errors="replace") if message_match else ""
    if status in (400, 403) and (encryption := undecryptable(code, message)):
        return AccessDenied(f"{name}: reading was refused ({said}): {encryption.reason}", hint=encryption.hint)
    if status in (401, 403) or (status == 400 and (code in _EXPIRED_CODES or not body)):
        # dfdaemon drops the body that would tell one 400 from another.
        return AccessDenied(
            f"{name}: reading was refused ({said})", hint="check the credentials' permission to read objects"
        )
    if status in (408, 425, 429) or status >= 500 or code in _BUSY_CODES:
        pause_s = min(retry_after_s(headers, time.time()), MAX_RETRY_AFTER_S)
        return OriginUnavailable(f"{name}: the server answered {said}", retry_after_s=pause_s)
    if status in (301, 302, 303, 307, 308):
        return BadReply(f"{name}: the server redirects ({said})", hint="check --region and --endpoint-url")
    return BadReply(f"{name}: unexpected status {said}")


def _coding(headers: Mapping[str, str], name: str) -> str:
    coding = headers.get(name, "").strip().lower()
    return "" if coding == "identity" else coding


def _opaque_tag(etag: str) -> str:
    """The tag without weakness mark and quotes: caches weaken ETags, servers forget quotes."""
    return etag.strip().removeprefix("W/").strip('"')
