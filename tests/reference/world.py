"""Runs a program of the reference model: real daemons over sockets and a real directory.

It is compared with a dict from versions to bytes. After every step the invariants are checked;
bytes are judged when a reader gets them.
"""

from __future__ import annotations

import itertools
import logging
import os
import traceback
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from d7yfs.cache import cache as cache_module
from d7yfs.cache.directory import CacheDirectory
from d7yfs.checksum import crc32c
from d7yfs.errors import D7yfsError
from d7yfs.objects import BLOCK_BYTES, ByteRange, ObjectVersion
from tests.reference.clock import jump_when_idle, threads_idle
from tests.reference.daemon import Daemon
from tests.reference.names import Names
from tests.reference.program import (
    LARGE_BYTES,
    PATHS,
    BreakDisk,
    Cancel,
    Delete,
    DenyListings,
    FailListings,
    FillDisk,
    Heal,
    Kill,
    List,
    Look,
    Open,
    Pass,
    Program,
    Put,
    Read,
    Reboot,
    Refresh,
    Release,
    Settle,
    Spoil,
    Step,
)
from tests.reference.store import IDENTITY, Store

_FORGOTTEN_S = 120.0
"""The time after which no fault excuses an error any more."""

_CHANGE_S = 0.001
"""A pause, so that a question after a change has a later time."""

_NEVER_S = 900.0
"""A time longer than any reader or transfer may take."""


def run(program: Program, path: Path) -> None:
    """Run `program` on a new cache directory `path`. Raises AssertionError with all faults."""
    clock = MockClock()
    with pytest.MonkeyPatch.context() as patch, _errors_logged() as logged:
        world = _World(program, path, clock, patch)
        trio.run(world.run, clock=clock)
    wrong = world.wrong + [f"logged: {each}" for each in logged]
    if leaked := _descriptors(path) - world.foreign:
        wrong.append(f"descriptors left open: {sorted(leaked)}")
    assert not wrong, "\n".join(wrong)


_NOTHING = ByteRange(0, 0)


@dataclass(eq=False)
class _Handle:
    daemon: Daemon
    file: str
    inode: int
    etag: str
    number: int


@dataclass(eq=False)
class _Question:
    """A task that waits for names."""

    step: Look | List | Refresh
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    done: trio.Event = field(default_factory=trio.Event)


@dataclass(eq=False)
class _Reader:
    handle: _Handle
    step: Read
    wanted: ByteRange = _NOTHING
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    done: trio.Event = field(default_factory=trio.Event)


class _World:
    def __init__(self, program: Program, path: Path, clock: MockClock, patch: pytest.MonkeyPatch) -> None:
        self.wrong: list[str] = []
        self.foreign = _descriptors(path)
        """The descriptors that were open before."""
        self._program = program
        self._path = path
        self._clock = clock
        self._patch = patch
        self._boot_tag = 1
        self._full = False
        self._step: Step | None = None
        self._store: Store
        self._nursery: trio.Nursery
        self._daemons: list[Daemon] = []
        self._slots: dict[int, _Handle] = {}
        self._readers: list[_Reader] = []
        self._questions: list[_Question] = []
        self._names: dict[Daemon, Names] = {}
        self._files_read: set[str] = set()
        self._most_wanted_blocks: dict[Daemon, int] = {}

    async def run(self) -> None:
        self._store = Store(self._program.setup)
        async with self._store.running(), trio.open_nursery() as self._nursery:
            self._nursery.start_soon(jump_when_idle, self._clock)
            self._boot()
            for _ in range(self._program.setup.daemons):
                self._daemons.append(await self._started())
            for step in self._program.steps:
                self._step = step
                await self._do(step)
                self._check_bounds()
                for daemon in self._daemons:
                    self._names[daemon].check()
                if self.wrong:
                    break
            else:
                self._step = None
                await self._end()
            for slot in list(self._slots):
                self._release(slot)
            for daemon in self._daemons:
                await daemon.stop()
            await threads_idle()
            self._check_disk()
            self._nursery.cancel_scope.cancel()

    def _fail(self, what: str) -> None:
        self.wrong.append(f"{trio.current_time():.2f} s, at {self._step or 'the end'}: {what}")

    # --- steps ---

    async def _do(self, step: Step) -> None:
        match step:
            case Open():
                await self._open(step.slot, self._daemon(step.daemon), step.file)
            case Read():
                await self._start_reading(step)
            case Cancel():
                if waiting := self._waiting:
                    cancelled = waiting[step.reader % len(waiting)]
                    cancelled.scope.cancel()
                    await self._wait_for(cancelled)
            case Release():
                self._release(step.slot)
            case Pass():
                await trio.sleep(step.seconds)
            case Settle():
                await self._settle()
            case Put():
                self._store.make(step.file, step.body)
                await trio.sleep(_CHANGE_S)
            case Delete():
                self._store.delete(step.file)
                await trio.sleep(_CHANGE_S)
            case Look() | List() | Refresh():
                await self._ask(step)
            case FailListings():
                self._store.listed.fail(step.count, step.after)
            case DenyListings():
                self._store.listed.deny(denied=step.denied)
            case Spoil():
                self._store.spoil(step.file, step.faults, forever=step.forever)
            case Heal():
                self._store.heal()
            case FillDisk():
                self._full = step.full
                for daemon in self._daemons:
                    daemon.fill_disk(full=step.full)
            case BreakDisk():
                self._daemon(step.daemon).break_disk(step.refuses)
            case Kill():
                await self._kill(self._daemon(step.daemon))
            case Reboot():
                await self._reboot(step)

    def _daemon(self, number: int) -> Daemon:
        return self._daemons[number % len(self._daemons)]

    async def _open(self, slot: int, daemon: Daemon, file: str) -> None:
        self._release(slot)
        with trio.move_on_after(_NEVER_S) as patience:
            opened = await self._names[daemon].open(file)
        if patience.cancelled_caught:
            self._fail(f"waits for ever: open of {file}")
        elif opened is not None:
            number, inode, etag = opened
            if daemon.filesystem.tree.get(inode).size_bytes != len(self._store.bodies[file, etag]):
                self._fail(f"{file} {etag} has another size")
            others = {each.inode for each in self._slots.values() if (each.daemon, each.etag) == (daemon, etag)}
            if others - {inode}:
                self._fail(f"{file} {etag} is open as inode {others}, and is inode {inode}")
            self._slots[slot] = _Handle(daemon, file, inode, etag, number)

    def _release(self, slot: int) -> None:
        handle = self._slots.pop(slot, None)
        if handle is not None:
            handle.daemon.filesystem.release(handle.number)

    async def _start_reading(self, step: Read) -> None:
        if step.slot not in self._slots:
            await self._open(step.slot, self._daemon(step.slot), list(LARGE_BYTES)[step.slot])
        handle = self._slots.get(step.slot)
        if handle is None:
            return
        self._files_read.add(handle.file)
        reader = _Reader(handle, step)
        self._readers.append(reader)
        handle.daemon.nursery.start_soon(self._read, reader)
        if step.wait:
            await self._wait_for(reader)

    async def _settle(self) -> None:
        while (waiting := self._waiting) and not self.wrong:
            await self._wait_for(waiting[0])

    @property
    def _waiting(self) -> list[_Reader | _Question]:
        return [*self._readers, *self._questions]

    async def _wait_for(self, reader: _Reader | _Question) -> None:
        with trio.move_on_after(_NEVER_S) as patience:
            await reader.done.wait()
        if patience.cancelled_caught:
            self._fail(f"waits for ever: {reader}")

    async def _kill(self, daemon: Daemon) -> None:
        await self._die([daemon])
        self._daemons[self._daemons.index(daemon)] = await self._started()

    async def _reboot(self, step: Reboot) -> None:
        for daemon in self._daemons:
            daemon.dead = True
        await self._die(self._daemons)
        self._boot()
        maps = sorted(self._path.glob("v2/*/*.map"))
        if step.torn_map and maps:
            os.truncate(maps[0], maps[0].stat().st_size // 2)
        for data in self._path.glob("v2/*/*.data"):
            with data.open("r+b") as file:
                file.write(bytes(min(step.lost_blocks * BLOCK_BYTES, data.stat().st_size)))
        self._daemons = [await self._started() for _ in self._daemons]

    async def _die(self, daemons: list[Daemon]) -> None:
        for daemon in daemons:
            await daemon.kill()
        await threads_idle()
        for slot in [slot for slot, handle in self._slots.items() if handle.daemon in daemons]:
            self._release(slot)
        self._check_disk()

    def _boot(self) -> None:
        self._boot_tag += 2
        tag = self._boot_tag
        self._patch.setattr(cache_module, "boot_tag", lambda: tag)

    async def _started(self) -> Daemon:
        daemon = Daemon(self._path, self._store, self._program.setup)
        daemon.fill_disk(full=self._full)
        await self._nursery.start(daemon.run)
        self._names[daemon] = Names(daemon, self._store.listed, self._fail)
        return daemon

    # --- names ---

    async def _ask(self, step: Look | List | Refresh) -> None:
        daemon = self._daemon(step.daemon)
        question = _Question(step)
        self._questions.append(question)
        daemon.nursery.start_soon(self._answer, question, self._names[daemon])
        if step.wait:
            await self._wait_for(question)

    async def _answer(self, question: _Question, names: Names) -> None:
        try:
            with question.scope:
                match question.step:
                    case Look(path=path):
                        await names.look(path)
                    case List(path=path, pause_s=pause_s):
                        await names.list(path, pause_s)
                    case Refresh(path=path):
                        await names.refresh(path)
        finally:
            self._questions.remove(question)
            question.done.set()

    # --- readers ---

    async def _read(self, reader: _Reader) -> None:
        handle, step = reader.handle, reader.step
        body = self._store.bodies[handle.file, handle.etag]
        try:
            with reader.scope:
                for turn in range(step.count):
                    offset = step.offset + turn * step.stride
                    if offset < 0 or self._slots.get(step.slot) is not handle:
                        break
                    reader.wanted = ByteRange(offset, offset + step.size).clip(len(body))
                    self._note_wanted(handle.daemon)
                    await self._read_once(handle, offset, step.size, body)
        finally:
            self._readers.remove(reader)
            reader.done.set()

    async def _read_once(self, handle: _Handle, offset: int, size: int, body: bytes) -> None:
        what = f"{size} bytes at {offset} of {handle.file} {handle.etag}"
        try:
            data = await handle.daemon.filesystem.read(handle.number, offset, size)
        except D7yfsError as error:
            if not handle.daemon.dead and not self._store.excuses(error, handle.file, handle.etag):
                self._fail(f"{what}: {error!r} without reason")
        except Exception:
            if not handle.daemon.dead:
                self._fail(f"{what}: {traceback.format_exc()}")
        else:
            if not handle.daemon.dead and data != body[offset : offset + size]:
                self._fail(f"{what}: {self._difference(data, handle, offset, size)}")

    def _difference(self, data: bytes | bytearray, handle: _Handle, offset: int, size: int) -> str:
        body = self._store.bodies[handle.file, handle.etag]
        right = body[offset : offset + size]
        if len(data) != len(right):
            return f"got {len(data)} bytes, not {len(right)}"
        first = next(index for index, (got, wanted) in enumerate(zip(data, right, strict=True)) if got != wanted)
        wrong = bytes(data[first : first + 64])
        others = [
            etag
            for (file, etag), other in self._store.bodies.items()
            if file == handle.file and wrong == other[offset + first :][:64]
        ]
        source = f"version {others[0]}'s" if others else "zeros" if not any(wrong) else "nobody's"
        return f"wrong from byte {offset + first} on, {source}"

    def _note_wanted(self, daemon: Daemon) -> None:
        wanted = {
            (reader.handle.file, reader.handle.etag, block.start)
            for reader in self._readers
            if reader.handle.daemon is daemon
            for block in reader.wanted.split(BLOCK_BYTES)
        }
        # One may be partial at either end; `split` counts both.
        blocks = {(file, etag, start // BLOCK_BYTES) for file, etag, start in wanted}
        self._most_wanted_blocks[daemon] = max(self._most_wanted_blocks.get(daemon, 0), len(blocks))

    # --- invariants ---

    def _check_bounds(self) -> None:
        held_bytes = 0
        open_versions = 0
        for daemon in self._daemons:
            statistics = daemon.cache.statistics()
            held_bytes += statistics.memory_bytes
            open_versions += statistics.open_versions
            # Blocks that a reader waits for are never dropped, nor is the one that is arriving.
            wanted_bytes = (self._most_wanted_blocks.get(daemon, 0) + 1) * BLOCK_BYTES
            if statistics.memory_bytes > max(statistics.memory_limit_bytes, wanted_bytes):
                self._fail(f"{statistics.memory_bytes} bytes in memory, {wanted_bytes} are wanted at most")
        descriptors = _descriptors(self._path) - self.foreign
        in_memory = sum(os.fstat(number).st_blocks * 512 for number, name in descriptors if "d7yfs-uncached" in name)
        if in_memory > held_bytes:
            self._fail(f"memory files have {in_memory} bytes, {held_bytes} are accounted for")
        waiters = sum(len(cached._waiters) for daemon in self._daemons for cached in daemon.cache.opened())
        if waiters > len(self._readers):
            self._fail(f"{waiters} readers are waited for, there are {len(self._readers)}")
        if sum(name.removesuffix(" (deleted)").endswith(".data") for _, name in descriptors) > open_versions:
            self._fail(f"more data files than open versions ({open_versions}): {sorted(descriptors)}")

    def _check_disk(self) -> None:
        """The blocks that the directory calls present are right, for this boot and by their
        checksum."""
        directory = CacheDirectory(self._path, size_limit_bytes=1 << 40, min_free_bytes=0)
        for (file, etag), body in self._store.bodies.items():
            version = ObjectVersion(file, len(body), etag, 1)
            if not body or not directory.cached_bytes(IDENTITY, version):
                continue
            files = directory.open(IDENTITY, version)
            for index, entry in enumerate(files.entries):
                start = index * BLOCK_BYTES
                right = body[start : start + BLOCK_BYTES]
                stored = os.pread(files.data_fd, len(right), start)
                tag, checksum = entry & 0xFFFFFFFF, entry >> 32
                trusted = tag and (tag == self._boot_tag or crc32c(stored) == checksum)
                if trusted and stored != right:
                    self._fail(f"block {index} of {file} {etag} is wrong on disk")
            files.close()

    async def _end(self) -> None:
        """All is well again: each reader gets its bytes, each file can be read, and nothing is
        left."""
        self._store.heal()
        await self._settle()
        for slot in list(self._slots):
            self._release(slot)
        await trio.sleep(_FORGOTTEN_S)
        for daemon, path in itertools.product(self._daemons, PATHS):
            await self._names[daemon].list(path, 0.0)
        for number, file in itertools.product(range(len(self._daemons)), sorted(self._files_read)):
            await self._do(Open(0, number, file))
            if 0 in self._slots:
                await self._do(Read(0, 0, 64 << 20))
        self._release(0)
        with trio.move_on_after(_NEVER_S):
            while any(daemon.cache.statistics().open_versions for daemon in self._daemons):  # noqa: ASYNC110 - no event tells
                await trio.sleep(1)
        for daemon in self._daemons:
            statistics = daemon.cache.statistics()
            if statistics.open_versions or statistics.memory_bytes:
                self._fail(f"left: {statistics}")
            self._names[daemon].forget()
            remembered = daemon.filesystem.tree.statistics().remembered
            if daemon.filesystem.open_files or remembered != 1:
                self._fail(f"left: {daemon.filesystem.open_files} handles, {remembered - 1} inodes")


def _descriptors(path: Path) -> set[tuple[int, str]]:
    """Open sockets, memory files and files of the cache at `path`."""
    found = set()
    for link in Path("/proc/self/fd").iterdir():
        try:
            target = str(link.readlink())
        except FileNotFoundError:
            continue
        if target.startswith(("socket:", "/memfd:", str(path))):
            found.add((int(link.name), target))
    return found


class _errors_logged(logging.Handler):
    """A log handler that collects d7yfs's errors: each is unexpected."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self._messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self._messages.append(self.format(record))

    def __enter__(self) -> list[str]:
        logging.getLogger("d7yfs").addHandler(self)
        return self._messages

    def __exit__(self, *_: object) -> None:
        logging.getLogger("d7yfs").removeHandler(self)
