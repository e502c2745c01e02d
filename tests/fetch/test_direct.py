"""The direct filler: every block once, in parts, and every ending told."""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncIterator

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from d7yfs.errors import OriginUnavailable, Stopped, VersionGone
from d7yfs.fetch.direct import DirectFiller
from d7yfs.fetch.fetcher import Fetcher
from d7yfs.fetch.transport import Transport
from d7yfs.objects import BLOCK_BYTES, PART_BYTES, ByteRange
from tests.fetch.doubles import FakeOrigin, MemoryTarget
from tests.servers import faults
from tests.servers.scripted import ScriptedServer

MB = BLOCK_BYTES
KEY = "models/m/weights.bin"
BODY = os.urandom(20 * MB + 17)
SIZE = len(BODY)


@pytest.fixture
def clock() -> MockClock:
    return MockClock(autojump_threshold=0.05)


@pytest.fixture
async def server() -> AsyncIterator[ScriptedServer]:
    async with ScriptedServer({KEY: BODY}).running() as server:
        yield server


@pytest.fixture
async def fetcher(server: ScriptedServer) -> AsyncIterator[Fetcher]:
    transport = Transport(connect_timeout_s=3, first_byte_timeout_s=5, idle_timeout_s=5)
    yield Fetcher(FakeOrigin(server), transport, proxy=None, read_timeout_s=20, max_connections=6)
    await transport.aclose()


@pytest.fixture
def target(server: ScriptedServer) -> MemoryTarget:
    return MemoryTarget(FakeOrigin(server).version(KEY))


def asked(server: ScriptedServer) -> list[tuple[int, int]]:
    """The ranges that were requested, in order of offset."""
    spans = (request.headers["range"].removeprefix("bytes=").split("-") for request in server.requests)
    return sorted((int(first), int(last) + 1) for first, last in spans)


def check(target: MemoryTarget, *ranges: ByteRange) -> None:
    """Exactly these ranges have come, and each ended well."""
    assert sorted(target.endings, key=lambda ending: ending[0]) == [(each, None) for each in ranges]
    for each in ranges:
        assert target.data[each.start : each.stop] == BODY[each.start : each.stop]
    assert target.written == sum(each.size for each in ranges)
    assert target.holds == 0


async def test_parts_are_cut_at_multiples(server: ScriptedServer, fetcher: Fetcher, target: MemoryTarget) -> None:
    async with trio.open_nursery() as nursery:
        filler = DirectFiller(target, fetcher, nursery)
        filler.request(ByteRange(9 * MB + 5, 9 * MB + 6), None)
        assert target.holds == 1
    check(target, ByteRange(8 * MB, 16 * MB))
    async with trio.open_nursery() as nursery:
        DirectFiller(target, fetcher, nursery).request(ByteRange(0, SIZE), None)
    assert asked(server) == [(0, 8 * MB), (8 * MB, 16 * MB), (16 * MB, SIZE)]
    assert target.data == BODY


async def test_what_is_there_is_not_asked_for(server: ScriptedServer, fetcher: Fetcher, target: MemoryTarget) -> None:
    target.has(0, 2, 3, 6)
    async with trio.open_nursery() as nursery:
        DirectFiller(target, fetcher, nursery).request(ByteRange(MB, MB + 1), None)
    check(target, ByteRange(MB, 2 * MB), ByteRange(4 * MB, 6 * MB), ByteRange(7 * MB, 8 * MB))


async def test_ahead(server: ScriptedServer, fetcher: Fetcher, target: MemoryTarget) -> None:
    async with trio.open_nursery() as nursery:
        DirectFiller(target, fetcher, nursery).request(ByteRange(0, 1), ByteRange(8 * MB, SIZE))
    check(target, ByteRange(0, 8 * MB), ByteRange(8 * MB, 16 * MB), ByteRange(16 * MB, SIZE))


async def test_single_flight(server: ScriptedServer, fetcher: Fetcher, target: MemoryTarget) -> None:
    async with trio.open_nursery() as nursery:
        filler = DirectFiller(target, fetcher, nursery)
        filler.prefetch(ByteRange(8 * MB, 16 * MB))
        for offset in (0, 7 * MB, 8 * MB, 15 * MB, 16 * MB):
            for _ in range(8):
                filler.request(ByteRange(offset, offset + 1), ByteRange(0, SIZE))
    assert asked(server) == [(0, 8 * MB), (8 * MB, 16 * MB), (16 * MB, SIZE)]
    assert target.data == BODY
    assert target.written == SIZE


async def test_a_range_around_one_under_way(server: ScriptedServer, fetcher: Fetcher, target: MemoryTarget) -> None:
    async with trio.open_nursery() as nursery:
        filler = DirectFiller(target, fetcher, nursery)
        filler.fetch(ByteRange(2 * MB, 4 * MB), urgent=True)
        filler.request(ByteRange(0, MB), None)
    assert asked(server) == [(0, 2 * MB), (2 * MB, 4 * MB), (4 * MB, 8 * MB)]


async def test_where_nothing_is_kept_only_what_is_wanted_comes(
    server: ScriptedServer, fetcher: Fetcher, target: MemoryTarget
) -> None:
    target.keeps = False
    async with trio.open_nursery() as nursery:
        filler = DirectFiller(target, fetcher, nursery)
        filler.request(ByteRange(9 * MB + 5, 10 * MB + 6), ByteRange(11 * MB, SIZE))
        filler.prefetch(ByteRange(0, 8 * MB))
    check(target, ByteRange(9 * MB, 11 * MB))


async def test_a_prefetch_that_queues_is_hurried_when_a_reader_comes(
    server: ScriptedServer, fetcher: Fetcher, target: MemoryTarget, nursery: trio.Nursery
) -> None:
    """Six connections less four in reserve: the third part waits, until somebody waits for it."""
    server.script(*(faults.Hang() for _ in range(2)))
    filler = DirectFiller(target, fetcher, nursery)
    filler.prefetch(ByteRange(0, 8 * MB))
    filler.prefetch(ByteRange(8 * MB, 16 * MB))
    await wait_all_tasks_blocked(0.01)
    filler.prefetch(ByteRange(16 * MB, SIZE))
    await wait_all_tasks_blocked(0.01)
    assert len(server.requests) == 2
    filler.request(ByteRange(17 * MB, 18 * MB), None)
    await wait_all_tasks_blocked(0.01)
    assert asked(server) == [(0, 8 * MB), (8 * MB, 16 * MB), (16 * MB, SIZE)]
    assert target.endings == [(ByteRange(16 * MB, SIZE), None)]
    nursery.cancel_scope.cancel()


async def test_an_error_is_told_and_the_next_reader_tries_again(
    server: ScriptedServer, fetcher: Fetcher, target: MemoryTarget
) -> None:
    server.script(faults.status(412))
    async with trio.open_nursery() as nursery:
        filler = DirectFiller(target, fetcher, nursery)
        filler.request(ByteRange(0, 1), None)
        await wait_all_tasks_blocked(0.01)
        ((tried, error),) = target.endings
        assert tried == ByteRange(0, PART_BYTES)
        assert isinstance(error, VersionGone)
        assert target.holds == 0
        filler.request(ByteRange(0, 1), None)
    assert target.endings[1:] == [(ByteRange(0, PART_BYTES), None)]


async def test_what_came_before_an_error_stays(
    clock: MockClock, server: ScriptedServer, fetcher: Fetcher, target: MemoryTarget
) -> None:
    server.script(faults.cut_after(3 * MB + 5), faults.status(404))
    for _ in range(2):
        async with trio.open_nursery() as nursery:
            DirectFiller(target, fetcher, nursery).request(ByteRange(0, 1), None)
    assert asked(server) == [(0, 8 * MB), (3 * MB, 8 * MB), (3 * MB + 5, 8 * MB)], "again from the block's start"
    assert [type(error) for _, error in target.endings] == [VersionGone, type(None)]
    assert target.data[: 8 * MB] == BODY[: 8 * MB]


async def test_an_unexpected_failure_is_logged_and_told(
    fetcher: Fetcher, target: MemoryTarget, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def write(offset: int, data: memoryview) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(target, "write", write)
    with caplog.at_level(logging.ERROR):
        async with trio.open_nursery() as nursery:
            DirectFiller(target, fetcher, nursery).request(ByteRange(0, 1), None)
    assert isinstance(target.endings[0][1], ZeroDivisionError)
    assert "failed unexpectedly" in caplog.text
    assert target.holds == 0


@pytest.mark.parametrize("started", [True, False])
async def test_cancelled_transfers_end_with_an_error(
    server: ScriptedServer, fetcher: Fetcher, target: MemoryTarget, started: bool
) -> None:
    """Without one, readers would ask a filler again whose nursery is gone."""
    server.script(faults.Hang(100), faults.Hang(), forever=True)
    async with trio.open_nursery() as nursery:
        DirectFiller(target, fetcher, nursery).request(ByteRange(0, 1), ByteRange(8 * MB, SIZE))
        if started:
            await wait_all_tasks_blocked(0.01)
        nursery.cancel_scope.cancel()
    assert len(target.endings) == 3
    for _, error in target.endings:
        assert isinstance(error, Stopped)
        assert "stopped" in error.message
    assert target.holds == 0


async def test_a_down_origin_is_told_after_the_read_timeout(
    clock: MockClock, server: ScriptedServer, fetcher: Fetcher, target: MemoryTarget
) -> None:
    server.kill()
    began = trio.current_time()
    async with trio.open_nursery() as nursery:
        DirectFiller(target, fetcher, nursery).request(ByteRange(0, 1), None)
    assert isinstance(target.endings[0][1], OriginUnavailable)
    assert 20 <= trio.current_time() - began < 26
