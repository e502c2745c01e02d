"""GsOrigin against the suite's own Cloud Storage, beyond the contract suite."""

from __future__ import annotations

import gzip
import json
import logging
import time
from base64 import b64encode
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from trio.testing import assert_no_checkpoints

from d7yfs.config.schema import (
    Anonymous,
    Credentials,
    CredentialsFile,
    Profile,
    ProviderChain,
    RepositoryConfig,
    StaticKeys,
)
from d7yfs.config.url import RepositoryUrl
from d7yfs.errors import AccessDenied, BadReply, BucketNotFound, ConfigError, NotFound, VersionGone
from d7yfs.objects import ByteRange, ObjectVersion, SecretStr, StoreIdentity
from d7yfs.origins.gs.origin import GsOrigin
from d7yfs.origins.origin import Checksums, ReadRequest
from tests.contract.reading import get, reader
from tests.origins.opening import opened_at
from tests.servers.dfdaemon import FakeDfdaemon
from tests.servers.gcs import Bucket, GcsServer
from tests.servers.google_tokens import METADATA_EMAIL, Reply

BODY = bytes(range(256)) * 40
ZIPPED = gzip.compress(BODY)
VERSION = ObjectVersion("a/model.onnx", 3, "1700000000000000", 0)
TOKEN_PATH = "/computeMetadata/v1/instance/service-accounts/default/token"


@pytest.fixture
def server() -> Iterator[GcsServer]:
    with GcsServer() as server:
        server.buckets["models"] = Bucket()
        yield server


@pytest.fixture
def key_file(server: GcsServer, tmp_path: Path) -> CredentialsFile:
    path = tmp_path / "key.json"
    path.write_text(json.dumps(server.account()))
    return CredentialsFile(path)


@pytest.fixture
def hmac_key(server: GcsServer) -> StaticKeys:
    access_id, secret = server.hmac_key()
    return StaticKeys(access_id, SecretStr(secret))


@pytest.fixture(params=["key_file", "hmac_key"])
def credentials(request: pytest.FixtureRequest) -> Credentials:
    found: Credentials = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def metadata_server(server: GcsServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> GcsServer:
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))
    monkeypatch.setattr("google.auth.compute_engine._metadata._NO_GCE_CHECK", False)
    monkeypatch.setattr("google.auth.compute_engine._metadata._GCE_METADATA_HOST", server.address)
    monkeypatch.setenv("GCE_METADATA_IP", server.address)
    return server


@asynccontextmanager
async def opened(server: GcsServer, credentials: Credentials, **options: Any) -> AsyncIterator[GsOrigin]:
    options = {"endpoint_url": server.url, "iam_endpoint_url": server.url} | options
    async with aclosing(opened_at(GsOrigin, "gs://models", credentials, **options)) as origin:
        yield origin


def query_of(request: ReadRequest) -> dict[str, list[str]]:
    return parse_qs(urlsplit(request.url).query)


# Versions


async def test_a_version_is_a_generation(server: GcsServer, credentials: Credentials) -> None:
    stored = server.put("models", "m", BODY)
    async with opened(server, credentials) as origin:
        version = await origin.stat("m")
        assert (version.validator, version.size_bytes) == (stored.generation, len(BODY))
        for presigned in (True, False):
            request = await origin.read_request(version, presigned=presigned)
            assert query_of(request)["generation"] == [stored.generation]
            assert "generation" not in request.signature_params
            assert "If-Match" not in request.headers
        server.put("models", "m", BODY)
        assert (await origin.stat("m")).identity != version.identity, "the same bytes, but uploaded anew"


async def test_versioned_bucket_serves_what_was_replaced(server: GcsServer, credentials: Credentials) -> None:
    server.buckets["models"].versioned = True
    server.put("models", "m", BODY)
    async with opened(server, credentials) as origin, reader(origin) as read:
        version = await origin.stat("m")
        server.put("models", "m", b"other")
        assert await read.read(version) == BODY
        assert await origin.checksums(version) == Checksums()


async def test_another_generation_is_noticed(server: GcsServer, key_file: CredentialsFile) -> None:
    server.put("models", "m", BODY)
    async with opened(server, key_file) as origin, reader(origin) as read:
        version = await origin.stat("m")
        server.put("models", "m", BODY[::-1])
        server.intercept = lambda request: (
            Reply(200, {"x-goog-generation": "1"}, BODY) if request.path == "/models/m" else None
        )
        with pytest.raises(VersionGone, match="generation 1"):
            await read.read(version)


async def test_composite_object_has_no_md5(server: GcsServer, credentials: Credentials) -> None:
    server.put("models", "m", b"123456789", md5=False)
    async with opened(server, credentials) as origin:
        assert await origin.checksums(await origin.stat("m")) == Checksums(crc32c=0xE3069283)


# Content-Encoding: gzip


@pytest.mark.parametrize("streamed", [True, False])
async def test_gzip_is_read_as_it_is_stored(server: GcsServer, credentials: Credentials, streamed: bool) -> None:
    server.put("models", "m.gz", ZIPPED, encoding="gzip")
    async with (
        FakeDfdaemon().running() as dfdaemon,
        opened(server, credentials) as origin,
        reader(origin, dfdaemon_url=dfdaemon.url if streamed else "") as read,
    ):
        (version,) = (await origin.list("")).objects
        assert version == await origin.stat("m.gz")
        assert version.size_bytes == len(ZIPPED)
        assert version.encoding == ("gzip" if isinstance(credentials, CredentialsFile) else "")
        assert await read.read(version, streamed=streamed) == ZIPPED
        if not streamed:
            assert await read.read(version, ByteRange(3, 40)) == ZIPPED[3:40]
        assert (await origin.checksums(version)).md5


async def test_only_gzip_is_asked_for_so(server: GcsServer, key_file: CredentialsFile) -> None:
    server.put("models", "m", BODY)
    async with opened(server, key_file) as origin, reader(origin) as read:
        await read.read(await origin.stat("m"))
    assert server.asked("/models/m")[-1].headers["accept-encoding"] == "identity"


async def test_what_is_decoded_on_the_way_is_refused(server: GcsServer, key_file: CredentialsFile) -> None:
    stored = server.put("models", "m.gz", ZIPPED, encoding="gzip")
    async with opened(server, key_file) as origin, reader(origin) as read:
        with pytest.raises(BadReply, match="decoded"):
            await read.read(ObjectVersion("m.gz", len(ZIPPED), stored.generation, 0))


# For dfdaemon


async def test_url_signed_with_the_key_of_the_account(server: GcsServer, key_file: CredentialsFile) -> None:
    server.put("models", "m", BODY)
    async with opened(server, key_file) as origin:
        version = await origin.stat("m")
        request = await origin.read_request(version, presigned=True)
        with assert_no_checkpoints():
            assert await origin.read_request(version, presigned=True) is request
    assert not request.headers
    assert query_of(request)["X-Goog-Algorithm"] == ["GOOG4-RSA-SHA256"]
    assert (await get(request)).content == BODY


async def test_url_signed_by_signblob(metadata_server: GcsServer) -> None:
    server = metadata_server
    server.put("models", "m", BODY)
    async with opened(server, ProviderChain()) as origin:
        version = await origin.stat("m")
        request = await origin.read_request(version, presigned=True)
        assert await origin.read_request(version, presigned=True) is request
        assert not request.headers
        assert query_of(request)["X-Goog-Credential"][0].startswith(METADATA_EMAIL)
        assert (await get(request)).content == BODY
        direct = await origin.read_request(version, presigned=False)
    token = server.tokens[direct.headers["Authorization"].removeprefix("Bearer ")]
    assert token.scopes == {"https://www.googleapis.com/auth/devstorage.read_only"}, (
        "what travels can read, and no more"
    )
    assert len(server.asked(f"/v1/projects/-/serviceAccounts/{METADATA_EMAIL}:signBlob".replace("@", "%40"))) == 1


async def test_token_where_nobody_signs(metadata_server: GcsServer, caplog: pytest.LogCaptureFixture) -> None:
    server = metadata_server
    server.may_sign_blobs = False
    server.put("models", "m", BODY)
    server.put("models", "n", BODY)
    async with opened(server, ProviderChain()) as origin:
        for name in ("m", "n"):
            request = await origin.read_request(await origin.stat(name), presigned=True)
            assert request.headers["Authorization"].removeprefix("Bearer ") in server.tokens
            assert not request.signature_params
            assert (await get(request)).content == BODY
    assert len([each for each in server.requests if each.path.endswith(":signBlob")]) == 1, (
        "it is not asked again at once"
    )
    assert "signBlob says 403" in caplog.text
    assert "iam.serviceAccounts.signBlob" in caplog.text


# Credentials


async def test_token_that_ended_early_is_replaced(server: GcsServer, key_file: CredentialsFile) -> None:
    now = [time.time()]
    async with opened(server, key_file, clock=lambda: now[0]) as origin:
        await origin.list("")
        server.tokens.clear()
        now[0] += 10
        await origin.list("")
        assert len(server.asked("/token")) == 2
        server.tokens.clear()
        with pytest.raises(AccessDenied, match="authError"):
            await origin.list("")


async def test_anonymous(server: GcsServer) -> None:
    server.put("models", "m", BODY)
    async with opened(server, Anonymous()) as origin:
        with pytest.raises(AccessDenied):
            await origin.list("")
        server.buckets["models"].public = True
        (version,) = (await origin.list("")).objects
        for presigned in (True, False):
            request = await origin.read_request(version, presigned=presigned)
            assert (dict(request.headers), request.expires_at) == ({}, float("inf"))
            assert (await get(request)).content == BODY
        assert origin.describe()["credentials"] == "anonymous"
    assert not [each for each in server.requests if "authorization" in each.headers]


async def test_credentials_of_other_clouds_are_refused() -> None:
    for credentials in (Profile("p"), StaticKeys("k", SecretStr("s"), SecretStr("t"))):
        with pytest.raises(ConfigError, match="no use"):
            opened_at(GsOrigin, "gs://models", credentials)


async def test_nothing_is_done_at_opening(tmp_path: Path) -> None:
    repository = RepositoryConfig(
        url=RepositoryUrl.parse("gs://models/x"), endpoint_url="http://127.0.0.1:1", billing_project="payer"
    )
    async with aclosing(GsOrigin(repository, CredentialsFile(tmp_path / "absent.json"))) as origin:
        assert origin.url == "gs://http://127.0.0.1:1/models"
        assert "absent.json" in origin.describe()["credentials"]


async def test_hmac_key_of_the_environment(
    server: GcsServer, hmac_key: StaticKeys, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    server.put("models", "m", BODY)
    repository = RepositoryConfig(url=RepositoryUrl.parse("gs://models"), endpoint_url=server.url)
    monkeypatch.setenv("GS_ACCESS_KEY_ID", hmac_key.key_id)
    with pytest.raises(ConfigError, match="GS_SECRET_ACCESS_KEY is not set"):
        GsOrigin(repository, ProviderChain())
    monkeypatch.setenv("GS_SECRET_ACCESS_KEY", hmac_key.secret_key.get_secret_value())
    async with aclosing(GsOrigin(repository, ProviderChain())) as origin:
        assert (await origin.stat("m")).size_bytes == len(BODY)
        assert origin.describe()["credentials"].startswith("access key")
    async with aclosing(GsOrigin(repository, CredentialsFile(tmp_path / "absent"))) as origin:
        assert "absent" in origin.describe()["credentials"], "what is named goes before what is found"


async def test_the_emulators_variables_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("STORAGE_EMULATOR_HOST", "CLOUD_STORAGE_EMULATOR_ENDPOINT"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    async with aclosing(opened_at(GsOrigin, "gs://models", Anonymous())) as origin:
        assert (origin.url, origin.identity) == ("gs://models", StoreIdentity("gs", "google", "models"))
        request = await origin.read_request(VERSION, presigned=False)
        assert request.url == "https://storage.googleapis.com/models/a/model.onnx?generation=1700000000000000"


async def test_a_key_that_cannot_be(server: GcsServer, credentials: Credentials) -> None:
    async with opened(server, credentials) as origin:
        for key in ("", "\ud800"):
            with pytest.raises(NotFound):
                await origin.stat(key)
            with pytest.raises(NotFound):
                await origin.read_request(ObjectVersion(key, 1, "1", 0), presigned=False)


# Requester pays


@pytest.mark.parametrize(
    ("options", "project"),
    [({"requester_pays": True}, "project"), ({"billing_project": "payer"}, "payer")],
)
async def test_requester_pays(
    server: GcsServer, key_file: CredentialsFile, options: dict[str, Any], project: str
) -> None:
    server.buckets["models"].requester_pays = True
    server.put("models", "m", BODY)
    async with opened(server, key_file, **options) as origin:
        version = await origin.stat("m")
        assert (await origin.list("")).objects == (version,)
        for presigned in (True, False):
            request = await origin.read_request(version, presigned=presigned)
            assert query_of(request)["userProject"] == [project]
            assert (await get(request)).content == BODY


async def test_requester_pays_unasked(server: GcsServer, credentials: Credentials) -> None:
    server.buckets["models"].requester_pays = True
    async with opened(server, credentials) as origin:
        with pytest.raises(AccessDenied, match="UserProjectMissing") as caught:
            await origin.list("")
    assert "billing_project" in caught.value.hint


async def test_requester_pays_and_nobody_to_bill(hmac_key: StaticKeys) -> None:
    with pytest.raises(ConfigError, match="nobody to bill"):
        opened_at(GsOrigin, "gs://models", hmac_key, requester_pays=True)


# Replies


def json_error(status: int, reason: str) -> Reply:
    return Reply(status, {}, json.dumps({"error": {"code": status, "errors": [{"reason": reason}]}}).encode())


@pytest.mark.parametrize(
    ("reply", "error", "words"),
    [
        (json_error(404, "notFound"), BucketNotFound, "no such bucket"),
        (json_error(403, "forbidden"), AccessDenied, "storage.objects.list"),
        (json_error(403, "accountDisabled"), AccessDenied, "barred"),
        (json_error(403, "CloudKmsDisabledKey"), AccessDenied, "enable it"),
        (json_error(400, "invalid"), AccessDenied, "refused"),
        (Reply(200, {}, b"[]"), BadReply, "not Cloud Storage"),
        (Reply(200, {}, b'{"kind": "storage#buckets"}'), BadReply, "not Cloud Storage"),
        (
            Reply(200, {}, b'{"kind": "storage#objects", "items": [{"name": "x"}]}'),
            BadReply,
            "leaves out 'timeCreated'",
        ),
        (Reply(200, {}, b'{"kind": "storage#objects", "items": 7}'), BadReply, "not Cloud Storage"),
        (Reply(200, {}, b"[" * 100_000), BadReply, "too deep"),
        (Reply(200, {}, b'{"kind": "storage#objects", "prefixes": [7]}'), BadReply, "names an object '7'"),
        (Reply(200, {}, b'{"kind": "storage#objects", "nextPageToken": 7}'), BadReply, "cannot be asked for"),
        (Reply(200, {}, b'{"kind": 1e999}'), BadReply, "JSON with the number '1e999'"),
    ],
)
async def test_refused_and_malformed_listings(
    server: GcsServer, key_file: CredentialsFile, reply: Reply, error: type[Exception], words: str
) -> None:
    server.intercept = lambda request: reply if request.path.startswith("/storage/") else None
    async with opened(server, key_file) as origin:
        with pytest.raises(error, match=words):
            await origin.list("a/")


@pytest.mark.parametrize(
    ("size", "generation", "created"),
    [
        ("9" * 5000, "1", "2026-01-01T00:00:00Z"),
        (str(1 << 63), "1", "2026-01-01T00:00:00Z"),
        ("1", "x" * 100_000, "2026-01-01T00:00:00Z"),
        ("1", "1", "0001-01-01T00:00:00Z"),
    ],
)
async def test_an_object_that_cannot_be_is_no_fault_of_the_others(
    server: GcsServer, key_file: CredentialsFile, size: str, generation: str, created: str
) -> None:
    good = {"name": "a/b", "size": "1", "generation": "5", "timeCreated": "2026-01-01T00:00:00Z"}
    bad = {"name": "a/a", "size": size, "generation": generation, "timeCreated": created}
    body = json.dumps({"kind": "storage#objects", "items": [bad, good]}).encode()
    server.intercept = lambda request: Reply(200, {}, body) if request.path.startswith("/storage/") else None
    async with opened(server, key_file) as origin:
        first, second = (await origin.list("a/")).objects
    assert (first.key, bool(first.fault), second.key, second.fault) == ("a/a", True, "a/b", "")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<Listing/>",
        b"<!DOCTYPE x []><ListBucketResult/>",
        b"<ListBucketResult><IsTruncated>true</IsTruncated></ListBucketResult>",
        b"<ListBucketResult><Contents><Key>a</Key></Contents></ListBucketResult>",
    ],
)
async def test_malformed_xml_listings(server: GcsServer, hmac_key: StaticKeys, body: bytes) -> None:
    server.intercept = lambda _: Reply(200, {}, body)
    async with opened(server, hmac_key) as origin:
        with pytest.raises(BadReply):
            await origin.list("")


async def test_listing_in_a_circle(server: GcsServer, key_file: CredentialsFile) -> None:
    page = b'{"kind": "storage#objects", "nextPageToken": "t"}'
    server.intercept = lambda request: Reply(200, {}, page) if request.path.startswith("/storage/") else None
    async with opened(server, key_file) as origin:
        with pytest.raises(BadReply, match="no next page"):
            await origin.list("", token="t")


async def test_no_token_and_no_signature_is_logged(
    metadata_server: GcsServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    metadata_server.put("models", "m", BODY)
    async with opened(metadata_server, ProviderChain()) as origin:
        version = await origin.stat("m")
        request = await origin.read_request(version, presigned=True)
        metadata_server.intercept = lambda request: Reply(404) if request.path == TOKEN_PATH else None
        await origin.read_request(version, presigned=False, fresh=True)
    shown = f"{caplog.text}{origin!r}{request!r}"
    secrets = {*metadata_server.tokens, query_of(request)["X-Goog-Signature"][0]}
    assert len(secrets) >= 3
    assert not [secret for secret in secrets if secret in shown]


def test_the_server_has_an_opinion_of_its_own(server: GcsServer) -> None:
    """The server refuses wrong signatures, tokens and assertions: the tests above rely on it."""
    server.put("models", "m", BODY)
    forged = b64encode(b"{}").decode().strip("=")
    with httpx.Client(base_url=server.url, trust_env=False) as client:
        for url in ("/models/m", "/models", "/storage/v1/b/models/o", "/models/m?X-Goog-Signature=00"):
            for headers in ({}, {"Authorization": "Bearer made-up"}):
                assert client.get(url, headers=headers).status_code in (400, 401, 403), url
        grant = {"grant_type": "urn:ietf:params:oauth:grant-type:jwt-bearer"}
        claims = b64encode(b'{"iss": "nobody"}').decode().strip("=")
        reply = client.post("/token", data=grant | {"assertion": f"{forged}.{claims}.{forged}"})
        assert reply.status_code == 400
