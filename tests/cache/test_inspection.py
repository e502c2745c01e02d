"""Looking into a cache directory, verifying it and deleting from it, while others use it and while
they do not.
"""

from __future__ import annotations

import hashlib
import os
from contextlib import ExitStack
from pathlib import Path

import pytest

from d7yfs.bounds.values import OBJECT_MAX_BYTES
from d7yfs.cache import inspection
from d7yfs.cache.inspection import DIFFERS, HAS_BAD_BLOCKS, INCOMPLETE, NO_MD5, CheckedVersion, Map
from d7yfs.cache.pair import HEADER, HEADER_BYTES, MAGIC, block_range
from d7yfs.cache.table import ENTRY_BYTES
from d7yfs.checksum import crc32c
from d7yfs.config.place import Place
from d7yfs.errors import CacheUnusable
from d7yfs.objects import BLOCK_BYTES, ByteRange, ObjectVersion
from tests.cache.doubles import (
    BOOT,
    MIB,
    ORIGIN,
    backing,
    content,
    data_of,
    directory,
    fill,
    read,
    resident_bytes,
    takes_sparse,
    version,
    write,
)

WHOLE, PART = version(2 * MIB + 5, "models/a/whole.bin"), version(3 * MIB, "models/part.bin")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A directory with a complete file and one of which the second block is cached."""
    within = directory(tmp_path)
    with backing(WHOLE, within) as whole, backing(PART, within) as part:
        fill(whole)
        fill(part, 1)
    return tmp_path


def spoil(path: Path, of: ObjectVersion, offset: int) -> None:
    (data,) = (each for each in path.rglob("*.data") if each.stat().st_size == of.size_bytes)
    with data.open("r+b") as file:
        file.seek(offset)
        file.write(b"spoilt")


def verify(path: Path, *, md5: bool = False) -> list[CheckedVersion]:
    done: list[int] = []
    verdicts = inspection.verify(inspection.stored(path), done.append, md5=md5)
    assert sum(done) <= sum(each.stored.cached_bytes for each in verdicts)
    return verdicts


# --- ls ---


def test_names_in_order(path: Path) -> None:
    assert [each.name for each in inspection.stored(path)] == [
        "s3://http://127.0.0.1:9/models/models/a/whole.bin",
        "s3://http://127.0.0.1:9/models/models/part.bin",
    ]


def test_sizes_and_use(path: Path) -> None:
    found = {each.map.key: each for each in inspection.stored(path)}
    whole, part = found[WHOLE.key], found[PART.key]
    assert (whole.map.size_bytes, whole.cached_bytes, whole.complete) == (WHOLE.size_bytes, WHOLE.size_bytes, True)
    assert (part.map.size_bytes, part.cached_bytes, part.complete) == (PART.size_bytes, MIB, False)
    assert part.map.validator == PART.validator
    assert part.disk_bytes == MIB + 2 * 4096
    assert not whole.in_use
    os.utime(whole.map_path, (0, 5000))
    with backing(PART, directory(path)):
        again = {each.map.key: each for each in inspection.stored(path)}
    assert again[WHOLE.key].used_at == 5000, "looking is no use"
    assert (again[WHOLE.key].in_use, again[PART.key].in_use) == (False, True)


def test_a_directory_that_is_not_there_or_empty_holds_nothing(tmp_path: Path) -> None:
    assert inspection.stored(tmp_path / "absent") == []
    directory(tmp_path)
    assert inspection.stored(tmp_path) == []


def test_a_directory_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "v2").touch()
    with pytest.raises(CacheUnusable, match=r"cannot be read.*--cache-dir"):
        inspection.stored(tmp_path)


@pytest.mark.parametrize("size_bytes", [0, 10, HEADER_BYTES, HEADER_BYTES + 12])
def test_damaged_maps_are_passed_over(path: Path, size_bytes: int) -> None:
    for each in path.rglob("*.map"):
        os.truncate(each, size_bytes)
    assert inspection.stored(path) == []


def test_a_map_whose_data_is_another_file_is_passed_over(path: Path) -> None:
    for each in path.rglob("*.data"):
        copy = each.with_suffix(".copy")
        copy.write_bytes(each.read_bytes())
        copy.rename(each)
    assert inspection.stored(path) == []


def test_what_a_map_claims_costs_by_the_blocks_that_are_there(tmp_path: Path) -> None:
    huge = version(OBJECT_MAX_BYTES if takes_sparse(tmp_path, OBJECT_MAX_BYTES) else 5 << 40)
    files = directory(tmp_path).open(ORIGIN, huge)
    last = len(files.entries) - 1
    for index in (0, last):
        data = os.urandom(block_range(index, huge.size_bytes).size)
        os.pwrite(files.data_fd, data, index * BLOCK_BYTES)
        entry = crc32c(data) << 32 | BOOT
        os.pwrite(files.map_fd, entry.to_bytes(8, "little"), HEADER_BYTES + index * ENTRY_BYTES)
    files.close()
    before_bytes = resident_bytes()
    (found,) = inspection.stored(tmp_path)
    assert found.cached_bytes == MIB + block_range(last, huge.size_bytes).size
    assert sum(map(len, found.runs)) <= 2 * 8192
    (verdict,) = verify(tmp_path, md5=True)
    assert (verdict.checked_blocks, verdict.good) == (2, True)
    assert resident_bytes() - before_bytes < 16 << 20


@pytest.mark.parametrize("claimed_bytes", [OBJECT_MAX_BYTES + 1, (1 << 64) - 1])
def test_a_map_of_a_size_that_no_object_has_is_passed_over(path: Path, claimed_bytes: int) -> None:
    for each in path.rglob("*.map"):
        magic, header_bytes, block_bytes, _, *rest = HEADER.unpack_from(each.read_bytes())
        with each.open("r+b") as file:
            file.write(HEADER.pack(magic, header_bytes, block_bytes, claimed_bytes, *rest))
    assert inspection.stored(path) == []


def test_a_map_whose_identity_is_nested_too_deep_is_none() -> None:
    identity = b"[" * (HEADER_BYTES - HEADER.size)
    assert Map.parse(HEADER.pack(MAGIC, HEADER_BYTES, BLOCK_BYTES, 5, 1, 2, len(identity)) + identity) is None


@pytest.mark.parametrize("header", [b"", os.urandom(HEADER_BYTES), bytes(HEADER_BYTES)])
def test_what_is_no_map(header: bytes) -> None:
    assert Map.parse(header) is None


@pytest.mark.parametrize(
    ("place", "lies"),
    [
        ("s3://127.0.0.1:9/models", True),
        ("s3://http://127.0.0.1:9/models/a", True),
        ("s3://127.0.0.1:9/models/a/b", True),
        ("s3+encoded://http:%2F%2F127.0.0.1:9/models/a", True),
        ("s3://models/a", False),
        ("s3+encoded://http:%2F%2F127.0.0.1:9/models/a%2F", False),
        ("s3://127.0.0.1:8/models", False),
        ("s3://127.0.0.1:9/models/a/b/c", False),
        ("s3://127.0.0.1:9/models/a/", True),
        ("s3://models/aa", False),
        ("s3://model", False),
    ],
)
def test_below_a_url(place: str, lies: bool) -> None:
    assert Map(ORIGIN, "a/b", '"x"', 5, (1, 2)).lies_in(Place.parse(place)) is lies


# --- verify ---


def test_what_is_right_stays(path: Path) -> None:
    verdicts = verify(path)
    assert sorted(each.checked_blocks for each in verdicts) == [1, 3]
    assert all(each.good for each in verdicts)
    assert sum(each.cached_bytes for each in inspection.stored(path)) == WHOLE.size_bytes + MIB


def test_a_bad_block_is_cleared_and_can_be_brought_again(path: Path) -> None:
    spoil(path, WHOLE, MIB + 77)
    (bad,) = (each for each in verify(path) if not each.good)
    assert (bad.stored.map.key, bad.bad_blocks, bad.checked_blocks) == (WHOLE.key, [1], 3)
    assert all(each.good for each in verify(path))
    with backing(WHOLE, directory(path)) as file:
        assert file.presence.missing(WHOLE.whole) == [ByteRange(MIB, 2 * MIB)]
        fill(file, 1)
        assert read(file, WHOLE.whole) == data_of(WHOLE)
    assert all(each.good for each in verify(path))


def test_blocks_of_another_boot_are_verified_too(tmp_path: Path) -> None:
    with backing(WHOLE, directory(tmp_path), boot_tag=BOOT ^ 2) as file:
        fill(file)
    spoil(tmp_path, WHOLE, 5)
    (verdict,) = verify(tmp_path)
    assert (verdict.checked_blocks, verdict.bad_blocks) == (3, [0])


def test_a_file_that_was_cut_off_is_no_file(path: Path) -> None:
    for each in path.rglob("*.data"):
        os.truncate(each, MIB)
    assert verify(path) == []


def test_a_file_larger_than_a_job(tmp_path: Path) -> None:
    large = version(130 * MIB, "large.bin")
    with backing(large, directory(tmp_path)) as file:
        for index in (0, 63, 64, 129):
            block = memoryview(bytes([index]) * BLOCK_BYTES)
            write(file, index * BLOCK_BYTES, block)
    for index in (63, 129):
        spoil(tmp_path, large, index * MIB)
    (verdict,) = verify(tmp_path)
    assert (verdict.checked_blocks, verdict.bad_blocks) == (4, [63, 129])


def test_a_bad_block_of_an_open_version_is_the_next_openers_to_bring(path: Path) -> None:
    within = directory(path)
    with backing(WHOLE, within) as user:
        spoil(path, WHOLE, 0)
        (bad,) = (each for each in verify(path) if not each.good)
        assert bad.stored.in_use
        assert user.presence.missing(WHOLE.whole) == [], "which it remembers as present"
        with backing(WHOLE, within) as other:
            assert other.presence.missing(WHOLE.whole) == [ByteRange(0, MIB)]
            fill(other, 0)
        assert read(user, WHOLE.whole) == data_of(WHOLE), "the same file: mended for both"


def test_md5(tmp_path: Path) -> None:
    def etagged(key: str, validator: str) -> ObjectVersion:
        return ObjectVersion(key, MIB + 3, validator, 1)

    def md5(key: str) -> str:
        return hashlib.md5(content(key, MIB + 3)).hexdigest()

    right, wrong = etagged("right", f'"{md5("right")}"'), etagged("wrong", f'"{md5("right")}"')
    multipart, part = etagged("multipart", f'"{md5("multipart")}-2"'), etagged("part", f'"{md5("part")}"')
    azure, google = etagged("azure", '"0x8DC0FFEE0DDBA11"'), etagged("google", "1700000000000000")
    oss, spoilt = etagged("oss", f'"{md5("oss").upper()}"'), ObjectVersion("spoilt", MIB, f'"{md5("spoilt")}"', 1)
    with ExitStack() as stack:
        for each in (right, wrong, multipart, part, azure, google, oss, spoilt):
            fill(stack.enter_context(backing(each, directory(tmp_path))), *([0] if each is part else []))
    spoil(tmp_path, spoilt, 0)
    found = {each.stored.map.key: each for each in verify(tmp_path, md5=True)}
    assert {key: each.not_comparable for key, each in found.items()} == {
        "right": "",
        "wrong": DIFFERS,
        "multipart": NO_MD5,
        "part": INCOMPLETE,
        "azure": NO_MD5,
        "google": NO_MD5,
        "oss": "",
        "spoilt": HAS_BAD_BLOCKS,
    }
    assert {key for key, each in found.items() if each.md5} == {"right", "oss"}
    assert {key for key, each in found.items() if not each.good} == {"spoilt"}, (
        "an ETag never says that a file is damaged"
    )
    assert not any(each.md5 or each.not_comparable for each in verify(tmp_path)), "nobody asked"


# --- drop ---


def test_drop_keeps_what_is_in_use(path: Path) -> None:
    with backing(PART, directory(path)) as user:
        gone, kept = inspection.drop(inspection.stored(path))
        assert ([each.map.key for each in gone], [each.map.key for each in kept]) == ([WHOLE.key], [PART.key])
        assert read(user, ByteRange(MIB, 2 * MIB)) == data_of(PART, ByteRange(MIB, 2 * MIB))
    assert [each.map.key for each in inspection.stored(path)] == [PART.key]
    assert len(list(path.rglob("*.data"))) == 1


def test_drop_of_what_somebody_else_has_dropped(path: Path) -> None:
    found = inspection.stored(path)
    inspection.drop(found)
    gone, kept = inspection.drop(found)
    assert (len(gone), kept) == (2, [])


def test_remains(path: Path) -> None:
    first, second = sorted(path.rglob("*.map"))
    first.unlink()
    os.truncate(second, 7)
    inspection.drop_remains(path)
    assert not [each for each in path.rglob("*") if each.is_file()]


def test_remains_in_use_are_kept(path: Path) -> None:
    with backing(PART, directory(path)):
        for each in path.rglob("*.data"):
            each.unlink()
        inspection.drop_remains(path)
        (kept,) = path.rglob("*.map")
    assert kept.exists()
