"""Files that a (fake) dfdaemon hands over on its socket, with the real cache: what is believed,
what is kept, and what follows failures.
"""

from __future__ import annotations

import gc
import logging
import os
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from d7yfs.cache.cache import Cache
from d7yfs.cache.directory import CacheDirectory
from d7yfs.cache.version import CachedVersion
from d7yfs.config.p2p import P2p
from d7yfs.errors import ProxyUnavailable
from d7yfs.fetch.dragonfly_proxy import MAX_REGISTRATIONS, Limits, Proxies, Proxy
from d7yfs.fetch.dragonfly_task import TaskOptions
from d7yfs.fetch.fetcher import Fetcher
from d7yfs.fetch.transport import Transport
from d7yfs.fill.dfdaemon_socket import DfdaemonSocket
from d7yfs.fill.handover import Handover, Verify, certificates_in
from d7yfs.fill.p2p_budget import Policy
from d7yfs.fill.stream import StreamFiller
from d7yfs.objects import BLOCK_BYTES, ByteRange
from tests.cache.doubles import PromptDisk
from tests.fetch.doubles import SECRET, FakeOrigin
from tests.fill.scene import SpendingPolicy
from tests.servers.dfdaemon import FakeDfdaemon
from tests.servers.dfdaemon_socket import FakeDfdaemonSocket, Fault
from tests.servers.http11 import Request
from tests.servers.scripted import ScriptedServer

MB = BLOCK_BYTES
BIG, OTHER, SMALL = "models/m/weights.bin", "models/m/more.bin", "models/m/config.json"
BODIES = {BIG: os.urandom(24 * MB + 17), OTHER: os.urandom(12 * MB + 5), SMALL: os.urandom(2 * MB)}
BODY = BODIES[BIG]


@dataclass
class World:
    """An origin, a dfdaemon next to us, and a cache on its file system."""

    server: ScriptedServer
    daemon: FakeDfdaemonSocket
    origin: FakeOrigin
    fetcher: Fetcher
    handover: Handover
    cache: Cache
    path: Path
    nursery: trio.Nursery
    policy: Policy

    async def open(self, key: str = BIG, cache: Cache | None = None) -> CachedVersion:
        version = self.origin.version(key)
        return await (cache or self.cache).open(self.origin.identity, version, self._new_filler)

    def _new_filler(self, target: CachedVersion) -> StreamFiller:
        return StreamFiller(target, self.fetcher, self.nursery, self.policy, self.handover)

    def direct_bytes(self) -> int:
        return self.fetcher.models.total.direct_bytes

    def by_daemon(self, key: str = BIG) -> list[Request]:
        """Requests that dfdaemon made."""
        return [each for each in self.server.requests_for(key) if "x-amz-signature" in each.target.lower()]

    async def read_all(self, key: str = BIG, *, cache: Cache | None = None, step: int = MB) -> bytes:
        """As a sequential reader does."""
        cached = await self.open(key, cache)
        try:
            size = cached.version.size_bytes
            with trio.fail_after(100):
                return b"".join(
                    [await cached.read(ByteRange(at, min(at + step, size)), None) for at in range(0, size, step)]
                )
        finally:
            cached.drop()

    async def fill(self, key: str = BIG) -> bytes:
        """Fill first, then read: nothing is to be fetched for the reader's sake."""
        cached = await self.open(key)
        try:
            with trio.fail_after(100):
                await cached.fill_whole()
        finally:
            cached.drop()
        return await self.read_all(key)

    async def settled(self, *, poll_s: float = 0.01) -> None:
        """All transfers have ended. Every poll of a clock that jumps takes its threshold."""
        with trio.fail_after(100):
            while self.nursery.child_tasks:  # noqa: ASYNC110  # a nursery has no such event
                await trio.sleep(poll_s)
        assert self.cache.statistics().open_versions == 0

    async def settled_but(self, cached: CachedVersion) -> None:
        """All transfers have ended; the caller still holds `cached`."""
        with trio.fail_after(100):
            while cached.holds > 1:  # noqa: ASYNC110  # as above
                await trio.sleep(0.01)

    def file(self, suffix: str) -> Path:
        (found,) = self.path.glob(f"v2/?/*{suffix}")
        return found

    def incoming(self) -> list[Path]:
        return list(self.path.glob("v2/incoming/*"))

    def new_cache(self) -> Cache:
        """Another daemon's, or the same after a restart."""
        return _cache(self.path)


def _cache(path: Path) -> Cache:
    directory = CacheDirectory(path, size_limit_bytes=1 << 30, min_free_bytes=0)
    directory.prepare()
    return Cache(directory, memory_buffer_bytes=64 * MB, read_timeout_s=20, disk=PromptDisk())


@pytest.fixture
def clock() -> MockClock:
    """Jumps when all has been silent for longer than the daemon's threads take to answer (in real
    seconds).
    """
    return MockClock(autojump_threshold=0.5)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    transport = Transport(connect_timeout_s=3, first_byte_timeout_s=5, idle_timeout_s=5)
    async with ScriptedServer(BODIES).running() as server, trio.open_nursery() as nursery:
        with FakeDfdaemonSocket(tmp_path / "df") as daemon:
            origin = FakeOrigin(server)
            fetcher = Fetcher(origin, transport, proxy=None, read_timeout_s=20, max_connections=8)
            policy = SpendingPolicy()
            handover = Handover(DfdaemonSocket(daemon.url), fetcher, options=TaskOptions(), limits=Limits())
            path = tmp_path / "cache"
            yield World(server, daemon, origin, fetcher, handover, _cache(path), path, nursery, policy)
            nursery.cancel_scope.cancel()
            handover.close()
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(daemon.stop)
    await transport.aclose()
    # grpc's own cycles, whose sockets must not be found by the next test
    gc.collect()


@contextmanager
def held(daemon: FakeDfdaemonSocket) -> Iterator[threading.Event]:
    """No piece comes until the event is set."""
    daemon.gate = threading.Event()
    try:
        yield daemon.gate
    finally:
        daemon.gate.set()
        daemon.gate = None


# --- the way it should be ---


async def test_no_byte_passes_through_us(world: World) -> None:
    assert await world.fill() == BODY
    await world.settled()
    assert world.direct_bytes() == 0
    assert world.file(".data").stat().st_blocks == 0, "our own file was not written"
    link = world.file(".link")
    assert link.stat().st_nlink == 2
    assert link.samefile(next(world.daemon.store.iterdir()))
    assert world.incoming() == []
    counters = world.handover.counters
    assert (counters.handovers, counters.checked_pieces) == (1, 7)
    assert world.fetcher.models.total.back_to_source_bytes == len(BODY)
    assert world.handover.state == "in use"
    assert world.server.sent_bytes[BIG] == 1 + len(BODY)


async def test_what_is_asked_for(world: World) -> None:
    await world.fill()
    (order,) = world.daemon.orders
    assert order.force_hard_link
    assert not order.need_piece_content
    assert order.HasField("content_for_calculating_task_id")
    assert not order.HasField("tag")
    assert order.priority == 6
    assert order.request_header == {"If-Match": world.origin.version(BIG).validator}
    assert "X-Amz-Signature" in order.filtered_query_params
    assert world.origin.signed == [(True, False)]


async def test_options_and_authorities_are_passed_on(world: World, tmp_path: Path) -> None:
    import ssl

    import trustme

    pem = tmp_path / "ca.pem"
    trustme.CA().cert_pem.write_to_path(str(pem))
    options = TaskOptions(
        tag="t", application="a", priority=3, piece_length_bytes=8 * MB, headers={"X-Tenant": "blue", "If-Match": "x"}
    )
    socket = DfdaemonSocket(world.daemon.url)
    world.handover = Handover(
        socket, world.fetcher, options=options, limits=Limits(), certificates=certificates_in(pem)
    )
    assert await world.fill() == BODY
    (order,) = world.daemon.orders
    assert (order.tag, order.application, order.priority, order.piece_length) == ("t", "a", 3, 8 * MB)
    assert order.request_header == {"If-Match": world.origin.version(BIG).validator, "X-Tenant": "blue"}
    assert list(order.certificate_chain) == [ssl.PEM_cert_to_DER_cert(pem.read_text())]
    socket.close()


async def test_a_reader_beside_it_takes_little_from_the_origin(world: World) -> None:
    assert await world.read_all() == BODY
    await world.settled()
    assert len(world.daemon.orders) == 1
    assert world.direct_bytes() <= world.policy.budget_bytes(len(BODY)) + MB
    assert await world.read_all() == BODY


async def test_a_reader_far_ahead_does_not_wait(world: World) -> None:
    with held(world.daemon):
        cached = await world.open()
        at = ByteRange(20 * MB, 20 * MB + 100)
        with trio.fail_after(10):
            assert await cached.read(at, None) == BODY[at.start : at.stop]
        cached.drop()
    await world.settled()
    assert world.direct_bytes() <= 4 * MB


async def test_small_files_are_not_handed_over(world: World) -> None:
    assert await world.read_all(SMALL) == BODIES[SMALL]
    assert world.daemon.orders == []


async def test_always_means_every_byte_even_of_small_files(world: World) -> None:
    world.policy = Policy(P2p.parse("always"), prefix="", direct_percent=0.4)
    assert await world.read_all(SMALL) == BODIES[SMALL]
    assert await world.read_all() == BODY
    await world.settled()
    assert world.direct_bytes() == 0
    assert [order.scheduling_policy for order in world.daemon.orders] == [1, 1]


@pytest.mark.parametrize("moves", [True, False])
async def test_who_queues_for_his_turn_is_not_sent_to_the_origin_while_others_get_theirs(
    clock: MockClock, world: World, moves: bool
) -> None:
    world.policy = Policy(P2p.parse("always"), prefix="", direct_percent=0.4)
    limits = Limits()
    world.handover = Handover(DfdaemonSocket(world.daemon.url), world.fetcher, options=TaskOptions(), limits=limits)
    for _ in range(MAX_REGISTRATIONS):
        await limits.take(lambda: True)

    async def others() -> None:
        for _ in range(6):
            await trio.sleep(1)
            if moves:
                limits.moved_at = trio.current_time()
        limits.give_back()

    world.nursery.start_soon(others)
    assert await world.read_all(SMALL) == BODIES[SMALL]
    await world.settled(poll_s=1)
    assert bool(world.direct_bytes()) == (not moves)
    world.handover.close()


async def test_no_bearer_token_goes_to_dfdaemon(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.origin.signs = False
    assert await world.fill() == BODY
    assert await world.fill(OTHER) == BODIES[OTHER]
    await world.settled()
    assert world.daemon.orders == []
    assert [record.levelname for record in caplog.records if record.levelno >= logging.WARNING] == ["WARNING"]
    assert "not for dfdaemon" in world.fetcher.tokens.warning
    assert world.handover.counters.trips == 0


async def test_a_file_that_dfdaemon_writes_after_its_check_gives_no_reader_other_bytes(world: World) -> None:
    cached = await world.open()
    with trio.fail_after(100):
        await cached.fill_whole()
        await world.settled_but(cached)
        piece = ByteRange(5 * MB, 7 * MB)
        assert await cached.read(piece, None) == BODY[5 * MB : 7 * MB]
        link = world.file(".link")
        before = link.stat()
        with link.open("r+b") as stored:  # the same file as in dfdaemon's store
            stored.seek(6 * MB)
            stored.write(os.urandom(MB))
        os.utime(link, ns=(before.st_atime_ns, before.st_mtime_ns))
        assert await cached.read(piece, None) == BODY[5 * MB : 7 * MB]
    assert not link.exists()
    assert world.origin.version(BIG).identity in world.fetcher.suspects or world.direct_bytes()
    cached.drop()
    await world.settled()
    assert await world.read_all() == BODY


async def test_readers_at_once_of_a_file_that_changes_have_its_bytes(world: World) -> None:
    cached = await world.open()
    with trio.fail_after(100):
        await cached.fill_whole()
        await world.settled_but(cached)
        os.utime(world.file(".link"))
        async with trio.open_nursery() as nursery:

            async def reading(at: int) -> None:
                assert await cached.read(ByteRange(at * MB, (at + 2) * MB), None) == BODY[at * MB : (at + 2) * MB]

            for at in range(20):
                nursery.start_soon(reading, at)
    assert world.direct_bytes() == 0, "it is what it was"
    cached.drop()
    await world.settled()


async def test_traffic_is_counted_by_its_kind(world: World) -> None:
    world.daemon.traffic = 1
    await world.fill()
    await world.settled()
    assert world.fetcher.models.total.remote_peer_bytes == len(BODY)
    world.file(".link").unlink()
    assert await world.fill() == BODY
    await world.settled()
    assert world.fetcher.models.total.local_peer_bytes == len(BODY)
    assert world.fetcher.models.total.back_to_source_bytes == 0


async def test_two_daemons_on_one_cache_directory(world: World) -> None:
    other = world.new_cache()
    read: list[bytes] = []

    async def reading(cache: Cache) -> None:
        read.append(await world.read_all(cache=cache))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(reading, world.cache)
        nursery.start_soon(reading, other)
    assert read == [BODY, BODY]
    await world.settled()
    assert world.server.sent_bytes[BIG] <= 1 + len(BODY) + world.direct_bytes()
    assert world.incoming() == []


# --- what is kept ---


async def test_a_restarted_daemon_finds_the_link(world: World) -> None:
    await world.fill()
    await world.settled()
    world.daemon.orders.clear()
    assert await world.read_all(cache=world.new_cache()) == BODY
    assert world.daemon.orders == []
    assert world.direct_bytes() == 0


async def test_half_a_hand_over_is_kept_and_gone_on_with(world: World) -> None:
    with world.daemon.failing(Fault.BREAKS_OFF):
        cached = await world.open()
        cached.fill()
        await world.settled_but(cached)
        assert cached.backing.presence.cached_bytes >= 8 * MB
        cached.drop()
    await world.settled()
    later = world.new_cache()
    opened = await world.open(cache=later)
    assert opened.backing.presence.cached_bytes >= 8 * MB
    opened.drop()
    assert await world.read_all(cache=later) == BODY


async def test_the_store_is_wiped_while_we_hold_the_link(world: World) -> None:
    await world.fill()
    await world.settled()
    world.daemon.wipe()
    assert await world.read_all() == BODY
    assert await world.read_all(cache=world.new_cache()) == BODY
    assert world.file(".link").stat().st_nlink == 1


# --- what is not believed ---


@pytest.mark.parametrize("fault", [each for each in Fault if each is not Fault.WRONG_BYTES], ids=lambda each: each.name)
async def test_readers_get_right_bytes_whatever_fails(clock: MockClock, world: World, fault: Fault) -> None:
    with world.daemon.failing(fault):
        assert await world.read_all() == BODY
        assert await world.read_all(OTHER) == BODIES[OTHER]
        await world.settled(poll_s=5)
    assert world.incoming() == []
    assert SECRET not in world.handover.state


async def test_a_wrong_piece_drops_the_link_for_good(world: World, caplog: pytest.LogCaptureFixture) -> None:
    with world.daemon.failing(Fault.WRONG_BYTES):
        assert await world.read_all() == BODY
        await world.settled()
    assert world.handover.counters.wrong_pieces == 1
    assert not list(world.path.glob("v2/?/*.link"))
    assert "dfdaemon's file is wrong" in caplog.text
    world.daemon.orders.clear()
    assert await world.read_all() == BODY
    assert world.daemon.orders == [], "this version comes from the origin"


async def test_without_checks_a_wrong_piece_is_believed(world: World) -> None:
    """The cost of the option; whole files are still compared with the provider's checksum, where it
    has one.
    """
    socket = DfdaemonSocket(world.daemon.url)
    world.handover = Handover(socket, world.fetcher, options=TaskOptions(), limits=Limits(), verify=Verify.OFF)
    with world.daemon.failing(Fault.WRONG_BYTES):
        assert await world.fill() != BODY
    assert world.handover.counters.checked_pieces == 0
    socket.close()


async def test_sampling_checks_some(world: World) -> None:
    socket = DfdaemonSocket(world.daemon.url)
    world.handover = Handover(socket, world.fetcher, options=TaskOptions(), limits=Limits(), verify=Verify.SAMPLED)
    assert await world.fill() == BODY
    assert world.handover.counters.checked_pieces == 1
    socket.close()


# --- other ways ---


@pytest.mark.parametrize("fault", [Fault.OTHER_FILE_SYSTEM, Fault.OTHER_NAMESPACE, Fault.COPIES])
async def test_what_cannot_be_linked_comes_through_the_proxy(
    world: World, caplog: pytest.LogCaptureFixture, fault: Fault
) -> None:
    through = Transport(connect_timeout_s=3, first_byte_timeout_s=3, idle_timeout_s=5)
    async with FakeDfdaemon(piece_bytes=4 * MB).running() as proxy:
        world.fetcher.proxy = Proxies([Proxy(proxy.url, through)], required=False)
        with world.daemon.failing(fault), caplog.at_level(logging.WARNING):
            assert await world.read_all() == BODY
            assert await world.read_all(OTHER) == BODIES[OTHER]
            await world.settled()
        assert world.fetcher.models.total.proxy_bytes > 0
        assert len([each for each in proxy.requests if "range" not in each.headers]) == 2
    await through.aclose()
    assert len([each for each in caplog.records if "handed over" in each.message]) == 1, "said once"
    assert world.handover.state != "in use"
    assert world.handover.counters.trips == 1


async def test_it_is_tried_again_after_a_while(clock: MockClock, world: World) -> None:
    with world.daemon.failing(Fault.OTHER_FILE_SYSTEM):
        assert await world.read_all() == BODY
        await world.settled(poll_s=1)
    assert "cross-device" in world.handover.state
    await trio.sleep(6)
    assert await world.read_all(OTHER) == BODIES[OTHER]
    await world.settled(poll_s=1)
    assert world.handover.state == "in use"


async def test_a_socket_that_is_not_there(world: World) -> None:
    await trio.to_thread.run_sync(world.daemon.stop)
    assert await world.read_all() == BODY
    await world.settled()
    assert "does not answer" in world.handover.state


async def test_where_it_is_required_its_failure_is_the_readers(world: World) -> None:
    socket = DfdaemonSocket(world.daemon.url)
    world.handover = Handover(socket, world.fetcher, options=TaskOptions(), limits=Limits(), required=True)
    await trio.to_thread.run_sync(world.daemon.stop)
    cached = await world.open()
    cached._read_timeout_s = 1.0
    with pytest.raises(ProxyUnavailable), trio.fail_after(20):
        await cached.read(ByteRange(0, 2 * MB), None)
    cached.drop()
    await world.settled()
    assert world.direct_bytes() == 0
    socket.close()


async def test_what_the_origin_says_to_dfdaemon_is_heard_from_the_origin(world: World) -> None:
    cached = await world.open()
    world.server.objects[BIG] = os.urandom(24 * MB)
    try:
        with pytest.raises(Exception, match="replaced"), trio.fail_after(20):
            await cached.read(ByteRange(8 * MB, 9 * MB), None)
    finally:
        cached.drop()
    await world.settled()
    assert world.handover.usable, "the origin's answer is no fault of the socket"
    world.server.objects[BIG] = BODY


@pytest.mark.parametrize(
    "details", [b'{"status_code": 1e999}', b'{"status_code": %s}' % (b"9" * 5000), b"[" * 100_000, b"[]"]
)
async def test_a_status_that_no_origin_has_is_dfdaemons_own_trouble(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, details: bytes
) -> None:
    monkeypatch.setattr("tests.servers.dfdaemon_socket.details_of", lambda _status: details)
    cached = await world.open()
    world.server.objects[BIG] = os.urandom(24 * MB)
    try:
        with pytest.raises(Exception, match="replaced"), trio.fail_after(20):
            await cached.read(ByteRange(8 * MB, 9 * MB), None)
    finally:
        cached.drop()
    await world.settled()
    assert "Traceback" not in caplog.text
    world.server.objects[BIG] = BODY


async def test_a_cancelled_mount_ends_its_downloads(world: World) -> None:
    with world.daemon.failing(Fault.HANGS), trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            world.nursery = nursery
            cached = await world.open()
            cached.fill()
            while not world.daemon.orders:  # noqa: ASYNC110  # they come in another thread
                await trio.sleep(0.01)
            nursery.cancel_scope.cancel()
        cached.drop()
    assert world.cache.statistics().open_versions == 0
    assert world.incoming() == []
