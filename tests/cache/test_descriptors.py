"""Descriptors are short: idle data files are closed, and nobody reads anything wrong for it."""

from __future__ import annotations

import os
import resource
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from d7yfs.cache.cache import Cache
from d7yfs.cache.descriptors import Descriptors
from d7yfs.cache.version import CachedVersion
from d7yfs.errors import ReadTimeout, TooManyOpenFiles
from d7yfs.objects import ByteRange
from tests.cache.doubles import MIB, ORIGIN, ManualFiller, PromptDisk, at_once, bytes_of, data_of, directory, version

MOST = 64
FILES = [version(1000 + number, f"file {number}") for number in range(MOST + 20)]
READ_TIMEOUT_S = 60.0


def _cache(path: Path, first_spare: int = 1 << 20) -> Cache:
    """A cache of which `MOST` data files may be open; descriptors from `first_spare` on are the
    headroom. Other tests of this process may have left some open, so that is no fixed number."""
    descriptors = Descriptors(4 * MOST)
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


def _data_files(path: Path) -> int:
    """The open data files of the cache at `path`; other tests of this process may leave some."""
    return sum(name.startswith(str(path)) and name.endswith(".data") for name in _open_names())


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


def _drop_all(opened: list[CachedVersion]) -> None:
    for cached in opened:
        cached.drop()


async def test_data_files_of_idle_versions_are_closed_and_opened_for_a_read(tmp_path: Path) -> None:
    cache = _cache(tmp_path)
    opened = _open_all(cache)
    for _ in range(2):
        assert _data_files(tmp_path) <= MOST
        for cached, file in zip(opened, FILES, strict=True):
            assert at_once(cached.read(file.whole, None)) == bytes_of(file, file.whole)
    assert cache.statistics().misses == 0
    _drop_all(opened)
    assert _data_files(tmp_path) == 0
    assert not cache._descriptors._awake


async def test_a_version_that_is_in_use_keeps_its_data_file(tmp_path: Path) -> None:
    cache = _cache(tmp_path)
    first = at_once(cache.open(ORIGIN, version(5000, "first"), ManualFiller))
    first.begin_work()
    opened = _open_all(cache)
    assert not first._use._data.is_asleep  # type: ignore[union-attr]
    first.end_work()
    _drop_all([first, *opened])


async def test_a_version_that_slept_goes_on_arriving(tmp_path: Path) -> None:
    cache, file = _cache(tmp_path), version(9000, "arriving")
    cached = await cache.open(ORIGIN, file, ManualFiller)
    await cached.write(0, data_of(file)[:4000])
    opened = _open_all(cache)
    assert cached._use._data.is_asleep  # type: ignore[union-attr]
    cached.begin_work()
    await cached.write(4000, data_of(file)[4000:])
    assert cached.is_whole
    assert await cached.read(file.whole, None) == bytes_of(file, file.whole)
    cached.end_work()
    _drop_all([cached, *opened])


@pytest.mark.parametrize("trouble", ["gone", "replaced"])
async def test_data_that_was_taken_away_meanwhile_is_fetched_again(
    tmp_path: Path, trouble: str, nursery: trio.Nursery
) -> None:
    cache, file = _cache(tmp_path), version(9000, "first")
    fillers: list[ManualFiller] = []

    def new_filler(target: CachedVersion) -> ManualFiller:
        fillers.append(ManualFiller(target))
        return fillers[-1]

    cached = await cache.open(ORIGIN, file, new_filler)
    await cached.write(0, data_of(file))
    (data_path,) = tmp_path.rglob("*.data")
    opened = _open_all(cache)
    assert cached._use._data.is_asleep  # type: ignore[union-attr]
    if trouble == "replaced":
        shutil.copy(data_path, tmp_path / "other")
        (tmp_path / "other").write_bytes(bytes(9000))
        (tmp_path / "other").rename(data_path)
    else:
        data_path.unlink()
    read: list[bytes | bytearray] = []

    async def reading() -> None:
        read.append(await cached.read(file.whole, None))

    async with trio.open_nursery() as readers:
        readers.start_soon(reading)
        await trio.testing.wait_all_tasks_blocked()
        await cached.write(0, data_of(file))
    assert read == [bytes_of(file, file.whole)]
    _drop_all([cached, *opened])


async def test_a_read_waits_while_no_descriptor_can_be_had(tmp_path: Path, autojump_clock: MockClock) -> None:
    cache = _cache(tmp_path)
    opened = _open_all(cache)
    wanted = ByteRange(10, 500)
    read: list[bytes | bytearray] = []

    async def reading() -> None:
        read.append(await opened[0].read(wanted, None))

    async with trio.open_nursery() as readers:
        assert opened[0]._use._data.is_asleep  # type: ignore[union-attr]
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


async def test_the_headroom_is_not_for_files(tmp_path: Path) -> None:
    assert not Descriptors(256).are_short(127)
    assert Descriptors(256).are_short(128), "half, of few"
    assert not Descriptors(1 << 16).are_short(57_343)
    assert Descriptors(1 << 16).are_short(57_344), "an eighth, of many"
    before = _descriptors()
    mark = before[-1] + 50
    cache = _cache(tmp_path, mark)
    opened: list[CachedVersion] = []

    def open_many() -> None:
        for number in range(mark + 1):
            opened.append(at_once(cache.open(ORIGIN, version(1000, f"spare {number}"), ManualFiller)))

    with pytest.raises(TooManyOpenFiles):
        open_many()
    assert opened
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
