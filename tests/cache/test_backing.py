"""Backing files: what was written is what is read, on disk, in memory, across a full disk, a reboot
and a kill.
"""

from __future__ import annotations

import errno
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from d7yfs.cache.backing import BackingFile
from d7yfs.cache.directory import CacheDirectory
from d7yfs.cache.disk import Landing
from d7yfs.cache.memory import MemoryBudget
from d7yfs.cache.pair import Block
from d7yfs.checksum import crc32c
from d7yfs.objects import BLOCK_BYTES, ByteRange
from tests.cache.conftest import MountTmpfs
from tests.cache.doubles import BOOT, MIB, ORIGIN, at_once, backing, data_of, directory, fill, read, version, write

FILE = version(3 * MIB + 12_345)
LATER_BOOT = BOOT + 2


# --- writing ---


@pytest.mark.parametrize("chunk_bytes", [4093, 65_536, MIB - 1, MIB, 3 * MIB])
@pytest.mark.parametrize("on_disk", [True, False])
def test_chunks_of_any_size_make_the_object(tmp_path: Path, chunk_bytes: int, on_disk: bool) -> None:
    with backing(FILE, directory(tmp_path) if on_disk else None) as file:
        for start in range(0, FILE.size_bytes, chunk_bytes):
            write(file, start, data_of(FILE)[start : start + chunk_bytes])
        assert not file.presence.absent_count
        assert not file.presence.arriving
        assert set(file.presence.blocks) == {Block.DISK if on_disk else Block.MEMORY}
        assert read(file, FILE.whole) == data_of(FILE)


@pytest.mark.parametrize("on_disk", [True, False])
def test_overlapping_and_repeated_transfers_write_each_byte_once(tmp_path: Path, on_disk: bool) -> None:
    rng = random.Random(7)
    with backing(FILE, directory(tmp_path) if on_disk else None) as file:
        transfers = [0, 0, MIB, MIB, 2 * MIB, 3 * MIB, 0]
        while any(position < FILE.size_bytes for position in transfers):
            number = rng.randrange(len(transfers))
            position = transfers[number]
            chunk = data_of(FILE)[position : position + rng.choice([1, 1000, 100_000, 900_000])]
            write(file, position, chunk)
            transfers[number] += len(chunk)
            readable = file.presence.first_unreadable(FILE.whole)
            if readable and rng.random() < 0.1:
                assert read(file, ByteRange(0, readable)) == data_of(FILE)[:readable]
        assert read(file, FILE.whole) == data_of(FILE)
        assert file.counts["disk_bytes_written"] == (FILE.size_bytes if on_disk else 0)
        assert not on_disk or all(file.matches_checksum(index) for index in range(4))


def test_the_landed_head_of_a_block_is_readable(tmp_path: Path) -> None:
    with backing(FILE, directory(tmp_path)) as file:
        write(file, MIB, data_of(FILE)[MIB : MIB + 1000])
        assert file.presence.first_unreadable(ByteRange(MIB, MIB + 1001)) == MIB + 1000
        assert read(file, ByteRange(MIB + 10, MIB + 1000)) == data_of(FILE)[MIB + 10 : MIB + 1000]


def test_bytes_behind_a_gap_are_ignored_and_take_no_room(tmp_path: Path) -> None:
    with backing(FILE, directory(tmp_path), room_bytes=MIB) as file:
        write(file, MIB + 1, data_of(FILE)[MIB + 1 : MIB + 100])
        assert not file.presence.arriving
        write(file, 0, data_of(FILE)[:100])
        write(file, 200, data_of(FILE)[200:300])
        assert file.presence.arriving[0].landed_bytes == 100
        assert not file.presence.arriving[0].in_memory
        fill(file, 0)
        assert read(file, ByteRange(0, MIB)) == data_of(FILE)[:MIB]


def test_disk_and_memory_blocks_make_one_read(tmp_path: Path) -> None:
    with backing(FILE, directory(tmp_path), room_bytes=2 * MIB) as file:
        fill(file, 1, 3, 0, 2)
        assert list(file.presence.blocks) == [Block.MEMORY, Block.DISK, Block.MEMORY, Block.DISK]
        wanted = ByteRange(5, FILE.size_bytes - 5)
        assert read(file, wanted) == data_of(FILE, wanted)


# --- transfers that overtake each other ---

BLOCK = ByteRange(0, MIB)


def check(file: BackingFile, wanted: ByteRange) -> None:
    """`wanted` is readable, right, and goes into the map as what it is."""
    assert read(file, wanted) == data_of(file.version, wanted)
    first, last = wanted.start // BLOCK_BYTES, (wanted.stop - 1) // BLOCK_BYTES
    on_disk = [index for index in range(first, last + 1) if file.presence.blocks[index] == Block.DISK]
    assert all(file.matches_checksum(index) for index in on_disk)


@pytest.mark.parametrize(
    "sizes", [(1000, 1000), (1000, 700_000), (700_000, 1000), (MIB, 1000), (1000, MIB), (MIB, MIB)]
)
@pytest.mark.parametrize("swapped", [False, True])
def test_two_transfers_of_one_block_land_in_any_order(tmp_path: Path, sizes: tuple[int, int], swapped: bool) -> None:
    with backing(FILE, directory(tmp_path), room_bytes=MIB) as file:
        write(file, 0, data_of(FILE)[:500])
        both = [file.begin_write(0, data_of(FILE)[:size]) for size in sizes]
        for landings in both:
            file.store(landings)
        assert file.presence.first_unreadable(BLOCK) == 500, "not before it is told"
        for landings in reversed(both) if swapped else both:
            file.finish_write(landings)
        longest = max(sizes)
        assert file.presence.first_unreadable(BLOCK) == (longest if longest < MIB else None)
        write(file, longest, data_of(FILE)[longest:MIB])
        assert file.presence.blocks[0] == Block.DISK, "room was taken once"
        assert not file.presence.arriving
        check(file, BLOCK)


def test_a_block_that_is_there_already_is_not_landed_again(tmp_path: Path) -> None:
    with backing(FILE, directory(tmp_path)) as file:
        both = [file.begin_write(0, data_of(FILE)[:MIB]) for _ in range(2)]
        for landings in both:
            file.store(landings)
            file.finish_write(landings)
        assert file.counts["disk_bytes_written"] == MIB
        assert file.begin_write(0, data_of(FILE)[:MIB]) == []
        check(file, BLOCK)


def test_one_write_of_many_blocks_lands_in_each(tmp_path: Path) -> None:
    """Some are there, one is arriving, and for the last one there is no room on disk."""
    with backing(FILE, directory(tmp_path), room_bytes=3 * MIB) as file:
        fill(file, 1)
        write(file, 0, data_of(FILE)[:1000])
        landings = file.begin_write(0, data_of(FILE))
        assert list(file.presence.blocks) == [Block.ABSENT, Block.DISK, Block.ABSENT, Block.MEMORY]
        file.store(landings)
        file.finish_write(landings)
        assert list(file.presence.blocks) == [Block.DISK, Block.DISK, Block.DISK, Block.MEMORY]
        assert file.counts["disk_bytes_written"] == 3 * MIB
        check(file, FILE.whole)


@pytest.mark.parametrize("begun_anew_bytes", [0, 10, 900])
@pytest.mark.parametrize("disk_fails", [False, True])
def test_what_lands_for_a_block_that_was_given_up_is_nobodys(
    tmp_path: Path, begun_anew_bytes: int, disk_fails: bool
) -> None:
    budget = MemoryBudget(64 * MIB)
    with backing(FILE, directory(tmp_path), budget=budget) as file:
        write(file, 0, data_of(FILE)[:100])
        landings = file.begin_write(100, data_of(FILE)[100:800])
        with _full_disk(file, really=disk_fails):
            file.store(landings)
        file.leave_disk(OSError(errno.EIO, "Input/output error"))
        write(file, 0, data_of(FILE)[:begun_anew_bytes])
        file.finish_write(landings)
        assert file.presence.first_unreadable(BLOCK) == begun_anew_bytes
        assert budget.used_bytes == (MIB if begun_anew_bytes else 0)
        fill(file, 0)
        assert file.presence.blocks[0] == Block.MEMORY
        check(file, BLOCK)


@pytest.mark.parametrize("disk_fails", [False, True])
def test_what_lands_for_a_block_that_another_daemon_has_brought_changes_nothing(
    tmp_path: Path, disk_fails: bool
) -> None:
    with backing(FILE, directory(tmp_path)) as ours, backing(FILE, directory(tmp_path)) as theirs:
        landings = ours.begin_write(0, data_of(FILE)[:MIB])
        with _full_disk(ours, really=disk_fails):
            ours.store(landings)
        fill(theirs, 0)
        assert _takes_over(ours, BLOCK)
        ours.finish_write(landings)
        assert (ours.counts["disk_bytes_written"], ours.taken_over_blocks) == (0, 1)
        assert ours.presence.blocks[0] == Block.DISK
        assert ours.keeps
        check(ours, BLOCK)
        check(theirs, BLOCK)


@contextmanager
def _full_disk(file: BackingFile, *, really: bool = True) -> Iterator[None]:
    """Writes to the data file get ENOSPC."""
    files = file._files
    assert files is not None
    if not really:
        yield
        return
    data_fd, files.data_fd = files.data_fd, os.open("/dev/full", os.O_WRONLY)
    try:
        yield
    finally:
        os.close(files.data_fd)
        files.data_fd = data_fd


@pytest.mark.parametrize("other_bytes", [1000, 300_000, 800_000])
@pytest.mark.parametrize("other_first", [False, True])
def test_bytes_that_the_disk_has_no_room_for_land_in_memory_with_all_of_their_block(
    tmp_path: Path, other_bytes: int, other_first: bool
) -> None:
    """Another transfer of the block was on its way to the disk at the same time, and got there."""
    budget = MemoryBudget(64 * MIB)
    with backing(FILE, directory(tmp_path), budget=budget) as file:
        write(file, 0, data_of(FILE)[:500])
        refused = file.begin_write(500, data_of(FILE)[500:600_000])
        other = file.begin_write(0, data_of(FILE)[:other_bytes])
        file.store(other)
        with _full_disk(file):
            file.store(refused)
        assert file.keeps, "a thread may not say so"
        for landings in (other, refused) if other_first else (refused, other):
            file.finish_write(landings)
        assert not file.keeps
        assert budget.used_bytes == MIB
        landed_bytes = max(other_bytes, 600_000)
        assert file.presence.first_unreadable(BLOCK) == landed_bytes
        check(file, ByteRange(0, landed_bytes))
        write(file, landed_bytes, data_of(FILE)[landed_bytes:MIB])
        assert file.presence.blocks[0] == Block.MEMORY
        check(file, BLOCK)


def test_two_transfers_that_the_disk_refuses_move_their_block_once(tmp_path: Path) -> None:
    budget = MemoryBudget(64 * MIB)
    with backing(FILE, directory(tmp_path), budget=budget) as file:
        both = [file.begin_write(0, data_of(FILE)[:size]) for size in (700_000, 2 * MIB)]
        with _full_disk(file):
            for landings in both:
                file.store(landings)
        for landings in both:
            file.finish_write(landings)
        assert list(file.presence.blocks[:2]) == [Block.MEMORY, Block.MEMORY]
        assert budget.used_bytes == 2 * MIB
        assert file.counts["disk_bytes_written"] == 0
        check(file, ByteRange(0, 2 * MIB))


_SMALL = version(MIB + 5000)
"""One whole block and a short one."""
_TRANSFERS = 3
_Step = tuple[str, int, int]
_SIZES = [1, 700, 5000, 600_000, 2 * MIB]


@st.composite
def _programs(draw: st.DrawFn) -> list[_Step]:
    """The steps of some transfers, and up to two upsets in between."""
    doings = st.sampled_from(["begin", "begin", "store", "finish", "finish", "restart"])
    steps = draw(st.lists(st.tuples(doings, st.integers(0, _TRANSFERS - 1), st.sampled_from(_SIZES)), max_size=25))
    upsets = st.tuples(st.sampled_from(["full", "drop", "leave", "theirs"]), st.integers(0, 1), st.just(0))
    for upset in draw(st.lists(upsets, max_size=2)):
        steps.insert(draw(st.integers(0, len(steps))), upset)
    return steps


class _Transfer:
    """Asks for no more than one write at a time, contiguously from a block's start on."""

    def __init__(self, file: BackingFile) -> None:
        self._file = file
        self._position = 0
        self._size = 0
        self._landings: list[Landing] | None = None
        self._stored = False

    def restart(self) -> None:
        """From the start of the other block."""
        if self._landings is None:
            self._position = 0 if self._position >= MIB else MIB

    def begin(self, size: int) -> None:
        if self._landings is None:
            data = data_of(_SMALL)[self._position : self._position + size]
            self._landings, self._stored, self._size = self._file.begin_write(self._position, data), False, len(data)

    def store(self, *, full: bool = False) -> None:
        if self._landings is not None and not self._stored:
            with _full_disk(self._file, really=full):
                self._file.store(self._landings)
            self._stored = True

    def finish(self) -> None:
        self.store()
        if self._landings is not None:
            self._file.finish_write(self._landings)
            self._landings = None
            self._position += self._size


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=_programs(), room_bytes=st.sampled_from([MIB, 2 * MIB]))
def test_however_transfers_overtake_each_other_every_byte_is_right(
    tmp_path: Path, steps: list[_Step], room_bytes: int
) -> None:
    path = Path(tempfile.mkdtemp(dir=tmp_path))
    budget = MemoryBudget(64 * MIB)
    with (
        backing(_SMALL, directory(path), room_bytes=room_bytes, budget=budget) as file,
        backing(_SMALL, directory(path)) as theirs,
    ):
        transfers = [_Transfer(file) for _ in range(_TRANSFERS)]
        for what, which, much in steps:
            match what:
                case "begin":
                    transfers[which].begin(much)
                case "store":
                    transfers[which].store()
                case "full":
                    transfers[which].store(full=True)
                case "finish":
                    transfers[which].finish()
                case "restart":
                    transfers[which].restart()
                case "drop":
                    if _in_memory(file, which):
                        file._memory.drop(which)
                case "leave":
                    file.leave_disk(OSError(errno.EIO, "Input/output error"))
                case "theirs":
                    fill(theirs, which)
                    _takes_over(file, _SMALL.whole)
            for block in [] if what in ("begin", "store", "full") else _SMALL.whole.split(BLOCK_BYTES):
                unreadable = file.presence.first_unreadable(block)
                if unreadable != block.start:
                    check(file, ByteRange(block.start, unreadable or block.stop))
        for transfer in transfers:
            transfer.finish()
        fill(file)
        check(file, _SMALL.whole)
        assert budget.used_bytes == MIB * sum(_in_memory(file, index) for index in range(2))
        with backing(_SMALL, directory(path)) as later:
            for index in range(2):
                if later.presence.blocks[index] == Block.DISK:
                    check(later, _SMALL.whole.split(BLOCK_BYTES)[index])
    assert budget.used_bytes == 0
    shutil.rmtree(path)


def _takes_over(file: BackingFile, wanted: ByteRange) -> bool:
    """True if another daemon has brought blocks of it since."""
    known = file.taken_over_blocks
    file.missing(wanted)
    return file.taken_over_blocks > known


def _in_memory(file: BackingFile, index: int) -> bool:
    arriving = file.presence.arriving.get(index)
    return arriving.in_memory if arriving else file.presence.blocks[index] == Block.MEMORY


# --- a disk that fails ---


def test_a_full_disk_in_the_middle_of_a_block_moves_it_to_memory(mount_tmpfs: MountTmpfs) -> None:
    cache = directory(mount_tmpfs(2 * MIB))
    budget = MemoryBudget(64 * MIB)
    with backing(FILE, cache, budget=budget) as file:
        fill(file, chunk_bytes=100_000)
        states = list(file.presence.blocks)
        assert states[0] == Block.DISK
        assert states[-1] == Block.MEMORY
        assert read(file, FILE.whole) == data_of(FILE)
        assert not file.keeps
        in_memory = states.count(Block.MEMORY)
        assert budget.used_bytes == in_memory * BLOCK_BYTES
    assert budget.used_bytes == 0
    with backing(FILE, cache) as file:
        kept = file.presence.first_unreadable(FILE.whole)
        assert kept == (len(states) - in_memory) * MIB
        assert read(file, ByteRange(0, kept)) == data_of(FILE)[:kept]


def test_a_block_whose_head_the_disk_lost_is_given_up(tmp_path: Path) -> None:
    with backing(FILE, directory(tmp_path)) as file:
        write(file, 0, data_of(FILE)[:1000])
        (data_path,) = tmp_path.rglob("*.data")
        os.truncate(data_path, 0)
        _refuse_writes(file)
        write(file, 1000, data_of(FILE)[1000:2000])
        assert not file.presence.arriving
        fill(file)
        assert read(file, FILE.whole) == data_of(FILE)


def _refuse_writes(file: BackingFile) -> None:
    """Put a descriptor of the same data in place that refuses writes."""
    files = file._files
    assert files is not None
    read_only = os.open(f"/proc/self/fd/{files.data_fd}", os.O_RDONLY)
    os.dup2(read_only, files.data_fd)
    os.close(read_only)


def test_leaving_the_disk_keeps_what_is_in_memory(tmp_path: Path) -> None:
    with backing(FILE, directory(tmp_path), room_bytes=MIB + 12_345) as file:
        fill(file, 0)
        write(file, 3 * MIB, data_of(FILE)[3 * MIB : 3 * MIB + 10])
        fill(file, 2)
        file.leave_disk(OSError(errno.EIO, "Input/output error"))
        assert list(file.presence.blocks) == [Block.ABSENT, Block.ABSENT, Block.MEMORY, Block.ABSENT]
        assert not file.presence.arriving
        assert not _takes_over(file, FILE.whole)
        assert not file.keeps
        fill(file)
        assert set(file.presence.blocks) == {Block.MEMORY}
        assert read(file, FILE.whole) == data_of(FILE)


def test_a_backing_file_cut_off_under_us_is_an_error_not_a_short_read(tmp_path: Path) -> None:
    with backing(FILE, directory(tmp_path)) as file:
        fill(file)
        (data_path,) = tmp_path.rglob("*.data")
        os.truncate(data_path, MIB + 1)
        _, cold = file.begin_read(FILE.whole)
        with pytest.raises(OSError, match="shorter than its object"):
            file.finish_read(cold)


@contextmanager
def _read_only_map(file: BackingFile) -> Iterator[None]:
    files = file._files
    assert files is not None
    map_fd, files.map_fd = files.map_fd, os.open(f"/proc/self/fd/{files.map_fd}", os.O_RDONLY)
    try:
        yield
    finally:
        os.close(files.map_fd)
        files.map_fd = map_fd


def test_a_map_that_cannot_be_written_costs_only_the_memory_of_it(tmp_path: Path) -> None:
    cache = directory(tmp_path)
    with backing(FILE, cache) as file:
        with _read_only_map(file):
            fill(file)
        assert read(file, FILE.whole) == data_of(FILE)
    assert cache.cached_bytes(ORIGIN, FILE) == 0


# --- memory ---


def test_memory_stays_within_its_budget_and_the_oldest_go_first() -> None:
    budget = MemoryBudget(2 * MIB)
    with backing(FILE, None, budget=budget) as file, backing(version(MIB, "other"), None, budget=budget) as other:
        fill(file, 0, 1, 2)
        assert list(file.presence.blocks) == [Block.ABSENT, Block.MEMORY, Block.MEMORY, Block.ABSENT]
        fill(other)
        assert list(file.presence.blocks) == [Block.ABSENT, Block.ABSENT, Block.MEMORY, Block.ABSENT]
        assert budget.used_bytes == 2 * MIB
        assert os.fstat(file._memory.fd).st_blocks * 512 == MIB
        assert read(other, ByteRange(0, MIB)) == data_of(other.version)
    assert budget.used_bytes == 0


def test_wanted_blocks_stay_in_memory() -> None:
    budget = MemoryBudget(MIB)
    with backing(FILE, None, budget=budget, wanted=frozenset({0, 2})) as file:
        fill(file, 0, 1, 2)
        assert list(file.presence.blocks) == [Block.MEMORY, Block.ABSENT, Block.MEMORY, Block.ABSENT]
        assert read(file, ByteRange(0, MIB)) == data_of(FILE)[:MIB]


def test_the_transfer_of_a_dropped_block_does_no_harm_to_the_next() -> None:
    with backing(FILE, None) as file:
        write(file, 0, data_of(FILE)[:500_000])
        file._memory.drop(0)
        write(file, 0, data_of(FILE)[:1000])
        write(file, 500_000, data_of(FILE)[500_000:MIB])
        assert file.presence.arriving[0].landed_bytes == 1000
        write(file, 1000, data_of(FILE)[1000:MIB])
        assert read(file, ByteRange(0, MIB)) == data_of(FILE)[:MIB]


# --- other daemons, other boots ---


def test_blocks_of_another_daemon_are_taken_over(tmp_path: Path) -> None:
    with backing(FILE, directory(tmp_path)) as ours, backing(FILE, directory(tmp_path), room_bytes=0) as theirs:
        write(theirs, 2 * MIB, data_of(FILE)[2 * MIB : 2 * MIB + 7])
        assert not _takes_over(theirs, FILE.whole)
        fill(ours, 0, 2)
        assert _takes_over(theirs, FILE.whole)
        assert list(theirs.presence.blocks) == [Block.DISK, Block.ABSENT, Block.DISK, Block.ABSENT]
        assert theirs._memory._budget.used_bytes == 0
        assert read(theirs, ByteRange(2 * MIB, 3 * MIB)) == data_of(FILE)[2 * MIB : 3 * MIB]
        assert not _takes_over(theirs, FILE.whole)


def test_after_a_reboot_blocks_are_verified_once(tmp_path: Path) -> None:
    cache = directory(tmp_path)
    with backing(FILE, cache) as file:
        fill(file)
    with backing(FILE, cache, boot_tag=LATER_BOOT) as file:
        assert file.presence.first_unreadable(FILE.whole) == 0
        assert file.presence.missing(FILE.whole) == []
        for index in file.presence.unverified(FILE.whole):
            file.apply_verdict(index, good=file.matches_checksum(index))
        assert read(file, FILE.whole) == data_of(FILE)
    with backing(FILE, cache, boot_tag=LATER_BOOT) as file:
        assert file.presence.unverified(FILE.whole) == []


def test_a_block_that_a_power_loss_corrupted_is_detected_and_brought_again(tmp_path: Path) -> None:
    cache = directory(tmp_path)
    with backing(FILE, cache) as file:
        fill(file)
    (data_path,) = tmp_path.rglob("*.data")
    with data_path.open("r+b") as damaged:
        damaged.seek(MIB + 77)
        damaged.write(bytes(4096))
    with backing(FILE, cache, boot_tag=LATER_BOOT) as file:
        verdicts = {index: file.matches_checksum(index) for index in file.presence.unverified(FILE.whole)}
        assert verdicts == {0: True, 1: False, 2: True, 3: True}
        for index, good in verdicts.items():
            file.apply_verdict(index, good=good)
        assert file.counts["corrupt_blocks"] == 1
        assert file.presence.missing(FILE.whole) == [ByteRange(MIB, 2 * MIB)]
        assert not _takes_over(file, FILE.whole)
        fill(file, 1)
        file.apply_verdict(1, good=False)  # the late verdict of another reader
        assert read(file, FILE.whole) == data_of(FILE)
    with backing(FILE, cache, boot_tag=LATER_BOOT) as file:
        assert set(file.presence.blocks) == {Block.DISK}


def test_a_corrupt_block_that_cannot_be_struck_out_is_not_taken_over_again(tmp_path: Path) -> None:
    cache = directory(tmp_path)
    with backing(FILE, cache) as file:
        fill(file)
    with backing(FILE, cache, boot_tag=LATER_BOOT) as file, _read_only_map(file):
        file.apply_verdict(1, good=False)
        assert not _takes_over(file, FILE.whole)
        assert file.presence.missing(FILE.whole) == [ByteRange(MIB, 2 * MIB)]


# --- the whole object ---


def test_the_crc_of_all_blocks_is_the_objects(tmp_path: Path) -> None:
    cache = directory(tmp_path)
    with backing(FILE, cache) as file:
        fill(file, 0, 1, 2)
        assert (file.presence.all_on_disk, file.whole_crc32c()) == (False, None)
        fill(file, 3)
        assert (file.presence.all_on_disk, file.whole_crc32c()) == (True, crc32c(data_of(FILE)))
        assert file.read_back(ByteRange(MIB - 5, MIB + 5)) == data_of(FILE)[MIB - 5 : MIB + 5]
    with backing(FILE, cache, boot_tag=LATER_BOOT) as file:
        assert file.whole_crc32c() == crc32c(data_of(FILE)), "that of what was written, verified or not"


def test_what_is_partly_in_memory_is_not_whole(tmp_path: Path) -> None:
    with backing(FILE, directory(tmp_path), room_bytes=2 * MIB) as file:
        fill(file)
        assert not file.presence.absent_count
        assert (file.presence.all_on_disk, file.whole_crc32c()) == (False, None)


def test_what_is_struck_out_is_gone_for_all_and_can_be_brought_again(tmp_path: Path) -> None:
    cache = directory(tmp_path)
    with backing(FILE, cache) as file:
        fill(file)
        at_once(file.strike_out())
        with backing(FILE, cache) as other:
            assert set(other.presence.blocks) == {Block.ABSENT}
        assert file.presence.missing(FILE.whole) == [FILE.whole]
        assert not _takes_over(file, FILE.whole)
        fill(file)
        assert read(file, FILE.whole) == data_of(FILE)
    with backing(FILE, cache) as file:
        assert file.whole_crc32c() == crc32c(data_of(FILE))


def test_what_cannot_be_struck_out_is_not_taken_over_again(tmp_path: Path) -> None:
    cache = directory(tmp_path)
    with backing(FILE, cache) as file:
        fill(file)
    with backing(FILE, cache) as file, _read_only_map(file):
        at_once(file.strike_out())
        assert not _takes_over(file, FILE.whole)
        assert file.presence.missing(FILE.whole) == [FILE.whole]
        fill(file)
        assert read(file, FILE.whole) == data_of(FILE)
        assert not file.keeps


_WRITER = """
import sys
from pathlib import Path
from d7yfs.cache.directory import CacheDirectory
from tests.cache.doubles import backing, data_of, directory, version, write
file_version = version(int(sys.argv[2]))
data = data_of(file_version)
with backing(file_version, directory(Path(sys.argv[1]))) as file:
    print("writing", flush=True)
    for start in range(0, len(data), 100_003):
        write(file, start, data[start : start + 100_003])
print("done", flush=True)
sys.stdin.read()
"""


def test_what_a_killed_writer_called_present_is_right(tmp_path: Path) -> None:
    rng = random.Random(3)
    file_version = version(24 * MIB)
    cut_short = 0
    for number in range(6):
        path = tmp_path / str(number)
        writer = subprocess.Popen(
            [sys.executable, "-c", _WRITER, path, str(file_version.size_bytes)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert writer.stdout
        assert writer.stdout.readline() == b"writing\n"
        cache, blocks = CacheDirectory(path, size_limit_bytes=0, min_free_bytes=0), rng.randrange(1, 20)
        while cache.cached_bytes(ORIGIN, file_version) < blocks * MIB:
            assert writer.poll() is None
        writer.send_signal(signal.SIGKILL)
        writer.communicate(timeout=30)
        with backing(file_version, directory(path)) as file:
            present = [index for index, state in enumerate(file.presence.blocks) if state == Block.DISK]
            assert present
            for index in present:
                block = ByteRange(index * MIB, (index + 1) * MIB)
                assert read(file, block) == data_of(file_version, block)
            cut_short += file.presence.absent_count > 0
            fill(file)
            assert read(file, file_version.whole) == data_of(file_version)
    assert cut_short, "no writer was killed in the middle: make the file longer"
