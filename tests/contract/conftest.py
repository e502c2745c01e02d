"""Parametrises the contract suite: a new origin is one row in ROWS.

What a store cannot do is taken out while the tests are collected, and told to `tests.plugins.contract_table`, which shows it.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

from d7yfs.origins.origin import Origin
from tests.contract.azure_store import AzureKeyOnAzurite, AzureSasOnAzurite
from tests.contract.gs_store import GsHmacKey, GsOnFakeGcs, GsServiceAccount
from tests.contract.minio_store import S3OnMinio
from tests.contract.obs_store import ObsOnServer
from tests.contract.oss_store import OssOnServer, OssV1OnServer
from tests.contract.rgw_store import S3OnRgw
from tests.contract.stores import S3OnSeaweedFS, Store
from tests.plugins.contract_table import note_case, note_inability
from tests.servers import fake_gcs as fake_gcs_server
from tests.servers import minio as minio_server
from tests.servers import rgw as rgw_server
from tests.servers.fake_gcs import FakeGcs
from tests.servers.fault_proxy import FaultProxy
from tests.servers.minio import Minio
from tests.servers.rgw import Rgw


class Row(NamedTuple):
    cannot: Mapping[str, str]
    make: Callable[..., Store]
    servers: tuple[str, ...] = ()
    """The session's fixtures that `make` gets."""


_ALWAYS = {
    "s3-seaweedfs": Row(S3OnSeaweedFS.cannot, S3OnSeaweedFS, ("seaweedfs",)),
    "gs-account": Row(GsServiceAccount.cannot, GsServiceAccount, ("gcs",)),
    "gs-hmac": Row(GsHmacKey.cannot, GsHmacKey, ("gcs",)),
    "as-azurite-key": Row(AzureKeyOnAzurite.cannot, AzureKeyOnAzurite, ("azurite",)),
    "as-azurite-sas": Row(AzureSasOnAzurite.cannot, AzureSasOnAzurite, ("azurite",)),
    "oss-v4": Row(OssOnServer.cannot, OssOnServer, ("oss",)),
    "oss-v1": Row(OssV1OnServer.cannot, OssV1OnServer, ("oss",)),
    "obs": Row(ObsOnServer.cannot, ObsOnServer, ("obs",)),
}
_INTEGRATION = {
    "s3-rgw": Row(S3OnRgw.cannot, S3OnRgw, ("rgw",)),
    "s3-minio": Row(S3OnMinio.cannot, S3OnMinio, ("minio",)),
    "gs-fake": Row(GsOnFakeGcs.cannot, GsOnFakeGcs, ("fake_gcs",)),
}
"""Rows whose servers `make integration` brings; it names them in D7YFS_TEST_STORES."""

_named = os.environ.get("D7YFS_TEST_STORES", "").split()
ROWS = _ALWAYS | {name: _INTEGRATION[name] for name in _named}

_numbers = itertools.count()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    kept: list[pytest.Item] = []
    impossible: list[pytest.Item] = []
    for item in items:
        row = _row(item)
        reason = _inability(item, row) if row else ""
        if row:
            note_case(item, row)
        if reason:
            note_inability(item.user_properties, reason)
        (impossible if reason else kept).append(item)
    if impossible:
        config.hook.pytest_deselected(items=impossible)
        items[:] = kept


def _row(item: pytest.Item) -> str:
    """The row of a test of the suite; else empty."""
    if item.path.parent != Path(__file__).parent or not isinstance(item, pytest.Function):
        return ""
    return str(item.callspec.params.get("row", "")) if hasattr(item, "callspec") else ""


def _inability(item: pytest.Item, row: str) -> str:
    """Why the row's store cannot do this case, or this case with these parameters; else empty."""
    assert isinstance(item, pytest.Function)
    parameters = item.callspec.id.removeprefix(f"{row}-").removesuffix(f"-{row}")
    cannot = ROWS[row].cannot
    return cannot.get(item.originalname) or cannot.get(f"{item.originalname}[{parameters}]", "")


@pytest.fixture(scope="session", autouse=True)
def _short_pauses() -> Iterator[None]:
    """Shorten the pauses between tries, but not those that a store asks for in Retry-After."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("d7yfs.origins.rest._PAUSE_S", 0.01)
        yield


@pytest.fixture(scope="session")
def rgw(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rgw]:
    with rgw_server.running(tmp_path_factory.mktemp("rgw")) as server:
        yield server


@pytest.fixture(scope="session")
def minio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Minio]:
    with minio_server.running(tmp_path_factory.mktemp("minio")) as server:
        yield server


@pytest.fixture(scope="session")
def fake_gcs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeGcs]:
    with fake_gcs_server.running(tmp_path_factory.mktemp("fake-gcs")) as server:
        yield server


@pytest.fixture(scope="session", params=ROWS)
def row(request: pytest.FixtureRequest) -> Iterator[Store]:
    row = ROWS[request.param]
    store = row.make(*map(request.getfixturevalue, row.servers))
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


@pytest.fixture
async def faulty(store: Store) -> AsyncIterator[FaultProxy]:
    """A server before the store, which makes faults."""
    async with FaultProxy(store.endpoint_url).running() as proxy:
        yield proxy


@pytest.fixture
async def through(store: Store, faulty: FaultProxy) -> AsyncIterator[Origin]:
    """An origin of the store at the address of `faulty`."""
    opened = store.origin_at(faulty.url)
    yield opened
    await opened.aclose()
