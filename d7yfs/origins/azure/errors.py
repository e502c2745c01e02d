"""The meaning of Azure Blob Storage's error codes, and the mistakes behind them. Pure.

Owns the codes; `refusal` owns the wording that all providers share.

Codes: https://learn.microsoft.com/rest/api/storageservices/blob-service-error-codes and
…/common-rest-api-error-codes. They come in the header `x-ms-error-code` too, so HEAD has them.
"""

from __future__ import annotations

from dataclasses import replace

from d7yfs.errors import AccessDenied, D7yfsError
from d7yfs.origins.azure.sas import VERSION
from d7yfs.origins.refusal import Call, Vocabulary, codes, refusal, xml_code
from d7yfs.origins.rest import ControlReply

_TOO_OLD = f"the service may be too old: it must know version {VERSION}"
_SIGNATURE = codes("AuthenticationFailed AuthorizationFailure")
"""The codes for a signature that is expired, not valid yet or wrong."""

NO_ACCOUNT = (
    "no such storage account, or the suffix is wrong (endpoint_suffix, for sovereign clouds); behind a private "
    "endpoint its DNS zone must be linked to this network"
)


def words_for(role: str, permissions: str) -> Vocabulary:
    """The service's codes, for calls that a role or a signature with `permissions` allows."""
    needs_role = (
        f"the identity needs the role {role} on the container or its account (Owner and Contributor do not "
        f"include it; a new assignment takes up to 10 minutes), a shared access signature the permissions {permissions} (sp={permissions})"
    )
    own = {
        "AuthorizationFailure": "does the account's firewall let this host in (networking rules, private endpoint)? A shared "
        f"access signature may also have expired, or lack the permissions {permissions} (sp={permissions})",
        "AuthorizationPermissionMismatch": needs_role,
        "InsufficientAccountPermissions": needs_role,
    }
    return replace(_CODES, hints=_CODES.hints | own)


_CODES = Vocabulary(
    bucket="container",
    no_such_bucket=codes("ContainerNotFound ContainerBeingDeleted FilesystemNotFound"),
    no_such_key=codes("BlobNotFound ResourceNotFound InvalidResourceName InvalidUri OutOfRangeInput"),
    bad_signature=codes("AuthenticationFailed"),
    throttled=codes("ServerBusy OperationTimedOut InternalError AccountBeingCreated"),
    archived=codes("BlobArchived BlobBeingRehydrated"),
    replaced=codes("BlobAlreadyExists"),
    barred=codes("AccountIsDisabled ContainerDisabled"),
    unpermitted=codes("AuthorizationPermissionMismatch InsufficientAccountPermissions"),
    hints={
        "ContainerNotFound": "check the spelling: as://account/container/prefix",
        "FilesystemNotFound": "check the spelling: as://account/container/prefix",
        "AuthorizationSourceIPMismatch": "the shared access signature is for other addresses (sip)",
        "AuthorizationProtocolMismatch": "the shared access signature is for https alone (spr=https)",
        "AuthorizationServiceMismatch": "the shared access signature is not for blobs (ss=b)",
        "AuthorizationResourceTypeMismatch": "the account's shared access signature must be for containers and objects (srt=co)",
        "KeyBasedAuthenticationNotPermitted": "the account forbids its keys, and what is signed with them: leave them out "
        "(AZURE_STORAGE_KEY, the credential file) and give this host a managed or workload identity",
        "PublicAccessNotPermitted": "the account allows no anonymous access: give credentials",
        "NoAuthenticationInformation": "the container is not public: give credentials",
        "InvalidAuthenticationInfo": "the token is not for this account: is the identity of the account's tenant "
        "(AZURE_TENANT_ID) and cloud (AZURE_AUTHORITY_HOST)?",
        "BlobArchived": "rehydrate it to the Hot, Cool or Cold tier before it is read; that takes hours",
        "BlobUsesCustomerSpecifiedEncryption": "it is encrypted with a key of the client's, which d7yfs does not send",
        "InvalidHeaderValue": _TOO_OLD,
        "FeatureVersionMismatch": _TOO_OLD,
    },
)
WORDS = words_for("Storage Blob Data Reader", "rl")
_KNOWN = WORDS.no_such_bucket | WORDS.no_such_key | WORDS.throttled | WORDS.archived | WORDS.hints.keys()


def code_of(reply: ControlReply) -> str:
    """The service's error code; empty when something else answered."""
    return reply.headers.get("x-ms-error-code", "") or xml_code(reply)


def refused(
    reply: ControlReply,
    call: Call,
    *,
    listing: bool,
    anonymous: bool,
    signs: bool,
    expires_at: float,
    words: Vocabulary = WORDS,
) -> D7yfsError:
    """The error for a reply that is no success, by the `words_for` the call.

    `signs` is True if the refused signature was ours, made a moment ago. `expires_at` (time.time(),
    infinity without one) is when it expires: only the service's clock decides whether it has.
    """
    code = code_of(reply)
    if listing:
        words = replace(words, no_such_bucket=words.no_such_bucket | {"ResourceNotFound", "InvalidResourceName"})
    if anonymous and code == "ResourceNotFound":
        return AccessDenied(
            f"{call.subject}: {call.endpoint} has no public container of this name",
            hint="give credentials, if it is a private one; listing needs the public access level Container, not Blob",
        )
    if code in _SIGNATURE:
        hints = {name: hint for name, hint in words.hints.items() if name != code}
        has_ended = (call.now if reply.date is None else reply.date) >= expires_at
        if has_ended and signs:
            words = replace(words, skewed=frozenset({code}), hints=hints)
        elif has_ended:
            words = replace(words, bad_signature=frozenset(), expired=frozenset({code}), hints=hints)
        elif not signs:
            words = replace(words, bad_signature=frozenset())
    return refusal(reply, code, call, words)


def is_no_directory(reply: ControlReply) -> bool:
    """True if a listing was refused because a file stands in the prefix's path.

    A hierarchical namespace does that. The documentation of List Blobs does not say with which
    error.
    """
    return reply.status in (404, 409) and bool(code := code_of(reply)) and code not in _KNOWN
