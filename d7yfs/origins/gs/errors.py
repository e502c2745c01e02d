"""The meaning of refusals by Cloud Storage and by Google's token services, as `d7yfs.errors`. Pure.

Codes: https://cloud.google.com/storage/docs/json_api/v1/status-codes and
.../xml-api/reference-status; of tokens: RFC 6749, 5.2.
"""

from __future__ import annotations

from collections.abc import Callable

from google.auth.exceptions import GoogleAuthError, RefreshError, TransportError

from d7yfs.errors import AccessDenied, D7yfsError, OriginUnavailable
from d7yfs.origins.refusal import Call, Vocabulary, codes, refusal, xml_code
from d7yfs.origins.rest import ControlReply

_NO_PAYER = "the bucket's requesters pay: set requester_pays = true, and billing_project to the project that does"
_KMS = codes("CloudKmsBadKey CloudKmsDisabledKey CloudKmsDecryptionKeyNotFound CloudKmsKeyLocationNotAllowed")
WORDS = Vocabulary(
    no_such_bucket=codes("NoSuchBucket"),
    no_such_key=codes("NoSuchKey"),
    unknown_key_id=codes("InvalidAccessKeyId InvalidSecurity"),
    bad_signature=codes("SignatureDoesNotMatch"),
    expired=codes("ExpiredToken authError"),
    skewed=codes("RequestTimeTooSkewed"),
    throttled=codes("SlowDown rateLimitExceeded userRateLimitExceeded"),
    barred=codes("AccountProblem UserProjectAccountProblem accountDisabled"),
    key_denied=_KMS,
    hints={
        "UserProjectMissing": _NO_PAYER,
        "UserProjectInvalid": "billing_project must be the id of a project",
        "UserProjectAccessDenied": "the credentials need serviceusage.services.use in billing_project",
        "CloudKmsDecryptionKeyNotFound": "the key that the object was encrypted with is gone",
        "CloudKmsDisabledKey": "the key that the object was encrypted with is disabled; enable it",
    },
)
PERMISSIONS = {
    "list": "storage.objects.list (roles/storage.objectViewer)",
    "get": "storage.objects.get (roles/storage.objectViewer; without storage.objects.list, 403 also means that there is no such object)",
    "put": "storage.objects.create and storage.objects.delete, which replaces one (roles/storage.objectUser)",
}


def refused(reply: ControlReply, call: Call, error_code: Callable[[ControlReply], str], *, listing: bool) -> D7yfsError:
    """The error for a reply of Cloud Storage that is no success."""
    code = error_code(reply) or xml_code(reply)
    if reply.status == 400 and code == "required":
        code = "UserProjectMissing"  # the JSON API's only name for it
    if reply.status == 404 and listing:
        code = "NoSuchBucket"
    return refusal(reply, code, call, WORDS)


def token_refused(error: GoogleAuthError, subject: str, credentials: str) -> D7yfsError:
    """The error for a refused token, in our own words: google-auth's may quote a token."""
    where = f"{subject}: no token for the credentials ({credentials})"
    wrapped = error.args[0] if error.args else None
    if isinstance(error, TransportError) or isinstance(wrapped, TransportError) or error.retryable:
        return OriginUnavailable(
            f"{where}: the service that gives it out cannot be reached",
            hint="oauth2.googleapis.com, sts.googleapis.com or the metadata server; control_proxy and ca_bundle count there too",
        )
    details = error.args[1] if isinstance(error, RefreshError) and len(error.args) > 1 else None
    code = details.get("error") if isinstance(details, dict) else None
    description = str(details.get("error_description", "")) if isinstance(details, dict) else ""
    said = (
        f"{where}: the token service says {code}"
        if isinstance(code, str) and len(code) < 40
        else f"{where}: it is refused"
    )
    if "iat" in description or "timeframe" in description:
        return AccessDenied(f"{said}: the clocks differ", hint="set this host's clock (timedatectl, chrony)")
    if code == "invalid_grant":
        return AccessDenied(
            f"{said}: the key was deleted or disabled, or the login has ended",
            hint="make a new key for the service account, or log in again with gcloud auth application-default login",
        )
    return AccessDenied(said, hint="are the credentials still valid, and is the token service theirs?")
