"""Leases on blocks and on the stream, between descriptors and between processes."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from d7yfs.cache.backing import BackingFile
from d7yfs.cache.directory import CacheDirectory
from d7yfs.cache.disk import Lane
from d7yfs.cache.leases import Leases
from d7yfs.objects import ByteRange
from tests.cache.conftest import MountTmpfs
from tests.cache.doubles import MIB, ORIGIN, PromptDisk, backing, directory, fill, version, write

FILE = version(5 * MIB + 9)
WHOLE = FILE.whole


class Daemon:
    """One daemon's view of FILE."""

    def __init__(self, file: BackingFile, within: CacheDirectory, stack: ExitStack) -> None:
        self.file = file
        self.keeps = True
        files = within.open(ORIGIN, FILE)
        stack.callback(files.close)
        self.leases = Leases(files, Lane(PromptDisk()), keeps=lambda: self.keeps, missing=self.missing)

    def missing(self, wanted: ByteRange) -> list[ByteRange]:
        return self.file.missing(wanted)


@contextmanager
def daemons(path: Path) -> Iterator[tuple[Daemon, Daemon]]:
    with ExitStack() as stack:
        within = directory(path)
        one, other = (Daemon(stack.enter_context(backing(FILE, within)), within, stack) for _ in range(2))
        yield one, other


@pytest.fixture(params=["disk", "tmpfs", "overlayfs"])
def path(request: pytest.FixtureRequest, tmp_path: Path, mount_tmpfs: MountTmpfs) -> Iterator[Path]:
    if request.param == "disk":
        yield tmp_path
        return
    tmpfs = mount_tmpfs(64 * MIB)
    if request.param == "tmpfs":
        yield tmpfs
        return
    lower, upper, work, merged = (tmpfs / name for name in ("lower", "upper", "work", "merged"))
    for each in (lower, upper, work, merged):
        each.mkdir()
    options = f"lowerdir={lower},upperdir={upper},workdir={work}"
    subprocess.run(["mount", "-t", "overlay", "-o", options, "d7yfs-test", merged], check=True)
    try:
        yield merged
    finally:
        subprocess.run(["umount", "--lazy", merged], check=True)


def mib(start: int, stop: int) -> ByteRange:
    return ByteRange(start * MIB, stop * MIB).clip(FILE.size_bytes)


def test_a_block_is_leased_once_and_what_is_free_of_a_range_is_ours(path: Path) -> None:
    with daemons(path) as (one, other):
        assert one.leases.take(mib(1, 3)) == ([mib(1, 3)], [])
        assert other.leases.take(WHOLE) == ([mib(0, 1), mib(3, 6)], [mib(1, 3)])
        assert one.leases.take(mib(0, 4)) == ([mib(1, 3)], [mib(0, 1), mib(3, 4)])
        other.leases.release(mib(3, 6))
        assert one.leases.take(WHOLE) == ([mib(1, 6)], [mib(0, 1)])
        one.leases.release(WHOLE)
        assert other.leases.take(WHOLE) == ([WHOLE], [])


def test_the_stream_is_leased_once_and_blocks_apart_from_it(path: Path) -> None:
    with daemons(path) as (one, other):
        assert one.leases.take_stream()
        assert one.leases.take_stream(), "it is ours already"
        assert not other.leases.take_stream()
        assert other.leases.take(WHOLE) == ([WHOLE], [])
        one.leases.release_stream()
        assert other.leases.take_stream()


def test_a_lease_that_ends_with_its_block_leaves_nothing_to_bring(path: Path) -> None:
    with daemons(path) as (one, other):
        one.leases.take(mib(0, 3))
        fill(one.file, 0, 1)
        assert other.leases.take(mib(0, 3)) == ([], [mib(2, 3)])
        one.leases.release(mib(0, 3))
        assert other.leases.take(mib(0, 3)) == ([mib(2, 3)], [])
        assert other.file.taken_over_blocks == 2


def test_a_block_that_lands_between_the_look_and_the_lock(tmp_path: Path) -> None:
    with daemons(tmp_path) as (one, other):
        looks = 0

        def missing(wanted: ByteRange) -> list[ByteRange]:
            nonlocal looks
            found = other.missing(wanted)
            if not looks:
                fill(one.file, 1)
            looks += 1
            return found

        with ExitStack() as stack:
            files = directory(tmp_path).open(ORIGIN, FILE)
            stack.callback(files.close)
            late = Leases(files, Lane(PromptDisk()), keeps=lambda: True, missing=missing)
            one.leases.take(mib(2, 3))
            assert late.take(mib(0, 3)) == ([mib(0, 1)], [mib(2, 3)])


def test_who_is_out_of_patience_takes_what_others_hold(tmp_path: Path) -> None:
    with daemons(tmp_path) as (one, other):
        one.leases.take(mib(0, 3))
        assert other.leases.take(WHOLE, anyway=True) == ([WHOLE], [])
        other.leases.release(WHOLE)
        assert other.leases.take(mib(0, 3)) == ([], [mib(0, 3)]), "which the other holds all the same"


async def test_what_is_not_kept_is_not_leased(tmp_path: Path) -> None:
    with daemons(tmp_path) as (one, other):
        one.leases.take(WHOLE)
        one.leases.take_stream()
        other.keeps = False
        assert other.leases.take(WHOLE) == ([WHOLE], [])
        assert other.leases.take_stream()
        other.leases.release(WHOLE)
        other.leases.release_stream()
    without = Leases(None, Lane(PromptDisk()), keeps=lambda: True, missing=lambda wanted: [wanted])
    assert without.take(WHOLE) == ([WHOLE], [])
    assert without.take_stream()
    without.release(WHOLE)
    without.release_stream()
    assert await without.written_to(7) == 7


def test_a_file_system_without_such_locks_leaves_everything_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EINVAL, "Invalid argument")

    with daemons(tmp_path) as (one, other):
        monkeypatch.setattr(fcntl, "fcntl", refuse)
        for each in (one, other):
            assert each.leases.take(WHOLE) == ([WHOLE], [])
            assert each.leases.take_stream()


async def test_writing_shows_long_before_a_block_is_whole(path: Path) -> None:
    with daemons(path) as (one, other):
        assert await other.leases.written_to(2 * MIB) == 2 * MIB
        fill_head(one.file, 2, 300_000)
        assert 2 * MIB < (await other.leases.written_to(2 * MIB)) < 3 * MIB
        assert await other.leases.written_to(0) == 0


def fill_head(file: BackingFile, index: int, size_bytes: int) -> None:
    write(file, index * MIB, memoryview(bytes(size_bytes)))


def test_leases_and_the_openers_lock_know_nothing_of_each_other(path: Path) -> None:
    """Eviction passes over a pair for its openers, leases or not."""
    within = directory(path)
    with daemons(path) as (one, other):
        one.leases.take(mib(0, 1))
        within.evict(0)
        assert list(path.rglob("*.map"))
        assert within.cached_bytes(ORIGIN, FILE) == 0
        # That has opened and closed the map in this process: no reason for leases to end, unlike
        # with fcntl's older locks.
        assert other.leases.take(mib(0, 1)) == ([], [mib(0, 1)])
    within.evict(0)
    assert not list(path.rglob("*.map"))


_HOLDER = """
import sys
from pathlib import Path
from contextlib import ExitStack
from tests.cache.test_leases import WHOLE, daemons
with daemons(Path(sys.argv[1])) as (one, _):
    assert one.leases.take(WHOLE) == ([WHOLE], [])
    assert one.leases.take_stream()
    print("holds", flush=True)
    sys.stdin.readline()
"""


def test_the_kernel_ends_a_killed_daemons_leases_and_not_a_stopped_ones(path: Path) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", _HOLDER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with daemons(path) as (one, _), holder:
        assert holder.stdout
        assert holder.stdout.readline() == "holds\n"
        holder.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, holder.pid, os.WSTOPPED | os.WNOWAIT)
        assert one.leases.take(WHOLE) == ([], [WHOLE])
        assert not one.leases.take_stream()
        holder.kill()
        holder.wait(20)
        assert one.leases.take(WHOLE) == ([WHOLE], [])
        assert one.leases.take_stream()
