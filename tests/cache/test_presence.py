"""`Presence` against a set of blocks and a dictionary of landed heads."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from d7yfs.cache.pair import Arriving, Block, Presence, block_count, block_range
from d7yfs.objects import BLOCK_BYTES, ByteRange

_SIZES = st.one_of(
    st.integers(0, 6).map(lambda blocks: blocks * BLOCK_BYTES), st.integers(0, 6 * BLOCK_BYTES), st.just(1)
)


@st.composite
def _cases(draw: st.DrawFn) -> tuple[Presence, dict[int, Block], dict[int, int], ByteRange]:
    """A presence after a random history, what it must hold, and a range to ask about."""
    size_bytes = draw(_SIZES)
    count = block_count(size_bytes)
    stored = draw(st.lists(st.sampled_from(Block), min_size=count, max_size=count))
    presence = Presence(size_bytes, bytearray(stored) if draw(st.booleans()) else None)
    model = {index: state for index, state in enumerate(presence.blocks) if state}
    states = {index: Block(state) for index, state in model.items()}
    indexes = st.integers(0, count - 1)
    for _ in range(draw(st.integers(0, 12)) if count else 0):
        index = draw(indexes)
        if draw(st.booleans()):
            states[index] = draw(st.sampled_from([Block.DISK, Block.MEMORY, Block.LINKED]))
            presence.set_present(index, states[index])
        else:
            states.pop(index, None)
            presence.set_absent(index)
    heads: dict[int, int] = {}
    for index in range(count):
        if index not in states and draw(st.booleans()):
            heads[index] = draw(st.integers(0, block_range(index, size_bytes).size - 1))
            presence.arriving[index] = Arriving(heads[index], 0, in_memory=False)
    start = draw(st.integers(0, size_bytes))
    stop = draw(st.one_of(st.integers(start, size_bytes), st.just(size_bytes)))
    return presence, states, heads, ByteRange(start, stop)


def _touched(wanted: ByteRange) -> range:
    return range(wanted.start // BLOCK_BYTES, -(-wanted.stop // BLOCK_BYTES)) if wanted else range(0)


@given(_cases())
def test_missing_is_the_absent_blocks_in_the_fewest_runs(
    case: tuple[Presence, dict[int, Block], dict[int, int], ByteRange],
) -> None:
    presence, states, _, wanted = case
    runs = presence.missing(wanted)
    blocks = [index for run in runs for index in _touched(run)]
    assert blocks == [index for index in _touched(wanted) if index not in states]
    for run in runs:
        assert run == run.aligned(BLOCK_BYTES, presence.size_bytes)
    assert all(a.stop < b.start for a, b in pairwise(runs))


@given(_cases())
def test_the_first_unreadable_byte(case: tuple[Presence, dict[int, Block], dict[int, int], ByteRange]) -> None:
    presence, states, heads, wanted = case
    expected = None
    for index in _touched(wanted):
        if states.get(index) in (Block.DISK, Block.MEMORY, Block.LINKED):
            continue
        block = block_range(index, presence.size_bytes)
        first = max(wanted.start, block.start + heads.get(index, 0))
        if first < min(block.stop, wanted.stop):
            expected = first
            break
    assert presence.first_unreadable(wanted) == expected


@given(_cases())
def test_counts(case: tuple[Presence, dict[int, Block], dict[int, int], ByteRange]) -> None:
    presence, states, _, wanted = case
    assert presence.cached_bytes == sum(block_range(index, presence.size_bytes).size for index in states)
    assert (not presence.absent_count) == (len(states) == block_count(presence.size_bytes))
    assert presence.unverified(wanted) == [
        i for i in _touched(wanted) if states.get(i) in (Block.UNVERIFIED, Block.UNVERIFIED_LINK)
    ]


def test_landing_or_dropping_a_block_ends_its_arrival() -> None:
    presence = Presence(2 * BLOCK_BYTES)
    for index in range(2):
        presence.arriving[index] = Arriving(7, 0, in_memory=False)
    presence.set_present(0, Block.DISK)
    presence.set_absent(1)
    assert not presence.arriving


def test_a_table_of_another_size_is_refused() -> None:
    with pytest.raises(ValueError, match="3 blocks"):
        Presence(2 * BLOCK_BYTES, bytearray(3))
