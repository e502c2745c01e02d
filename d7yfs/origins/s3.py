"""S3 and what speaks its dialect, through boto3: lists, stats, and signed GETs for others to send.

Owns one bucket under one set of credentials: the boto3 client (replaced as a whole when credentials are reloaded or the
bucket turns out to be in another region) and the bounded table of signed requests. Built by the registry in
`d7yfs.origins`, used by tree, fetcher and the `ls` and `check` commands through the `Origin` protocol.

Every SDK call runs in a worker thread of a small limiter, because the SDK blocks: on the network, and whenever it is asked
for credentials, which it may have to refresh. A cancelled caller abandons its thread, whose own timeouts end it. Signing is
the exception: `s3_signing` does it in the trio thread, with credentials that a worker thread fetched within the last minute.

What boto3 would take from the environment behind our back is switched off where it concerns where requests go: proxies
(`HTTP_PROXY` & co. would hand the control plane to whatever runs there), CA bundles (`AWS_CA_BUNDLE`, `REQUESTS_CA_BUNDLE`:
ours is a setting that the data plane shares), retries and checksums. `AWS_ENDPOINT_URL[_S3]` and the profile's
`endpoint_url` count where no endpoint is configured, and then are part of `identity`.

S3 lists in UTF-8 order; SeaweedFS and S3 directory buckets list each directory's keys together instead. Each key comes
once in any case.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar

import boto3
import botocore.session
import trio
from botocore import UNSIGNED
from botocore.config import Config
from botocore.exceptions import ClientError, NoCredentialsError
from botocore.loaders import create_loader
from botocore.utils import parse_timestamp
from cachetools import TLRUCache

from d7yfs.config.schema import Anonymous, Credentials, Profile, RepositoryConfig, StaticKeys
from d7yfs.config.url import normal_endpoint
from d7yfs.errors import BadReply, ConfigError, D7yfsError, NotFound
from d7yfs.objects import ListingPage, ObjectVersion
from d7yfs.origins.origin import Checksums, ReadRequest
from d7yfs.origins.s3_checksum import recorded
from d7yfs.origins.s3_errors import Call, WrongRegion, date_of, from_credentials, translate
from d7yfs.origins.s3_signing import Signer, Target
from d7yfs.trust import ca_file

if TYPE_CHECKING:
    from botocore.credentials import Credentials as BotoCredentials
    from mypy_boto3_s3 import S3Client

T = TypeVar("T")

_SIGNED_MAX = 2048
"""Signed requests kept; about 2 KiB each, of which a session token is the most."""
_RELOAD_INTERVAL_S = 5.0
"""A herd of 403s reloads credentials once, not once each."""
_CONNECT_TIMEOUT_S = 5.0
_READ_TIMEOUT_S = 15.0
_ATTEMPTS = 3
"""With the timeouts above a call that nobody answers ends within the default read timeout of a mount (60 s)."""
_THREADS = 8
_DEFAULT_REGION = "us-east-1"
_ARCHIVES = frozenset({"GLACIER", "DEEP_ARCHIVE"})
"""Storage classes without a readable copy until restored. GLACIER_IR and the others read at once."""

_FOUND_IN = {
    "explicit": "given to d7yfs",
    "env": "environment variables",
    "shared-credentials-file": "the shared credentials file",
    "config-file": "the shared configuration file",
    "custom-process": "a credential process",
    "assume-role": "an assumed role",
    "assume-role-with-web-identity": "a web identity token",
    "sso": "single sign-on",
    "iam-role": "instance metadata",
    "container-role": "the container's role",
}
"""botocore's names for where it found credentials (`method` in botocore/credentials.py), in words."""

_SERVICE_MODELS = create_loader()
"""botocore's parsed description of S3, shared: it costs each session of its own 12 MiB and 50 ms."""

# At DEBUG these write canonical requests, signatures and session tokens.
for _name in ("boto3", "botocore", "urllib3"):
    logging.getLogger(_name).setLevel(logging.WARNING)

log = logging.getLogger(__name__)


@dataclass(slots=True, repr=False, eq=False)
class _Loaded:
    """One loading of the credentials, and the client made with them for one region."""

    client: S3Client
    credentials: BotoCredentials | None
    """None: anonymous."""
    region: str
    loaded_at: float
    signer: Signer | None = None
    """None until the first read."""


class S3Origin:
    """One bucket; see the module and `origins.origin.Origin`."""

    def __init__(
        self,
        bucket: str,
        credentials: Credentials,
        *,
        endpoint_url: str = "",
        region: str = "",
        verify_tls: bool = True,
        ca_bundle: str = "",
        addressing_style: str = "auto",
        pin_versions: bool = False,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Read the SDK's own settings; no request is made and no credential loaded.

        `endpoint_url` and `region` are empty for what the SDK knows; `addressing_style` is "path", "virtual" or "auto",
        which means path at a custom endpoint; `pin_versions` reads by versionId, which needs s3:GetObjectVersion;
        `clock` is time.time(). Raises ConfigError.
        """
        self._bucket = bucket
        self._source = credentials
        self._verify: bool | str = (ca_bundle or True) if verify_tls else False
        self._pin_versions = pin_versions
        self._clock = clock
        self._endpoint_url = endpoint_url
        self._region = region
        self._loaded: _Loaded | None = None
        session = self._guarded(self._new_session)
        endpoint_url = endpoint_url or self._guarded(lambda: _sdk_endpoint(session))
        try:
            self._endpoint_url = endpoint_url and normal_endpoint(endpoint_url)
        except ValueError as error:
            raise ConfigError(f"s3://{bucket}: the endpoint URL {error}") from None
        self._addressing_style = "path" if self._endpoint_url and addressing_style == "auto" else addressing_style
        self._region_is_set = bool(region)
        self._region = region or self._guarded(lambda: session.region_name) or _DEFAULT_REGION
        self._limiter = trio.CapacityLimiter(_THREADS)
        self._loading = trio.Lock()
        self._signed: TLRUCache[tuple[object, ...], ReadRequest] = TLRUCache(
            _SIGNED_MAX, lambda _key, request, now: now + (request.expires_at - now) / 2, timer=clock
        )

    @classmethod
    def open(cls, repository: RepositoryConfig, credentials: Credentials) -> S3Origin:
        """What the registry calls. Raises ConfigError."""
        return cls(
            repository.url.bucket,
            credentials,
            endpoint_url=repository.url.endpoint_url or repository.endpoint_url,
            region=repository.region,
            verify_tls=repository.verify_tls,
            ca_bundle=ca_file(repository.ca_bundle),
            addressing_style=repository.addressing_style,
        )

    @property
    def url(self) -> str:
        """`s3://bucket` or `s3://http://host:port/bucket`."""
        return f"s3://{self._endpoint_url}/{self._bucket}" if self._endpoint_url else f"s3://{self._bucket}"

    @property
    def identity(self) -> str:
        """Scheme, endpoint and bucket; AWS is one endpoint, whatever the region."""
        return f"s3 {self._endpoint_url or 'aws'} {self._bucket}"

    async def list(self, prefix: str, *, delimiter: str = "/", token: str = "", page_size: int = 1000) -> ListingPage:
        """One ListObjectsV2. Keys that are not UTF-8 come with U+FFFD and cannot be read; times are cut to seconds, as
        HEAD gives them."""
        options: dict[str, Any] = {"Bucket": self._bucket, "Prefix": prefix, "MaxKeys": page_size}
        if delimiter:
            options["Delimiter"] = delimiter
        if token:
            options["ContinuationToken"] = token
        if not self._endpoint_url:
            options["OptionalObjectAttributes"] = ["RestoreStatus"]  # others may refuse the header
        _, reply = await self._call(prefix, "s3:ListBucket", lambda loaded: loaded.client.list_objects_v2(**options))
        if not reply.keys() & {"Name", "IsTruncated", "Contents"}:
            raise BadReply(
                f"{self._subject(prefix)}: what answers is not S3", hint=f"endpoint {self._endpoint_url or 'AWS'}"
            )
        truncated = reply.get("IsTruncated", False)
        next_token = reply.get("NextContinuationToken", "") if truncated else ""
        if truncated and next_token in ("", token):
            raise BadReply(f"{self._subject(prefix)}: the listing is cut off and names no next page")
        try:
            return ListingPage(
                objects=tuple(_listed(each) for each in reply.get("Contents", ())),
                prefixes=tuple(each["Prefix"] for each in reply.get("CommonPrefixes", ())),
                next_token=next_token,
                date_ns=self._date_ns(reply),
            )
        except KeyError as missing:
            raise BadReply(f"{self._subject(prefix)}: the listing leaves out {missing}") from None

    async def stat(self, key: str) -> ObjectVersion:
        """One HeadObject. Raises NotFound."""
        _, head = await self._call(
            key, "s3:GetObject", lambda loaded: loaded.client.head_object(Bucket=self._bucket, Key=key)
        )
        restored = 'ongoing-request="false"' in head.get("Restore", "")
        storage_class = head.get("StorageClass", "")
        archived = head.get("ArchiveStatus", "") or (storage_class if storage_class in _ARCHIVES else "")
        version_id = head.get("VersionId", "") if self._pin_versions else ""
        try:
            return ObjectVersion(
                key=key,
                size_bytes=head["ContentLength"],
                validator=_quoted(head["ETag"]),
                mtime_ns=_seconds_ns(head["LastModified"]),
                version_id="" if version_id == "null" else version_id,  # "null" is replaced by overwriting: no pin
                archived="" if restored else archived,
            )
        except KeyError as missing:
            raise BadReply(f"{self._subject(key)}: the reply leaves out {missing}") from None

    async def read_request(self, version: ObjectVersion, *, presigned: bool, fresh: bool = False) -> ReadRequest:
        """A GET signed for SIGNATURE_LIFE_S or until the credentials expire, reused for half of that time.

        Does not wait unless the signer is stale. Raises NotFound for a key that cannot be.
        """
        key = (version.identity, version.version_id, presigned)
        if fresh:
            self._signed.clear()
            loaded = self._loaded
            if loaded is not None and not 0 <= self._clock() - loaded.loaded_at < _RELOAD_INTERVAL_S:
                await self._load(instead_of=loaded)
        elif (known := self._signed.get(key)) is not None:
            return known
        loaded, signer = await self._signer(version.key, fresh=fresh)
        try:
            request = signer.sign(version, presigned=presigned, now=self._clock())
        except ValueError:
            raise NotFound(f"{self._subject(version.key)}: not a name that S3 allows") from None
        if loaded is self._loaded:
            self._signed[key] = request
        return request

    async def checksums(self, version: ObjectVersion) -> Checksums:
        """One HeadObject, compared by its ETag: a store that ignores If-Match would answer for another version."""
        pin: dict[str, Any] = {"VersionId": version.version_id} if version.version_id else {}
        _, head = await self._call(
            version.key,
            "s3:GetObject",
            lambda loaded: loaded.client.head_object(
                Bucket=self._bucket, Key=version.key, ChecksumMode="ENABLED", **pin
            ),
        )
        return recorded(head) if _quoted(head.get("ETag", "")) == version.validator else Checksums()

    def describe(self) -> dict[str, str]:
        """Endpoint, region and where the SDK found the credentials, as far as it has looked."""
        found = {"endpoint": self._endpoint_url or "the provider's own", "region": self._region}
        if self._loaded is not None:
            held = self._loaded.credentials
            found["credentials"] = (
                _FOUND_IN.get(held.method or "", held.method or "unknown") if held else "none (anonymous)"
            )
        return found

    async def aclose(self) -> None:
        """Close the SDK's connections; the origin opens new ones if it is used again."""
        loaded, self._loaded = self._loaded, None
        self._signed.clear()
        if loaded is not None:
            loaded.client.close()

    async def _signer(self, key: str, *, fresh: bool) -> tuple[_Loaded, Signer]:
        loaded = self._loaded
        if fresh or loaded is None or loaded.signer is None or loaded.signer.is_stale(self._clock()):
            return await self._call(key, "s3:GetObject", self._new_signer)
        return loaded, loaded.signer

    async def _call(self, key: str, needs: str, operation: Callable[[_Loaded], T]) -> tuple[_Loaded, T]:
        """Run `operation` in a thread; once more when the bucket turns out to be in another region."""
        loaded = await self._load()
        try:
            return loaded, await self._in_thread(key, needs, lambda: operation(loaded), loaded)
        except WrongRegion as wrong:
            region = wrong.region or await self._in_thread(key, needs, lambda: self._ask_region(loaded), loaded)
            if region in ("", loaded.region):
                raise
        log.log(
            logging.WARNING if self._region_is_set else logging.INFO,
            "s3://%s is in region %s, not in %s: going there",
            self._bucket,
            region,
            loaded.region,
        )
        self._region = region
        there = await self._load(instead_of=loaded)
        return there, await self._in_thread(key, needs, lambda: operation(there), there)

    async def _load(self, *, instead_of: _Loaded | None = None) -> _Loaded:
        """The client and credentials now in use, loaded where there are none or they are `instead_of`."""
        async with self._loading:
            if self._loaded is None or self._loaded is instead_of:
                old = self._loaded
                self._loaded = await trio.to_thread.run_sync(
                    lambda: self._guarded(self._new_loaded), abandon_on_cancel=True, limiter=self._limiter
                )
                self._signed.clear()
                if old is not None:
                    old.client.close()
            return self._loaded

    async def _in_thread(self, key: str, needs: str, function: Callable[[], T], loaded: _Loaded) -> T:
        def guarded() -> T:
            if loaded.credentials is not None:
                self._guarded(loaded.credentials.get_frozen_credentials)  # may refresh: its failures are not S3's
            try:
                return function()
            except D7yfsError:
                raise
            except Exception as error:
                failure = translate(error, self._describe(key, needs))
            raise failure

        return await trio.to_thread.run_sync(guarded, abandon_on_cancel=True, limiter=self._limiter)

    def _guarded(self, function: Callable[[], T]) -> T:
        """Call what loads settings or credentials, with its failures as D7yfsErrors."""
        try:
            return function()
        except Exception as error:
            failure = from_credentials(error, self._describe("", ""))
        raise failure

    def _new_session(self) -> boto3.session.Session:
        core = botocore.session.Session()
        core.register_component("data_loader", _SERVICE_MODELS)
        # For every entry of a listing one; botocore's own parser takes any format, and most of the listing's time.
        core.get_component("response_parser_factory").set_parser_defaults(timestamp_parser=_timestamp)
        match self._source:
            case Profile(name=name):
                return boto3.session.Session(botocore_session=core, profile_name=name)
            case StaticKeys(key_id=key_id, secret_key=secret_key, session_token=session_token):
                return boto3.session.Session(
                    botocore_session=core,
                    aws_access_key_id=key_id,
                    aws_secret_access_key=secret_key.get_secret_value(),
                    aws_session_token=session_token.get_secret_value() if session_token else None,
                )
            case _:
                return boto3.session.Session(botocore_session=core)

    def _new_loaded(self) -> _Loaded:
        """Blocks: the provider chain may ask the network for credentials."""
        session = self._new_session()
        anonymous = isinstance(self._source, Anonymous)
        credentials = None if anonymous else session.get_credentials()
        if credentials is None and not anonymous:
            raise NoCredentialsError
        custom = bool(self._endpoint_url)
        client = session.client(
            "s3",
            region_name=self._region,
            endpoint_url=self._endpoint_url or None,
            verify=self._verify,
            config=_config(
                signature_version=UNSIGNED if anonymous else "s3v4",  # the default presigns SigV2 in us-east-1
                s3={"addressing_style": self._addressing_style},
                proxies={},
                retries={"mode": "standard", "total_max_attempts": _ATTEMPTS},
                connect_timeout=_CONNECT_TIMEOUT_S,
                read_timeout=_READ_TIMEOUT_S,
                max_pool_connections=_THREADS,
                tcp_keepalive=True,
                request_checksum_calculation="when_required",
                response_checksum_validation="when_required",
                ignore_configured_endpoint_urls=True,  # read once, in __init__
                use_dualstack_endpoint=False if custom else None,
                use_fips_endpoint=False if custom else None,
                user_agent_extra="d7yfs",
            ),
        )
        client.meta.events.register_last("before-parameter-build.s3", _follow_no_redirect)
        return _Loaded(client, credentials, self._region, self._clock())

    def _new_signer(self, loaded: _Loaded) -> Signer:
        """With the credentials of this moment. Blocks: the SDK may refresh them."""
        target = loaded.signer.target if loaded.signer is not None else Target.of(loaded.client, self._bucket)
        taken_at, expires_at, credentials = self._clock(), float("inf"), None
        if loaded.credentials is not None:
            # In this order: where another thread refreshes them in between, they end later than we believe.
            expires_at = _expiry(loaded.credentials)
            credentials = loaded.credentials.get_frozen_credentials()
        loaded.signer = Signer(target, credentials, taken_at=taken_at, expires_at=expires_at)
        return loaded.signer

    def _ask_region(self, loaded: _Loaded) -> str:
        """HeadBucket tells the region in success and in failure."""
        try:
            headers = loaded.client.head_bucket(Bucket=self._bucket)["ResponseMetadata"]["HTTPHeaders"]
        except ClientError as error:
            headers = error.response["ResponseMetadata"]["HTTPHeaders"]
        return headers.get("x-amz-bucket-region", "")

    def _date_ns(self, reply: Any) -> int:
        date = date_of(reply["ResponseMetadata"]["HTTPHeaders"])
        return int((self._clock() if date is None else date) * 1e9)

    def _subject(self, key: str) -> str:
        return f"s3://{self._bucket}/{key}" if key else f"s3://{self._bucket}"

    def _describe(self, key: str, needs: str) -> Call:
        endpoint = self._endpoint_url or "AWS"
        credentials = self.describe().get("credentials", self._source.describe())
        return Call(self._subject(key), needs, endpoint, self._region, credentials, self._clock())


def _config(**options: Any) -> Config:
    """botocore's Config, of whose options the published types lack some."""
    return Config(**options)


def _sdk_endpoint(session: boto3.session.Session) -> str:
    """The endpoint that the environment or the profile names, empty for none: what a client that heeds them has and one
    that ignores them has not."""
    heeding, ignoring = (
        session.client("s3", region_name=_DEFAULT_REGION, config=_config(signature_version=UNSIGNED, **options))
        for options in ({}, {"ignore_configured_endpoint_urls": True})
    )
    try:
        named, own = heeding.meta.endpoint_url, ignoring.meta.endpoint_url
    finally:
        heeding.close()
        ignoring.close()
    return "" if named == own else named


def _follow_no_redirect(context: dict[str, Any], **_: object) -> None:
    """Keep botocore from following the bucket to its region by itself: it would go on signing reads for the wrong one."""
    context.setdefault("s3_redirect", {})["redirected"] = True


def _listed(entry: Any) -> ObjectVersion:
    storage_class = entry.get("StorageClass", "")
    restored = "RestoreExpiryDate" in entry.get("RestoreStatus", {})
    return ObjectVersion(
        key=entry["Key"],
        size_bytes=entry["Size"],
        validator=_quoted(entry["ETag"]),
        mtime_ns=_seconds_ns(entry["LastModified"]),
        archived=storage_class if storage_class in _ARCHIVES and not restored else "",
    )


def _timestamp(value: Any) -> datetime:
    """A listing's ISO 8601, or whatever else botocore knows (a header's HTTP date)."""
    try:
        moment = datetime.fromisoformat(value)
    except (TypeError, ValueError):
        return parse_timestamp(value)
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _quoted(etag: str) -> str:
    """Some stores leave out the quotes in listings; an entity tag has them (RFC 9110, 8.8.3)."""
    return etag if etag.startswith(('"', "W/")) else f'"{etag}"'


def _seconds_ns(moment: datetime) -> int:
    return int(moment.astimezone(UTC).timestamp()) * 1_000_000_000


def _expiry(credentials: BotoCredentials) -> float:
    """When temporary credentials end; botocore keeps it to itself. Infinity for lasting ones."""
    moment = getattr(credentials, "_expiry_time", None)
    return moment.timestamp() if isinstance(moment, datetime) else float("inf")
