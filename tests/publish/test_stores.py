"""The conditions that one store alone has, and credentials that are none."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import aclosing
from typing import Any

import pytest

from d7yfs.config.schema import Anonymous, ProviderChain, RepositoryConfig, StaticKeys
from d7yfs.config.url import RepositoryUrl
from d7yfs.errors import AccessDenied, ConfigError, NotPermitted, OriginUnavailable, VersionGone
from d7yfs.objects import SecretStr
from d7yfs.publish.store_writer import StoreWriter
from d7yfs.publish.stores.oss import WritableOss
from d7yfs.publish.stores.s3 import WritableS3
from d7yfs.publish.writer import open_writer
from tests.origins.opening import opened_at
from tests.servers.bucket_server import Identity
from tests.servers.faults import status
from tests.servers.http11 import Answer, Exchange, HttpServer, Request
from tests.servers.in_thread import InThread
from tests.servers.oss import OssServer

WRITER = Identity("writer", "secret-of-the-writer")
KEYS = StaticKeys(WRITER.key_id, SecretStr(WRITER.secret))
SCHEMES = {"s3": "s3://b/p", "gs": "gs://b/p", "as": "as://account/container/p", "oss": "oss://b/p", "obs": "obs://b/p"}


@pytest.fixture
def unversioned() -> Iterator[OssServer]:
    server = OssServer(WRITER)
    server.versioned = False
    with InThread(server) as running:
        yield running.server


async def test_oss_overwrites_no_pointer_that_it_was_not_told_of(unversioned: OssServer) -> None:
    """In a bucket without versioning, where x-oss-forbid-overwrite counts."""
    options: dict[str, Any] = {"endpoint_url": unversioned.url, "region": OssServer.region, "environ": {}}
    async with aclosing(opened_at(WritableOss, "oss://bucket", KEYS, **options)) as store:
        await store.put("key", b"1", store.condition(""))
        with pytest.raises(VersionGone):
            await store.put("key", b"2", store.condition(""))
        await store.put("key", b"3", store.condition((await store.stat("key")).validator))
    assert unversioned.objects["key"][-1].body == b"3"


class PlainStore(HttpServer):
    """A store of S3's protocol that takes every PUT, and checks no signature."""

    async def answer(self, request: Request) -> Answer:
        dated = "Tue, 24 Nov 2026 00:00:00 GMT"
        return Answer(200, {"ETag": '"1"', "Last-Modified": dated, "Content-Length": "0"})


def _knows_no_conditions(request: Request) -> bool:
    return not {"if-match", "if-none-match"}.isdisjoint(request.headers)


async def _refuse_conditions(exchange: Exchange, answer: Answer) -> None:
    if _knows_no_conditions(exchange.request):
        answer = Answer(501, {}, b"<Error><Code>NotImplemented</Code></Error>")
    await exchange.deliver(answer)


async def test_a_store_that_knows_no_conditions_is_asked_without() -> None:
    async with PlainStore().running() as server:
        server.script(_refuse_conditions, forever=True)
        async with aclosing(opened_at(WritableS3, "s3://b", KEYS, endpoint_url=server.url)) as store:
            for before in ("", '"0"'):
                server.requests.clear()
                await store.put("key", b"data", {"Content-Type": "text/plain", **store.condition(before)})
                assert [_knows_no_conditions(each) for each in server.requests] == [True, False]
                assert server.requests[-1].headers["content-type"] == "text/plain"
                assert server.requests[-1].body == b"data"
            server.script(status(501), forever=True)
            with pytest.raises(OriginUnavailable, match="501"):
                await store.put("key", b"data", store.condition(""))


async def _compare_without_quotes(exchange: Exchange, answer: Answer) -> None:
    if '"' in exchange.request.headers.get("if-match", ""):
        answer = Answer(412, {}, b"<Error><Code>PreconditionFailed</Code></Error>")
    await exchange.deliver(answer)


async def test_a_store_that_compares_an_etag_without_its_quotes_is_asked_so() -> None:
    """As Ceph's gateway does. Where the object is another one, nothing is asked again."""
    async with (
        PlainStore().running() as server,
        aclosing(opened_at(WritableS3, "s3://b", KEYS, endpoint_url=server.url)) as store,
    ):
        server.script(_compare_without_quotes, forever=True)
        await store.put("key", b"22", store.condition('"1"'))
        assert (server.requests[-1].headers["if-match"], server.requests[-1].body) == ("1", b"22")
        server.requests.clear()
        with pytest.raises(VersionGone):
            await store.put("key", b"333", store.condition('"another"'))
        assert [each.method for each in server.requests] == ["PUT", "HEAD"]


async def test_a_store_that_takes_no_put() -> None:
    async with PlainStore().running() as server:
        server.script(status(405, {}, b"<Error><Code>MethodNotAllowed</Code></Error>"), forever=True)
        async with aclosing(opened_at(WritableS3, "s3://b", KEYS, endpoint_url=server.url)) as store:
            with pytest.raises(NotPermitted, match="cannot be written"):
                await StoreWriter(store, "").write_snapshot("key", b"data")


@pytest.mark.parametrize("url", SCHEMES.values(), ids=list(SCHEMES))
def test_anonymous_cannot_publish(url: str) -> None:
    with pytest.raises(ConfigError, match="publish writes, which needs credentials"):
        open_writer(RepositoryConfig(url=RepositoryUrl.parse(url), region="r"), Anonymous(), None)


async def test_without_credentials_nothing_is_listed_for_nothing(unversioned: OssServer) -> None:
    """A chain that may go on without credentials is told at once."""
    unversioned.public = True
    options: dict[str, Any] = {"endpoint_url": unversioned.url, "region": OssServer.region, "environ": {}}
    async with aclosing(opened_at(WritableOss, "oss://bucket", ProviderChain(else_anonymous=True), **options)) as store:
        with pytest.raises(AccessDenied, match="no credentials are found"):
            await StoreWriter(store, "").find("key")
