"""A few hundred operations under each kind of fault; `make fuzz` runs a million."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.fuzz import content
from tests.fuzz.campaign import KINDS, Options, run
from tests.fuzz.history import ABSENT, History, Writer
from tests.fuzz.phases import Phases

PROMISED = sorted(KINDS.keys() - {"spoil"})


@pytest.mark.mount
@pytest.mark.skipif(os.geteuid() != 0 or not Path("/dev/fuse").exists(), reason="needs root and /dev/fuse")
@pytest.mark.parametrize("kind", PROMISED)
def test_nothing_but_what_is_promised(kind: str, tmp_path: Path, pytestconfig: pytest.Config) -> None:
    options = Options(
        kind,
        operations=600,
        seed=7,
        seconds=8,
        directory=tmp_path / "run",
        processes=1,
        threads=4,
        mappers=1,
        calm_s=3.0,
        extra=("--fuse-engine", pytestconfig.getoption("fuse_engine")),
    )
    result = run(options)
    assert result.is_clean, json.dumps(
        {"failures": result.failures, "deviations": result.deviations[:5], "counts": result.counts}, indent=1
    )
    assert result.counts["reads"] > 50


def test_a_wrong_byte_says_where_it_came_from() -> None:
    other = content.piece(2, 0, 4096)
    data = content.piece(1, 4096, 4096) + content.piece(2, 8192, 4096) + bytes(4096) + other
    said = content.provenance(data, 4096, [1, 2])
    assert "[4096, 8192): version 1, at its place" in said
    assert "[8192, 12288): version 2, at its place" in said
    assert "[12288, 16384): zeros" in said
    assert "[16384, 16392): version 2, but its offset 0" in said


def test_a_piece_is_the_same_from_wherever_it_is_cut() -> None:
    whole = content.piece(3, 0, 1000)
    assert all(content.piece(3, at, size) == whole[at : at + size] for at in range(20) for size in range(1, 40))
    assert len(whole) == 1000
    assert whole != content.piece(4, 0, 1000)


def test_what_was_current_in_an_interval(tmp_path: Path) -> None:
    writer = Writer(tmp_path / "history")
    history = History(tmp_path / "history", ["a"])
    for serial, at in ((1, 10.0), (2, 20.0), (ABSENT, 30.0), (2, 40.0)):
        writer.write(0, serial, 7 if serial else 0, at)
    history.update()
    assert history.current(0, 12, 15) == [(1, 7)]
    assert history.current(0, 15, 25) == [(1, 7), (2, 7)]
    assert history.current(0, 31, 32) == [(ABSENT, 0)]
    assert history.is_steady(0, 2, 41, 99)
    assert not history.is_steady(0, 2, 29, 41)


def test_peace_is_the_last_moment_of_quiet_that_had_lasted() -> None:
    phases = Phases(100.0, 10.0, 8.0)
    assert not phases.is_trouble(99)
    assert phases.is_trouble(101)
    assert not phases.is_trouble(111)
    assert phases.last_peace(105, 5) == 100
    assert phases.last_peace(112, 5) == 100
    assert phases.last_peace(116, 5) == 116
    assert phases.last_peace(120, 5) == 118
    assert not Phases(100.0, 0.0, 0.0).is_trouble(200)
