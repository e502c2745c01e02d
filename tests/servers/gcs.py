"""Google Cloud Storage in a thread, with its token servers: it verifies all that it believes.

It has list, metadata and media of the JSON API, the same and PUT of the XML API, generations,
decompressive transcoding, and requester pays.

It recomputes signatures from the raw request, by its own reading of Google's documentation
(https://cloud.google.com/storage/docs/authentication/canonical-requests). It checks RSA signatures
with the account's public key.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
import zlib
from base64 import b64decode, b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import formatdate
from typing import Any
from urllib.parse import quote, unquote
from xml.sax.saxutils import escape

from d7yfs.checksum import crc32c
from tests.servers.google_tokens import SKEW_S, Refusal, Reply, Request, TokenServer, json_reply

WRITE_SCOPES = frozenset(
    f"https://www.googleapis.com/auth/{name}" for name in ("devstorage.read_write", "cloud-platform")
)
STORAGE_SCOPES = WRITE_SCOPES | {"https://www.googleapis.com/auth/devstorage.read_only"}


@dataclass(slots=True)
class Stored:
    """One generation of an object."""

    key: str
    body: bytes
    generation: str
    created: float
    encoding: str = ""
    cache_control: str = ""
    md5: bool = True
    """False for a composite object, which has no MD5."""

    @property
    def time(self) -> str:
        return datetime.fromtimestamp(self.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")

    @property
    def hashes(self) -> dict[str, str]:
        crc = b64encode(crc32c(self.body).to_bytes(4, "big")).decode()
        return {"crc32c": crc} | ({"md5": b64encode(hashlib.md5(self.body).digest()).decode()} if self.md5 else {})


@dataclass(slots=True)
class Bucket:
    public: bool = False
    requester_pays: bool = False
    versioned: bool = False
    writable: bool = True
    objects: dict[str, Stored] = field(default_factory=dict)
    noncurrent: list[Stored] = field(default_factory=list)


class GcsServer(TokenServer):
    """A server of buckets, with the rules of access to them."""

    def __init__(self) -> None:
        super().__init__()
        self.buckets: dict[str, Bucket] = {}
        self.hmac_keys: dict[str, str] = {}
        self._generation = time.time_ns() // 1000

    # --- set-up by a test ---

    def put(self, bucket: str, key: str, body: bytes, **properties: Any) -> Stored:
        with self.lock:
            self._generation += 1
            stored = Stored(key, body, str(self._generation), time.time(), **properties)
            home = self.buckets.setdefault(bucket, Bucket())
            self._retire(home, key)
            home.objects[key] = stored
            return stored

    def delete(self, bucket: str, key: str) -> None:
        with self.lock:
            self._retire(self.buckets[bucket], key)

    def hmac_key(self) -> tuple[str, str]:
        """A new access id and its secret."""
        access_id = f"GOOG1E{secrets.token_hex(20).upper()}"
        self.hmac_keys[access_id] = secrets.token_urlsafe(30)
        return access_id, self.hmac_keys[access_id]

    def honest(self, request: Request) -> Reply:
        as_json = request.path.startswith("/storage/v1/")
        if (
            not as_json and request.path.startswith(("/token", "/sts", "/computeMetadata/", "/v1/"))
        ) or request.path == "/":
            return super().honest(request)
        try:
            return self._json_api(request) if as_json else self._xml_api(request)
        except Refusal as refusal:
            return _json_error(refusal) if as_json else _xml_error(refusal)

    def _retire(self, home: Bucket, key: str) -> None:
        old = home.objects.pop(key, None)
        if old and home.versioned:
            home.noncurrent.append(old)

    # --- the store ---

    def _json_api(self, request: Request) -> Reply:
        _, _, _, _, bucket, _, *rest = request.path.split("/")
        home = self._home(bucket, request)
        query = request.query
        if not rest:
            objects, prefixes, token = self._page(
                home, query, query.get("pageToken", ""), query.get("maxResults", "1000")
            )
            page = {"items": [_described(each) for each in objects], "prefixes": prefixes, "nextPageToken": token}
            return json_reply(200, {"kind": "storage#objects"} | {name: value for name, value in page.items() if value})
        (key,) = rest
        stored = _find(home, unquote(key), query.get("generation"))
        if query.get("ifGenerationMatch") not in (None, stored.generation):
            raise Refusal(412, "conditionNotMet")
        return _media(stored, request) if query.get("alt") == "media" else json_reply(200, _described(stored))

    def _xml_api(self, request: Request) -> Reply:
        _, bucket, *rest = request.path.split("/", 2)
        home = self._home(unquote(bucket), request)
        query = request.query
        if request.method == "PUT":
            return self._write(home, unquote(bucket), unquote(rest[0]), request)
        if rest and rest[0]:
            return _media(_find(home, unquote(rest[0]), query.get("generation")), request)
        if query.get("list-type") != "2" or query.get("encoding-type") != "url":
            raise Refusal(400, "InvalidArgument")
        objects, prefixes, token = self._page(
            home, query, query.get("continuation-token", ""), query.get("max-keys", "1000")
        )
        entries = [
            f"<Contents><Key>{quote(each.key, safe='')}</Key><Generation>{each.generation}</Generation>"
            f"<MetaGeneration>1</MetaGeneration><LastModified>{each.time}</LastModified><ETag>{_etag(each)}</ETag>"
            f"<Size>{len(each.body)}</Size></Contents>"
            for each in objects
        ]
        entries += [f"<CommonPrefixes><Prefix>{quote(each, safe='')}</Prefix></CommonPrefixes>" for each in prefixes]
        more = f"<NextContinuationToken>{token}</NextContinuationToken>" if token else ""
        body = (
            "<?xml version='1.0' encoding='UTF-8'?><ListBucketResult xmlns='http://doc.s3.amazonaws.com/2006-03-01'>"
            f"<Name>{escape(bucket)}</Name><EncodingType>url</EncodingType>"
            f"<IsTruncated>{'true' if token else 'false'}</IsTruncated>{more}{''.join(entries)}</ListBucketResult>"
        )
        return Reply(200, {"Content-Type": "application/xml"}, body.encode())

    def _write(self, home: Bucket, bucket: str, key: str, request: Request) -> Reply:
        if not home.writable:
            raise Refusal(403, "AccessDenied", "… does not have storage.objects.create access to the object.")
        current = home.objects.get(key)
        wanted = request.headers.get("x-goog-if-generation-match")
        if wanted is not None and wanted != (current.generation if current else "0"):
            raise Refusal(412, "PreconditionFailed")
        stored = self.put(bucket, key, request.body, cache_control=request.headers.get("cache-control", ""))
        return Reply(200, {"x-goog-generation": stored.generation, "ETag": _etag(stored)})

    def _page(
        self, home: Bucket, query: Mapping[str, str], token: str, limit: str
    ) -> tuple[list[Stored], list[str], str]:
        """One page of a listing. The token is the last entry of the page before, in base64."""
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        after = b64decode(token)
        entries: dict[str, Stored | None] = {}
        for key in sorted(home.objects, key=str.encode):
            if key.startswith(prefix):
                head, found, _ = key[len(prefix) :].partition(delimiter) if delimiter else (key, "", "")
                entries[prefix + head + found if found else key] = None if found else home.objects[key]
        names = [name for name in entries if name.encode() > after]
        page = names[: int(limit)]
        objects = [stored for name in page if (stored := entries[name])]
        more = b64encode(page[-1].encode()).decode() if len(names) > len(page) else ""
        return objects, [name for name in page if entries[name] is None], more

    def _home(self, bucket: str, request: Request) -> Bucket:
        """The bucket, after the request has proved its right to read it."""
        home = self.buckets.get(bucket)
        as_json = request.path.startswith("/storage/v1/")
        authorization, query = request.headers.get("authorization", ""), request.query
        if authorization.startswith("Bearer "):
            self.check_token(request, WRITE_SCOPES if request.method == "PUT" else STORAGE_SCOPES)
        elif "X-Goog-Signature" in query and not as_json:
            self._check_url(request)
        elif authorization.startswith("GOOG4-HMAC-SHA256 ") and not as_json:
            self._check_header(request)
        elif authorization:
            raise Refusal(401, "authError")
        elif not home or not home.public:
            raise Refusal(401, "required") if as_json else Refusal(403, "AccessDenied")
        if home is None:
            raise Refusal(404, "notFound" if as_json else "NoSuchBucket", "The specified bucket does not exist.")
        if home.requester_pays and "userProject" not in query and "x-goog-user-project" not in request.headers:
            raise Refusal(400, "required" if as_json else "UserProjectMissing")
        return home

    # --- verification ---

    def _check_url(self, request: Request) -> None:
        query = request.query
        signature = bytes.fromhex(query.pop("X-Goog-Signature"))
        signed = query["X-Goog-SignedHeaders"].split(";")
        if not {"host"} <= set(signed) or {"range", "if-match"} & set(signed):
            raise Refusal(403, "AccessDenied")
        began = _check_date(time.time(), query["X-Goog-Date"])
        if time.time() > began + int(query["X-Goog-Expires"]):
            raise Refusal(400, "ExpiredToken", "The provided token has expired.")
        # The raw query without the signature: a client that encodes it otherwise has signed another
        # text.
        raw = "&".join(
            sorted(part for part in request.raw_query.split("&") if not part.startswith("X-Goog-Signature="))
        )
        self._verify(request, raw, signed, "UNSIGNED-PAYLOAD", query, signature)

    def _check_header(self, request: Request) -> None:
        algorithm, _, rest = request.headers["authorization"].partition(" ")
        fields = dict(part.strip().split("=", 1) for part in rest.split(","))
        if time.time() > _check_date(time.time(), request.headers["x-goog-date"]) + SKEW_S:
            raise Refusal(403, "RequestTimeTooSkewed")
        query = {
            "X-Goog-Algorithm": algorithm,
            "X-Goog-Credential": fields["Credential"],
            "X-Goog-Date": request.headers["x-goog-date"],
        }
        raw = "&".join(sorted(request.raw_query.split("&"))) if request.raw_query else ""
        payload = request.headers["x-goog-content-sha256"]
        signed = fields["SignedHeaders"].split(";")
        if payload != hashlib.sha256(request.body).hexdigest() or not set(signed) >= {
            name for name in request.headers if name.startswith("x-goog-")
        }:
            raise Refusal(403, "SignatureDoesNotMatch")
        self._verify(request, raw, signed, payload, query, bytes.fromhex(fields["Signature"]))

    def _verify(
        self, request: Request, raw: str, signed: list[str], payload: str, query: dict[str, str], signature: bytes
    ) -> None:
        headers = "".join(f"{name}:{request.headers[name]}\n" for name in signed)
        canonical = "\n".join([request.method, request.path, raw, headers, ";".join(signed), payload])
        name, _, scope = query["X-Goog-Credential"].partition("/")
        day, *_ = scope.split("/")
        if scope != f"{day}/auto/storage/goog4_request" or not query["X-Goog-Date"].startswith(day):
            raise Refusal(400, "AuthenticationRequired")
        digest = hashlib.sha256(canonical.encode()).hexdigest()
        text = "\n".join([query["X-Goog-Algorithm"], query["X-Goog-Date"], scope, digest]).encode()
        if query["X-Goog-Algorithm"] == "GOOG4-HMAC-SHA256":
            if name not in self.hmac_keys:
                raise Refusal(403, "InvalidSecurity")
            key = f"GOOG4{self.hmac_keys[name]}".encode()
            for part in (*scope.split("/"), text.decode()):
                key = hmac.new(key, part.encode(), hashlib.sha256).digest()
            right = hmac.compare_digest(key, signature)
        else:
            right = self.is_signed_by(name, text, signature)
        if not right:
            raise Refusal(403, "SignatureDoesNotMatch")


def _check_date(now: float, stamp: str) -> float:
    began = datetime.strptime(stamp, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC).timestamp()
    if began > now + SKEW_S:
        raise Refusal(403, "RequestTimeTooSkewed")
    return began


def _etag(stored: Stored) -> str:
    return f'"{hashlib.md5(stored.body).hexdigest()}"'


def _described(stored: Stored) -> dict[str, str]:
    hashed = stored.hashes
    fields = {
        "name": stored.key,
        "size": str(len(stored.body)),
        "generation": stored.generation,
        "timeCreated": stored.time,
        "crc32c": hashed["crc32c"],
        "md5Hash": hashed.get("md5", ""),
        "contentEncoding": stored.encoding,
    }
    return {name: value for name, value in fields.items() if value}


def _find(home: Bucket, key: str, generation: str | None) -> Stored:
    current = home.objects.get(key)
    if generation is None:
        if current is None:
            raise Refusal(404, "NoSuchKey")
        return current
    for stored in [*home.noncurrent, *([current] if current else [])]:
        if (stored.key, stored.generation) == (key, generation):
            return stored
    raise Refusal(404, "NoSuchKey")


def _media(stored: Stored, request: Request) -> Reply:
    headers = {
        "ETag": _etag(stored),
        "Last-Modified": formatdate(stored.created, usegmt=True),
        "x-goog-generation": stored.generation,
        "x-goog-hash": ",".join(f"{name}={value}" for name, value in stored.hashes.items()),
        "x-goog-stored-content-encoding": stored.encoding or "identity",
        "x-goog-stored-content-length": str(len(stored.body)),
        "Content-Type": "application/octet-stream",
    }
    if stored.cache_control:
        headers["Cache-Control"] = stored.cache_control
    if stored.encoding == "gzip" and "gzip" not in request.headers.get("accept-encoding", ""):
        body = b"" if request.method == "HEAD" else zlib.decompress(stored.body, wbits=31)
        return Reply(200, headers | {"Warning": "214 UploadServer gunzipped"}, body, chunked=True)
    if stored.encoding:
        headers["Content-Encoding"] = stored.encoding
    span = request.headers.get("range")
    if not span:
        return Reply(200, headers, stored.body)
    first, _, last = span.removeprefix("bytes=").partition("-")
    start, stop = int(first), min(int(last) + 1 if last else len(stored.body), len(stored.body))
    if start >= stop:
        raise Refusal(416, "InvalidRange")
    headers["Content-Range"] = f"bytes {start}-{stop - 1}/{len(stored.body)}"
    return Reply(206, headers, stored.body[start:stop])


def _json_error(refusal: Refusal) -> Reply:
    reason = "notFound" if refusal.status == 404 else refusal.code
    each = {"domain": "global", "reason": reason, "message": refusal.message}
    return json_reply(refusal.status, {"error": {"code": refusal.status, "message": refusal.message, "errors": [each]}})


def _xml_error(refusal: Refusal) -> Reply:
    body = f"<?xml version='1.0'?><Error><Code>{refusal.code}</Code><Message>{refusal.message}</Message></Error>"
    return Reply(refusal.status, {"Content-Type": "application/xml"}, body.encode())
