"""Google Cloud Storage: lists and stats over its JSON API, and GETs of one generation, signed or with a token, for others to send.

Owns one bucket under one set of credentials and the bounded table of its read requests. Built by the registry in `d7yfs.origins`, used by
tree, fetcher and the `ls` and `check` commands through the `Origin` protocol.

- A version is its generation. It stands in the URL of a read, so another version is never sent; a generation that is gone is a 404.
- Whoever reads without dfdaemon sends the token in a header. For dfdaemon the URL is signed where that can be done (a service account's
  key, or signBlob), so that no token leaves the host; else the token goes along.
- HMAC keys are good for the XML API only, which lists as well (`xml_api`); all else is the same.
- An object that was stored with `Content-Encoding: gzip` is read as it is stored. Without `Accept-Encoding: gzip` Cloud Storage would
  decode it, and know neither its size nor ranges of it (https://cloud.google.com/storage/docs/transcoding).
- The emulators' environment variables do not count: an endpoint is a setting.
"""

from __future__ import annotations

import json
import logging
import math
import os
import time
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from pathlib import Path
from urllib.parse import quote

from cachetools import TLRUCache
from pydantic import SecretStr

from d7yfs.config.place import GS_ENDPOINT, endpoint_name
from d7yfs.config.schema import Anonymous, Credentials, CredentialsFile, ProviderChain, RepositoryConfig, StaticKeys
from d7yfs.errors import AccessDenied, BadReply, ConfigError, D7yfsError, NotFound
from d7yfs.objects import ListingPage, ObjectVersion, StoreIdentity
from d7yfs.origins.gs import json_api, xml_api
from d7yfs.origins.gs.api import Api
from d7yfs.origins.gs.credentials import GoogleCredentials, Held
from d7yfs.origins.gs.errors import PERMISSIONS, refused
from d7yfs.origins.gs.signing import RSA, SIGNATURE_LIFE_S, SIGNATURE_PARAMS, HmacKey, canonical_query, unsigned
from d7yfs.origins.origin import Checksums, ReadRequest
from d7yfs.origins.refusal import Call
from d7yfs.origins.rest import Reply, Rest
from d7yfs.tls import ca_file, ssl_context

IAM_ENDPOINT = "https://iamcredentials.googleapis.com"
ACCESS_ID_VARIABLE = "GS_ACCESS_KEY_ID"
SECRET_VARIABLE = "GS_SECRET_ACCESS_KEY"  # noqa: S105 - the name of a variable

_SIGNED_MAX = 2048
"""Read requests kept; about 2 KiB each."""
_REMOTE_LIFE_S = 3600
"""How long a URL signed by signBlob is valid: each costs a request. Google allows 12 hours."""
_NO_SIGNING_S = 600.0
"""How long signBlob is not asked again after it refused."""

log = logging.getLogger(__name__)


class GsOrigin:
    """One bucket; see the module and `origins.origin.Origin`."""

    def __init__(
        self,
        bucket: str,
        credentials: Credentials,
        *,
        endpoint_url: str = "",
        iam_endpoint_url: str = IAM_ENDPOINT,
        verify_tls: bool = True,
        ca_bundle: Path | None = None,
        control_proxy: str = "",
        requester_pays: bool = False,
        billing_project: str = "",
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Make no request and read no file.

        `requester_pays` without `billing_project` bills the credentials' own project; `ca_bundle` is a PEM file, None for the system's;
        `clock` is time.time(). Raises ConfigError.
        """
        self._bucket = bucket
        self._source = credentials
        self._endpoint_url = endpoint_url or GS_ENDPOINT
        self._iam_endpoint_url = iam_endpoint_url
        self._pays = requester_pays or bool(billing_project)
        self._billing_project = billing_project
        self._clock = clock
        self._key: HmacKey | None = None
        self._google: GoogleCredentials | None = None
        match credentials:
            case StaticKeys(key_id=key_id, secret_key=secret, session_token=None):
                self._key = HmacKey(key_id, secret.get_secret_value())
            case CredentialsFile() | ProviderChain():
                self._google = GoogleCredentials(
                    credentials,
                    subject=self._subject(""),
                    verify=verify_tls and ca_file(ca_bundle),
                    control_proxy=control_proxy,
                    clock=clock,
                )
            case Anonymous():
                pass
            case _:
                raise ConfigError(
                    f"gs://{bucket}: Cloud Storage has no use for these credentials: {credentials.describe()}",
                    hint="set credentials_file, an HMAC key, or anonymous",
                )
        if self._pays and not billing_project and self._google is None:
            raise ConfigError(
                f"gs://{bucket}: nobody to bill: {credentials.describe()} has no project of its own",
                hint="set billing_project",
            )
        self._api: Api = json_api if self._key is None else xml_api
        self._rest = Rest(ssl_context(ca_bundle, verify=verify_tls), proxy=control_proxy, clock=clock)
        self._no_signing_until = float("-inf")
        self._reads: TLRUCache[tuple[object, ...], ReadRequest] = TLRUCache(
            _SIGNED_MAX, lambda _key, request, now: now + (request.expires_at - now) / 2, timer=clock
        )

    @classmethod
    def open(cls, repository: RepositoryConfig, credentials: Credentials) -> GsOrigin:
        """What the registry calls. An HMAC key of the environment goes before the default credentials. Raises ConfigError."""
        if isinstance(credentials, ProviderChain):
            credentials = _hmac_key(repository.url.bucket, os.environ) or credentials
        return cls(
            repository.url.bucket,
            credentials,
            endpoint_url=repository.url.endpoint_url or repository.endpoint_url,
            verify_tls=repository.verify_tls,
            ca_bundle=repository.ca_bundle,
            control_proxy=repository.control_proxy,
            requester_pays=repository.requester_pays,
            billing_project=repository.billing_project,
        )

    @property
    def url(self) -> str:
        """`gs://bucket`, or `gs://http://host:port/bucket`."""
        return f"gs://{self._bucket}" if self._is_googles else f"gs://{self._endpoint_url}/{self._bucket}"

    @property
    def identity(self) -> StoreIdentity:
        """Google is one endpoint, by whichever API."""
        return StoreIdentity("gs", endpoint_name("gs", self._endpoint_url), self._bucket)

    async def list(self, prefix: str, *, delimiter: str = "/", token: str = "", page_size: int = 1000) -> ListingPage:
        """One page."""
        query = self._api.list_query(prefix, delimiter, token, page_size)
        reply = await self._call("GET", self._api.list_path(self._bucket), query, prefix, "list")
        try:
            page = self._api.parse_list(reply)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise self._unreadable(error, prefix) from None
        if token and page.next_token == token:
            raise BadReply(f"{self._subject(prefix)}: the listing goes in a circle")
        date = reply.date
        date_ns = int((self._clock() if date is None else date) * 1e9)
        return ListingPage(page.objects, page.prefixes, page.next_token, date_ns)

    async def stat(self, key: str) -> ObjectVersion:
        """One request. Raises NotFound."""
        reply = await self._stat(key)
        try:
            return self._api.parse_stat(reply, key)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise self._unreadable(error, key) from None

    async def checksums(self, version: ObjectVersion) -> Checksums:
        """One request, for whatever generation is the newest."""
        reply = await self._stat(version.key)
        try:
            generation, checksums = self._api.parse_checksums(reply)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise self._unreadable(error, version.key) from None
        return checksums if generation == version.validator else Checksums()

    async def read_request(self, version: ObjectVersion, *, presigned: bool, fresh: bool = False) -> ReadRequest:
        """A GET of one generation, valid until its signature or its token ends, reused for half of that time.

        Does not wait but for the first token, for one instead of a token that has ended, and for signBlob. Raises NotFound for a key
        that cannot be.
        """
        key = (version.identity, version.encoding, presigned)
        if fresh:
            self._reads.clear()
            self._no_signing_until = float("-inf")
        elif (known := self._reads.get(key)) is not None:
            return known
        held = await self._google.current(fresh=fresh) if self._google else None
        try:
            url = self._endpoint_url + xml_api.stat_path(self._bucket, version.key)
        except ValueError:
            raise self._no_name(version.key) from None
        if not version.key:
            raise self._no_name(version.key)
        query = {"generation": version.validator, **self._payer(held)}
        stored = version.encoding == "gzip" or not self._api.ENCODING_IS_LISTED
        headers = {"Accept-Encoding": "gzip"} if stored else {}
        request = self._read(url, query, headers, held, presigned=presigned)
        if presigned and held is not None and held.asking is not None:
            request = await self._signed_by_google(url, query, headers, held) or request
        self._reads[key] = request
        return request

    @property
    def credentials_expire_at(self) -> float:
        return self._google.expires_at if self._google is not None else math.inf

    def describe(self) -> Mapping[str, str]:
        """Endpoint and whence the credentials come."""
        return {
            "endpoint": "the provider's own" if self._is_googles else self._endpoint_url,
            "credentials": self._google.words if self._google else self._source.describe(),
        }

    async def aclose(self) -> None:
        """Close the connections."""
        self._reads.clear()
        if self._google is not None:
            await self._google.aclose()
        await self._rest.aclose()

    def _read(
        self, url: str, query: Mapping[str, str], headers: Mapping[str, str], held: Held | None, *, presigned: bool
    ) -> ReadRequest:
        """What can be made without asking anybody."""
        now = self._clock()
        plain = f"{url}?{canonical_query(query)}"
        if self._key is not None and presigned:
            signed = self._key.presign(url, query, now=now)
            return ReadRequest(signed, headers, now + SIGNATURE_LIFE_S, SIGNATURE_PARAMS)
        if self._key is not None:
            authority = self._key.headers("GET", url, query, now=now)
            return ReadRequest(plain, {**headers, **authority}, now + SIGNATURE_LIFE_S)
        if presigned and held is not None and held.sign is not None:
            rest = unsigned(url, query, algorithm=RSA, name=held.email, now=now)
            signed = rest.signed(held.sign(rest.text.encode()))
            return ReadRequest(signed, headers, now + SIGNATURE_LIFE_S, SIGNATURE_PARAMS)
        if held is not None and held.token:
            return ReadRequest(plain, {**headers, "Authorization": f"Bearer {held.token}"}, held.expires_at)
        return ReadRequest(plain, headers, float("inf"))

    async def _signed_by_google(
        self, url: str, query: Mapping[str, str], headers: Mapping[str, str], held: Held
    ) -> ReadRequest | None:
        """By signBlob (https://cloud.google.com/iam/docs/reference/credentials/rest); None where it refuses or does not answer."""
        now = self._clock()
        if self._google is None or now < self._no_signing_until:
            return None
        rest = unsigned(url, query, algorithm=RSA, name=held.email, now=now, life_s=_REMOTE_LIFE_S)
        subject = self._subject("")
        try:
            token = await self._google.signing_token(held)
            reply = await self._rest.send(
                "POST",
                f"{self._iam_endpoint_url}/v1/projects/-/serviceAccounts/{quote(held.email)}:signBlob",
                {"Authorization": f"Bearer {token}", "Content-Type": "application/json"},
                subject=subject,
                body=json.dumps({"payload": b64encode(rest.text.encode()).decode()}).encode(),
            )
            if reply.status != 200:
                raise AccessDenied(f"{subject}: signBlob says {reply.status}")
            signature = b64decode(json.loads(reply.body)["signedBlob"])
        except (D7yfsError, ValueError, KeyError, TypeError) as error:
            self._no_signing_until = now + _NO_SIGNING_S
            reason = error if isinstance(error, D7yfsError) else f"{subject}: signBlob's reply cannot be read"
            log.warning(
                "%s; reads through dfdaemon carry a token instead of a signature (%s needs iam.serviceAccounts.signBlob on itself)",
                reason,
                held.email,
            )
            return None
        return ReadRequest(rest.signed(signature), headers, now + _REMOTE_LIFE_S, SIGNATURE_PARAMS)

    async def _stat(self, key: str) -> Reply:
        try:
            path = self._api.stat_path(self._bucket, key)
        except ValueError:
            raise self._no_name(key) from None
        if not key:
            raise self._no_name(key)
        return await self._call(self._api.STAT_METHOD, path, self._api.stat_query(), key, "get")

    async def _call(self, method: str, path: str, query: Mapping[str, str], key: str, needs: str) -> Reply:
        """A successful reply; a token that is refused is replaced once."""
        url = self._endpoint_url + path
        subject = self._subject(key)
        headers = dict(self._api.STAT_HEADERS) if needs == "get" else {}
        for fresh in (False, True):
            held = await self._google.current(fresh=fresh) if self._google else None
            full = {**query, **self._payer(held)}
            if self._key is not None:
                headers |= self._key.headers(method, url, full, now=self._clock())
            elif held is not None and held.token:
                headers["Authorization"] = f"Bearer {held.token}"
            try:
                target = f"{url}?{canonical_query(full)}" if full else url
            except UnicodeEncodeError:
                raise self._no_name(key) from None
            reply = await self._rest.send(method, target, headers, subject=subject)
            if reply.status == 200:
                return reply
            if reply.status != 401 or held is None:
                break
        call = Call(subject, PERMISSIONS[needs], self._endpoint_url, self.describe()["credentials"], self._clock())
        raise refused(reply, call, self._api.error_code, listing=needs == "list")

    def _payer(self, held: Held | None) -> dict[str, str]:
        """https://cloud.google.com/storage/docs/requester-pays."""
        if not self._pays:
            return {}
        project = self._billing_project or (held.project if held else "")
        if not project:
            raise AccessDenied(
                f"{self._subject('')}: nobody to bill: the credentials name no project", hint="set billing_project"
            )
        return {"userProject": project}

    @property
    def _is_googles(self) -> bool:
        return self._endpoint_url == GS_ENDPOINT

    def _unreadable(self, error: Exception, key: str) -> BadReply:
        what = f"the reply leaves out {error}" if isinstance(error, KeyError) else "what answers is not Cloud Storage"
        return BadReply(f"{self._subject(key)}: {what}", hint=f"endpoint {self._endpoint_url}")

    def _no_name(self, key: str) -> NotFound:
        return NotFound(f"{self._subject(key)}: not a name that Cloud Storage allows")

    def _subject(self, key: str) -> str:
        return f"gs://{self._bucket}/{key}" if key else f"gs://{self._bucket}"


def _hmac_key(bucket: str, environ: Mapping[str, str]) -> StaticKeys | None:
    """Under the names that GDAL has made known: Google's own tools have none."""
    access_id, secret = environ.get(ACCESS_ID_VARIABLE, ""), environ.get(SECRET_VARIABLE, "")
    if bool(access_id) != bool(secret):
        lacking = SECRET_VARIABLE if access_id else ACCESS_ID_VARIABLE
        raise ConfigError(f"gs://{bucket}: half of an HMAC key: {lacking} is not set", hint="set both, or neither")
    return StaticKeys(access_id, SecretStr(secret)) if access_id else None
