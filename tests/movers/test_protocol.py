"""Jobs and words as packets."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from d7yfs.movers.protocol import (
    ALIVE,
    MAX_JOB_BYTES,
    PACKET_BYTES,
    TAIL_BYTES,
    Ending,
    Job,
    TunnelOrder,
    TunnelState,
    TunnelWord,
    Word,
    decode_order,
    decode_word,
)
from d7yfs.objects import BLOCK_BYTES

U64 = st.integers(0, (1 << 64) - 1)
U32 = st.integers(0, (1 << 32) - 1)


@given(
    st.builds(Job, U64, U64, U64, U32, st.floats(0, 1e9), U64)
    | st.builds(TunnelOrder, U64, st.text(max_size=300), st.just("/etc/ssl/\udcff/ca.pem"), st.booleans())
)
def test_an_order_comes_as_it_was_sent(order: Job | TunnelOrder) -> None:
    assert decode_order(order.encode()) == order


@given(
    st.builds(Word, U64, U64, st.tuples(U32, U32), st.just(Ending.NONE), st.integers(0, 4095))
    | st.builds(Word, U64, U64, st.tuples(U32), st.sampled_from(list(Ending)[1:]), st.just(0), st.binary(max_size=9))
    | st.builds(TunnelWord, U64, st.sampled_from(TunnelState), st.integers(0, 4095), st.text(max_size=200))
)
def test_a_word_comes_as_it_was_said(word: Word | TunnelWord) -> None:
    assert decode_word(word.encode()) == word


def test_a_reason_that_is_too_long_is_cut() -> None:
    word = decode_word(TunnelWord(1, TunnelState.REFUSED, reason="no " * 9999).encode())
    assert isinstance(word, TunnelWord)
    assert word.reason.startswith("no no")
    assert len(word.encode()) <= PACKET_BYTES


@pytest.mark.parametrize("state", [0, 8, 63, 71, 255])
def test_a_state_is_an_ending_or_a_tunnels(state: int) -> None:
    packet = bytearray(ALIVE.encode())
    packet[16] = state
    if state <= max(Ending):
        assert isinstance(decode_word(bytes(packet)), Word)
        return
    with pytest.raises(ValueError, match=str(state)):
        decode_word(bytes(packet))


def test_the_longest_word_fits_into_a_packet() -> None:
    touched = MAX_JOB_BYTES // BLOCK_BYTES + 1  # a job need not begin with a block
    longest = Word(1, 2, tuple(range(touched)), Ending.DONE, 0, bytes(TAIL_BYTES))
    assert len(longest.encode()) <= PACKET_BYTES


@pytest.mark.parametrize("packet", [b"", b"x", ALIVE.encode()[:-1]])
def test_anything_else_is_refused(packet: bytes) -> None:
    with pytest.raises(ValueError, match="is no word"):
        Word.decode(packet)
    with pytest.raises(ValueError, match="is no job"):
        decode_order(packet)
    with pytest.raises(ValueError, match="is no word"):
        TunnelWord.decode(packet)
    with pytest.raises(ValueError, match="is no order for a tunnel"):
        TunnelOrder.decode(packet)
    with pytest.raises(ValueError, match="is no word"):
        decode_word(packet + bytes([TunnelState.OPEN]) * 99)


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
