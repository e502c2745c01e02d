"""One bucket of S3 or of a store of its dialect, by plain REST: S3, OSS and OBS are subclasses.

Owns the address of bucket and keys, the access keys and their renewal, and the meaning of replies;
`rest.RestOrigin` has the rest. The providers differ in a `BucketSigner`, in the sources of their
keys and in a handful of names. Signing never blocks; it uses the keys that `renewal` has at hand.

A bucket that turns out to be at another endpoint of the same provider is followed there once. Keys
are never sent to a host outside the domain of the configured endpoint.
"""

from __future__ import annotations

import ipaddress
import logging
import math
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar
from urllib.parse import quote, urlsplit

from d7yfs.bounds.values import bounded_text, read_size
from d7yfs.checksum import plain_md5
from d7yfs.config.place import endpoint_name, provider_domain
from d7yfs.config.schema import Anonymous, Credentials, Profile, ProviderChain, RepositoryConfig, StaticKeys
from d7yfs.config.url import normal_endpoint
from d7yfs.errors import AccessDenied, ConfigError, D7yfsError, NotFound
from d7yfs.objects import ListingPage, ObjectVersion, SecretStr, StoreIdentity
from d7yfs.origins.access_keys import AccessKeys, BucketRequest, BucketSigner, KeyFinder
from d7yfs.origins.headers import entity_tag
from d7yfs.origins.origin import ANONYMOUS, SESSION, Checksums, ReadRequest
from d7yfs.origins.places import none_found
from d7yfs.origins.refusal import Call, Vocabulary, place_of, refusal, xml_code
from d7yfs.origins.renewal import Renewal
from d7yfs.origins.rest import ControlReply, RestOrigin
from d7yfs.origins.xml_listing import XmlListing, parse_listing, seconds_ns

SIGNATURE_LIFE_S = 900
"""How long a signed GET is valid: the clock skew that all providers grant a header signature."""
_PAGE_MAX = 1000
_ENDPOINT = re.compile(rb"<Endpoint>\s*(?:https?://)?([A-Za-z0-9.-]{4,255})\s*</Endpoint>")
_RESOLVE = (
    "is the host right, in --endpoint-url or the URL, or the --region? With --addressing-style virtual the bucket's name stands before the "
    "host, which many stores of one's own have no name for: --addressing-style path"
)

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Address:
    """The address of a bucket."""

    endpoint_url: str
    """In the form of `normal_endpoint`; empty for the provider's own."""
    base_url: str
    """The URL of a key without its percent-encoded name."""

    @classmethod
    def of(cls, endpoint_url: str, bucket: str, addressing_style: str) -> Address:
        """The address by an `addressing_style`: "path", "virtual" or "auto".

        "auto" is virtual where the host is a domain, which can have the bucket as a label.
        """
        auto = addressing_style == "auto"
        scheme, _, rest = endpoint_url.partition("://")
        virtual = _is_domain(endpoint_url) if auto else addressing_style == "virtual"
        return cls(endpoint_url, f"{scheme}://{bucket}.{rest}/" if virtual else f"{endpoint_url}/{bucket}/")

    @property
    def host(self) -> str:
        """The endpoint's host, without port."""
        return urlsplit(self.endpoint_url).hostname or ""

    def build_url(self, key: str, query: Mapping[str, str]) -> str:
        """The URL of `key` (empty: the bucket). Raises ValueError for a key not in Unicode."""
        base = self.base_url + quote(key, safe="/")
        if not key and urlsplit(base).path != "/":
            base = base.removesuffix("/")
        return f"{base}?{encoded_query(query)}" if query else base


def configured_endpoint(subject: str, variable: str, environ: Mapping[str, str], *, hint: str) -> str:
    """The endpoint in an environment variable, with or without scheme; empty when unset.

    Raises ConfigError.
    """
    named = environ.get(variable, "")
    try:
        return named and normal_endpoint(named if "://" in named else f"https://{named}")
    except ValueError as error:
        raise ConfigError(f"{subject}: {variable} {error}", hint=hint) from None


def encoded_query(query: Mapping[str, str]) -> str:
    """`query` in the form of the URL; a name without value has no `=`."""
    pairs = ((quote(name, safe=""), quote(value, safe="")) for name, value in query.items())
    return "&".join(f"{name}={value}" if value else name for name, value in pairs)


class BucketRest(RestOrigin):
    """One bucket under one set of credentials, as an `Origin`."""

    scheme: ClassVar[str]
    header: ClassVar[str]
    """The prefix of the service's header names."""
    kinds: ClassVar[tuple[type, ...]] = (Anonymous, StaticKeys, ProviderChain, Profile)
    """The credentials that the service has."""
    give_credentials: ClassVar[str]
    """The hint where there are none."""
    no_host_hint = _RESOLVE
    archives: ClassVar[frozenset[str]]
    """Storage classes without a readable copy until restored."""
    words: ClassVar[Vocabulary]
    list_permission: ClassVar[str]
    read_permission: ClassVar[str]
    list_headers: Mapping[str, str] = {}
    checksum_headers: Mapping[str, str] = {}
    """Headers of a listing, and of the HEAD that asks for checksums."""

    def __init__(
        self,
        repository: RepositoryConfig,
        credentials: Credentials,
        address: Address,
        signer: BucketSigner,
        finder: KeyFinder,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Make no request. Raises ConfigError for a kind of credentials that the service lacks."""
        self._bucket = repository.url.bucket
        super().__init__(repository, f"{self.scheme}://{self._bucket}", clock=clock)
        if not isinstance(credentials, self.kinds):
            kind = f"credentials of that kind ({credentials})"
            raise ConfigError(f"{self._root}: {kind} are not {self.service}'s")
        self._address = address
        self._signer = signer
        self._credentials = credentials
        self._finder = finder
        self._renewal = Renewal(self._load, name=f"{self._root}: the credentials", clock=clock)
        self._shown_endpoint = repository.url.endpoint_url or repository.endpoint_url
        self._addressing_style = repository.addressing_style
        self._paying = {f"{self.header}request-payer": "requester"} if repository.requester_pays else {}

    def _listing_query(self, token: str) -> dict[str, str]:
        """The parameters that ask for the page after `token`."""
        return {"list-type": "2", **({"continuation-token": token} if token else {})}

    def _next_token(self, page: XmlListing) -> str:
        """The token of the page after a page that is cut off."""
        return page.next_token

    @property
    def url(self) -> str:
        """`oss://bucket`, or with the endpoint where one is configured."""
        return f"{self.scheme}://" + (f"{self._shown_endpoint}/" if self._shown_endpoint else "") + self._bucket

    @property
    def identity(self) -> StoreIdentity:
        """The bucket in its provider's domain: it is the same at all endpoints there."""
        return StoreIdentity(self.scheme, endpoint_name(self.scheme, self._address.endpoint_url), self._bucket)

    async def _ask_list(self, prefix: str, delimiter: str, token: str, page_size: int) -> ControlReply:
        asked = {"prefix": prefix, "delimiter": delimiter, "max-keys": str(min(page_size, _PAGE_MAX))}
        query = {name: value for name, value in asked.items() if value}
        query |= {"encoding-type": "url", **self._listing_query(token)}
        return await self._call("GET", "", query, self.list_headers, needs=self.list_permission, subject=prefix)

    def _parse_list(self, reply: ControlReply, date_ns: int) -> ListingPage:
        """The page; times are cut to seconds, as HEAD gives them."""
        page = parse_listing(reply.body, archives=self.archives)
        next_token = self._next_token(page) if page.truncated else ""
        if page.truncated and not next_token:
            raise ValueError("the listing is cut off and names no next page")
        return ListingPage(page.objects, page.prefixes, next_token, date_ns)

    def _parse_stat(self, reply: ControlReply, key: str) -> ObjectVersion:
        headers = reply.headers
        storage_class = headers.get(f"{self.header}storage-class", "")
        archived = storage_class if storage_class in self.archives else headers.get(f"{self.header}archive-status", "")
        restored = 'ongoing-request="false"' in headers.get(f"{self.header}restore", "")
        version_id = headers.get(f"{self.header}version-id", "") if self._versioned else ""
        return ObjectVersion(
            key=key,
            size_bytes=read_size(headers["content-length"]),
            validator=bounded_text(entity_tag(headers["etag"])),
            mtime_ns=seconds_ns(headers["last-modified"]),
            version_id=""
            if version_id == "null"
            else bounded_text(version_id),  # "null" is replaced by overwriting: no pin
            archived="" if restored else archived,
        )

    def _parse_checksums(self, reply: ControlReply) -> tuple[str, Checksums]:
        found = replace(self._crcs(reply.headers), md5=self._md5(reply.headers))
        return entity_tag(reply.headers.get("etag", "")), found

    def _crcs(self, headers: Mapping[str, str]) -> Checksums:  # noqa: ARG002 - the service's own headers
        """The CRCs of a whole object in the headers of its HEAD; OSS and OBS record another CRC64."""
        return Checksums()

    def _md5(self, headers: Mapping[str, str]) -> str | None:
        """The ETag of a simple upload, in lower-case hex; None for other objects.

        With keys of KMS or the customer's it only looks like an MD5.
        """
        if headers.get(f"{self.header}object-type", "Normal") != "Normal":
            return None
        if headers.get(f"{self.header}server-side-encryption", "AES256") != "AES256":
            return None
        if f"{self.header}server-side-encryption-customer-algorithm" in headers:
            return None
        return plain_md5(headers.get("etag", "").lower())

    async def _renew(self) -> None:
        await self._renewal.reload()

    async def _build_request(self, version: ObjectVersion, *, presigned: bool) -> ReadRequest:
        return self._sign(version, await self._keys(), presigned=presigned)

    @property
    def credentials_expire_at(self) -> float:
        return self._renewal.held.expires_at if self._renewal.held is not None else math.inf

    @property
    def principal(self) -> str:
        """The role where it is known, else the id of the key."""
        if isinstance(self._credentials, Anonymous):
            return ANONYMOUS
        if (keys := self._renewal.held) is not None:
            if keys.role:
                return f"role {keys.role}"
            return f"{SESSION}{keys.key_id}" if keys.token else f"key {keys.key_id}"
        return ANONYMOUS if self._renewal.is_valid else ""

    @property
    def lasting_secret(self) -> SecretStr:
        """The secret key, if it is of no role and no session."""
        keys = self._renewal.held
        lasts = keys is not None and not keys.token and not keys.role
        return SecretStr(keys.secret if keys is not None and lasts else "")

    def describe(self) -> dict[str, str]:
        """The endpoint and the source of the credentials, as far as known."""
        keys = self._renewal.held
        known = "none (anonymous)" if isinstance(self._credentials, Anonymous) else str(self._credentials)
        return {"endpoint": self._address.endpoint_url, "credentials": keys.source if keys is not None else known}

    async def aclose(self) -> None:
        """Close the connections."""
        await self._renewal.aclose()
        await super().aclose()

    async def _keys(self) -> AccessKeys | None:
        return None if isinstance(self._credentials, Anonymous) else await self._renewal.get()

    async def _load(self, held: AccessKeys | None) -> AccessKeys | None:
        """The keys as they are now; None for anonymous. Raises AccessDenied and ConfigError."""
        match self._credentials:
            case Anonymous():
                return None
            case StaticKeys(key_id=key_id, secret_key=secret, session_token=session_token) as given:
                token = session_token.get_secret_value() if session_token else ""
                return AccessKeys(key_id, secret.get_secret_value(), token, source=str(given))
            case Profile(name=name):
                found = await self._finder.find(name, held)
            case _:
                found = await self._finder.find("", held)
        if found is None and not (isinstance(self._credentials, ProviderChain) and self._credentials.else_anonymous):
            raise none_found(self._root, self.give_credentials, self._finder.places())
        return found

    def _sign(self, version: ObjectVersion, keys: AccessKeys | None, *, presigned: bool) -> ReadRequest:
        if not version.key:
            raise ValueError("an empty key")
        key, query = version.key, _pinned(version)
        pin = {"If-Match": version.validator}
        if keys is None:
            return ReadRequest(self._address.build_url(key, query), {**self._paying, **pin}, math.inf)
        now = self._clock()
        expires_at = min(now + SIGNATURE_LIFE_S, keys.expires_at)
        if presigned:
            asked = BucketRequest("GET", self._bucket, key, query | self._paying, {})
            query = self._signer.sign_query(asked, keys, now, expires_at)
            return ReadRequest(self._address.build_url(key, query), pin, expires_at, self._signer.params & query.keys())
        headers = self._signer.sign_headers(BucketRequest("GET", self._bucket, key, query, self._paying), keys, now)
        return ReadRequest(self._address.build_url(key, query), {**headers, **pin}, expires_at)

    async def _head(self, key: str, recorded: ObjectVersion | None = None) -> ControlReply:
        if not key:
            raise NotFound(f"{self._subject(key)}: no such object")
        query, headers = (_pinned(recorded), self.checksum_headers) if recorded else ({}, {})
        return await self._call("HEAD", key, query, headers, needs=self.read_permission, subject=key)

    async def _call(
        self,
        method: str,
        key: str,
        query: Mapping[str, str],
        headers: Mapping[str, str],
        *,
        needs: str,
        subject: str,
        body: bytes = b"",
    ) -> ControlReply:
        """A successful reply; a moved bucket and changed keys are tried again, once each."""
        moved = renewed = False
        while True:
            keys = await self._keys()
            reply = await self._send(method, key, query, headers, keys, subject, body)
            if reply.status < 300:
                return reply
            reply = self._with_error(reply)
            code = xml_code(reply) or str(reply.status)
            if not moved and await self._follow(reply, code):
                moved = True
            elif not renewed and keys and code in self._stale_keys and await self._renewal.reload() != keys:
                renewed = True
            else:
                raise self._failure(reply, code, needs, subject)

    async def _send(
        self,
        method: str,
        key: str,
        query: Mapping[str, str],
        headers: Mapping[str, str],
        keys: AccessKeys | None,
        subject: str,
        body: bytes = b"",
    ) -> ControlReply:
        headers = {**headers, **self._paying}
        try:
            url = self._address.build_url(key, query)
        except ValueError:
            raise self._no_name(subject) from None
        if keys is not None:
            asked = BucketRequest(method, self._bucket, key, query, headers, body)
            headers = self._signer.sign_headers(asked, keys, self._clock())
        return await self._rest.send(method, url, headers, subject=self._subject(subject), body=body)

    @property
    def _stale_keys(self) -> frozenset[str]:
        return self.words.unknown_key_id | self.words.bad_signature | self.words.expired

    @property
    def _endpoint(self) -> str:
        """The endpoint in words."""
        return self._address.endpoint_url

    def _with_error(self, reply: ControlReply) -> ControlReply:
        """A refusal with its error as the body; a reply to HEAD has none of its own."""
        return reply

    def _failure(self, reply: ControlReply, code: str, needs: str, subject: str) -> D7yfsError:
        if there := _host_in(reply):
            return AccessDenied(
                f"{self._subject(subject)}: the bucket is at {there}, not at {self._address.host}",
                hint=f'set endpoint_url = "https://{there}", if that is to be trusted',
            )
        return refusal(reply, code, self._describe_call(needs, subject), self.words)

    def _describe_call(self, needs: str, subject: str) -> Call:
        credentials = place_of(self._credentials, self.describe()["credentials"])
        return Call(self._subject(subject), needs, self._endpoint, credentials, self._clock())

    async def _follow(self, reply: ControlReply, code: str) -> bool:  # noqa: ARG002 - S3 has a use for it
        """Send requests to where `reply` says that the bucket is. False without a place to go to."""
        domain = provider_domain(self.scheme, self._address.endpoint_url)
        host = _host_in(reply).lower().removeprefix(f"{self._bucket}.")
        if not domain or host == self._address.host or not host.endswith(f".{domain}"):
            return False
        log.warning("%s: the bucket is at %s, not at %s: going there", self.url, host, self._address.host)
        scheme = urlsplit(self._address.endpoint_url).scheme
        self._address = Address.of(f"{scheme}://{host}", self._bucket, self._addressing_style)
        self._signed.clear()
        return True


def _pinned(version: ObjectVersion) -> dict[str, str]:
    return {"versionId": version.version_id} if version.version_id else {}


def _host_in(reply: ControlReply) -> str:
    """The endpoint that a refusal names, in its body or as the target of a redirect."""
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
