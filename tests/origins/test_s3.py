"""S3Origin against a scripted server: replies that SeaweedFS never gives, and the bytes sent."""

from __future__ import annotations

import contextlib
import json
import logging
import re
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import parse_qs, urlsplit
from xml.sax.saxutils import escape

import pytest
import trio
from botocore.exceptions import InvalidRegionError
from botocore.utils import validate_region_name
from trio.testing import assert_checkpoints, assert_no_checkpoints

from d7yfs.config.schema import Anonymous, Credentials, Profile, ProviderChain, RepositoryConfig, StaticKeys
from d7yfs.config.url import RepositoryUrl
from d7yfs.errors import AccessDenied, BadReply, ConfigError, NotFound, OriginUnavailable
from d7yfs.objects import ObjectVersion, SecretStr, StoreIdentity
from d7yfs.origins import open_origin
from d7yfs.origins.origin import Checksums
from d7yfs.origins.s3 import sdk
from d7yfs.origins.s3.origin import S3Origin
from d7yfs.origins.s3.sdk import AwsSdk
from d7yfs.origins.survey import list_all
from tests.origins.opening import opened_at
from tests.servers.http11 import Answer, HttpServer, Request

KEYS = StaticKeys("AKIDEXAMPLE", SecretStr("the-secret"))
VERSION = ObjectVersion("a/model.onnx", 3, '"abc"', 0)
MODIFIED = "Sat, 21 Nov 2026 10:55:00 GMT"
LIST = "list-type=2"
GiveKeys = Callable[[str], object]


class ScriptedS3(HttpServer):
    """A server that answers with `reply(request)`, by default an empty listing."""

    def __init__(self) -> None:
        super().__init__()
        self.reply: Callable[[Request], Answer] = lambda _: listing()

    async def answer(self, request: Request) -> Answer:
        return self.reply(request)

    def origin(self, credentials: Credentials = KEYS, *, region: str = "", **options: object) -> S3Origin:
        return opened_at(S3Origin, "s3://models", credentials, endpoint_url=self.url, region=region, **options)


@pytest.fixture
async def s3() -> AsyncIterator[ScriptedS3]:
    async with ScriptedS3().running() as server:
        yield server


def listing(*contents: str, more: str = "") -> Answer:
    body = (
        '<?xml version="1.0"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
        f"<IsTruncated>{'true' if more else 'false'}</IsTruncated><EncodingType>url</EncodingType>"
        f"{more}{''.join(contents)}</ListBucketResult>"
    )
    return Answer(200, {"Content-Type": "application/xml", "Date": MODIFIED}, body.encode())


def entry(key: str, *, etag: str = '"abc"', storage_class: str = "STANDARD", extra: str = "") -> str:
    return (
        f"<Contents><Key>{escape(key)}</Key><LastModified>2026-11-21T10:55:00.987Z</LastModified>"
        f"<ETag>{escape(etag)}</ETag><Size>3</Size><StorageClass>{storage_class}</StorageClass>{extra}</Contents>"
    )


def head(**headers: str) -> Answer:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Answer(200, {"Content-Length": "3", "ETag": '"abc"', "Last-Modified": MODIFIED, **named})


def refusal(status: int, code: str, extra: str = "", **headers: str) -> Answer:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Answer(status, named, f"<Error><Code>{code}</Code><Message>no</Message>{extra}</Error>".encode())


def signed_region(request: Request) -> str:
    return request.headers["authorization"].split("Credential=")[1].split("/")[2]


# Over the wire


async def test_requests_are_plain(s3: ScriptedS3) -> None:
    async with aclosing(s3.origin()) as origin:
        await origin.list("a/", page_size=7)
    (request,) = s3.requests
    query = parse_qs(urlsplit(request.target).query)
    assert urlsplit(request.target).path == "/models"
    assert (query["prefix"], query["delimiter"], query["max-keys"]) == (["a/"], ["/"], ["7"])
    assert query["encoding-type"] == ["url"]
    assert "d7yfs" in request.headers["user-agent"]
    assert signed_region(request) == "us-east-1"
    assert not [name for name in request.headers if "checksum" in name or name == "x-amz-optional-object-attributes"]


async def test_anonymous_signs_nothing(s3: ScriptedS3) -> None:
    async with aclosing(s3.origin(Anonymous())) as origin:
        await origin.list("")
        for presigned in (True, False):
            request = await origin.read_request(VERSION, presigned=presigned)
            assert request.url == f"{s3.url}/models/a/model.onnx"
            assert dict(request.headers) == {"If-Match": '"abc"'}
            assert request.expires_at == float("inf")
    assert "authorization" not in s3.requests[0].headers


@pytest.mark.parametrize("code", ["InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken"])
async def test_a_refusal_of_keys_names_the_file_and_the_key_that_gave_them(s3: ScriptedS3, code: str) -> None:
    s3.reply = lambda _: refusal(403, code)
    keys = StaticKeys("AKIAEXAMPLEEXAMPLE", SecretStr("hidden"), given_in='/etc/keys.json: s3[""]')
    async with aclosing(s3.origin(keys)) as origin:
        with pytest.raises(AccessDenied) as caught:
            await origin.list("")
    assert 'came from access key …MPLE in /etc/keys.json: s3[""]' in caught.value.hint
    assert "hidden" not in str(caught.value)


async def test_a_refusal_of_found_keys_names_the_place_where_they_were_found(
    s3: ScriptedS3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def hint(credentials: Credentials) -> str:
        async with aclosing(s3.origin(credentials)) as origin:
            with pytest.raises(AccessDenied) as caught:
                await origin.list("")
        return caught.value.hint

    s3.reply = lambda _: refusal(403, "SignatureDoesNotMatch")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    keys = "[models]\naws_access_key_id = AKIA\naws_secret_access_key = s3cr3t\n"
    for variable, text in (("AWS_CONFIG_FILE", keys.replace("[", "[profile ")), ("AWS_SHARED_CREDENTIALS_FILE", keys)):
        path = tmp_path / variable
        path.write_text(text)
        monkeypatch.setenv(variable, str(path))
        assert await hint(Profile("models")) == f"copy it anew; it came from {path}, profile models"
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIA")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s3cr3t")
    assert await hint(ProviderChain()) == "copy it anew; it came from environment variables (AWS_ACCESS_KEY_ID, …)"


async def test_environment_does_not_divert_requests(s3: ScriptedS3, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    for name in ("AWS_CA_BUNDLE", "REQUESTS_CA_BUNDLE"):
        monkeypatch.setenv(name, "/nonexistent/ca.pem")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("AWS_USE_FIPS_ENDPOINT", "true")
    monkeypatch.setenv("AWS_USE_DUALSTACK_ENDPOINT", "true")
    async with aclosing(s3.origin()) as origin:
        await origin.list("")
    assert [request.absolute for request in s3.requests] == [False]


@pytest.mark.parametrize("endpoint_url", ["http://h:9000", "https://h/p/q", "https://s3.eu-west-1.amazonaws.com"])
def test_the_address_at_an_endpoint_of_ones_own_is_botocores(
    monkeypatch: pytest.MonkeyPatch, endpoint_url: str
) -> None:
    def told(bucket: str, region: str) -> object:
        repository = RepositoryConfig(url=RepositoryUrl.parse(f"s3://{bucket}"), endpoint_url=endpoint_url)
        try:
            address, signer = AwsSdk(repository, Anonymous()).resolve(region)
        except ConfigError as error:
            return error.message
        return address, signer.region, signer.service

    buckets = ("a.b.c", "A_B", "a--x-s3")
    regions = ("us-east-1", "garage", "aws-global", "fips-us-east-1", "US-EAST-1", "x-", "1")
    ours = {(bucket, region): told(bucket, region) for bucket in buckets for region in regions}
    monkeypatch.setattr(sdk, "_PLAIN_BUCKET", re.compile("(?!)"))
    assert ours == {each: told(*each) for each in ours}


@pytest.mark.parametrize("style", ["auto", "virtual"])
@pytest.mark.parametrize("region", ["ru_central1", "eu.west", "1", "x-"])
def test_a_region_that_botocore_refuses_is_signed_for_at_an_endpoint_of_ones_own(style: str, region: str) -> None:
    with pytest.raises(InvalidRegionError):
        validate_region_name(region)
    url = RepositoryUrl.parse("s3://bucket")
    repository = RepositoryConfig(url=url, endpoint_url="http://h:9000", addressing_style=style)
    address, signer = AwsSdk(repository, Anonymous()).resolve(region)
    assert (signer.region, signer.service) == (region, "s3")
    assert address.base_url == {"auto": "http://h:9000/bucket/", "virtual": "http://bucket.h:9000/"}[style]


def test_a_region_that_cannot_be_signed_for_is_told() -> None:
    repository = RepositoryConfig(url=RepositoryUrl.parse("s3://bucket"), endpoint_url="http://h:9000")
    with pytest.raises(ConfigError, match="region"):
        AwsSdk(repository, Anonymous()).resolve("a/b c")


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_bundle_that_is_none_is_told_before_the_first_request(tmp_path: Path, scheme: str) -> None:
    bundle = tmp_path / "ca.pem"
    bundle.write_text("no certificate")
    with pytest.raises(ConfigError, match=r"the CA bundle .*ca\.pem cannot be used"):
        opened_at(S3Origin, "s3://models", Anonymous(), endpoint_url=f"{scheme}://store", ca_bundle=bundle)


async def test_addressing_style_is_a_setting(s3: ScriptedS3) -> None:
    repository = RepositoryConfig(
        url=RepositoryUrl.parse("s3://models/x"), endpoint_url="http://store.example", addressing_style="virtual"
    )
    async with aclosing(open_origin(repository, Anonymous())) as origin:
        request = await origin.read_request(VERSION, presigned=False)
    assert request.url == "http://models.store.example/a/model.onnx"


async def test_cancelled_call_leaves_at_once(s3: ScriptedS3) -> None:
    asked, never = trio.Event(), trio.Event()

    async def hang(*_: object) -> None:
        asked.set()
        await never.wait()

    s3.script(hang)
    async with aclosing(s3.origin()) as origin:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(origin.list, "")
            await asked.wait()
            nursery.cancel_scope.cancel()
        await origin.list("")


# Listing and stat


async def test_listing_is_decoded(s3: ScriptedS3) -> None:
    s3.reply = lambda _: listing(entry("a%20b%2Bc+d%0A%C3%BC"), entry("x", etag="abc"))
    async with aclosing(s3.origin()) as origin:
        page = await origin.list("")
    assert [version.key for version in page.objects] == ["a b+c d\nü", "x"]
    assert [version.validator for version in page.objects] == ['"abc"', '"abc"']
    moment = datetime(2026, 11, 21, 10, 55, tzinfo=UTC)
    assert {version.mtime_ns for version in page.objects} == {int(moment.timestamp()) * 10**9}
    assert page.date_ns == int(moment.timestamp()) * 10**9


@pytest.fixture
def in_tokyo(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "Asia/Tokyo")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.usefixtures("in_tokyo")
@pytest.mark.parametrize(
    "moment",
    [
        *("2026-11-21T10:55:00.987Z", "2026-11-21T10:55:00Z", "2026-11-21T11:55:00+01:00"),
        *("2026-11-21T10:55:00", "20261121T105500Z", MODIFIED),
    ],
)
async def test_times_of_all_stores_without_a_zone_in_utc(s3: ScriptedS3, moment: str) -> None:
    s3.reply = lambda _: listing(entry("a").replace("2026-11-21T10:55:00.987Z", moment))
    async with aclosing(s3.origin()) as origin:
        (only,) = (await origin.list("")).objects
    assert only.mtime_ns == int(datetime(2026, 11, 21, 10, 55, tzinfo=UTC).timestamp()) * 10**9


@pytest.mark.parametrize("token", ["", "<NextContinuationToken>same</NextContinuationToken>"])
async def test_listing_that_would_never_end(s3: ScriptedS3, token: str) -> None:
    s3.reply = lambda _: listing(entry("a"), more=token or " ")
    async with aclosing(s3.origin()) as origin:
        with pytest.raises(BadReply, match="no next page"):
            await origin.list("", token="same")


@pytest.mark.parametrize("body", [b"<html><p>Welcome!</html>", b"<html><p>Welcome!</p></html>", b""])
async def test_server_that_is_no_s3(s3: ScriptedS3, body: bytes) -> None:
    s3.reply = lambda _: Answer(200, {"Content-Type": "text/html"}, body)
    async with aclosing(s3.origin()) as origin:
        with pytest.raises((BadReply, OriginUnavailable), match=r"the reply is not S3's|says 500"):
            await origin.list("")
        with pytest.raises(BadReply, match="leaves out"):
            await origin.stat("a")


async def test_listing_without_validators(s3: ScriptedS3) -> None:
    s3.reply = lambda _: listing(re.sub("<ETag>.*</ETag>", "", entry("a")))
    async with aclosing(s3.origin()) as origin:
        with pytest.raises(BadReply, match="leaves out 'ETag'"):
            await origin.list("")


@pytest.mark.parametrize(
    ("storage_class", "extra", "archived"),
    [
        ("STANDARD", "", ""),
        ("GLACIER_IR", "", ""),
        ("GLACIER", "", "GLACIER"),
        ("DEEP_ARCHIVE", "", "DEEP_ARCHIVE"),
        ("GLACIER", "<RestoreStatus><IsRestoreInProgress>true</IsRestoreInProgress></RestoreStatus>", "GLACIER"),
        (
            "GLACIER",
            "<RestoreStatus><IsRestoreInProgress>false</IsRestoreInProgress>"
            "<RestoreExpiryDate>2026-12-01T00:00:00.000Z</RestoreExpiryDate></RestoreStatus>",
            "",
        ),
    ],
)
async def test_archived_in_a_listing(s3: ScriptedS3, storage_class: str, extra: str, archived: str) -> None:
    s3.reply = lambda _: listing(entry("a", storage_class=storage_class, extra=extra))
    async with aclosing(s3.origin()) as origin:
        (version,) = (await origin.list("")).objects
    assert version.archived == archived


@pytest.mark.parametrize(
    ("headers", "archived"),
    [
        ({"x_amz_storage_class": "GLACIER"}, "GLACIER"),
        ({"x_amz_storage_class": "GLACIER", "x_amz_restore": 'ongoing-request="true"'}, "GLACIER"),
        ({"x_amz_storage_class": "GLACIER", "x_amz_restore": 'ongoing-request="false", expiry-date="x"'}, ""),
        (
            {"x_amz_storage_class": "INTELLIGENT_TIERING", "x_amz_archive_status": "DEEP_ARCHIVE_ACCESS"},
            "DEEP_ARCHIVE_ACCESS",
        ),
        ({"x_amz_storage_class": "INTELLIGENT_TIERING"}, ""),
        ({}, ""),
    ],
)
async def test_archived_in_a_stat(s3: ScriptedS3, headers: dict[str, str], archived: str) -> None:
    s3.reply = lambda _: head(**headers)
    async with aclosing(s3.origin()) as origin:
        assert (await origin.stat("a")).archived == archived


@pytest.mark.parametrize(
    ("pin", "sent", "pinned"), [(True, "v/1+", "v/1+"), (False, "v/1+", ""), (True, "null", ""), (True, "", "")]
)
@pytest.mark.parametrize("presigned", [True, False])
async def test_version_id_pins_where_asked(s3: ScriptedS3, pin: bool, sent: str, pinned: str, presigned: bool) -> None:
    s3.reply = lambda _: head(**({"x_amz_version_id": sent} if sent else {}))
    async with aclosing(s3.origin(versioned=pin)) as origin:
        version = await origin.stat("a")
        request = await origin.read_request(version, presigned=presigned)
    assert version.version_id == pinned
    assert parse_qs(urlsplit(request.url).query).get("versionId", [""]) == [pinned]
    assert "versionId" not in request.signature_params


# Checksums

MD5 = "d41d8cd98f00b204e9800998ecf8427e"


@pytest.mark.parametrize(
    ("headers", "recorded"),
    [
        ({"crc32c": "2P////8=", "type": "FULL_OBJECT"}, Checksums()),
        ({"crc32c": "4waSgw==", "type": "FULL_OBJECT"}, Checksums(crc32c=0xE3069283)),
        ({"crc32c": "4waSgw=="}, Checksums(crc32c=0xE3069283)),
        ({"crc32c": "4waSgw==", "type": "COMPOSITE"}, Checksums()),
        ({"crc32c": "4waSgw==-3"}, Checksums()),
        ({"crc32c": "4wa=Sgw"}, Checksums()),
        ({"crc32c": "ü"}, Checksums()),
        ({"crc32": "4waSgw==", "type": "FULL_OBJECT"}, Checksums()),
        ({"crc64nvme": "rosUhgp5mIg=", "type": "FULL_OBJECT"}, Checksums(crc64nvme=0xAE8B14860A799888)),
        ({"crc64nvme": "rosUhgp5mIg=", "type": "COMPOSITE"}, Checksums()),
        ({"crc64nvme": "rosUhgp5mIg=-3"}, Checksums()),
        ({"crc64nvme": "4waSgw==", "type": "FULL_OBJECT"}, Checksums()),
        ({}, Checksums()),
    ],
)
async def test_only_a_whole_objects_crcs_count(s3: ScriptedS3, headers: dict[str, str], recorded: Checksums) -> None:
    """The CRCs of "123456789", their check values."""
    s3.reply = lambda _: head(**{f"x_amz_checksum_{name}": value for name, value in headers.items()})
    async with aclosing(s3.origin()) as origin:
        assert await origin.checksums(VERSION) == recorded
    (request,) = s3.requests
    assert (request.method, request.headers["x-amz-checksum-mode"]) == ("HEAD", "ENABLED")


@pytest.mark.parametrize(
    ("etag", "headers", "md5"),
    [
        (f'"{MD5}"', {}, MD5),
        (f'"{MD5}"', {"x_amz_server_side_encryption": "AES256"}, MD5),
        (f'"{MD5}"', {"x_amz_server_side_encryption": "aws:kms"}, None),
        (f'"{MD5}"', {"x_amz_server_side_encryption": "aws:kms:dsse"}, None),
        (f'"{MD5}"', {"x_amz_server_side_encryption_customer_algorithm": "AES256"}, None),
        (f'"{MD5}-2"', {}, None),
    ],
)
async def test_the_etag_of_a_simple_upload_is_an_md5(
    s3: ScriptedS3, etag: str, headers: dict[str, str], md5: str | None
) -> None:
    s3.reply = lambda _: head(ETag=etag, **headers)
    async with aclosing(s3.origin()) as origin:
        assert (await origin.checksums(replace(VERSION, validator=etag))).md5 == md5


async def test_checksums_of_another_version_are_none_of_ours(s3: ScriptedS3) -> None:
    s3.reply = lambda _: head(ETag=f'"{MD5}"', x_amz_checksum_crc32c="4waSgw==")
    async with aclosing(s3.origin()) as origin:
        assert await origin.checksums(VERSION) == Checksums()


async def test_checksums_of_a_pinned_version(s3: ScriptedS3) -> None:
    s3.reply = lambda _: head(x_amz_checksum_crc32c="4waSgw==")
    async with aclosing(s3.origin()) as origin:
        await origin.checksums(replace(VERSION, version_id="v/1+"))
    assert parse_qs(urlsplit(s3.requests[0].target).query)["versionId"] == ["v/1+"]


async def test_checksums_that_are_refused(s3: ScriptedS3) -> None:
    s3.reply = lambda _: Answer(404)
    async with aclosing(s3.origin()) as origin:
        with pytest.raises(NotFound):
            await origin.checksums(VERSION)


# Regions


def only_in(region: str, hint: Answer) -> Callable[[Request], Answer]:
    """A bucket of `region` that refuses other signatures with `hint`; HEAD tells the region."""

    def reply(request: Request) -> Answer:
        if signed_region(request) == region:
            return listing() if LIST in request.target else head()
        if request.method == "HEAD" and request.key == "models":
            return Answer(400, {"x-amz-bucket-region": region})
        return hint

    return reply


@pytest.mark.parametrize(
    "hint",
    [
        refusal(400, "AuthorizationHeaderMalformed", "<Region>eu-west-3</Region>"),
        refusal(301, "PermanentRedirect", x_amz_bucket_region="eu-west-3"),
        refusal(307, "TemporaryRedirect", x_amz_bucket_region="eu-west-3"),
        refusal(301, "PermanentRedirect"),
        refusal(400, "IllegalLocationConstraintException"),
    ],
    ids=lambda hint: f"{hint.status}-{len(hint.headers)}",
)
async def test_goes_to_the_buckets_region(s3: ScriptedS3, hint: Answer, caplog: pytest.LogCaptureFixture) -> None:
    s3.reply = only_in("eu-west-3", hint)
    with caplog.at_level(logging.INFO):
        async with aclosing(s3.origin(region="us-west-2")) as origin:
            await origin.list("")
            presigned = await origin.read_request(VERSION, presigned=True)
            signed = await origin.read_request(VERSION, presigned=False)
            asked = len(s3.requests)
            await origin.list("")
    assert "%2Feu-west-3%2F" in presigned.url
    assert "/eu-west-3/" in signed.headers["Authorization"]
    assert len(s3.requests) == asked + 1
    assert "s3://models is in region eu-west-3, not in us-west-2" in caplog.text


async def test_stat_goes_to_the_buckets_region(s3: ScriptedS3) -> None:
    s3.reply = only_in("eu-west-3", Answer(301))
    async with aclosing(s3.origin()) as origin:
        assert (await origin.stat("a")).size_bytes == 3


async def test_region_that_nobody_tells(s3: ScriptedS3) -> None:
    s3.reply = lambda _: refusal(301, "PermanentRedirect")
    async with aclosing(s3.origin(region="us-west-2")) as origin:
        with pytest.raises(AccessDenied, match="not in us-west-2"):
            await origin.list("")


# Credentials


@pytest.fixture
def give_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> GiveKeys:
    """Set the keys that the program of the profile `rotating` prints."""
    printed = tmp_path / "keys.json"
    config = tmp_path / "config"
    config.write_text(f"[profile rotating]\nregion = eu-north-1\ncredential_process = cat {printed}\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    return printed.write_text


def temporary_keys(key_id: str, life_s: float) -> str:
    expiration = datetime.fromtimestamp(int(time.time() + life_s), UTC).isoformat()
    keys = {"AccessKeyId": key_id, "SecretAccessKey": "s3cr3t", "SessionToken": "t0ken", "Expiration": expiration}
    return json.dumps({"Version": 1, **keys})


@pytest.mark.parametrize("presigned", [True, False])
async def test_signature_ends_with_the_credentials(s3: ScriptedS3, give_keys: GiveKeys, presigned: bool) -> None:
    give_keys(temporary_keys("KEY1", 800))
    async with aclosing(s3.origin(Profile("rotating"))) as origin:
        request = await origin.read_request(VERSION, presigned=presigned)
    assert 700 < request.expires_at - time.time() <= 800
    sent = parse_qs(urlsplit(request.url).query) if presigned else request.headers
    assert sent["X-Amz-Security-Token"] in ("t0ken", ["t0ken"])
    assert ("X-Amz-Security-Token" in request.signature_params) == presigned


async def test_fresh_reloads_credentials_but_not_for_each_of_a_herd(s3: ScriptedS3, give_keys: GiveKeys) -> None:
    now = time.time()
    give_keys(temporary_keys("KEY1", 3600))
    async with aclosing(s3.origin(Profile("rotating"), clock=lambda: now)) as origin:
        assert "KEY1" in (await origin.read_request(VERSION, presigned=True)).url
        give_keys(temporary_keys("KEY2", 3600))
        assert "KEY1" in (await origin.read_request(VERSION, presigned=True, fresh=True)).url
        now += 10
        assert "KEY1" in (await origin.read_request(VERSION, presigned=True)).url
        assert "KEY2" in (await origin.read_request(VERSION, presigned=True, fresh=True)).url
        assert "KEY2" in (await origin.read_request(VERSION, presigned=True)).url


def another(key: str) -> ObjectVersion:
    return ObjectVersion(key, 3, '"abc"', 0)


@pytest.mark.parametrize("presigned", [True, False])
@pytest.mark.parametrize("credentials", [KEYS, Profile("rotating"), Anonymous()], ids=["static", "temporary", "none"])
async def test_signs_without_waiting(
    s3: ScriptedS3, give_keys: GiveKeys, credentials: Credentials, presigned: bool
) -> None:
    give_keys(temporary_keys("KEY1", 3600))
    async with aclosing(s3.origin(credentials)) as origin:
        with contextlib.nullcontext() if isinstance(credentials, Anonymous) else assert_checkpoints():
            await origin.read_request(VERSION, presigned=presigned)
        give_keys("broken")
        for key in ("b", "c"):
            with assert_no_checkpoints():
                assert (await origin.read_request(another(key), presigned=presigned)).url.split("?")[0].endswith(key)
    assert s3.requests == []


@pytest.mark.parametrize(
    ("life_s", "renewed_after_s"), [(3600, 60), (800, 60), (40, 21)], ids=["lasting", "in-refresh-window", "brief"]
)
async def test_credentials_are_looked_at_again_beside_the_reads(
    s3: ScriptedS3, give_keys: GiveKeys, life_s: float, renewed_after_s: float
) -> None:
    start = now = time.time()
    give_keys(temporary_keys("KEY1", life_s))
    async with aclosing(s3.origin(Profile("rotating"), clock=lambda: now)) as origin:
        await origin.read_request(VERSION, presigned=True)
        give_keys(temporary_keys("KEY2", 7200))
        now = start + renewed_after_s - 5
        with assert_no_checkpoints():
            request = await origin.read_request(another("b"), presigned=True)
        assert "KEY1" in request.url
        assert request.expires_at <= start + life_s
        now = start + renewed_after_s + 1
        with assert_no_checkpoints():
            assert "KEY1" in (await origin.read_request(another("c"), presigned=True)).url
        # The SDK replaces keys a quarter of an hour before they end.
        expected = "KEY2" if life_s < 900 else "KEY1"
        with trio.fail_after(20):
            while expected not in (request := await origin.read_request(another(str(now)), presigned=True)).url:
                now += 1e-3  # another signature, not another look
                await trio.lowlevel.checkpoint()
        assert request.expires_at > start + min(life_s, 890)


@pytest.mark.parametrize("key", ["", "\ud800"])
async def test_key_that_no_object_can_have(s3: ScriptedS3, key: str) -> None:
    async with aclosing(s3.origin()) as origin:
        with pytest.raises(NotFound, match="not a name"):
            await origin.read_request(another(key), presigned=False)


async def test_profile_gives_the_region(s3: ScriptedS3, give_keys: GiveKeys) -> None:
    give_keys(temporary_keys("KEY1", 3600))
    async with aclosing(s3.origin(Profile("rotating"))) as origin:
        await origin.list("")
    assert signed_region(s3.requests[0]) == "eu-north-1"


async def test_expired_credentials(s3: ScriptedS3, give_keys: GiveKeys) -> None:
    give_keys(temporary_keys("KEY1", -10))
    async with aclosing(s3.origin(Profile("rotating"))) as origin:
        with pytest.raises(AccessDenied, match="expired"):
            await origin.list("")
    assert s3.requests == []


async def test_failing_credential_program_is_not_quoted(s3: ScriptedS3, give_keys: GiveKeys) -> None:
    give_keys('{"Version": 1, "SecretAccessKey": "s3cr3t"')
    async with aclosing(s3.origin(Profile("rotating"))) as origin:
        with pytest.raises(AccessDenied, match="profile 'rotating'") as caught:
            await origin.list("")
    assert "s3cr3t" not in str(caught.value)


async def test_no_credentials_at_all(s3: ScriptedS3) -> None:
    async with aclosing(s3.origin(ProviderChain())) as origin:
        with pytest.raises(AccessDenied, match="no credentials were found") as caught:
            await origin.list("")
    first, *places = caught.value.hint.splitlines()
    assert "--anonymous" in first
    assert "  AWS_ACCESS_KEY_ID is not set" in places
    assert [each for each in places if each.endswith(("does not exist", "has no keys for the profile default"))]
    assert "\n" not in str(caught.value), "the log has it in one line"
    assert "is not set; " in str(caught.value)


def test_unknown_profile() -> None:
    with pytest.raises(ConfigError, match="no profile 'absent'"):
        opened_at(S3Origin, "s3://models", Profile("absent"))


def test_unknown_profile_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_PROFILE", "absent")
    with pytest.raises(ConfigError, match="no profile 'absent'"):
        opened_at(S3Origin, "s3://models", KEYS, endpoint_url="http://host")


# Names and the registry


@pytest.mark.parametrize("endpoint_url", ["http://HOST:80", "http://host/", "http://host"])
def test_spellings_of_one_endpoint(endpoint_url: str) -> None:
    origin = opened_at(S3Origin, "s3://models", Anonymous(), endpoint_url=endpoint_url)
    assert (origin.url, origin.identity) == ("s3://http://host/models", StoreIdentity("s3", "http://host", "models"))


def test_aws_is_one_store() -> None:
    here, there = (opened_at(S3Origin, "s3://models", Anonymous(), region=region) for region in ("", "eu-west-3"))
    assert here.identity == there.identity == StoreIdentity("s3", "aws", "models")
    assert here.url == "s3://models"


def test_sdk_endpoint_is_part_of_the_identity(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://store:9000/")
    assert opened_at(S3Origin, "s3://models", Anonymous()).identity == StoreIdentity(
        "s3", "http://store:9000", "models"
    )


# --- a store that means harm ---


def sized(key: str, size: object) -> str:
    return entry(key).replace("<Size>3<", f"<Size>{size}<")


@pytest.mark.parametrize("size", [1 << 50, 1 << 63, "9" * 5000, "-1", ""])
async def test_an_impossible_size_hides_one_object_alone(s3: ScriptedS3, size: object) -> None:
    s3.reply = lambda _: listing(entry("a"), sized("b", size), entry("c"))
    async with aclosing(s3.origin()) as origin:
        page = await origin.list("")
    assert [(version.key, version.size_bytes, bool(version.fault)) for version in page.objects] == [
        ("a", 3, False),
        ("b", 0, True),
        ("c", 3, False),
    ]


@pytest.mark.parametrize("length", ["9" * 15, "9" * 18])
async def test_an_impossible_size_in_a_stat(s3: ScriptedS3, length: str) -> None:
    s3.reply = lambda _: head(Content_Length=length)
    async with aclosing(s3.origin()) as origin:
        with pytest.raises(BadReply, match="a size that no object has"):
            await origin.stat("a")


async def test_a_page_of_too_many_entries(s3: ScriptedS3) -> None:
    s3.reply = lambda _: listing(*(f"<CommonPrefixes><Prefix>{n}/</Prefix></CommonPrefixes>" for n in range(10_001)))
    async with aclosing(s3.origin()) as origin:
        with pytest.raises(BadReply, match="10,001 entries, over 10,000"):
            await origin.list("")


async def test_a_token_that_no_url_holds(s3: ScriptedS3) -> None:
    s3.reply = lambda _: listing(more=f"<NextContinuationToken>{'t' * 5000}</NextContinuationToken>")
    async with aclosing(s3.origin()) as origin:
        with pytest.raises(BadReply, match="a next page that cannot be asked for"):
            await origin.list("")


async def test_a_listing_that_goes_round_in_a_circle(s3: ScriptedS3) -> None:
    def reply(request: Request) -> Answer:
        after = {"a": "b", "b": "c", "c": "a"}
        token = parse_qs(urlsplit(request.target).query).get("continuation-token", ["c"])[0]
        return listing(entry(after[token]), more=f"<NextContinuationToken>{after[token]}</NextContinuationToken>")

    s3.reply = reply
    async with aclosing(s3.origin()) as origin, aclosing(list_all(origin, "m/")) as pages:
        with pytest.raises(BadReply, match="m/: the listing does not end: its pages come round in a circle"):
            async for _ in pages:
                pass
    assert len(s3.requests) == 4
