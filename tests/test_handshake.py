"""What of libfuse's answer to INIT is changed on its way to the kernel. `mount/test_scale.py` shows what for."""

from __future__ import annotations

import struct

import pytest

from d7yfs.fuse.handshake import with_parallel_directories

PARALLEL_DIROPS = 1 << 18
FLAGS = 0x4040B029
REST = bytes(range(48))


def answer(*, major: int = 7, error: int = 0, flags: int = FLAGS, rest: bytes = REST) -> bytes:
    init = struct.pack("=IIII", major, 31, 131072, flags) + rest
    return struct.pack("=IiQ", 16 + len(init), error, 2) + init


def test_the_flag_is_added_and_nothing_else_changes() -> None:
    assert with_parallel_directories(answer()) == answer(flags=FLAGS | PARALLEL_DIROPS)


def test_an_answer_that_has_it_stays_as_it_is() -> None:
    has = answer(flags=FLAGS | PARALLEL_DIROPS)
    assert with_parallel_directories(has) == has


@pytest.mark.parametrize("strange", [b"", answer()[:20], answer() + b"!", answer(major=8), answer(error=-5)])
def test_what_is_not_understood_goes_on_as_it_is(strange: bytes) -> None:
    assert with_parallel_directories(strange) == strange
