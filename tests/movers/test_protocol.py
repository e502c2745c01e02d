"""Jobs and words as packets."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from d7yfs.movers.protocol import ALIVE, MAX_JOB_BYTES, PACKET_BYTES, TAIL_BYTES, Ending, Job, Word
from d7yfs.objects import BLOCK_BYTES

U64 = st.integers(0, (1 << 64) - 1)
U32 = st.integers(0, (1 << 32) - 1)


@given(st.builds(Job, U64, U64, U64, U32, st.floats(0, 1e9)))
def test_a_job_comes_as_it_was_sent(job: Job) -> None:
    assert Job.decode(job.encode()) == job


@given(
    st.builds(Word, U64, U64, st.tuples(U32, U32), st.just(Ending.NONE), st.integers(0, 4095))
    | st.builds(Word, U64, U64, st.tuples(U32), st.sampled_from(list(Ending)[1:]), st.just(0), st.binary(max_size=9))
)
def test_a_word_comes_as_it_was_said(word: Word) -> None:
    assert Word.decode(word.encode()) == word


def test_the_longest_word_fits_into_a_packet() -> None:
    touched = MAX_JOB_BYTES // BLOCK_BYTES + 1  # a job need not begin with a block
    longest = Word(1, 2, tuple(range(touched)), Ending.DONE, 0, bytes(TAIL_BYTES))
    assert len(longest.encode()) <= PACKET_BYTES


@pytest.mark.parametrize("packet", [b"", b"x", ALIVE.encode()[:-1]])
def test_anything_else_is_refused(packet: bytes) -> None:
    with pytest.raises(ValueError, match="is no word"):
        Word.decode(packet)
    with pytest.raises(ValueError, match="is no job"):
        Job.decode(packet)


def test_a_job_without_bytes_ends_another() -> None:
    assert Job(7, 5, 5).cancels
    assert not Job(7, 5, 6).cancels


@pytest.mark.parametrize(
    ("word", "position", "allowed"),
    [
        (Word(1, 50, (1,)), 10, True),
        (Word(1, 10, ()), 10, True),
        (Word(1, BLOCK_BYTES, (1,)), 10, True),
        (Word(1, BLOCK_BYTES + 1, (1, 2)), 10, True),
        (Word(1, 2 * BLOCK_BYTES, (1,)), BLOCK_BYTES, True),
        (Word(1, 3 * BLOCK_BYTES, (1,), Ending.DONE), 2 * BLOCK_BYTES, True),
        (Word(1, 50, ()), 10, False),
        (Word(1, 50, (1, 2)), 10, False),
        (Word(1, 9, ()), 10, False),
        (Word(1, 3 * BLOCK_BYTES + 1, (1, 2)), 2 * BLOCK_BYTES, False),
        (Word(1, 50, (1,), Ending.DONE), 10, False),
    ],
)
def test_a_word_that_its_job_cannot_have_is_told_from_one_that_it_can(word: Word, position: int, allowed: bool) -> None:
    assert Job(1, 10, 3 * BLOCK_BYTES).may_hear(word, position) is allowed
