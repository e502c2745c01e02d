"""Several daemons on one cache directory: each byte is fetched once, and no daemon is stuck with
another's trouble.

The daemons are caches and fillers of their own in one process; leases belong to descriptors, so
they are as strange to each other as processes are. `tests/mount` has real ones.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from d7yfs.cache.cache import Cache
from d7yfs.cache.directory import CacheDirectory
from d7yfs.cache.filler import Filler
from d7yfs.cache.version import CachedVersion
from d7yfs.errors import ObjectArchived
from d7yfs.fetch.dragonfly_proxy import Proxies, Proxy
from d7yfs.fetch.fetcher import Fetcher
from d7yfs.fetch.transport import Transport
from d7yfs.fill import direct
from d7yfs.fill.direct import DAEMON_PATIENCE_S, DirectFiller
from d7yfs.fill.p2p_budget import Policy
from d7yfs.fill.stream import StreamFiller
from d7yfs.objects import BLOCK_BYTES, ByteRange
from tests.cache.doubles import PromptDisk
from tests.fetch.doubles import FakeOrigin
from tests.fill.scene import SpendingPolicy
from tests.servers import faults
from tests.servers.dfdaemon import FakeDfdaemon
from tests.servers.http11 import Answer, Exchange
from tests.servers.scripted import ScriptedServer

MB = BLOCK_BYTES
KEY = "models/m/weights.bin"
BODY = os.urandom(32 * MB + 17)
SIZE = len(BODY)
AHEAD_BYTES = 16 * MB
SOON_S = 1.0


@dataclass
class Daemon:
    """A cache over the shared directory, with its way to the origin; tasks end with `nursery`."""

    cache: Cache
    fetcher: Fetcher
    origin: FakeOrigin
    nursery: trio.Nursery
    policy: Policy = field(default_factory=SpendingPolicy)

    async def open(self) -> CachedVersion:
        return await self.cache.open(self.origin.identity, self.origin.version(KEY), self._new_filler)

    def _new_filler(self, target: CachedVersion) -> Filler:
        if self.fetcher.proxy is None:
            return DirectFiller(target, self.fetcher, self.nursery)
        return StreamFiller(target, self.fetcher, self.nursery, self.policy)

    async def read(self, start: int, stop: int) -> None:
        """Read [start, stop), which must give the right bytes."""
        cached = await self.open()
        try:
            assert await cached.read(ByteRange(start, stop), None) == BODY[start:stop]
        finally:
            cached.drop()

    async def read_all(self, *, step: int = MB) -> None:
        """As a sequential reader does, with something ahead of it."""
        cached = await self.open()
        try:
            for start in range(0, SIZE, step):
                wanted = ByteRange(start, start + step).clip(SIZE)
                ahead = ByteRange(wanted.stop, wanted.stop + AHEAD_BYTES).clip(SIZE)
                assert await cached.read(wanted, ahead or None) == BODY[wanted.start : wanted.stop]
        finally:
            cached.drop()

    @property
    def taken_over_blocks(self) -> int:
        return self.cache.statistics().taken_over_blocks


@asynccontextmanager
async def daemons(path: Path, server: ScriptedServer, proxy_url: str, count: int = 2) -> AsyncIterator[list[Daemon]]:
    transports = []
    made = []
    async with trio.open_nursery() as nursery:
        for _ in range(count):
            directory = CacheDirectory(path, size_limit_bytes=1 << 30, min_free_bytes=0)
            directory.prepare()
            transports += [Transport(connect_timeout_s=3, first_byte_timeout_s=30, idle_timeout_s=30) for _ in range(2)]
            proxy = Proxies([Proxy(proxy_url, transports[-1])], required=False) if proxy_url else None
            fetcher = Fetcher(FakeOrigin(server), transports[-2], proxy=proxy, read_timeout_s=60, max_connections=8)
            cache = Cache(directory, memory_buffer_bytes=16 * MB, read_timeout_s=60, disk=PromptDisk())
            own = await nursery.start(_nursery)
            made.append(Daemon(cache, fetcher, FakeOrigin(server), own))
        yield made
        for each in made:
            each.nursery.cancel_scope.cancel()
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    for daemon in made:
        assert daemon.cache.statistics().open_versions == 0
    for transport in transports:
        await transport.aclose()


async def _nursery(task_status: trio.TaskStatus[trio.Nursery]) -> None:
    async with trio.open_nursery() as nursery:
        task_status.started(nursery)
        await trio.sleep_forever()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> MockClock:
    """Jumps to the next timeout when all has been silent for longer than sockets take to answer,
    which polls must not make many.
    """
    monkeypatch.setattr(direct, "DAEMON_POLL_S", 0.25)
    return MockClock(autojump_threshold=0.05)


@pytest.fixture
async def server() -> AsyncIterator[ScriptedServer]:
    async with ScriptedServer({KEY: BODY}).running() as server:
        yield server


@pytest.fixture
async def two(tmp_path: Path, server: ScriptedServer) -> AsyncIterator[list[Daemon]]:
    async with daemons(tmp_path, server, "") as made:
        yield made


# --- ranges ---


@pytest.mark.parametrize("steps", [(MB, MB), (128 << 10, 3 * MB), (SIZE, MB)])
async def test_two_sequential_readers_cost_one_download(
    server: ScriptedServer, two: list[Daemon], steps: tuple[int, int]
) -> None:
    async with trio.open_nursery() as nursery:
        for daemon, step in zip(two, steps, strict=True):
            nursery.start_soon(partial(daemon.read_all, step=step))
    assert server.sent_bytes[KEY] == SIZE
    assert sum(each.cache.statistics().disk_bytes_written for each in two) == SIZE
    assert sum(each.taken_over_blocks for each in two) > 0


async def test_ranges_that_overlap_are_fetched_once(server: ScriptedServer, two: list[Daemon]) -> None:
    one, other = two
    async with trio.open_nursery() as nursery:
        for start in range(0, 30 * MB, 3 * MB):
            nursery.start_soon(one.read, start, start + 2 * MB)
            nursery.start_soon(other.read, start + MB + 5, start + 3 * MB + 7)
    assert server.sent_bytes[KEY] == 30 * MB + MB, "each block that somebody wanted, once"


async def test_blocks_are_taken_over_as_they_land(clock: MockClock, server: ScriptedServer, two: list[Daemon]) -> None:
    """Not when the transfer that brings them ends: it never does."""
    one, other = two
    slow = faults.Tap(MB + 1000)
    server.script(slow)
    one.nursery.start_soon(one.read, 0, 2 * MB)
    await wait_all_tasks_blocked(0.01)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(other.read, 0, MB)
        await trio.sleep(1)
        nursery.cancel_scope.deadline = trio.current_time() + SOON_S
        slow.flow()
    assert not nursery.cancel_scope.cancelled_caught
    assert len(server.requests) == 1
    assert other.taken_over_blocks == 1


async def test_what_a_daemon_leaves_when_it_dies_is_fetched_at_once(
    clock: MockClock, server: ScriptedServer, two: list[Daemon]
) -> None:
    one, other = two
    stuck = faults.Hang(MB + 1000)
    server.script(stuck)
    one.nursery.start_soon(one.read, 0, 2 * MB)
    await stuck.reached.wait()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(other.read, 0, 2 * MB)
        await trio.sleep(1)
        assert len(server.requests) == 1
        died_at = trio.current_time()
        one.nursery.cancel_scope.cancel()
    assert trio.current_time() - died_at < SOON_S
    assert [each.headers["range"] for each in server.requests[1:]] == [f"bytes={MB}-{2 * MB - 1}"]


async def test_what_a_daemon_fails_to_bring_others_try_themselves(
    clock: MockClock, server: ScriptedServer, two: list[Daemon]
) -> None:
    one, other = two
    refused = trio.Event()

    async def refuse(exchange: Exchange, answer: Answer) -> None:
        await refused.wait()
        await faults.archived(exchange, answer)

    async def fail() -> None:
        with pytest.raises(ObjectArchived):
            await one.read(0, 2 * MB)

    server.script(refuse)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(fail)
        await wait_all_tasks_blocked(0.01)
        nursery.start_soon(other.read, 0, 2 * MB)
        await trio.sleep(1)
        assert len(server.requests) == 1
        refused.set()
    assert len(server.requests) == 2


async def test_a_daemon_that_hangs_costs_its_patience_once(
    clock: MockClock, server: ScriptedServer, two: list[Daemon]
) -> None:
    one, other = two
    server.script(*(faults.Hang() for _ in range(4)))
    for start in range(0, 16 * MB, 4 * MB):
        one.nursery.start_soon(one.read, start, start + 4 * MB)
    await wait_all_tasks_blocked(0.01)
    assert len(server.requests) == 4
    began = trio.current_time()
    cached = await other.open()
    await other.read(0, MB)
    waited_s = trio.current_time() - began
    assert DAEMON_PATIENCE_S <= waited_s < DAEMON_PATIENCE_S + SOON_S
    for start in (4 * MB, 8 * MB, 12 * MB):
        await other.read(start, start + MB)
    assert trio.current_time() - began < waited_s + SOON_S
    cached.drop()


async def test_a_slow_daemon_is_no_hung_one(clock: MockClock, server: ScriptedServer, two: list[Daemon]) -> None:
    """A block takes longer than anybody's patience, but its bytes are seen to come."""
    one, other = two
    slow = faults.Tap(200_000)
    server.script(slow, forever=True)
    one.nursery.start_soon(one.read, 0, MB)
    await wait_all_tasks_blocked(0.01)
    before = len(server.requests)

    async def trickle() -> None:
        while True:
            await trio.sleep(DAEMON_PATIENCE_S * 0.6)
            slow.flow(before)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(trickle)
        began = trio.current_time()
        await other.read(0, MB)
        assert trio.current_time() - began > 3 * DAEMON_PATIENCE_S
        assert len(server.requests) == before
        nursery.cancel_scope.cancel()


async def test_what_queues_as_a_prefetch_holds_up_nobody(
    clock: MockClock, server: ScriptedServer, two: list[Daemon]
) -> None:
    one, other = two
    server.script(*(faults.Hang() for _ in range(4)))
    cached = await one.open()
    filler = one._new_filler(cached)
    for ahead in (ByteRange(0, 8 * MB), ByteRange(8 * MB, SIZE)):
        filler.prefetch(ahead)
        await wait_all_tasks_blocked(0.01)
        assert len(server.requests) == 4, "eight connections less four in reserve"
    with trio.fail_after(SOON_S):
        await other.read(30 * MB, 31 * MB)
    cached.drop()


async def test_without_room_daemons_wait_for_nobody(
    clock: MockClock, tmp_path: Path, server: ScriptedServer, two: list[Daemon]
) -> None:
    one, other = two
    stuck = faults.Hang()
    server.script(stuck)
    one.nursery.start_soon(one.read, 0, MB)
    await stuck.reached.wait()
    other.cache._directory.size_limit_bytes = 0
    with trio.fail_after(SOON_S):
        await other.read(0, MB)


# --- streams ---


@pytest.fixture
async def dfdaemon() -> AsyncIterator[FakeDfdaemon]:
    async with FakeDfdaemon(piece_bytes=MB).running() as daemon:
        yield daemon


@pytest.fixture
async def proxied(tmp_path: Path, server: ScriptedServer, dfdaemon: FakeDfdaemon) -> AsyncIterator[list[Daemon]]:
    async with daemons(tmp_path, server, dfdaemon.url) as made:
        yield made


def streams(dfdaemon: FakeDfdaemon) -> list[str]:
    return [each.headers.get("range", "whole") for each in dfdaemon.requests]


async def test_two_sequential_readers_share_one_stream(
    server: ScriptedServer, dfdaemon: FakeDfdaemon, proxied: list[Daemon]
) -> None:
    async with trio.open_nursery() as nursery:
        for daemon in proxied:
            nursery.start_soon(daemon.read_all)
    assert streams(dfdaemon) == ["whole"]
    assert sum(each.fetcher.models.total.proxy_bytes for each in proxied) == SIZE


async def test_a_daemon_that_comes_late_follows_the_stream(
    clock: MockClock, server: ScriptedServer, dfdaemon: FakeDfdaemon, proxied: list[Daemon]
) -> None:
    one, other = proxied
    stuck = faults.Hang(12 * MB)
    dfdaemon.script(stuck)
    one.nursery.start_soon(one.read_all)
    await stuck.reached.wait()
    await wait_all_tasks_blocked(0.02)
    direct_bytes = one.fetcher.models.total.direct_bytes
    async with trio.open_nursery() as nursery:
        nursery.start_soon(other.read_all)
        await trio.sleep(0.3)
        stuck.resume.set()
    assert streams(dfdaemon) == ["whole"]
    assert other.fetcher.models.total.proxy_bytes == other.fetcher.models.total.direct_bytes == 0
    assert one.fetcher.models.total.direct_bytes == direct_bytes


async def test_a_stream_whose_daemon_dies_is_taken_up_where_it_ended(
    clock: MockClock, server: ScriptedServer, dfdaemon: FakeDfdaemon, proxied: list[Daemon]
) -> None:
    one, other = proxied
    stuck = faults.Hang(12 * MB)
    dfdaemon.script(stuck)
    one.nursery.start_soon(one.read_all)
    await stuck.reached.wait()
    await wait_all_tasks_blocked(0.02)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(other.read_all)
        await trio.sleep(0.3)
        died_at = trio.current_time()
        one.nursery.cancel_scope.cancel()
    assert trio.current_time() - died_at < 1
    assert streams(dfdaemon) == ["whole", f"bytes={12 * MB}-"]


async def test_a_stream_that_hangs_is_not_waited_for(
    clock: MockClock, server: ScriptedServer, dfdaemon: FakeDfdaemon, proxied: list[Daemon]
) -> None:
    one, other = proxied
    dfdaemon.script(faults.Hang(12 * MB))
    one.nursery.start_soon(one.read_all)
    await wait_all_tasks_blocked(0.05)
    began = trio.current_time()
    await other.read_all()
    assert trio.current_time() - began < DAEMON_PATIENCE_S + SOON_S


async def test_a_reader_far_from_another_daemons_stream_gets_small_ranges(
    clock: MockClock, server: ScriptedServer, dfdaemon: FakeDfdaemon, proxied: list[Daemon]
) -> None:
    one, other = proxied
    stuck = faults.Hang(6 * MB)
    dfdaemon.script(stuck)
    one.nursery.start_soon(one.read_all)
    await stuck.reached.wait()
    began = trio.current_time()
    await other.read(20 * MB, 21 * MB)
    assert trio.current_time() - began < SOON_S
    assert len(dfdaemon.requests) == 1
