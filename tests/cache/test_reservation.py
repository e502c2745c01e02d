"""Blocks that another process writes into the data file of an open version."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import trio

from d7yfs.cache.pair import Block
from d7yfs.cache.reservation import Reservation
from d7yfs.checksum import crc32c
from d7yfs.objects import BLOCK_BYTES, ByteRange
from tests.cache.doubles import MIB, bytes_of, version
from tests.cache.test_version import FILE, Opened, Reader, settle, start


def write(reserved: Reservation, at: int, stop: int) -> None:
    """As the other process: write the bytes, then say so."""
    os.pwrite(reserved.fd, bytes_of(FILE, ByteRange(at, stop)), at)
    blocks = ByteRange(at // BLOCK_BYTES * BLOCK_BYTES, stop).split(BLOCK_BYTES)
    reserved.land(stop, [crc32c(bytes_of(FILE, each)) for each in blocks])


async def test_what_another_process_writes_wakes_readers_and_lasts(tmp_path: Path, nursery: trio.Nursery) -> None:
    with Opened(tmp_path) as opened:
        reserved = opened.cached.reserve(FILE.whole)
        assert reserved is not None
        assert reserved.wanted == FILE.whole
        early, late = Reader(opened.cached, 100, 1000), Reader(opened.cached, MIB - 10, MIB + 10)
        await start(nursery, early, late)
        write(reserved, 0, 5000)
        assert await early.right()
        assert late.waits
        write(reserved, 5000, 2 * MIB + 7)
        assert await late.right()
        write(reserved, 2 * MIB + 7, FILE.size_bytes)
        assert opened.cached.is_whole
        assert opened.cached.backing.whole_crc32c() == crc32c(bytes_of(FILE, FILE.whole))
        assert opened.cached.backing.counts["disk_bytes_written"] == FILE.size_bytes
    with Opened(tmp_path) as again:
        assert again.cached.is_whole
        assert await again.cached.read(FILE.whole, None) == bytes_of(FILE, FILE.whole)


async def test_it_goes_on_where_a_block_was_left_and_ends_before_one_that_is_there(tmp_path: Path) -> None:
    with Opened(tmp_path) as opened:
        await opened.filler.bring(0, MIB + 100)
        await opened.filler.bring(3 * MIB, FILE.size_bytes)
        assert opened.cached.reserve(ByteRange(0, MIB)) is None  # it is there
        assert opened.cached.reserve(ByteRange(MIB, 2 * MIB)) is None  # its first bytes are
        reserved = opened.cached.reserve(ByteRange(MIB + 100, FILE.size_bytes))
        assert reserved is not None
        assert reserved.wanted == ByteRange(MIB + 100, 3 * MIB)
        assert reserved.crc == crc32c(bytes_of(FILE, ByteRange(MIB, MIB + 100)))
        write(reserved, MIB + 100, 3 * MIB)
        assert opened.cached.is_whole
        assert reserved.last_landed(4096) == bytes_of(FILE, ByteRange(3 * MIB - 4096, 3 * MIB))


async def test_blocks_that_another_transfer_brings_meanwhile_are_counted_once(tmp_path: Path) -> None:
    with Opened(tmp_path) as opened:
        reserved = opened.cached.reserve(FILE.whole)
        assert reserved is not None
        await opened.filler.bring(0, 2 * MIB)
        write(reserved, 0, 3 * MIB)
        assert [opened.cached.backing.presence.blocks[index] for index in range(4)] == [Block.DISK] * 3 + [Block.ABSENT]
        assert await opened.cached.read(ByteRange(0, 3 * MIB), None) == bytes_of(FILE, ByteRange(0, 3 * MIB))


async def test_what_is_retracted_stays_absent_whatever_is_said_later(tmp_path: Path) -> None:
    with Opened(tmp_path) as opened:
        reserved = opened.cached.reserve(FILE.whole)
        assert reserved is not None
        write(reserved, 0, MIB + 10)
        assert opened.cached.retract(ByteRange(100, MIB + 10)) == 0
        reserved.land(2 * MIB, [crc32c(bytes_of(FILE, ByteRange(MIB, 2 * MIB)))])
        assert not opened.cached.has(ByteRange(0, 1))
        assert not opened.cached.has(ByteRange(MIB, MIB + 1))


async def test_only_blocks_with_room_are_reserved(tmp_path: Path) -> None:
    with Opened(tmp_path, limit_bytes=2 * MIB + 500_000) as opened:
        reserved = opened.cached.reserve(FILE.whole)
        assert reserved is not None
        assert reserved.wanted == ByteRange(0, 2 * MIB)
        assert opened.cached.reserve(ByteRange(2 * MIB, FILE.size_bytes)) is None


async def test_a_disk_that_refuses_is_left_and_what_has_landed_stays(tmp_path: Path, nursery: trio.Nursery) -> None:
    with Opened(tmp_path) as opened:
        reserved = opened.cached.reserve(FILE.whole)
        assert reserved is not None
        write(reserved, 0, 1000)
        reserved.refuse(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
        assert not opened.cached.keeps
        assert opened.cached.reserve(FILE.whole) is None
        reader = Reader(opened.cached, 10, 2000)
        await start(nursery, reader)
        await opened.filler.bring(1000, 2000)
        await settle()
        assert await reader.right()


async def test_what_is_written_late_is_in_no_block_that_can_be_read(tmp_path: Path) -> None:
    """As by a mover that could not be killed."""
    with Opened(tmp_path) as opened:
        reserved = opened.cached.reserve(FILE.whole)
        assert reserved is not None
        write(reserved, 0, MIB + 1000)
        reserved.refuse(OSError(errno.ETIMEDOUT, "the cache's disk does not answer"))
        await opened.filler.bring(MIB + 1000, FILE.size_bytes)
        os.pwrite(reserved.fd, b"late" * 1000, MIB + 1000)
        blocks = opened.cached.backing.presence.blocks
        assert [blocks[index] for index in range(3)] == [Block.DISK, Block.MEMORY, Block.MEMORY]
        assert await opened.cached.read(ByteRange(0, 3 * MIB), None) == bytes_of(FILE, ByteRange(0, 3 * MIB))
    with Opened(tmp_path) as again:  # nor for the next daemon
        assert again.cached.missing(ByteRange(0, 3 * MIB)) == [ByteRange(MIB, 3 * MIB)]


async def test_a_version_without_files_takes_all_bytes_here(tmp_path: Path) -> None:
    with Opened(tmp_path, limit_bytes=0) as opened:
        assert opened.cached.reserve(version(MIB).whole) is None
