"""Azure Blob Storage: lists, stats, and GETs for others to send, over its REST interface.

Owns what only Azure has; `rest.RestOrigin` has the rest. `credentials` owns the secrets, `sas` the
signatures, `listing` and `errors` the replies.

The interface: https://learn.microsoft.com/rest/api/storageservices/blob-service-rest-api. All
requests are of one version of it, which storage accounts of every age and kind speak. A list and a
HEAD give the same ETag, size and time, so either makes the same version.

Blobs of all types read alike. The MD5 of append and page blobs is not believed, because the service
does not renew it when they change.
"""

from __future__ import annotations

import base64
import binascii
import re
import time
from collections.abc import Callable, Mapping
from typing import ClassVar
from urllib.parse import quote, urlencode

from azure.core.credentials import TokenCredential

from d7yfs.bounds.values import bounded_text, read_size
from d7yfs.config.place import azure_account_url
from d7yfs.config.schema import Anonymous, Credentials, RepositoryConfig, StaticKeys
from d7yfs.config.url import AZURE_SUFFIX, normal_endpoint
from d7yfs.errors import ConfigError, D7yfsError, NotFound
from d7yfs.objects import ListingPage, ObjectVersion, SecretStr, StoreIdentity
from d7yfs.origins.azure.credentials import READ_PERMISSIONS, Grant, access_for
from d7yfs.origins.azure.errors import NO_ACCOUNT, WORDS, is_no_directory, refused
from d7yfs.origins.azure.listing import ARCHIVE_TIER, is_directory, parse
from d7yfs.origins.azure.sas import VERSION, expiry_of
from d7yfs.origins.headers import entity_tag
from d7yfs.origins.origin import ANONYMOUS, Checksums, ReadRequest
from d7yfs.origins.refusal import Call, Vocabulary, place_of
from d7yfs.origins.renewal import RELOAD_INTERVAL_S
from d7yfs.origins.rest import ControlReply, RestOrigin
from d7yfs.origins.xml_listing import seconds_ns

_PAGE_MAX = 5000
"""The service's own limit."""
_CONTAINER = re.compile(r"(?!.*--)[a-z0-9][a-z0-9-]{1,61}[a-z0-9]")


class AzureOrigin(RestOrigin):
    """One container under one set of credentials, as an `Origin`."""

    service = "Azure Blob Storage"
    no_host_hint = NO_ACCOUNT
    words: ClassVar[Vocabulary] = WORDS
    permissions: ClassVar[str] = READ_PERMISSIONS
    """The permissions that an account's key signs for."""

    def __init__(
        self,
        repository: RepositoryConfig,
        credentials: Credentials,
        *,
        clock: Callable[[], float] = time.time,
        identity: Callable[[], TokenCredential] | None = None,
    ) -> None:
        """Make no request. Raises ConfigError.

        `versioned` needs an account with versioning. `clock` is time.time(); `identity` stands in
        for azure-identity's chain.
        """
        self._account = account = repository.url.account
        self._container = container = repository.url.bucket
        super().__init__(repository, f"as://{account}/{container}", clock=clock)
        endpoint_url = repository.url.endpoint_url or repository.endpoint_url
        proxy = repository.control_proxy
        if not _CONTAINER.fullmatch(container):
            raise ConfigError(
                f"{self._root}: {container!r} is no container name",
                hint="3 to 63 lower-case letters, digits and single hyphens make one",
            )
        try:
            self._endpoint_url = endpoint_url and normal_endpoint(endpoint_url)
        except ValueError as error:
            raise ConfigError(f"{self._root}: the endpoint URL {error}") from None
        self._account_url = azure_account_url(account, self._endpoint_url, repository.endpoint_suffix or AZURE_SUFFIX)
        self._container_url = f"{self._account_url}/{container}"
        self._credentials = credentials
        self._access = access_for(
            credentials,
            account,
            container,
            ask_key=self._ask_key,
            proxy=proxy,
            clock=clock,
            permissions=self.permissions,
            identity=identity,
        )
        self._reloaded_at = float("-inf")

    @property
    def url(self) -> str:
        """`as://account/container` or `as://http://host:port/account/container`."""
        return "as://" + "/".join(part for part in (self._endpoint_url, self._account, self._container) if part)

    @property
    def identity(self) -> StoreIdentity:
        """The container in its account, whose address is the endpoint."""
        return StoreIdentity("as", self._account_url, self._container, self._account)

    @property
    def _endpoint(self) -> str:
        return self._account_url

    async def _ask_list(self, prefix: str, delimiter: str, token: str, page_size: int) -> ControlReply:
        """The reply to a List Blobs, with metadata: without it directory stubs look like files."""
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
        if reply.status != 200 and not is_no_directory(reply):
            raise self._refused(reply, grant, prefix, listing=True)
        return reply

    def _parse_list(self, reply: ControlReply, date_ns: int) -> ListingPage:
        return parse(reply.body, date_ns) if reply.status == 200 else ListingPage((), (), "", date_ns)

    async def _head(self, key: str, recorded: ObjectVersion | None = None) -> ControlReply:
        """Get Blob Properties."""
        reply, grant = await self._send("HEAD", self._blob_url(key), _version_query(recorded), key)
        if reply.status != 200:
            raise self._refused(reply, grant, key)
        return reply

    def _parse_stat(self, reply: ControlReply, key: str) -> ObjectVersion:
        """The version. Raises NotFound for a directory."""
        headers = reply.headers
        if is_directory(headers.get("x-ms-resource-type", ""), headers.get("x-ms-meta-hdi_isfolder", "")):
            raise NotFound(f"{self._subject(key)}: is a directory")
        return ObjectVersion(
            key=key,
            size_bytes=read_size(headers["content-length"]),
            validator=bounded_text(entity_tag(headers["etag"])),
            mtime_ns=seconds_ns(headers["last-modified"]),
            version_id=bounded_text(headers.get("x-ms-version-id", "")) if self._versioned else "",
            archived=ARCHIVE_TIER if headers.get("x-ms-access-tier") == ARCHIVE_TIER else "",
            encoding=bounded_text(headers.get("content-encoding", "")),
        )

    def _parse_checksums(self, reply: ControlReply) -> tuple[str, Checksums]:
        """The MD5 of a block blob as the service or the uploader recorded it: Azure keeps no CRC."""
        headers = reply.headers
        validator = entity_tag(headers.get("etag", ""))
        try:
            md5 = base64.b64decode(headers.get("content-md5", ""), validate=True)
        except binascii.Error:
            return validator, Checksums()  # an uploader may record anything
        known = len(md5) == 16 and headers.get("x-ms-blob-type") == "BlockBlob"
        return validator, Checksums(md5=md5.hex() if known else None)

    async def _renew(self) -> None:
        await self._reload()

    async def _build_request(self, version: ObjectVersion, *, presigned: bool) -> ReadRequest:
        """A GET valid for 15 minutes, or as long as the given token or signature.

        Waits only for an identity's first token and for its delegation key.
        """
        url = self._blob_url(version.key)
        grant = await self._access.authorize_read(version.key, version.version_id, presigned=presigned)
        query = _joined(_version_query(version), grant.query)
        return ReadRequest(
            f"{url}?{query}" if query else url,
            {**grant.headers, "If-Match": version.validator},
            grant.expires_at,
            frozenset(pair.partition("=")[0] for pair in grant.query.split("&") if pair),
        )

    @property
    def credentials_expire_at(self) -> float:
        return self._access.expires_at

    @property
    def principal(self) -> str:
        """The account, where its key is held: such a key may do everything."""
        if isinstance(self._credentials, Anonymous):
            return ANONYMOUS
        return f"account {self._account}" if isinstance(self._credentials, StaticKeys) else ""

    @property
    def lasting_secret(self) -> SecretStr:
        """The key that settings hold."""
        return self._credentials.secret_key if isinstance(self._credentials, StaticKeys) else SecretStr("")

    def describe(self) -> dict[str, str]:
        """The endpoint, the account and the kind of credentials."""
        return {"endpoint": self._account_url, "account": self._account, "credentials": self._access.source}

    async def aclose(self) -> None:
        """Close the connections and stop renewing credentials."""
        await self._access.aclose()
        await super().aclose()

    async def _send(
        self,
        method: str,
        url: str,
        query: str,
        key: str,
        headers: Mapping[str, str] | None = None,
        body: bytes = b"",
    ) -> tuple[ControlReply, Grant]:
        """The reply to a request, sent again with reloaded credentials after a refusal."""
        for may_reload in (True, False):
            grant = await self._access.authorize_control()
            reply = await self._send_with(grant, method, url, query, key, headers, body)
            if reply.status not in (401, 403) or not (may_reload and await self._reload()):
                break
        return reply, grant

    async def _send_with(
        self,
        grant: Grant,
        method: str,
        url: str,
        query: str,
        key: str,
        headers: Mapping[str, str] | None = None,
        body: bytes = b"",
    ) -> ControlReply:
        query = _joined(query, grant.query)
        subject = self._subject(key)
        sent = {"x-ms-version": VERSION, **grant.headers, **(headers or {})}
        return await self._rest.send(method, f"{url}?{query}" if query else url, sent, subject=subject, body=body)

    async def _ask_key(self, grant: Grant, body: bytes) -> bytes:
        """Get User Delegation Key: a POST that changes nothing."""
        url, query = f"{self._account_url}/", "restype=service&comp=userdelegationkey"
        reply = await self._send_with(grant, "POST", url, query, "", {"Content-Type": "application/xml"}, body)
        if reply.status != 200:
            raise self._refused(
                reply, grant, "", needs="generateUserDelegationKey (role Storage Blob Delegator on the account)"
            )
        return reply.body

    async def _reload(self) -> bool:
        """True if other credentials may have been loaded; tries at most every RELOAD_INTERVAL_S."""
        if 0 <= self._clock() - self._reloaded_at < RELOAD_INTERVAL_S:
            return False
        self._reloaded_at = self._clock()
        reloaded = await self._access.reload()
        if reloaded:
            self._signed.clear()
        return reloaded

    def _refused(
        self, reply: ControlReply, grant: Grant, key: str, *, listing: bool = False, needs: str = ""
    ) -> D7yfsError:
        permission = "list (l)" if listing else "read (r)"
        call = Call(
            subject=self._subject(key),
            needs=needs or f"{permission}, as the role Storage Blob Data Reader does,",
            endpoint=self._account_url,
            credentials=place_of(self._credentials, self._access.source),
            now=self._clock(),
        )
        return refused(
            reply,
            call,
            listing=listing,
            anonymous=isinstance(self._credentials, Anonymous),
            signs=self._access.signs,
            expires_at=expiry_of(grant.query),
            words=self.words,
        )

    def _blob_url(self, key: str) -> str:
        """The blob's URL. Raises NotFound for a key without one, or that would arrive as another
        one.

        The service takes a backslash for a slash.
        """
        try:
            path = quote(key, safe="/~")
        except UnicodeEncodeError:
            path = ""
        if not path or "\\" in key or not {".", ".."}.isdisjoint(key.split("/")):
            raise self._no_name(key)
        return f"{self._container_url}/{path}"


def _joined(*queries: str) -> str:
    return "&".join(query for query in queries if query)


def _version_query(version: ObjectVersion | None) -> str:
    return f"versionid={quote(version.version_id, safe='')}" if version and version.version_id else ""
