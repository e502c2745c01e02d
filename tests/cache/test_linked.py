"""The second store of a version: dfdaemon's file, linked, read and never written; what of it is
believed, and until when.
"""

from __future__ import annotations

import errno
import hashlib
import os
import zlib
from dataclasses import replace
from pathlib import Path

import pytest

from d7yfs.cache import inspection
from d7yfs.cache.backing import BackingFile
from d7yfs.cache.cache import Cache
from d7yfs.cache.directory import CacheDirectory
from d7yfs.cache.linked import Cold, LinkChanged, LinkFailed, shed_copies
from d7yfs.cache.pair import PROOF_OFFSET, Block
from d7yfs.cache.proof import Proof
from d7yfs.checksum import crc32c, crc32c_of_blocks
from d7yfs.objects import ByteRange
from tests.cache.doubles import (
    BOOT,
    MIB,
    ORIGIN,
    ManualFiller,
    PromptDisk,
    at_once,
    backing,
    bytes_of,
    data_of,
    directory,
    fill,
    read,
    version,
)

FILE = version(9 * MIB + 5)
FIRST, LAST = ByteRange(0, 4 * MIB), ByteRange(8 * MIB, FILE.size_bytes)
PIECES = (FIRST, ByteRange(4 * MIB, 8 * MIB), LAST)


def store_of(path: Path, *pieces: ByteRange, name: str = "task") -> Path:
    """dfdaemon's file with these pieces in it."""
    made = path / name
    made.touch()
    with made.open("r+b") as file:
        file.truncate(FILE.size_bytes)
        for piece in pieces:
            file.seek(piece.start)
            file.write(data_of(FILE, piece))
    return made


def link(file: BackingFile, store: Path) -> None:
    path = file.new_link_path()
    assert path is not None
    path.hardlink_to(store)
    at_once(file.adopt_link(path))


def land(file: BackingFile, *pieces: ByteRange, check: bool = True) -> None:
    for piece in pieces:
        assert file.linked
        crcs = file.linked.check(piece, zlib.crc32(data_of(FILE, piece)) if check else None)
        assert crcs is not None
        file.land_linked(piece, crcs)


def linked(within: CacheDirectory, store: Path, *pieces: ByteRange, check: bool = True) -> None:
    """Leave a version behind with these pieces."""
    with backing(FILE, within) as file:
        link(file, store)
        land(file, *pieces, check=check)
        end(file)


def end(file: BackingFile) -> None:
    """End the hand-over."""
    file.end_link(file.new_link_path() or Path())


def note_proof(path: Path, stored: bytes) -> None:
    """Have the version's map say how far it is proved."""
    (map_path,) = path.glob("v2/?/*.map")
    with map_path.open("r+b") as file:
        os.pwrite(file.fileno(), stored, PROOF_OFFSET)


def the_link(path: Path) -> Path:
    (found,) = path.glob("v2/?/*.link")
    return found


# --- reading ---


def test_only_what_was_announced_is_readable(tmp_path: Path) -> None:
    store = store_of(tmp_path, *PIECES)
    with backing(FILE, directory(tmp_path / "c")) as file:
        link(file, store)
        assert file.presence.cached_bytes == 0, "the link itself proves nothing"
        land(file, LAST, FIRST)
        assert list(file.presence.blocks) == [Block.LINKED] * 4 + [Block.ABSENT] * 4 + [Block.LINKED] * 2
        assert read(file, FIRST) == bytes_of(FILE, FIRST)
        assert read(file, LAST) == bytes_of(FILE, LAST)


def test_each_block_comes_from_where_it_is(tmp_path: Path) -> None:
    store = store_of(tmp_path, FIRST, LAST)
    with backing(FILE, directory(tmp_path / "c"), room_bytes=3 * MIB) as file:
        fill(file, 2, 5, 6, 7, 4)
        link(file, store)
        land(file, FIRST, LAST)
        states = {Block(state) for state in file.presence.blocks}
        assert states == {Block.LINKED, Block.DISK, Block.MEMORY}
        assert file.presence.blocks[2] == Block.DISK, "what is there stays where it is"
        assert read(file, FILE.whole) == bytes_of(FILE, FILE.whole)


def test_a_landing_overtakes_a_block_that_arrives_otherwise(tmp_path: Path) -> None:
    store = store_of(tmp_path, FIRST)
    with backing(FILE, directory(tmp_path / "c")) as file:
        landings = file.begin_write(0, data_of(FILE, ByteRange(0, 1000)))
        link(file, store)
        land(file, FIRST)
        file.store(landings)
        file.finish_write(landings)
        assert file.presence.blocks[0] == Block.LINKED
        assert read(file, FIRST) == bytes_of(FILE, FIRST)


def test_the_store_is_never_written(tmp_path: Path) -> None:
    store = store_of(tmp_path, FIRST)
    before = (store.read_bytes(), store.stat().st_mtime_ns)
    with backing(FILE, directory(tmp_path / "c")) as file:
        link(file, store)
        land(file, FIRST)
        fill(file)
        at_once(file.strike_out())
        fill(file)
    assert (store.read_bytes(), store.stat().st_mtime_ns) == before


# --- what is not taken ---


def test_a_wrong_piece_is_told(tmp_path: Path) -> None:
    store = store_of(tmp_path, FIRST)
    with backing(FILE, directory(tmp_path / "c")) as file:
        link(file, store)
        assert file.linked
        assert file.linked.check(FIRST, zlib.crc32(data_of(FILE, FIRST)) ^ 1) is None
        assert file.linked.check(LAST, zlib.crc32(data_of(FILE, LAST))) is None, "zeros"


@pytest.mark.parametrize(
    ("trouble", "number"),
    [
        ("absent", errno.ENOENT),
        ("copy", errno.EXDEV),
        ("short", errno.ESTALE),
        ("fifo", errno.EINVAL),
        ("symlink", errno.ELOOP),
    ],
)
def test_what_is_no_link_to_the_object(tmp_path: Path, trouble: str, number: int) -> None:
    store = store_of(tmp_path, FIRST)
    with backing(FILE, directory(tmp_path / "c")) as file:
        path = file.new_link_path()
        assert path is not None
        if trouble == "copy":
            path.write_bytes(store.read_bytes())
        elif trouble == "short":
            os.truncate(store, 5)
            path.hardlink_to(store)
        elif trouble == "fifo":
            os.mkfifo(path)
        elif trouble == "symlink":
            path.symlink_to(store)
        with pytest.raises(OSError) as caught:  # noqa: PT011  # the errno is what matters
            at_once(file.adopt_link(path))
        assert caught.value.errno == number
        fill(file)
        assert read(file, FILE.whole) == bytes_of(FILE, FILE.whole)


def test_another_file_than_before_begins_anew(tmp_path: Path) -> None:
    first, second = store_of(tmp_path, FIRST), store_of(tmp_path, LAST, name="other")
    with backing(FILE, directory(tmp_path / "c")) as file:
        link(file, first)
        land(file, FIRST)
        link(file, first)
        assert file.presence.blocks[0] == Block.UNVERIFIED_LINK, "the same file: as it was, once compared"
        link(file, second)
        assert set(file.presence.blocks) == {Block.ABSENT}
        land(file, LAST)
        end(file)
        assert read(file, LAST) == bytes_of(FILE, LAST)
    with backing(FILE, directory(tmp_path / "c")) as later:
        assert list(later.presence.blocks) == [Block.ABSENT] * 8 + [Block.LINKED] * 2


def test_without_a_disk_there_is_no_place_for_a_link() -> None:
    with backing(FILE, None) as file:
        assert file.new_link_path() is None


# --- what is kept ---


def test_a_link_is_found_again(tmp_path: Path) -> None:
    within = directory(tmp_path / "c")
    linked(within, store_of(tmp_path, FIRST), FIRST)
    assert within.cached_bytes(ORIGIN, FILE) == FIRST.size
    with backing(FILE, within) as file:
        assert read(file, FIRST) == bytes_of(FILE, FIRST)
        assert file.presence.cached_bytes == FIRST.size


def test_after_another_boot_blocks_are_compared_first(tmp_path: Path) -> None:
    within, store = directory(tmp_path / "c"), store_of(tmp_path, *PIECES)
    linked(within, store, *PIECES)
    with store.open("r+b") as damaged:
        damaged.seek(MIB + 7)
        damaged.write(b"damaged!")
    with backing(FILE, within, boot_tag=BOOT + 2) as file:
        assert set(file.presence.blocks) == {Block.UNVERIFIED_LINK}
        for index in file.presence.unverified(FILE.whole):
            file.apply_verdict(index, good=file.matches_checksum(index))
            if index == 1:
                break
        assert set(file.presence.blocks) == {Block.ABSENT}, "it was written: none of it is read again"
        assert file.counts["corrupt_blocks"] == 1
    with backing(FILE, within, boot_tag=BOOT + 2) as later:
        assert set(later.presence.blocks) == {Block.ABSENT}


def test_what_was_not_checked_is_believed_until_the_next_boot(tmp_path: Path) -> None:
    within = directory(tmp_path / "c")
    linked(within, store_of(tmp_path, FIRST), FIRST, check=False)
    with backing(FILE, within) as file:
        assert file.presence.cached_bytes == FIRST.size
    with backing(FILE, within, boot_tag=BOOT + 2) as file:
        assert set(file.presence.blocks) == {Block.ABSENT}
        assert file.counts["corrupt_blocks"] == 0


def test_a_map_does_not_speak_of_another_file(tmp_path: Path) -> None:
    within = directory(tmp_path / "c")
    linked(within, store_of(tmp_path, FIRST), FIRST)
    path = the_link(tmp_path / "c")
    path.unlink()
    path.hardlink_to(store_of(tmp_path, name="other"))
    with backing(FILE, within) as file:
        assert set(file.presence.blocks) == {Block.ABSENT}
    assert within.cached_bytes(ORIGIN, FILE) == 0


@pytest.mark.parametrize("check", [True, False])
def test_the_whole_objects_crc32c(tmp_path: Path, check: bool) -> None:
    with backing(FILE, directory(tmp_path / "plain")) as plain:
        fill(plain)
        expected = plain.whole_crc32c()
    with backing(FILE, directory(tmp_path / "c")) as file:
        fill(file, 5)
        link(file, store_of(tmp_path, *PIECES))
        land(file, *PIECES, check=check)
        assert file.presence.all_on_disk
        assert file.whole_crc32c() == expected
        assert file.read_back(ByteRange(4 * MIB, 7 * MIB)) == bytes_of(FILE, ByteRange(4 * MIB, 7 * MIB))
    assert expected is not None
    assert expected != crc32c_of_blocks([0] * 10, FILE.size_bytes)


# --- a file that is written after its check ---


def overwrite(store: Path, index: int) -> None:
    """As dfdaemon can, whose file it is; with the mtime as before."""
    before = store.stat()
    with store.open("r+b") as file:
        file.seek(index * MIB + 7)
        file.write(b"another!")
    os.utime(store, ns=(before.st_atime_ns, before.st_mtime_ns))


def test_a_file_that_was_written_is_compared_before_it_is_read_again(tmp_path: Path) -> None:
    store = store_of(tmp_path, *PIECES)
    with backing(FILE, directory(tmp_path / "c")) as file:
        link(file, store)
        land(file, *PIECES)
        end(file)
        assert read(file, FIRST) == bytes_of(FILE, FIRST)
        overwrite(store, 2)
        with pytest.raises(LinkChanged) as caught:
            read(file, FIRST)
        file.leave_disk(caught.value)
        assert file.presence.unverified(FILE.whole) == list(range(10))
        for index in (0, 1):
            file.apply_verdict(index, good=file.matches_checksum(index))
        assert read(file, ByteRange(0, 2 * MIB)) == bytes_of(FILE, ByteRange(0, 2 * MIB)), "it is what it was"
        assert not file.link_is_wrong
        file.apply_verdict(2, good=file.matches_checksum(2))
        assert set(file.presence.blocks) == {Block.ABSENT}
        assert file.link_is_wrong
    assert not list((tmp_path / "c").rglob("*.link"))


def test_a_read_in_a_thread_is_held_to_the_times_of_its_beginning(tmp_path: Path) -> None:
    store = store_of(tmp_path, *PIECES)
    with backing(FILE, directory(tmp_path / "c")) as file:
        link(file, store)
        land(file, *PIECES)
        end(file)
        assert file.linked
        cold: Cold = [(file.linked.fd, 0, memoryview(bytearray(MIB)), file.link_times)]
        overwrite(store, 0)
        file.linked.doubt(file.presence)
        with pytest.raises(LinkChanged):
            file.finish_read(cold)


def test_a_file_that_was_written_while_it_was_closed_is_compared_at_its_next_use(tmp_path: Path) -> None:
    within, store = directory(tmp_path / "c"), store_of(tmp_path, *PIECES)
    linked(within, store, *PIECES)
    overwrite(store, 0)
    for _ in range(2):  # a process may end before it has compared
        with backing(FILE, within) as file:
            assert set(file.presence.blocks) == {Block.UNVERIFIED_LINK}
    with backing(FILE, within) as file:
        assert not file.matches_checksum(0)


@pytest.mark.parametrize("check", [True, False])
def test_a_file_that_only_lost_a_name_is_read_on(tmp_path: Path, check: bool) -> None:
    within, store = directory(tmp_path / "c"), store_of(tmp_path, *PIECES)
    linked(within, store, *PIECES, check=check)
    store.unlink()
    with backing(FILE, within) as file:
        for index in file.presence.unverified(FILE.whole):
            file.apply_verdict(index, good=file.matches_checksum(index))
        assert read(file, FILE.whole) == bytes_of(FILE, FILE.whole)


def test_what_was_never_compared_is_fetched_again_once_the_file_was_written(tmp_path: Path) -> None:
    within, store = directory(tmp_path / "c"), store_of(tmp_path, *PIECES)
    linked(within, store, *PIECES, check=False)
    os.utime(store)
    with backing(FILE, within) as file:
        assert set(file.presence.blocks) == {Block.ABSENT}


# --- what fails ---


def test_a_file_that_was_cut_off_leaves_the_rest_of_the_cache(tmp_path: Path) -> None:
    store = store_of(tmp_path, *PIECES)
    with backing(FILE, directory(tmp_path / "c")) as file:
        fill(file, 0)
        link(file, store)
        land(file, *PIECES)
        os.truncate(store, 0)
        _, cold = file.begin_read(FILE.whole)
        with pytest.raises(LinkFailed) as caught:
            file.finish_read(cold)
        file.leave_disk(caught.value)
        assert list(file.presence.blocks) == [Block.DISK] + [Block.ABSENT] * 9
        fill(file)
        assert file.presence.all_on_disk
        assert read(file, FILE.whole) == bytes_of(FILE, FILE.whole)
    assert not list((tmp_path / "c").rglob("*.link"))


def test_a_thread_that_reads_keeps_its_file_when_the_link_is_dropped(tmp_path: Path) -> None:
    with backing(FILE, directory(tmp_path / "c")) as file:
        link(file, store_of(tmp_path, *PIECES))
        land(file, *PIECES)
        buffer = memoryview(bytearray(FIRST.size))
        cold: Cold = [
            (fd, start, buffer[start:stop], None) for start, stop, fd in file._extents(FIRST.start, FIRST.stop)
        ]
        file.drop_link()
        file.finish_read(cold)
        assert buffer == data_of(FILE, FIRST)


def test_what_lands_after_the_link_was_dropped_is_nowhere(tmp_path: Path) -> None:
    with backing(FILE, directory(tmp_path / "c")) as file:
        link(file, store_of(tmp_path, *PIECES))
        file.drop_link()
        file.land_linked(FIRST, [0] * 4)
        assert set(file.presence.blocks) == {Block.ABSENT}


# --- eviction ---


def test_a_shared_link_takes_no_room_and_frees_none(tmp_path: Path) -> None:
    within, store = directory(tmp_path / "c"), store_of(tmp_path, *PIECES)
    linked(within, store, *PIECES)
    within.evict(1 << 40)
    assert within.used_bytes < MIB
    store.unlink()
    within.evict(1 << 40)
    assert within.used_bytes > 9 * MIB, "the last link is ours: so is the room"
    assert within.evict(0) > 9 * MIB
    assert not list((tmp_path / "c").rglob("*.link*"))


def test_an_evicted_version_leaves_the_store_as_it_is(tmp_path: Path) -> None:
    within, store = directory(tmp_path / "c"), store_of(tmp_path, *PIECES)
    linked(within, store, *PIECES)
    assert within.evict(0) < MIB
    assert not list((tmp_path / "c").rglob("*.link*"))
    assert store.read_bytes() == bytes_of(FILE, FILE.whole)


def test_a_link_in_use_is_not_evicted(tmp_path: Path) -> None:
    within, store = directory(tmp_path / "c"), store_of(tmp_path, *PIECES)
    with backing(FILE, within) as file:
        link(file, store)
        store.unlink()
        land(file, *PIECES)
        within.evict(0)
        assert the_link(tmp_path / "c").exists()
        assert read(file, FIRST) == bytes_of(FILE, FIRST)


def test_remains_are_cleared_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    within, store = directory(tmp_path / "c"), store_of(tmp_path, *PIECES)
    linked(within, store, *PIECES)
    the_link(tmp_path / "c").with_suffix(".map").unlink()
    left = tmp_path / "c" / "v2" / "incoming" / "left"
    left.hardlink_to(store)
    within.evict(1 << 40)
    assert left.exists(), "it may be on its way"
    assert not list((tmp_path / "c").rglob("*.link*"))
    monkeypatch.setattr("d7yfs.cache.directory._FORGOTTEN_S", -1.0)
    within.evict(1 << 40)
    assert not left.exists()


# --- own blocks next to a whole link ---


def own_blocks(path: Path) -> int:
    (data,) = path.glob("v2/?/*.data")
    return data.stat().st_blocks


def used_at(path: Path) -> int:
    (found,) = path.glob("v2/?/*.map")
    return found.stat().st_mtime_ns


def test_own_blocks_go_once_the_link_has_everything_and_nobody_reads(tmp_path: Path) -> None:
    within, store = directory(tmp_path / "c"), store_of(tmp_path, *PIECES)
    with backing(FILE, within) as file:
        fill(file, 0, 3)
        link(file, store)
        land(file, *PIECES)
        end(file)
        shed_copies(within)
        assert own_blocks(tmp_path / "c"), "they are in use"
        assert read(file, FIRST) == bytes_of(FILE, FIRST)
    note_proof(tmp_path / "c", b"=")
    before = used_at(tmp_path / "c")
    shed_copies(within)
    assert not own_blocks(tmp_path / "c")
    assert within.proof(ORIGIN, FILE) is Proof.PROVED, "its record stays"
    assert used_at(tmp_path / "c") == before, "that was no use of it"
    assert within.cached_bytes(ORIGIN, FILE) == FILE.size_bytes
    with backing(FILE, within) as file:
        assert set(file.presence.blocks) == {Block.LINKED}
        assert read(file, FILE.whole) == bytes_of(FILE, FILE.whole)
        assert file.whole_crc32c() == crc32c(data_of(FILE))


async def test_a_link_without_a_record_came_through_dragonfly_nevertheless(tmp_path: Path) -> None:
    within, store = directory(tmp_path / "c"), store_of(tmp_path, *PIECES)
    linked(within, store, *PIECES)
    assert within.proof(ORIGIN, FILE) is None
    cache = Cache(within, memory_buffer_bytes=MIB, read_timeout_s=20, disk=PromptDisk())
    cached = await cache.open(ORIGIN, FILE, ManualFiller)
    assert cached.proof.value is Proof.PENDING
    cached.drop()


@pytest.mark.parametrize("lack", ["a piece", "a comparison", "the file", "its map"])
def test_own_blocks_stay_beside_a_link_that_proves_less(tmp_path: Path, lack: str) -> None:
    within, store = directory(tmp_path / "c"), store_of(tmp_path, *PIECES)
    with backing(FILE, within) as file:
        fill(file, 0, 3)
        link(file, store)
        land(file, *(PIECES[:-1] if lack == "a piece" else PIECES), check=lack != "a comparison")
    if lack == "the file":
        found = the_link(tmp_path / "c")
        found.unlink()
        found.write_bytes(store.read_bytes())
    elif lack == "its map":
        the_link(tmp_path / "c").with_suffix(".linkmap").unlink()
    shed_copies(within)
    assert own_blocks(tmp_path / "c")
    with backing(FILE, within) as file:
        assert [file.presence.blocks[0], file.presence.blocks[3]] == [Block.DISK] * 2


def test_a_pair_that_was_half_made_anew_is_made_by_the_next_opener(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    within, store = directory(tmp_path / "c"), store_of(tmp_path, *PIECES)
    with backing(FILE, within) as file:
        fill(file, 0)
        link(file, store)
        land(file, *PIECES)
        end(file)

    def killed(*_: object) -> int:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("d7yfs.cache.linked.make_pair", killed)
        with pytest.raises(KeyboardInterrupt):
            shed_copies(within)
    with backing(FILE, within) as file:
        assert read(file, FILE.whole) == bytes_of(FILE, FILE.whole)


# --- as `d7yfs cache` sees it ---


def test_what_is_linked_is_listed_and_verified(tmp_path: Path) -> None:
    within, store = directory(tmp_path / "c"), store_of(tmp_path, *PIECES)
    whole = replace(FILE, validator=f'"{hashlib.md5(data_of(FILE), usedforsecurity=False).hexdigest()}"')
    with backing(whole, within) as file:
        fill(file, 2)
        link(file, store)
        land(file, *PIECES)
    (found,) = inspection.stored(tmp_path / "c")
    assert (found.cached_bytes, found.complete) == (FILE.size_bytes, True)
    assert found.disk_bytes < 2 * MIB, "the rest is dfdaemon's"
    (verdict,) = inspection.verify([found], lambda _: None, md5=True)
    assert (verdict.good, verdict.md5, verdict.bad_blocks) == (True, True, [])

    with store.open("r+b") as damaged:
        damaged.seek(5 * MIB)
        damaged.write(b"damaged!")
    before = store.read_bytes()
    (verdict,) = inspection.verify([found], lambda _: None)
    assert verdict.bad_blocks == [5]
    assert store.read_bytes() == before, "it is dfdaemon's to mend"
    with backing(whole, within) as file:
        assert [index for index, state in enumerate(file.presence.blocks) if state == Block.ABSENT] == [5]
