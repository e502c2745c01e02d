"""Behaviour that only OSS's origin has; the contract suite has the rest."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import httpx
import pytest

from d7yfs.config.schema import Anonymous, Credentials, ProviderChain, RepositoryConfig, SasToken, StaticKeys
from d7yfs.config.url import RepositoryUrl
from d7yfs.errors import AccessDenied, ConfigError, NotFound, ObjectArchived, VersionGone
from d7yfs.fetch.reply import error_of
from d7yfs.objects import SecretStr, StoreIdentity
from d7yfs.origins.origin import ReadRequest
from d7yfs.origins.rest_stores.oss import OssOrigin
from tests.origins.opening import opened_at
from tests.servers.bucket_server import Identity
from tests.servers.oss import OssServer

KEYS = StaticKeys("ak", SecretStr("sk"))
REGION = OssServer.region


@pytest.fixture
async def server() -> AsyncIterator[OssServer]:
    async with OssServer(Identity("ak", "sk")).running() as running:
        yield running


def origin_of(server: OssServer, credentials: Credentials = KEYS, **options: Any) -> OssOrigin:
    return opened_at(
        OssOrigin,
        "oss://bucket",
        credentials,
        **{"endpoint_url": server.url, "region": REGION, "environ": {}, **options},
    )


async def get(request: ReadRequest, **more: Any) -> httpx.Response:
    async with httpx.AsyncClient(trust_env=False, **more) as client:
        return await client.get(request.url, headers=dict(request.headers))


@pytest.mark.parametrize(
    ("options", "endpoint", "base"),
    [
        ({"region": "cn-hangzhou"}, "https://oss-cn-hangzhou.aliyuncs.com", "https://bucket.oss-cn-hangzhou.aliyuncs.com/"),
        ({"region": "oss-cn-beijing", "internal_endpoint": True}, "https://oss-cn-beijing-internal.aliyuncs.com", ""),
        ({"region": "cn-x", "endpoint_suffix": "aliyuncs.com.example"}, "https://oss-cn-x.aliyuncs.com.example", ""),
        ({"endpoint_url": "https://oss-us-west-1.aliyuncs.com"}, "https://oss-us-west-1.aliyuncs.com", ""),
        ({"environ": {"OSS_REGION": "cn-qingdao"}}, "https://oss-cn-qingdao.aliyuncs.com", ""),
        ({"environ": {"OSS_ENDPOINT": "oss-cn-shenzhen-internal.aliyuncs.com"}}, "https://oss-cn-shenzhen-internal.aliyuncs.com", ""),
        ({"region": "r", "endpoint_url": "http://10.0.0.1:80"}, "http://10.0.0.1:80", "http://10.0.0.1:80/bucket/"),
        ({"region": "r", "endpoint_url": "http://[::1]:8080"}, "http://[::1]:8080", "http://[::1]:8080/bucket/"),
        ({"region": "r", "endpoint_url": "http://localhost:1"}, "http://localhost:1", "http://localhost:1/bucket/"),
        (
            {"region": "r", "endpoint_url": "https://oss.corp.example", "addressing_style": "path"},
            "https://oss.corp.example",
            "https://oss.corp.example/bucket/",
        ),
        ({"region": "r", "endpoint_url": "https://oss.corp.example"}, "https://oss.corp.example", "https://bucket.oss.corp.example/"),
    ],
)  # fmt: skip
async def test_endpoint(options: dict[str, Any], endpoint: str, base: str) -> None:
    async with aclosing(opened_at(OssOrigin, "oss://bucket", KEYS, **{"environ": {}, **options})) as origin:
        assert origin.describe()["endpoint"] == endpoint
        assert (
            origin._address.build_url("k", {}) == (base or endpoint.replace("https://", "https://bucket.") + "/") + "k"
        )


async def test_what_is_configured_wins_over_the_environment() -> None:
    environ = {"OSS_ENDPOINT": "oss-cn-a.aliyuncs.com", "OSS_REGION": "cn-b"}
    async with aclosing(opened_at(OssOrigin, "oss://bucket", KEYS, region="cn-c", environ=environ)) as origin:
        assert origin.describe() == {
            "endpoint": "https://oss-cn-c.aliyuncs.com",
            "region": "cn-c",
            "credentials": "access key",
        }


def test_no_region_says_what_to_set() -> None:
    with pytest.raises(ConfigError, match="region") as caught:
        opened_at(OssOrigin, "oss://bucket", KEYS, environ={})
    assert "OSS_REGION" in caught.value.hint
    with pytest.raises(ConfigError, match="does not tell") as caught:
        opened_at(OssOrigin, "oss://bucket", KEYS, endpoint_url="http://10.0.0.1", environ={})
    assert 'signature = "v1"' in caught.value.hint


def test_other_clouds_credentials_are_refused() -> None:
    with pytest.raises(ConfigError, match="shared access signature"):
        opened_at(OssOrigin, "oss://bucket", SasToken(SecretStr("x")), region="r", environ={})


async def test_identity_is_one_for_all_endpoints_of_a_provider() -> None:
    identities = set()
    for options in ({"region": "cn-a"}, {"region": "cn-a", "internal_endpoint": True}):
        async with aclosing(opened_at(OssOrigin, "oss://bucket", KEYS, environ={}, **options)) as origin:
            identities.add(origin.identity)
            assert origin.url == "oss://bucket"
    async with aclosing(
        opened_at(OssOrigin, "oss://bucket", KEYS, endpoint_url="http://10.0.0.1", region="r", environ={})
    ) as origin:
        assert origin.identity not in identities
        assert origin.url == "oss://http://10.0.0.1/bucket"
    assert identities == {StoreIdentity("oss", "aliyuncs.com", "bucket")}


async def test_the_options_are_taken(server: OssServer) -> None:
    server.payer = True
    server.put("models/a", b"1")
    repository = RepositoryConfig(
        url=RepositoryUrl.parse(f"oss://{server.url}/bucket/models"), region=REGION, requester_pays=True, signature="v1"
    )
    async with aclosing(OssOrigin(repository, KEYS)) as origin:
        assert [each.key for each in (await origin.list("models/")).objects] == ["models/a"]
        for presigned in (True, False):
            request = await origin.read_request(await origin.stat("models/a"), presigned=presigned)
            assert (await get(request)).content == b"1"


@pytest.mark.parametrize("signature", ["v4", "v1"])
async def test_requester_pays(server: OssServer, signature: str) -> None:
    server.payer = True
    server.put("a", b"1")
    async with aclosing(origin_of(server, signature=signature)) as origin:
        with pytest.raises(AccessDenied):
            await origin.list("")
    async with aclosing(origin_of(server, requester_pays=True, signature=signature)) as origin:
        version = await origin.stat("a")
        for presigned in (True, False):
            request = await origin.read_request(version, presigned=presigned)
            assert (await get(request)).content == b"1"
            assert not presigned or set(request.headers) == {"If-Match"}


async def test_anonymous(server: OssServer) -> None:
    server.public = True
    server.put("a b", b"1")
    async with aclosing(origin_of(server, Anonymous(), region="")) as origin:
        request = await origin.read_request(await origin.stat("a b"), presigned=True)
        assert (await get(request)).content == b"1"
        assert "?" not in request.url
        assert set(request.headers) == {"If-Match"}


@pytest.mark.parametrize("signature", ["v4", "v1"])
@pytest.mark.parametrize("presigned", [True, False])
async def test_pinned_version_can_be_read_after_it_was_replaced(
    server: OssServer, signature: str, presigned: bool
) -> None:
    server.put("a", b"one")
    async with aclosing(origin_of(server, versioned=True, signature=signature)) as origin:
        version = await origin.stat("a")
        assert version.version_id == "v0+/="
        server.put("a", b"two")
        request = await origin.read_request(version, presigned=presigned)
        assert (await get(request)).content == b"one"
        assert "versionId" not in request.signature_params
        assert (await origin.checksums(version)).md5 == hashlib.md5(b"one").hexdigest()


async def test_a_listed_version_is_read_on_after_it_was_replaced(server: OssServer) -> None:
    server.put("a", b"one")
    async with aclosing(origin_of(server, versioned=True)) as origin:
        (version,) = (await origin.list("")).objects
        await origin.read_request(version, presigned=False)
        server.put("a", b"two")
        assert (await get(await origin.read_request(version, presigned=True))).content == b"one"


async def test_without_it_replacing_is_noticed(server: OssServer) -> None:
    server.put("a", b"one")
    async with aclosing(origin_of(server)) as origin:
        version = await origin.stat("a")
        assert version.version_id == ""
        server.put("a", b"two")
        reply = await get(await origin.read_request(version, presigned=True))
        assert isinstance(error_of(reply.status_code, reply.headers, name="a", body=reply.content), VersionGone)


@pytest.mark.parametrize("storage_class", ["Archive", "ColdArchive", "DeepColdArchive"])
async def test_archived(server: OssServer, storage_class: str) -> None:
    server.put("cold", b"1", storage_class=storage_class)
    server.put(
        "thawed",
        b"1",
        storage_class=storage_class,
        headers={"x-oss-restore": 'ongoing-request="false"'},
    )
    server.put("thawing", b"1", storage_class=storage_class, headers={"x-oss-restore": 'ongoing-request="true"'})
    server.put("warm", b"1", storage_class="IA", headers={"x-oss-restore": ""})
    async with aclosing(origin_of(server)) as origin:
        found = {key: (await origin.stat(key)).archived for key in ("cold", "thawed", "thawing", "warm")}
        assert found == {"cold": storage_class, "thawed": "", "thawing": storage_class, "warm": ""}
        assert {each.key for each in (await origin.list("")).objects if each.archived} >= {"cold", "thawing"}
        reply = await get(await origin.read_request(await origin.stat("cold"), presigned=True))
        assert isinstance(error_of(reply.status_code, reply.headers, name="a", body=reply.content), ObjectArchived)


@pytest.mark.parametrize(
    ("headers", "recorded"),
    [
        ({}, True),
        ({"x-oss-server-side-encryption": "AES256"}, True),
        ({"x-oss-server-side-encryption": "KMS"}, False),
        ({"x-oss-object-type": "Multipart"}, False),
        ({"x-oss-object-type": "Appendable"}, False),
        ({"x-oss-object-type": "Symlink"}, False),
    ],
)
async def test_which_etags_are_an_md5(server: OssServer, headers: dict[str, str], recorded: bool) -> None:
    server.put("a", b"1", headers=headers)
    async with aclosing(origin_of(server)) as origin:
        checksums = await origin.checksums(await origin.stat("a"))
    assert checksums.md5 == (hashlib.md5(b"1").hexdigest() if recorded else None)
    assert checksums.crc32c is None


async def test_a_refused_head_says_why(server: OssServer) -> None:
    async with aclosing(origin_of(server, StaticKeys("ak", SecretStr("wrong")))) as origin:
        with pytest.raises(AccessDenied, match="SignatureDoesNotMatch"):
            await origin.stat("a")
    async with aclosing(origin_of(server, StaticKeys("unknown", SecretStr("sk")))) as origin:
        with pytest.raises(AccessDenied, match="not known there"):
            await origin.stat("a")
    async with aclosing(origin_of(server, region="cn-other")) as origin:
        with pytest.raises(AccessDenied) as caught:
            await origin.stat("a")
        assert "region" in caught.value.hint


async def test_keys_that_have_changed_are_looked_up_again(server: OssServer) -> None:
    now = [server.clock()]
    environ = {"OSS_ACCESS_KEY_ID": "ak", "OSS_ACCESS_KEY_SECRET": "sk"}
    server.put("a", b"1")
    async with aclosing(origin_of(server, ProviderChain(), environ=environ, clock=lambda: now[0])) as origin:
        await origin.stat("a")
        server.identities = {"new": Identity("new", "other")}
        environ |= {"OSS_ACCESS_KEY_ID": "new", "OSS_ACCESS_KEY_SECRET": "other"}
        now[0] += 6
        assert (await origin.stat("a")).key == "a"
        assert origin.describe()["credentials"] == "environment variables (OSS_ACCESS_KEY_ID, …)"


async def test_bucket_at_another_endpoint_is_followed_once(server: OssServer, caplog: pytest.LogCaptureFixture) -> None:
    """The names do not resolve: the server is the proxy too."""
    server.elsewhere = {"oss-cn-a.aliyuncs.test": "oss-cn-test-1.aliyuncs.test"}
    server.put("a", b"1")
    options: dict[str, Any] = {
        "endpoint_url": "http://oss-cn-a.aliyuncs.test",
        "region": "",
        "control_proxy": server.url,
    }
    async with aclosing(origin_of(server, **options)) as origin:
        identity = origin.identity
        before = await origin.read_request(await origin.stat("a"), presigned=True)
        assert before.url.startswith("http://bucket.oss-cn-test-1.aliyuncs.test/a?")
        assert len(server.requests) == 2
        await origin.list("")
        assert len(server.requests) == 3, "it stays there"
        assert origin.identity == identity
        assert origin.describe()["region"] == REGION
        assert (await get(before, proxy=server.url)).content == b"1"
    (record,) = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert "oss-cn-test-1.aliyuncs.test" in record.message


@pytest.mark.parametrize("there", ["oss-cn-b.evil.test", "aliyuncs.test", "evil.test"])
async def test_keys_never_leave_the_provider(server: OssServer, there: str) -> None:
    server.elsewhere = {"oss-cn-a.aliyuncs.test": there}
    options: dict[str, Any] = {
        "endpoint_url": "http://oss-cn-a.aliyuncs.test",
        "region": "",
        "control_proxy": server.url,
    }
    async with aclosing(origin_of(server, **options)) as origin:
        with pytest.raises(AccessDenied, match=there) as caught:
            await origin.list("")
        assert "endpoint_url" in caught.value.hint
    assert len(server.requests) == 1


async def test_going_in_circles_ends(server: OssServer) -> None:
    server.elsewhere = {
        "oss-cn-a.aliyuncs.test": "oss-cn-b.aliyuncs.test",
        "oss-cn-b.aliyuncs.test": "oss-cn-a.aliyuncs.test",
    }
    options: dict[str, Any] = {
        "endpoint_url": "http://oss-cn-a.aliyuncs.test",
        "region": "",
        "control_proxy": server.url,
    }
    async with aclosing(origin_of(server, **options)) as origin:
        with pytest.raises(AccessDenied):
            await origin.stat("a")
    assert len(server.requests) == 2


async def test_as_on_pai_eas(server: OssServer) -> None:
    """The whole bucket and any depth of it show the expected names."""
    server.bucket = "triton-model-repo"
    for key in ("models/resnet/config.pbtxt", "models/resnet/1/model.onnx", "readme.md"):
        server.put(key, b"1")
    shown = {}
    for url in (
        "oss://triton-model-repo/models",
        "oss://triton-model-repo",
        "oss://triton-model-repo/models/resnet/1/",
    ):
        repository = RepositoryConfig(url=RepositoryUrl.parse(url), endpoint_url=server.url, region=REGION)
        async with aclosing(OssOrigin(repository, KEYS)) as origin:
            prefix = f"{repository.url.prefix}/" if repository.url.prefix else ""
            page = await origin.list(prefix)
            shown[url] = [*page.prefixes, *(each.key for each in page.objects)]
    assert list(shown.values()) == [["models/resnet/"], ["models/", "readme.md"], ["models/resnet/1/model.onnx"]]


async def test_keys_that_cannot_be(server: OssServer) -> None:
    async with aclosing(origin_of(server)) as origin:
        for key in ("", "\ud800"):
            with pytest.raises(NotFound):
                await origin.stat(key)
