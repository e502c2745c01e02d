"""The backing file of one object version: every byte lands here once and is served from here.

A block lies on disk when the cache directory has room for it, else in a memory file that belongs to this process and whose total is
bounded by `MemoryBudget` (*uncached* reading: a block lives until newer ones need its room). Presence is kept in `Presence`; a disk
block's entry (checksum and boot tag) is written to the map only after its bytes are. Beside its own file a version may have dfdaemon's
(`LinkedStore`); each block is read from whichever has it.

All methods are called from the trio thread, except `store`, `finish_read`, `read_back`, `matches_checksum`, `check_linked` and
`whole_crc32c`, which are for a worker thread. Those that are for the trio thread wait for no disk. Used by `CachedVersion` only.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import logging
import os
import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import crc32c

from d7yfs.cache.budget import MemoryBudget
from d7yfs.cache.directory import ENTRY_BYTES, HEADER_BYTES, VersionFiles
from d7yfs.cache.disk import DiskStalled, Lane
from d7yfs.cache.linked import LinkedStore, LinkFailed, read_whole
from d7yfs.cache.presence import Arriving, Block, Presence, block_range
from d7yfs.checksum import crc32c_of_blocks
from d7yfs.objects import BLOCK_BYTES, ByteRange, ObjectVersion

log = logging.getLogger(__name__)
Cold = list[tuple[int, int, memoryview]]
"""What is still to be read from a disk: descriptor, offset, where to."""
_ON_DISK = frozenset({Block.DISK, Block.UNVERIFIED, Block.LINKED, Block.UNVERIFIED_LINK})
_LINKED = frozenset({Block.LINKED, Block.UNVERIFIED_LINK})
_ENTRY = struct.Struct("=Q")
_STREAMING_BYTES = 256 << 10
"""A read from disk of this size is one of many in order: that is how the kernel reads ahead."""
_DISK_AHEAD_BYTES = 4 << 20
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(slots=True)
class Landing:
    """Bytes of one block on their way to the disk."""

    index: int
    block: ByteRange
    offset: int
    """In the block."""
    data: memoryview
    arriving: Arriving
    crc: int
    """CRC32C of the block's bytes before these; with them once they are stored. Of no use in memory."""
    error: OSError | None = None

    def own(self) -> None:
        """Have a copy of the bytes: those that are lent may change before a disk that stalls has taken them."""
        self.data = memoryview(bytes(self.data))


class BackingFile:
    """Bytes of `version`, in `files` on disk and, for blocks that the disk has no room for, in memory.

    `linked` is dfdaemon's file of it, where there are `files`. What may wait for the disk goes by `lane`. `take_room(n)` reserves room for
    n more bytes on disk, if there is any; `room_left()` only looks. `is_wanted(index)` says whether a reader waits for that block.
    """

    def __init__(
        self,
        version: ObjectVersion,
        files: VersionFiles | None,
        linked: LinkedStore | None,
        *,
        lane: Lane,
        boot_tag: int,
        budget: MemoryBudget,
        take_room: Callable[[int], bool],
        room_left: Callable[[], bool],
        is_wanted: Callable[[int], bool],
    ) -> None:
        self.version = version
        self._files = files
        self._lane = lane
        self._boot_tag = boot_tag
        self._budget = budget
        self._take_room = take_room
        self._room_left = room_left
        self.is_wanted = is_wanted
        self._memory_fd = -1
        self._disk_refused = False
        self.disk_bytes_written = 0
        self.corrupt_blocks = 0
        self.checksum_mismatches = 0
        self.taken_over_blocks = 0
        self.presence = Presence(version.size_bytes, (self._stored_state(e) for e in files.entries) if files else ())
        self._linked = linked
        for index, state in enumerate(self._linked.blocks if self._linked else ()):
            if state != Block.ABSENT and self.presence.blocks[index] == Block.ABSENT:
                self.presence.landed(index, state)

    def _stored_state(self, entry: int) -> Block:
        tag = entry & 0xFFFFFFFF
        if not tag:
            return Block.ABSENT
        return Block.DISK if tag == self._boot_tag else Block.UNVERIFIED

    @property
    def keeps(self) -> bool:
        """Whether new blocks go to disk: it has neither failed nor refused this version, and there is room."""
        return self._files is not None and not self._disk_refused and self._room_left()

    def refresh(self, wanted: ByteRange) -> bool:
        """Take over the blocks of `wanted` that another daemon on this cache directory has written since; whether there were any.

        Only entries of this boot: what else appears for an absent block is one that we have found corrupt and could not strike out.
        """
        if self._files is None or self._disk_refused:
            return False
        found = False
        for run in self.presence.missing(wanted):
            first = run.start // BLOCK_BYTES
            count = -(-run.size // BLOCK_BYTES)
            stored = bytearray(count * ENTRY_BYTES)
            # It was read whole when it was opened.
            read_bytes = self._read_fresh(self._files.map_fd, HEADER_BYTES + first * ENTRY_BYTES, memoryview(stored))
            for index, (entry,) in enumerate(
                _ENTRY.iter_unpack(stored[: read_bytes // ENTRY_BYTES * ENTRY_BYTES]), first
            ):
                if self._stored_state(entry) == Block.DISK:
                    self._forget_arriving(index)
                    self._files.entries[index] = entry
                    self.presence.landed(index, Block.DISK)
                    self.taken_over_blocks += 1
                    found = True
        return found

    def begin_write(self, offset: int, data: memoryview) -> list[Landing]:
        """What of `data` is to be written to disk: `store` does it, in a worker thread if need be, and `finish_write` makes it readable.

        `data` at `offset` continues what has landed of its block, or repeats it, and must stay as it is until `finish_write`. What belongs
        into memory is written here.
        """
        landings = []
        position = 0
        while position < len(data):
            start = offset + position
            index = start // BLOCK_BYTES
            block = block_range(index, self.version.size_bytes)
            chunk = data[position : position + block.stop - start]
            position += len(chunk)
            if self.presence.blocks[index] != Block.ABSENT:
                continue
            landing = self._begin_landing(index, block, start - block.start, chunk)
            if landing is None:
                continue
            if landing.arriving.in_memory:
                self._land_in_memory(landing)
            else:
                landings.append(landing)
        return landings

    def _begin_landing(self, index: int, block: ByteRange, offset: int, chunk: memoryview) -> Landing | None:
        arriving = self.presence.arriving.get(index)
        known_bytes = (arriving.landed_bytes if arriving else 0) - offset
        if known_bytes < 0 or known_bytes >= len(chunk):
            # Behind a gap: the block was given up while this transfer went on, which has nothing to continue. Or there is nothing new.
            return None
        if arriving is None:
            in_memory = self._files is None or self._disk_refused or not self._take_room(block.size)
            arriving = self.presence.arriving[index] = Arriving(0, 0, in_memory)
            if in_memory:
                self._budget.add(self, index)
        return Landing(index, block, offset + known_bytes, chunk[known_bytes:], arriving, arriving.crc)

    def store(self, landings: list[Landing]) -> None:
        """Write to disk what `begin_write` has left. For any thread: an error is kept for `finish_write`."""
        files = self._files
        if files is None:
            return  # nobody waited for it any more, and the version was closed
        for landing in landings:
            try:
                _pwrite_all(files.data_fd, landing.data, landing.block.start + landing.offset)
            except OSError as error:
                landing.error = error
            landing.crc = crc32c.crc32c(landing.data, landing.crc)

    def finish_write(self, landings: list[Landing]) -> None:
        """What `store` has written is readable, unless its block has come, or was given up, in the meantime."""
        for landing in landings:
            index, arriving = landing.index, landing.arriving
            if self.presence.arriving.get(index) is not arriving:
                continue
            if landing.error is not None:
                if not isinstance(landing.error, DiskStalled):
                    self._refuse_disk(landing.error)
                if not arriving.in_memory and not self._move_to_memory(index, landing.block, arriving):
                    continue
            if arriving.in_memory:
                self._land_in_memory(landing)
            else:
                self.disk_bytes_written += len(landing.data)
                self._land(landing)

    def _land_in_memory(self, landing: Landing) -> None:
        _pwrite_all(self._memory(), landing.data, landing.block.start + landing.offset)
        self._land(landing)

    def _land(self, landing: Landing) -> None:
        arriving = landing.arriving
        landed_bytes = landing.offset + len(landing.data)
        if landed_bytes <= arriving.landed_bytes:
            return  # another transfer was quicker
        arriving.crc = landing.crc
        arriving.landed_bytes = landed_bytes
        if landed_bytes == landing.block.size:
            self._complete(landing.index, arriving)

    def _complete(self, index: int, arriving: Arriving) -> None:
        if arriving.in_memory:
            self.presence.landed(index, Block.MEMORY)
            return
        self._store_entry(index, arriving.crc << 32 | self._boot_tag)
        self.presence.landed(index, Block.DISK)

    def _store_entry(self, index: int, entry: int) -> None:
        """Write block `index`'s entry into the map; when that fails the block is still right for this process."""
        if self._files is None:
            return
        self._files.entries[index] = entry
        self._lane.disk.soon(partial(self._write_entry, self._files.map_fd, index, entry))

    def _write_entry(self, map_fd: int, index: int, entry: int) -> None:
        try:
            os.pwrite(map_fd, _ENTRY.pack(entry), HEADER_BYTES + index * ENTRY_BYTES)
        except OSError as error:
            log.warning("cache: presence of a block of %s could not be recorded: %s", self.version.key, error.strerror)

    def _refuse_disk(self, error: OSError) -> None:
        if not self._disk_refused:
            log.warning("cache: %s cannot be kept: %s; reading on uncached", self.version.key, error.strerror)
        self._disk_refused = True

    def _move_to_memory(self, index: int, block: ByteRange, arriving: Arriving) -> bool:
        """The disk refused the rest of an arriving block: take its landed head along, or give the block up if that is lost."""
        assert self._files is not None
        head = memoryview(bytearray(arriving.landed_bytes))
        if self._read_fresh(self._files.data_fd, block.start, head) < len(head):
            self.presence.drop(index)
            return False
        _pwrite_all(self._memory(), head, block.start)
        arriving.in_memory = True
        self._budget.add(self, index)
        return True

    def _memory(self) -> int:
        if self._memory_fd < 0:
            self._memory_fd = os.memfd_create("d7yfs-uncached", os.MFD_CLOEXEC)
        return self._memory_fd

    def _forget_arriving(self, index: int) -> None:
        arriving = self.presence.arriving.pop(index, None)
        if arriving is not None and arriving.in_memory:
            self._budget.remove(self, index)
            self._punch(index)

    def drop_memory_block(self, index: int) -> None:
        """Give up a memory block, present or arriving."""
        self.presence.drop(index)
        self._budget.remove(self, index)
        self._punch(index)

    def _punch(self, index: int) -> None:
        # A memfd is this process's own: nobody else can have read its map, unlike a file in the cache directory.
        if self._memory_fd >= 0:
            _punch_hole(self._memory_fd, index * BLOCK_BYTES, BLOCK_BYTES)

    def begin_read(self, wanted: ByteRange) -> tuple[bytearray, Cold]:
        """Read what is in memory of a readable range.

        Returns the buffer of `wanted.size` bytes and its pieces that are on a disk that must be waited for: fill those with `finish_read`
        in a worker thread. Memory blocks are always read here, before anybody can drop them.
        """
        buffer = bytearray(wanted.size)
        cold: Cold = []
        for start, stop, fd in self._extents(wanted):
            view = memoryview(buffer)[start - wanted.start : stop - wanted.start]
            if fd == self._memory_fd:
                count = os.preadv(fd, [view], start)
                assert count == len(view)
            elif (hot_bytes := self._read_hot(fd, start, view)) < len(view):
                cold.append((fd, start + hot_bytes, view[hot_bytes:]))
        return buffer, cold

    def _read_hot(self, fd: int, start: int, view: memoryview) -> int:
        """Bytes read without waiting for the disk. RWF_NOWAIT: preadv(2)."""
        assert self._files is not None
        try:
            return os.preadv(fd, [view], start, os.RWF_NOWAIT)
        except OSError as error:
            # tmpfs does not support it though it is memory; overlayfs does not and may be a disk. A disk's failure shows in `finish_read`.
            if error.errno == errno.EOPNOTSUPP and self._files.on_tmpfs:
                return os.preadv(fd, [view], start)
            return 0

    def _read_fresh(self, fd: int, start: int, view: memoryview) -> int:
        """As `_read_hot`, of what was read or written a while ago; where the file system cannot tell, it is taken to be in memory still."""
        try:
            return os.preadv(fd, [view], start, os.RWF_NOWAIT)
        except OSError as error:
            if error.errno == errno.EAGAIN:  # memory pressure has dropped it: it is there at the next look
                self._lane.disk.behind(partial(_read_ahead, fd, start, len(view)))
            if error.errno != errno.EOPNOTSUPP or self._lane.disk.stalled_s:
                return 0
        with contextlib.suppress(OSError):
            return os.preadv(fd, [view], start)
        return 0

    def finish_read(self, cold: Cold) -> None:
        """Fill the pieces that `begin_read` left. For a worker thread. Raises OSError when the disk fails or the file is cut off."""
        files = self._files
        assert files is not None
        for fd, start, view in cold:
            if len(view) >= _STREAMING_BYTES:
                # The kernel would go to the disk in steps of the disk's own readahead (128 KiB); so it goes once, and on ahead.
                os.posix_fadvise(fd, start, len(view) + _DISK_AHEAD_BYTES, os.POSIX_FADV_WILLNEED)
            if fd != files.data_fd:
                read_whole(fd, start, view)
                continue
            done = 0
            while done < len(view):
                count = os.preadv(fd, [view[done:]], start + done)
                if not count:
                    raise OSError(errno.EIO, "a backing file is shorter than its object")
                done += count

    def _extents(self, wanted: ByteRange) -> list[tuple[int, int, int]]:
        """`wanted` cut where it changes between our file, dfdaemon's and memory: (start, stop, descriptor)."""
        extents: list[tuple[int, int, int]] = []
        for piece in wanted.split(BLOCK_BYTES):
            fd = self._where(piece.start // BLOCK_BYTES)
            if extents and extents[-1][2] == fd:
                extents[-1] = (extents[-1][0], piece.stop, fd)
            else:
                extents.append((piece.start, piece.stop, fd))
        return extents

    def _where(self, index: int) -> int:
        """The descriptor that has block `index`."""
        state, arriving = self.presence.blocks[index], self.presence.arriving.get(index)
        if arriving.in_memory if arriving else state == Block.MEMORY:
            return self._memory_fd
        assert self._files is not None
        return self._linked.fd if self._linked and state in _LINKED else self._files.data_fd

    # --- dfdaemon's file ---

    def new_link_path(self) -> Path | None:
        """Where dfdaemon may link its file; None while nothing is kept on disk."""
        return self._files.incoming if self._files is not None and not self._disk_refused else None

    async def adopt_link(self, incoming: Path) -> None:
        """See `LinkedStore.take`. Raises OSError."""
        linked = self._linked
        assert linked is not None
        taken = await self._lane.run(partial(linked.take, incoming), late=linked.leave)
        if taken is not None:
            linked.adopt(taken)
            self._drop_linked_blocks()

    def clear_link_path(self, incoming: Path) -> None:
        """Delete what dfdaemon has put at `new_link_path`, if it is still there."""
        self._lane.disk.behind(partial(_unlink, incoming))

    def check_linked(self, piece: ByteRange, crc32: int | None) -> list[int] | None:
        """See `LinkedStore.check`. For any thread. Raises LinkFailed."""
        assert self._linked is not None
        return self._linked.check(piece, crc32)

    def land_linked(self, piece: ByteRange, crcs: list[int]) -> None:
        """The blocks of `piece` that are not there otherwise are in dfdaemon's file; `crcs` as `check_linked` has returned them."""
        if self._linked is None or self._linked.fd < 0:
            return  # given up meanwhile
        for index in self._linked.record(piece, crcs):
            if self.presence.blocks[index] in (Block.ABSENT, Block.UNVERIFIED_LINK):
                self._forget_arriving(index)
                self.presence.landed(index, Block.LINKED)

    def drop_link(self) -> None:
        """What dfdaemon's file holds is not to be believed, or cannot be read: it is absent from now on."""
        if self._linked is not None:
            self._linked.remove()
            self._drop_linked_blocks()

    def _drop_linked_blocks(self) -> None:
        for index, state in enumerate(self.presence.blocks):
            if state in _LINKED:
                self.presence.drop(index)

    def matches_checksum(self, index: int) -> bool:
        """Whether an unverified block is what was once written. For a worker thread."""
        assert self._files is not None
        if self._linked and self.presence.blocks[index] == Block.UNVERIFIED_LINK:
            try:
                return self._linked.block_crc32c(index) == self._linked.crc32c(index)
            except LinkFailed:
                return False
        block = block_range(index, self.version.size_bytes)
        try:
            data = os.pread(self._files.data_fd, block.size, block.start)
        except OSError:
            return False
        return len(data) == block.size and crc32c.crc32c(data) == self._files.entries[index] >> 32

    def verified(self, index: int, *, good: bool) -> None:
        """Take over the verdict of `matches_checksum`: the block is present from now on, or absent and fetched again."""
        if self._linked and self.presence.blocks[index] == Block.UNVERIFIED_LINK:
            self._linked.verified(index, good=good)
            if good:
                self.presence.landed(index, Block.LINKED)
            else:
                self._count_corrupt(index)
            return
        if self._files is None or self.presence.blocks[index] != Block.UNVERIFIED:
            return
        if good:
            self._store_entry(index, self._files.entries[index] >> 32 << 32 | self._boot_tag)
            self.presence.landed(index, Block.DISK)
            return
        self._store_entry(index, 0)
        self._count_corrupt(index)

    def _count_corrupt(self, index: int) -> None:
        log.warning("cache: block %d of %s does not match its checksum; fetched again", index, self.version.key)
        self.corrupt_blocks += 1
        self.presence.drop(index)

    @property
    def is_whole(self) -> bool:
        """Whether all of the object is on disk (some blocks perhaps not yet verified)."""
        return self._files is not None and self.presence.complete and Block.MEMORY not in self.presence.blocks

    def whole_crc32c(self) -> int | None:
        """CRC32C of the whole object, combined from what its blocks had when they arrived; None unless all are on disk.

        For a worker thread: 30 ms for a hundred thousand blocks, and as long as reading them takes for those whose piece was not checked.
        Raises OSError.
        """
        if self._files is None or not self.is_whole:
            return None
        crcs = [entry >> 32 for entry in self._files.entries]
        for index, state in enumerate(self.presence.blocks):
            if state in _LINKED and self._linked:
                crcs[index] = self._linked.crc32c(index) or self._linked.block_crc32c(index)
        return crc32c_of_blocks(crcs, self.version.size_bytes)

    def read_back(self, piece: ByteRange) -> bytearray:
        """Bytes that are on disk. For a worker thread. Raises OSError."""
        buffer = bytearray(piece.size)
        view = memoryview(buffer)
        self.finish_read(
            [(fd, start, view[start - piece.start : stop - piece.start]) for start, stop, fd in self._extents(piece)]
        )
        return buffer

    def retract(self, wanted: ByteRange) -> int:
        """The blocks of `wanted` hold what is not to be believed: absent from now on. Returns the start of the first of them."""
        first, stop = wanted.start // BLOCK_BYTES, -(-wanted.stop // BLOCK_BYTES)
        for index in range(first, stop):
            state = self.presence.blocks[index]
            if state in _LINKED:
                continue  # dfdaemon's file, which came another way
            self._forget_arriving(index)
            if state == Block.MEMORY:
                self.drop_memory_block(index)
            elif state != Block.ABSENT:
                self.presence.drop(index)
                self._store_entry(index, 0)
        return first * BLOCK_BYTES

    async def strike_out(self) -> None:
        """What is on disk is not the object's: it is absent from now on, for all daemons that have not seen it yet, and fetched again."""
        if self._files is None:
            return
        self.drop_link()
        for index, state in enumerate(self.presence.blocks):
            if state in (Block.DISK, Block.UNVERIFIED):
                self._files.entries[index] = 0
                self.presence.drop(index)
        refused = self._disk_refused
        self._disk_refused = True  # or `refresh` would take over what is not struck out yet
        struck_out = partial(os.pwrite, self._files.map_fd, self._files.entries.tobytes(), HEADER_BYTES)
        try:
            await self._lane.write(struck_out)
        except OSError as error:
            self._disk_refused = refused
            self._refuse_disk(error)
        else:
            self._disk_refused = refused

    def leave_disk(self, error: OSError) -> None:
        """The disk failed under this version: what lay there is fetched again, into memory. If it is dfdaemon's file only that is left."""
        if self._files is None:
            return
        if isinstance(error, LinkFailed):
            log.warning("cache: %s: dfdaemon's file of it is left: %s", self.version.key, error.strerror)
            self.drop_link()
            return
        log.warning("cache: %s: %s; reading on uncached", self.version.key, error.strerror or error)
        self._disk_refused = True
        for index, state in enumerate(self.presence.blocks):
            arriving = self.presence.arriving.get(index)
            if state in _ON_DISK or (arriving is not None and not arriving.in_memory):
                self.presence.drop(index)

    def close(self) -> None:
        """Release descriptors and memory, those of the disk once no thread uses them. Nothing may be asked for any more."""
        self._budget.release(self)
        if self._files is not None:
            self._lane.close(partial(close_pair, self._files, self._linked))
            self._files = None
        if self._memory_fd >= 0:
            os.close(self._memory_fd)
            self._memory_fd = -1


def _read_ahead(fd: int, start: int, size_bytes: int) -> None:
    with contextlib.suppress(OSError):
        os.posix_fadvise(fd, start, size_bytes, os.POSIX_FADV_WILLNEED)


def _unlink(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()


def close_pair(files: VersionFiles, linked: LinkedStore | None) -> None:
    """Close what an open version has on disk. For a worker thread."""
    if linked is not None:
        linked.close()
    files.close()


def _pwrite_all(fd: int, data: memoryview, position: int) -> int:
    """Write all of `data` at `position`; its length. Raises OSError, with an unknown part written."""
    done = 0
    while done < len(data):
        done += os.pwrite(fd, data[done:], position + done)
    return done


def _punch_hole(fd: int, offset: int, size_bytes: int) -> None:
    """fallocate(2) with FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, which `os` does not offer."""
    if _libc.fallocate(fd, 0x03, ctypes.c_int64(offset), ctypes.c_int64(size_bytes)):
        raise OSError(ctypes.get_errno(), "fallocate failed on a memory file")
