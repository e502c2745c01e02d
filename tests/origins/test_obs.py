"""Behaviour that only OBS's origin has; the contract suite has the rest."""

from __future__ import annotations

import hashlib
import json
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest
import trio
import trio.testing

from d7yfs.config.schema import Anonymous, Credentials, Profile, ProviderChain, RepositoryConfig, StaticKeys
from d7yfs.config.url import RepositoryUrl
from d7yfs.errors import AccessDenied, ConfigError
from d7yfs.objects import SecretStr
from d7yfs.origins.origin import ReadRequest
from d7yfs.origins.rest_stores.obs import ObsOrigin
from tests.origins.opening import opened_at
from tests.servers.bucket_server import Identity
from tests.servers.http11 import Answer, HttpServer, Request
from tests.servers.obs import ObsServer

KEYS = StaticKeys("ak", SecretStr("sk"))
NOBODY = "http://127.0.0.1:1"


@pytest.fixture
async def server() -> AsyncIterator[ObsServer]:
    async with ObsServer(Identity("ak", "sk")).running() as running:
        yield running


def origin_of(server: ObsServer, credentials: Credentials = KEYS, **options: Any) -> ObsOrigin:
    return opened_at(ObsOrigin, "obs://bucket", credentials, **{"endpoint_url": server.url, "environ": {}, **options})


async def get(request: ReadRequest) -> httpx.Response:
    async with httpx.AsyncClient(trust_env=False) as client:
        return await client.get(request.url, headers=dict(request.headers))


@pytest.mark.parametrize(
    ("options", "endpoint", "region"),
    [
        ({"region": "cn-north-4"}, "https://obs.cn-north-4.myhuaweicloud.com", "cn-north-4"),
        ({"region": "eu-west-101", "endpoint_suffix": "myhuaweicloud.eu"}, "https://obs.eu-west-101.myhuaweicloud.eu", "eu-west-101"),
        ({"endpoint_url": "https://obs.cn-east-3.myhuaweicloud.com"}, "https://obs.cn-east-3.myhuaweicloud.com", "cn-east-3"),
        ({"environ": {"OBS_ENDPOINT": "obs.af-south-1.myhuaweicloud.com"}}, "https://obs.af-south-1.myhuaweicloud.com", "af-south-1"),
        ({"endpoint_url": "https://obs.myhuaweicloud.com"}, "https://obs.myhuaweicloud.com", "not named"),
        ({"endpoint_url": "https://obs.corp.example", "region": "lab"}, "https://obs.corp.example", "lab"),
    ],
)  # fmt: skip
async def test_endpoint(options: dict[str, Any], endpoint: str, region: str) -> None:
    async with aclosing(opened_at(ObsOrigin, "obs://bucket", KEYS, **{"environ": {}, **options})) as origin:
        assert (origin.describe()["endpoint"], origin.describe()["region"]) == (endpoint, region)
        assert origin._address.build_url("k", {}) == endpoint.replace("https://", "https://bucket.") + "/k"
        provider = origin.identity.endpoint.startswith("myhuaweicloud.")
        assert provider == ("corp" not in endpoint)


def test_no_region_says_what_to_set() -> None:
    with pytest.raises(ConfigError, match="region") as caught:
        opened_at(ObsOrigin, "obs://bucket", KEYS, environ={})
    assert "OBS_ENDPOINT" in caught.value.hint


def test_other_clouds_credentials_are_refused() -> None:
    with pytest.raises(ConfigError, match="profile"):
        opened_at(ObsOrigin, "obs://bucket", Profile("x"), region="r", environ={})


async def test_the_options_are_taken(server: ObsServer) -> None:
    server.put("models/a", b"1")
    repository = RepositoryConfig(
        url=RepositoryUrl.parse("obs://bucket/models"), endpoint_url=server.url, versioned=True
    )
    async with aclosing(ObsOrigin(repository, KEYS)) as origin:
        assert [each.key for each in (await origin.list("models/")).objects] == ["models/a"]
        assert (await origin.stat("models/a")).version_id


async def test_anonymous(server: ObsServer) -> None:
    server.public = True
    server.put("a b", b"1")
    async with aclosing(origin_of(server, Anonymous())) as origin:
        request = await origin.read_request(await origin.stat("a b"), presigned=True)
        assert (await get(request)).content == b"1"
        assert "?" not in request.url


@pytest.mark.parametrize("presigned", [True, False])
async def test_pinned_version_can_be_read_after_it_was_replaced(server: ObsServer, presigned: bool) -> None:
    server.put("a", b"one")
    async with aclosing(origin_of(server, versioned=True)) as origin:
        version = await origin.stat("a")
        server.put("a", b"two")
        assert (await get(await origin.read_request(version, presigned=presigned))).content == b"one"


async def test_archived(server: ObsServer) -> None:
    for storage_class in ("COLD", "DEEP_ARCHIVE", "WARM"):
        server.put(storage_class, b"1", storage_class=storage_class)
    server.put("thawed", b"1", storage_class="COLD", headers={"x-obs-restore": 'ongoing-request="false"'})
    async with aclosing(origin_of(server)) as origin:
        found = {key: (await origin.stat(key)).archived for key in ("COLD", "DEEP_ARCHIVE", "WARM", "thawed")}
        assert found == {"COLD": "COLD", "DEEP_ARCHIVE": "DEEP_ARCHIVE", "WARM": "", "thawed": ""}
        listed = {each.key: each.archived for each in (await origin.list("")).objects}
        assert listed["COLD"] == "COLD"


@pytest.mark.parametrize(
    ("headers", "recorded"),
    [
        ({}, True),
        ({"x-obs-server-side-encryption": "kms"}, False),
        ({"x-obs-server-side-encryption-customer-algorithm": "AES256"}, False),
        ({"x-obs-object-type": "Appendable"}, False),
    ],
)
async def test_which_etags_are_an_md5(server: ObsServer, headers: dict[str, str], recorded: bool) -> None:
    server.put("a", b"1", headers=headers)
    async with aclosing(origin_of(server)) as origin:
        checksums = await origin.checksums(await origin.stat("a"))
    assert checksums.md5 == (hashlib.md5(b"1").hexdigest() if recorded else None)


async def test_listing_goes_on_where_no_marker_is_named(server: ObsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ObsServer, "_next_element", "Other", raising=False)
    for name in ("a", "b/1", "b/2", "c"):
        server.put(name, b"1")
    async with aclosing(origin_of(server)) as origin:
        shown, token = [], ""
        for _ in range(3):
            page = await origin.list("", token=token, page_size=1)
            shown += [*page.prefixes, *(each.key for each in page.objects)]
            token = page.next_token
    assert (shown, token) == (["a", "b/", "c"], "")


async def test_bucket_in_another_region_is_followed(server: ObsServer) -> None:
    server.elsewhere = {"obs.cn-a-1.huawei.test": "obs.cn-b-1.huawei.test"}
    server.put("a", b"1")
    options: dict[str, Any] = {"endpoint_url": "http://obs.cn-a-1.huawei.test", "control_proxy": server.url}
    async with aclosing(origin_of(server, **options)) as origin:
        assert [each.key for each in (await origin.list("")).objects] == ["a"]
        request = await origin.read_request(await origin.stat("a"), presigned=True)
        assert request.url.startswith("http://bucket.obs.cn-b-1.huawei.test/a?")
        assert origin.describe()["region"] == "cn-b-1"


class Metadata(HttpServer):
    """The metadata service of an ECS instance with an agency, which numbers its keys."""

    def __init__(self) -> None:
        super().__init__()
        self.expires_at = 0.0
        self.status = 200
        self.given = 0

    async def answer(self, request: Request) -> Answer:
        if request.target != "/openstack/latest/securitykey":
            return Answer(404)
        if self.status != 200:
            return Answer(self.status)
        self.given += 1
        expires = datetime.fromtimestamp(self.expires_at, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        credential = {
            "access": f"AK{self.given}",
            "secret": "agency-secret",
            "securitytoken": "agency-token",
            "expires_at": expires,
        }
        return Answer(200, {}, json.dumps({"credential": credential}).encode())


async def test_agency_is_renewed_ahead_and_outlives_a_failing_metadata_service(
    server: ObsServer, caplog: pytest.LogCaptureFixture
) -> None:
    server.put("a", b"1")
    server.identities = {f"AK{n}": Identity(f"AK{n}", "agency-secret", "agency-token") for n in (1, 2)}
    start = int(server.clock())
    now = [float(start)]
    server.clock = lambda: now[0]
    async with Metadata().running() as metadata:
        metadata.expires_at = start + 7200
        chain = origin_of(server, ProviderChain(), metadata_url=metadata.url, clock=lambda: now[0])
        async with aclosing(chain) as origin:
            version = await origin.stat("a")
            assert origin.describe()["credentials"] == "the instance's agency"
            first = await origin.read_request(version, presigned=True)
            assert "AccessKeyId=AK1" in first.url

            metadata.status = 500
            now[0] = start + 7200 - 600
            request = await origin.read_request(version, presigned=True)
            assert "AccessKeyId=AK1" in request.url, "still valid: nobody waits"
            assert request.expires_at == start + 7200
            assert (await get(request)).content == b"1"
            with trio.fail_after(10):
                while "cannot be renewed yet" not in caplog.text:
                    await trio.testing.wait_all_tasks_blocked(0.01)

            metadata.status, metadata.expires_at = 200, start + 20000
            now[0] += 31
            await origin.list("")
            with trio.fail_after(10):
                while (keys := await origin._keys()) is None or keys.key_id != "AK2":
                    await trio.testing.wait_all_tasks_blocked(0.01)
            unsigned = replace(version, encoding="not signed before")
            assert (await get(await origin.read_request(unsigned, presigned=True))).content == b"1"
    assert "agency-" not in caplog.text


@pytest.mark.parametrize(
    "names",
    [
        ("OBS_ACCESS_KEY_ID", "OBS_SECRET_ACCESS_KEY"),
        ("HUAWEICLOUD_SDK_AK", "HUAWEICLOUD_SDK_SK"),
        ("HW_ACCESS_KEY", "HW_SECRET_KEY"),
    ],
)
async def test_environment(server: ObsServer, names: tuple[str, str]) -> None:
    environ = dict(zip(names, ("ak", "sk"), strict=True))
    async with aclosing(origin_of(server, ProviderChain(), environ=environ, metadata_url=NOBODY)) as origin:
        await origin.list("")
        assert names[0] in origin.describe()["credentials"]


@pytest.mark.parametrize("status", [404, 0])
async def test_no_credentials(server: ObsServer, status: int) -> None:
    async with Metadata().running() as metadata:
        metadata.status = status
        url = metadata.url if status else NOBODY
        async with aclosing(origin_of(server, ProviderChain(), metadata_url=url)) as origin:
            with pytest.raises(AccessDenied, match="no credentials") as caught:
                await origin.list("")
            assert "OBS_ACCESS_KEY_ID" in caught.value.hint
        server.public = True
        anonymous = origin_of(server, ProviderChain(else_anonymous=True), metadata_url=url)
        async with aclosing(anonymous) as origin:
            await origin.list("")
