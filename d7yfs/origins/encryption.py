"""Why a store refuses to decrypt an object, by the code and message of its error reply. Pure.

Used by `s3.errors` (lists, stats) and `fetch.reply` (reads), so that both say the same. Of a
message only the key's name is repeated: an ARN is no secret, the rest may hold anything.

Sources: https://docs.aws.amazon.com/AmazonS3/latest/userguide/UsingKMSEncryption.html,
.../ServerSideEncryptionCustomerKeys.html and
https://docs.aws.amazon.com/AmazonS3/latest/API/ErrorResponses.html (codes `KMS.*`). AWS does not
promise the wording, so the code looks only for words that carry the meaning.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_KEY = re.compile(r"arn:aws[\w-]*:kms:[^\s\"'<>,;]{1,256}")
_DENIED = ("kms:Decrypt", "refers to a customer master key", "refers to a key")


@dataclass(frozen=True, slots=True)
class Undecryptable:
    """The reason, in words that follow "s3://bucket/key: ", and the remedy."""

    reason: str
    hint: str


def undecryptable(code: str, message: str) -> Undecryptable | None:
    """The trouble with encryption that `code` and `message` tell of; else None."""
    if code == "AccessDenied" and any(words in message for words in _DENIED):
        return Undecryptable(
            f"the credentials may not decrypt with {_key_name(message)}",
            "allow kms:Decrypt for it, in their policy and in the key's own",
        )
    if code.startswith("KMS.") and "Throttl" not in code:
        return Undecryptable(
            f"{_key_name(message)} cannot be used ({code})", "is it enabled, and in the bucket's region and account?"
        )
    if code not in ("InvalidArgument", "InvalidRequest"):
        return None
    if "KMS" in message and "secure connection" in message:
        return Undecryptable(
            "an object encrypted by KMS is handed out over TLS only", "use an endpoint URL with https://"
        )
    if "KMS" in message and "Signature Version 4" in message:
        return Undecryptable(
            "an object encrypted by KMS is handed out to signed requests only", "read it with credentials"
        )
    if "form of Server Side Encryption" in message:
        return Undecryptable(
            "it is encrypted with a key of the customer's own (SSE-C), which d7yfs cannot send",
            "store it anew with SSE-S3 or SSE-KMS",
        )
    return None


def _key_name(message: str) -> str:
    found = _KEY.search(message)
    return f"the KMS key {found[0].rstrip('.')}" if found else "its KMS key"
