"""MinIO in place of the bench's own store, as in Dragonfly's published measurements. `bench.relay`
shapes and counts it.

It has the interface of `bench.store`. `minio` must be on the PATH (scripts/go-tool.sh builds it).
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from bench.catalog import BUCKET
from bench.store import REGION, Store, StoreError
from bench.store_server import Control
from tests.servers import minio

_ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True, slots=True)
class MinioStore(Store):
    """A running MinIO; `buckets` holds the uploaded files."""

    key_id: str = ""
    secret_key: str = ""

    @property
    def environment(self) -> Mapping[str, str]:
        return {
            "AWS_ACCESS_KEY_ID": self.key_id,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "AWS_REGION": REGION,
        }


@contextlib.contextmanager
def running(make: Callable[[Path], None], scratch: Path) -> Iterator[Store]:
    """Run MinIO like `bench.store.running`, but always on `scratch`: MinIO needs a real disk.
    Raises StoreError.
    """
    with tempfile.TemporaryDirectory(prefix="d7yfs-bench-minio-", dir=scratch) as name:
        directory = Path(name)
        data = directory / "buckets"
        make(data)
        (directory / "minio").mkdir()
        with minio.running(directory / "minio") as server:
            _upload(server, data / BUCKET)
            control = directory / "control"
            control.write_bytes(bytes(Control.size_bytes(1)))
            port = server.endpoint_url.rpartition(":")[2]
            command = [sys.executable, "-m", "bench.relay", port, str(control)]
            with subprocess.Popen(
                command, cwd=_ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            ) as relay:
                assert relay.stdin
                assert relay.stdout
                try:
                    line = relay.stdout.readline()
                    if not line:
                        raise StoreError(f"the relay ended with status {relay.wait(10)}")
                    keys = server.reader.key_id, server.reader.secret_key
                    yield MinioStore(data, directory / "no-ca.pem", int(line), 0, Control(control), *keys)
                finally:
                    relay.stdin.close()


def _upload(server: minio.Minio, data: Path) -> None:
    """Upload every file; further names of one file are copies. Anonymous clients may read them, as
    `ceiling_bytes_per_s` does.
    """
    keys: dict[int, str] = {}
    anybody = {"Effect": "Allow", "Principal": "*", "Action": "s3:GetObject", "Resource": f"arn:aws:s3:::{BUCKET}/*"}
    with contextlib.closing(server.client()) as client:
        client.create_bucket(Bucket=BUCKET)
        client.put_bucket_policy(Bucket=BUCKET, Policy=json.dumps({"Version": "2012-10-17", "Statement": [anybody]}))
        for path in sorted(data.iterdir()):
            known = keys.setdefault(path.stat().st_ino, path.name)
            if known == path.name:
                client.upload_file(str(path), BUCKET, path.name)
            else:
                client.copy_object(Bucket=BUCKET, Key=path.name, CopySource={"Bucket": BUCKET, "Key": known})
