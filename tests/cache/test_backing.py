"""Backing files: what was written is what is read, on disk, in memory, across a full disk, a reboot and a kill."""

from __future__ import annotations

import errno
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from d7yfs.cache.backing import BackingFile, MemoryBudget
from d7yfs.cache.directory import CacheDirectory
from d7yfs.cache.presence import Block
from d7yfs.objects import BLOCK_BYTES, ByteRange
from tests.cache.conftest import MountTmpfs
from tests.cache.doubles import BOOT, MIB, ORIGIN, backing, data_of, directory, fill, read, version

FILE = version(3 * MIB + 12_345)
LATER_BOOT = BOOT + 2


# --- writing ---


@pytest.mark.parametrize("chunk_bytes", [4093, 65_536, MIB - 1, MIB, 3 * MIB])
@pytest.mark.parametrize("on_disk", [True, False])
def test_chunks_of_any_size_make_the_object(tmp_path: Path, chunk_bytes: int, on_disk: bool) -> None:
    with backing(FILE, directory(tmp_path) if on_disk else None) as file:
        for start in range(0, FILE.size_bytes, chunk_bytes):
            file.write(start, data_of(FILE)[start : start + chunk_bytes])
        assert file.presence.complete
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
            file.write(position, chunk)
            transfers[number] += len(chunk)
            readable = file.presence.first_unreadable(FILE.whole)
            if readable and rng.random() < 0.1:
                assert read(file, ByteRange(0, readable)) == data_of(FILE)[:readable]
        assert read(file, FILE.whole) == data_of(FILE)
        assert file.disk_bytes_written == (FILE.size_bytes if on_disk else 0)
        assert not on_disk or all(file.matches_checksum(index) for index in range(4))


def test_the_landed_head_of_a_block_is_readable(tmp_path: Path) -> None:
    with backing(FILE, directory(tmp_path)) as file:
        file.write(MIB, data_of(FILE)[MIB : MIB + 1000])
        assert file.presence.first_unreadable(ByteRange(MIB, MIB + 1001)) == MIB + 1000
        assert read(file, ByteRange(MIB + 10, MIB + 1000)) == data_of(FILE)[MIB + 10 : MIB + 1000]


def test_bytes_behind_a_gap_are_ignored_and_take_no_room(tmp_path: Path) -> None:
    with backing(FILE, directory(tmp_path), room_bytes=MIB) as file:
        file.write(MIB + 1, data_of(FILE)[MIB + 1 : MIB + 100])
        assert not file.presence.arriving
        file.write(0, data_of(FILE)[:100])
        file.write(200, data_of(FILE)[200:300])
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
        file.write(0, data_of(FILE)[:1000])
        (data_path,) = tmp_path.rglob("*.data")
        os.truncate(data_path, 0)
        _refuse_writes(file)
        file.write(1000, data_of(FILE)[1000:2000])
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
        file.write(3 * MIB, data_of(FILE)[3 * MIB : 3 * MIB + 10])
        fill(file, 2)
        file.leave_disk(OSError(errno.EIO, "Input/output error"))
        assert list(file.presence.blocks) == [Block.ABSENT, Block.ABSENT, Block.MEMORY, Block.ABSENT]
        assert not file.presence.arriving
        assert not file.refresh(FILE.whole)
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
        assert os.fstat(file._memory_fd).st_blocks * 512 == MIB
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
        file.write(0, data_of(FILE)[:500_000])
        file.drop_memory_block(0)
        file.write(0, data_of(FILE)[:1000])
        file.write(500_000, data_of(FILE)[500_000:MIB])
        assert file.presence.arriving[0].landed_bytes == 1000
        file.write(1000, data_of(FILE)[1000:MIB])
        assert read(file, ByteRange(0, MIB)) == data_of(FILE)[:MIB]


# --- other daemons, other boots ---


def test_blocks_of_another_daemon_are_taken_over(tmp_path: Path) -> None:
    with backing(FILE, directory(tmp_path)) as ours, backing(FILE, directory(tmp_path), room_bytes=0) as theirs:
        theirs.write(2 * MIB, data_of(FILE)[2 * MIB : 2 * MIB + 7])
        assert not theirs.refresh(FILE.whole)
        fill(ours, 0, 2)
        assert theirs.refresh(FILE.whole)
        assert list(theirs.presence.blocks) == [Block.DISK, Block.ABSENT, Block.DISK, Block.ABSENT]
        assert theirs._budget.used_bytes == 0
        assert read(theirs, ByteRange(2 * MIB, 3 * MIB)) == data_of(FILE)[2 * MIB : 3 * MIB]
        assert not theirs.refresh(FILE.whole)


def test_after_a_reboot_blocks_are_verified_once(tmp_path: Path) -> None:
    cache = directory(tmp_path)
    with backing(FILE, cache) as file:
        fill(file)
    with backing(FILE, cache, boot_tag=LATER_BOOT) as file:
        assert file.presence.first_unreadable(FILE.whole) == 0
        assert file.presence.missing(FILE.whole) == []
        for index in file.presence.unverified(FILE.whole):
            file.verified(index, good=file.matches_checksum(index))
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
            file.verified(index, good=good)
        assert file.corrupt_blocks == 1
        assert file.presence.missing(FILE.whole) == [ByteRange(MIB, 2 * MIB)]
        assert not file.refresh(FILE.whole)
        fill(file, 1)
        file.verified(1, good=False)  # the late verdict of another reader
        assert read(file, FILE.whole) == data_of(FILE)
    with backing(FILE, cache, boot_tag=LATER_BOOT) as file:
        assert set(file.presence.blocks) == {Block.DISK}


def test_a_corrupt_block_that_cannot_be_struck_out_is_not_taken_over_again(tmp_path: Path) -> None:
    cache = directory(tmp_path)
    with backing(FILE, cache) as file:
        fill(file)
    with backing(FILE, cache, boot_tag=LATER_BOOT) as file, _read_only_map(file):
        file.verified(1, good=False)
        assert not file.refresh(FILE.whole)
        assert file.presence.missing(FILE.whole) == [ByteRange(MIB, 2 * MIB)]


_WRITER = """
import sys
from pathlib import Path
from d7yfs.cache.directory import CacheDirectory
from tests.cache.doubles import backing, data_of, directory, version
file_version = version(int(sys.argv[2]))
data = data_of(file_version)
with backing(file_version, directory(Path(sys.argv[1]))) as file:
    print("writing", flush=True)
    for start in range(0, len(data), 100_003):
        file.write(start, data[start : start + 100_003])
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
            cut_short += not file.presence.complete
            fill(file)
            assert read(file, file_version.whole) == data_of(file_version)
    assert cut_short, "no writer was killed in the middle: make the file longer"
