"""MinIO, for the contract suite of `make integration`: one server with one disk, which
scripts/go-tool.sh builds.

It owns the process. MinIO needs a separate program to make users, so the reader is the root user
too.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from tests.servers.seaweedfs import Identity, free_ports, new_client, wait_until_writable

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client


class Minio:
    """A running server on loopback with its data in `directory`; not ready yet: see `running`."""

    def __init__(self, directory: Path) -> None:
        self.writer = self.reader = Identity("root", ())
        port, console_port = free_ports(2)
        self.endpoint_url = f"http://127.0.0.1:{port}"
        program = shutil.which("minio")
        if program is None:
            raise RuntimeError("no `minio` on the PATH: scripts/go-tool.sh builds it")
        self.log = directory / "minio.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [
                    *(program, "server", "--quiet", "--anonymous", f"--address=127.0.0.1:{port}"),
                    *(f"--console-address=127.0.0.1:{console_port}", str(directory / "data")),
                ],
                env=os.environ
                | {
                    "MINIO_ROOT_USER": self.writer.key_id,
                    "MINIO_ROOT_PASSWORD": self.writer.secret_key,
                    "MINIO_BROWSER": "off",
                    "MINIO_UPDATE": "off",
                },
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def client(self, identity: Identity | None = None) -> S3Client:
        """A plain boto3 client. The caller closes it."""
        return new_client(self.endpoint_url, identity or self.writer)


@contextlib.contextmanager
def running(directory: Path) -> Iterator[Minio]:
    """A ready server, stopped at the end."""
    server = Minio(directory)
    try:
        wait_until_writable(server, server.process, server.log)
        yield server
    finally:
        server.process.kill()
        server.process.wait()
