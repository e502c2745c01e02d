"""Shared access signatures: the query strings that let their bearer read one blob, or list and read a container. Pure.

Owns what is signed, with an account key or a user delegation key. Azure's SDK can sign for its newest service version only, which
emulators and sovereign clouds learn late; here it is VERSION, the same for every request of the origin. Called by `azure_credentials`.

What is signed: https://learn.microsoft.com/rest/api/storageservices/create-service-sas and …/create-user-delegation-sas, in both the
string for version 2020-12-06 and later. No start time: it would only let a clock that is ahead make signatures that are not valid yet.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from dataclasses import dataclass
from datetime import UTC, datetime
from urllib.parse import parse_qs, quote

VERSION = "2021-02-12"
"""Of the service's protocol (`x-ms-version`, `sv`): the oldest with all that is used here."""


@dataclass(frozen=True, slots=True, repr=False)
class DelegationKey:
    """A key that the service made for an identity, with the names it must be sent back under. Holds a secret: no repr."""

    object_id: str
    tenant_id: str
    start: str
    expiry: str
    """ISO 8601, as are all times of a signature."""
    service: str
    version: str
    secret: bytes


class Signer:
    """Signs for one container, with the account's key or with a delegation key. Holds a secret: no repr. Never blocks."""

    def __init__(self, account: str, container: str, key: bytes | DelegationKey) -> None:
        self._resource = f"/blob/{account}/{container}"
        if isinstance(key, DelegationKey):
            self._secret = key.secret
            self._named = {
                "skoid": key.object_id,
                "sktid": key.tenant_id,
                "skt": key.start,
                "ske": key.expiry,
                "sks": key.service,
                "skv": key.version,
            }
            # The three are for agents that act for another user.
            self._identity = [*self._named.values(), "", "", ""]
        else:
            self._secret, self._named = key, {}
            self._identity = [""]  # no stored access policy

    def container(self, expires_at: float) -> str:
        """Lets list the container and read its blobs until `expires_at` (time.time())."""
        return self._sign("rl", "c", self._resource, "", expires_at)

    def blob(self, key: str, version_id: str, expires_at: float) -> str:
        """Lets read one blob, or that version of it alone, until `expires_at` (time.time())."""
        return self._sign("r", "bv" if version_id else "b", f"{self._resource}/{key}", version_id, expires_at)

    def _sign(self, permissions: str, kind: str, resource: str, version_id: str, expires_at: float) -> str:
        expiry = iso(expires_at)
        ip_range = protocol = encryption_scope = ""
        signed = [permissions, "", expiry, resource, *self._identity]
        signed += [ip_range, protocol, VERSION, kind, version_id, encryption_scope, *[""] * 5]
        digest = hmac.digest(self._secret, "\n".join(signed).encode(), hashlib.sha256)
        signature = base64.b64encode(digest).decode()
        query = {"sv": VERSION, "sr": kind, "sp": permissions, "se": expiry, **self._named, "sig": signature}
        return "&".join(f"{name}={quote(value, safe='')}" for name, value in query.items())


def iso(moment: float) -> str:
    """A time.time() as signatures have it: cut to seconds, so it is never later than meant."""
    return datetime.fromtimestamp(int(moment), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def timestamp(text: str) -> float:
    """The time.time() of an ISO 8601 time or date; without a zone it is UTC. Raises ValueError."""
    moment = datetime.fromisoformat(text)
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def expiry_of(query: str) -> float:
    """The time.time() when the signature in a query string ends; infinity when that is said elsewhere. Raises ValueError."""
    names = parse_qs(query)
    return timestamp(names["se"][0]) if "se" in names else float("inf")
