"""The whole cache against the truth: many readers, unreliable transfers, too little disk, too
little memory, two daemons.

Whatever happens, a read gives exactly the bytes asked for or an error that its filler reported, and
it never waits for ever.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest
import trio
from trio.testing import MockClock

from d7yfs.cache.cache import Cache
from d7yfs.cache.disk import Disk, DiskStalled, _Call, _Result
from d7yfs.cache.filler import Filler
from d7yfs.cache.version import CachedVersion
from d7yfs.errors import OriginUnavailable
from d7yfs.objects import BLOCK_BYTES, ByteRange, ObjectVersion
from tests.cache.doubles import MIB, ORIGIN, PromptDisk, bytes_of, data_of, directory, version

T = TypeVar("T")

READERS = 6
READS = 100
LIMIT_BYTES = 5 * MIB
MEMORY_BYTES = 2 * MIB
READ_TIMEOUT_S = 5.0
"""Longer than any transfer here pauses, short enough that a reader who was forgotten is not saved
by somebody else's transfer."""
FILES = [
    version(size_bytes, f"file {number}")
    for number, size_bytes in enumerate([300_000, 2 * MIB + 5, 4 * MIB - 1, 5 * MIB, 7 * MIB])
]
LONGEST_READ = 2 * MIB


class UnreliableFiller:
    """Keeps a filler's promises and nothing beyond them: transfers overlap, stall, end early, with
    an error and without.
    """

    def __init__(self, target: CachedVersion, nursery: trio.Nursery, rng: random.Random) -> None:
        self._target = target
        self._nursery = nursery
        self._rng = rng
        self._in_flight: set[int] = set()

    def request(self, wanted: ByteRange, ahead: ByteRange | None) -> None:
        self._fetch(wanted)
        if ahead:
            self.prefetch(ahead)
        if self._rng.random() < 0.05:
            self._start(self._target.version.whole, set())

    window_bytes = 0

    def fill(self) -> None: ...

    def stop_filling(self) -> None:
        raise AssertionError("nobody has asked for it")

    def prefetch(self, ahead: ByteRange) -> None:
        if self._target.keeps:
            self._fetch(ahead)

    def _fetch(self, wanted: ByteRange) -> None:
        for run in self._target.missing(wanted):
            for part in run.split(self._rng.choice([1, 2, 3]) * BLOCK_BYTES):
                blocks = set(range(part.start // BLOCK_BYTES, -(-part.stop // BLOCK_BYTES)))
                if not blocks & self._in_flight:
                    self._start(part, blocks)
                else:
                    for index in blocks - self._in_flight:
                        one = ByteRange(index * BLOCK_BYTES, (index + 1) * BLOCK_BYTES)
                        self._start(one.clip(self._target.version.size_bytes), {index})

    def _start(self, part: ByteRange, blocks: set[int]) -> None:
        self._in_flight |= blocks
        self._target.begin_work()
        self._nursery.start_soon(self._bring, part, blocks)

    async def _bring(self, part: ByteRange, blocks: set[int]) -> None:
        rng, target = self._rng, self._target
        error: Exception | None = None
        try:
            position = part.start
            while position < part.stop:
                await trio.sleep(rng.choice([0.0, 0.0, 0.01, 0.3]))
                fate = rng.random()
                if fate < 0.02:
                    error = OriginUnavailable("503")
                    break
                if fate < 0.05:
                    break
                stop = min(position + rng.choice([1000, 100_000, 500_000, MIB, 3 * MIB]), part.stop)
                await target.write(position, data_of(target.version, ByteRange(position, stop)))
                position = stop
        finally:
            self._in_flight -= blocks
            target.end_transfer(part, error)
            target.end_work()


class UnsteadyDisk(PromptDisk):
    """Calls take their time, as in a worker thread, but in tasks, which a mock clock waits for.
    Some are given up and come back later.
    """

    is_prompt = False

    def __init__(self, rng: random.Random, nursery: trio.Nursery) -> None:
        super().__init__()
        self._rng = rng
        self._nursery = nursery

    async def _run(self, call: Callable[[], T], made: _Call[T]) -> T:
        if self._rng.random() < 0.02:
            self._nursery.start_soon(self._come_back, call, made)
            raise DiskStalled
        with trio.CancelScope(shield=True):
            try:
                await self._while()
                result = call()
                await self._while()
            finally:
                self._let_go(made)
            await self._while()  # the thread is done; the task that waited for it has not run yet
        return result

    async def _come_back(self, call: Callable[[], T], made: _Call[T]) -> None:
        try:
            await trio.sleep(self._rng.choice([0.1, 3.0]))
            result = _Result(call)
            if made.late is not None and result.error is None:
                made.late(result.value)
        finally:  # also at the end of the test: until then the lane keeps its descriptors
            self._let_go(made)

    async def _while(self) -> None:
        await trio.sleep(self._rng.choice([0.0, 0.0, 0.01, 0.2]))


class Daemon:
    """One cache over the shared directory, and its readers."""

    def __init__(self, path: Path, rng: random.Random, nursery: trio.Nursery, disk: Disk) -> None:
        self._rng = rng
        self._nursery = nursery
        self.cache = Cache(
            directory(path, size_limit_bytes=LIMIT_BYTES),
            memory_buffer_bytes=MEMORY_BYTES,
            read_timeout_s=READ_TIMEOUT_S,
            disk=disk,
        )
        self.reads = 0

    def _new_filler(self, target: CachedVersion) -> Filler:
        return UnreliableFiller(target, self._nursery, self._rng)

    async def reader(self) -> None:
        rng = self._rng
        while self.reads < READERS * READS:
            of = rng.choice(FILES)
            cached = await self.cache.open(ORIGIN, of, self._new_filler)
            for _ in range(rng.randrange(1, 12)):
                wanted = self._somewhere(of)
                ahead = (
                    ByteRange(wanted.stop, wanted.stop + 2 * MIB).clip(of.size_bytes) if rng.random() < 0.5 else None
                )
                self.reads += 1
                with trio.move_on_after(rng.choice([0.05, 1000, 1000])):
                    try:
                        data = await cached.read(wanted, ahead)
                    except OriginUnavailable:
                        continue
                    assert data == bytes_of(of, wanted)
                # Blocks that a reader waits for are not dropped; each may wait for one more than it
                # needs at either end.
                pinned_bytes = READERS * (LONGEST_READ + 2 * BLOCK_BYTES)
                assert self.cache.statistics().memory_bytes <= MEMORY_BYTES + pinned_bytes
            cached.drop()
            await trio.sleep(rng.choice([0, 0, 2]))

    def _somewhere(self, of: ObjectVersion) -> ByteRange:
        start = self._rng.randrange(of.size_bytes)
        size = self._rng.choice([1, 4096, 131_072, MIB, LONGEST_READ])
        return ByteRange(start, start + size).clip(of.size_bytes)


@pytest.mark.parametrize("seed", range(12))
async def test_no_reader_ever_gets_a_wrong_byte(tmp_path: Path, autojump_clock: MockClock, seed: int) -> None:
    rng = random.Random(seed)
    async with trio.open_nursery() as background:
        daemons = [
            Daemon(tmp_path, rng, background, UnsteadyDisk(rng, background) if seed % 4 >= 2 else PromptDisk())
            for _ in range(1 + seed % 2)
        ]
        for daemon in daemons:
            background.start_soon(daemon.cache.room.run)
        async with trio.open_nursery() as readers:
            for daemon in daemons:
                for _ in range(READERS):
                    readers.start_soon(daemon.reader)
        background.cancel_scope.cancel()
    for daemon in daemons:  # as a daemon does at its end: closes may wait for a thread
        await daemon.cache.settle()
    for daemon in daemons:
        statistics = daemon.cache.statistics()
        assert statistics.open_versions == 0
        assert statistics.memory_bytes == 0
        assert statistics.corrupt_blocks == 0
        assert statistics.hits > 10
        assert statistics.misses > 10
        assert statistics.disk_bytes_written > 0
