"""Runs of trio in which one seed gives one run: time is virtual, and the scheduler's choices come
from the seed.

The simulations of this package use it. The simulated code must use no threads and wait for no I/O;
then only the seed decides.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import trio
from trio.testing import MockClock

T = TypeVar("T")

_scheduler: Any = trio._core._run


class _Steps(trio.abc.Instrument):
    def __init__(self) -> None:
        self.count = 0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.count += 1


def run(seed: int, main: Callable[[], Awaitable[T]]) -> tuple[T, int]:
    """Run `main` to its end in virtual time. Returns its result, and the number of steps of its
    tasks.
    """
    steps = _Steps()
    with _scheduled_by(random.Random(seed)):
        return trio.run(main, clock=MockClock(autojump_threshold=0.0), instruments=[steps]), steps.count


@contextmanager
def _scheduled_by(choose: random.Random) -> Iterator[None]:
    """Make trio order the runnable tasks by `choose` alone; otherwise it also uses their addresses
    in memory.
    """
    before = _scheduler._ALLOW_DETERMINISTIC_SCHEDULING, _scheduler._r
    _scheduler._ALLOW_DETERMINISTIC_SCHEDULING, _scheduler._r = True, choose
    try:
        yield
    finally:
        _scheduler._ALLOW_DETERMINISTIC_SCHEDULING, _scheduler._r = before
