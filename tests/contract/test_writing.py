"""Writing for `d7yfs publish`: what is put is there, of two publishers one is told, and a refusal names the right."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import aclosing

import httpx
import pytest

from d7yfs.errors import BadReply, BucketNotFound, NotPermitted, OriginUnavailable, VersionGone
from d7yfs.origins.origin import Origin
from d7yfs.publish.store_writer import StoreWriter, WritableStore
from d7yfs.tree.published import POINTER
from tests.contract.reading import get
from tests.contract.stores import Store
from tests.servers import faults
from tests.servers.fault_proxy import FaultProxy

pytestmark = pytest.mark.store

LARGE = random.Random(3).randbytes((1 << 20) + 1)
BUSY = faults.status(503, {"Retry-After": "0"})


@pytest.fixture
async def writable(store: Store) -> AsyncIterator[WritableStore]:
    async with aclosing(store.writable()) as opened:
        yield opened


async def fetch(origin: Origin, key: str) -> httpx.Response:
    return await get(await origin.read_request(await origin.stat(key), presigned=False))


async def read(origin: Origin, key: str) -> bytes:
    return (await fetch(origin, key)).content


@pytest.mark.parametrize("name", ["plain", "odd/ü %41+ &~.txt"])
async def test_what_is_put_is_read(store: Store, origin: Origin, writable: WritableStore, name: str) -> None:
    for body in (b"", LARGE, b"another"):
        await writable.put(store.prefix + name, body, {"Content-Type": "text/plain"})
        assert await read(origin, store.prefix + name) == body


async def test_a_pointer_replaces_only_what_was_there(store: Store, origin: Origin, writable: WritableStore) -> None:
    writer = StoreWriter(writable, store.prefix.removesuffix("/"))
    assert await writer.find(POINTER) == ""
    await writer.write_pointer(POINTER, b"1", "")
    first = await writer.find(POINTER)
    await writer.write_pointer(POINTER, b"22", first)
    for before in ("", first):
        with pytest.raises(BadReply, match="was published by another at the same time") as caught:
            await writer.write_pointer(POINTER, b"333", before)
        assert caught.value.hint == "publish again"
    found = await fetch(origin, store.prefix + POINTER)
    assert (found.content, found.headers["cache-control"]) == (b"22", "no-cache")


async def test_a_condition_is_kept_by_the_store(store: Store, origin: Origin, writable: WritableStore) -> None:
    key = f"{store.prefix}conditional"
    await writable.put(key, b"1", writable.condition(""))
    first = (await writable.stat(key)).validator
    await writable.put(key, b"22", writable.condition(first))
    for before in ("", first):
        with pytest.raises(VersionGone):
            await writable.put(key, b"333", writable.condition(before))
    assert await read(origin, key) == b"22"


async def test_a_refused_write_names_the_right(store: Store) -> None:
    async with aclosing(store.unwritable()) as unwritable:
        with pytest.raises(NotPermitted) as caught:
            await StoreWriter(unwritable, store.prefix.removesuffix("/")).write_snapshot("snapshot", b"data")
    assert store.write_permission in caught.value.hint
    assert f"{store.prefix}snapshot" in caught.value.message
    assert "must not be written" in caught.value.message


async def test_a_write_to_no_bucket(store: Store) -> None:
    async with aclosing(store.writable(bucket="no-such-bucket")) as writable:
        with pytest.raises(BucketNotFound, match="there is no such"):
            await StoreWriter(writable, "").write_snapshot("snapshot", b"data")


async def test_a_write_to_no_store(store: Store) -> None:
    async with aclosing(store.writable(endpoint_url="http://127.0.0.1:1")) as writable:
        with pytest.raises(OriginUnavailable):
            await StoreWriter(writable, "").write_snapshot("snapshot", b"data")


async def test_a_write_to_a_busy_store(store: Store, faulty: FaultProxy, origin: Origin) -> None:
    """It is sent again, whole."""
    async with aclosing(store.writable(endpoint_url=faulty.url)) as writable:
        faulty.script(BUSY, BUSY)
        await writable.put(f"{store.prefix}busy", LARGE, {})
        assert await read(origin, f"{store.prefix}busy") == LARGE
        faulty.script(BUSY, forever=True)
        with pytest.raises(OriginUnavailable):
            await writable.put(f"{store.prefix}busy", b"", {})
