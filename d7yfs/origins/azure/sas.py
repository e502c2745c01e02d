"""Shared access signatures: query strings that let their bearer read a blob or a container. Pure.

Owns the text to sign, with an account key or a user delegation key. Azure's SDK can sign for its
newest service version only, which emulators and sovereign clouds learn late. Here it is VERSION,
the same for every request of the origin.

The text: https://learn.microsoft.com/rest/api/storageservices/create-service-sas and
…/create-user-delegation-sas, in both the string for version 2020-12-06 and later. No start time:
with a clock that is ahead, the signatures would not be valid yet.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Mapping
from datetime import UTC, datetime
from urllib.parse import parse_qs, quote

VERSION = "2021-02-12"
"""The version of the protocol (`x-ms-version`, `sv`): the oldest with all that is used here."""


class SasSigner:
    """Signs for one container, with the account's key or with a user delegation key.

    Holds a secret: no repr. Never blocks.
    """

    def __init__(
        self, account: str, container: str, secret: bytes, delegation: Mapping[str, str] | None = None
    ) -> None:
        """`delegation` has what the service said about its key, in order, by names of parameters.

        The times in it are ISO 8601, as are all times of a signature.
        """
        self._resource = f"/blob/{account}/{container}"
        self._secret = secret
        self._named = dict(delegation or {})
        # The three are for agents that act for another user; the one is for a stored access policy.
        self._identity = [*self._named.values(), "", "", ""] if delegation else [""]

    def sign_container(self, permissions: str, expires_at: float) -> str:
        """`permissions` (`rl`: read and list) for the container until `expires_at` (time.time())."""
        return self._sign(permissions, "c", self._resource, "", expires_at)

    def sign_blob(self, key: str, version_id: str, expires_at: float) -> str:
        """Permission to read one blob, or one version of it, until `expires_at` (time.time())."""
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
    """A time.time() in the form of signatures, cut to seconds, so it is never too late."""
    return datetime.fromtimestamp(int(moment), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def timestamp(text: str) -> float:
    """The time.time() of an ISO 8601 time or date, in UTC without a zone. Raises ValueError."""
    moment = datetime.fromisoformat(text)
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def expiry_of(query: str) -> float:
    """The time.time() when the signature in a query string expires. Raises ValueError.

    Infinity when the query does not say it.
    """
    names = parse_qs(query)
    return timestamp(names["se"][0]) if "se" in names else float("inf")
