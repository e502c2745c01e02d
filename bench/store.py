"""The store that every case reads from, as the bench sees it: started once, shaped per case, with
counters in shared memory.

The server itself is `bench.store_server`. Its data lies in memory if there is room, so that the
disk belongs to the peers' caches.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import trustme

from bench import dataset
from bench.catalog import BUCKET
from bench.store_server import Control

REGION = "us-east-1"
_CEILING_CONNECTIONS = 4


class StoreError(Exception):
    """A server that did not start or did not answer as it should."""


@dataclass(frozen=True, slots=True)
class Profile:
    """The shape of the store's answers: protocol, delay and rate."""

    name: str
    delay_s: float = 0.0
    """Seconds before the first byte of every answer."""
    bytes_per_s: float = 0.0
    """The rate of one body; 0 for no limit."""
    total_bytes_per_s: float = 0.0
    """The rate of all bodies together; 0 for no limit."""
    tls: bool = False

    @property
    def kind(self) -> str:
        """The value of --store that selects this profile."""
        return "wan" if self.delay_s else "loopback"


LOOPBACK = Profile("loopback")
WAN = Profile("wan", delay_s=0.025, bytes_per_s=90e6)
LOOPBACK_TLS = Profile("loopback, TLS", tls=True)
WAN_TLS = Profile("wan, TLS", delay_s=0.025, bytes_per_s=90e6, tls=True)


@dataclass(frozen=True, slots=True)
class Counters:
    """The counts of the store's answers; subtract two for the answers between them."""

    gets: int
    heads: int
    lists: int
    bytes: int
    """Bytes of objects' bodies, as the kernel took them for sending."""

    @property
    def requests(self) -> int:
        return self.gets + self.heads + self.lists

    def __sub__(self, other: Counters) -> Counters:
        return Counters(
            self.gets - other.gets, self.heads - other.heads, self.lists - other.lists, self.bytes - other.bytes
        )


@dataclass(frozen=True, slots=True)
class Store:
    """The running server; `buckets` has a directory with the content of each bucket."""

    buckets: Path
    ca_file: Path
    plain_port: int
    tls_port: int
    control: Control

    @property
    def data(self) -> Path:
        """The content of `BUCKET`."""
        return self.buckets / BUCKET

    def endpoint_url(self, profile: Profile) -> str:
        return f"https://127.0.0.1:{self.tls_port}" if profile.tls else f"http://127.0.0.1:{self.plain_port}"

    def url(self, profile: Profile, key: str) -> str:
        """The object's URL; the store accepts any signature, and requests without one."""
        return f"{self.endpoint_url(profile)}/{BUCKET}/{key}"

    @property
    def environment(self) -> Mapping[str, str]:
        """Credentials as AWS's own clients read them: the store accepts any."""
        return {"AWS_ACCESS_KEY_ID": "bench", "AWS_SECRET_ACCESS_KEY": "bench", "AWS_REGION": REGION}

    def shape(self, profile: Profile) -> None:
        """Shape the answers from the next request on."""
        self.control.set_shape(profile.delay_s, profile.bytes_per_s, profile.total_bytes_per_s)

    def counters(self) -> Counters:
        return Counters(*self.control.totals())

    def ceiling_bytes_per_s(self, profile: Profile = LOOPBACK) -> float:
        """The rate of a client that discards every byte: no peer can be faster on this machine."""
        self.shape(profile)
        size_bytes = (self.data / dataset.LARGE).stat().st_size
        path = f"/{BUCKET}/{dataset.LARGE}"
        threads = [threading.Thread(target=_discard, args=(self.plain_port, path)) for _ in range(_CEILING_CONNECTIONS)]
        start = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return _CEILING_CONNECTIONS * size_bytes / (time.perf_counter() - start)


@contextlib.contextmanager
def running(make: Callable[[Path], None], total_bytes: int, scratch: Path) -> Iterator[Store]:
    """Run the store with the buckets that `make` writes, about `total_bytes` in all; it is gone at
    the end. Raises StoreError.
    """
    memory = Path("/dev/shm")
    roomy = memory.is_dir() and shutil.disk_usage(memory).free > 2 * total_bytes
    with tempfile.TemporaryDirectory(prefix="d7yfs-bench-store-", dir=memory if roomy else scratch) as name:
        directory = Path(name)
        buckets = directory / "buckets"
        make(buckets)
        authority = trustme.CA()
        authority.cert_pem.write_to_path(directory / "ca.pem")
        certificate = directory / "server.pem"
        authority.issue_cert("127.0.0.1", "localhost").private_key_and_cert_chain_pem.write_to_path(certificate)
        workers = os.cpu_count() or 1
        control = directory / "control"
        control.write_bytes(bytes(Control.size_bytes(workers)))
        command = [
            sys.executable,
            "-m",
            "bench.store_server",
            str(buckets),
            str(control),
            str(workers),
            str(certificate),
        ]
        root = Path(__file__).resolve().parent.parent
        with subprocess.Popen(command, cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
            assert server.stdin
            assert server.stdout
            try:
                line = server.stdout.readline()
                if not line:
                    raise StoreError(f"the store ended with status {server.wait(10)}")
                ports = json.loads(line)
                yield Store(buckets, directory / "ca.pem", ports["plain"], ports["tls"], Control(control))
            finally:
                server.stdin.close()


def _discard(port: int, path: str) -> None:
    buffer = bytearray(1 << 20)
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: store\r\nConnection: close\r\n\r\n".encode())
        while connection.recv_into(buffer):
            pass
