"""V4 signatures of Google Cloud Storage: a GET signed in its query or in its headers. Pure; used by `gs` alone.

Owns the canonical request. With an HMAC key it signs by itself; for a service account it says what has to be signed, for the private key
may be here, or with Google (signBlob).

The algorithm: https://cloud.google.com/storage/docs/authentication/signatures and .../canonical-requests. Only `Host` is signed of a URL,
so that one signature serves every range.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from urllib.parse import quote, urlsplit

RSA = "GOOG4-RSA-SHA256"
HMAC = "GOOG4-HMAC-SHA256"
SIGNATURE_PARAMS = frozenset(
    f"X-Goog-{name}" for name in ("Algorithm", "Credential", "Date", "Expires", "Signature", "SignedHeaders")
)
SIGNATURE_LIFE_S = 900
"""How long a signed request is valid: the clock skew that a signature in headers is granted."""

_EMPTY_SHA256 = hashlib.sha256().hexdigest()


@dataclass(frozen=True, slots=True, repr=False)
class Unsigned:
    """A URL that lacks its signature alone, and what has to be signed for it."""

    url: str
    text: str

    def signed(self, signature: bytes) -> str:
        """The URL, fit to be sent."""
        return f"{self.url}&X-Goog-Signature={signature.hex()}"


def unsigned(
    url: str, query: Mapping[str, str], *, algorithm: str, name: str, now: float, life_s: int = SIGNATURE_LIFE_S
) -> Unsigned:
    """A GET of `url`, which has no query yet, with `query`, that is to be good until `now + life_s` (time.time()).

    `name` is a service account's e-mail address or an HMAC key's access id.
    """
    stamp, scope = _moment(now)
    sent = canonical_query(
        {
            **query,
            "X-Goog-Algorithm": algorithm,
            "X-Goog-Credential": f"{name}/{scope}",
            "X-Goog-Date": stamp,
            "X-Goog-Expires": str(life_s),
            "X-Goog-SignedHeaders": "host",
        }
    )
    parts = urlsplit(url)
    canonical = canonical_request("GET", parts.path, sent, {"host": parts.netloc}, "UNSIGNED-PAYLOAD")
    return Unsigned(f"{url}?{sent}", string_to_sign(algorithm, stamp, scope, canonical))


@dataclass(frozen=True, slots=True, repr=False)
class HmacKey:
    """An HMAC key (https://cloud.google.com/storage/docs/authentication/hmackeys). Holds a secret: no repr."""

    access_id: str
    secret: str

    def presign(self, url: str, query: Mapping[str, str], *, now: float) -> str:
        """See `unsigned`."""
        rest = unsigned(url, query, algorithm=HMAC, name=self.access_id, now=now)
        return rest.signed(self._sign(_moment(now)[0], rest.text))

    def headers(self, method: str, url: str, query: Mapping[str, str], *, now: float) -> dict[str, str]:
        """The headers that authorize a request without a body, for SIGNATURE_LIFE_S."""
        stamp, scope = _moment(now)
        parts = urlsplit(url)
        signed = {"host": parts.netloc, "x-goog-content-sha256": _EMPTY_SHA256, "x-goog-date": stamp}
        canonical = canonical_request(method, parts.path, canonical_query(query), signed, _EMPTY_SHA256)
        signature = self._sign(stamp, string_to_sign(HMAC, stamp, scope, canonical)).hex()
        names = ";".join(signed)
        del signed["host"]  # the transport's own
        credential = f"Credential={self.access_id}/{scope}"
        return signed | {"Authorization": f"{HMAC} {credential}, SignedHeaders={names}, Signature={signature}"}

    def _sign(self, stamp: str, text: str) -> bytes:
        key = f"GOOG4{self.secret}".encode()
        for part in (stamp[:8], "auto", "storage", "goog4_request", text):
            key = hmac.digest(key, part.encode(), "sha256")
        return key


def canonical_query(query: Mapping[str, str]) -> str:
    """Sorted by name, everything but unreserved characters percent-encoded: also the form in which it is sent."""
    pairs = sorted((quote(name, safe=""), quote(value, safe="")) for name, value in query.items())
    return "&".join(f"{name}={value}" for name, value in pairs)


def canonical_request(method: str, path: str, query: str, headers: Mapping[str, str], payload: str) -> str:
    """`headers` in lower case and sorted; `path` and `query` as they are sent."""
    lines = [f"{name}:{value}" for name, value in headers.items()]
    return "\n".join([method, path, query, *lines, "", ";".join(headers), payload])


def string_to_sign(algorithm: str, stamp: str, scope: str, canonical: str) -> str:
    """What the key signs."""
    return "\n".join([algorithm, stamp, scope, hashlib.sha256(canonical.encode()).hexdigest()])


def _moment(now: float) -> tuple[str, str]:
    stamp = f"{datetime.fromtimestamp(now, UTC):%Y%m%dT%H%M%SZ}"
    return stamp, f"{stamp[:8]}/auto/storage/goog4_request"
