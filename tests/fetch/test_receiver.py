"""Bodies that a mover receives: real processes, real sockets, a real file."""

from __future__ import annotations

import errno
import os
import signal
import ssl
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
import trio
import trio.testing
import trustme

from d7yfs.checksum import crc32c
from d7yfs.errors import OriginUnavailable
from d7yfs.fetch.dragonfly_proxy import Proxies, Proxy
from d7yfs.fetch.dragonfly_task import TaskOptions
from d7yfs.fetch.fetcher import Fetcher
from d7yfs.fetch.transfer import SEAM_BYTES, Transfer, Urgency
from d7yfs.fetch.transport import Transport
from d7yfs.movers import pool
from d7yfs.movers.pool import MoverPool
from d7yfs.movers.protocol import ALIVE_S
from d7yfs.objects import BLOCK_BYTES, ByteRange, ObjectVersion
from d7yfs.tls import Trust
from tests.fetch.doubles import FakeOrigin
from tests.servers import faults
from tests.servers.dfdaemon import FakeDfdaemon
from tests.servers.http11 import Fault
from tests.servers.scripted import ScriptedServer

KEY = "models/m/weights.bin"
BODY = os.urandom(9 * BLOCK_BYTES + 4_321)
WHOLE = ByteRange(0, len(BODY))
READ_TIMEOUT_S = 20.0


class Landing:
    """A range of a sink's file that a mover writes."""

    def __init__(self, sink: FileSink, wanted: ByteRange) -> None:
        self.wanted = wanted
        self.fd = sink.fd
        start = wanted.start // BLOCK_BYTES * BLOCK_BYTES
        self.crc = crc32c(os.pread(sink.fd, wanted.start - start, start)) if wanted.start > start else 0
        self._sink = sink
        self._position = wanted.start

    def land(self, position: int, crcs: Sequence[int]) -> None:
        touched = ByteRange(self._position // BLOCK_BYTES * BLOCK_BYTES, position).split(BLOCK_BYTES)
        for piece, crc in zip(touched, crcs, strict=True):
            assert crc32c(os.pread(self.fd, piece.size, piece.start)) == crc, piece
        self._position = self._sink.position = position
        self._sink.moved_bytes = self._sink.moved_bytes + position - self.wanted.start
        self._sink.moved.set()

    def refuse(self, error: OSError) -> None:
        self._sink.refused.append(error)

    def last_landed(self, size_bytes: int) -> bytes | None:
        if self._sink.forgets:
            return None
        return os.pread(self.fd, size_bytes, self._position - size_bytes)


class FileSink:
    """Takes what is written in order, here or by a mover."""

    def __init__(self, path: Path) -> None:
        self.fd = os.open(path, os.O_RDWR | os.O_CREAT)
        self.position = 0
        self.moved_bytes = 0
        self.refused: list[OSError] = []
        self.retracted: list[ByteRange] = []
        self.moved = trio.Event()
        self.on_write: Callable[[], object] = lambda: None
        self.job_bytes = len(BODY)
        self.forgets = False
        self.read_only = False

    async def first_moved(self) -> None:
        with trio.fail_after(60):
            await self.moved.wait()

    async def write(self, offset: int, data: memoryview) -> None:
        assert offset == self.position
        self.on_write()
        self.position += os.pwrite(self.fd, data, offset)

    def reserve(self, wanted: ByteRange) -> Landing | None:
        assert wanted.start == self.position
        if self.refused or not self.job_bytes:
            return None
        landing = Landing(self, ByteRange(wanted.start, min(wanted.stop, wanted.start + self.job_bytes)))
        if self.read_only:
            landing.fd = os.open(f"/proc/self/fd/{self.fd}", os.O_RDONLY)
        return landing

    def retract(self, wanted: ByteRange) -> int:
        self.retracted.append(wanted)
        self.position = wanted.start // BLOCK_BYTES * BLOCK_BYTES
        return self.position

    @property
    def data(self) -> bytes:
        return os.pread(self.fd, len(BODY) + 1, 0)


@pytest.fixture
def sink(tmp_path: Path) -> FileSink:
    return FileSink(tmp_path / "data")


@pytest.fixture
async def movers(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[MoverPool]:
    """Two movers that take every body from its first byte on."""
    monkeypatch.setattr(pool, "LEAST_BYTES", 1)
    made = MoverPool(2, at_once=True)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(made.run)
        await trio.testing.wait_all_tasks_blocked()
        made.count(1)
        await until(lambda: len(made.ready) == 2)
        yield made
        nursery.cancel_scope.cancel()
    assert made.processes == []


@pytest.fixture
async def server() -> AsyncIterator[ScriptedServer]:
    async with ScriptedServer({KEY: BODY}).running() as server:
        yield server


@pytest.fixture
def version(server: ScriptedServer) -> ObjectVersion:
    return FakeOrigin(server).version(KEY)


@pytest.fixture
async def fetcher(server: ScriptedServer, movers: MoverPool) -> AsyncIterator[Fetcher]:
    transport = Transport(connect_timeout_s=3, first_byte_timeout_s=5, idle_timeout_s=1)
    yield Fetcher(
        FakeOrigin(server), transport, proxy=None, read_timeout_s=READ_TIMEOUT_S, max_connections=4, movers=movers
    )
    await transport.aclose()
    assert not transport._open


async def test_a_mover_brings_a_body_and_the_connection_serves_again(
    server: ScriptedServer, fetcher: Fetcher, movers: MoverPool, sink: FileSink, version: ObjectVersion,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    counted: list[int] = []
    count_bytes = fetcher.bandwidth.count_bytes

    def count(size_bytes: int, now: float) -> None:
        counted.append(size_bytes)
        count_bytes(size_bytes, now)

    monkeypatch.setattr(fetcher.bandwidth, "count_bytes", count)
    await fetcher.fetch(version, ByteRange(0, 2_500_000), sink)
    await fetcher.fetch(version, ByteRange(2_500_000, len(BODY)), sink)
    assert sink.data == BODY
    assert sink.moved_bytes > BLOCK_BYTES
    assert movers.moved_bytes > len(BODY) // 2
    assert server.connections == 1
    assert fetcher.counters.direct_bytes_by_reason == {"direct": len(BODY)}
    assert sum(counted) == len(BODY)
    assert fetcher.bandwidth.connection_bytes_s > 0
    assert movers.jobs == 0


async def test_what_nobody_waits_for_is_a_movers_from_its_first_byte(
    server: ScriptedServer, fetcher: Fetcher, movers: MoverPool, sink: FileSink, version: ObjectVersion
) -> None:
    written: list[int] = []
    sink.on_write = lambda: written.append(sink.position)
    await fetcher.fetch(version, WHOLE, sink, urgency=Urgency(urgent=False))
    assert sink.data == BODY
    assert written == []
    assert movers.moved_bytes == len(BODY)
    assert server.connections == 1


@pytest.mark.parametrize("fault", [faults.cut_after(5_000_000), faults.reset_after(5_000_000)], ids=["cut", "reset"])
async def test_a_body_that_is_cut_off_goes_on_behind_the_seam(
    server: ScriptedServer, fetcher: Fetcher, sink: FileSink, version: ObjectVersion, fault: Fault
) -> None:
    server.script(fault)
    await fetcher.fetch(version, WHOLE, sink)
    assert sink.data == BODY
    assert not sink.retracted
    assert fetcher.counters.direct_requests == 2


async def test_bytes_that_a_relay_lost_are_fetched_again(
    server: ScriptedServer, fetcher: Fetcher, sink: FileSink, version: ObjectVersion
) -> None:
    server.script(faults.losing(4_000_000, 100_000))
    await fetcher.fetch(version, WHOLE, sink)
    assert sink.retracted
    assert sink.data == BODY


async def test_a_peer_that_falls_silent_is_asked_again(
    server: ScriptedServer, fetcher: Fetcher, sink: FileSink, version: ObjectVersion
) -> None:
    server.script(faults.Hang(5_000_000))
    await fetcher.fetch(version, WHOLE, sink)
    assert sink.data == BODY


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
async def test_a_mover_that_ends_or_hangs_is_dead_before_its_bytes_are_asked_for_again(
    server: ScriptedServer, fetcher: Fetcher, movers: MoverPool, sink: FileSink, version: ObjectVersion,
    number: signal.Signals,
) -> None:  # fmt: skip
    movers.patience_s = 1.0
    stuck = faults.Hang(5_000_000)
    server.script(stuck)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(fetcher.fetch, version, WHOLE, sink)
        await sink.first_moved()
        (busy,) = [mover.process.pid for mover in movers.ready if mover.jobs]
        sink.on_write = lambda: assert_ended(busy)
        os.kill(busy, number)
    assert sink.data == BODY
    assert not sink.retracted
    assert not sink.refused
    assert movers.lost == 1
    assert fetcher.counters.direct_requests == 2


def assert_ended(pid: int) -> None:
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


async def until(happens: Callable[[], bool]) -> None:
    with trio.fail_after(60):
        while not happens():  # noqa: ASYNC110  # nothing tells of it
            await trio.sleep(0.01)


@pytest.mark.parametrize("cancelled", [False, True])
async def test_blocks_of_a_mover_that_cannot_be_killed_are_left_to_it(
    server: ScriptedServer, fetcher: Fetcher, movers: MoverPool, sink: FileSink, version: ObjectVersion,
    monkeypatch: pytest.MonkeyPatch, *, cancelled: bool,
) -> None:  # fmt: skip
    """As one in an uninterruptible write to a disk that hangs."""
    monkeypatch.setattr(trio.Process, "kill", lambda _: None)
    movers.patience_s = 60.0 if cancelled else 1.0
    server.script(faults.Hang(5_000_000))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(fetcher.fetch, version, WHOLE, sink)
        await sink.first_moved()
        (busy,) = [mover.process.pid for mover in movers.ready if mover.jobs]
        os.kill(busy, signal.SIGSTOP)
        if cancelled:
            nursery.cancel_scope.cancel()
    try:
        assert [error.errno for error in sink.refused] == [errno.ETIMEDOUT]
        assert cancelled or sink.data == BODY
        assert movers.jobs == 0
    finally:
        os.kill(busy, signal.SIGKILL)
        await until(lambda: not Path(f"/proc/{busy}").exists())


async def test_a_silent_mover_blames_no_proxy(
    server: ScriptedServer, movers: MoverPool, sink: FileSink, version: ObjectVersion
) -> None:
    movers.patience_s = 60.0
    server.script(faults.Hang(5_000_000))
    transport = Transport(connect_timeout_s=3, first_byte_timeout_s=60, idle_timeout_s=60)
    fetcher = Fetcher(
        FakeOrigin(server), transport, proxy=None, read_timeout_s=READ_TIMEOUT_S, max_connections=4, movers=movers
    )
    transfer = Transfer(version, WHOLE, sink)

    def silence_s() -> float:
        return trio.current_time() - transfer.alive_at()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(fetcher._until_done, transfer)
        await sink.first_moved()
        await until(lambda: silence_s() > 3 * ALIVE_S)  # of the peer, as the mover tells
        for pid in movers.processes:
            os.kill(pid, signal.SIGSTOP)
        await until(lambda: silence_s() < ALIVE_S)
        for pid in movers.processes:
            os.kill(pid, signal.SIGCONT)
        nursery.cancel_scope.cancel()
    assert not sink.refused
    await transport.aclose()


@pytest.mark.parametrize("job_bytes", [3 * BLOCK_BYTES, 1000])
async def test_a_body_of_several_jobs_comes_by_one_reply(
    server: ScriptedServer, fetcher: Fetcher, sink: FileSink, version: ObjectVersion, job_bytes: int
) -> None:
    sink.job_bytes = job_bytes
    wanted = ByteRange(0, 4_000_000) if job_bytes > BLOCK_BYTES else ByteRange(0, 70_000)
    server.script(faults.cut_after(wanted.stop - 500))
    await fetcher.fetch(version, wanted, sink)
    assert sink.data[: wanted.stop] == BODY[: wanted.stop]
    assert not sink.retracted
    assert [request.headers["range"] for request in server.requests] == [
        wanted.http(),
        ByteRange(wanted.stop - 500 - SEAM_BYTES, wanted.stop).http(),
    ]


async def test_what_a_lost_mover_wrote_and_cannot_be_read_again_is_fetched_again(
    server: ScriptedServer, fetcher: Fetcher, movers: MoverPool, sink: FileSink, version: ObjectVersion
) -> None:
    sink.forgets = True
    server.script(faults.Hang(5_000_000))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(fetcher.fetch, version, WHOLE, sink)
        await sink.first_moved()
        for pid in movers.processes:
            os.kill(pid, signal.SIGKILL)
    assert sink.retracted
    assert sink.data == BODY


async def test_while_no_mover_takes_a_body_the_engine_receives_it_from_the_same_reply(
    server: ScriptedServer, fetcher: Fetcher, movers: MoverPool, sink: FileSink, version: ObjectVersion,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(pool._Mover, "send", lambda *_: False)
    await fetcher.fetch(version, WHOLE, sink)
    assert sink.data == BODY
    assert fetcher.counters.direct_requests == 1
    assert movers.moved_bytes == 0


async def test_a_file_that_takes_no_bytes_is_left(fetcher: Fetcher, sink: FileSink, version: ObjectVersion) -> None:
    sink.read_only = True
    await fetcher.fetch(version, WHOLE, sink)
    assert [error.errno for error in sink.refused] == [errno.EBADF]
    assert sink.data == BODY


async def test_a_cancelled_body_is_left_by_its_mover(
    server: ScriptedServer, fetcher: Fetcher, movers: MoverPool, sink: FileSink, version: ObjectVersion
) -> None:
    server.script(faults.Hang(5_000_000))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(fetcher.fetch, version, WHOLE, sink)
        await sink.first_moved()
        nursery.cancel_scope.cancel()
    assert movers.jobs == 0
    assert movers.lost == 0
    await fetcher.fetch(version, ByteRange(sink.position, len(BODY)), sink)
    assert sink.data == BODY


@pytest.mark.parametrize("required", [False, True])
async def test_a_stream_through_a_proxy_comes_by_a_mover_and_blames_the_proxy(
    server: ScriptedServer, movers: MoverPool, sink: FileSink, version: ObjectVersion, *, required: bool
) -> None:
    async with FakeDfdaemon(piece_bytes=1 << 20).running() as daemon:
        transport = Transport(connect_timeout_s=3, first_byte_timeout_s=5, idle_timeout_s=1)
        proxy = Proxies([Proxy(daemon.url, transport)], required=required, options=TaskOptions())
        fetcher = Fetcher(
            FakeOrigin(server), transport, proxy=proxy, read_timeout_s=READ_TIMEOUT_S, max_connections=4, movers=movers
        )
        daemon.script(faults.cut_after(5_000_000))
        await fetcher.stream(version, WHOLE, sink)
        assert sink.data == BODY
        assert movers.moved_bytes > BLOCK_BYTES
        assert fetcher.counters.proxy_requests == 2
        assert fetcher.counters.direct_requests == 0
        await transport.aclose()


async def test_many_bodies_share_the_movers(
    fetcher: Fetcher, movers: MoverPool, version: ObjectVersion, tmp_path: Path
) -> None:
    sinks = [FileSink(tmp_path / str(number)) for number in range(6)]
    async with trio.open_nursery() as nursery:
        for each in sinks:
            nursery.start_soon(partial(fetcher.fetch, version, WHOLE, each))
    assert all(each.data == BODY for each in sinks)
    assert movers.jobs == 0


async def test_without_movers_the_engine_receives(
    server: ScriptedServer, sink: FileSink, version: ObjectVersion
) -> None:
    transport = Transport(connect_timeout_s=3, first_byte_timeout_s=5, idle_timeout_s=1)
    fetcher = Fetcher(
        FakeOrigin(server), transport, proxy=None, read_timeout_s=READ_TIMEOUT_S, max_connections=4, movers=MoverPool(0)
    )
    await fetcher.fetch(version, WHOLE, sink)
    await transport.aclose()
    assert sink.data == BODY
    assert sink.moved_bytes == 0


@dataclass
class TlsStore:
    """A store with TLS, and the trust in it."""

    server: ScriptedServer
    trust: Trust


@pytest.fixture
async def tls_store(tmp_path: Path) -> AsyncIterator[TlsStore]:
    ca = trustme.CA()
    ca.cert_pem.write_to_path(tmp_path / "ca.pem")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ca.issue_cert("127.0.0.1").configure_cert(context)
    async with ScriptedServer({KEY: BODY}, ssl_context=context).running() as server:
        yield TlsStore(server, Trust(tmp_path / "ca.pem"))


@asynccontextmanager
async def tls_fetcher(store: TlsStore, movers: MoverPool) -> AsyncIterator[Fetcher]:
    transport = Transport(connect_timeout_s=10, idle_timeout_s=5, trust=store.trust, movers=movers)
    yield Fetcher(
        FakeOrigin(store.server),
        transport,
        proxy=None,
        read_timeout_s=READ_TIMEOUT_S,
        max_connections=4,
        movers=movers,
    )
    await transport.aclose()
    assert not transport._open
    assert not any(mover.tunnels for mover in movers._movers)


async def test_tls_ends_in_movers_and_its_connections_serve_again(
    tls_store: TlsStore, movers: MoverPool, sink: FileSink
) -> None:
    async with tls_fetcher(tls_store, movers) as fetcher:
        version = FakeOrigin(tls_store.server).version(KEY)
        await fetcher.fetch(version, ByteRange(0, 2_500_000), sink)
        await fetcher.fetch(version, ByteRange(2_500_000, len(BODY)), sink)
        assert sink.data == BODY
        assert movers.moved_bytes > len(BODY) // 2
        assert tls_store.server.connections == 1
        assert fetcher.counters.direct_bytes_by_reason == {"direct": len(BODY)}


async def test_tls_ends_here_while_there_is_no_mover_and_counts_for_one(tls_store: TlsStore, sink: FileSink) -> None:
    movers = MoverPool(2)
    async with tls_fetcher(tls_store, movers) as fetcher:
        await fetcher.fetch(FakeOrigin(tls_store.server).version(KEY), WHOLE, sink)
    assert sink.data == BODY
    assert movers.moved_bytes == 0
    assert movers.demand.movers or movers.demand._bytes


async def test_a_large_body_leaves_a_connection_whose_tls_ends_here(
    tls_store: TlsStore, movers: MoverPool, sink: FileSink
) -> None:
    async with tls_fetcher(tls_store, movers) as fetcher:
        version = FakeOrigin(tls_store.server).version(KEY)
        for mover in movers._movers:
            mover.is_ready = False
        await fetcher.fetch(version, ByteRange(0, 2_500_000), sink)
        assert movers.moved_bytes == 0
        await until(lambda: len(movers.ready) == 2)  # they have said another word
        await fetcher.fetch(version, ByteRange(2_500_000, len(BODY)), sink)
        assert sink.data == BODY
        assert movers.moved_bytes > BLOCK_BYTES
        assert tls_store.server.connections == 2


@pytest.mark.parametrize("fault", [faults.cut_after(5_000_000), faults.reset_after(5_000_000)], ids=["cut", "reset"])
async def test_a_body_by_tls_that_is_cut_off_goes_on_behind_the_seam(
    tls_store: TlsStore, movers: MoverPool, sink: FileSink, fault: Fault
) -> None:
    tls_store.server.script(fault)
    async with tls_fetcher(tls_store, movers) as fetcher:
        await fetcher.fetch(FakeOrigin(tls_store.server).version(KEY), WHOLE, sink)
        assert sink.data == BODY
        assert not sink.retracted
        assert fetcher.counters.direct_requests == 2
        assert sum(fetcher.counters.retries.values()) == 1


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize("has_job", [True, False], ids=["with a job", "read by the engine"])
async def test_a_mover_that_ends_or_hangs_with_a_connection_is_no_failure_of_the_store(
    tls_store: TlsStore, movers: MoverPool, sink: FileSink, number: signal.Signals, *, has_job: bool
) -> None:
    movers.patience_s = 1.0
    stuck = faults.Hang(5_000_000)
    tls_store.server.script(stuck)
    if not has_job:
        sink.job_bytes = 0
    async with tls_fetcher(tls_store, movers) as fetcher, trio.open_nursery() as nursery:
        nursery.start_soon(fetcher.fetch, FakeOrigin(tls_store.server).version(KEY), WHOLE, sink)
        await stuck.reached.wait()
        (busy,) = [mover.process.pid for mover in movers.ready if mover.is_busy]
        os.kill(busy, number)
    assert sink.data == BODY
    assert not sink.refused
    assert movers.lost == 1
    assert fetcher.counters.direct_requests == 2
    assert not fetcher.counters.retries


async def test_a_mover_that_ends_while_its_connection_is_idle_costs_a_new_connection(
    tls_store: TlsStore, movers: MoverPool, sink: FileSink
) -> None:
    async with tls_fetcher(tls_store, movers) as fetcher:
        version = FakeOrigin(tls_store.server).version(KEY)
        await fetcher.fetch(version, ByteRange(0, 2_500_000), sink)
        (idle,) = [mover.process.pid for mover in movers.ready if mover.tunnels]
        os.kill(idle, signal.SIGKILL)
        await fetcher.fetch(version, ByteRange(2_500_000, len(BODY)), sink)
        assert sink.data == BODY
        assert not fetcher.counters.retries
        assert tls_store.server.connections == 2


async def test_a_mover_with_idle_connections_lives_as_long_as_they_are_kept(
    tls_store: TlsStore, movers: MoverPool, sink: FileSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with tls_fetcher(tls_store, movers) as fetcher:
        version = FakeOrigin(tls_store.server).version(KEY)
        await fetcher.fetch(version, ByteRange(0, 2_500_000), sink)
        (idle,) = [mover for mover in movers.ready if mover.tunnels]
        assert not idle.is_busy
        monkeypatch.setattr(pool, "IDLE_S", 0.0)
        await until(lambda: len(movers.processes) == 1)
        assert movers._movers == [idle]
        monkeypatch.setattr(pool, "TUNNEL_IDLE_S", 0.0)
        await until(lambda: not movers.processes)
        assert movers.lost == 0
        await fetcher.fetch(version, ByteRange(2_500_000, len(BODY)), sink)
        assert sink.data == BODY
        assert not fetcher.counters.retries


async def test_a_mover_waits_for_a_reply_however_long_it_takes(
    tls_store: TlsStore, movers: MoverPool, sink: FileSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    stuck = faults.Hang(0)
    tls_store.server.script(stuck)
    monkeypatch.setattr(pool, "IDLE_S", 0.0)
    monkeypatch.setattr(pool, "TUNNEL_IDLE_S", 0.0)
    async with tls_fetcher(tls_store, movers) as fetcher, trio.open_nursery() as nursery:
        nursery.start_soon(fetcher.fetch, FakeOrigin(tls_store.server).version(KEY), WHOLE, sink)
        await stuck.reached.wait()
        await until(lambda: len(movers.processes) == 1)
        stuck.resume.set()
    assert sink.data == BODY
    assert not fetcher.counters.retries


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
async def test_a_mover_that_ends_or_hangs_in_a_handshake_leaves_it_to_the_engine(
    tls_store: TlsStore, movers: MoverPool, sink: FileSink, number: signal.Signals
) -> None:
    movers.patience_s = 1.0
    for mover in movers.ready:
        os.kill(mover.process.pid, signal.SIGSTOP)

    async def kill() -> None:
        await until(lambda: any(mover.tunnels for mover in movers._movers))
        if number is signal.SIGKILL:
            for pid in movers.processes:
                os.kill(pid, number)

    async with tls_fetcher(tls_store, movers) as fetcher, trio.open_nursery() as nursery:
        nursery.start_soon(kill)
        await fetcher.fetch(FakeOrigin(tls_store.server).version(KEY), WHOLE, sink)
        assert not fetcher.counters.retries
    assert sink.data == BODY


async def test_connections_go_to_the_mover_with_the_fewest(
    tls_store: TlsStore, movers: MoverPool, tmp_path: Path
) -> None:
    async with tls_fetcher(tls_store, movers) as fetcher:
        version = FakeOrigin(tls_store.server).version(KEY)
        one, other = movers._movers
        for is_alone in (True, False):
            await until(lambda: len(movers.ready) == 2)
            other.is_ready = not is_alone
            sinks = [FileSink(tmp_path / f"{is_alone} {number}") for number in range(4)]
            async with trio.open_nursery() as nursery:
                for each in sinks:
                    nursery.start_soon(partial(fetcher.fetch, version, WHOLE, each))
            assert all(each.data == BODY for each in sinks)
        assert abs(len(one.tunnels) - len(other.tunnels)) <= 1


async def test_a_silent_origin_is_named(
    server: ScriptedServer, fetcher: Fetcher, sink: FileSink, version: ObjectVersion
) -> None:
    fetcher.read_timeout_s = 0.5
    server.script(*[faults.Hang(5_000_000)] * 3)
    with pytest.raises(OriginUnavailable, match=r"sent nothing for 1 s in the middle of a body"):
        await fetcher.fetch(version, WHOLE, sink)
