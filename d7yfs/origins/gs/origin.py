"""Google Cloud Storage: lists and stats over its JSON API, and GETs of one generation to send.

Owns what only Cloud Storage has; `rest.RestOrigin` has the rest.

- A version is its generation. It stands in the URL of a read, so another version is never sent; a
  generation that is gone is a 404.
- A read without dfdaemon sends the token in a header. For dfdaemon the URL is signed where possible
  (a service account's key, or signBlob), so that no token leaves the host. Else the token goes
  along.
- HMAC keys work with the XML API only, which lists as well (`xml_api`); all else is the same.
- An object that was stored with `Content-Encoding: gzip` is read as it is stored. Without
  `Accept-Encoding: gzip` Cloud Storage would decode it, and know neither its size nor ranges of it
  (https://cloud.google.com/storage/docs/transcoding).
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
from typing import ClassVar
from urllib.parse import quote

from d7yfs.bounds.values import read_json
from d7yfs.config.place import GS_ENDPOINT, endpoint_name
from d7yfs.config.schema import Anonymous, Credentials, CredentialsFile, ProviderChain, RepositoryConfig, StaticKeys
from d7yfs.errors import AccessDenied, ConfigError, D7yfsError
from d7yfs.objects import ListingPage, ObjectVersion, SecretStr, StoreIdentity
from d7yfs.origins.gs.credentials import READ_SCOPE, GoogleCredentials, GoogleLogin
from d7yfs.origins.gs.errors import PERMISSIONS, refused
from d7yfs.origins.gs.json_api import JsonApi
from d7yfs.origins.gs.signing import RSA, SIGNATURE_LIFE_S, SIGNATURE_PARAMS, HmacKey, canonical_query, unsigned_url
from d7yfs.origins.gs.xml_api import XmlApi
from d7yfs.origins.origin import ANONYMOUS, Checksums, ReadRequest
from d7yfs.origins.refusal import Call, place_of
from d7yfs.origins.rest import ControlReply, RestOrigin
from d7yfs.tls import ca_file

IAM_ENDPOINT = "https://iamcredentials.googleapis.com"
ACCESS_ID_VARIABLE = "GS_ACCESS_KEY_ID"
SECRET_VARIABLE = "GS_SECRET_ACCESS_KEY"  # noqa: S105 - the name of a variable

_REMOTE_LIFE_S = 3600
"""How long a URL signed by signBlob is valid: each costs a request. Google allows 12 hours."""
_NO_SIGNING_S = 600.0
"""How long signBlob is not asked again after it refused."""

log = logging.getLogger(__name__)


class GsOrigin(RestOrigin):
    """One bucket of Cloud Storage under one set of credentials, as an `Origin`."""

    service = "Cloud Storage"
    scope: ClassVar[str] = READ_SCOPE
    """The scope of its tokens."""

    def __init__(
        self,
        repository: RepositoryConfig,
        credentials: Credentials,
        *,
        iam_endpoint_url: str = IAM_ENDPOINT,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Make no request and read no file. Raises ConfigError.

        An HMAC key of the environment goes before the default credentials. `requester_pays` without
        `billing_project` bills the credentials' own project. `clock` is time.time().
        """
        self._bucket = bucket = repository.url.bucket
        super().__init__(repository, f"gs://{bucket}", clock=clock)
        if isinstance(credentials, ProviderChain):
            credentials = _hmac_key(bucket, os.environ) or credentials
        self._source = credentials
        self._endpoint_url = repository.url.endpoint_url or repository.endpoint_url or GS_ENDPOINT
        self._iam_endpoint_url = iam_endpoint_url
        self._billing_project = repository.billing_project
        self._pays = repository.requester_pays or bool(self._billing_project)
        self._key: HmacKey | None = None
        self._google: GoogleCredentials | None = None
        match credentials:
            case StaticKeys(key_id=key_id, secret_key=secret, session_token=None):
                self._key = HmacKey(key_id, secret.get_secret_value())
            case CredentialsFile() | ProviderChain():
                self._google = GoogleCredentials(
                    credentials,
                    subject=self._root,
                    verify=repository.verify_tls and ca_file(repository.ca_bundle),
                    control_proxy=repository.control_proxy,
                    scope=self.scope,
                    clock=clock,
                )
            case Anonymous():
                pass
            case _:
                raise ConfigError(
                    f"gs://{bucket}: Cloud Storage has no use for these credentials: {credentials}",
                    hint="set credentials_file, an HMAC key, or anonymous",
                    settings=("credentials",),
                )
        if self._pays and not self._billing_project and self._google is None:
            raise ConfigError(
                f"gs://{bucket}: nobody to bill: {credentials} has no project of its own",
                hint="set billing_project",
                settings=("credentials", "requester_pays"),
            )
        self._xml = XmlApi()
        self._api = JsonApi() if self._key is None else self._xml
        self._no_signing_until = float("-inf")

    @property
    def url(self) -> str:
        """`gs://bucket`, or `gs://http://host:port/bucket`."""
        return f"gs://{self._bucket}" if self._is_googles else f"gs://{self._endpoint_url}/{self._bucket}"

    @property
    def identity(self) -> StoreIdentity:
        """The bucket at its endpoint; Google is one endpoint, by whichever API."""
        return StoreIdentity("gs", endpoint_name("gs", self._endpoint_url), self._bucket)

    @property
    def _endpoint(self) -> str:
        return self._endpoint_url

    async def _ask_list(self, prefix: str, delimiter: str, token: str, page_size: int) -> ControlReply:
        asked = self._api.list_query(prefix, delimiter, token, page_size)
        query = {name: value for name, value in asked.items() if value}
        return await self._call("GET", self._api.list_path(self._bucket), query, prefix, "list")

    def _parse_list(self, reply: ControlReply, date_ns: int) -> ListingPage:
        return self._api.parse_list(reply, date_ns)

    async def _head(self, key: str, recorded: ObjectVersion | None = None) -> ControlReply:  # noqa: ARG002 - all is told
        """The reply about the newest generation."""
        try:
            path = self._api.stat_path(self._bucket, key)
        except ValueError:
            raise self._no_name(key) from None
        if not key:
            raise self._no_name(key)
        headers = self._api.STAT_HEADERS
        return await self._call(self._api.STAT_METHOD, path, self._api.stat_query(), key, "get", headers)

    def _parse_stat(self, reply: ControlReply, key: str) -> ObjectVersion:
        return self._api.parse_stat(reply, key)

    def _parse_checksums(self, reply: ControlReply) -> tuple[str, Checksums]:
        return self._api.parse_checksums(reply)

    async def _renew(self) -> None:
        self._no_signing_until = float("-inf")
        if self._google is not None:
            await self._google.get(fresh=True)

    async def _build_request(self, version: ObjectVersion, *, presigned: bool) -> ReadRequest:
        """A GET of one generation. Waits only for a token and for signBlob."""
        held = await self._google.get() if self._google else None
        if not version.key:
            raise ValueError("an empty key")
        url = self._endpoint_url + self._xml.stat_path(self._bucket, version.key)
        query = {"generation": version.validator, **self._payer(held)}
        stored = version.encoding == "gzip" or not self._api.ENCODING_IS_LISTED
        headers = {"Accept-Encoding": "gzip"} if stored else {}
        if presigned and held is not None and held.asking is not None:
            request = await self._sign_by_google(url, query, headers, held)
            if request is not None:
                return request
        now = self._clock()
        signed = ""
        if presigned and self._key is not None:
            signed = self._key.presign(url, query, now=now)
        elif presigned and held is not None and held.sign is not None:
            rest = unsigned_url(url, query, algorithm=RSA, name=held.email, now=now)
            signed = rest.add_signature(held.sign(rest.text.encode()))
        if signed:
            return ReadRequest(signed, headers, now + SIGNATURE_LIFE_S, SIGNATURE_PARAMS)
        authority, expires_at = self._authorize("GET", url, query, held)
        return ReadRequest(f"{url}?{canonical_query(query)}", {**headers, **authority}, expires_at)

    @property
    def credentials_expire_at(self) -> float:
        return self._google.expires_at if self._google is not None else math.inf

    @property
    def principal(self) -> str:
        """The service account, or the id of an HMAC key; not a user's, who is not known."""
        if isinstance(self._source, StaticKeys):
            return f"key {self._source.key_id}"
        return self._google.principal if self._google is not None else ANONYMOUS

    @property
    def lasting_secret(self) -> SecretStr:
        """The key that settings hold."""
        return self._source.secret_key if isinstance(self._source, StaticKeys) else SecretStr("")

    def describe(self) -> Mapping[str, str]:
        """The endpoint and the source of the credentials."""
        return {
            "endpoint": "the provider's own" if self._is_googles else self._endpoint_url,
            "credentials": self._google.source if self._google else str(self._source),
        }

    async def aclose(self) -> None:
        """Close the connections."""
        if self._google is not None:
            await self._google.aclose()
        await super().aclose()

    def _authorize(
        self,
        method: str,
        url: str,
        query: Mapping[str, str],
        held: GoogleLogin | None,
        headers: Mapping[str, str] | None = None,
        body: bytes = b"",
    ) -> tuple[dict[str, str], float]:
        """The headers that authorize a request, and the time.time() until which they do."""
        if self._key is not None:
            now = self._clock()
            signed = self._key.sign_headers(method, url, query, now=now, headers=headers, body=body)
            return signed, now + SIGNATURE_LIFE_S
        if held is not None and held.token:
            return {"Authorization": f"Bearer {held.token}"}, held.expires_at
        return {}, math.inf

    async def _sign_by_google(
        self, url: str, query: Mapping[str, str], headers: Mapping[str, str], held: GoogleLogin
    ) -> ReadRequest | None:
        """A URL signed by signBlob; None where that refuses or does not answer.

        https://cloud.google.com/iam/docs/reference/credentials/rest
        """
        now = self._clock()
        if self._google is None or now < self._no_signing_until:
            return None
        rest = unsigned_url(url, query, algorithm=RSA, name=held.email, now=now, life_s=_REMOTE_LIFE_S)
        subject = self._root
        try:
            token = await self._google.get_signing_token(held)
            reply = await self._rest.send(
                "POST",
                f"{self._iam_endpoint_url}/v1/projects/-/serviceAccounts/{quote(held.email)}:signBlob",
                {"Authorization": f"Bearer {token}", "Content-Type": "application/json"},
                subject=subject,
                body=json.dumps({"payload": b64encode(rest.text.encode()).decode()}).encode(),
            )
            if reply.status != 200:
                raise AccessDenied(f"{subject}: signBlob says {reply.status}")
            signature = b64decode(read_json(reply.body)["signedBlob"])
        except (D7yfsError, ValueError, KeyError, TypeError) as error:
            self._no_signing_until = now + _NO_SIGNING_S
            reason = error if isinstance(error, D7yfsError) else f"{subject}: signBlob's reply cannot be read"
            log.warning(
                "%s; no URL can be signed for dfdaemon (%s needs iam.serviceAccounts.signBlob on itself)",
                reason,
                held.email,
            )
            return None
        return ReadRequest(rest.add_signature(signature), headers, now + _REMOTE_LIFE_S, SIGNATURE_PARAMS)

    async def _call(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        key: str,
        needs: str,
        headers: Mapping[str, str] | None = None,
        body: bytes = b"",
    ) -> ControlReply:
        """A successful reply; a refused token is replaced once."""
        url = self._endpoint_url + path
        subject = self._subject(key)
        headers = dict(headers or {})
        for fresh in (False, True):
            held = await self._google.get(fresh=fresh) if self._google else None
            full = {**query, **self._payer(held)}
            try:
                headers |= self._authorize(method, url, full, held, headers, body)[0]
                target = f"{url}?{canonical_query(full)}" if full else url
            except UnicodeEncodeError:
                raise self._no_name(key) from None
            reply = await self._rest.send(method, target, headers, subject=subject, body=body)
            if reply.status == 200:
                return reply
            if reply.status != 401 or held is None:
                break
        call = Call(
            subject,
            PERMISSIONS[needs],
            self._endpoint_url,
            place_of(self._source, self.describe()["credentials"]),
            self._clock(),
        )
        raise refused(reply, call, self._api.error_code, listing=needs == "list")

    def _payer(self, held: GoogleLogin | None) -> dict[str, str]:
        """The payer's parameter (https://cloud.google.com/storage/docs/requester-pays)."""
        if not self._pays:
            return {}
        project = self._billing_project or (held.project if held else "")
        if not project:
            raise AccessDenied(
                f"{self._root}: nobody to bill: the credentials name no project", hint="set billing_project"
            )
        return {"userProject": project}

    @property
    def _is_googles(self) -> bool:
        return self._endpoint_url == GS_ENDPOINT


def _hmac_key(bucket: str, environ: Mapping[str, str]) -> StaticKeys | None:
    """An HMAC key under the names that GDAL uses; Google's own tools have none. None when unset."""
    access_id, secret = environ.get(ACCESS_ID_VARIABLE, ""), environ.get(SECRET_VARIABLE, "")
    if bool(access_id) != bool(secret):
        lacking = SECRET_VARIABLE if access_id else ACCESS_ID_VARIABLE
        raise ConfigError(f"gs://{bucket}: half of an HMAC key: {lacking} is not set", hint="set both, or neither")
    return StaticKeys(access_id, SecretStr(secret), given_in=SECRET_VARIABLE) if access_id else None
