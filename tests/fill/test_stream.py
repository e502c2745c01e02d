"""Reading through a (fake) dfdaemon with the real cache: one stream a version, and what happens
when it does not flow.
"""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from d7yfs.cache.cache import Cache
from d7yfs.cache.directory import CacheDirectory
from d7yfs.cache.version import CachedVersion
from d7yfs.config.p2p import P2p
from d7yfs.errors import (
    AccessDenied,
    D7yfsError,
    ProxyUnavailable,
    ReadTimeout,
    Stopped,
    TokenWithheld,
    VersionGone,
)
from d7yfs.fetch import proxy_outage, transfer
from d7yfs.fetch.bearer_tokens import BearerTokens
from d7yfs.fetch.dragonfly_proxy import MAX_REGISTRATIONS, Proxies, Proxy
from d7yfs.fetch.dragonfly_task import MAX_DIRECT_BYTES
from d7yfs.fetch.fetcher import Fetcher
from d7yfs.fetch.transport import Transport
from d7yfs.fill import route
from d7yfs.fill.p2p_budget import Policy
from d7yfs.fill.stream import StreamFiller
from d7yfs.fs.readahead import Window
from d7yfs.objects import BLOCK_BYTES, PART_BYTES, ByteRange
from tests.cache.doubles import PromptDisk
from tests.fetch.doubles import SECRET, FakeOrigin, MemoryTarget
from tests.fill.scene import SpendingPolicy
from tests.servers import dfdaemon, faults
from tests.servers.dfdaemon import FakeDfdaemon, error, wrong_total
from tests.servers.http11 import Answer, Exchange, Fault, Request
from tests.servers.scripted import ScriptedServer

MB = BLOCK_BYTES
BIG, OTHER, SMALL = "models/m/weights.bin", "models/m/more.bin", "models/m/config.json"
TABLE = "data/table.parquet"
BODIES = {
    BIG: os.urandom(24 * MB + 17),
    OTHER: os.urandom(12 * MB + 5),
    SMALL: os.urandom(4 * MB),
    TABLE: os.urandom(32 * MB),
}
BODY = BODIES[BIG]
READ_TIMEOUT_S = 20.0


@dataclass
class World:
    """An origin, a dfdaemon in front of it, and a cache that reads through both."""

    server: ScriptedServer
    daemon: FakeDfdaemon
    origin: FakeOrigin
    proxy: Proxies
    fetcher: Fetcher
    cache: Cache
    nursery: trio.Nursery
    policy: Policy = field(default_factory=SpendingPolicy)

    async def open(self, key: str = BIG) -> CachedVersion:
        version = self.origin.version(key)
        return await self.cache.open(self.origin.identity, version, self.filler)

    def filler(self, target: object) -> StreamFiller:
        return StreamFiller(target, self.fetcher, self.nursery, self.policy)  # type: ignore[arg-type]

    def direct(self, key: str = BIG) -> list[Request]:
        """Requests that came to the origin past the daemon."""
        return [each for each in self.server.requests_for(key) if "x-dragonfly-use-p2p" not in each.headers]

    async def read_all(self, key: str = BIG, *, step: int = MB) -> bytes:
        """As a sequential reader does."""
        cached = await self.open(key)
        try:
            size = cached.version.size_bytes
            return b"".join(
                [await cached.read(ByteRange(at, min(at + step, size)), None) for at in range(0, size, step)]
            )
        finally:
            cached.drop()

    async def settled(self) -> None:
        """All transfers have ended, and all files are closed."""
        await self.settled_but(0)

    async def settled_but(self, open_files: int) -> None:
        """All transfers have ended; so many files are still open."""
        with trio.fail_after(100):
            while self.nursery.child_tasks:  # noqa: ASYNC110  # a nursery has no such event
                await trio.sleep(0.1)
        assert self.cache.statistics().open_versions == open_files
        assert self.proxy.limits.streams.borrowed_tokens == self.proxy.limits.taken == 0


@pytest.fixture
def clock() -> MockClock:
    """Jumps to the next timeout when all has been silent for longer than sockets take to answer (in
    real seconds).
    """
    return MockClock(autojump_threshold=0.1)


@pytest.fixture
def frozen() -> MockClock:
    """Stands still, so that nothing counts as silent however slow the machine is."""
    return MockClock()


@pytest.fixture
def far_inside(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader inside a file is too far from its beginning for a stream from there, as in a file of
    many gigabytes.
    """
    monkeypatch.setattr(route, "FRONT_BYTES", 4 * MB)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    directory = CacheDirectory(tmp_path / "cache", size_limit_bytes=1 << 30, min_free_bytes=0)
    directory.prepare()
    cache = Cache(directory, memory_buffer_bytes=64 * MB, read_timeout_s=READ_TIMEOUT_S, disk=PromptDisk())
    transport = Transport(connect_timeout_s=3, first_byte_timeout_s=5, idle_timeout_s=5)
    through = Transport(connect_timeout_s=3, first_byte_timeout_s=3, idle_timeout_s=5)
    async with (
        ScriptedServer(BODIES).running() as server,
        FakeDfdaemon(piece_bytes=4 * MB).running() as daemon,
        trio.open_nursery() as nursery,
    ):
        origin = FakeOrigin(server)
        proxy = Proxies([Proxy(daemon.url, through)], required=False)
        fetcher = Fetcher(origin, transport, proxy=proxy, read_timeout_s=READ_TIMEOUT_S, max_connections=8)
        yield World(server, daemon, origin, proxy, fetcher, cache, nursery)
        nursery.cancel_scope.cancel()
    await transport.aclose()
    await through.aclose()


# --- bearer tokens ---


async def test_no_bearer_token_goes_to_the_proxy(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.origin.signs = False
    assert await world.read_all() == BODY
    assert await world.read_all(OTHER) == BODIES[OTHER]
    await world.settled()
    assert world.daemon.requests == []
    assert len([record for record in caplog.records if record.levelno >= logging.WARNING]) == 1
    assert world.proxy.breaker.state == "closed"


async def test_the_user_may_let_tokens_go_to_the_proxy(world: World) -> None:
    world.origin.signs = False
    world.fetcher.tokens = BearerTokens(allowed=True)
    assert await world.read_all() == BODY
    await world.settled()
    assert all(SECRET in request.headers["authorization"] for request in world.daemon.requests)
    assert world.daemon.requests


async def test_a_required_proxy_gets_no_token_either(world: World) -> None:
    world.origin.signs = False
    world.proxy.required = True
    world.fetcher.tokens = BearerTokens(required=True)
    with pytest.raises(TokenWithheld):
        await world.read_all()
    await world.settled()
    assert world.daemon.requests == []
    assert not world.direct()


# --- the way it should be ---


async def test_a_file_is_one_rangeless_get(clock: MockClock, world: World) -> None:
    assert await world.read_all() == BODY
    await world.settled()
    (request,) = world.daemon.requests
    assert "range" not in request.headers
    assert request.absolute
    assert len(world.daemon.tasks) == 1
    assert sum(each.headers["range"] == "bytes=0-0" for each in world.server.requests) == 1
    assert world.fetcher.models.total.proxy_bytes == len(BODY)
    # A look at the header, and what was read before the stream's first byte.
    assert MB <= world.fetcher.models.total.direct_bytes < len(BODY) / 2
    assert world.server.sent_bytes[BIG] == 1 + len(BODY) + world.fetcher.models.total.direct_bytes
    assert await world.read_all() == BODY
    assert len(world.daemon.requests) == 1, "the second read is the cache's"


async def test_eight_readers_share_one_stream(clock: MockClock, world: World) -> None:
    bodies = []

    async def read() -> None:
        bodies.append(await world.read_all(step=128 << 10))

    async with trio.open_nursery() as nursery:
        for _ in range(8):
            nursery.start_soon(read)
    assert all(body == BODY for body in bodies)
    assert len(world.daemon.requests) == 1
    assert world.fetcher.models.total.direct_bytes < len(BODY) / 2


async def test_small_files_go_direct_and_whole(world: World) -> None:
    assert await world.read_all(SMALL) == BODIES[SMALL]
    assert not world.daemon.requests
    assert [each.headers["range"] for each in world.direct(SMALL)] == [f"bytes=0-{4 * MB - 1}"]


async def test_a_look_at_the_header_goes_direct(world: World) -> None:
    cached = await world.open()
    for at in (0, 1000, MB - 10):
        assert await cached.read(ByteRange(at, at + 10), None) == BODY[at : at + 10]
    assert not world.daemon.requests
    assert [each.headers["range"] for each in world.direct()] == [f"bytes=0-{MB - 1}"]
    cached.drop()


async def test_a_header_that_is_read_while_it_comes_goes_direct(world: World) -> None:
    tap = faults.Tap(128 << 10)
    world.server.script(tap)
    cached = await world.open()

    async def read_at(at: int) -> None:
        assert await cached.read(ByteRange(at, at + 10), None) == BODY[at : at + 10]

    tap.flow()
    await read_at(0)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(read_at, MB - 10)
        await wait_all_tasks_blocked()
        tap.flow(7)
    assert not world.daemon.requests
    assert [each.headers["range"] for each in world.direct()] == [f"bytes=0-{MB - 1}"]
    cached.drop()


async def test_a_look_at_the_end_goes_direct(world: World) -> None:
    cached = await world.open()
    assert await cached.read(ByteRange(len(BODY) - 22, len(BODY)), None) == BODY[-22:]
    assert not world.daemon.requests
    cached.drop()


@pytest.mark.usefixtures("far_inside")
async def test_a_reader_who_starts_inside_gets_a_stream_from_there(world: World) -> None:
    cached = await world.open()
    assert await cached.read(ByteRange(10 * MB + 5, 10 * MB + 6), None) == BODY[10 * MB + 5 : 10 * MB + 6]
    assert await cached.read(ByteRange(20 * MB, len(BODY)), None) == BODY[20 * MB :]
    assert [each.headers["range"] for each in world.daemon.requests] == [f"bytes={10 * MB}-"]
    # Now the front: what is there already is passed over.
    assert await world.read_all() == BODY
    cached.drop()
    await world.settled()
    assert all(_size(each) <= MAX_DIRECT_BYTES for each in world.direct())


async def test_of_a_model_all_is_one_stream_wherever_reading_begins(clock: MockClock, world: World) -> None:
    cached = await world.open()
    for at in (15, 3, 21, 9):
        assert await cached.read(ByteRange(at * MB, at * MB + 9), None) == BODY[at * MB : at * MB + 9]
    cached.drop()
    await world.settled()
    assert await world.read_all() == BODY
    assert ["range" in each.headers for each in world.daemon.requests] == [False]


async def test_a_reader_far_ahead_gets_small_ranges(frozen: MockClock, world: World) -> None:
    """From the origin while the budget lasts, then through the proxy."""
    stuck = faults.Hang(2 * MB)
    world.daemon.script(stuck)
    cached = await world.open()
    await cached.read(ByteRange(0, 2 * MB), None)
    await stuck.reached.wait()
    frozen.jump(0.9)  # the stream is not worth waiting for: it has brought 2 MiB a second
    assert await cached.read(ByteRange(19 * MB, 20 * MB), None) == BODY[19 * MB : 20 * MB]
    assert len(world.daemon.requests) == 1
    assert await cached.read(ByteRange(13 * MB, 23 * MB), None) == BODY[13 * MB : 23 * MB]
    ranges = [each.headers["range"] for each in world.daemon.requests[1:]]
    assert ranges
    assert all(_size(each) <= MAX_DIRECT_BYTES for each in (*world.direct(), *world.daemon.requests[1:]))
    assert all(each.headers["x-dragonfly-scheduling-policy"] == "always" for each in world.daemon.requests[1:])
    assert world.fetcher.models.total.direct_bytes == 4 * MB
    stuck.resume.set()
    cached.drop()
    frozen.autojump_threshold = 0.1
    await world.settled()
    assert await world.read_all() == BODY
    assert world.fetcher.models.total.direct_bytes == 4 * MB
    assert len([each for each in world.daemon.requests if "range" not in each.headers]) == 1


@pytest.mark.usefixtures("far_inside")
async def test_a_reader_before_the_streams_start_is_served_in_full(frozen: MockClock, world: World) -> None:
    """More than one small range is needed, and the stream will never come by."""
    stuck = faults.Hang(MB)
    world.daemon.script(stuck)
    target = MemoryTarget(world.origin.version(BIG))
    filler = world.filler(target)
    filler.request(ByteRange(12 * MB, 13 * MB), None)
    await stuck.reached.wait()
    target.has_got(5)
    while missing := target.missing(ByteRange(0, 11 * MB)):
        filler.request(ByteRange(missing[0].start, 11 * MB), None)
        await wait_all_tasks_blocked(0.05)
        assert target.missing(ByteRange(0, 11 * MB)) != missing
    assert target.data[: 5 * MB] == BODY[: 5 * MB]
    assert target.data[6 * MB : 11 * MB] == BODY[6 * MB : 11 * MB]
    assert world.fetcher.models.total.direct_bytes == 4 * MB
    assert all(_size(each) <= MAX_DIRECT_BYTES for each in (*world.direct(), *world.daemon.requests[1:]))


async def test_nobody_waits_for_a_stream_that_has_fallen_silent(clock: MockClock, world: World) -> None:
    stuck = faults.Hang(10 * MB)
    world.daemon.script(stuck)
    cached = await world.open()
    await cached.read(ByteRange(0, 9 * MB), None)
    await stuck.reached.wait()
    await trio.sleep(3.5)
    before = trio.current_time()
    assert await cached.read(ByteRange(11 * MB, 12 * MB), None) == BODY[11 * MB : 12 * MB]
    assert trio.current_time() - before < 1
    cached.drop()


def _size(request: Request) -> int:
    first, last = request.headers["range"].removeprefix("bytes=").split("-")
    return int(last) + 1 - int(first)


# --- a file that is no model ---


def streams(world: World) -> list[str]:
    """The ranges of the streams that were begun; "" is the whole."""
    ranges = [each.headers.get("range", "") for each in world.daemon.requests]
    return [each for each in ranges if not each or each.endswith("-")]


async def test_sparse_reads_stay_ranges(world: World) -> None:
    cached = await world.open(TABLE)
    for at in (9, 3, 17, 25, 21, 14, 26, 6):
        assert await cached.read(ByteRange(at * MB + 5, at * MB + 9), None) == BODIES[TABLE][at * MB + 5 : at * MB + 9]
    cached.drop()
    assert world.fetcher.counters.direct_bytes_by_reason == {"sparse": 4 * MB}
    ranges = [each.headers["range"] for each in world.daemon.requests]
    assert ranges == [f"bytes={at * MB}-{stop * MB - 1}" for at, stop in ((21, 24), (14, 16), (26, 28), (6, 8))]


async def test_the_budget_outlives_the_file_being_closed(world: World) -> None:
    for at in range(8, 14):
        cached = await world.open(TABLE)
        await cached.read(ByteRange(at * MB, at * MB + 9), None)
        cached.drop()
    assert world.fetcher.models.total.direct_bytes == 4 * MB
    assert len(world.daemon.requests) == 1


async def test_a_sequential_reader_gets_a_stream(clock: MockClock, world: World) -> None:
    cached = await world.open(TABLE)
    window = Window(len(BODIES[TABLE]))
    for at in range(0, len(BODIES[TABLE]), MB // 2):
        ahead = window.plan(at, MB // 2, lambda: cached.window_bytes)
        assert await cached.read(ByteRange(at, at + MB // 2), ahead) == BODIES[TABLE][at : at + MB // 2]
    cached.drop()
    await world.settled()
    assert streams(world) == [""]
    assert len(world.daemon.requests) == 1
    assert world.fetcher.models.total.direct_bytes == 4 * MB


async def test_filling_is_one_stream(clock: MockClock, world: World) -> None:
    cached = await world.open(TABLE)
    assert await cached.read(ByteRange(20 * MB, 20 * MB + 9), None) == BODIES[TABLE][20 * MB : 20 * MB + 9]
    cached.fill()
    cached.fill()
    await world.settled_but(1)
    cached.fill()
    assert cached.is_whole
    cached.drop()
    assert await world.read_all(TABLE) == BODIES[TABLE]
    assert streams(world) == [""]
    assert len(world.daemon.requests) == 1


@pytest.mark.usefixtures("far_inside")
async def test_filling_brings_what_lies_before_a_stream_too(clock: MockClock, world: World) -> None:
    cached = await world.open()
    assert await cached.read(ByteRange(12 * MB, 12 * MB + 9), None) == BODY[12 * MB : 12 * MB + 9]
    cached.fill()
    await world.settled_but(1)
    assert cached.is_whole
    cached.drop()
    assert await world.read_all() == BODY
    assert [each.headers["range"] for each in world.daemon.requests] == [
        f"bytes={12 * MB}-",
        f"bytes=0-{12 * MB - 1}",
    ]


async def test_filling_goes_on_from_the_origin_when_the_proxy_fails(clock: MockClock, world: World) -> None:
    world.daemon.script(faults.cut_after(9 * MB), faults.drop, forever=True)
    cached = await world.open()
    cached.fill()
    await world.settled_but(1)
    assert cached.is_whole
    cached.drop()
    assert await world.read_all() == BODY


async def test_filling_what_is_nearly_whole_is_a_range(clock: MockClock, world: World) -> None:
    target = MemoryTarget(world.origin.version(BIG))
    target.has_got(*range(20))
    target.has_got(24)
    world.filler(target).fill()
    await wait_all_tasks_blocked(0.1)
    assert target.data[20 * MB : 24 * MB] == BODY[20 * MB : 24 * MB]
    assert not world.daemon.requests
    assert world.fetcher.counters.direct_bytes_by_reason == {"fill": 4 * MB}
    target = MemoryTarget(world.origin.version(BIG))
    target.has_got(*range(21))
    world.filler(target).fill()
    await wait_all_tasks_blocked(0.1)
    assert target.data[21 * MB :] == BODY[21 * MB :]
    assert {each.headers["range"] for each in world.daemon.requests} == {
        f"bytes={21 * MB}-{24 * MB - 1}",
        f"bytes={24 * MB}-",
    }


# --- always ---


@pytest.fixture
def always(world: World) -> World:
    world.policy = Policy(P2p.parse("always"))
    return world


async def test_always_means_every_byte(clock: MockClock, always: World) -> None:
    cached = await always.open()
    assert await cached.read(ByteRange(0, 10), None) == BODY[:10]
    assert await cached.read(ByteRange(len(BODY) - 22, len(BODY)), None) == BODY[-22:]
    assert streams(always) == [""], "a model's header comes with the whole, its end too: one task"
    cached.drop()
    for key in (BIG, OTHER, SMALL, TABLE):
        assert await always.read_all(key) == BODIES[key]
    await always.settled()
    assert all(not always.direct(key) for key in BODIES)
    assert always.fetcher.models.total.direct_bytes == 0
    assert len(always.daemon.tasks) == 4
    small = [each for each in always.daemon.requests if SMALL in each.target]
    assert [each.headers.get("range", "") for each in small] == [""]
    assert small[0].headers["x-dragonfly-scheduling-policy"] == "always"


async def test_always_fetches_small_files_ahead_through_the_proxy_too(clock: MockClock, always: World) -> None:
    cached = await always.open(SMALL)
    cached.fill()
    cached.drop()
    await always.settled()
    assert len(always.daemon.requests) == 1
    assert not always.direct(SMALL)


@pytest.mark.parametrize("key", [BIG, SMALL, TABLE])
@pytest.mark.parametrize("name", ["dead", "silent", "dead in mid-body", "500 dfdaemon", "wrong total", "403 backend"])
async def test_always_falls_back_when_the_proxy_fails(clock: MockClock, always: World, key: str, name: str) -> None:
    if name == "dead":
        always.daemon.kill()
    else:
        always.daemon.script(FAILURES[name][0], forever=True)
    before = trio.current_time()
    assert await always.read_all(key) == BODIES[key]
    await always.settled()
    assert trio.current_time() - before < READ_TIMEOUT_S
    assert always.fetcher.models.total.direct_bytes > 0 or (key != BIG and "mid-body" in name)


@pytest.mark.parametrize(
    ("held_s", "moves", "waits"), [(2, False, True), (4, False, False), (4, True, True), (6, True, False)]
)
async def test_waiting_for_a_turn_at_the_scheduler_is_no_failure_while_others_get_theirs(
    clock: MockClock, always: World, held_s: int, moves: bool, waits: bool
) -> None:
    """A quarter of the readers' patience, here 5 s; a scheduler that brings nobody anything is left
    after 3.
    """
    limits = always.proxy.limits
    for _ in range(MAX_REGISTRATIONS):
        await limits.take(lambda: True)

    async def release() -> None:
        for _ in range(held_s):
            await trio.sleep(1)
            if moves:
                limits.moved_at = trio.current_time()
        for _ in range(MAX_REGISTRATIONS):
            limits.give_back()

    always.nursery.start_soon(release)
    assert await always.read_all(SMALL) == BODIES[SMALL]
    assert bool(always.direct(SMALL)) == (not waits)
    assert always.proxy.trips == 0


async def test_always_without_fallback_never_goes_to_the_origin(clock: MockClock, always: World) -> None:
    always.proxy.required = True
    always.daemon.script(error(500, "dfdaemon"), forever=True)
    for key in (SMALL, BIG):
        with pytest.raises((ProxyUnavailable, ReadTimeout)):
            await always.read_all(key)
        assert not always.direct(key)


# --- when it fails ---

FAILURES: dict[str, tuple[Fault, bool]] = {
    # name: what the proxy does, and whether it is to blame
    "silent": (faults.Hang(), True),
    "hung up": (faults.drop, True),
    "reset in mid-body": (faults.reset_after(5 * MB), True),
    "dead in mid-body": (faults.cut_after(5 * MB), True),
    "silent in mid-body": (faults.Hang(5 * MB), True),
    "500 dfdaemon": (error(500, "dfdaemon"), True),
    "429 proxy": (error(429, "proxy"), True),
    "400 proxy": (error(400, "proxy"), True),
    "502 of another proxy": (faults.status(502), True),
    "not http": (faults.raw(b"SSH-2.0\r\n\r\n"), False),
    "wrong total": (wrong_total, False),
    "another size": (faults.longer_body(1), False),
    "another version": (faults.other_etag(), False),
    "gzip": (faults.gzipped, False),
    "redirect": (faults.status(302), True),
    "500 backend": (error(500, "backend"), False),
    "403 backend": (error(403, "backend"), False),
    "404 backend": (error(404, "backend"), False),
    "412 backend": (error(412, "backend"), False),
    "400 backend": (error(400, "backend"), False),
}


@pytest.mark.parametrize("name", FAILURES)
async def test_a_failing_proxy_falls_back_to_the_origin(
    clock: MockClock, world: World, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    fault, blamed = FAILURES[name]
    world.daemon.script(fault, forever=True)
    before = trio.current_time()
    assert await world.read_all(OTHER) == BODIES[OTHER]
    await world.settled()
    assert world.proxy.breaker.trips == blamed
    assert len(world.daemon.requests) <= 3
    assert trio.current_time() - before < READ_TIMEOUT_S
    brought = world.fetcher.models.total.proxy_bytes
    assert (brought > 0) == ("mid-body" in name)
    if brought:
        first = min(int(each.headers["range"][6:].split("-")[0]) for each in world.direct(OTHER)[-2:])
        assert first >= 4 * MB, "goes on at the offset reached"
    assert "reading on from the origin" in caplog.text
    assert SECRET not in caplog.text


async def test_a_dead_proxy_costs_one_try(clock: MockClock, world: World) -> None:
    world.daemon.kill()
    for key in (BIG, OTHER):
        assert await world.read_all(key) == BODIES[key]
    await world.settled()
    assert world.fetcher.counters.proxy_requests == 1, "the breaker is open"
    await trio.sleep(6)
    for body in (world.server.objects[BIG][::-1], world.server.objects[BIG][1:]):
        world.server.put(BIG, body)
        assert await world.read_all() == body
    assert world.fetcher.counters.proxy_requests == 2, "one probe, and the breaker is open for longer"
    assert world.proxy.breaker.trips == 2


async def test_the_proxy_comes_back(clock: MockClock, world: World) -> None:
    world.daemon.script(faults.drop)
    assert await world.read_all() == BODY
    assert not world.proxy.usable
    await trio.sleep(6)
    assert await world.read_all(OTHER) == BODIES[OTHER]
    await world.settled()
    assert world.proxy.usable
    assert len(world.daemon.requests) == 2
    assert world.fetcher.models.total.proxy_bytes == len(BODIES[OTHER])


async def test_one_file_probes_while_others_read_on_direct(clock: MockClock, world: World) -> None:
    world.daemon.script(faults.drop, faults.Hang())
    assert await world.read_all(OTHER) == BODIES[OTHER]
    assert world.proxy.breaker.trips == 1
    await trio.sleep(6)
    for number in range(5):
        world.server.put(f"models/{number}.bin", BODY[number : 9 * MB])

    async def read(number: int) -> None:
        assert await world.read_all(f"models/{number}.bin") == BODY[number : 9 * MB]

    async with trio.open_nursery() as nursery:
        for number in range(5):
            nursery.start_soon(read, number)
    await world.settled()
    assert len(world.daemon.requests) == 2
    assert world.proxy.breaker.trips == 2


async def test_a_fill_straight_from_the_store_goes_back_to_a_proxy_that_answers_again(
    frozen: MockClock, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stream brings the rest. What is under way straight from the store then goes on."""
    for name in ("LEAST_WINDOW_BYTES", "MOST_WINDOW_BYTES"):
        monkeypatch.setattr(transfer, name, 4 * MB)
    monkeypatch.setattr(proxy_outage, "PREFETCH_HELD_S", 0.0)
    answers = trio.Semaphore(0)

    async def slow_for_us(exchange: Exchange, answer: Answer) -> None:
        if "x-dragonfly-use-p2p" not in exchange.request.headers:
            await answers.acquire()
        await exchange.deliver(answer)

    world.daemon.script(faults.drop)
    world.server.script(slow_for_us, forever=True)
    cached = await world.open(TABLE)
    cached.fill()
    while len(world.direct(TABLE)) < 4:
        await wait_all_tasks_blocked(0.1)
    assert world.proxy.down
    frozen.jump(3)
    for _ in range(4):
        answers.release()
    while cached.cached_bytes < len(BODIES[TABLE]):  # the stream brings the part that waits, too
        await wait_all_tasks_blocked(0.1)
    assert [each.headers.get("range", "") for each in world.daemon.requests] == ["", f"bytes={PART_BYTES}-"]
    assert not world.proxy.down
    for _ in range(4):
        answers.release()
    await wait_all_tasks_blocked(0.1)
    assert len(world.direct(TABLE)) <= 8
    cached.drop()
    assert await world.read_all(TABLE) == BODIES[TABLE]


async def test_no_reader_waits_for_a_probe(clock: MockClock, world: World) -> None:
    world.daemon.script(faults.drop, faults.Hang())
    assert await world.read_all(OTHER) == BODIES[OTHER]
    await trio.sleep(6)
    began = trio.current_time()
    cached = await world.open()
    assert await cached.read(ByteRange(2 * MB, 9 * MB), None) == BODY[2 * MB : 9 * MB]
    assert trio.current_time() - began < 1
    assert len(world.daemon.requests) == 2, "it is tried"
    cached.drop()
    await world.settled()


async def test_a_refused_signature_is_made_anew_once(clock: MockClock, world: World) -> None:
    world.daemon.script(error(403, "backend"))
    assert await world.read_all() == BODY
    await world.settled()
    assert [fresh for presigned, fresh in world.origin.signed if presigned] == [False, True]
    assert world.fetcher.models.total.proxy_bytes == len(BODY)
    one, other = world.daemon.requests
    assert one.target != other.target
    assert len(world.daemon.tasks) == 1


async def test_a_refusal_that_is_the_origins_own(clock: MockClock, world: World) -> None:
    world.server.script(faults.status(403), forever=True)
    with pytest.raises(AccessDenied):
        await world.read_all()
    assert world.proxy.breaker.trips == 0


async def test_an_unexpected_failure_falls_back_too(
    clock: MockClock, world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def stream(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(world.fetcher, "stream", stream)
    assert await world.read_all() == BODY
    assert "failed unexpectedly" in caplog.text


# --- versions ---


async def test_a_known_task_never_serves_old_bytes_for_a_new_version(world: World) -> None:
    assert await world.read_all() == BODY
    new = os.urandom(len(BODY))
    world.server.put(BIG, new)
    assert await world.read_all() == new
    await world.settled()
    assert len(world.daemon.tasks) == 2
    assert world.fetcher.models.total.proxy_bytes == 2 * len(BODY)


async def test_a_daemon_that_knows_no_content_ids_never_serves_old_bytes_either(
    clock: MockClock, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def by_url(request: Request) -> str:
        return request.target.partition("?")[0]

    monkeypatch.setattr(dfdaemon, "identify", by_url)
    assert await world.read_all() == BODY
    new = os.urandom(len(BODY))
    world.server.put(BIG, new)
    assert await world.read_all() == new
    assert len(world.daemon.tasks) == 1, "the task is the old one"


@pytest.mark.parametrize("same_size", [True, False])
async def test_an_object_replaced_before_it_is_read(clock: MockClock, world: World, same_size: bool) -> None:
    cached = await world.open()
    assert await cached.read(ByteRange(0, 10), None) == BODY[:10]
    world.server.put(BIG, os.urandom(len(BODY) if same_size else MB))
    with pytest.raises(VersionGone):
        await cached.read(ByteRange(2 * MB, 3 * MB), None)
    cached.drop()
    await world.settled()
    assert not world.daemon.tasks
    assert world.proxy.breaker.trips == 0


async def test_an_object_replaced_during_the_stream_is_never_mixed(clock: MockClock, world: World) -> None:
    stuck = faults.Hang(4 * MB)
    world.daemon.script(stuck)
    cached = await world.open()
    await cached.read(ByteRange(0, 3 * MB), None)
    world.server.put(BIG, os.urandom(len(BODY)))
    stuck.resume.set()
    got = bytearray()

    async def read_on() -> None:
        for at in range(0, len(BODY), MB):
            got.extend(await cached.read(ByteRange(at, min(at + MB, len(BODY))), None))

    with pytest.raises(VersionGone):
        await read_on()
    assert 3 * MB <= len(got) < len(BODY)
    assert got == BODY[: len(got)]
    cached.drop()


# --- a required proxy ---


@pytest.fixture
def required(world: World) -> World:
    world.proxy.required = True
    return world


async def test_a_required_proxy_brings_everything_but_small_files(required: World) -> None:
    assert await required.read_all() == BODY
    cached = await required.open(OTHER)
    assert await cached.read(ByteRange(12 * MB, 12 * MB + 5), None) == BODIES[OTHER][-5:]
    cached.drop()
    assert required.direct() == required.direct(OTHER) == []
    assert await required.read_all(SMALL) == BODIES[SMALL]
    assert len(required.direct(SMALL)) == 1


@pytest.mark.parametrize("name", ["dead", "silent", "500 dfdaemon", "another version", "wrong total"])  # fmt: skip
async def test_without_fallback_the_failure_is_the_readers(clock: MockClock, required: World, name: str) -> None:
    if name == "dead":
        required.daemon.kill()
    else:
        required.daemon.script(FAILURES[name][0], forever=True)
    before = trio.current_time()
    with pytest.raises(D7yfsError) as caught:
        await required.read_all()
    blamed = name == "dead" or FAILURES[name][1]
    if blamed:
        assert isinstance(caught.value, ProxyUnavailable | ReadTimeout)
        assert READ_TIMEOUT_S <= trio.current_time() - before <= 3 * READ_TIMEOUT_S
    assert not required.direct()


async def test_without_fallback_readers_go_on_when_the_proxy_does(clock: MockClock, required: World) -> None:
    required.daemon.script(*(faults.drop for _ in range(6)), faults.Hang(5 * MB), faults.cut_after(5 * MB))
    assert await required.read_all() == BODY
    assert not required.direct()


async def test_a_reader_far_ahead_of_a_required_stream(required: World) -> None:
    stuck = faults.Hang(1000)
    required.daemon.script(stuck)
    cached = await required.open()
    required.nursery.start_soon(cached.read, ByteRange(0, 2 * MB), None)
    await stuck.reached.wait()
    with trio.fail_after(5):
        assert await cached.read(ByteRange(20 * MB, 21 * MB), None) == BODY[20 * MB : 21 * MB]
    assert not required.direct()
    ranges = [each.headers["range"] for each in required.daemon.requests if "range" in each.headers]
    assert f"bytes={20 * MB}-{24 * MB - 1}" in ranges
    stuck.resume.set()


# --- no room, no nursery ---


async def test_a_full_cache_is_read_in_what_is_wanted(world: World) -> None:
    target = MemoryTarget(world.origin.version(BIG), keeps=False)
    filler = world.filler(target)
    filler.request(ByteRange(10 * MB, 11 * MB), ByteRange(11 * MB, 19 * MB))
    await wait_all_tasks_blocked(0.01)
    assert target.endings == [(ByteRange(10 * MB, 11 * MB), None)]
    assert not world.daemon.requests
    world.proxy.required = True
    filler = world.filler(target)
    filler.request(ByteRange(12 * MB, 13 * MB), None)
    await wait_all_tasks_blocked(0.05)
    assert len(world.daemon.requests) == len(world.direct()) == 1
    assert target.written == 2 * MB


async def test_in_a_full_cache_the_first_byte_that_lacks_is_asked_for_whatever_is_there_before_it(world: World) -> None:
    """Little may still come straight from the store: that little was the beginning of the range,
    which is there already.
    """
    target = MemoryTarget(world.origin.version(BIG), keeps=False)
    target.has_got(8)
    world.policy.spend(target.version, 3 * MB)
    world.filler(target).request(ByteRange(8 * MB, 12 * MB), None)
    await wait_all_tasks_blocked(0.05)
    ((tried, error),) = target.endings
    assert error is None
    assert tried.start == 9 * MB


@pytest.mark.usefixtures("far_inside")
async def test_a_cache_that_fills_up_ends_the_stream(world: World) -> None:
    stuck = faults.Hang(5 * MB)
    world.daemon.script(stuck)
    target = MemoryTarget(world.origin.version(BIG))
    filler = world.filler(target)
    filler.request(ByteRange(2 * MB, 3 * MB), None)
    await stuck.reached.wait()
    await wait_all_tasks_blocked(0.01)
    target.keeps = False
    stuck.resume.set()
    await wait_all_tasks_blocked(0.01)
    assert (target.version.whole, None) in target.endings
    assert target.holds == 0
    assert world.proxy.breaker.trips == 0
    # There is room again: a new stream from where the reader is.
    target.keeps = True
    filler.request(ByteRange(10 * MB, 11 * MB), None)
    await wait_all_tasks_blocked(0.05)
    assert [each.headers.get("range") for each in world.daemon.requests] == [None, f"bytes={10 * MB}-"]
    assert target.data[10 * MB :] == BODY[10 * MB :]


async def test_a_cancelled_stream_ends_with_an_error(world: World) -> None:
    stuck = faults.Hang(5 * MB)
    world.daemon.script(stuck)
    target = MemoryTarget(world.origin.version(BIG))
    async with trio.open_nursery() as nursery:
        StreamFiller(target, world.fetcher, nursery, world.policy).request(ByteRange(0, 2 * MB), None)
        await stuck.reached.wait()
        nursery.cancel_scope.cancel()
    ((_, failure),) = [each for each in target.endings if each[0] == target.version.whole]
    assert isinstance(failure, Stopped)
    assert target.holds == 0


async def test_a_prefetch_waits_for_the_stream_but_not_for_a_broken_one(clock: MockClock, world: World) -> None:
    target = MemoryTarget(world.origin.version(BIG))
    filler = world.filler(target)
    filler.prefetch(ByteRange(8 * MB, 16 * MB))
    await wait_all_tasks_blocked(0.01)
    assert not world.server.requests
    world.proxy.breaker.record_failure(trio.current_time())
    filler.prefetch(ByteRange(8 * MB, 16 * MB))
    await trio.sleep(15)
    assert sum(_size(each) for each in world.direct()) == PART_BYTES
