"""Files of earlier versions: never served, gone once no process has them open, counted until then,
and nothing of others touched.
"""

from __future__ import annotations

import logging
import os
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from d7yfs.cache import earlier
from d7yfs.cache.cache import Cache
from d7yfs.cache.directory import EARLIER_FORMATS, FORMAT, CacheDirectory
from d7yfs.config.size_bound import SizeBound
from tests.cache.doubles import MIB, ORIGIN, ManualFiller, backing, directory, fill, until, version

HELD, FREE = version(2 * MIB, "held"), version(3 * MIB, "free")

_HOLDER = """
import fcntl, os, sys
fd = os.open(sys.argv[1], os.O_RDWR)
fcntl.flock(fd, fcntl.LOCK_SH)
print("open", flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A directory that a daemon of format v1 has used for two files: their pairs lie as those of
    today do, under that name.
    """
    made = tmp_path / "cache"
    within = directory(made)
    for each in (HELD, FREE):
        with backing(each, within) as file:
            fill(file)
    (made / FORMAT).rename(made / "v1")
    return made


def map_of(path: Path, size_bytes: int) -> Path:
    (data,) = (each for each in path.glob("v1/*/*.data") if each.stat().st_size == size_bytes)
    return data.with_suffix(".map")


def files(path: Path) -> list[Path]:
    return [each for each in path.rglob("*") if each.is_file()]


@contextmanager
def held(map_path: Path) -> Iterator[None]:
    """Another process has the pair open, as every release has."""
    command = [sys.executable, "-c", _HOLDER, str(map_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdin
        assert holder.stdout
        assert holder.stdout.readline() == "open\n"
        try:
            yield
        finally:
            holder.stdin.close()
            holder.wait(timeout=30)


def test_today_is_not_earlier() -> None:
    assert FORMAT not in EARLIER_FORMATS


def test_its_bytes_are_never_served(path: Path) -> None:
    within = directory(path)
    assert within.cached_bytes(ORIGIN, FREE) == 0
    with backing(FREE, within) as file:
        assert file.presence.missing(FREE.whole) == [FREE.whole]


def test_all_goes(path: Path) -> None:
    told: list[int] = []
    dropped = earlier.drop(path, told.append)
    assert (dropped.files, dropped.kept) == (2, [])
    assert dropped.disk_bytes == told[0] >= 5 * MIB
    assert told == sorted(told, reverse=True)
    assert told[-1] == 0
    assert list(path.iterdir()) == []
    assert earlier.drop(path) == earlier.Dropped()


def test_what_a_process_has_open_stays_until_it_is_closed(path: Path) -> None:
    in_use = map_of(path, HELD.size_bytes)
    left: list[int] = []
    with held(in_use):
        dropped = earlier.drop(path, left.append)
        assert (dropped.files, dropped.kept) == (1, [in_use])
        assert left[-1] >= 2 * MIB
        assert sorted(files(path)) == sorted([in_use, in_use.with_suffix(".data")])
    assert earlier.drop(path).files == 1
    assert list(path.iterdir()) == []


def test_links_go_with_their_pair_and_the_store_keeps_its_file(path: Path, tmp_path: Path) -> None:
    stored = tmp_path / "dfdaemon's"
    stored.write_bytes(bytes(MIB))
    pair = map_of(path, FREE.size_bytes)
    pair.with_suffix(".link").hardlink_to(stored)
    pair.with_suffix(".linkmap").write_bytes(b"x")
    dropped = earlier.drop(path)
    assert dropped.disk_bytes < 6 * MIB, "dfdaemon has it too"
    assert list(path.iterdir()) == []
    assert stored.stat().st_size == MIB


@pytest.mark.parametrize("suffix", [".map", ".data", ".link", ".linkmap"])
def test_what_a_crash_has_left_goes_too(path: Path, suffix: str) -> None:
    left = path / "v1" / "a" / ("a" * 64 + suffix)
    left.write_bytes(b"x")
    earlier.drop(path)
    assert list(path.iterdir()) == []


def test_what_is_under_way_is_left_for_an_hour(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    incoming, probe = path / "v1" / "incoming" / "00ff", path / "v1" / ".probe-7"
    for each in (incoming, probe):
        each.touch()
    earlier.drop(path)
    assert sorted(files(path)) == sorted([incoming, probe])
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + 3601)
    earlier.drop(path)
    assert list(path.iterdir()) == []


def test_what_is_not_ours_stays(path: Path) -> None:
    others = [path / "v1" / "notes.txt", path / "v1" / "a" / "abc.data", path / "v1" / "b" / ("b" * 64 + ".txt")]
    for each in others:
        each.write_bytes(b"theirs")
    earlier.drop(path)
    assert sorted(files(path)) == sorted(others)


def test_another_place_by_that_name_is_not_looked_into(path: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    (path / "v1").rename(elsewhere)
    (path / "v1").symlink_to(elsewhere)
    assert earlier.drop(path) == earlier.Dropped()
    assert len(files(elsewhere)) == 4


def test_another_users_directory_is_not_looked_into(path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a directory away")
    os.chown(path / "v1", 12345, 12345)
    assert earlier.drop(path) == earlier.Dropped()
    assert len(files(path)) == 4
    os.chown(path / "v1", 0, 0)


def test_a_directory_with_an_earlier_format_is_ours(path: Path) -> None:
    path.chmod(0o755)
    directory(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o700


# --- by the cache's evictor ---


async def test_a_cache_drops_it_as_it_is_released_and_says_so_once(
    autojump_clock: MockClock, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    in_use, free = map_of(path, HELD.size_bytes), map_of(path, FREE.size_bytes)
    within = directory(path, size_limit_bytes=64 * MIB)
    assert free.exists(), "a mount does not wait for it"
    cache = Cache(within, memory_buffer_bytes=MIB, read_timeout_s=60)
    cached = await cache.open(ORIGIN, version(5), ManualFiller)
    async with trio.open_nursery() as nursery:
        with held(in_use):
            nursery.start_soon(cache.room.run)
            await until(lambda: not free.exists() and cache.statistics().used_bytes < 3 * MIB)
            assert cache.statistics().used_bytes >= 2 * MIB, "what is held counts"
            assert in_use.exists()
        cache.set_limits(SizeBound(64 * MIB), SizeBound(0), MIB)
        await until(lambda: not (path / "v1").exists())
        await until(lambda: cache.statistics().used_bytes < MIB)
        nursery.cancel_scope.cancel()
    cached.drop()
    (said,) = (each for each in caplog.messages if "earlier" in each)
    assert (
        said == "cache: 0.0 GiB of an earlier version's format are dropped; 1 files more once no process has them open"
    )


def test_what_remains_leaves_less_room_and_is_no_reason_to_spare_what_is_cached(path: Path) -> None:
    in_use = map_of(path, HELD.size_bytes)
    within: CacheDirectory = directory(path, size_limit_bytes=4 * MIB)
    with backing(version(MIB, "new"), within) as file:
        fill(file)

    def left(size_bytes: int) -> None:
        within.earlier_bytes = size_bytes

    with held(in_use):
        earlier.drop(path, left)
        within.evict(4 * MIB)
        assert within.cached_bytes(ORIGIN, version(MIB, "new")) == MIB
        assert not within.has_room(MIB)
        within.evict(2 * MIB)
        assert within.cached_bytes(ORIGIN, version(MIB, "new")) == 0
