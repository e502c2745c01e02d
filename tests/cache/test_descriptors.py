"""Descriptors are short: idle versions are laid to rest, and nobody reads anything wrong for it."""

from __future__ import annotations

import os
import resource
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from d7yfs.cache import inspection
from d7yfs.cache.cache import Cache
from d7yfs.cache.descriptors import SMALL_BYTES, Descriptors
from d7yfs.cache.directory import delete_pair
from d7yfs.cache.disk import Disk
from d7yfs.cache.pair import Block, identity_of
from d7yfs.cache.version import CachedVersion
from d7yfs.checksum import crc32c
from d7yfs.errors import ReadTimeout, TooManyOpenFiles
from d7yfs.objects import ByteRange, ObjectVersion
from tests.cache.doubles import (
    MIB,
    ORIGIN,
    ManualFiller,
    PromptDisk,
    at_once,
    bytes_of,
    data_of,
    directory,
    few_descriptors,
    version,
)

MOST = 64
FILES = [version(1000 + number, f"file {number}") for number in range(MOST + 20)]
READ_TIMEOUT_S = 60.0


def _cache(path: Path, first_spare: int = 1 << 20) -> Cache:
    """A cache of which `MOST` versions may be awake; descriptors from `first_spare` on are the
    headroom. Other tests of this process may have left some open, so that is no fixed number."""
    descriptors = few_descriptors(MOST)
    descriptors._first_spare = first_spare
    return Cache(
        directory(path),
        memory_buffer_bytes=16 * MIB,
        read_timeout_s=READ_TIMEOUT_S,
        disk=PromptDisk(),
        descriptors=descriptors,
    )


def _open_all(cache: Cache) -> list[CachedVersion]:
    """All files, with their bytes."""
    opened = []
    for file in FILES:
        opened.append(at_once(cache.open(ORIGIN, file, ManualFiller)))
        at_once(opened[-1].write(0, data_of(file)))
    return opened


def _descriptors() -> list[int]:
    """The descriptors of this process."""
    return sorted(int(each.name) for each in Path("/proc/self/fd").iterdir())[:-1]  # the last was of the directory


def _open_names() -> list[str]:
    """The names of all that this process has open."""
    return [os.path.realpath(each) for each in Path("/proc/self/fd").iterdir()]


def _open_files(path: Path) -> int:
    """The open files of the cache at `path`; other tests of this process may leave some."""
    return sum(name.startswith(str(path)) for name in _open_names())


@contextmanager
def _no_descriptor_left() -> Iterator[None]:
    """The kernel refuses every further descriptor of this process with EMFILE."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(_descriptors()) + 1, hard))
    try:
        while True:
            taken.append(os.open("/dev/null", os.O_RDONLY))
    except OSError:
        pass
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for fd in taken:
            os.close(fd)


def _map_of(path: Path, file: ObjectVersion) -> Path:
    """The map of a version in the cache at `path`."""
    return directory(path)._map_path(identity_of(ORIGIN, file))


def _drop_all(opened: list[CachedVersion]) -> None:
    for cached in opened:
        cached.drop()


async def test_an_idle_small_version_holds_no_descriptor(tmp_path: Path) -> None:
    cache = _cache(tmp_path)
    opened = _open_all(cache)
    for _ in range(2):
        assert _open_files(tmp_path) <= 2 * MOST
        for cached, file in zip(opened, FILES, strict=True):
            assert await cached.read(file.whole, None) == bytes_of(file, file.whole)
    assert cache.statistics().misses == 0
    assert opened[0].is_asleep
    assert opened[0].is_whole
    _drop_all(opened)
    assert _open_files(tmp_path) == 0
    assert not cache._descriptors._awake


async def test_an_idle_large_version_holds_the_lock_of_its_map(tmp_path: Path) -> None:
    cache, file = _cache(tmp_path), version(SMALL_BYTES + 1, "large")
    cached = await cache.open(ORIGIN, file, ManualFiller)
    await cached.write(0, data_of(file))
    opened = _open_all(cache)
    assert cached.is_asleep
    assert [name.endswith(".map") for name in _open_names() if _map_of(tmp_path, file).stem in name] == [True]
    assert not delete_pair(_map_of(tmp_path, file))
    assert await cached.read(file.whole, None) == bytes_of(file, file.whole)
    _drop_all([cached, *opened])
    assert _open_files(tmp_path) == 0
    assert delete_pair(_map_of(tmp_path, file))


async def test_a_large_version_that_is_closed_in_its_sleep_leaves_nothing(tmp_path: Path) -> None:
    cache, file = _cache(tmp_path), version(SMALL_BYTES + 1, "large")
    cached = await cache.open(ORIGIN, file, ManualFiller)
    opened = _open_all(cache)
    assert cached.is_asleep
    _drop_all([cached, *opened])
    assert _open_files(tmp_path) == 0


async def test_dfdaemons_file_rests_with_its_version(tmp_path: Path) -> None:
    cache, file = _cache(tmp_path / "c"), version(2 * MIB, "linked")
    store = tmp_path / "task"
    store.write_bytes(data_of(file))
    cached = await cache.open(ORIGIN, file, ManualFiller)
    link_path = cached.backing.new_link_path()
    assert link_path is not None
    link_path.hardlink_to(store)
    await cached.backing.adopt_link(link_path)
    cached.land_linked(file.whole, [crc32c(data_of(file, each)) for each in file.whole.split(MIB)])
    cached.backing.end_link(link_path)
    opened = _open_all(cache)
    assert cached.is_asleep
    assert not [name for name in _open_names() if _map_of(tmp_path / "c", file).stem in name]
    assert await cached.read(file.whole, None) == bytes_of(file, file.whole)
    assert {*cached.backing.presence.blocks} == {Block.LINKED}
    _drop_all([cached, *opened])


async def test_versions_that_were_in_use_together_rest_when_they_no_longer_are(tmp_path: Path) -> None:
    cache = _cache(tmp_path)
    opened = []
    for file in FILES:
        opened.append(at_once(cache.open(ORIGIN, file, ManualFiller)))
        opened[-1].begin_work()
    assert len(cache._descriptors._awake) == len(FILES)
    for cached in opened:
        cached.end_work()
    assert len(cache._descriptors._awake) == MOST
    _drop_all(opened)
    assert _open_files(tmp_path) == 0


async def test_a_version_that_is_in_use_stays_awake(tmp_path: Path) -> None:
    cache = _cache(tmp_path)
    first = at_once(cache.open(ORIGIN, version(5000, "first"), ManualFiller))
    first.begin_work()
    opened = _open_all(cache)
    assert not first.is_asleep
    first.end_work()
    _drop_all([first, *opened])


async def test_what_has_no_room_on_disk_is_lost_in_the_sleep(tmp_path: Path) -> None:
    cache, file = _cache(tmp_path), version(3 * MIB, "half")
    fillers: list[ManualFiller] = []

    def new_filler(target: CachedVersion) -> ManualFiller:
        fillers.append(ManualFiller(target))
        return fillers[-1]

    cached = await cache.open(ORIGIN, file, new_filler)
    await fillers[0].bring(0, MIB)
    limit_bytes, cache._directory.size_limit_bytes = cache._directory.size_limit_bytes, 0
    await fillers[0].bring(MIB, 2 * MIB)
    cache._directory.size_limit_bytes = limit_bytes
    await fillers[0].bring(2 * MIB, 2 * MIB + 4000)
    opened = _open_all(cache)
    assert cached.is_asleep
    assert [cached.has(each) for each in file.whole.split(MIB)] == [True, False, False]
    assert cached.cached_bytes == MIB
    assert cache.statistics().memory_bytes == 0
    cached.fill()
    assert not fillers[0].fills, "no filler works for a version that is asleep"
    async with trio.open_nursery() as readers:
        readers.start_soon(cached.read, file.whole, None)
        await fillers[0].asked(1)
        await fillers[0].bring(MIB, 3 * MIB)
    assert cached.is_whole
    _drop_all([cached, *opened])


@pytest.mark.parametrize("trouble", ["dropped", "data gone", "data replaced", "struck out"])
async def test_what_was_taken_away_meanwhile_is_fetched_again(tmp_path: Path, trouble: str) -> None:
    cache, file = _cache(tmp_path), version(9000, "first")
    fillers: list[ManualFiller] = []

    def new_filler(target: CachedVersion) -> ManualFiller:
        fillers.append(ManualFiller(target))
        return fillers[-1]

    cached = await cache.open(ORIGIN, file, new_filler)
    await cached.write(0, data_of(file))
    (data_path,) = tmp_path.rglob("*.data")
    opened = _open_all(cache)
    assert cached.is_asleep
    if trouble == "dropped":
        assert delete_pair(data_path.with_suffix(".map"))
    elif trouble == "data gone":
        data_path.unlink()
    elif trouble == "data replaced":
        shutil.copy(data_path, tmp_path / "other")
        (tmp_path / "other").write_bytes(bytes(9000))
        (tmp_path / "other").rename(data_path)
    else:
        data_path.write_bytes(bytes(9000))
        inspection.verify([each for each in inspection.stored(tmp_path) if each.map.key == "first"], lambda _: None)
    read: list[bytes | bytearray] = []

    async def reading() -> None:
        read.append(await cached.read(file.whole, None))

    async with trio.open_nursery() as readers:
        readers.start_soon(reading)
        readers.start_soon(reading)
        await fillers[0].asked(2)
        await cached.write(0, data_of(file))
    assert read == [bytes_of(file, file.whole)] * 2
    _drop_all([cached, *opened])
    assert await cache.cached_bytes(ORIGIN, [file]) == [9000], "it is kept as before"


async def test_another_look_at_the_disk_waits_for_what_was_to_be_written(tmp_path: Path) -> None:
    cache, file, disk = _cache(tmp_path), version(9000, "first"), Disk(patience_s=0.5)
    cache._disk = disk
    cached = await cache.open(ORIGIN, file, ManualFiller)
    await cached.write(0, data_of(file))
    hung = threading.Event()
    disk.run_behind(hung.wait)
    cached.retract(file.whole)
    assert cached.use.rest()
    with pytest.raises(trio.TooSlowError), trio.fail_after(0.2):
        await cached.read(file.whole, None)
    hung.set()
    await cached.wake()
    assert not cached.has(file.whole), "the entry was struck out first"
    cached.drop()
    await disk.wait_until_quiet()


async def test_while_the_disk_hangs_a_version_that_wakes_is_uncached(tmp_path: Path) -> None:
    cache, file, disk = _cache(tmp_path), version(9000, "first"), Disk(patience_s=0.2)
    cache._disk = disk
    cached = await cache.open(ORIGIN, file, ManualFiller)
    await cached.write(0, data_of(file))
    hung = threading.Event()
    disk.run_behind(hung.wait)
    assert cached.use.rest()
    await cached.wake()
    assert not cached.keeps
    await cached.write(0, data_of(file))
    assert await cached.read(file.whole, None) == bytes_of(file, file.whole)
    hung.set()
    cached.drop()
    await disk.wait_until_quiet()


async def test_blocks_that_could_not_be_struck_out_are_never_looked_at_again(tmp_path: Path) -> None:
    cache, file = _cache(tmp_path), version(9000, "first")
    cached = await cache.open(ORIGIN, file, ManualFiller)
    await cached.write(0, data_of(file))
    files = cached.backing._files
    assert files is not None
    map_fd, files.map_fd = files.map_fd, os.open("/dev/full", os.O_WRONLY)
    await cached.record_mismatch(strike_out=True)
    os.close(files.map_fd)
    files.map_fd = map_fd
    assert not cached.use.rest()
    assert not cached.has(file.whole)
    cached.drop()


async def test_a_grant_that_ends_while_its_version_sleeps_is_struck_out(tmp_path: Path) -> None:
    cache, file = _cache(tmp_path), version(9000, "first")
    cached = await cache.open(ORIGIN, file, ManualFiller)
    cached.grants.record("one", 1.0)
    assert cached.use.rest()
    cached.grants.strike("one")
    cached.grants.record("other", 2.0)
    cached.drop()
    again = await cache.open(ORIGIN, file, ManualFiller)
    assert again.grants.recorded_at("one") is None
    assert again.grants.recorded_at("other") == 2.0
    again.drop()


async def test_a_read_waits_while_no_descriptor_can_be_had(tmp_path: Path, autojump_clock: MockClock) -> None:
    cache = _cache(tmp_path)
    opened = _open_all(cache)
    wanted = ByteRange(10, 500)
    read: list[bytes | bytearray] = []

    async def reading() -> None:
        read.append(await opened[0].read(wanted, None))

    async with trio.open_nursery() as readers:
        assert opened[0].is_asleep
        # Others have nothing to give either.
        for cached in opened[1:]:
            cached.begin_work()
        with _no_descriptor_left():
            readers.start_soon(reading)
            await trio.sleep(READ_TIMEOUT_S / 2)
            assert not read
    assert read == [bytes_of(FILES[0], wanted)]
    assert cache.statistics().misses == 0
    for cached in opened[1:]:
        cached.end_work()
    _drop_all(opened)


async def test_a_read_that_waits_too_long_for_a_descriptor_says_so(tmp_path: Path, autojump_clock: MockClock) -> None:
    cache = _cache(tmp_path)
    opened = _open_all(cache)
    for cached in opened[1:]:
        cached.begin_work()
    with _no_descriptor_left(), pytest.raises(ReadTimeout, match="file 0: the daemon's file descriptors were used up"):
        await opened[0].read(FILES[0].whole, None)
    assert await opened[0].read(FILES[0].whole, None) == bytes_of(FILES[0], FILES[0].whole)
    for cached in opened[1:]:
        cached.end_work()
    _drop_all(opened)


async def test_an_open_without_descriptors_is_refused_and_not_uncached(tmp_path: Path) -> None:
    cache = _cache(tmp_path)
    with _no_descriptor_left(), pytest.raises(TooManyOpenFiles, match=r"file 0: .* used up .*LimitNOFILE"):
        await cache.open(ORIGIN, FILES[0], ManualFiller)
    assert cache.statistics().uncached_opens == 0
    (await cache.open(ORIGIN, FILES[0], ManualFiller)).drop()


async def test_an_open_without_descriptors_waits_for_some(tmp_path: Path, nursery: trio.Nursery) -> None:
    cache, opened, done = _cache(tmp_path), list[CachedVersion](), trio.Event()

    async def open_one() -> None:
        opened.append(await cache.open(ORIGIN, FILES[0], ManualFiller))
        done.set()

    with _no_descriptor_left():
        nursery.start_soon(open_one)
        await trio.testing.wait_all_tasks_blocked()
        assert not opened
    with trio.fail_after(30):
        await done.wait()
    _drop_all(opened)


async def test_the_headroom_is_not_for_files(tmp_path: Path, autojump_clock: MockClock) -> None:
    assert not Descriptors(256).are_short(127)
    assert Descriptors(256).are_short(128), "half, of few"
    assert not Descriptors(1 << 16).are_short(57_343)
    assert Descriptors(1 << 16).are_short(57_344), "an eighth, of many"
    before = _descriptors()
    mark = before[-1] + 50
    cache = _cache(tmp_path, mark)
    opened: list[CachedVersion] = []

    async def open_many() -> None:
        for number in range(mark + 1):
            opened.append(await cache.open(ORIGIN, version(1000, f"spare {number}"), ManualFiller))
            opened[-1].begin_work()

    with pytest.raises(TooManyOpenFiles):
        await open_many()
    assert opened
    assert _descriptors()[-1] < mark + 2
    for cached in opened:
        cached.end_work()
    # What is not in use makes room.
    for number in range(mark):
        opened.append(await cache.open(ORIGIN, version(1000, f"more {number}"), ManualFiller))
    assert _descriptors()[-1] < mark + 2
    _drop_all(opened)
    assert _descriptors() == before


async def test_an_uncached_version_without_blocks_has_no_descriptor(tmp_path: Path) -> None:
    cache = _cache(tmp_path)
    before = _descriptors()
    cache._directory.size_limit_bytes = 0
    opened = []
    for number in range(40):  # the budget is 16 MiB
        file = version(MIB, f"large {number}")
        opened.append(at_once(cache.open(ORIGIN, file, ManualFiller)))
        at_once(opened[-1].write(0, data_of(file)))
    assert sum(name.startswith("/memfd:d7yfs") for name in _open_names()) == 16
    _drop_all(opened)
    assert _descriptors() == before
