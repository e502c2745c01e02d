"""What a refusal of Azure Blob Storage means, in plain words: its error codes and the mistakes that lead to them. Pure.

Owns the codes; `refusal` owns the wording that the providers have in common. Called by `azure` and `azure_credentials`.

Codes: https://learn.microsoft.com/rest/api/storageservices/blob-service-error-codes and …/common-rest-api-error-codes. They come in the
header `x-ms-error-code` too, so that HEAD explains itself.
"""

from __future__ import annotations

import socket
from dataclasses import replace

from d7yfs.errors import AccessDenied, D7yfsError, OriginUnavailable
from d7yfs.origins.azure.sas import VERSION
from d7yfs.origins.refusal import Call, Vocabulary, refusal, xml_code
from d7yfs.origins.rest import Reply

_ROLE = (
    "the identity needs the role Storage Blob Data Reader on the container or its account (Owner and Contributor do not "
    "include it; a new assignment takes up to 10 minutes), a shared access signature the permissions rl (sp=rl)"
)
_TOO_OLD = f"the service may be too old: it must know version {VERSION}"
_SIGNATURE = frozenset({"AuthenticationFailed", "AuthorizationFailure"})
"""What a signature that is expired, not valid yet or wrong can be called."""

WORDS = Vocabulary(
    bucket="container",
    no_such_bucket=frozenset({"ContainerNotFound", "ContainerBeingDeleted", "FilesystemNotFound"}),
    no_such_key=frozenset({"BlobNotFound", "ResourceNotFound", "InvalidResourceName", "InvalidUri", "OutOfRangeInput"}),
    bad_signature=frozenset({"AuthenticationFailed"}),
    throttled=frozenset({"ServerBusy", "OperationTimedOut", "InternalError", "AccountBeingCreated"}),
    archived=frozenset({"BlobArchived", "BlobBeingRehydrated"}),
    barred=frozenset({"AccountIsDisabled", "ContainerDisabled"}),
    hints={
        "ContainerNotFound": "check the spelling: as://account/container/prefix",
        "FilesystemNotFound": "check the spelling: as://account/container/prefix",
        "AuthorizationFailure": "does the account's firewall let this host in (networking rules, private endpoint)? A shared "
        "access signature may also have expired, or lack the permissions rl (sp=rl)",
        "AuthorizationPermissionMismatch": _ROLE,
        "InsufficientAccountPermissions": _ROLE,
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
_LISTING = replace(WORDS, no_such_bucket=WORDS.no_such_bucket | {"ResourceNotFound", "InvalidResourceName"})
_KNOWN = WORDS.no_such_bucket | WORDS.no_such_key | WORDS.throttled | WORDS.archived | WORDS.hints.keys()


def code_of(reply: Reply) -> str:
    """The service's word for what is wrong; empty when something else answered."""
    return reply.headers.get("x-ms-error-code", "") or xml_code(reply)


def refused(reply: Reply, call: Call, *, listing: bool, anonymous: bool, signs: bool, expires_at: float) -> D7yfsError:
    """The D7yfsError for a reply that is no success.

    `signs` is whether a signature of ours was refused, made a moment ago; `expires_at` when the signature that was sent ends (time.time(),
    infinity without one): only the service's clock decides whether it has.
    """
    code = code_of(reply)
    words = _LISTING if listing else WORDS
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


def is_no_directory(reply: Reply) -> bool:
    """Whether a listing was refused because a file stands in the prefix's path, as a hierarchical namespace does.

    The documentation of List Blobs says that it is an error, and not which one.
    """
    return reply.status in (404, 409) and bool(code := code_of(reply)) and code not in _KNOWN


def unreachable(error: OriginUnavailable, subject: str, host: str) -> OriginUnavailable:
    """`error`, or what it means when the account's own host name is unknown: every account has one."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, socket.gaierror) and cause.errno in (socket.EAI_NONAME, socket.EAI_NODATA):
            return OriginUnavailable(
                f"{subject}: there is no host {host}",
                hint="no such storage account, or the suffix is wrong (endpoint_suffix, for sovereign clouds); behind a private "
                "endpoint its DNS zone must be linked to this network",
            )
        cause = cause.__cause__ or cause.__context__
    return error
