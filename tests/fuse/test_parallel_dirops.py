"""The change to libfuse's answer to INIT on its way to the kernel. `mount/test_scale.py` shows
its use."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from d7yfs.fuse.parallel_dirops import devices, with_parallel_directories

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


def test_a_descriptor_that_is_closed_meanwhile_is_none_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    with Path("/dev/fuse").open("rb") as device:
        listed = [*Path("/proc/self/fd").iterdir(), Path("/proc/self/fd/99999")]
        monkeypatch.setattr(Path, "iterdir", lambda _: iter(listed))
        assert device.fileno() in devices()
