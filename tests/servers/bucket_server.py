"""The base of the verifying servers of OSS and OBS: versioned buckets in memory, listings, HEAD,
ranges, conditions, and PUT.

A subclass recomputes the signature and names headers and codes as its provider does. The server
expects path-style addresses on an IP address, and virtual-hosted ones otherwise. It works as a
forward proxy too, so that names need not resolve.
"""

from __future__ import annotations

import hashlib
import ipaddress
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from email.utils import formatdate
from urllib.parse import quote, unquote, urlsplit
from xml.sax.saxutils import escape

from tests.servers.http11 import Answer, HttpServer, Request
from tests.servers.scripted import parse_range

SKEW_S = 15 * 60


@dataclass(frozen=True, slots=True)
class Identity:
    """A key pair that the server knows."""

    key_id: str
    secret: str
    token: str = ""
    writes: bool = True


@dataclass(slots=True)
class Stored:
    """One version of an object."""

    body: bytes
    version_id: str
    modified_at: int
    headers: dict[str, str] = field(default_factory=dict)
    storage_class: str = ""

    @property
    def etag(self) -> str:
        """The MD5 in capitals, as OSS writes it."""
        return f'"{hashlib.md5(self.body).hexdigest().upper()}"'


@dataclass(frozen=True, slots=True)
class Asked:
    """A request in the server's terms; no field is decoded twice."""

    request: Request
    method: str
    host: str
    """The endpoint's host, without the bucket."""
    bucket: str
    raw_key: str
    raw_query: str

    @property
    def key(self) -> str:
        return unquote(self.raw_key)

    @property
    def query(self) -> dict[str, str]:
        pairs = (pair.partition("=") for pair in self.raw_query.split("&") if pair)
        return {unquote(name): unquote(value) for name, _, value in pairs}


class Refused(Exception):
    def __init__(self, status: int, code: str, extra: str = "", message: str = "") -> None:
        super().__init__(code)
        self.status, self.code, self.extra, self.message = status, code, extra, message


class BucketServer(HttpServer):
    """A bucket server; `put` and `delete` change `bucket`, and `identities` are the valid keys."""

    header: str
    lists_by_token: bool

    def __init__(self, *identities: Identity, bucket: str = "bucket", clock: Callable[[], float] = time.time) -> None:
        super().__init__()
        self.identities = {identity.key_id: identity for identity in identities}
        self.bucket = bucket
        self.objects: dict[str, list[Stored]] = {}
        self.deleted: set[str] = set()
        self.public = False
        self.elsewhere: Mapping[str, str] = {}
        """The bucket's actual endpoint, by the endpoint host that the client asked."""
        self.clock = clock

    def put(self, key: str, body: bytes, *, storage_class: str = "", headers: Mapping[str, str] | None = None) -> None:
        versions = self.objects.setdefault(key, [])
        versions.append(Stored(body, f"v{len(versions)}+/=", int(self.clock()), dict(headers or {}), storage_class))
        self.deleted.discard(key)

    def delete(self, key: str) -> None:
        self.deleted.add(key)

    def verify(self, asked: Asked) -> None:
        """Check the signature. Raises Refused."""
        raise NotImplementedError

    def refusal(self, asked: Asked, refused: Refused) -> Answer:
        body = (
            f'<?xml version="1.0" encoding="UTF-8"?>\n<Error>\n  <Code>{refused.code}</Code>\n'
            f"  <Message>{refused.message or 'no'}</Message>\n  <RequestId>5C3D9175B6FC201293AD4890</RequestId>\n"
            f"  <HostId>{escape(asked.host)}</HostId>\n{refused.extra}</Error>"
        ).encode()
        return Answer(refused.status, {"Content-Type": "application/xml"}, body)

    async def answer(self, request: Request) -> Answer:
        asked = _asked(request)
        try:
            answer = self._answer(asked)
        except Refused as refused:
            answer = self.refusal(asked, refused)
            if request.method == "HEAD":
                answer.body = b""
        answer.headers.setdefault("Date", formatdate(self.clock(), usegmt=True))
        return answer

    def _answer(self, asked: Asked) -> Answer:
        if there := self.elsewhere.get(asked.host):
            raise Refused(403, "AccessDenied", f"  <Endpoint>{there}</Endpoint>\n")
        if asked.method not in ("GET", "HEAD", "PUT"):
            raise Refused(405, "MethodNotAllowed")
        self.verify(asked)
        if asked.bucket != self.bucket:
            raise Refused(404, "NoSuchBucket")
        if asked.method == "PUT":
            return self._write(asked)
        if not asked.raw_key:
            return self._listing(asked.query)
        return self._object(asked)

    def _write(self, asked: Asked) -> Answer:
        headers = asked.request.headers
        signer = next((each for each in self.identities.values() if each.key_id in headers["authorization"]), None)
        if not asked.raw_key or signer is None or not signer.writes:
            raise Refused(403, "AccessDenied")
        self.check_overwrite(asked, is_there=asked.key in self.objects and asked.key not in self.deleted)
        kept = {name.title(): headers[name] for name in ("content-type", "cache-control") if name in headers}
        self.put(asked.key, asked.request.body, headers=kept)
        return Answer(200, {"ETag": self.objects[asked.key][-1].etag})

    def check_overwrite(self, asked: Asked, *, is_there: bool) -> None:
        """Check the conditions of a PUT. Raises Refused."""

    def _object(self, asked: Asked) -> Answer:
        version_id = asked.query.get("versionId", "")
        versions = self.objects.get(asked.key, [])
        found = [v for v in versions if v.version_id == version_id] if version_id else versions[-1:]
        if not found or (not version_id and asked.key in self.deleted):
            raise Refused(404, "NoSuchVersion" if version_id else "NoSuchKey")
        stored = found[0]
        wanted = asked.request.headers
        if wanted.get("if-match", stored.etag) != stored.etag:
            raise Refused(412, "PreconditionFailed")
        headers = {
            "ETag": stored.etag,
            "Last-Modified": formatdate(stored.modified_at, usegmt=True),
            "Content-Type": "application/octet-stream",
            f"{self.header}version-id": stored.version_id,
            **({f"{self.header}storage-class": stored.storage_class} if stored.storage_class else {}),
            **stored.headers,
        }
        if asked.method == "HEAD":
            return Answer(200, {**headers, "Content-Length": str(len(stored.body))})
        if stored.storage_class and f"{self.header}restore" not in stored.headers:
            raise Refused(403, "InvalidObjectState")
        if "range" not in wanted:
            return Answer(200, headers, stored.body)
        span = parse_range(wanted["range"], len(stored.body))
        if span is None:
            raise Refused(416, "InvalidRange")
        headers["Content-Range"] = f"bytes {span.start}-{span.stop - 1}/{len(stored.body)}"
        return Answer(206, headers, stored.body[span.start : span.stop])

    def _listing(self, query: Mapping[str, str]) -> Answer:
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        after = query.get("continuation-token" if self.lists_by_token else "marker", "").encode()
        most = int(query.get("max-keys", "100"))
        assert 0 < most <= 1000
        entries: dict[str, str] = {}
        for key in sorted(self.objects, key=str.encode):
            if key in self.deleted or not key.startswith(prefix):
                continue
            head, found, _ = key[len(prefix) :].partition(delimiter) if delimiter else (key, "", "")
            name = prefix + head + found if found else key
            if name.encode() > after and name not in entries:
                entries[name] = (
                    f"<CommonPrefixes><Prefix>{quote(name)}</Prefix></CommonPrefixes>" if found else self._entry(name)
                )
        shown = list(entries)[:most]
        truncated = len(shown) < len(entries)
        following = f"<{self._next_element}>{quote(shown[-1])}</{self._next_element}>" if truncated else ""
        assert query.get("encoding-type") == "url", "without encoding-type=url some keys have no XML form"
        body = (
            f'<?xml version="1.0" encoding="UTF-8"?>\n<ListBucketResult><Name>{self.bucket}</Name><Prefix>{quote(prefix)}</Prefix>'
            f"<MaxKeys>{most}</MaxKeys><EncodingType>url</EncodingType><IsTruncated>{str(truncated).lower()}</IsTruncated>{following}"
            f"{''.join(entries[name] for name in shown)}</ListBucketResult>"
        )
        return Answer(200, {"Content-Type": "application/xml"}, body.encode())

    @property
    def _next_element(self) -> str:
        return "NextContinuationToken" if self.lists_by_token else "NextMarker"

    def _entry(self, key: str) -> str:
        stored = self.objects[key][-1]
        modified = time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(stored.modified_at))
        return (
            f"<Contents><Key>{quote(key)}</Key><LastModified>{modified}</LastModified><ETag>{escape(stored.etag)}</ETag>"
            f"<Type>Normal</Type><Size>{len(stored.body)}</Size>"
            f"<StorageClass>{stored.storage_class or 'Standard'}</StorageClass></Contents>"
        )


def _asked(request: Request) -> Asked:
    target = urlsplit(request.target)
    host = request.headers["host"].partition(":")[0]
    path = target.path.removeprefix("/")
    if _is_address(host):
        bucket, _, raw_key = path.partition("/")
    else:
        (bucket, _, host), raw_key = host.partition("."), path
    return Asked(request, request.method, host, bucket, raw_key, target.query)


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return host == "localhost"
    return True
