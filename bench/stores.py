"""The object stores that a comparison reads from: real servers on loopback, each with one large object.

The store is on the same machine and costs every peer the same. Its data lies in memory where there is room, so that the disk
belongs to the peers' caches.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from tests.servers import seaweedfs

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

BUCKET, KEY = "bench-models", "model.bin"
REGION = "us-east-1"
_CHUNK_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class Store:
    """A running server with the object `KEY` in `BUCKET`, and the keys that may read it."""

    name: str
    endpoint_url: str
    key_id: str
    secret_key: str
    directory: Path
    size_bytes: int
    sha256: str

    @property
    def environment(self) -> Mapping[str, str]:
        """Credentials as AWS's own clients read them."""
        return {"AWS_ACCESS_KEY_ID": self.key_id, "AWS_SECRET_ACCESS_KEY": self.secret_key, "AWS_REGION": REGION}

    def wait(self) -> None:
        """Return when the object can be had. Raises what boto3 raises after 30 s."""
        deadline = time.monotonic() + 30
        with self._client() as client:
            while True:
                try:
                    # The first HEAD makes rclone hash the object for its ETag: else whoever runs first would pay for all.
                    client.head_object(Bucket=BUCKET, Key=KEY)
                    return
                except (BotoCoreError, ClientError):
                    if time.monotonic() > deadline:
                        raise
                    time.sleep(0.1)

    def presigned_url(self) -> str:
        """A URL of the object that curl may read for an hour."""
        with self._client() as client:
            return client.generate_presigned_url("get_object", Params={"Bucket": BUCKET, "Key": KEY}, ExpiresIn=3600)

    def _client(self) -> contextlib.closing[S3Client]:
        client = boto3.client(
            "s3",
            endpoint_url=self.endpoint_url,
            region_name=REGION,
            aws_access_key_id=self.key_id,
            aws_secret_access_key=self.secret_key,
            config=Config(signature_version="s3v4", proxies={}, s3={"addressing_style": "path"}),
        )
        return contextlib.closing(client)

    def warm(self) -> None:
        """Bring the store's data back into memory after the page cache was dropped."""
        buffer = bytearray(_CHUNK_BYTES)
        for path in self.directory.rglob("*"):
            if path.is_file():
                with path.open("rb", buffering=0) as file:
                    while file.readinto(buffer):
                        pass


@contextlib.contextmanager
def rclone(directory: Path, size_bytes: int) -> Iterator[Store]:
    """`rclone serve s3`: the fastest server here, so that it is not what is measured. It ignores If-Match."""
    bucket = directory / BUCKET
    bucket.mkdir()
    sha256 = make_object(bucket / KEY, size_bytes)
    key_id, secret_key = secrets.token_hex(10), secrets.token_hex(20)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    command = [
        str(Path(sys.executable).with_name("rclone")),
        "serve",
        "s3",
        str(directory),
        "--config=",
        f"--addr={address}",
        "--dir-cache-time=24h",  # hashes are forgotten with the directory cache
        "--log-level=ERROR",
    ]
    # The variable is read as one line of CSV.
    environment = os.environ | {"RCLONE_AUTH_KEY": f'"{key_id},{secret_key}"'}
    server = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL)
    try:
        yield Store("rclone serve s3", f"http://{address}", key_id, secret_key, directory, size_bytes, sha256)
    finally:
        server.terminate()
        server.wait()


@contextlib.contextmanager
def weed(directory: Path, size_bytes: int) -> Iterator[Store]:
    """SeaweedFS: slower, but checks what S3 checks."""
    with seaweedfs.running(directory / "seaweedfs") as server:
        source = directory / KEY
        sha256 = make_object(source, size_bytes)
        with contextlib.closing(server.client()) as client:
            client.create_bucket(Bucket=BUCKET)
            client.upload_file(str(source), BUCKET, KEY)
        source.unlink()
        reader = server.reader
        yield Store("SeaweedFS", server.endpoint_url, reader.key_id, reader.secret_key, directory, size_bytes, sha256)


STORES: Mapping[str, Callable[[Path, int], contextlib.AbstractContextManager[Store]]] = {
    "rclone": rclone,
    "seaweedfs": weed,
}


@contextlib.contextmanager
def running(name: str, size_bytes: int) -> Iterator[Store]:
    """The store of that name with its object, gone at the end."""
    memory = Path("/dev/shm")
    roomy = memory.is_dir() and shutil.disk_usage(memory).free > 3 * size_bytes
    with (
        tempfile.TemporaryDirectory(prefix="d7yfs-bench-store-", dir=memory if roomy else "/var/tmp") as directory,
        STORES[name](Path(directory), size_bytes) as store,
    ):
        store.wait()
        yield store


def make_object(path: Path, size_bytes: int) -> str:
    """Write pseudo-random bytes, the same every time; return their SHA-256 in hex."""
    source, digest = random.Random(7), hashlib.sha256()
    with path.open("wb") as out:
        for start in range(0, size_bytes, _CHUNK_BYTES):
            chunk = source.randbytes(min(_CHUNK_BYTES, size_bytes - start))
            digest.update(chunk)
            out.write(chunk)
    return digest.hexdigest()
