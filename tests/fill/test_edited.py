"""A model configuration without Dragonfly's agent: which bytes are fetched, compared and cached.
Real caches and transfers.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
import trio

from d7yfs.checksum import crc32c, crc64nvme
from d7yfs.config.p2p import P2p
from d7yfs.errors import AccessDenied, D7yfsError, NotFound, OriginUnavailable
from d7yfs.fetch.dragonfly_proxy import Proxies, Proxy
from d7yfs.fetch.transport import Transport
from d7yfs.fill.p2p_budget import Policy
from d7yfs.objects import WITHOUT_AGENT, ByteRange
from d7yfs.origins.origin import Checksums
from d7yfs.servers.agentless_config import without_agent
from tests.fill import scene as scenes
from tests.fill.scene import Scene
from tests.servers.dfdaemon import FakeDfdaemon
from tests.servers.http11 import Answer, Exchange
from tests.servers.scripted import ScriptedServer

KEY = "models/m/config.pbtxt"
BODY = b'name: "m"\nmodel_repository_agents { agents { name: "dragonfly" } }\n' + b"# padding\n" * 100
SHOWN = without_agent(BODY)
ALTERED = BODY.replace(b'name: "m"', b'name: "n"')
RECORDS = {
    "crc32c": Checksums(crc32c=crc32c(BODY)),
    "crc64nvme": Checksums(crc64nvme=crc64nvme(BODY)),
    "md5": Checksums(md5=hashlib.md5(BODY).hexdigest()),
    "nothing": Checksums(),
}


async def altered(exchange: Exchange, answer: Answer) -> None:
    """The right answer, with other bytes."""
    await answer.whole()
    await exchange.deliver(replace(answer, body=ALTERED))


@pytest.fixture
async def server() -> AsyncIterator[ScriptedServer]:
    async with ScriptedServer({KEY: BODY, scenes.KEY: b"weights"}).running() as server:
        yield server


@pytest.fixture
async def dfdaemon() -> AsyncIterator[FakeDfdaemon]:
    async with FakeDfdaemon().running() as running:
        yield running


@pytest.fixture
async def transport() -> AsyncIterator[Transport]:
    made = Transport(connect_timeout_s=3, first_byte_timeout_s=5, idle_timeout_s=5)
    yield made
    await made.aclose()


def editing(path: Path, server: ScriptedServer, transport: Transport, proxies: Proxies | None = None) -> Scene:
    made = Scene(path, server, transport, proxies)
    made.edit = WITHOUT_AGENT
    made.policy = Policy(P2p.parse("always"))
    return made


@pytest.fixture
def scene(tmp_path: Path, server: ScriptedServer, transport: Transport) -> Scene:
    return editing(tmp_path, server, transport)


@pytest.fixture
def proxied(tmp_path: Path, server: ScriptedServer, dfdaemon: FakeDfdaemon, transport: Transport) -> Scene:
    return editing(tmp_path, server, transport, Proxies([Proxy(dfdaemon.url, transport)], required=False))


async def test_readers_at_once_and_a_prefetch_cost_one_request(scene: Scene, server: ScriptedServer) -> None:
    found: list[bytes] = []

    async with trio.open_nursery() as nursery:
        cached = await scene.open(nursery, KEY)
        cached.prefetch(ByteRange(0, 1))

        async def read() -> None:
            found.append(bytes(await cached.read(ByteRange(3, 90), None)))

        async with trio.open_nursery() as readers:
            for _ in range(5):
                readers.start_soon(read)
        await cached.fill_whole()
        cached.drop()
    assert found == [SHOWN[3:90]] * 5
    assert len(server.requests) == 1
    assert scene.origin.compared == [], "nothing is compared that came from the store"


async def test_the_next_daemon_finds_it_and_one_without_the_edit_does_not(
    scene: Scene, server: ScriptedServer, tmp_path: Path, transport: Transport
) -> None:
    assert await scene.read(KEY) == SHOWN
    assert await editing(tmp_path, server, transport).read(KEY) == SHOWN
    assert len(server.requests) == 1
    assert await Scene(tmp_path, server, transport).read(KEY) == BODY


async def test_a_failure_is_its_readers_and_the_next_one_tries_again(scene: Scene) -> None:
    scene.origin.refusals = [AccessDenied("not yours")] * 2
    async with trio.open_nursery() as nursery:
        cached = await scene.open(nursery, KEY)
        with pytest.raises(AccessDenied):
            await cached.read(ByteRange(0, 10), None)
        assert await cached.read(ByteRange(0, 10), None) == SHOWN[:10]
        cached.drop()


@pytest.mark.parametrize("record", RECORDS)
async def test_what_came_through_dragonfly_is_compared_before_the_edit(proxied: Scene, record: str) -> None:
    proxied.origin.recorded = RECORDS[record]
    assert await proxied.read(KEY) == SHOWN
    assert proxied.fetcher.counters.proxy_requests == 1
    assert proxied.fetcher.counters.p2p_versions == {"proved": 1}
    assert proxied.mismatches == 0
    assert await proxied.proof(KEY) is None, "its cached bytes are not those that a record could prove"


@pytest.mark.parametrize("record", RECORDS)
async def test_forged_bytes_never_reach_a_reader(proxied: Scene, dfdaemon: FakeDfdaemon, record: str) -> None:
    proxied.origin.recorded = RECORDS[record]
    dfdaemon.script(altered)
    assert await proxied.read(KEY) == SHOWN, "the store stands in"
    assert proxied.mismatches == 1
    assert proxied.fetcher.counters.p2p_versions == {"wrong": 1}


@pytest.mark.parametrize("failure", [NotFound("gone"), OriginUnavailable("away")])
async def test_what_nothing_proves_is_dropped_where_a_proof_is_required(
    proxied: Scene, dfdaemon: FakeDfdaemon, failure: D7yfsError
) -> None:
    proxied.required = True
    proxied.origin.recorded = failure
    dfdaemon.script(altered)
    assert await proxied.read(KEY) == SHOWN
    assert proxied.fetcher.counters.p2p_versions == {"not provable": 1}


async def test_in_full_the_stores_own_bytes_are_compared_too(scene: Scene, server: ScriptedServer) -> None:
    scene.full = True
    scene.origin.recorded = RECORDS["md5"]
    server.script(altered)
    assert await scene.read(KEY) == SHOWN
    assert scene.mismatches == 1


async def test_a_record_that_is_wrong_twice_is_not_believed(scene: Scene, server: ScriptedServer) -> None:
    scene.full = True
    scene.origin.recorded = Checksums(crc32c=1)
    assert await scene.read(KEY) == SHOWN
    assert (scene.mismatches, len(server.requests)) == (2, 2)
