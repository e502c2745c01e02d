"""Fixtures for tests of real mounts: a bucket with files of every interesting size, and mounts that
end with the test.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from d7yfs.objects import BLOCK_BYTES
from tests.mount.mounted import Mounter
from tests.servers.in_thread import InThread
from tests.servers.s3_faults import S3Faults
from tests.servers.seaweedfs import Identity, SeaweedFS

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

MIB = 1 << 20
SIZES = {
    "empty.bin": 0,
    "one.bin": 1,
    "under.bin": BLOCK_BYTES - 1,
    "block.bin": BLOCK_BYTES,
    "over.bin": BLOCK_BYTES + 1,
    "twenty.bin": 20 * MIB,
}


def bytes_of(seed: int, size_bytes: int) -> bytes:
    """Pseudorandom bytes that depend on the seed, the same in every run."""
    return random.Random(seed).randbytes(size_bytes)


def environment(identity: Identity) -> dict[str, str]:
    """The variables that give d7yfs this identity's keys."""
    return {"AWS_ACCESS_KEY_ID": identity.key_id, "AWS_SECRET_ACCESS_KEY": identity.secret_key}


@dataclass
class Bucket:
    """A bucket of the real server; `library/` holds `files`, which no test changes.

    A test that writes takes its own prefix.
    """

    server: SeaweedFS
    name: str
    client: S3Client
    files: Mapping[str, bytes] = field(default_factory=dict)

    def put(self, key: str, body: bytes) -> None:
        self.client.put_object(Bucket=self.name, Key=key, Body=body)

    def delete(self, key: str) -> None:
        self.client.delete_object(Bucket=self.name, Key=key)

    def url(self, prefix: str = "") -> str:
        return f"s3://127.0.0.1:{self.server.port}/{self.name}/{prefix}".rstrip("/")

    @property
    def env(self) -> dict[str, str]:
        return environment(self.server.reader)


both_engines = pytest.mark.parametrize("fuse_engine", ["kernel", "pyfuse3"], indirect=True, scope="module")
"""For modules about what the kernel sees: their tests run with either engine. All others run with the
one that `auto` chooses, or `pytest --fuse-engine`."""


@pytest.fixture(scope="module", autouse=True)
def fuse_engine(request: pytest.FixtureRequest, _clean_environment: None) -> Iterator[str]:
    """The engine of the daemons that a test starts."""
    engine: str = getattr(request, "param", request.config.getoption("fuse_engine"))
    with pytest.MonkeyPatch.context() as patch:
        if engine != "auto":
            patch.setenv("D7YFS_FUSE_ENGINE", engine)
        yield engine


@pytest.fixture(scope="session", autouse=True)
def _can_mount() -> None:
    if os.geteuid() or not Path("/dev/fuse").exists():
        pytest.skip("needs root and /dev/fuse")


@pytest.fixture(scope="session")
def bucket(seaweedfs: SeaweedFS) -> Iterator[Bucket]:
    with closing(seaweedfs.client()) as client:
        client.create_bucket(Bucket="mounted")
        made = Bucket(seaweedfs, "mounted", client)
        files = {name: bytes_of(seed, size) for seed, (name, size) in enumerate(SIZES.items())}
        files |= {"model/config.pbtxt": b'backend: "ours"\n', "model/1/weights.bin": bytes_of(99, 3 * MIB)}
        for name, body in files.items():
            made.put(f"library/{name}", body)
        made.files = files
        yield made


@pytest.fixture
def mounter(tmp_path: Path) -> Iterator[Mounter]:
    with Mounter(tmp_path) as made:
        yield made


@pytest.fixture
def faulty() -> Iterator[InThread[S3Faults]]:
    """A store that fails on demand; its bucket is called `b`."""
    with InThread(S3Faults()) as running:
        yield running


def faulty_url(running: InThread[S3Faults], prefix: str = "") -> str:
    return f"s3://127.0.0.1:{running.server.port}/b/{prefix}".rstrip("/")
