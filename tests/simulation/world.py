"""One run of the data path's simulation: daemons on one cache directory, readers, a store that
changes, and faults.

The code under test is the product's own from `Cache` down to `Transport`: single flight, backing
files, leases between daemons, eviction, fillers, fetcher, verification. Its units are scaled down
(`scaled`), so that a run of some thousand steps touches many blocks.

These invariants must hold at each moment of each run:

- a read returns exactly the bytes of its handle's version, all of them. In runs with a relay that
  loses bytes in mid-stream, this holds once that is over: then wrong bytes have left the cache;
- it fails with VersionGone only if the key was another version at some moment since shortly before
  the read began;
- it fails otherwise only if network or disk had a fault within its patience;
- every read comes to an end;
- at the end, and after a kill, the blocks that the cache directory calls present are right on disk.
"""

from __future__ import annotations

import errno
import os
import random
from collections import Counter, deque
from dataclasses import dataclass
from pathlib import Path

import pytest
import trio

import d7yfs.cache.disk as disk_module
import d7yfs.fetch.transport as transport_module
from d7yfs.cache import cache as cache_module
from d7yfs.cache.cache import Cache
from d7yfs.cache.directory import CacheDirectory
from d7yfs.cache.disk import Disk
from d7yfs.cache.filler import Filler
from d7yfs.cache.version import CachedVersion
from d7yfs.checksum import crc32c
from d7yfs.config.p2p import Mode, P2p
from d7yfs.errors import CacheFull, D7yfsError, Stopped, VersionGone
from d7yfs.fetch.dragonfly_proxy import Limits, Proxies, Proxy
from d7yfs.fetch.dragonfly_task import TaskOptions
from d7yfs.fetch.fetcher import Fetcher
from d7yfs.fetch.transport import Transport
from d7yfs.fill.direct import DirectFiller
from d7yfs.fill.p2p_budget import Policy
from d7yfs.fill.stream import StreamFiller
from d7yfs.fill.verification import Verifier
from d7yfs.fs.readahead import Window
from d7yfs.objects import ByteRange, ObjectVersion
from tests.cache.doubles import OpenedDirectory, few_descriptors
from tests.simulation import clock
from tests.simulation.network import Network, connection_in
from tests.simulation.scale import BLOCK, scaled
from tests.simulation.store import IDENTITY, SimulatedOrigin, Store, is_passing
from tests.simulation.threads import Threads

READ_TIMEOUT_S = 20.0
_SILENCE_S = 5.0
_FORGOTTEN_S = READ_TIMEOUT_S + 3 * _SILENCE_S + 10.0
"""Seconds after the last fault; a read that fails later has no excuse."""
_NEVER_S = 600.0
_LONGEST_S = 4000.0
"""Seconds of virtual time; a run has at most 50 events of at most 7 s, and readers that settle."""
SIZES = (1, BLOCK - 1, 3 * BLOCK + 17, 5 * BLOCK, 19 * BLOCK + 333, 40 * BLOCK + 1)


class Violation(AssertionError):
    """An invariant of the data path did not hold."""


@dataclass(slots=True)
class Outcome:
    """The figures of one run, for the account of a series of runs."""

    steps: int
    reads: int
    read_bytes: int
    errors: Counter[str]
    replies: Counter[str]
    events: Counter[str]
    states: set[int]


class _Daemon:
    """The parts of a daemon that move bytes, without its names."""

    def __init__(self, world: World, *, proxied: bool) -> None:
        self._world = world
        self._proxied = proxied
        chance = world.chance
        self.dead = False
        self.directory = OpenedDirectory(world.path, world.cache_bytes)
        self.directory.prepare()
        self.directory.join()
        self.cache = Cache(
            self.directory,
            memory_buffer_bytes=world.memory_bytes,
            read_timeout_s=READ_TIMEOUT_S,
            disk=Disk(clock=lambda: trio.current_time() + chance.choice((0.0, 0.0, 0.0, 0.01))),
            descriptors=few_descriptors(chance.choice((1, 2, 100))),
        )
        transport = Transport(first_byte_timeout_s=_SILENCE_S, idle_timeout_s=_SILENCE_S)
        origin = SimulatedOrigin(world.store, chance, lambda: world.network.faults > 0)
        origin.records_checksums = chance.random() < 0.7
        proxies = None
        if proxied:
            proxy = Proxy("http://proxy.invalid:4001", transport)
            required = chance.random() < 0.2
            proxies = Proxies([proxy], required=required, options=TaskOptions(), limits=Limits())
        self.fetcher = Fetcher(
            origin,
            transport,
            proxy=proxies,
            read_timeout_s=READ_TIMEOUT_S,
            max_connections=chance.choice((2, 6, 16)),
        )
        self.nursery: trio.Nursery

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        async with trio.open_nursery() as self.nursery:
            self.nursery.start_soon(self.cache.room.run)
            task_status.started()
            await trio.sleep_forever()

    def new_filler(self, target: CachedVersion) -> Filler:
        async def forget_pages(version: ObjectVersion) -> None:
            await trio.lowlevel.checkpoint()

        verifier = Verifier(self.fetcher, self.nursery, full=True, forget_pages=forget_pages)
        if not self._proxied:
            return DirectFiller(target, self.fetcher, self.nursery, compare=verifier.compare)
        policy = Policy(P2p(default=self._world.mode), direct_percent=1.0)
        return StreamFiller(target, self.fetcher, self.nursery, policy, compare=verifier.compare)

    def kill(self) -> None:
        """Die as from SIGKILL: descriptors and locks are gone at once, and running calls have no
        effect.
        """
        self.dead = True
        self.directory.bury()
        self.nursery.cancel_scope.cancel()


class World:
    """One run of the simulation; `chance` decides the events, the scheduler their order."""

    def __init__(self, seed: int, path: Path) -> None:
        self.chance = chance = random.Random(seed)
        self.path = path
        self.store = Store(chance)
        self.network = Network(self.store, chance)
        self.cache_bytes = chance.choice((1 << 30, 1 << 30, 40 * BLOCK, 12 * BLOCK))
        self.memory_bytes = chance.choice((64 * BLOCK, 4 * BLOCK, 1))
        self.mode = chance.choice((Mode.AUTO, Mode.ALWAYS))
        self._proxied = chance.random() < 0.4
        self.network.ignores_conditions = chance.random() < 0.3
        self.network.loses = not self._proxied and chance.random() < 0.2
        self._daemons: list[_Daemon] = []
        self._disk_breaks = 0.0
        self._disk_broke_at = float("-inf")
        self._nursery: trio.Nursery
        self._readers = 0
        self._is_ending = False
        self._idle = trio.Event()
        self._last_read_end = trio.Event()
        self.reads = self.read_bytes = 0
        self.errors: Counter[str] = Counter()
        self.events: Counter[str] = Counter()
        self.boot_tag = 1
        self.history: deque[str] = deque(maxlen=400)
        self.states: set[int] = set()
        """The state of the daemons' caches at each event."""
        self.network.record = self.record

    async def run(self) -> None:
        chance = self.chance
        keys = [f"m{number}.bin" for number in range(chance.choice((1, 2, 3)))]
        for key in keys:
            self.store.put(key, chance.choice(SIZES))
        async with trio.open_nursery() as self._nursery:
            self._nursery.start_soon(self._end_in_time)
            for _ in range(1 if self.network.loses else chance.choice((1, 1, 2))):
                await self._start()
            for _ in range(chance.choice((10, 25, 50))):
                await self._event(keys)
            self.network.faults = self._disk_breaks = 0.0
            self.network.refuses_proxy = False
            await self._settle()
            await self._end(keys)
            self._nursery.cancel_scope.cancel()
        self.check_disk()

    async def _end_in_time(self) -> None:
        await trio.sleep(_LONGEST_S)
        raise Violation(f"the run did not end in time: {[daemon.cache.statistics() for daemon in self._daemons]}")

    # --- the events ---

    async def _event(self, keys: list[str]) -> None:
        chance = self.chance
        kind = chance.choices(list(_LIKELY), list(_LIKELY.values()))[0]
        self.events[kind] += 1
        key = chance.choice(keys)
        self.record(kind, key)
        match kind:
            case "reader":
                self._readers += 1
                daemon = chance.choice(self._daemons)
                daemon.nursery.start_soon(self._reader, daemon, key)
            case "put":
                # Mostly of equal size, which can hide a mixture of versions.
                known = self.store.current(key)
                same = known is not None and chance.random() < 0.7
                self.store.put(key, known.size_bytes if same and known else chance.choice(SIZES))
            case "delete":
                self.store.delete(key)
            case "faults":
                self.network.faults = chance.choice((0.0, 0.1, 0.5, 0.9))
            case "proxy":
                self.network.refuses_proxy = not self.network.refuses_proxy
            case "disk":
                self._disk_breaks = chance.choice((0.0, 0.0, 0.05, 0.5))
            case "pass":
                await trio.sleep(chance.choice((0.001, 0.01, 0.05, 0.3, 1.0, 7.0)))
            case "settle":
                await self._settle()
            case "kill" if not self.network.loses:
                daemon = chance.choice(self._daemons)
                daemon.kill()
                self._daemons.remove(daemon)
                await self._start()
            case "verify":
                self._spoil_on_disk()

    def record(self, *what: object) -> None:
        """Note an event, for the explanation of a violation."""
        self.history.append(f"{trio.current_time():9.3f} {' '.join(map(str, what))}")
        self.states.add(hash(tuple(map(_state, self._daemons))))

    async def _start(self) -> None:
        daemon = _Daemon(self, proxied=self._proxied)
        await self._nursery.start(daemon.run)
        self._daemons.append(daemon)

    def _spoil_on_disk(self) -> None:
        """Simulate another boot whose disk has lost some blocks, but only if no version is open."""
        if any(daemon.cache.statistics().open_versions for daemon in self._daemons):
            return
        self.boot_tag += 2
        for daemon in self._daemons:
            daemon.cache._boot_tag = self.boot_tag
        for data in sorted(self.path.glob("v*/*/*.data")):
            if self.chance.random() < 0.5:
                with data.open("r+b") as file:
                    file.write(bytes(min(BLOCK, data.stat().st_size)))

    @property
    def is_troubled(self) -> bool:
        """True if a fault happened within the patience of a current reader."""
        last = max(self.network.faulty_at, self._disk_broke_at)
        return trio.current_time() - last <= _FORGOTTEN_S

    # --- readers ---

    async def _reader(self, daemon: _Daemon, key: str) -> None:
        try:
            await self._open_and_read(daemon, key)
        finally:
            self._readers -= 1
            self._last_read_end.set()
            self._last_read_end = trio.Event()

    async def _open(self, daemon: _Daemon, version: ObjectVersion) -> CachedVersion:
        """Open as the file system does: at once where that is possible, without files where they are absent."""
        cached = daemon.cache.open_at_once(IDENTITY, version, daemon.new_filler, blank=True)
        if cached is not None and cached.backing.is_absent():
            self.events["blank"] += 1
        return cached or await daemon.cache.open(IDENTITY, version, daemon.new_filler)

    async def _open_and_read(self, daemon: _Daemon, key: str) -> None:
        chance = self.chance
        version = self.store.current(key)
        if version is None or daemon.dead:
            return
        cached = await self._open(daemon, version)
        try:
            window = Window(version.size_bytes)
            position = chance.randrange(version.size_bytes)
            await trio.sleep(chance.choice((0.0, 0.0, 0.03, 1.0)))
            if chance.random() < 0.2:
                cached.fill()
            for _ in range(chance.choice((1, 3, 10))):
                size = chance.choice((1, 100, BLOCK // 2, BLOCK, 3 * BLOCK, 64 * BLOCK))
                if chance.random() < 0.3:
                    position = chance.randrange(version.size_bytes)
                wanted = ByteRange(position, position + size).clip(version.size_bytes)
                if wanted:
                    ahead = window.plan(wanted.start, wanted.size, lambda: cached.window_bytes)
                    began = trio.current_time()
                    with trio.move_on_after(0.01 if chance.random() < 0.05 else _NEVER_S) as patience:
                        await self._read(daemon, cached, version, wanted, ahead)
                    if patience.cancelled_caught and trio.current_time() - began >= _NEVER_S:
                        raise Violation(f"{wanted} of {version} is never answered")
                position = wanted.stop if wanted.stop < version.size_bytes else 0
                await trio.sleep(chance.choice((0.0, 0.0, 0.001, 0.2)))
            if chance.random() < 0.1 and not daemon.dead:
                await self._warm(cached, version, daemon)
        finally:
            cached.drop()

    async def _read(
        self, daemon: _Daemon, cached: object, version: ObjectVersion, wanted: ByteRange, ahead: ByteRange | None
    ) -> None:
        began = trio.current_time()
        self.reads += 1
        self.record("read", wanted, version.key, version.validator)
        try:
            data = await cached.read(wanted, ahead)  # type: ignore[attr-defined]
        except Exception as error:
            if not daemon.dead:
                self._judge(error, version, wanted, began)
            return
        if daemon.dead:
            return
        self.read_bytes += len(data)
        right = self.store.body(version)[wanted.start : wanted.stop]
        if data != right and (self._is_ending or not self.network.lossy or len(data) != len(right)):
            raise Violation(f"{wanted} of {version}: {self._difference(version, wanted, data, right)}")

    def _difference(self, version: ObjectVersion, wanted: ByteRange, data: bytes, right: bytes) -> str:
        if len(data) != len(right):
            return f"{len(data)} bytes instead of {len(right)}"
        first = next(index for index, pair in enumerate(zip(data, right, strict=True)) if pair[0] != pair[1])
        wrong = bytes(data[first : first + 16])
        found = [
            f"{key} {etag} at {body.find(wrong)}" for (key, etag), body in self.store.bodies.items() if wrong in body
        ]
        return f"wrong from {wanted.start + first} on: {found or ('zeros' if not any(wrong) else wrong.hex())}"

    def _judge(self, error: Exception, version: ObjectVersion, wanted: ByteRange, began: float) -> None:
        self.errors[type(error).__name__] += 1
        self.record("failed", wanted, version.key, version.validator, repr(error))
        if isinstance(error, VersionGone):
            # Another reader may have asked earlier, and its answer holds for a moment.
            excused = self.store.was_replaced(version, began - _SILENCE_S)
        elif isinstance(error, Stopped):
            excused = False
        else:
            excused = isinstance(error, D7yfsError) and is_passing(error) and self.is_troubled
        if not excused:
            raise Violation(f"{wanted} of {version}: {error!r} without reason") from error

    async def _warm(self, cached: object, version: ObjectVersion, daemon: _Daemon) -> None:
        began = trio.current_time()
        try:
            await cached.fill_whole()  # type: ignore[attr-defined]
        except CacheFull:
            self.errors["CacheFull"] += 1
        except Exception as error:
            if not daemon.dead:
                self._judge(error, version, version.whole, began)

    async def _settle(self) -> None:
        with trio.move_on_after(10 * _NEVER_S) as patience:
            while self._readers:
                await self._last_read_end.wait()
        if patience.cancelled_caught:
            raise Violation(f"{self._readers} readers wait forever")

    async def _end(self, keys: list[str]) -> None:
        """Check the end, without faults: every daemon can read each object whole, and no version
        stays open.
        """
        self._is_ending = True
        await trio.sleep(_FORGOTTEN_S + 300)
        for daemon in self._daemons:
            for key in keys:
                version = self.store.current(key)
                if version is not None:
                    cached = await self._open(daemon, version)
                    await self._read(daemon, cached, version, version.whole, None)
                    cached.drop()
        with trio.move_on_after(_NEVER_S):
            while any(daemon.cache.statistics().open_versions for daemon in self._daemons):  # noqa: ASYNC110
                await trio.sleep(1)
        for daemon in self._daemons:
            await daemon.cache.settle()
            statistics = daemon.cache.statistics()
            if statistics.open_versions or statistics.memory_bytes:
                raise Violation(f"left: {statistics}")

    # --- the disk ---

    def write_all(self, fd: int, data: memoryview, position: int) -> int:
        """Write in place of the cache's own function: the disk takes all of the data, or some, or
        refuses.
        """
        if self._disk_breaks and self.chance.random() < self._disk_breaks and _is_on_disk(fd):
            self._disk_broke_at = trio.current_time()
            os.pwrite(fd, data[: self.chance.randrange(len(data) + 1)], position)
            raise OSError(errno.ENOSPC, "the simulated disk is full")
        return os.pwrite(fd, data, position)

    def check_disk(self) -> None:
        """Check the blocks that the directory calls present."""
        directory = CacheDirectory(self.path, size_limit_bytes=1 << 40, min_free_bytes=0)
        for (key, etag), body in self.store.bodies.items():
            version = ObjectVersion(key, len(body), etag, 1)
            if not directory.cached_bytes(IDENTITY, version):
                continue
            files = directory.open(IDENTITY, version)
            for index, entry in enumerate(files.entries):
                right = body[index * BLOCK : (index + 1) * BLOCK]
                found = os.pread(files.data_fd, len(right), index * BLOCK)
                tag, checksum = entry & 0xFFFFFFFF, entry >> 32
                trusted = tag and (tag == self.boot_tag or crc32c(found) == checksum)
                if trusted and found != right:
                    raise Violation(f"block {index} of {version} is wrong on disk")
            files.close()


_LIKELY = {
    "reader": 40,
    "put": 12,
    "delete": 2,
    "faults": 8,
    "proxy": 2,
    "disk": 2,
    "pass": 20,
    "settle": 3,
    "kill": 2,
    "verify": 1,
}


def _is_on_disk(fd: int) -> bool:
    return "memfd" not in str(Path(f"/proc/self/fd/{fd}").readlink())


def _state(daemon: _Daemon) -> tuple[object, ...]:
    """The state of a daemon's cache: the place of each block, progress of arriving ones, and
    waiting readers.
    """
    return tuple(
        (
            cached.version.identity,
            bytes(cached.backing.presence.blocks),
            tuple(
                (index, each.landed_bytes > 0, each.in_memory)
                for index, each in cached.backing.presence.arriving.items()
            ),
            cached.holds,
            len(cached._waiters),
        )
        for cached in daemon.cache.opened()
    )


def simulate(seed: int, path: Path) -> Outcome:
    """Run once on a new directory `path`. Raises Violation, or any error that escaped the code
    under test.
    """
    world = World(seed, path)
    with pytest.MonkeyPatch.context() as patch:
        scaled(patch)
        random.seed(seed)
        threads = Threads(random.Random(seed))
        patch.setattr(trio.to_thread, "run_sync", threads.run_sync)
        patch.setattr(disk_module, "_in_thread", threads.start_soon)
        patch.setattr(transport_module, "Connection", connection_in(world.network))
        patch.setattr(disk_module, "write_whole", world.write_all)
        patch.setattr(cache_module, "boot_tag", lambda: world.boot_tag)
        try:
            _, steps = clock.run(seed, world.run)
        except BaseException as error:
            error.add_note("\n".join([f"seed {seed}", *world.history]))
            raise
    replies = Counter(world.network.replies)
    return Outcome(steps, world.reads, world.read_bytes, world.errors, replies, world.events, world.states)
