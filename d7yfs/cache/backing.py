"""The backing file of one object version: every byte lands here once and is served from here.

A block lies on disk when the cache directory has room for it. Else it lies in the memory of this
process, bounded by `MemoryBudget`, and lives until newer blocks need its room (*uncached* reading).
`Presence` keeps which blocks are there. The map's entry of a disk block (checksum and boot tag) is
written only after its bytes. A version may also have dfdaemon's file (`LinkedStore`); each block is
read from the file that has it.

All methods belong to the trio thread and wait for no disk. Exceptions, which are for a worker
thread: `store`, `finish_read`, `read_back`, `matches_checksum` and `whole_crc32c`.
Used by `CachedVersion` only.
"""

from __future__ import annotations

import logging
import os
from array import array
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from d7yfs.cache.block_reader import BlockReader
from d7yfs.cache.disk import DiskStalled, Landing, Lane
from d7yfs.cache.linked import LinkChanged, LinkedStore, LinkFailed, forget_blocks
from d7yfs.cache.memory import MemoryBudget, MemoryFile
from d7yfs.cache.pair import (
    HEADER_BYTES,
    LINKED,
    ON_DISK,
    Arriving,
    Block,
    Presence,
    VersionFiles,
    block_range,
    blocks_of,
    read_entries,
    write_entries,
)
from d7yfs.cache.reservation import Reservation
from d7yfs.checksum import crc32c, crc32c_of_blocks
from d7yfs.objects import BLOCK_BYTES, ByteRange, ObjectVersion

log = logging.getLogger(__name__)


def _never() -> bool:
    return False


class BackingFile(BlockReader):
    """The bytes of `version`, in `files` on disk or, where that has no room for a block, in memory.

    Calls that may wait for the disk go by `lane`. `take_room(n)` reserves room for n more bytes on
    disk, if there is any; `room_left()` only looks. `is_wanted(index)` is True if a reader waits
    for that block. `counts` are all versions' together."""

    def __init__(
        self,
        version: ObjectVersion,
        files: VersionFiles | None,
        *,
        lane: Lane,
        boot_tag: int,
        budget: MemoryBudget,
        take_room: Callable[[int], bool],
        room_left: Callable[[], bool],
        is_wanted: Callable[[int], bool],
        counts: Counter[str],
    ) -> None:
        self.version = version
        self._lane = lane
        self._boot_tag = boot_tag
        self._take_room = take_room
        self._room_left = room_left
        self.counts = counts
        self.taken_over_blocks = 0
        """Blocks of this version that other daemons have brought while it was open here."""
        self._memory = MemoryFile(budget, is_wanted=is_wanted, on_drop=lambda index: self.presence.set_absent(index))
        self.link_is_wrong = False
        """True if dfdaemon's file had other bytes than before: it is not linked again."""
        self._disk_is_wrong = False
        """True if the disk has blocks of other bytes that could not be struck out."""
        self.is_absent = _never
        """True while it is known that there is no file yet: the first bytes that come have one made."""
        self._files: VersionFiles | None = None
        self._resting: VersionFiles | None = None
        """Files of which the map alone is open, and with it the lock."""
        self.use(files)

    def use(self, files: VersionFiles | None) -> None:
        """Believe these `files` from now on: present are the blocks that they have."""
        self.close()
        self.is_absent = _never
        self._files = files
        self._disk_refused = False
        size_bytes = self.version.size_bytes
        self.presence = files.presence(size_bytes, self._boot_tag) if files else Presence(size_bytes)
        self.linked = files.linked if files else None
        """dfdaemon's file, if one was linked."""

    @property
    def keeps(self) -> bool:
        """True if bytes that no reader waits for are kept (the disk has room)."""
        return (self._files is not None or self.is_absent()) and not self._disk_refused and self._room_left()

    def missing(self, wanted: ByteRange) -> list[ByteRange]:
        """The runs of `Presence.missing`, less the blocks that another daemon has written since.

        Only entries of this boot count. Another entry of an absent block is one that we have found
        corrupt and could not strike out."""
        runs = self.presence.missing(wanted)
        if self._files is None or self._disk_refused:
            return runs
        known = self.taken_over_blocks
        for run in runs:
            stored = read_entries(self._files.map_fd, run, self._lane.disk)
            for index, entry in enumerate(stored, run.start // BLOCK_BYTES):
                if entry & 0xFFFFFFFF == self._boot_tag:
                    self._forget_arriving(index)
                    self._files.entries[index] = entry
                    self.presence.set_present(index, Block.DISK)
                    self.taken_over_blocks += 1
                    self.counts["taken_over_blocks"] += 1
        return runs if self.taken_over_blocks == known else self.presence.missing(wanted)

    def begin_write(self, offset: int, data: memoryview) -> list[Landing]:
        """Write the part of `data` that belongs into memory; returns the part for the disk.

        `store` writes what is returned, in a worker thread if need be, and `finish_write` makes it
        readable. `data` continues what has landed of its block, or repeats it. It must stay as it
        is until `finish_write`.
        """
        landings = []
        start, stop = offset, offset + len(data)
        while start < stop:
            index = start // BLOCK_BYTES
            chunk = data[start - offset : (index + 1) * BLOCK_BYTES - offset]
            landing = self._begin_landing(index, start, chunk)
            start += len(chunk)
            if landing is not None and landing.arriving.in_memory:
                self._land_in_memory(landing)
            elif landing is not None:
                landings.append(landing)
        return landings

    def _begin_landing(self, index: int, start: int, chunk: memoryview) -> Landing | None:
        if self.presence.blocks[index] != Block.ABSENT:
            return None
        arriving = self.presence.arriving.get(index)
        landed_to = index * BLOCK_BYTES + (arriving.landed_bytes if arriving else 0)
        if not start <= landed_to < start + len(chunk):
            # There is nothing new; or a gap: the block was given up while this transfer went on.
            return None
        if arriving is None:
            size_bytes = min(BLOCK_BYTES, self.version.size_bytes - index * BLOCK_BYTES)
            in_memory = self._files is None or self._disk_refused or not self._take_room(size_bytes)
            arriving = self.presence.arriving[index] = Arriving(0, 0, in_memory)
            if in_memory:
                self._memory.add(index)
        return Landing(index, landed_to, chunk[landed_to - start :], arriving, arriving.crc)

    def store(self, landings: list[Landing]) -> None:
        """Write `landings` to disk. For any thread: an error is kept for `finish_write`."""
        if (files := self._files) is not None:  # else the version was closed: no reader waited any more
            for landing in landings:
                landing.store(files)

    def finish_write(self, landings: list[Landing]) -> None:
        """Make readable what `store` has written, if its block is still arriving."""
        for landing in landings:
            index, arriving = landing.index, landing.arriving
            if self.presence.arriving.get(index) is not arriving:
                continue
            if landing.error is not None:
                if not isinstance(landing.error, DiskStalled):
                    self._refuse_disk(landing.error)
                if not arriving.in_memory and not self._move_to_memory(index, arriving):
                    continue
            if arriving.in_memory:
                self._land_in_memory(landing)
            else:
                self.counts["disk_bytes_written"] += len(landing.data)
                self._land(landing.index, landing.stop, landing.crc, arriving)

    def _land_in_memory(self, landing: Landing) -> None:
        self._memory.write(landing.data, landing.start)
        self._land(landing.index, landing.stop, landing.crc, landing.arriving)

    def _land(self, index: int, landed_to: int, crc: int, arriving: Arriving) -> None:
        landed_bytes = landed_to - index * BLOCK_BYTES
        if landed_bytes <= arriving.landed_bytes:
            return  # another transfer was quicker
        arriving.crc = crc
        arriving.landed_bytes = landed_bytes
        if landed_bytes < BLOCK_BYTES and landed_to < self.version.size_bytes:
            return
        if not arriving.in_memory:
            self._store_entry(index, crc << 32 | self._boot_tag)
        self.presence.set_present(index, Block.MEMORY if arriving.in_memory else Block.DISK)

    # --- blocks that another process writes ---

    def reserve(self, wanted: ByteRange) -> Reservation | None:
        """Reserve the first blocks of `wanted`, which is to go on where their bytes end, for another
        process to write; None where this one has to: in memory, or for a block that is there.
        """
        if self._files is None or self._disk_refused:
            return None
        blocks: dict[int, Arriving] = {}
        for piece in wanted.split(BLOCK_BYTES):
            index = piece.start // BLOCK_BYTES
            arriving = self.presence.arriving.get(index)
            landed_to = index * BLOCK_BYTES + (arriving.landed_bytes if arriving else 0)
            if self.presence.blocks[index] != Block.ABSENT or landed_to != piece.start:
                break
            if arriving is None:
                if not self._take_room(block_range(index, self.version.size_bytes).size):
                    break
                arriving = self.presence.arriving[index] = Arriving(0, 0, in_memory=False)
            if arriving.in_memory:
                break
            blocks[index] = arriving
        if not blocks:
            return None
        stop = min(wanted.stop, (max(blocks) + 1) * BLOCK_BYTES)
        return Reservation(self, ByteRange(wanted.start, stop), self._files.data_fd, blocks)

    def land_reserved(self, blocks: Mapping[int, Arriving], written: ByteRange, crcs: Sequence[int]) -> None:
        """Make readable what another process has written; `crcs` are those of the blocks that this
        touches."""
        self._lane.disk.note_write()
        self.counts["disk_bytes_written"] += written.size
        for index, crc in zip(blocks_of(written), crcs, strict=True):
            arriving = blocks[index]
            if self.presence.arriving.get(index) is arriving and not arriving.in_memory:
                self._land(index, min(written.stop, (index + 1) * BLOCK_BYTES), crc, arriving)

    def refuse_reserved(self, blocks: Mapping[int, Arriving], error: OSError) -> None:
        """Leave the disk for blocks that another process could not write there."""
        self._refuse_disk(error)
        for index, arriving in blocks.items():
            if self.presence.arriving.get(index) is arriving and not arriving.in_memory:
                self._move_to_memory(index, arriving)

    def last_landed(self, wanted: ByteRange) -> bytes | None:
        """Bytes that have just landed; None if they are not at hand."""
        buffer = memoryview(bytearray(wanted.size))
        readable = self.presence.first_unreadable(wanted) is None and self.read_at_once(wanted.start, buffer)
        return bytes(buffer) if readable else None

    def _store_entry(self, index: int, entry: int) -> None:
        """Write block `index`'s entry into the map. If that fails, this process still knows it."""
        if self._files is None:
            return
        self._files.entries[index] = entry
        self._lane.disk.run_soon(
            partial(write_entries, self._files.map_fd, index, array("Q", [entry]), self.version.key)
        )

    def _refuse_disk(self, error: OSError) -> None:
        if not self._disk_refused:
            log.warning("cache: %s cannot be kept: %s; reading on uncached", self.version.key, error.strerror)
            self._lane.disk.note_error(error)
        self._disk_refused = True

    def _move_to_memory(self, index: int, arriving: Arriving) -> bool:
        """Take the landed head of an arriving block to memory, as the disk refused the rest.

        False if the head is lost: then the block is given up.
        """
        files, head = self._files, memoryview(bytearray(arriving.landed_bytes))
        assert files is not None
        if self._lane.disk.read_fresh(files.data_fd, index * BLOCK_BYTES, head) < len(head):
            self.presence.set_absent(index)
            return False
        self._memory.write(head, index * BLOCK_BYTES)
        arriving.in_memory = True
        self._memory.add(index)
        return True

    def _forget_arriving(self, index: int) -> None:
        arriving = self.presence.arriving.pop(index, None)
        if arriving is not None and arriving.in_memory:
            self._memory.free(index)

    # --- dfdaemon's file ---

    def new_link_path(self) -> Path | None:
        """A path for a hard link to dfdaemon's file of this version; None while no disk keeps it."""
        return self._files.incoming if self._files is not None and not self._disk_refused else None

    async def adopt_link(self, incoming: Path) -> None:
        """Take the file at a `new_link_path` as the version's second store. Raises OSError as
        `LinkedStore.take`; blocks of an earlier link stay only if it is the same file.
        """
        assert self._files is not None
        if self.linked is None:
            self.linked = LinkedStore(self._files, self.version.size_bytes, self._boot_tag, self._lane.disk)
            self._files.linked = self.linked
        linked = self.linked
        taken = await self._lane.run(partial(linked.take, incoming), late=linked.leave)
        if taken is not None:
            linked.adopt(taken)
            forget_blocks(self.presence)
        else:
            linked.doubt(self.presence)
        linked.begin_writes()

    def end_link(self, incoming: Path) -> None:
        """End a hand-over to the `new_link_path`: dfdaemon writes no more."""
        if self.linked is not None:
            self.linked.end_writes()
        self._lane.disk.run_behind(partial(incoming.unlink, missing_ok=True))

    def land_linked(self, piece: ByteRange, crcs: list[int]) -> None:
        """Make `piece` of the adopted file readable."""
        if self.linked is None or self.linked.fd < 0:
            return  # given up meanwhile
        self.linked.record(piece, crcs)
        for index in blocks_of(piece):
            if self.presence.blocks[index] in (Block.ABSENT, Block.UNVERIFIED_LINK):
                self._forget_arriving(index)
                self.presence.set_present(index, Block.LINKED)

    def drop_link(self) -> None:
        """Give up the adopted file, which is wrong: its blocks are missing again."""
        if self.linked is not None:
            self.linked.remove()
            forget_blocks(self.presence)

    def matches_checksum(self, index: int) -> bool:
        """True if an unverified block is what was once written. For a worker thread."""
        assert self._files is not None
        if self.linked and self.presence.blocks[index] == Block.UNVERIFIED_LINK:
            return self.linked.matches_checksum(index)
        block = block_range(index, self.version.size_bytes)
        try:
            data = os.pread(self._files.data_fd, block.size, block.start)
        except OSError:
            return False
        return len(data) == block.size and crc32c(data) == self._files.entries[index] >> 32

    def apply_verdict(self, index: int, *, good: bool) -> None:
        """Apply what `matches_checksum` has found: the block is present, or else absent."""
        state = self.presence.blocks[index]
        if self.linked and state == Block.UNVERIFIED_LINK:
            self.linked.apply_verdict(index, good=good)
        elif self._files and state == Block.UNVERIFIED:
            self._store_entry(index, self._files.entries[index] >> 32 << 32 | self._boot_tag if good else 0)
        else:
            return
        if good:
            self.presence.set_present(index, Block.DISK if state == Block.UNVERIFIED else Block.LINKED)
            return
        log.warning("cache: block %d of %s does not match its checksum; fetched again", index, self.version.key)
        self.counts["corrupt_blocks"] += 1
        self.presence.set_absent(index)
        if self.linked and self.linked.was_doubted and state == Block.UNVERIFIED_LINK:
            self.link_is_wrong = True
            self.drop_link()

    def whole_crc32c(self) -> int | None:
        """CRC32C of the object on disk, None unless it is whole. For a thread, while held."""
        if self._files is None or not self.presence.all_on_disk:
            return None
        crcs = [entry >> 32 for entry in self._files.entries]
        for index, state in self.presence.known():
            if state in LINKED and self.linked:
                crcs[index] = self.linked.crc32c(index) or self.linked.block_crc32c(index)
        return crc32c_of_blocks(crcs, self.version.size_bytes)

    def retract(self, wanted: ByteRange) -> int:
        for index in blocks_of(wanted):
            state = self.presence.blocks[index]
            if state in LINKED:
                continue  # dfdaemon's file came another way
            self._forget_arriving(index)
            if state == Block.MEMORY:
                self._memory.drop(index)
            elif state != Block.ABSENT:
                self.presence.set_absent(index)
                self._store_entry(index, 0)
        return wanted.start // BLOCK_BYTES * BLOCK_BYTES

    async def strike_out(self) -> None:
        """Make all blocks on disk absent, as they are not the object's; they are fetched again.

        The map tells that to all daemons that have not read it yet.
        """
        if self._files is None:
            return
        self.drop_link()
        for index, state in self.presence.known():
            if state in (Block.DISK, Block.UNVERIFIED):
                self._files.entries[index] = 0
                self.presence.set_absent(index)
        refused = self._disk_refused
        self._disk_refused = True  # or `refresh` would take over blocks that are not struck out yet
        struck_out = partial(os.pwrite, self._files.map_fd, self._files.entries.tobytes(), HEADER_BYTES)
        try:
            await self._lane.write(struck_out)
        except OSError as error:
            self._disk_refused = refused
            self._disk_is_wrong = True
            self._refuse_disk(error)
        else:
            self._disk_refused = refused

    def leave_disk(self, error: OSError) -> None:
        """Leave the disk, which failed under this version: its blocks are fetched again, into
        memory. If dfdaemon's file failed, only that is left."""
        if self._files is None:
            return
        if isinstance(error, LinkChanged) and self.linked:
            self.linked.doubt(self.presence)
            return
        if isinstance(error, LinkFailed):
            log.warning("cache: %s: dfdaemon's file of it is left: %s", self.version.key, error.strerror)
            self.drop_link()
            return
        log.warning("cache: %s: %s; reading on uncached", self.version.key, error.strerror or error)
        self._disk_refused = True
        for index, state in self.presence.known():
            if state in ON_DISK:
                self.presence.set_absent(index)
        for index in [index for index, arriving in self.presence.arriving.items() if not arriving.in_memory]:
            self.presence.set_absent(index)

    def rest(self, *, but_map: bool) -> bool:
        """Close the files until `use`, but for the map's lock with `but_map`; bytes that are not on
        disk are lost. False, and nothing is closed, where the disk is not to be believed again."""
        if self._disk_is_wrong:
            return False
        self._memory.close()
        self.presence.arriving.clear()
        if (files := self._files) is not None:
            self._files, self._resting = None, files if but_map else None
            self._lane.close(files.rest if but_map else files.close)
        return True

    def close(self) -> None:
        """Release memory, and descriptors once no thread uses them. The last call but `use`."""
        self._memory.close()
        if (files := self._files or self._resting) is not None:
            self._lane.close(files.close)
        self._files = self._resting = None
