"""S3 and what speaks its dialect, through boto3: lists, stats, and signed GETs for others to send.

Owns one bucket under one set of credentials: the boto3 client (replaced as a whole when credentials are reloaded or the
bucket turns out to be in another region) and the bounded tables of signed requests and of version ids. Built by the registry
in `d7yfs.origins`, used by tree, fetcher and the `ls` and `check` commands through the `Origin` protocol.

Every SDK call runs in a worker thread of a small limiter, because the SDK blocks. A cancelled caller abandons its thread,
whose own timeouts end it. Signing is the exception: `s3_signing` does it in the trio thread, with credentials that a worker
thread looked at not long ago (`s3_credentials`). That look happens beside the reads; they wait for it only when nothing else
is valid, and a look that fails leaves what there is in use until it really ends.

What the SDK is let do is said in `s3_client`. The endpoint that it is told by its own settings is part of `identity`.

S3 lists in UTF-8 order; SeaweedFS and S3 directory buckets list each directory's keys together instead. Each key comes
once in any case.
"""

from __future__ import annotations

import logging
import math
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakValueDictionary

import trio
from botocore.exceptions import ClientError
from cachetools import LRUCache, TLRUCache

from d7yfs.config.place import endpoint_name
from d7yfs.config.schema import Credentials, RepositoryConfig
from d7yfs.errors import (
    BadReply,
    BucketNotFound,
    D7yfsError,
    NotFound,
    OriginUnavailable,
    VersionGone,
)
from d7yfs.objects import ListingPage, ObjectVersion, StoreIdentity
from d7yfs.origins.http_time import date_of
from d7yfs.origins.origin import Checksums, ReadRequest
from d7yfs.origins.s3.checksum import recorded
from d7yfs.origins.s3.client import LISTING, Sdk
from d7yfs.origins.s3.credentials import Keys
from d7yfs.origins.s3.errors import Call, WrongRegion, from_credentials, translate
from d7yfs.origins.s3.signing import Signer, Target
from d7yfs.origins.xml_listing import entity_tag, parse_listing
from d7yfs.tls import ca_file

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

T = TypeVar("T")

_SIGNED_MAX = 2048
"""Signed requests kept; about 2 KiB each, of which a session token is the most."""
_PINS_MAX = 8192
"""Version ids kept; about 0.4 KiB each."""
_RELOAD_INTERVAL_S = 5.0
"""A herd of 403s reloads credentials once, not once each."""
_ATTEMPTS = 3
"""With their timeouts a call that nobody answers ends within the default read timeout of a mount (60 s)."""
_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 5.0
"""Who asks for more in Retry-After is not asked again by the same call."""
_THREADS = 8
_ARCHIVES = frozenset({"GLACIER", "DEEP_ARCHIVE"})
"""Storage classes without a readable copy until restored. GLACIER_IR and the others read at once."""

log = logging.getLogger(__name__)


@dataclass(slots=True, repr=False, eq=False)
class _Loaded:
    """One loading of the credentials, and the client made with them for one region."""

    client: S3Client
    keys: Keys | None
    """None: anonymous."""
    region: str
    loaded_at: float
    target: Target | None = None
    """None until the first read."""
    signer: Signer | None = None
    """The same, and after the keys were renewed it is another."""
    looking: bool = False
    """Whether the keys are being renewed beside the reads."""


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
        requester_pays: bool = False,
        dual_stack: bool = False,
        accelerate: bool = False,
        control_proxy: str = "",
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Read the SDK's own settings; no request is made and no credential loaded.

        `endpoint_url` and `region` are empty for what the SDK knows; `addressing_style` is "path", "virtual" or "auto",
        which means path at a custom endpoint; `pin_versions` reads by versionId, which needs s3:GetObjectVersion;
        `dual_stack` and `accelerate` are AWS's endpoints of those names; `control_proxy` is an HTTP proxy's URL;
        `clock` is time.time(). Raises ConfigError.
        """
        self._bucket = bucket
        self._source = credentials
        self._pin_versions = pin_versions
        self._payer = {"RequestPayer": "requester"} if requester_pays else {}
        self._clock = clock
        self._endpoint_url = endpoint_url
        self._region = region
        self._loaded: _Loaded | None = None
        self._sdk = self._guarded(
            lambda: Sdk(
                self._subject(""),
                credentials,
                endpoint_url=endpoint_url,
                region=region,
                verify=(ca_bundle or True) if verify_tls else False,
                addressing_style=addressing_style,
                dual_stack=dual_stack,
                accelerate=accelerate,
                control_proxy=control_proxy,
                threads=_THREADS,
                clock=clock,
            )
        )
        self._endpoint_url = self._sdk.endpoint_url
        self._region_is_set = bool(region)
        self._region = self._sdk.region
        self._limiter = trio.CapacityLimiter(_THREADS)
        self._loading = trio.Lock()
        self._looking = trio.Lock()
        self._pins: LRUCache[tuple[str, str, int], str] = LRUCache(_PINS_MAX)
        self._pinning: WeakValueDictionary[tuple[str, str, int], trio.Lock] = WeakValueDictionary()
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
            pin_versions=repository.versioned,
            requester_pays=repository.requester_pays,
            dual_stack=repository.dual_stack,
            accelerate=repository.accelerate,
            control_proxy=repository.control_proxy,
        )

    @property
    def url(self) -> str:
        """`s3://bucket` or `s3://http://host:port/bucket`."""
        return f"s3://{self._endpoint_url}/{self._bucket}" if self._endpoint_url else f"s3://{self._bucket}"

    @property
    def identity(self) -> StoreIdentity:
        """AWS is one endpoint, whatever the region."""
        return StoreIdentity("s3", endpoint_name("s3", self._endpoint_url), self._bucket)

    async def list(self, prefix: str, *, delimiter: str = "/", token: str = "", page_size: int = 1000) -> ListingPage:
        """One ListObjectsV2. Keys that are not UTF-8 come with U+FFFD and cannot be read; times are cut to seconds, as
        HEAD gives them."""
        options: dict[str, Any] = {"Bucket": self._bucket, "Prefix": prefix, "MaxKeys": page_size, **self._payer}
        if delimiter:
            options["Delimiter"] = delimiter
        if token:
            options["ContinuationToken"] = token
        if not self._endpoint_url:
            options["OptionalObjectAttributes"] = ["RestoreStatus"]  # others may refuse the header
        _, page = await self._call(prefix, "s3:ListBucket", lambda loaded: self._page(loaded.client, prefix, options))
        return page

    def _page(self, client: S3Client, prefix: str, options: dict[str, Any]) -> ListingPage:
        """Blocks."""
        reply: dict[str, Any] = client.list_objects_v2(**options)  # type: ignore[assignment]
        if LISTING not in reply:
            raise BadReply(
                f"{self._subject(prefix)}: what answers is not S3", hint=f"endpoint {self._endpoint_url or 'AWS'}"
            )
        try:
            listing = parse_listing(reply[LISTING], archives=_ARCHIVES)
        except ValueError as error:
            raise BadReply(f"{self._subject(prefix)}: {error}") from None
        next_token = listing.next_token if listing.truncated else ""
        if listing.truncated and next_token in ("", options.get("ContinuationToken")):
            raise BadReply(f"{self._subject(prefix)}: the listing is cut off and names no next page")
        return ListingPage(listing.objects, listing.prefixes, next_token, self._date_ns(reply))

    async def stat(self, key: str) -> ObjectVersion:
        """One HeadObject. Raises NotFound."""
        options: dict[str, Any] = {"Bucket": self._bucket, "Key": key, **self._payer}
        _, head = await self._call(key, "s3:GetObject", lambda loaded: loaded.client.head_object(**options))
        restored = 'ongoing-request="false"' in head.get("Restore", "")
        storage_class = head.get("StorageClass", "")
        archived = head.get("ArchiveStatus", "") or (storage_class if storage_class in _ARCHIVES else "")
        version_id = head.get("VersionId", "") if self._pin_versions else ""
        try:
            return ObjectVersion(
                key=key,
                size_bytes=head["ContentLength"],
                validator=entity_tag(head["ETag"]),
                mtime_ns=_seconds_ns(head["LastModified"]),
                version_id="" if version_id == "null" else version_id,  # "null" is replaced by overwriting: no pin
                archived="" if restored else archived,
            )
        except KeyError as missing:
            raise BadReply(f"{self._subject(key)}: the reply leaves out {missing}") from None

    async def read_request(self, version: ObjectVersion, *, presigned: bool, fresh: bool = False) -> ReadRequest:
        """A GET signed for SIGNATURE_LIFE_S or until the credentials expire, reused for half of that time.

        Does not wait unless the credentials have ended, or `version` is to be pinned and its id is not known yet. Raises NotFound
        for a key that cannot be, and VersionGone where the id is another version's by now.
        """
        key = (version.identity, version.version_id, presigned)
        if fresh:
            self._signed.clear()
            await self._reload()
        elif (known := self._signed.get(key)) is not None:
            return known
        pinned = await self._pinned(version) if self._pin_versions and not version.version_id else version
        loaded, signer = await self._signer(version.key)
        try:
            request = signer.sign(pinned, presigned=presigned, now=self._clock())
        except ValueError:
            raise NotFound(f"{self._subject(version.key)}: not a name that S3 allows") from None
        if loaded is self._loaded:
            self._signed[key] = request
        return request

    async def checksums(self, version: ObjectVersion) -> Checksums:
        """One HeadObject, compared by its ETag: a store that ignores If-Match would answer for another version."""
        options: dict[str, Any] = {"Bucket": self._bucket, "Key": version.key, "ChecksumMode": "ENABLED", **self._payer}
        if version_id := version.version_id or self._pins.get(version.identity, ""):
            options["VersionId"] = version_id
        _, head = await self._call(version.key, "s3:GetObject", lambda loaded: loaded.client.head_object(**options))
        return recorded(head) if entity_tag(head.get("ETag", "")) == version.validator else Checksums()

    @property
    def credentials_expire_at(self) -> float:
        keys = self._loaded.keys if self._loaded is not None else None
        return keys.held.expires_at if keys is not None else math.inf

    def describe(self) -> dict[str, str]:
        """Endpoint, region and where the SDK found the credentials, as far as it has looked."""
        found = {"endpoint": self._endpoint_url or "the provider's own", "region": self._region}
        if self._loaded is not None:
            found["credentials"] = keys.describe() if (keys := self._loaded.keys) else "none (anonymous)"
        return found

    async def aclose(self) -> None:
        """Close the SDK's connections; the origin opens new ones if it is used again."""
        loaded, self._loaded = self._loaded, None
        self._signed.clear()
        if loaded is not None:
            loaded.client.close()

    async def _pinned(self, version: ObjectVersion) -> ObjectVersion:
        """`version` with its id, which no listing carries: one HeadObject for all who ask at once. Raises VersionGone."""
        identity = version.identity
        if (version_id := self._pins.get(identity)) is None:
            async with self._pinning.setdefault(identity, trio.Lock()):
                if (version_id := self._pins.get(identity)) is None:
                    self._pins[identity] = version_id = await self._version_id(version)
        return replace(version, version_id=version_id)

    async def _version_id(self, version: ObjectVersion) -> str:
        """Empty where the bucket gives it none."""
        subject = self._subject(version.key)
        try:
            current = await self.stat(version.key)
        except BucketNotFound:
            raise
        except NotFound:
            raise VersionGone(f"{subject}: was deleted before it was first read") from None
        if current.identity != version.identity:
            raise VersionGone(f"{subject}: was replaced before it was first read")
        return current.version_id

    async def _signer(self, key: str) -> tuple[_Loaded, Signer]:
        loaded = await self._current()
        target = loaded.target
        if target is None:
            loaded, found = await self._call(key, "s3:GetObject", lambda each: Target.of(each.client, self._bucket))
            target = loaded.target = found
        held = loaded.keys.held if loaded.keys is not None else None
        signer = loaded.signer
        if signer is None or signer.held is not held:
            signer = loaded.signer = Signer(target, held, requester_pays=bool(self._payer))
        return loaded, signer

    async def _current(self) -> _Loaded:
        """What is loaded, with keys that have not ended. Waits only where there are none; else it looks for others beside."""
        loaded = self._loaded or await self._load()
        keys, now = loaded.keys, self._clock()
        if keys is not None and keys.held.expires_at <= now:
            await self._look(loaded)
        elif keys is not None and keys.is_stale(now) and not loaded.looking:
            loaded.looking = True
            trio.lowlevel.spawn_system_task(self._look_beside, loaded)
        return self._loaded or loaded

    async def _look(self, loaded: _Loaded) -> None:
        """Renew the keys, or load all anew where a file that they may have come from has changed."""
        keys = loaded.keys
        assert keys is not None
        async with self._looking:
            now = self._clock()
            if loaded is not self._loaded or not (keys.is_stale(now) or keys.held.expires_at <= now):
                return  # another has looked meanwhile
            if keys.files_changed():
                await self._load(instead_of=loaded)
            else:
                await trio.to_thread.run_sync(
                    lambda: self._guarded(keys.renew), abandon_on_cancel=True, limiter=self._limiter
                )

    async def _look_beside(self, loaded: _Loaded) -> None:
        try:
            await self._look(loaded)
        except D7yfsError as error:
            assert loaded.keys is not None
            rest_s = loaded.keys.held.expires_at - self._clock()
            log.warning("%s; those at hand are good for another %.0f s", error, rest_s)
        except Exception:  # nobody waits here, and what leaves a system task ends the program
            log.exception("s3://%s: looking at the credentials failed unexpectedly", self._bucket)
        finally:
            loaded.looking = False

    async def _reload(self) -> None:
        """Load client and credentials anew, unless that was just done; where it fails, what is at hand may still do."""
        loaded = self._loaded
        if loaded is None or 0 <= self._clock() - loaded.loaded_at < _RELOAD_INTERVAL_S:
            return
        try:
            await self._load(instead_of=loaded)
        except D7yfsError as error:
            if loaded.keys is None or loaded.keys.held.expires_at <= self._clock():
                raise
            log.warning("%s; going on with those at hand", error)

    async def _call(self, key: str, needs: str, operation: Callable[[_Loaded], T]) -> tuple[_Loaded, T]:
        """Run `operation` in a thread; once more when the bucket turns out to be in another region."""
        loaded = await self._current()
        try:
            return loaded, await self._patiently(key, needs, lambda: operation(loaded))
        except WrongRegion as wrong:
            region = wrong.region or await self._in_thread(key, needs, lambda: self._ask_region(loaded))
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
        return there, await self._patiently(key, needs, lambda: operation(there))

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

    async def _patiently(self, key: str, needs: str, function: Callable[[], T]) -> T:
        """Call `function` in a thread, again while the store is busy or cannot be reached: after the time that it asks for."""
        for attempt in range(1, _ATTEMPTS):
            try:
                return await self._in_thread(key, needs, function)
            except OriginUnavailable as error:
                pause_s = max(_PAUSE_S * 2**attempt * random.uniform(0.5, 1), error.retry_after_s)  # noqa: S311 - no secret
                if not error.transient or pause_s > _LONGEST_PAUSE_S:
                    raise
            await trio.sleep(pause_s)
        return await self._in_thread(key, needs, function)

    async def _in_thread(self, key: str, needs: str, function: Callable[[], T]) -> T:
        def guarded() -> T:
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
        except D7yfsError:
            raise
        except Exception as error:
            failure = from_credentials(error, self._describe("", ""))
        raise failure

    def _new_loaded(self) -> _Loaded:
        """Blocks: the provider chain may ask the network for credentials."""
        client, keys = self._sdk.open(self._region)
        return _Loaded(client, keys, self._region, self._clock())

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


def _seconds_ns(moment: datetime) -> int:
    return int(moment.astimezone(UTC).timestamp()) * 1_000_000_000
