"""S3Origin and its GETs against a store that verifies them and plays what SeaweedFS lacks."""

from __future__ import annotations

import hashlib
import logging
import os
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
import trio
import trustme

from d7yfs.config.schema import Anonymous, RepositoryConfig, StaticKeys
from d7yfs.config.url import RepositoryUrl
from d7yfs.errors import AccessDenied, ConfigError, OriginUnavailable, OriginUntrusted, VersionGone
from d7yfs.fetch.fetcher import Fetcher
from d7yfs.fetch.transport import Transport
from d7yfs.objects import ByteRange, ObjectVersion, SecretStr
from d7yfs.origins import open_origin
from d7yfs.origins.origin import Checksums, Origin
from d7yfs.origins.s3.origin import S3Origin
from d7yfs.tls import Trust
from tests.origins.opening import opened_at
from tests.servers import faults
from tests.servers.http11 import Answer, Exchange
from tests.servers.s3_verifying import BUCKET, KEY_ID, REGION, SECRET, VerifyingS3

KEYS = StaticKeys(KEY_ID, SecretStr(SECRET))
KEY = "a b/model+1.onnx"
BODY = os.urandom(100_000)
ARN = "arn:aws:kms:eu-west-3:123456789012:key/1234abcd-12ab-34cd-56ef-1234567890ab"
KINDS = pytest.mark.parametrize("presigned", [True, False], ids=["presigned", "signed"])


class Sink:
    """A sink that keeps the bytes."""

    def __init__(self) -> None:
        self.data = bytearray()

    async def write(self, offset: int, data: memoryview) -> None:
        self.data += data

    def retract(self, wanted: ByteRange) -> int:
        del self.data[wanted.start :]
        return wanted.start


@pytest.fixture(scope="module")
def ca() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def ca_file(ca: trustme.CA, tmp_path: Path) -> Path:
    path = tmp_path / "ca.pem"
    ca.cert_pem.write_to_path(str(path))
    return path


@pytest.fixture
async def plain() -> AsyncIterator[VerifyingS3]:
    async with VerifyingS3({KEY: BODY}).running() as server:
        yield server


@pytest.fixture
async def tls(ca: trustme.CA) -> AsyncIterator[VerifyingS3]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ca.issue_cert("127.0.0.1").configure_cert(context)
    async with VerifyingS3({KEY: BODY}, ssl_context=context).running() as server:
        yield server


@asynccontextmanager
async def mounted(server: VerifyingS3, ca_file: Path | None = None, **options: object) -> AsyncIterator[Origin]:
    """The origin of a repository with these options."""
    settings: dict[str, Any] = {"region": REGION, "ca_bundle": ca_file, **options}
    repository = RepositoryConfig(url=RepositoryUrl.parse(f"s3://{server.url}/{BUCKET}"), **settings)
    async with aclosing(open_origin(repository, KEYS)) as origin:
        yield origin


async def listed(origin: Origin) -> ObjectVersion:
    (version,) = (await origin.list("", delimiter="")).objects
    return version


async def read(origin: Origin, version: ObjectVersion, ca_file: Path | None = None) -> bytes:
    """Read with the product's own fetcher."""
    async with AsyncExitStack() as stack:
        transport = await stack.enter_async_context(aclosing(Transport(trust=Trust(ca_file))))
        fetcher = Fetcher(origin, transport, proxy=None, read_timeout_s=20, max_connections=4)
        sink = Sink()
        await fetcher.fetch(version, version.whole, sink)
        return bytes(sink.data)


async def get(origin: Origin, version: ObjectVersion, *, presigned: bool) -> httpx.Response:
    request = await origin.read_request(version, presigned=presigned)
    async with httpx.AsyncClient(trust_env=False) as client:
        return await client.get(request.url, headers=dict(request.headers))


# The server itself must be able to refuse


async def test_what_is_not_signed_right_is_refused(plain: VerifyingS3) -> None:
    wrong = StaticKeys(KEY_ID, SecretStr("not-the-secret"))
    for credentials, code in ((wrong, "SignatureDoesNotMatch"), (Anonymous(), "AccessDenied")):
        async with aclosing(
            opened_at(S3Origin, f"s3://{BUCKET}", credentials, endpoint_url=plain.url, region=REGION)
        ) as origin:
            with pytest.raises(AccessDenied):
                await origin.list("")
            for presigned in (True, False):
                version = ObjectVersion(KEY, len(BODY), plain.etag(f"{BUCKET}/{KEY}"), 0)
                assert (await get(origin, version, presigned=presigned)).status_code == 403
        assert set(plain.refused) == {code}
        plain.refused.clear()


@KINDS
async def test_what_is_signed_right_is_served(plain: VerifyingS3, presigned: bool) -> None:
    async with mounted(plain) as origin:
        version = await listed(origin)
        assert (await origin.stat(KEY)).identity == version.identity
        assert (await get(origin, version, presigned=presigned)).content == BODY
        assert await read(origin, version) == BODY
    assert plain.refused == []


# Regions (https://docs.aws.amazon.com/AmazonS3/latest/userguide/Redirects.html)


async def test_the_buckets_region_is_found_and_signed_for(plain: VerifyingS3, caplog: pytest.LogCaptureFixture) -> None:
    async with mounted(plain, region="us-west-2") as origin:
        version = await listed(origin)
        assert (await get(origin, version, presigned=True)).content == BODY
        assert (await get(origin, version, presigned=False)).content == BODY
        assert origin.describe()["region"] == REGION
    assert plain.refused == ["AuthorizationHeaderMalformed"]
    assert f"is in region {REGION}, not in us-west-2" in caplog.text


async def test_the_region_is_found_by_a_stat_too(plain: VerifyingS3) -> None:
    async with mounted(plain, region="us-west-2") as origin:
        assert (await origin.stat(KEY)).size_bytes == len(BODY)


# Signatures


async def test_an_expired_signature_is_made_anew_once(plain: VerifyingS3, monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock was an hour behind during signing."""
    async with mounted(plain) as origin:
        version = await listed(origin)
        with monkeypatch.context() as patch:
            moment = datetime.now(UTC) - timedelta(hours=1)
            patch.setattr("botocore.auth.get_current_datetime", lambda: moment)
            await origin.read_request(version, presigned=False)
        assert await read(origin, version) == BODY
    assert plain.refused == ["RequestTimeTooSkewed"]


# Requester pays (https://docs.aws.amazon.com/AmazonS3/latest/userguide/ObjectsinRequesterPaysBuckets.html)


@KINDS
async def test_requester_pays(plain: VerifyingS3, presigned: bool) -> None:
    plain.requester_pays = True
    async with mounted(plain) as origin:
        with pytest.raises(AccessDenied):
            await origin.list("")
    async with mounted(plain, requester_pays=True) as origin:
        version = await listed(origin)
        assert (await origin.stat(KEY)).identity == version.identity
        assert (await origin.checksums(version)).md5 == hashlib.md5(BODY).hexdigest()
        request = await origin.read_request(version, presigned=presigned)
        assert set(request.headers) == {"If-Match"} or not presigned, "dfdaemon is given a URL"
        assert (await get(origin, version, presigned=presigned)).content == BODY
        assert await read(origin, version) == BODY


# Versions (https://docs.aws.amazon.com/AmazonS3/latest/userguide/RetrievingObjectVersions.html)


@KINDS
async def test_a_version_is_read_on_after_it_was_replaced(plain: VerifyingS3, presigned: bool) -> None:
    plain.versioned = True
    plain.store(KEY, BODY)
    async with mounted(plain, versioned=True) as origin:
        version = await listed(origin)
        await origin.read_request(version, presigned=presigned)
        plain.store(KEY, BODY[::-1])
        assert (await get(origin, version, presigned=presigned)).content == BODY
        assert await read(origin, version) == BODY
        assert (await origin.checksums(version)).md5 == hashlib.md5(BODY).hexdigest()
        assert (await get(origin, await listed(origin), presigned=presigned)).content == BODY[::-1]


async def test_without_the_setting_it_is_gone(plain: VerifyingS3) -> None:
    plain.versioned = True
    plain.store(KEY, BODY)
    async with mounted(plain) as origin:
        version = await listed(origin)
        plain.store(KEY, BODY[::-1])
        with pytest.raises(VersionGone):
            await read(origin, version)


async def test_the_version_is_asked_for_once(plain: VerifyingS3) -> None:
    plain.versioned = True
    plain.store(KEY, BODY)
    async with mounted(plain, versioned=True) as origin:
        version = await listed(origin)
        async with trio.open_nursery() as nursery:
            for presigned in (True, False) * 3:
                nursery.start_soon(partial(origin.read_request, version, presigned=presigned))
        await origin.read_request(version, presigned=True, fresh=True)
    assert [request.method for request in plain.requests_for(f"{BUCKET}/{KEY}")] == ["HEAD"]


async def test_who_is_cancelled_leaves_the_question_to_the_next(plain: VerifyingS3) -> None:
    plain.versioned = True
    plain.store(KEY, BODY)
    asked, never = trio.Event(), trio.Event()

    async def hang(*_: object) -> None:
        asked.set()
        await never.wait()

    async with mounted(plain, versioned=True) as origin:
        version = await listed(origin)
        plain.script(hang)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: origin.read_request(version, presigned=True))
            await asked.wait()
            nursery.cancel_scope.cancel()
        assert "versionId=" in (await origin.read_request(version, presigned=True)).url


@pytest.mark.parametrize("deleted", [True, False])
async def test_a_version_that_went_before_it_was_read(plain: VerifyingS3, deleted: bool) -> None:
    plain.versioned = True
    plain.store(KEY, BODY)
    async with mounted(plain, versioned=True) as origin:
        version = await listed(origin)
        if deleted:
            plain.delete(f"{BUCKET}/{KEY}")
        else:
            plain.store(KEY, BODY[::-1])
        with pytest.raises(VersionGone, match="deleted" if deleted else "replaced"):
            await origin.read_request(version, presigned=True)


@pytest.mark.parametrize("versioned", [True, False], ids=["null version", "no versions"])
async def test_where_there_is_no_id_the_etag_pins(plain: VerifyingS3, versioned: bool) -> None:
    plain.versioned = versioned
    async with mounted(plain, versioned=True) as origin:
        version = await listed(origin)
        request = await origin.read_request(version, presigned=False)
        assert urlsplit(request.url).query == ""
        plain.objects[f"{BUCKET}/{KEY}"] = BODY[::-1]
        with pytest.raises(VersionGone):
            await read(origin, version)


# Encryption (https://docs.aws.amazon.com/AmazonS3/latest/userguide/UsingKMSEncryption.html)


async def test_an_object_under_a_kms_key(tls: VerifyingS3, ca_file: Path) -> None:
    tls.kms_keys[KEY] = ARN
    async with mounted(tls, ca_file) as origin:
        version = await listed(origin)
        assert await read(origin, version, ca_file) == BODY
        assert await origin.checksums(version) == Checksums(), "its ETag is no MD5, though it looks like one"
        tls.record_crc32c(f"{BUCKET}/{KEY}")
        assert (await origin.checksums(version)).crc32c is not None


async def test_a_kms_key_that_may_not_be_used(
    tls: VerifyingS3, ca_file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tls.kms_keys[KEY] = ARN
    tls.kms_denies = True
    async with mounted(tls, ca_file) as origin:
        version = await listed(origin)
        with caplog.at_level(logging.INFO), pytest.raises(AccessDenied, match="allow kms:Decrypt") as caught:
            await read(origin, version, ca_file)
    assert caught.value.message.endswith(f"may not decrypt with the KMS key {ARN}")
    assert ARN in caplog.text
    assert "assumed-role" not in caplog.text + str(caught.value)


async def test_a_kms_key_that_is_disabled(tls: VerifyingS3, ca_file: Path) -> None:
    tls.kms_keys[KEY] = ARN
    tls.kms_state = "KMS.DisabledException"
    async with mounted(tls, ca_file) as origin:
        with pytest.raises(AccessDenied, match=rf"the KMS key {ARN} cannot be used \(KMS\.DisabledException\)"):
            await read(origin, await listed(origin), ca_file)


async def test_kms_wants_tls(plain: VerifyingS3) -> None:
    plain.kms_keys[KEY] = ARN
    async with mounted(plain) as origin:
        with pytest.raises(AccessDenied, match=r"over TLS only .*https://"):
            await read(origin, await listed(origin))


async def test_kms_wants_a_signature(tls: VerifyingS3, ca_file: Path) -> None:
    tls.kms_keys[KEY] = ARN
    version = ObjectVersion(KEY, len(BODY), tls.etag(f"{BUCKET}/{KEY}"), 0)
    async with aclosing(
        opened_at(S3Origin, f"s3://{BUCKET}", Anonymous(), endpoint_url=tls.url, ca_bundle=ca_file)
    ) as origin:
        with pytest.raises(AccessDenied, match="signed requests only"):
            await read(origin, version, ca_file)


async def test_an_object_under_a_key_of_the_customers_own(plain: VerifyingS3) -> None:
    plain.customer_keys.add(KEY)
    async with mounted(plain) as origin:
        version = await listed(origin)
        with pytest.raises(AccessDenied, match=r"customer's own \(SSE-C\)"):
            await read(origin, version)
        with pytest.raises(AccessDenied, match=r"customer's own \(SSE-C\)"):
            await origin.stat(KEY)


# TLS, proxies and AWS's other endpoints


async def test_an_authority_that_nobody_named(tls: VerifyingS3) -> None:
    async with mounted(tls) as origin:
        with pytest.raises(OriginUntrusted, match=r"TLS with .* failed") as caught:
            await origin.list("")
    assert not caught.value.transient


async def test_the_control_proxy_takes_listings_and_no_data(plain: VerifyingS3) -> None:
    """The server takes absolute requests too, so it plays the proxy."""
    async with aclosing(
        opened_at(
            S3Origin,
            f"s3://{BUCKET}",
            KEYS,
            endpoint_url="http://store.invalid",
            region=REGION,
            control_proxy=plain.url,
        )
    ) as origin:
        version = ObjectVersion(KEY, len(BODY), plain.etag(f"{BUCKET}/{KEY}"), 0)
        with pytest.raises(AccessDenied):
            await origin.list("")  # it was signed for store.invalid, which is the point
        assert (await origin.read_request(version, presigned=True)).url.startswith("http://store.invalid/models/")
    assert [request.absolute for request in plain.requests] == [True]


async def test_a_control_proxy_that_is_down(plain: VerifyingS3) -> None:
    async with mounted(plain, control_proxy="http://127.0.0.1:1") as origin:
        with pytest.raises(OriginUnavailable, match=r"control proxy does not let through .* Connection refused"):
            await origin.list("")
    assert plain.requests == []


async def test_a_host_name_without_an_address_may_be_the_buckets() -> None:
    async with aclosing(
        opened_at(S3Origin, f"s3://{BUCKET}", KEYS, endpoint_url="http://store.invalid", addressing_style="virtual")
    ) as origin:
        with pytest.raises(OriginUnavailable, match=r"no host models\.store\.invalid") as caught:
            await origin.list("")
    assert "--endpoint-url" in caught.value.hint
    assert "--addressing-style path" in caught.value.hint


@pytest.mark.parametrize(
    ("options", "host"),
    [
        ({}, "models.s3.eu-west-3.amazonaws.com"),
        ({"dual_stack": True}, "models.s3.dualstack.eu-west-3.amazonaws.com"),
        ({"accelerate": True}, "models.s3-accelerate.amazonaws.com"),
        ({"accelerate": True, "dual_stack": True}, "models.s3-accelerate.dualstack.amazonaws.com"),
    ],
)
@KINDS
async def test_data_comes_from_the_endpoint_that_was_chosen(
    options: dict[str, Any], host: str, presigned: bool
) -> None:
    repository = RepositoryConfig(url=RepositoryUrl.parse("s3://models/x"), region=REGION, **options)
    async with aclosing(open_origin(repository, KEYS)) as origin:
        request = await origin.read_request(ObjectVersion("k", 3, '"abc"', 0), presigned=presigned)
    assert urlsplit(request.url).netloc == host


@pytest.mark.parametrize("option", ["dual_stack", "accelerate"])
def test_endpoints_that_contradict_each_other(option: str) -> None:
    chosen: dict[str, Any] = {option: True}
    repository = RepositoryConfig(url=RepositoryUrl.parse("s3://store:9000/models"), **chosen)
    with pytest.raises(
        ConfigError, match=f"{option} chooses an endpoint of AWS's, but the endpoint is http://store:9000"
    ):
        open_origin(repository, KEYS)


def test_acceleration_needs_a_bucket_that_can_be_a_host_name() -> None:
    with pytest.raises(ConfigError, match="S3 Accelerate"):
        opened_at(S3Origin, "s3://models.example.com", KEYS, region=REGION, accelerate=True)


# A store that is busy


async def busy(exchange: Exchange, _: Answer) -> None:
    await exchange.deliver(Answer(503, {"Retry-After": "4"}, b"<Error><Code>SlowDown</Code></Error>"))


async def too_busy(exchange: Exchange, _: Answer) -> None:
    await exchange.deliver(Answer(503, {"Retry-After": "60"}, b"<Error><Code>SlowDown</Code></Error>"))


async def test_a_busy_store_is_asked_again_when_it_says(plain: VerifyingS3, autojump_clock: object) -> None:
    async with mounted(plain) as origin:
        plain.script(busy, busy)
        start, began = trio.current_time(), time.monotonic()
        await origin.list("")
        assert trio.current_time() - start >= 8
        assert time.monotonic() - began < 8
    assert len(plain.requests) == 3


async def test_a_store_that_stays_busy(plain: VerifyingS3, autojump_clock: object) -> None:
    async with mounted(plain) as origin:
        plain.script(busy, forever=True)
        with pytest.raises(OriginUnavailable, match=r"SlowDown \(503\)") as caught:
            await origin.list("")
    assert caught.value.retry_after_s == 4.0
    assert len(plain.requests) == 3


async def test_who_wants_a_long_rest_gets_it(plain: VerifyingS3) -> None:
    async with mounted(plain) as origin:
        plain.script(too_busy, forever=True)
        with pytest.raises(OriginUnavailable) as caught:
            await origin.stat(KEY)
    assert caught.value.retry_after_s == 60.0
    assert len(plain.requests) == 1


async def test_a_connection_that_breaks_is_made_again(plain: VerifyingS3, autojump_clock: object) -> None:
    async with mounted(plain) as origin:
        plain.script(faults.drop)
        assert await listed(origin)
    assert len(plain.requests) == 2
