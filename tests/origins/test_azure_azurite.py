"""AzureOrigin against Azurite, beyond the contract suite: Entra's identities, public containers.

Over TLS, for Azurite checks bearer tokens and user delegation keys there alone.
"""

from __future__ import annotations

import base64
import hashlib
import json
import ssl
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing, closing
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
import trustme
from azure.core.credentials import AccessToken, TokenCredential
from azure.storage.blob import BlobType, ContainerClient, ContentSettings

from d7yfs.config.schema import Anonymous, Credentials, ProviderChain
from d7yfs.errors import AccessDenied, NotFound, VersionGone
from d7yfs.objects import ObjectVersion
from d7yfs.origins.azure.origin import AzureOrigin
from d7yfs.origins.origin import Checksums, ReadRequest
from d7yfs.publish.stores.azure import WritableAzure
from tests.origins.opening import opened_at
from tests.servers.azurite import Azurite, Tls, running

pytestmark = pytest.mark.store

CONTAINER = "models"
BODY = bytes(range(256)) * 40


@pytest.fixture(scope="module")
def azurite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Azurite]:
    directory = tmp_path_factory.mktemp("azurite-tls")
    authority, tls = trustme.CA(), Tls(directory / "cert.pem", directory / "key.pem", directory / "ca.pem")
    certificate = authority.issue_cert("127.0.0.1")
    authority.cert_pem.write_to_path(str(tls.authority))
    certificate.private_key_pem.write_to_path(str(tls.key))
    for pem in certificate.cert_chain_pems:
        pem.write_to_path(str(tls.certificate), append=True)
    with running(directory / "data", tls=tls) as server, closing(server.client()) as client:
        client.create_container(CONTAINER).upload_blob("a/model.onnx", BODY)
        yield server


def entra_token(expires_at: float, *, audience: str = "https://storage.azure.com") -> str:
    """A token as Entra would sign it; Azurite does not check the signature."""
    now = int(time.time())
    claims = {
        "aud": audience,
        "iss": "https://sts.windows.net/ab1f708d-50f6-404c-a006-d71b2ac7a606/",
        "oid": "11059fcc-5514-4800-b5f8-49808b9cfab6",
        "tid": "ab1f708d-50f6-404c-a006-d71b2ac7a606",
        "iat": now,
        "nbf": now - 60,
        "exp": int(expires_at),
    }
    parts = ({"alg": "RS256", "typ": "JWT"}, claims, {"no": "signature"})
    return ".".join(base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts)


class FakeCredential:
    """A credential of azure-identity's kind, without a sign-in service."""

    def __init__(self, token: Callable[[float], str] = entra_token) -> None:
        self._token = token
        self.asked: list[str] = []
        self.closed = False

    def get_token(self, *scopes: str, **_: object) -> AccessToken:
        self.asked += scopes
        expires_at = time.time() + 3600
        return AccessToken(self._token(expires_at), int(expires_at))

    def close(self) -> None:
        self.closed = True


def opened(
    azurite: Azurite,
    credential: FakeCredential | None = None,
    *,
    source: Credentials | None = None,
    container: str = CONTAINER,
) -> AzureOrigin:
    def identity() -> TokenCredential:
        assert credential is not None
        return credential

    return opened_at(
        AzureOrigin,
        f"as://{azurite.account}/{container}",
        source or ProviderChain(),
        endpoint_url=azurite.endpoint_url,
        ca_bundle=azurite.ca_bundle,
        identity=identity,
    )


@pytest.fixture
def credential() -> FakeCredential:
    return FakeCredential()


@pytest.fixture
async def origin(azurite: Azurite, credential: FakeCredential) -> AsyncIterator[AzureOrigin]:
    async with aclosing(opened(azurite, credential)) as origin:
        yield origin


@pytest.fixture
async def version(origin: AzureOrigin) -> ObjectVersion:
    return await origin.stat("a/model.onnx")


async def get(azurite: Azurite, request: ReadRequest) -> httpx.Response:
    context = azurite.ssl_context()
    assert isinstance(context, ssl.SSLContext)
    async with httpx.AsyncClient(trust_env=False, verify=context) as client:
        return await client.get(request.url, headers={**request.headers, "Range": "bytes=0-99"})


async def test_writes_with_a_token(azurite: Azurite, origin: AzureOrigin, credential: FakeCredential) -> None:
    options = {"endpoint_url": azurite.endpoint_url, "ca_bundle": azurite.ca_bundle, "identity": lambda: credential}
    url = f"as://{azurite.account}/{CONTAINER}"
    async with aclosing(opened_at(WritableAzure, url, ProviderChain(), **options)) as writable:
        await writable.put("written", BODY, {"Cache-Control": "no-cache", **writable.condition("")})
        assert (await origin.stat("written")).size_bytes == len(BODY)
        with pytest.raises(VersionGone):
            await writable.put("written", b"", writable.condition(""))


async def test_lists_and_stats_with_a_token(origin: AzureOrigin, credential: FakeCredential) -> None:
    (listed,) = (await origin.list("a/")).objects
    assert listed == await origin.stat("a/model.onnx")
    assert credential.asked == ["https://storage.azure.com/.default"], "one token does"


async def test_presigned_reads_carry_a_delegated_signature(
    azurite: Azurite, origin: AzureOrigin, version: ObjectVersion
) -> None:
    request = await origin.read_request(version, presigned=True)
    query = parse_qs(urlsplit(request.url).query)
    assert set(request.headers) == {"If-Match"}, "no token leaves this host"
    assert set(query) == request.signature_params
    assert query["skoid"] == ["11059fcc-5514-4800-b5f8-49808b9cfab6"]
    assert (query["sr"], query["sp"]) == (["b"], ["r"]), "one blob, to be read"
    reply = await get(azurite, request)
    assert (reply.status_code, reply.content) == (206, BODY[:100])


async def test_other_reads_carry_the_token(azurite: Azurite, origin: AzureOrigin, version: ObjectVersion) -> None:
    request = await origin.read_request(version, presigned=False)
    assert not urlsplit(request.url).query
    assert not request.signature_params
    reply = await get(azurite, request)
    assert (reply.status_code, reply.content) == (206, BODY[:100])


async def test_token_for_somebody_else(azurite: Azurite) -> None:
    stranger = FakeCredential(lambda expires_at: entra_token(expires_at, audience="https://vault.azure.net"))
    async with aclosing(opened(azurite, stranger)) as origin:
        with pytest.raises(AccessDenied) as caught:
            await origin.list("")
        assert len(stranger.asked) == 1, "what was fetched a moment ago is not fetched again"
        assert caught.value.hint


async def test_credential_is_closed(azurite: Azurite) -> None:
    credential = FakeCredential()
    async with aclosing(opened(azurite, credential)) as origin:
        await origin.list("")
    assert credential.closed


# What is peculiar to Azure


@pytest.fixture(scope="module")
def container(azurite: Azurite) -> Iterator[ContainerClient]:
    with closing(azurite.client()) as client:
        yield client.get_container_client(CONTAINER)


async def test_directory_stub_is_a_directory(origin: AzureOrigin, container: ContainerClient) -> None:
    container.upload_blob("stubs/ensemble/1", b"", metadata={"hdi_isfolder": "true"})
    container.upload_blob("stubs/ensemble/1-old", b"x")
    container.upload_blob("stubs/ensemble/config.pbtxt", b"x", metadata={"owner": "me"})
    keys = [version.key for version in (await origin.list("stubs/ensemble/")).objects]
    assert keys == ["stubs/ensemble/1-old", "stubs/ensemble/1/", "stubs/ensemble/config.pbtxt"]
    with pytest.raises(NotFound, match="directory"):
        await origin.stat("stubs/ensemble/1")


async def test_blob_types(origin: AzureOrigin, container: ContainerClient) -> None:
    container.upload_blob("types/block", BODY)
    container.upload_blob("types/append", BODY, blob_type=BlobType.APPENDBLOB)
    container.upload_blob("types/page", bytes(1024), blob_type=BlobType.PAGEBLOB)
    found = {version.key: version for version in (await origin.list("types/")).objects}
    assert [version.size_bytes for version in found.values()] == [len(BODY), len(BODY), 1024]
    for version in found.values():
        assert version == await origin.stat(version.key)
    md5 = hashlib.md5(BODY).hexdigest()
    assert await origin.checksums(found["types/block"]) == Checksums(md5=md5)
    assert await origin.checksums(found["types/append"]) == Checksums()


async def test_stored_encoding_is_told(origin: AzureOrigin, container: ContainerClient) -> None:
    container.upload_blob("packed/a", BODY, content_settings=ContentSettings(content_encoding="gzip"))
    (listed,) = (await origin.list("packed/")).objects
    assert listed == await origin.stat("packed/a")
    assert (listed.encoding, listed.size_bytes) == ("gzip", len(BODY))


async def test_public_container(azurite: Azurite) -> None:
    with closing(azurite.client()) as client:
        client.create_container("public", public_access="container").upload_blob("a", BODY)
    async with aclosing(opened(azurite, source=Anonymous(), container="public")) as origin:
        (version,) = (await origin.list("")).objects
        request = await origin.read_request(version, presigned=True)
        assert set(request.headers) == {"If-Match"}
        assert (await get(azurite, request)).content == BODY[:100]
    async with aclosing(opened(azurite, source=Anonymous())) as origin:
        with pytest.raises(AccessDenied):
            await origin.list("")
