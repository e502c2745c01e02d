"""Tools of the tests against a real Dragonfly: a store that counts and can wait, and views of reads
and daemons.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Protocol

import numpy
import trio

from tests.contract import oss_store
from tests.mount.mounted import Mounted, within
from tests.servers.dragonfly_cluster import Cluster, Daemon
from tests.servers.http11 import Answer, Exchange
from tests.servers.in_thread import InThread
from tests.servers.s3_faults import S3Faults

MIB = 1 << 20
SIZE = 96 * MIB
LONG_S = 120.0
"""Seconds for a read that a killed part may delay, on a busy machine."""

OSS_KEYS = {
    "OSS_ACCESS_KEY_ID": oss_store.IDENTITY.key_id,
    "OSS_ACCESS_KEY_SECRET": oss_store.IDENTITY.secret,
    "OSS_SESSION_TOKEN": oss_store.IDENTITY.token,
}
"""The environment of a mount of the server of OSS, which keeps versions."""

Store = InThread[S3Faults]

MakeCluster = Callable[..., Cluster]
"""Starts a test's own cluster; its arguments are those of `dragonfly_cluster.running`."""


class Through(Protocol):
    """A function that mounts the store through a daemon, with an empty cache."""

    def __call__(self, daemon: Daemon, *options: str) -> Mounted: ...


class HangAt:
    """A fault for every request of a key, which holds one of them back.

    The first request whose range covers `offset` waits until `resume` is set.
    """

    def __init__(self, offset: int) -> None:
        self.reached = trio.Event()
        self.resume = trio.Event()
        self._offset = offset

    async def __call__(self, exchange: Exchange, answer: Answer) -> None:
        span = answer.headers.get("Content-Range", "bytes 0-0/0").removeprefix("bytes ").partition("/")[0]
        first, last = map(int, span.split("-"))
        if first <= self._offset <= last and not self.reached.is_set():
            self.reached.set()
            await self.resume.wait()
        await exchange.deliver(answer)


def big(seed: int, size_bytes: int) -> bytes:
    """Pseudorandom bytes like `bytes_of`, fast enough for a gigabyte."""
    return bytes(numpy.random.default_rng(seed).bytes(size_bytes))


def put(store: Store, key: str, body: bytes) -> None:
    store.do(store.server.put, f"b/{key}", body)


def sent_bytes(store: Store, prefix: str) -> int:
    """The bytes that the store has sent of the objects below `prefix`."""
    return sum(count for key, count in store.server.sent_bytes.items() if key.startswith(f"b/{prefix}"))


def digest(mounted: Mounted, name: str, *, timeout_s: float = LONG_S) -> str:
    def reading() -> str:
        with (mounted.point / name).open("rb", buffering=0) as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    return within(timeout_s, reading)


def outcome(reading: Callable[[], bytes]) -> bytes | int | None:
    """The bytes, or the errno of the failure."""
    try:
        return reading()
    except OSError as error:
        return error.errno


class Traffic:
    """The downloads of a daemon since this was made."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        self._before = daemon.traffic_bytes()

    def bytes(self) -> Mapping[str, int]:
        now = self._daemon.traffic_bytes()
        return {
            name: count - self._before.get(name, 0) for name, count in now.items() if count > self._before.get(name, 0)
        }
