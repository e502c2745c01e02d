"""Fixtures for every directory of tests."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator

import pytest

from tests.contract import obs_store, oss_store
from tests.servers import azurite as azurite_server
from tests.servers import seaweedfs as seaweedfs_server
from tests.servers.azurite import Azurite
from tests.servers.gcs import GcsServer
from tests.servers.obs import ObsServer
from tests.servers.oss import OssServer
from tests.servers.seaweedfs import SeaweedFS

_FOREIGN = (
    *("AWS_", "D7YFS_", "TRITON_", "DRAGONFLY_", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"),
    *("GOOGLE_", "GCE_", "GS_", "CLOUDSDK_", "AZURE_", "IDENTITY_", "MSI_", "IMDS_"),
    *("OSS_", "ALIBABA_CLOUD_", "OBS_", "HUAWEI", "HW_"),
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--fuse-engine",
        choices=["auto", "kernel", "pyfuse3"],
        default="auto",
        help="the engine of all mounts but those of tests that run with either one",
    )


@pytest.fixture(scope="session", autouse=True)
def _clean_environment() -> Iterator[None]:
    """Hide the credentials, settings, proxies and mounts of the calling user from every test."""
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory(prefix="d7yfs-run-") as runtime:
        for name in os.environ:
            if name.upper().startswith(_FOREIGN):
                patch.delenv(name)
        for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
            patch.setenv(name, "/nonexistent")
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        patch.setenv("D7YFS_RUNTIME_DIR", runtime)
        yield


@pytest.fixture(scope="session")
def seaweedfs(tmp_path_factory: pytest.TempPathFactory, _clean_environment: None) -> Iterator[SeaweedFS]:
    """A real S3 server for the whole run. Tests share it: use your own bucket or prefix."""
    with seaweedfs_server.running(tmp_path_factory.mktemp("seaweedfs")) as server:
        yield server


@pytest.fixture(scope="session")
def gcs() -> Iterator[GcsServer]:
    """A fake Google Cloud Storage server, shared like `seaweedfs`; so are the fixtures below."""
    with GcsServer() as server:
        yield server


@pytest.fixture(scope="session")
def azurite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Azurite]:
    with azurite_server.running(tmp_path_factory.mktemp("azurite")) as server:
        yield server


@pytest.fixture(scope="session")
def oss() -> Iterator[OssServer]:
    with oss_store.running() as server:
        yield server


@pytest.fixture(scope="session")
def obs() -> Iterator[ObsServer]:
    with obs_store.running() as server:
        yield server
