"""Objects of every origin, read by the product's own data plane, also from a misbehaving store.

No wrong byte and no short read ever comes through: each test compares all that was read.
"""

from __future__ import annotations

import pytest

from d7yfs.errors import AccessDenied, BadReply, VersionGone
from d7yfs.objects import ByteRange
from d7yfs.origins.origin import Origin
from tests.contract.reading import reader
from tests.contract.stores import Store
from tests.servers import faults
from tests.servers.dfdaemon import FakeDfdaemon
from tests.servers.fault_proxy import FaultProxy
from tests.servers.http11 import Fault
from tests.servers.scripted import ScriptedServer

pytestmark = pytest.mark.store

BODY = bytes(range(251)) * 4001
RANGES = [ByteRange(0, len(BODY)), ByteRange(0, 1), ByteRange(4096, 700_000), ByteRange(len(BODY) - 1, len(BODY))]


async def test_ranged_get(store: Store, origin: Origin) -> None:
    version = await origin.stat(store.put("object", BODY))
    async with reader(origin) as read:
        for wanted in RANGES:
            assert await read.read(version, wanted) == BODY[wanted.start : wanted.stop]


@pytest.mark.parametrize("body", [b"", b"1"], ids=["empty", "1-byte"])
async def test_tiny_objects(store: Store, origin: Origin, body: bytes) -> None:
    version = await origin.stat(store.put("object", body))
    async with reader(origin) as read:
        assert await read.read(version) == body


async def test_through_dfdaemon(store: Store, origin: Origin) -> None:
    key = store.put("object", BODY)
    version = await origin.stat(key)
    async with FakeDfdaemon().running() as dfdaemon, reader(origin, dfdaemon_url=dfdaemon.url) as read:
        assert await read.read(version, streamed=True) == BODY
        store.put("object", BODY[::-1])
        assert await read.read(await origin.stat(key), streamed=True) == BODY[::-1]
        assert len(dfdaemon.tasks) == 2
        (gone,) = dfdaemon.tasks.keys() - {next(reversed(dfdaemon.tasks))}
        del dfdaemon.tasks[gone]
        with pytest.raises(VersionGone):
            await read.read(version, streamed=True)


@pytest.mark.parametrize("change", ["replaced", "deleted"])
async def test_wrong_version_is_stale(store: Store, origin: Origin, change: str) -> None:
    version = await origin.stat(store.put("object", BODY))
    if change == "replaced":
        store.put("object", BODY[::-1])
    else:
        store.delete("object")
    async with reader(origin) as read:
        with pytest.raises(VersionGone, match="object"):
            await read.read(version)


async def test_expired_signature_is_renewed(store: Store, origin: Origin) -> None:
    version = await origin.stat(store.put("object", BODY))
    with store.signing_at(-3600 * 24 * 8):
        await origin.read_request(version, presigned=False)
    async with reader(origin) as read:
        assert await read.read(version) == BODY
        assert read.fetcher.counters.resigned <= 1, "none where our own clock told that it had expired"


@pytest.mark.parametrize("code", [401, 403])
async def test_refused_signature_is_renewed_once(store: Store, faulty: FaultProxy, through: Origin, code: int) -> None:
    version = await through.stat(store.put("object", BODY))
    async with reader(through) as read:
        faulty.script(faults.status(code))
        assert await read.read(version) == BODY
        assert read.fetcher.counters.resigned == 1
        before = len(faulty.requests)
        faulty.script(faults.status(code), faults.status(code))
        with pytest.raises(AccessDenied):
            await read.read(version)
        assert len(faulty.requests) == before + 2


async def test_busy_store(store: Store, faulty: FaultProxy, through: Origin) -> None:
    version = await through.stat(store.put("object", BODY))
    faulty.script(faults.status(429, {"Retry-After": "0"}), faults.status(503, {"Retry-After": "0"}))
    async with reader(through) as read:
        assert await read.read(version) == BODY
        assert read.fetcher.counters.retries == {"OriginUnavailable": 2}


@pytest.mark.parametrize("fault", [faults.cut_after(300_000), faults.drop], ids=["cut", "dropped"])
async def test_truncated_body(store: Store, faulty: FaultProxy, through: Origin, fault: Fault) -> None:
    version = await through.stat(store.put("object", BODY))
    faulty.script(fault)
    async with reader(through) as read:
        assert await read.read(version, ByteRange(1, len(BODY))) == BODY[1:]


async def test_redirect_is_not_followed(store: Store, faulty: FaultProxy, through: Origin) -> None:
    version = await through.stat(store.put("object", BODY))
    async with ScriptedServer().running() as other, reader(through) as read:
        there = other.url.replace("127.0.0.1", "localhost")
        faulty.script(faults.status(307, {"Location": f"{there}/object"}), forever=True)
        with pytest.raises(BadReply, match="redirect"):
            await read.read(version)
        assert other.requests == []
