"""AzureOrigin against a scripted server: replies that Azurite never gives, and the bytes sent."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import replace
from urllib.parse import parse_qs, urlsplit

import pytest

from d7yfs.config.schema import Anonymous, Credentials, Profile, RepositoryConfig, SasToken, StaticKeys
from d7yfs.config.url import RepositoryUrl
from d7yfs.errors import AccessDenied, BadReply, ConfigError, NotFound, OriginUnavailable, VersionGone
from d7yfs.objects import ObjectVersion, SecretStr, StoreIdentity
from d7yfs.origins import open_origin
from d7yfs.origins.azure.origin import AzureOrigin
from d7yfs.origins.origin import Checksums
from tests.origins.opening import opened_at
from tests.servers.http11 import Answer, HttpServer, Request

KEYS = StaticKeys("account", SecretStr("MDEyMzQ1Njc4OWFiY2RlZg=="))
MODIFIED = "Sat, 21 Nov 2026 10:55:00 GMT"
MTIME_NS = 1_795_258_500_000_000_000
VERSION = ObjectVersion("a/model.onnx", 3, '"0x8DE28A"', MTIME_NS)
VERSION_ID = "2026-11-21T10:55:00.9876543Z"


class ScriptedAzure(HttpServer):
    """A server that answers with `reply(request)`, by default an empty listing."""

    def __init__(self) -> None:
        super().__init__()
        self.reply: Callable[[Request], Answer] = lambda _: listing()

    async def answer(self, request: Request) -> Answer:
        return self.reply(request)

    def origin(self, credentials: Credentials = KEYS, *, versioned: bool = False) -> AzureOrigin:
        return opened_at(AzureOrigin, "as://account/models", credentials, endpoint_url=self.url, versioned=versioned)


@pytest.fixture
async def azure() -> AsyncIterator[ScriptedAzure]:
    async with ScriptedAzure().running() as server:
        yield server


def listing(*entries: str, next_marker: str = "") -> Answer:
    body = f"<EnumerationResults><Blobs>{''.join(entries)}</Blobs><NextMarker>{next_marker}</NextMarker></EnumerationResults>"
    return Answer(200, {"Content-Type": "application/xml", "Date": MODIFIED}, body.encode())


def head(**headers: str) -> Answer:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Answer(200, {"Content-Length": "3", "ETag": VERSION.validator, "Last-Modified": MODIFIED, **named})


def refusal(status: int, code: str) -> Answer:
    return Answer(status, {"x-ms-error-code": code, "Date": MODIFIED})


def query(target: str) -> dict[str, list[str]]:
    return parse_qs(urlsplit(target).query)


# Over the wire


async def test_listing_is_plain(azure: ScriptedAzure) -> None:
    async with aclosing(azure.origin()) as origin:
        page = await origin.list("a b/", page_size=7, token="2!76!x--")
    assert page.date_ns == MTIME_NS
    (request,) = azure.requests
    asked = query(request.target)
    assert urlsplit(request.target).path == "/account/models"
    assert {name: asked[name] for name in ("restype", "comp", "prefix", "delimiter", "maxresults", "marker")} == {
        "restype": ["container"],
        "comp": ["list"],
        "prefix": ["a b/"],
        "delimiter": ["/"],
        "maxresults": ["7"],
        "marker": ["2!76!x--"],
    }
    assert (asked["sr"], asked["sp"]) == (["c"], ["rl"])
    assert request.headers["x-ms-version"] == "2021-02-12"
    assert "authorization" not in request.headers


async def test_flat_listing_of_a_whole_container(azure: ScriptedAzure) -> None:
    async with aclosing(azure.origin()) as origin:
        await origin.list("", delimiter="", page_size=100_000)
    asked = query(azure.requests[0].target)
    assert not {"prefix", "delimiter", "marker"} & set(asked)
    assert asked["maxresults"] == ["5000"]


async def test_anonymous_signs_nothing(azure: ScriptedAzure) -> None:
    async with aclosing(azure.origin(Anonymous())) as origin:
        await origin.list("")
        for presigned in (True, False):
            request = await origin.read_request(VERSION, presigned=presigned)
            assert request.url == f"{azure.url}/account/models/a/model.onnx"
            assert dict(request.headers) == {"If-Match": '"0x8DE28A"'}
            assert request.expires_at == float("inf")
            assert not request.signature_params
    assert "sig" not in query(azure.requests[0].target)


async def test_signature_of_somebody_else_goes_along_as_it_is(azure: ScriptedAzure) -> None:
    token = "sv=2020-10-02&si=policy&sr=c&sig=a%2Bb%3D"
    async with aclosing(azure.origin(SasToken(SecretStr(token)))) as origin:
        await origin.list("")
        request = await origin.read_request(VERSION, presigned=False)
    assert urlsplit(azure.requests[0].target).query.endswith(token)
    assert urlsplit(request.url).query == token
    assert request.signature_params == {"sv", "si", "sr", "sig"}


@pytest.mark.parametrize(
    ("key", "path"),
    [("a b", "a%20b"), ("50%", "50%25"), ("a//b", "a//b"), ("ü", "%C3%BC"), ("a?b#c", "a%3Fb%23c"), ("/a", "/a")],
)
async def test_keys_in_urls(azure: ScriptedAzure, key: str, path: str) -> None:
    azure.reply = lambda _: head()
    async with aclosing(azure.origin(Anonymous())) as origin:
        await origin.stat(key)
        request = await origin.read_request(replace(VERSION, key=key), presigned=True)
    assert azure.requests[0].target == f"/account/models/{path}"
    assert request.url == f"{azure.url}/account/models/{path}"


@pytest.mark.parametrize("key", ["", "a/../b", "./a", "..", "a\\b", "\udc80"])
async def test_keys_that_would_not_arrive(azure: ScriptedAzure, key: str) -> None:
    async with aclosing(azure.origin()) as origin:
        with pytest.raises(NotFound, match="not a name"):
            await origin.stat(key)
        with pytest.raises(NotFound, match="not a name"):
            await origin.read_request(replace(VERSION, key=key), presigned=True)
    assert azure.requests == []


# Addresses


@pytest.mark.parametrize(
    ("url", "endpoint_url", "suffix", "there"),
    [
        ("as://account/models", "", "", "https://account.blob.core.windows.net/models"),
        ("as://account/models", "", "core.chinacloudapi.cn", "https://account.blob.core.chinacloudapi.cn/models"),
        (
            "as://account.blob.core.usgovcloudapi.net/models",
            "",
            "",
            "https://account.blob.core.usgovcloudapi.net/models",
        ),
        ("abfs://models@account.dfs.core.windows.net/x", "", "", "https://account.blob.core.windows.net/models"),
        ("as://http://127.0.0.1:10000/account/models", "", "", "http://127.0.0.1:10000/account/models"),
        ("as://account/models", "http://gateway.example/azure", "", "http://gateway.example/azure/account/models"),
        ("as://account/models", "http://127.0.0.1:10000/account", "", "http://127.0.0.1:10000/account/models"),
        (
            "as://account/models",
            "https://account.privatelink.example",
            "",
            "https://account.privatelink.example/models",
        ),
    ],
)
async def test_addresses(url: str, endpoint_url: str, suffix: str, there: str) -> None:
    repository = RepositoryConfig(url=RepositoryUrl.parse(url), endpoint_url=endpoint_url, endpoint_suffix=suffix)
    async with aclosing(open_origin(repository, Anonymous())) as origin:
        assert (await origin.read_request(VERSION, presigned=True)).url == f"{there}/a/model.onnx"
        assert origin.identity == StoreIdentity("as", there.removesuffix("/models"), "models", "account")
        assert origin.describe()["endpoint"] == there.removesuffix("/models")
        assert origin.url.startswith("as://")
        assert origin.url.endswith("account/models")


@pytest.mark.parametrize("container", ["Models", "a", "a--b", "-ab", "ab-", "a_b", "x" * 64])
def test_what_is_no_container(container: str) -> None:
    with pytest.raises(ConfigError, match="no container name"):
        opened_at(AzureOrigin, RepositoryUrl("as", "", container, "", "account"), KEYS)


def test_credentials_of_other_clouds() -> None:
    with pytest.raises(ConfigError, match="cannot be used"):
        opened_at(AzureOrigin, "as://account/models", Profile("x"))


# Replies


async def test_hierarchical_namespace_has_directories(azure: ScriptedAzure) -> None:
    azure.reply = lambda _: head(x_ms_resource_type="directory")
    async with aclosing(azure.origin()) as origin:
        with pytest.raises(NotFound, match="is a directory"):
            await origin.stat("a")
        azure.reply = lambda _: refusal(409, "ResourceTypeMismatch")
        page = await origin.list("a/model.onnx/")
        assert (page.objects, page.prefixes, page.next_token) == ((), (), "")


async def test_archived_blob(azure: ScriptedAzure) -> None:
    azure.reply = lambda _: head(x_ms_access_tier="Archive", x_ms_archive_status="rehydrate-pending-to-hot")
    async with aclosing(azure.origin()) as origin:
        assert (await origin.stat(VERSION.key)) == replace(VERSION, archived="Archive")


@pytest.mark.parametrize("left_out", ["ETag", "Last-Modified"])
async def test_head_that_says_too_little(azure: ScriptedAzure, left_out: str) -> None:
    def short(_: Request) -> Answer:
        answer = head()
        del answer.headers[left_out]
        return answer

    azure.reply = short
    async with aclosing(azure.origin()) as origin:
        with pytest.raises(BadReply, match="leaves out"):
            await origin.stat(VERSION.key)


async def test_listing_that_goes_round_in_circles(azure: ScriptedAzure) -> None:
    azure.reply = lambda _: listing(next_marker="again")
    async with aclosing(azure.origin()) as origin:
        with pytest.raises(BadReply, match="next page"):
            await origin.list("", token="again")


@pytest.mark.parametrize("md5", ["", "c2hvcnQ=", "no base64!"])
async def test_md5_that_is_none(azure: ScriptedAzure, md5: str) -> None:
    azure.reply = lambda _: head(Content_MD5=md5, x_ms_blob_type="BlockBlob")
    async with aclosing(azure.origin()) as origin:
        assert await origin.checksums(VERSION) == Checksums()


async def test_no_such_account() -> None:
    async with aclosing(opened_at(AzureOrigin, "as://account/models", KEYS, endpoint_suffix="invalid")) as origin:
        with pytest.raises(OriginUnavailable, match=r"no host account\.blob\.invalid.*no such storage account"):
            await origin.list("")


async def test_refusal_of_what_cannot_change_is_not_repeated(azure: ScriptedAzure) -> None:
    azure.reply = lambda _: refusal(403, "AuthorizationFailure")
    async with aclosing(azure.origin()) as origin:
        with pytest.raises(AccessDenied, match="firewall"):
            await origin.stat(VERSION.key)
    assert len(azure.requests) == 1


# Versions


async def test_version_is_found_out_and_pinned(azure: ScriptedAzure) -> None:
    azure.reply = lambda _: head(x_ms_version_id=VERSION_ID)
    async with aclosing(azure.origin(versioned=True)) as origin:
        assert (await origin.stat(VERSION.key)).version_id == VERSION_ID
        request = await origin.read_request(VERSION, presigned=True)
        assert await origin.read_request(VERSION, presigned=True) is request
    assert [each.method for each in azure.requests] == ["HEAD", "HEAD"]
    asked = query(request.url)
    assert (asked["versionid"], asked["sr"]) == ([VERSION_ID], ["bv"])
    assert "versionid" not in request.signature_params, "it says which bytes they are"


async def test_pinned_version_outlives_its_replacement(azure: ScriptedAzure) -> None:
    azure.reply = lambda _: head(x_ms_version_id=VERSION_ID)
    async with aclosing(azure.origin(versioned=True)) as origin:
        await origin.read_request(VERSION, presigned=True)
        azure.reply = lambda _: head(ETag='"other"', x_ms_version_id="another")
        request = await origin.read_request(VERSION, presigned=True, fresh=True)
        await origin.checksums(VERSION)
    assert query(request.url)["versionid"] == [VERSION_ID]
    assert query(azure.requests[-1].target)["versionid"] == [VERSION_ID]


async def test_version_that_is_known_is_not_asked_for(azure: ScriptedAzure) -> None:
    async with aclosing(azure.origin(versioned=True)) as origin:
        request = await origin.read_request(replace(VERSION, version_id=VERSION_ID), presigned=True)
    assert query(request.url)["versionid"] == [VERSION_ID]
    assert azure.requests == []


async def test_version_that_was_replaced_before_it_was_pinned(azure: ScriptedAzure) -> None:
    azure.reply = lambda _: head(ETag='"other"', x_ms_version_id=VERSION_ID)
    async with aclosing(azure.origin(versioned=True)) as origin:
        with pytest.raises(VersionGone, match="was replaced"):
            await origin.read_request(VERSION, presigned=True)


async def test_account_without_versioning(azure: ScriptedAzure) -> None:
    azure.reply = lambda _: head()
    async with aclosing(azure.origin(versioned=True)) as origin:
        request = await origin.read_request(VERSION, presigned=True)
    assert query(request.url)["sr"] == ["b"]


async def test_versions_are_left_alone_unless_asked_for(azure: ScriptedAzure) -> None:
    azure.reply = lambda _: head(x_ms_version_id=VERSION_ID)
    async with aclosing(azure.origin()) as origin:
        assert (await origin.stat(VERSION.key)).version_id == ""


async def test_account_without_a_host() -> None:
    origin = opened_at(AzureOrigin, "as://account/models", KEYS, endpoint_suffix="core.invalid")
    async with aclosing(origin):
        with pytest.raises(OriginUnavailable, match=r"no host account\.blob\.core\.invalid .*no such storage account"):
            await origin.list("")
