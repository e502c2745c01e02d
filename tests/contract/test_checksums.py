"""The promise of every `Origin` about checksums: right ones of that very version, or none."""

from __future__ import annotations

import hashlib
from contextlib import aclosing

import pytest

from d7yfs.checksum import crc32c, crc64nvme
from d7yfs.errors import AccessDenied, NotFound, OriginUnavailable
from d7yfs.origins.origin import Checksums, Origin
from tests.contract.minio_store import S3OnMinio
from tests.contract.stores import Store

pytestmark = pytest.mark.store


@pytest.mark.parametrize("body", [b"", b"123456789", b"x" * 100_000, b"y" * (9 << 20)])
async def test_what_is_recorded_is_right(store: Store, origin: Origin, body: bytes) -> None:
    found = await origin.checksums(await origin.stat(store.put("object", body)))
    assert found.crc32c in (None, crc32c(body))
    assert found.crc64nvme == (crc64nvme(body) if isinstance(store, S3OnMinio) else None)
    assert found.md5 in (None, hashlib.md5(body).hexdigest())
    assert found != Checksums(), "a store without any is no test"


async def test_a_version_that_was_replaced_has_none(store: Store, origin: Origin) -> None:
    version = await origin.stat(store.put("object", b"one"))
    store.put("object", b"two")
    assert await origin.checksums(version) == Checksums()


async def test_a_version_that_was_deleted(store: Store, origin: Origin) -> None:
    version = await origin.stat(store.put("object", b"one"))
    store.delete("object")
    with pytest.raises(NotFound):
        await origin.checksums(version)


async def test_failures(store: Store, origin: Origin) -> None:
    version = await origin.stat(store.put("object", b"one"))
    async with aclosing(store.denied()) as denied:
        with pytest.raises(AccessDenied):
            await denied.checksums(version)
    async with aclosing(store.unreachable()) as unreachable:
        with pytest.raises(OriginUnavailable):
            await unreachable.checksums(version)
