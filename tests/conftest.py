"""Fixtures that every directory of tests may use."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.servers.seaweedfs import SeaweedFS, running

_FOREIGN = ("AWS_", "D7YFS_", "TRITON_", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")


@pytest.fixture(scope="session", autouse=True)
def _clean_environment() -> Iterator[None]:
    """No test sees the credentials, settings or proxies of whoever runs it."""
    with pytest.MonkeyPatch.context() as patch:
        for name in os.environ:
            if name.upper().startswith(_FOREIGN):
                patch.delenv(name)
        for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
            patch.setenv(name, "/nonexistent")
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        yield


@pytest.fixture(scope="session")
def seaweedfs(tmp_path_factory: pytest.TempPathFactory, _clean_environment: None) -> Iterator[SeaweedFS]:
    """A real S3 server for the whole run. Tests share it: use a bucket or prefix of your own."""
    with running(tmp_path_factory.mktemp("seaweedfs")) as server:
        yield server
