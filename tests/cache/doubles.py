"""Stand-ins for the fetching side, and versions whose bytes are known."""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from dataclasses import fields
from functools import lru_cache
from pathlib import Path
from typing import TypeVar, cast

import trio

from d7yfs.cache.backing import BackingFile
from d7yfs.cache.census import Census
from d7yfs.cache.descriptors import Descriptors
from d7yfs.cache.directory import TRIES, CacheDirectory
from d7yfs.cache.disk import Disk, Lane, _Call
from d7yfs.cache.linked import LinkedStore
from d7yfs.cache.memory import MemoryBudget
from d7yfs.cache.pair import VersionFiles
from d7yfs.cache.version import CachedVersion
from d7yfs.objects import BLOCK_BYTES, ByteRange, ObjectVersion, StoreIdentity

T = TypeVar("T")

ORIGIN = StoreIdentity("s3", "http://127.0.0.1:9", "models")
MIB = 1 << 20
BOOT = 0x5EED


@lru_cache(maxsize=32)
def content(key: str, size_bytes: int) -> bytes:
    return random.Random(key).randbytes(size_bytes)


def version(size_bytes: int, key: str = "weights.bin") -> ObjectVersion:
    return ObjectVersion(key, size_bytes, f'"{key}"', 1)


def data_of(of: ObjectVersion, wanted: ByteRange | None = None) -> memoryview:
    view = memoryview(content(of.key, of.size_bytes))
    return view[wanted.start : wanted.stop] if wanted else view


def bytes_of(of: ObjectVersion, wanted: ByteRange) -> bytes:
    return bytes(data_of(of, wanted))


def directory(path: Path, *, size_limit_bytes: int = 1 << 40, min_free_bytes: int = 0) -> CacheDirectory:
    made = CacheDirectory(path, size_limit_bytes=size_limit_bytes, min_free_bytes=min_free_bytes)
    made.prepare()
    return made


class OpenedDirectory(CacheDirectory):
    """Knows which files it has handed out, so that a kill can take their descriptors away."""

    def __init__(self, path: Path, size_limit_bytes: int) -> None:
        super().__init__(path, size_limit_bytes=size_limit_bytes, min_free_bytes=0)
        self.opened: set[OpenedFiles] = set()

    def open(self, store: StoreIdentity, version: ObjectVersion, *, tries: int = TRIES) -> VersionFiles:
        files = super().open(store, version, tries=tries)
        return OpenedFiles(self, *(getattr(files, field.name) for field in fields(files) if field.init))

    def bury(self) -> None:
        """Do to files as a SIGKILL does: descriptors and locks are gone at once. The numbers stay
        taken until they are closed.
        """
        grave = os.memfd_create("grave")
        for files in self.opened:
            for descriptor in {files.data_fd, files.map_fd} - {-1}:
                os.dup2(grave, descriptor, inheritable=False)
        if self._census._fd >= 0:
            os.dup2(grave, self._census._fd, inheritable=False)
        os.close(grave)

    def leave(self) -> None:
        """Be no daemon of the directory any more."""
        self._census = Census()  # the descriptor of the former one goes with it


class OpenedFiles(VersionFiles):
    __hash__ = object.__hash__

    def __init__(self, directory: OpenedDirectory, *values: object) -> None:
        super().__init__(*values)  # type: ignore[arg-type]
        self._directory = directory
        directory.opened.add(self)

    def close(self) -> None:
        self._directory.opened.remove(self)
        super().close()


def few_descriptors(awake: int = 2) -> Descriptors:
    """So few that versions which nobody reads are laid to rest all the time."""
    few = Descriptors(16 * awake)
    few._first_spare = 1 << 20
    return few


class PromptDisk(Disk):
    """A disk that answers at once: nothing is done in a worker thread, for which a mock clock would
    not wait.
    """

    is_prompt = True

    def __init__(self) -> None:
        super().__init__(clock=lambda: 0.0)

    async def _run(self, call: Callable[[], T], made: _Call[T]) -> T:
        try:
            return call()
        finally:
            self._let_go(made)

    def run_soon(self, call: Callable[[], object]) -> None:
        call()

    def run_behind(self, call: Callable[[], object]) -> None:
        call()


async def until(condition: Callable[[], bool]) -> None:
    """A mock clock jumps whenever all tasks wait, if only for a thread: keep it from that while one
    works, and let time pass else.
    """
    threads = trio.to_thread.current_default_thread_limiter()
    with trio.fail_after(10_000):
        while not condition():  # a thread's work has no event
            if threads.borrowed_tokens:
                await trio.lowlevel.checkpoint()
            else:
                await trio.sleep(0.1)


def at_once(coroutine: Coroutine[object, object, T]) -> T:
    """The result of a coroutine that waits for nothing."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        return cast("T", stop.value)
    raise AssertionError("it waits")


@contextmanager
def backing(
    of: ObjectVersion,
    within: CacheDirectory | None,
    *,
    boot_tag: int = BOOT,
    room_bytes: int = 1 << 40,
    budget: MemoryBudget | None = None,
    wanted: frozenset[int] = frozenset(),
) -> Iterator[BackingFile]:
    """An open backing file; without a directory it has memory alone."""
    room = [room_bytes]

    def take_room(size_bytes: int) -> bool:
        if room[0] < size_bytes:
            return False
        room[0] -= size_bytes
        return True

    disk = PromptDisk()
    files = within.open(ORIGIN, of) if within else None
    if files is not None:
        files.linked = LinkedStore(files, of.size_bytes, boot_tag, disk)
        with suppress(OSError):
            files.linked.open()
    file = BackingFile(
        of,
        files,
        lane=Lane(disk),
        boot_tag=boot_tag,
        budget=budget or MemoryBudget(64 * MIB),
        take_room=take_room,
        room_left=lambda: room[0] > 0,
        is_wanted=wanted.__contains__,
        counts=Counter(),
    )
    try:
        yield file
    finally:
        file.close()


def write(file: BackingFile, offset: int, data: memoryview) -> None:
    """As `CachedVersion` writes, in one go."""
    landings = file.begin_write(offset, data)
    file.store(landings)
    file.finish_write(landings)


def fill(file: BackingFile, *indexes: int, chunk_bytes: int = 300_007) -> None:
    """Bring whole blocks as a transfer would; all of them when none is named."""
    for index in indexes or range(len(file.presence.blocks)):
        block = ByteRange(index * BLOCK_BYTES, min((index + 1) * BLOCK_BYTES, file.version.size_bytes))
        for start in range(block.start, block.stop, chunk_bytes):
            piece = ByteRange(start, min(start + chunk_bytes, block.stop))
            write(file, piece.start, data_of(file.version, piece))


def read(file: BackingFile, wanted: ByteRange) -> bytearray:
    """Bytes of a readable range."""
    assert file.presence.first_unreadable(wanted) is None
    buffer, cold = file.begin_read(wanted)
    if cold:
        file.finish_read(cold)
    return buffer


class ManualFiller:
    """Brings nothing by itself: the test does, through `target`."""

    def __init__(self, target: CachedVersion) -> None:
        self.target = target
        self.requests: list[tuple[ByteRange, ByteRange | None]] = []
        self.prefetches: list[ByteRange] = []
        self.fills = self.stopped_fills = 0
        self._asked = trio.Event()

    def request(self, wanted: ByteRange, ahead: ByteRange | None) -> None:
        self.requests.append((wanted, ahead))
        self._asked.set()

    async def asked(self, times: int) -> None:
        """Wait for so many requests since the start."""
        with trio.fail_after(30):
            while len(self.requests) < times:
                self._asked = trio.Event()
                await self._asked.wait()

    window_bytes = 0

    def fill(self) -> None:
        self.fills += 1

    def stop_filling(self) -> None:
        self.stopped_fills += 1

    def prefetch(self, ahead: ByteRange) -> None:
        self.prefetches.append(ahead)

    async def bring(self, start: int, stop: int) -> None:
        self.target.begin_work()
        try:
            await self.target.write(start, data_of(self.target.version, ByteRange(start, stop)))
        finally:
            self.target.end_work()


def resident_bytes() -> int:
    """Memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def takes_sparse(path: Path, size_bytes: int) -> bool:
    """True if the file system has files of that size: ext4 ends at 16 TiB."""
    with (path / "probe").open("wb") as file:
        try:
            file.truncate(size_bytes)
        except OSError:
            return False
    return True
