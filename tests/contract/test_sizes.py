"""Sizes beyond 32 bits, one part and one upload: every origin takes them as they are listed."""

from __future__ import annotations

import pytest

from d7yfs.origins.origin import Origin
from tests.contract.stores import Store
from tests.servers.fault_proxy import FaultProxy
from tests.servers.faults import resized

pytestmark = pytest.mark.store

STORED_BYTES = 34567


@pytest.mark.parametrize("size_bytes", [5 * 2**30 + 1, 48 * 2**40], ids=["over-5-GiB", "48-TiB"])
async def test_size_in_metadata(store: Store, faulty: FaultProxy, through: Origin, size_bytes: int) -> None:
    key = store.put("object", bytes(STORED_BYTES))
    faulty.script(resized(size_bytes, instead_of=STORED_BYTES), forever=True)
    (listed,) = (await through.list(store.prefix)).objects
    assert listed.size_bytes == size_bytes
    assert await through.stat(key) == listed
