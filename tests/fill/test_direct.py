"""The direct filler: every block once, in parts, and every ending told."""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncIterator

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from d7yfs.errors import ObjectArchived, OriginUnavailable, Stopped
from d7yfs.fetch.fetcher import Fetcher
from d7yfs.fetch.transfer import SEAM_BYTES
from d7yfs.fetch.transport import Transport
from d7yfs.fill.direct import DirectFiller
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
    check(target, ByteRange(9 * MB, 10 * MB))
    async with trio.open_nursery() as nursery:
        DirectFiller(target, fetcher, nursery).request(ByteRange(11 * MB, SIZE), None)
    assert asked(server)[1:] == [(11 * MB, 12 * MB), (12 * MB, 16 * MB), (16 * MB, 20 * MB), (20 * MB, SIZE)]
    assert target.data[11 * MB :] == BODY[11 * MB :]


async def test_a_small_object_comes_whole(server: ScriptedServer, fetcher: Fetcher) -> None:
    server.put("small", BODY[: 4 * MB])
    target = MemoryTarget(FakeOrigin(server).version("small"))
    async with trio.open_nursery() as nursery:
        DirectFiller(target, fetcher, nursery).request(ByteRange(3 * MB, 3 * MB + 1), None)
    assert target.data == BODY[: 4 * MB]


async def test_the_beginning_brings_a_little_more(fetcher: Fetcher, target: MemoryTarget) -> None:
    async with trio.open_nursery() as nursery:
        DirectFiller(target, fetcher, nursery).request(ByteRange(0, 1), None)
    check(target, ByteRange(0, 2 * MB))


async def test_parts_grow_with_what_was_asked_for(server: ScriptedServer, fetcher: Fetcher) -> None:
    body = bytes(256 * MB)
    server.put("large", body)
    target = MemoryTarget(FakeOrigin(server).version("large"))
    async with trio.open_nursery() as nursery:
        filler = DirectFiller(target, fetcher, nursery)
        for start in range(0, len(body), 32 * MB):
            filler.prefetch(ByteRange(start, start + 32 * MB))
        nursery.cancel_scope.cancel()
    sizes = [tried.size // MB for tried, _ in sorted(target.endings, key=lambda ending: ending[0])]
    assert sizes == [2] * 16 + [4] * 24 + [8] * 16


async def test_filling_keeps_no_more_under_way_than_the_window(
    server: ScriptedServer, fetcher: Fetcher, nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("d7yfs.fetch.transfer.LEAST_WINDOW_BYTES", 4 * MB)
    server.script(faults.Hang(), forever=True)
    target = MemoryTarget(FakeOrigin(server).version(KEY))
    filler = DirectFiller(target, fetcher, nursery)
    filler.fill()
    filler.fill()
    await wait_all_tasks_blocked(0.01)
    under_way = target.holds - 1
    assert 4 * MB <= under_way * 2 * MB <= 4 * MB + PART_BYTES
    nursery.cancel_scope.cancel()


async def test_filling_brings_all_that_is_missing(
    server: ScriptedServer, fetcher: Fetcher, target: MemoryTarget
) -> None:
    target.has_got(3, 4)
    async with trio.open_nursery() as nursery:
        DirectFiller(target, fetcher, nursery).fill()
    assert not target.missing(ByteRange(0, SIZE))
    assert target.written == SIZE - 2 * MB
    assert target.holds == 0


async def test_filling_stops_when_nobody_wants_it_and_goes_on_when_somebody_does(
    server: ScriptedServer, fetcher: Fetcher, target: MemoryTarget, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with trio.open_nursery() as nursery:
        filler = DirectFiller(target, fetcher, nursery)
        filler.fill()
        filler.stop_filling()
    assert (server.requests, target.written, target.holds) == ([], 0, 0)
    assert "fill broken off: 0 bytes by origin" in caplog.text
    assert fetcher.journal.route_of(target.version) is None
    async with trio.open_nursery() as nursery:
        filler = DirectFiller(target, fetcher, nursery)
        filler.stop_filling()
        filler.fill()
    assert target.written == SIZE
    assert f"fill complete: {SIZE} bytes by origin" in caplog.text
    assert fetcher.journal.route_of(target.version) == "origin"


async def test_filling_stops_when_the_origin_fails(
    server: ScriptedServer, fetcher: Fetcher, target: MemoryTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("d7yfs.fetch.transfer.LEAST_WINDOW_BYTES", 2 * MB)
    server.script(faults.archived, forever=True)
    async with trio.open_nursery() as nursery:
        DirectFiller(target, fetcher, nursery).fill()
    assert len(server.requests) <= 8
    assert target.holds == 0


async def test_what_is_there_is_not_asked_for(server: ScriptedServer, fetcher: Fetcher, target: MemoryTarget) -> None:
    target.has_got(0, 2, 3, 6)
    async with trio.open_nursery() as nursery:
        DirectFiller(target, fetcher, nursery).request(ByteRange(1, 8 * MB), None)
    check(target, ByteRange(MB, 2 * MB), ByteRange(4 * MB, 6 * MB), ByteRange(7 * MB, 8 * MB))


async def test_ahead(server: ScriptedServer, fetcher: Fetcher, target: MemoryTarget) -> None:
    async with trio.open_nursery() as nursery:
        DirectFiller(target, fetcher, nursery).request(ByteRange(0, 1), ByteRange(16 * MB, SIZE))
    check(
        target, ByteRange(0, 2 * MB), ByteRange(16 * MB, 18 * MB), ByteRange(18 * MB, 20 * MB), ByteRange(20 * MB, SIZE)
    )


async def test_single_flight(server: ScriptedServer, fetcher: Fetcher, target: MemoryTarget) -> None:
    async with trio.open_nursery() as nursery:
        filler = DirectFiller(target, fetcher, nursery)
        filler.prefetch(ByteRange(8 * MB, 16 * MB))
        for offset in (0, 7 * MB, 8 * MB, 15 * MB, 16 * MB):
            for _ in range(8):
                filler.request(ByteRange(offset, offset + 1), ByteRange(0, SIZE))
    assert asked(server) == [*((n * MB, n * MB + 2 * MB) for n in range(0, 20, 2)), (20 * MB, SIZE)]
    assert target.data == BODY
    assert target.written == SIZE


async def test_a_range_around_one_under_way(server: ScriptedServer, fetcher: Fetcher, target: MemoryTarget) -> None:
    async with trio.open_nursery() as nursery:
        filler = DirectFiller(target, fetcher, nursery)
        filler.fetch(ByteRange(3 * MB, 4 * MB), urgent=True)
        filler.request(ByteRange(2 * MB, 6 * MB), None)
    assert asked(server) == [(2 * MB, 3 * MB), (3 * MB, 4 * MB), (4 * MB, 6 * MB)]


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
    filler.prefetch(ByteRange(0, 2 * MB))
    filler.prefetch(ByteRange(8 * MB, 10 * MB))
    await wait_all_tasks_blocked(0.01)
    filler.prefetch(ByteRange(16 * MB, 18 * MB))
    await wait_all_tasks_blocked(0.01)
    assert len(server.requests) == 2
    filler.request(ByteRange(17 * MB, 18 * MB), None)
    await wait_all_tasks_blocked(0.01)
    assert asked(server) == [(0, 2 * MB), (8 * MB, 10 * MB), (16 * MB, 18 * MB)]
    assert target.endings == [(ByteRange(16 * MB, 18 * MB), None)]
    nursery.cancel_scope.cancel()


async def test_an_error_is_told_and_the_next_reader_tries_again(
    server: ScriptedServer, fetcher: Fetcher, target: MemoryTarget
) -> None:
    server.script(faults.archived)
    async with trio.open_nursery() as nursery:
        filler = DirectFiller(target, fetcher, nursery)
        filler.request(ByteRange(0, 1), None)
        await wait_all_tasks_blocked(0.01)
        ((tried, error),) = target.endings
        assert tried == ByteRange(0, 2 * MB)
        assert isinstance(error, ObjectArchived)
        assert target.holds == 0
        filler.request(ByteRange(0, 1), None)
    assert target.endings[1:] == [(ByteRange(0, 2 * MB), None)]


async def test_what_came_before_an_error_is_fetched_again(
    clock: MockClock, server: ScriptedServer, fetcher: Fetcher, target: MemoryTarget
) -> None:
    """It was cut off, and no later connection has proved it."""
    server.script(faults.cut_after(MB + 5), faults.archived)
    for _ in range(2):
        async with trio.open_nursery() as nursery:
            DirectFiller(target, fetcher, nursery).request(ByteRange(0, 1), None)
    assert asked(server) == [(0, 2 * MB), (0, 2 * MB), (MB + 5 - SEAM_BYTES, 2 * MB)]
    assert [type(error) for _, error in target.endings] == [ObjectArchived, type(None)]
    assert target.data[: 2 * MB] == BODY[: 2 * MB]


async def test_an_unexpected_failure_is_logged_and_told(
    fetcher: Fetcher, target: MemoryTarget, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def write(offset: int, data: memoryview) -> None:
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
    server.script(faults.Hang(10), faults.Hang(), forever=True)
    async with trio.open_nursery() as nursery:
        DirectFiller(target, fetcher, nursery).request(ByteRange(0, 1), ByteRange(18 * MB, SIZE))
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
