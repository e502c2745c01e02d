"""The first bytes of a large file: they wait for nothing that the cache's disk has to do."""

from __future__ import annotations

import os
import threading
from collections.abc import AsyncIterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from d7yfs.cache.cache import Cache
from d7yfs.cache.directory import CacheDirectory
from d7yfs.cache.pair import VersionFiles
from d7yfs.cache.version import CachedVersion
from d7yfs.errors import AccessDenied
from d7yfs.fetch.fetcher import Fetcher
from d7yfs.fetch.transport import Transport
from d7yfs.fill.direct import DirectFiller
from d7yfs.objects import BLOCK_BYTES, ByteRange
from tests.fetch.doubles import FakeOrigin
from tests.servers import faults
from tests.servers.faults import Hang
from tests.servers.scripted import ScriptedServer

MB = BLOCK_BYTES
KEY = "models/m/weights.bin"
BODY = os.urandom(6 * MB + 17)
HEADER = ByteRange(0, 16 << 10)
SENT_BYTES = 100_000


class Daemon:
    """A daemon that has joined a cache directory and counted what is there."""

    def __init__(
        self, path: Path, server: ScriptedServer, transport: Transport, nursery: trio.Nursery, *, joins: bool = True
    ) -> None:
        self.nursery = nursery
        self.directory = CacheDirectory(path, size_limit_bytes=1 << 30, min_free_bytes=0)
        self.directory.prepare()
        if joins:
            self.directory.join()
        self.directory.evict(1 << 30)
        self.cache = Cache(self.directory, memory_buffer_bytes=16 * MB, read_timeout_s=20)
        self.origin = FakeOrigin(server)
        self.fetcher = Fetcher(self.origin, transport, proxy=None, read_timeout_s=20, max_connections=6)
        self._new_filler = partial(DirectFiller, fetcher=self.fetcher, nursery=nursery)

    def open_at_once(self) -> CachedVersion | None:
        """As the file system opens it for a reader."""
        return self.cache.open_at_once(self.origin.identity, self.origin.version(KEY), self._new_filler, blank=True)

    async def open(self) -> CachedVersion:
        return await self.cache.open(self.origin.identity, self.origin.version(KEY), self._new_filler)


class Reader:
    """A read in a task of its own."""

    def __init__(self, cached: CachedVersion, wanted: ByteRange) -> None:
        self._cached, self._wanted = cached, wanted
        self._data: bytes | bytearray = b""
        self._done = trio.Event()

    async def run(self) -> None:
        self._data = await self._cached.read(self._wanted, None)
        self._done.set()

    async def data(self) -> bytes:
        with trio.fail_after(30):
            await self._done.wait()
        return bytes(self._data)


@pytest.fixture
async def server() -> AsyncIterator[ScriptedServer]:
    async with ScriptedServer({KEY: BODY}).running() as server:
        yield server


@pytest.fixture
async def transport() -> AsyncIterator[Transport]:
    made = Transport(connect_timeout_s=3, first_byte_timeout_s=30, idle_timeout_s=30)
    yield made
    await made.aclose()


@pytest.fixture
async def daemon(tmp_path: Path, server: ScriptedServer, transport: Transport, nursery: trio.Nursery) -> Daemon:
    return Daemon(tmp_path, server, transport, nursery)


def _files(path: Path) -> list[Path]:
    return [*path.glob("v2/*/*.map"), *path.glob("v2/*/*.data")]


def _opened(daemon: Daemon) -> CachedVersion:
    cached = daemon.open_at_once()
    assert cached is not None
    return cached


async def test_the_request_is_out_before_a_file_is_made(
    tmp_path: Path, server: ScriptedServer, daemon: Daemon, nursery: trio.Nursery
) -> None:
    hang = Hang()
    server.script(hang)
    cached = _opened(daemon)
    reader = Reader(cached, HEADER)
    nursery.start_soon(reader.run)
    with trio.fail_after(30):
        await hang.reached.wait()
    assert not _files(tmp_path)
    assert cached.keeps
    hang.resume.set()
    assert await reader.data() == BODY[: HEADER.stop]
    assert await cached.read(cached.version.whole, None) == BODY
    assert len(_files(tmp_path)) == 2
    cached.drop()
    assert sum(server.sent_bytes.values()) == len(BODY)


async def test_a_reader_is_answered_before_the_rest_of_its_block_has_come(
    server: ScriptedServer, daemon: Daemon, nursery: trio.Nursery
) -> None:
    hang = Hang(SENT_BYTES)
    server.script(hang)
    cached = _opened(daemon)
    reader = Reader(cached, HEADER)
    nursery.start_soon(reader.run)
    assert await reader.data() == BODY[: HEADER.stop]
    with trio.fail_after(30):
        await hang.reached.wait()
    assert not cached.has(ByteRange(0, MB))
    hang.resume.set()
    assert await cached.read(ByteRange(0, MB), None) == BODY[:MB]
    cached.drop()


async def test_bytes_that_are_being_stored_answer_the_next_reader(
    server: ScriptedServer, daemon: Daemon, nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that makes no file holds up neither the first reader nor one that wants bytes that came with
    his.
    """
    makes, may_make = threading.Event(), threading.Event()
    make = daemon.directory.open

    def slow_open(*args: Any, **options: Any) -> VersionFiles:
        makes.set()
        may_make.wait(30)
        return make(*args, **options)

    monkeypatch.setattr(daemon.directory, "open", slow_open)
    hang = Hang(SENT_BYTES)
    server.script(hang)
    cached = _opened(daemon)
    reader = Reader(cached, HEADER)
    nursery.start_soon(reader.run)
    try:
        assert await reader.data() == BODY[: HEADER.stop]
        assert await trio.to_thread.run_sync(makes.wait, 30)
        with trio.fail_after(30):
            assert await cached.read(ByteRange(5, 40_000), None) == BODY[5:40_000]
    finally:
        may_make.set()
        hang.resume.set()
    assert await cached.read(ByteRange(0, 2 * MB), None) == BODY[: 2 * MB]
    cached.drop()
    assert len(server.requests) == 1


async def test_what_cannot_be_fetched_leaves_no_file(tmp_path: Path, server: ScriptedServer, daemon: Daemon) -> None:
    server.script(faults.status(403), forever=True)
    cached = _opened(daemon)
    with pytest.raises(AccessDenied):
        await cached.read(HEADER, None)
    cached.drop()
    assert not _files(tmp_path)


async def test_other_daemons_see_by_a_lease_what_is_on_its_way(
    tmp_path: Path, server: ScriptedServer, transport: Transport, daemon: Daemon, nursery: trio.Nursery
) -> None:
    hang = Hang(SENT_BYTES)
    server.script(hang)
    cached = _opened(daemon)
    reader = Reader(cached, HEADER)
    nursery.start_soon(reader.run)
    await reader.data()
    with trio.fail_after(30):
        await hang.reached.wait()
        while cached.use.is_asleep or not _files(tmp_path):
            await trio.lowlevel.checkpoint()
    other = Daemon(tmp_path, server, transport, nursery)
    assert other.open_at_once() is None, "there is another daemon, which could make it"
    theirs = await other.open()
    assert theirs.leases.take(ByteRange(0, 4 * MB)) == (
        [ByteRange(2 * MB, 4 * MB)],
        [ByteRange(0, 2 * MB)],
    )
    theirs.leases.release(theirs.version.whole)
    hang.resume.set()
    assert await theirs.read(ByteRange(0, 2 * MB), None) == BODY[: 2 * MB]
    assert sum(server.sent_bytes.values()) == 2 * MB
    theirs.drop()
    cached.drop()


async def test_a_file_that_another_process_made_meanwhile_is_used(
    tmp_path: Path, server: ScriptedServer, transport: Transport, daemon: Daemon, nursery: trio.Nursery
) -> None:
    """A daemon of another release never joins."""
    cached = _opened(daemon)
    other = Daemon(tmp_path, server, transport, nursery, joins=False)
    theirs = await other.open()
    assert await theirs.read(theirs.version.whole, None) == BODY
    assert await cached.read(HEADER, None) == BODY[: HEADER.stop]
    assert await cached.read(cached.version.whole, None) == BODY
    assert sum(server.sent_bytes.values()) == len(BODY) + 2 * MB, "the first bytes alone came twice"
    theirs.drop()
    cached.drop()


async def test_a_grant_that_came_before_the_file_is_recorded_in_it(daemon: Daemon) -> None:
    cached = _opened(daemon)
    cached.grants.record("somebody", 1.5)
    await cached.read(HEADER, None)
    await cached.fill_whole()
    cached.drop()
    await daemon.cache.settle()
    again = await daemon.open()
    assert again.grants.recorded_at("somebody") == 1.5
    again.drop()


async def test_a_refused_reader_shares_the_file_that_another_repository_has_brought_since(
    server: ScriptedServer, daemon: Daemon
) -> None:
    server.script(faults.status(403), faults.status(403))
    cached = _opened(daemon)
    with pytest.raises(AccessDenied):
        await cached.read(HEADER, None)
    other = partial(DirectFiller, fetcher=daemon.fetcher, nursery=daemon.nursery)
    theirs = await daemon.cache.open(daemon.origin.identity, cached.version, other)
    assert await theirs.read(HEADER, None) == BODY[: HEADER.stop]
    asked = len(server.requests)
    assert await cached.read(HEADER, None) == BODY[: HEADER.stop]
    assert len(server.requests) == asked
    theirs.drop()
    cached.drop()


async def test_small_files_those_of_another_repository_and_known_ones_are_opened_as_ever(daemon: Daemon) -> None:
    cached = _opened(daemon)
    assert daemon.open_at_once() is not None
    version, other = cached.version, partial(DirectFiller, fetcher=daemon.fetcher, nursery=daemon.nursery)
    store = daemon.origin.identity
    assert daemon.cache.open_at_once(store, version, other, blank=True) is None, "two would fetch the same bytes"
    small = replace(version, key="models/m/small", size_bytes=MB)
    assert daemon.cache.open_at_once(store, small, other, blank=True) is None
    large = replace(version, key="models/m/large")
    assert daemon.cache.open_at_once(store, large, other) is None
    opened = await daemon.cache.open(store, large, other)
    opened.drop()
    for _ in range(2):
        cached.drop()
