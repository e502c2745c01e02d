"""An origin over a REST dialect of the family that OSS and OBS belong to: listings in S3's XML, their own signatures and header names.

Owns what the two have in common: the address of bucket and keys, lists, stats, checksums and the bounded table of signed requests. What
differs is a `Signer` and what a subclass says of itself (`oss`, `obs`). Control calls go over `rest.Rest`; signing never blocks, so it is
done where it is needed, with the keys that `renewal` has at hand.

A bucket that turns out to be at another endpoint of the same provider is followed there once. Keys are never sent to a host outside the
domain of the endpoint that was configured.
"""

from __future__ import annotations

import ipaddress
import logging
import math
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from email.utils import parsedate_to_datetime
from typing import ClassVar, Protocol
from urllib.parse import quote, urlsplit

from cachetools import TLRUCache

from d7yfs.config.place import endpoint_name, provider_domain
from d7yfs.errors import AccessDenied, BadReply, D7yfsError, NotFound
from d7yfs.objects import ListingPage, ObjectVersion, StoreIdentity
from d7yfs.origins.origin import Checksums, ReadRequest
from d7yfs.origins.refusal import Call, Vocabulary, refusal, xml_code
from d7yfs.origins.renewal import Renewal
from d7yfs.origins.rest import Reply, Rest
from d7yfs.origins.rest_stores.access_keys import AccessKeys
from d7yfs.origins.xml_listing import XmlListing, entity_tag, parse_listing

SIGNATURE_LIFE_S = 900
"""How long a signed GET is valid: the longest that both providers grant a header signature (their clock-skew window)."""
_SIGNED_MAX = 2048
_PAGE_MAX = 1000
_ENDPOINT = re.compile(rb"<Endpoint>\s*(?:https?://)?([A-Za-z0-9.-]{4,255})\s*</Endpoint>")

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Address:
    """Where a bucket is."""

    endpoint_url: str
    """In `normal_endpoint`'s form."""
    bucket: str
    virtual: bool
    """Whether the bucket stands in the host name; else it is the first segment of the path."""

    @classmethod
    def of(cls, endpoint_url: str, bucket: str, addressing_style: str) -> Address:
        """`addressing_style` is "path", "virtual" or "auto": virtual where the host is a domain, which a bucket can be a label of."""
        auto = addressing_style == "auto"
        return cls(endpoint_url, bucket, _is_domain(endpoint_url) if auto else addressing_style == "virtual")

    @property
    def host(self) -> str:
        """The endpoint's, without port."""
        return urlsplit(self.endpoint_url).hostname or ""

    def url(self, key: str, query: Mapping[str, str]) -> str:
        """Percent-encoded; an empty key is the bucket itself. Raises ValueError for a key that is not Unicode."""
        scheme, _, rest = self.endpoint_url.partition("://")
        base = f"{scheme}://{self.bucket}.{rest}/" if self.virtual else f"{self.endpoint_url}/{self.bucket}/"
        encoded = encoded_query(query)
        return base + quote(key, safe="/") + (f"?{encoded}" if encoded else "")


def encoded_query(query: Mapping[str, str]) -> str:
    """As it stands in the URL; a name without value has no `=`."""
    pairs = ((quote(name, safe=""), quote(value, safe="")) for name, value in query.items())
    return "&".join(f"{name}={value}" if value else name for name, value in pairs)


class Signer(Protocol):
    """A provider's signature. Pure; `now` and `expires_at` are time.time()."""

    params: frozenset[str]
    """Names that `in_query` may add."""

    def in_headers(
        self,
        method: str,
        bucket: str,
        key: str,
        query: Mapping[str, str],
        headers: Mapping[str, str],
        keys: AccessKeys,
        now: float,
    ) -> dict[str, str]:
        """`headers` and those that sign the request."""

    def in_query(
        self, bucket: str, key: str, query: Mapping[str, str], keys: AccessKeys, now: float, expires_at: float
    ) -> dict[str, str]:
        """`query` and what signs a GET with no headers."""


class BucketRest(ABC):
    """One bucket; see the module and `origins.origin.Origin`."""

    scheme: ClassVar[str]
    service: ClassVar[str]
    """What people call it."""
    header: ClassVar[str]
    """What its header names begin with."""
    archives: ClassVar[frozenset[str]]
    """Storage classes without a readable copy until restored."""
    words: ClassVar[Vocabulary]
    list_permission: ClassVar[str]
    read_permission: ClassVar[str]

    def __init__(
        self,
        address: Address,
        signer: Signer,
        ring: Renewal[AccessKeys],
        rest: Rest,
        *,
        credentials: str,
        shown_endpoint: str = "",
        versioned: bool = False,
        requester_pays: bool = False,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`credentials` says which were configured, in words; `shown_endpoint` is empty for one that follows from the region."""
        self._address = address
        self._signer = signer
        self._ring = ring
        self._rest = rest
        self._credentials = credentials
        self._shown_endpoint = shown_endpoint
        self._versioned = versioned
        self._paying = {f"{self.header}request-payer": "requester"} if requester_pays else {}
        self._clock = clock
        self._signed: TLRUCache[tuple[object, ...], ReadRequest] = TLRUCache(
            _SIGNED_MAX, lambda _key, request, now: now + (request.expires_at - now) / 2, timer=clock
        )

    @abstractmethod
    def _listing_query(self, token: str) -> dict[str, str]:
        """What asks for the page after `token`."""

    @abstractmethod
    def _next_token(self, page: XmlListing) -> str:
        """Of a page that is cut off."""

    @abstractmethod
    def _moved(self, address: Address) -> None:
        """The bucket is at `address`: sign for that."""

    @abstractmethod
    def _md5(self, headers: Mapping[str, str]) -> str | None:
        """The MD5 of a whole object that its HEAD tells, in lower-case hex."""

    @property
    def url(self) -> str:
        """`oss://bucket`, or with the endpoint where one is configured."""
        return f"{self.scheme}://" + (f"{self._shown_endpoint}/" if self._shown_endpoint else "") + self._address.bucket

    @property
    def identity(self) -> StoreIdentity:
        """A provider's bucket is the same at all endpoints of its domain."""
        return StoreIdentity(self.scheme, endpoint_name(self.scheme, self._address.endpoint_url), self._address.bucket)

    async def list(self, prefix: str, *, delimiter: str = "/", token: str = "", page_size: int = 1000) -> ListingPage:
        """One page; times are cut to seconds, as HEAD gives them."""
        asked = {"prefix": prefix, "delimiter": delimiter, "max-keys": str(min(page_size, _PAGE_MAX))}
        query = {name: value for name, value in asked.items() if value}
        query |= {"encoding-type": "url", **self._listing_query(token)}
        reply = await self._call("GET", "", query, needs=self.list_permission, subject=prefix)
        try:
            page = parse_listing(reply.body, archives=self.archives)
        except ValueError as error:
            raise BadReply(
                f"{self._subject(prefix)}: what answers is not {self.service}: {error}",
                hint=f"endpoint {self._address.endpoint_url}",
            ) from None
        next_token = self._next_token(page) if page.truncated else ""
        if page.truncated and next_token in ("", token):
            raise BadReply(f"{self._subject(prefix)}: the listing is cut off and names no next page")
        date = reply.date
        return ListingPage(
            page.objects, page.prefixes, next_token, int((self._clock() if date is None else date) * 1e9)
        )

    async def stat(self, key: str) -> ObjectVersion:
        """One HEAD. Raises NotFound."""
        headers = (await self._head(key, {})).headers
        storage_class = headers.get(f"{self.header}storage-class", "")
        restored = 'ongoing-request="false"' in headers.get(f"{self.header}restore", "")
        version_id = headers.get(f"{self.header}version-id", "") if self._versioned else ""
        try:
            return ObjectVersion(
                key=key,
                size_bytes=int(headers["content-length"]),
                validator=entity_tag(headers["etag"]),
                mtime_ns=int(parsedate_to_datetime(headers["last-modified"]).timestamp()) * 1_000_000_000,
                version_id="" if version_id == "null" else version_id,  # "null" is replaced by overwriting: no pin
                archived=storage_class if storage_class in self.archives and not restored else "",
            )
        except (KeyError, ValueError):
            raise BadReply(f"{self._subject(key)}: the reply leaves out size, ETag or time") from None

    async def checksums(self, version: ObjectVersion) -> Checksums:
        """One HEAD, compared by its ETag. The providers' own CRC64 cannot be compared with anything here."""
        headers = (await self._head(version.key, _pinned(version))).headers
        if entity_tag(headers.get("etag", "")) != version.validator:
            return Checksums()
        return Checksums(md5=self._md5(headers))

    async def read_request(self, version: ObjectVersion, *, presigned: bool, fresh: bool = False) -> ReadRequest:
        """A GET signed for SIGNATURE_LIFE_S or until the keys end, reused for half of that time.

        Does not wait unless there are no valid keys. Raises NotFound for a key that cannot be.
        """
        place = (version.identity, version.version_id, presigned)
        if fresh:
            self._signed.clear()
            await self._ring.reload()
        elif (known := self._signed.get(place)) is not None:
            return known
        keys = await self._ring.current()
        try:
            request = self._sign(version, keys, presigned=presigned)
        except ValueError:
            raise NotFound(f"{self._subject(version.key)}: not a name that {self.service} allows") from None
        self._signed[place] = request
        return request

    @property
    def credentials_expire_at(self) -> float:
        return self._ring.held.expires_at if self._ring.held is not None else math.inf

    def describe(self) -> dict[str, str]:
        """Endpoint and where the credentials were found, as far as it has looked."""
        keys = self._ring.held
        return {
            "endpoint": self._address.endpoint_url,
            "credentials": keys.source if keys is not None and keys.source else self._credentials,
        }

    async def aclose(self) -> None:
        """Close the connections."""
        await self._ring.aclose()
        self._signed.clear()
        await self._rest.aclose()

    def _sign(self, version: ObjectVersion, keys: AccessKeys | None, *, presigned: bool) -> ReadRequest:
        if not version.key:
            raise ValueError("an empty key")
        bucket, key, query = self._address.bucket, version.key, _pinned(version)
        pin = {"If-Match": version.validator}
        if keys is None:
            return ReadRequest(self._address.url(key, query), {**self._paying, **pin}, math.inf)
        now = self._clock()
        expires_at = min(now + SIGNATURE_LIFE_S, keys.expires_at)
        if presigned:
            query = self._signer.in_query(bucket, key, query | self._paying, keys, now, expires_at)
            return ReadRequest(self._address.url(key, query), pin, expires_at, self._signer.params & query.keys())
        headers = self._signer.in_headers("GET", bucket, key, query, self._paying, keys, now)
        return ReadRequest(self._address.url(key, query), {**headers, **pin}, expires_at)

    async def _head(self, key: str, query: Mapping[str, str]) -> Reply:
        if not key:
            raise NotFound(f"{self._subject(key)}: no such object")
        return await self._call("HEAD", key, query, needs=self.read_permission, subject=key)

    async def _call(self, method: str, key: str, query: Mapping[str, str], *, needs: str, subject: str) -> Reply:
        """Sent again once where the bucket turns out to be elsewhere, and once where the keys have changed meanwhile."""
        moved = renewed = False
        while True:
            keys = await self._ring.current()
            reply = await self._send(method, key, query, keys, subject)
            if reply.status < 300:
                return reply
            reply = self._told(reply)
            code = xml_code(reply)
            there = _host_in(reply)
            if there and not moved and self._go_to(there):
                moved = True
            elif not renewed and code in self._stale_keys and await self._ring.reload() != keys:
                renewed = True
            else:
                raise self._failure(reply, code, there, needs, subject)

    async def _send(
        self, method: str, key: str, query: Mapping[str, str], keys: AccessKeys | None, subject: str
    ) -> Reply:
        headers: Mapping[str, str] = self._paying
        try:
            url = self._address.url(key, query)
        except ValueError:
            raise NotFound(f"{self._subject(subject)}: not a name that {self.service} allows") from None
        if keys is not None:
            headers = self._signer.in_headers(method, self._address.bucket, key, query, headers, keys, self._clock())
        return await self._rest.send(method, url, headers, subject=self._subject(subject))

    @property
    def _stale_keys(self) -> frozenset[str]:
        return self.words.unknown_key_id | self.words.bad_signature | self.words.expired

    def _told(self, reply: Reply) -> Reply:
        """A refusal, with the error as its body where the provider tells it otherwise: a reply to HEAD has none."""
        return reply

    def _failure(self, reply: Reply, code: str, there: str, needs: str, subject: str) -> D7yfsError:
        if there:
            return AccessDenied(
                f"{self._subject(subject)}: the bucket is at {there}, not at {self._address.host}",
                hint=f'set endpoint_url = "https://{there}", if that is to be trusted',
            )
        credentials = self.describe()["credentials"]
        call = Call(self._subject(subject), needs, self._address.endpoint_url, credentials, self._clock())
        return refusal(reply, code, call, self.words)

    def _go_to(self, host: str) -> bool:
        """Whether `host` is another endpoint of the same provider; then requests go there from now on."""
        domain = provider_domain(self.scheme, self._address.endpoint_url)
        host = host.lower().removeprefix(f"{self._address.bucket}.")
        if not domain or host == self._address.host or not host.endswith(f".{domain}"):
            return False
        log.warning("%s: the bucket is at %s, not at %s: going there", self.url, host, self._address.host)
        scheme = urlsplit(self._address.endpoint_url).scheme
        self._address = replace(self._address, endpoint_url=f"{scheme}://{host}")
        self._moved(self._address)
        self._signed.clear()
        return True

    def _subject(self, key: str) -> str:
        return f"{self.scheme}://{self._address.bucket}" + (f"/{key}" if key else "")


def _pinned(version: ObjectVersion) -> dict[str, str]:
    return {"versionId": version.version_id} if version.version_id else {}


def _host_in(reply: Reply) -> str:
    """The endpoint that a refusal names, in its body or as the place to go to."""
    if found := _ENDPOINT.search(reply.body[:16384]):
        return found[1].decode()
    if 300 <= reply.status < 400:
        host = urlsplit(reply.headers.get("location", "")).hostname or ""
        return host if re.fullmatch(r"[A-Za-z0-9.-]{4,255}", host) else ""
    return ""


def _is_domain(endpoint_url: str) -> bool:
    host = urlsplit(endpoint_url).hostname or ""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return "." in host
    return False
