"""The data path under simulation: no interleaving of transfers, faults, replacements, evictions and
deaths gives a reader a wrong byte.

Every test run has some runs with fixed seeds. For a long series with new seeds, and for one seed
again:

    make simulate ARGS='-k data'
    D7YFS_SIMULATE_SEED=107 python -m pytest tests/simulation/test_data.py
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.simulation.world import simulate

_BATCHES = 4
_RUNS = int(os.environ.get("D7YFS_SIMULATE", "0"))
_SEED = os.environ.get("D7YFS_SIMULATE_SEED", "")


@pytest.fixture(scope="module")
def fast_disk() -> Path:
    """A directory for the runs' caches, in memory if possible, because only the order of events
    matters.
    """
    shared = Path("/dev/shm")
    return shared if os.access(shared, os.W_OK) else Path(tempfile.gettempdir())


def _seeds(batch: int) -> range:
    if _SEED:
        return range(int(_SEED), int(_SEED) + (batch == 0))
    if _RUNS:
        first = int(time.time()) * 1000 + batch * _RUNS
        return range(first, first + -(-_RUNS // _BATCHES))
    return range(batch * 10, batch * 10 + 10)


@pytest.mark.parametrize("batch", range(_BATCHES))
def test_a_reader_gets_the_bytes_of_its_version_or_an_error_with_a_reason(batch: int, fast_disk: Path) -> None:
    began, steps, reads, read_bytes = time.monotonic(), 0, 0, 0
    errors: Counter[str] = Counter()
    replies: Counter[str] = Counter()
    events: Counter[str] = Counter()
    states: set[int] = set()
    for seed in _seeds(batch):
        path = Path(tempfile.mkdtemp(prefix="d7yfs-simulation-", dir=fast_disk))
        try:
            outcome = simulate(seed, path)
        finally:
            shutil.rmtree(path)
        steps, reads, read_bytes = steps + outcome.steps, reads + outcome.reads, read_bytes + outcome.read_bytes
        errors, replies, events = errors + outcome.errors, replies + outcome.replies, events + outcome.events
        states |= outcome.states
    if _RUNS:
        rate = steps / (time.monotonic() - began)
        print(
            f"{steps} steps, {rate:.0f} a second, {len(states)} states; {reads} reads of {read_bytes} bytes; {_seeds(batch)}"
        )
        print(f"readers' errors {dict(errors)}\nreplies {dict(replies)}\nevents {dict(events)}")
    elif not _SEED:
        assert reads > 100, "the runs do not read"
        assert len(replies) > 8, "the network does not fail"
