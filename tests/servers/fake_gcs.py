"""fake-gcs-server, a widely used emulator of Cloud Storage, for the contract suite of `make
integration`.

It owns the process. The emulator checks no credentials. scripts/go-tool.sh builds it.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import httpx

from tests.servers.seaweedfs import free_ports

_START_TIMEOUT_S = 20.0


class FakeGcs:
    """A running server on loopback, in memory; not ready yet: see `running`."""

    def __init__(self, directory: Path) -> None:
        program = shutil.which("fake-gcs-server")
        if program is None:
            raise RuntimeError("no `fake-gcs-server` on the PATH: scripts/go-tool.sh builds it")
        (port,) = free_ports(1)
        self.endpoint_url = f"http://127.0.0.1:{port}"
        self.client = httpx.Client(base_url=self.endpoint_url, trust_env=False)
        command = [program, "-scheme", "http", "-backend", "memory", "-host", "127.0.0.1", "-port", str(port)]
        with (directory / "fake-gcs.log").open("wb") as log:
            self.process = subprocess.Popen(
                [*command, "-public-host", f"127.0.0.1:{port}"], stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def make_bucket(self, bucket: str) -> None:
        self.client.post("/storage/v1/b", params={"project": "p"}, json={"name": bucket}).raise_for_status()

    def put(self, bucket: str, key: str, body: bytes) -> None:
        where = f"/upload/storage/v1/b/{bucket}/o"
        self.client.post(where, params={"uploadType": "media", "name": key}, content=body).raise_for_status()

    def delete(self, bucket: str, key: str) -> None:
        self.client.delete(f"/storage/v1/b/{bucket}/o/{quote(key, safe='')}").raise_for_status()


@contextlib.contextmanager
def running(directory: Path) -> Iterator[FakeGcs]:
    """A ready server, stopped at the end."""
    server = FakeGcs(directory)
    try:
        deadline = time.monotonic() + _START_TIMEOUT_S
        while True:
            try:
                server.client.get("/storage/v1/b", params={"project": "p"}).raise_for_status()
                break
            except httpx.TransportError:
                if server.process.poll() is not None or time.monotonic() > deadline:
                    raise
                time.sleep(0.02)
        yield server
    finally:
        server.client.close()
        server.process.kill()
        server.process.wait()
