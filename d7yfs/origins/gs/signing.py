"""V4 signatures of Google Cloud Storage: a GET signed in its query or in its headers. Pure.

Owns the canonical request. An HMAC key signs here. For a service account the private key may be
here, or with Google (signBlob), so the caller gets the text to sign.

HMAC keys: https://cloud.google.com/storage/docs/authentication/hmackeys. The algorithm:
https://cloud.google.com/storage/docs/authentication/signatures and
.../canonical-requests. Of the headers a signed URL covers only `Host`, so that one signature serves
every range.
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
"""How long a signed request is valid: the clock skew that Google grants a signature in headers."""

_EMPTY_SHA256 = hashlib.sha256().hexdigest()


@dataclass(frozen=True, slots=True, repr=False)
class UnsignedUrl:
    """A URL that lacks only its signature, and the text to sign for it."""

    url: str
    text: str

    def add_signature(self, signature: bytes) -> str:
        """The whole URL."""
        return f"{self.url}&X-Goog-Signature={signature.hex()}"


def unsigned_url(
    url: str, query: Mapping[str, str], *, algorithm: str, name: str, now: float, life_s: int = SIGNATURE_LIFE_S
) -> UnsignedUrl:
    """A GET of `url` (without a query) with `query`, valid until `now + life_s` (time.time()).

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
    return UnsignedUrl(f"{url}?{sent}", string_to_sign(algorithm, stamp, scope, canonical))


@dataclass(frozen=True, slots=True, repr=False)
class HmacKey:
    """An HMAC key of Cloud Storage. Holds a secret: no repr."""

    access_id: str
    secret: str

    def presign(self, url: str, query: Mapping[str, str], *, now: float) -> str:
        """A URL signed for SIGNATURE_LIFE_S; see `unsigned_url`."""
        rest = unsigned_url(url, query, algorithm=HMAC, name=self.access_id, now=now)
        return rest.add_signature(self._sign(_moment(now)[0], rest.text))

    def sign_headers(
        self,
        method: str,
        url: str,
        query: Mapping[str, str],
        *,
        now: float,
        headers: Mapping[str, str] | None = None,
        body: bytes = b"",
    ) -> dict[str, str]:
        """The headers that authorize a request for SIGNATURE_LIFE_S. Of `headers` it signs Google's own."""
        stamp, scope = _moment(now)
        parts = urlsplit(url)
        digest = hashlib.sha256(body).hexdigest() if body else _EMPTY_SHA256
        own = {name.lower(): value for name, value in (headers or {}).items() if name.lower().startswith("x-goog-")}
        own |= {"host": parts.netloc, "x-goog-content-sha256": digest, "x-goog-date": stamp}
        signed = dict(sorted(own.items()))
        canonical = canonical_request(method, parts.path, canonical_query(query), signed, digest)
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
    """`query` sorted by name and percent-encoded, which is also the form sent."""
    pairs = sorted((quote(name, safe=""), quote(value, safe="")) for name, value in query.items())
    return "&".join(f"{name}={value}" for name, value in pairs)


def canonical_request(method: str, path: str, query: str, headers: Mapping[str, str], payload: str) -> str:
    """The canonical request; `headers` in lower case and sorted, `path` and `query` as sent."""
    lines = [f"{name}:{value}" for name, value in headers.items()]
    return "\n".join([method, path, query, *lines, "", ";".join(headers), payload])


def string_to_sign(algorithm: str, stamp: str, scope: str, canonical: str) -> str:
    """The text that the key signs."""
    return "\n".join([algorithm, stamp, scope, hashlib.sha256(canonical.encode()).hexdigest()])


def _moment(now: float) -> tuple[str, str]:
    stamp = f"{datetime.fromtimestamp(now, UTC):%Y%m%dT%H%M%SZ}"
    return stamp, f"{stamp[:8]}/auto/storage/goog4_request"
