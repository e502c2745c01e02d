"""No interleaving hides a present name, or shows one that is gone, beyond the bounds of
`docs/semantics.md`.

For a long run of that many seeds:

    D7YFS_SIMULATE=2000 python -m pytest -s tests/simulation/test_names.py

To run one seed alone: `python -m tests.simulation.names SEED SEED+1`.
"""

from __future__ import annotations

import logging
import os
import time
from unittest import mock

import pytest

from d7yfs.tree.tree import Tree
from tests.simulation import names

_RUNS = int(os.environ.get("D7YFS_SIMULATE", "0")) or 24
_WITH_TEETH = 6


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR, "d7yfs")


def test_a_name_means_what_the_store_had_within_the_bound() -> None:
    began_at, steps, judged = time.monotonic(), 0, 0
    for seed in range(_RUNS):
        outcome = names.run(seed)
        assert not outcome.wrong, f"seed {seed}: {outcome.wrong}; {outcome.setup}"
        assert outcome.judged
        steps += outcome.steps
        judged += outcome.judged
    print(f"{_RUNS} runs, {judged} answers, {steps} steps, {steps / (time.monotonic() - began_at):.0f} steps/s")


def test_one_seed_is_one_run() -> None:
    first, again = names.run(3), names.run(3)
    assert (first.trace, first.steps) == (again.trace, again.steps)
    assert first.answered_alone, "the kernel must answer some lookups from its cache"
    assert names.run(4).trace != first.trace


def test_it_sees_what_is_believed_for_too_long() -> None:
    def lives_until(_tree: Tree, asked_at: float, _took_s: float = 0.0) -> float:
        return asked_at + 1000.0

    with mock.patch.object(Tree, "lives_until", lives_until):
        assert any(names.run(seed).wrong for seed in range(_WITH_TEETH))
