"""Azure Blob Storage: lists, stats, and GETs for others to send, over its REST interface.

Owns one container under one set of credentials, its connections (`rest`) and the bounded table of signed requests. Built by the registry
in `d7yfs.origins`, used through the `Origin` protocol. `azure_credentials` owns the secrets, `azure_sas` the signatures, `azure_listing`
and `azure_errors` what comes back.

The interface: https://learn.microsoft.com/rest/api/storageservices/blob-service-rest-api. Requests are those of one version of it, which
storage accounts of every age and kind speak. A list and a HEAD give the same ETag, size and time, so either makes the same version.

Blobs of all types read alike; the MD5 of append and page blobs is not believed, for the service does not renew it when they change.
"""

from __future__ import annotations

import base64
import binascii
import re
import ssl
import time
from collections.abc import Callable
from urllib.parse import quote, urlencode, urlsplit

from azure.core.credentials import TokenCredential
from cachetools import LRUCache, TLRUCache

from d7yfs.config.place import azure_account_url
from d7yfs.config.schema import Anonymous, Credentials, RepositoryConfig
from d7yfs.config.url import AZURE_SUFFIX, normal_endpoint
from d7yfs.errors import BadReply, ConfigError, D7yfsError, NotFound, OriginUnavailable
from d7yfs.objects import ListingPage, ObjectVersion, StoreIdentity
from d7yfs.origins.azure.credentials import Grant, access_for
from d7yfs.origins.azure.errors import is_no_directory, refused, unreachable
from d7yfs.origins.azure.listing import ARCHIVE_TIER, http_date_ns, is_directory, parse, quoted
from d7yfs.origins.azure.sas import VERSION, expiry_of
from d7yfs.origins.origin import Checksums, ReadRequest
from d7yfs.origins.refusal import Call
from d7yfs.origins.rest import Reply, Rest
from d7yfs.tls import ssl_context

_SIGNED_MAX = 2048
"""Signed requests kept; about 2 KiB each, of which a bearer token is the most."""
_RELOAD_INTERVAL_S = 5.0
"""A herd of 403s reloads credentials once, not once each."""
_PAGE_MAX = 5000
"""The service's own limit."""
_CONTAINER = re.compile(r"(?!.*--)[a-z0-9][a-z0-9-]{1,61}[a-z0-9]")


class AzureOrigin:
    """One container; see the module and `origins.origin.Origin`."""

    def __init__(
        self,
        account: str,
        container: str,
        credentials: Credentials,
        *,
        endpoint_url: str = "",
        endpoint_suffix: str = "",
        tls: ssl.SSLContext | bool = True,
        control_proxy: str = "",
        pin_versions: bool = False,
        clock: Callable[[], float] = time.time,
        identity: Callable[[], TokenCredential] | None = None,
    ) -> None:
        """Make no request. `endpoint_url` is empty for the cloud's own, whose domain is `endpoint_suffix` (empty: the public one).

        `tls` and `control_proxy` are for requests and not for data; `pin_versions` reads by version id, in an account with versioning;
        `clock` is time.time(); `identity` stands in for azure-identity's chain. Raises ConfigError.
        """
        self._account = account
        self._container = container
        if not _CONTAINER.fullmatch(container):
            raise ConfigError(
                f"as://{account}/{container}: {container!r} is no container name",
                hint="3 to 63 lower-case letters, digits and single hyphens make one",
            )
        try:
            self._endpoint_url = endpoint_url and normal_endpoint(endpoint_url)
        except ValueError as error:
            raise ConfigError(f"as://{account}/{container}: the endpoint URL {error}") from None
        self._account_url = azure_account_url(account, self._endpoint_url, endpoint_suffix or AZURE_SUFFIX)
        self._container_url = f"{self._account_url}/{container}"
        self._credentials = credentials
        self._pin_versions = pin_versions
        self._clock = clock
        self._access = access_for(
            credentials, account, container, ask_key=self._ask_key, proxy=control_proxy, clock=clock, identity=identity
        )
        self._rest = Rest(tls, proxy=control_proxy, clock=clock)
        self._reloaded_at = float("-inf")
        self._signed: TLRUCache[tuple[object, ...], ReadRequest] = TLRUCache(
            _SIGNED_MAX, lambda _key, request, now: now + (request.expires_at - now) / 2, timer=clock
        )

        self._version_ids: LRUCache[tuple[str, str, int], str] = LRUCache(_SIGNED_MAX)
        """As found out while they were current: a version that was replaced since is read on by its id."""

    @classmethod
    def open(cls, repository: RepositoryConfig, credentials: Credentials) -> AzureOrigin:
        """What the registry calls. Raises ConfigError."""
        return cls(
            repository.url.account,
            repository.url.bucket,
            credentials,
            endpoint_url=repository.url.endpoint_url or repository.endpoint_url,
            endpoint_suffix=repository.endpoint_suffix,
            tls=ssl_context(repository.ca_bundle, verify=repository.verify_tls),
            control_proxy=repository.control_proxy,
            pin_versions=repository.versioned,
        )

    @property
    def url(self) -> str:
        """`as://account/container` or `as://http://host:port/account/container`."""
        return "as://" + "/".join(part for part in (self._endpoint_url, self._account, self._container) if part)

    @property
    def identity(self) -> StoreIdentity:
        """The account's address is the endpoint."""
        return StoreIdentity("as", self._account_url, self._container, self._account)

    async def list(self, prefix: str, *, delimiter: str = "/", token: str = "", page_size: int = 1000) -> ListingPage:
        """One List Blobs, with metadata: without it directory stubs cannot be told from files."""
        asked = {
            "restype": "container",
            "comp": "list",
            "prefix": prefix,
            "delimiter": delimiter,
            "marker": token,
            "maxresults": str(min(page_size, _PAGE_MAX)),
            "include": "metadata",
        }
        query = urlencode({name: value for name, value in asked.items() if value}, quote_via=quote, safe="")
        reply, grant = await self._send("GET", self._container_url, query, prefix)
        if reply.status != 200:
            if is_no_directory(reply):
                return ListingPage((), (), "", self._date_ns(reply))
            raise self._refused(reply, grant, prefix, listing=True)
        try:
            found = parse(reply.body)
        except ValueError as error:
            raise BadReply(
                f"{self._subject(prefix)}: what answers is not Azure Blob Storage: {error}",
                hint=f"endpoint {self._account_url}",
            ) from None
        if found.next_marker and found.next_marker == token:
            raise BadReply(f"{self._subject(prefix)}: the listing is cut off and names no next page")
        return ListingPage(found.objects, found.prefixes, found.next_marker, self._date_ns(reply))

    async def stat(self, key: str) -> ObjectVersion:
        """One Get Blob Properties. Raises NotFound, for a directory too."""
        reply = await self._head(key, "")
        headers = reply.headers
        if is_directory(headers.get("x-ms-resource-type", ""), headers.get("x-ms-meta-hdi_isfolder", "")):
            raise NotFound(f"{self._subject(key)}: is a directory")
        try:
            return ObjectVersion(
                key=key,
                size_bytes=int(headers["content-length"]),
                validator=quoted(headers["etag"]),
                mtime_ns=http_date_ns(headers["last-modified"]),
                version_id=headers.get("x-ms-version-id", "") if self._pin_versions else "",
                archived=ARCHIVE_TIER if headers.get("x-ms-access-tier") == ARCHIVE_TIER else "",
                encoding=headers.get("content-encoding", ""),
            )
        except (KeyError, ValueError):
            raise BadReply(f"{self._subject(key)}: the reply leaves out its length, ETag or time") from None

    async def read_request(self, version: ObjectVersion, *, presigned: bool, fresh: bool = False) -> ReadRequest:
        """A GET valid for a quarter of an hour, or as long as the token or signature given to us; reused for half of that time.

        Waits only for an identity's first token, for its delegation key, and for a version's id. Raises NotFound for a key that cannot be.
        """
        known_as = (version.identity, version.version_id, presigned)
        if fresh:
            self._signed.clear()
            await self._reload()
        elif (known := self._signed.get(known_as)) is not None:
            return known
        url = self._blob_url(version.key)
        version_id = version.version_id or (await self._version_id(version) if self._pin_versions else "")
        grant = await self._access.data(version.key, version_id, presigned=presigned)
        query = _joined(f"versionid={quote(version_id, safe='')}" if version_id else "", grant.query)
        request = ReadRequest(
            f"{url}?{query}" if query else url,
            {**grant.headers, "If-Match": version.validator},
            grant.expires_at,
            frozenset(pair.partition("=")[0] for pair in grant.query.split("&") if pair),
        )
        self._signed[known_as] = request
        return request

    async def checksums(self, version: ObjectVersion) -> Checksums:
        """The MD5 of a block blob, which the service or the uploader recorded; Azure keeps no CRC. One Get Blob Properties."""
        version_id = version.version_id or self._version_ids.get(version.identity, "")
        headers = (await self._head(version.key, version_id)).headers
        if quoted(headers.get("etag", "")) != version.validator or headers.get("x-ms-blob-type") != "BlockBlob":
            return Checksums()
        try:
            md5 = base64.b64decode(headers.get("content-md5", ""), validate=True)
        except binascii.Error:
            return Checksums()  # an uploader may record anything
        return Checksums(md5=md5.hex() if len(md5) == 16 else None)

    @property
    def credentials_expire_at(self) -> float:
        return self._access.expires_at

    def describe(self) -> dict[str, str]:
        """Endpoint, account and what kind of credentials there are."""
        return {"endpoint": self._account_url, "account": self._account, "credentials": self._access.describe()}

    async def aclose(self) -> None:
        """Close the connections and stop renewing credentials."""
        self._signed.clear()
        await self._access.aclose()
        await self._rest.aclose()

    async def _version_id(self, version: ObjectVersion) -> str:
        """Empty when it is not the current one any more (If-Match then says so to the reader), or the account keeps no versions."""
        known = self._version_ids.get(version.identity, "")
        if not known:
            current = await self.stat(version.key)
            if current.identity == version.identity and current.version_id:
                known = self._version_ids[version.identity] = current.version_id
        return known

    async def _head(self, key: str, version_id: str) -> Reply:
        query = f"versionid={quote(version_id, safe='')}" if version_id else ""
        reply, grant = await self._send("HEAD", self._blob_url(key), query, key)
        if reply.status != 200:
            raise self._refused(reply, grant, key)
        return reply

    async def _send(self, method: str, url: str, query: str, key: str) -> tuple[Reply, Grant]:
        """The reply to a request with our credentials, and with reloaded ones where those were refused."""
        grant = await self._access.control()
        reply = await self._send_with(grant, method, url, query, key)
        if reply.status in (401, 403) and await self._reload():
            grant = await self._access.control()
            reply = await self._send_with(grant, method, url, query, key)
        return reply, grant

    async def _send_with(self, grant: Grant, method: str, url: str, query: str, key: str, body: bytes = b"") -> Reply:
        query = _joined(query, grant.query)
        subject = self._subject(key)
        headers = {"x-ms-version": VERSION, **grant.headers} | ({"Content-Type": "application/xml"} if body else {})
        try:
            return await self._rest.send(
                method, f"{url}?{query}" if query else url, headers, subject=subject, body=body
            )
        except OriginUnavailable as error:
            raise unreachable(error, subject, urlsplit(url).hostname or "") from None

    async def _ask_key(self, grant: Grant, body: bytes) -> bytes:
        """Get User Delegation Key: a POST that changes nothing."""
        reply = await self._send_with(
            grant, "POST", f"{self._account_url}/", "restype=service&comp=userdelegationkey", "", body
        )
        if reply.status != 200:
            raise self._refused(
                reply, grant, "", needs="generateUserDelegationKey (role Storage Blob Delegator on the account)"
            )
        return reply.body

    async def _reload(self) -> bool:
        """Whether credentials were loaded anew: at most every few seconds, and where there can be others."""
        if 0 <= self._clock() - self._reloaded_at < _RELOAD_INTERVAL_S:
            return False
        self._reloaded_at = self._clock()
        reloaded = await self._access.reload()
        if reloaded:
            self._signed.clear()
        return reloaded

    def _refused(self, reply: Reply, grant: Grant, key: str, *, listing: bool = False, needs: str = "") -> D7yfsError:
        permission = "list (l)" if listing else "read (r)"
        call = Call(
            subject=self._subject(key),
            needs=needs or f"{permission}, as the role Storage Blob Data Reader does,",
            endpoint=self._account_url,
            credentials=self._access.describe(),
            now=self._clock(),
        )
        return refused(
            reply,
            call,
            listing=listing,
            anonymous=isinstance(self._credentials, Anonymous),
            signs=self._access.signs,
            expires_at=expiry_of(grant.query),
        )

    def _blob_url(self, key: str) -> str:
        """Raises NotFound for a key that cannot be in a URL, or would arrive as another one: the service takes a backslash for a slash."""
        try:
            path = quote(key, safe="/~")
        except UnicodeEncodeError:
            path = ""
        if not path or "\\" in key or not {".", ".."}.isdisjoint(key.split("/")):
            raise NotFound(f"{self._subject(key)}: not a name that Azure allows")
        return f"{self._container_url}/{path}"

    def _date_ns(self, reply: Reply) -> int:
        return int((self._clock() if reply.date is None else reply.date) * 1e9)

    def _subject(self, key: str) -> str:
        subject = f"as://{self._account}/{self._container}"
        return f"{subject}/{key}" if key else subject


def _joined(*queries: str) -> str:
    return "&".join(query for query in queries if query)
