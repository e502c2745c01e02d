"""Parametrises the contract suite: a new origin is one row in ROWS."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Callable, Iterator

import pytest

from d7yfs.origins.origin import Origin
from tests.contract.stores import S3OnSeaweedFS, Store

ROWS: dict[str, Callable[[pytest.FixtureRequest], Store]] = {
    "s3-seaweedfs": lambda request: S3OnSeaweedFS(request.getfixturevalue("seaweedfs")),
}

_numbers = itertools.count()


@pytest.fixture(scope="session", params=ROWS)
def row(request: pytest.FixtureRequest) -> Iterator[Store]:
    store = ROWS[request.param](request)
    yield store
    store.close()


@pytest.fixture
def store(row: Store) -> Store:
    row.prefix = f"t{next(_numbers)}/"
    return row


@pytest.fixture
async def origin(store: Store) -> AsyncIterator[Origin]:
    opened = store.origin()
    yield opened
    await opened.aclose()
