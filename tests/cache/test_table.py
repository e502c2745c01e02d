"""Tables of blocks: plain and sparse ones say the same, and a claimed size costs nothing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from d7yfs.bounds.values import OBJECT_MAX_BYTES
from d7yfs.cache import table
from d7yfs.cache.pair import Block, Presence, read_map
from d7yfs.cache.table import ENTRY_BYTES, blank_entries, nonzero, nonzero_states, read_entries_at, states_of
from d7yfs.objects import BLOCK_BYTES, ByteRange
from tests.cache.doubles import ORIGIN, directory, resident_bytes, takes_sparse, version

COUNT = 3 * 8192 + 5
ENTRIES = st.dictionaries(st.integers(0, COUNT - 1), st.integers(1, (1 << 64) - 1), max_size=20)


@pytest.mark.parametrize("dense_blocks", [1, 1 << 16])
@given(ENTRIES)
def test_a_table_reads_back_what_a_map_on_disk_holds(
    tmp_path_factory: pytest.TempPathFactory, dense_blocks: int, expected: dict[int, int]
) -> None:
    path = tmp_path_factory.mktemp("table") / "map"
    with pytest.MonkeyPatch.context() as patch, path.open("w+b", buffering=0) as file:
        patch.setattr(table, "DENSE_BLOCKS", dense_blocks)
        fd, header = file.fileno(), b"h" * 4096
        assert table.write_blank(fd, header, COUNT)
        assert path.stat().st_size == len(header) + COUNT * ENTRY_BYTES
        for index, entry in expected.items():
            os.pwrite(fd, entry.to_bytes(8, "little"), len(header) + index * ENTRY_BYTES)
        entries = read_entries_at(fd, len(header), COUNT)
        assert len(entries) == COUNT
        assert dict(nonzero(entries)) == expected
        states = states_of(entries, lambda run: bytes(map(bool, run)))
        assert dict(nonzero_states(states)) == dict.fromkeys(expected, 1)
        assert table.count_zeros(states) == COUNT - len(expected)


@pytest.mark.parametrize("dense_blocks", [1, 1 << 16])
@given(st.sets(st.integers(0, 100_000)), st.integers(0, 100_000))
def test_a_long_run_of_absent_blocks_ends_at_the_next_present_one(
    dense_blocks: int, present: set[int], first: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(table, "DENSE_BLOCKS", dense_blocks)
        presence = Presence(100_001 * BLOCK_BYTES)
    for index in present:
        presence.set_present(index, Block.DISK)
    runs = presence.missing(ByteRange(first * BLOCK_BYTES, presence.size_bytes))
    absent = [index for run in runs for index in range(run.start // BLOCK_BYTES, run.stop // BLOCK_BYTES)]
    assert absent == [index for index in range(first, 100_001) if index not in present]


def test_the_size_that_a_store_claims_costs_neither_memory_nor_disk(tmp_path: Path) -> None:
    huge = version(OBJECT_MAX_BYTES if takes_sparse(tmp_path, OBJECT_MAX_BYTES) else 5 << 40)
    before_bytes = resident_bytes()
    files = directory(tmp_path).open(ORIGIN, huge)
    presence = Presence(huge.size_bytes)
    presence.set_present(len(presence.blocks) - 1, Block.DISK)
    files.entries[len(files.entries) - 1] = 7
    os.pwrite(files.map_fd, (7).to_bytes(8, "little"), 4096 + (len(files.entries) - 1) * ENTRY_BYTES)
    assert presence.first_unreadable(ByteRange(0, 1)) == 0
    assert len(presence.missing(huge.whole)) == 1
    assert not presence.all_on_disk
    again = read_map(files.map_fd, files.map_path.with_suffix(".data"), files.identity, huge.size_bytes)
    assert again is not None
    assert dict(nonzero(again)) == {len(again) - 1: 7}
    assert resident_bytes() - before_bytes < 16 << 20
    assert os.fstat(files.map_fd).st_blocks * 512 <= 64 << 10
    files.close()


def test_a_blank_table_of_many_blocks_is_of_zeros() -> None:
    assert list(nonzero(blank_entries((1 << 16) + 1))) == []
