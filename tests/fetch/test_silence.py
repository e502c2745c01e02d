"""Silence is told while the work goes on."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from d7yfs.errors import BadReply
from d7yfs.fetch.silence import HEDGE_AFTER_S, LEAST_PATIENCE_S, patience_s, watch


@pytest.fixture
def clock() -> MockClock:
    return MockClock(autojump_threshold=0)


class Work:
    """Bytes come at `moments`, and it is over `after_s`."""

    def __init__(self, moments: list[float], after_s: float, error: BaseException | None = None) -> None:
        self.moments, self.after_s, self.error = moments, after_s, error
        self.progress = self.began = trio.current_time()
        self.told: list[float] = []

    async def run(self) -> None:
        await watch(self._run, lambda: self.progress, lambda: self.told.append(trio.current_time() - self.began))

    async def _run(self) -> None:
        for moment in self.moments:
            await trio.sleep_until(self.began + moment)
            self.progress = trio.current_time()
        await trio.sleep_until(self.began + self.after_s)
        if self.error is not None:
            raise self.error


@pytest.mark.parametrize(
    ("moments", "after_s", "told"),
    [
        ([], 2.9, []),
        ([1, 2, 3, 4, 5, 6], 7, []),
        ([], 60, [3]),
        ([10], 11, [3]),
        ([10], 60, [3, 13]),
        ([1, 2], 60, [5]),
        ([2.5, 5, 20, 21, 22], 24, [8]),
    ],
)
async def test_each_silence_is_told_once(
    clock: MockClock, moments: list[float], after_s: float, told: list[float]
) -> None:
    work = Work(moments, after_s)
    await work.run()
    assert trio.current_time() - work.began == pytest.approx(after_s)
    assert len(work.told) == len(told)
    assert all(first <= at_s <= first + HEDGE_AFTER_S for first, at_s in zip(told, work.told, strict=True))
    assert work.told[:1] == pytest.approx(told[:1])


@pytest.mark.parametrize("error", [BadReply("no"), ZeroDivisionError()])
async def test_failures_come_as_they_are(clock: MockClock, error: Exception) -> None:
    with pytest.raises(type(error)) as caught:
        await Work([], 1, error).run()
    assert caught.value is error


async def test_who_is_told_may_end_it(clock: MockClock) -> None:
    began = trio.current_time()
    with trio.CancelScope() as scope:
        await watch(trio.sleep_forever, lambda: began, scope.cancel)
    assert trio.current_time() - began == pytest.approx(HEDGE_AFTER_S)
    assert scope.cancelled_caught


@pytest.mark.parametrize(
    ("longest_s", "expected_s"),
    [(0.0, LEAST_PATIENCE_S), (0.1, LEAST_PATIENCE_S), (0.5, 2.0), (0.75, HEDGE_AFTER_S), (60.0, HEDGE_AFTER_S)],
)
def test_patience_follows_what_was_usual(longest_s: float, expected_s: float) -> None:
    assert patience_s(longest_s) == expected_s


async def test_patience_that_becomes_less_counts_at_once(autojump_clock: MockClock) -> None:
    """A first byte may have made a long patience a short one, while the watch slept."""
    told: list[float] = []
    patience = [HEDGE_AFTER_S]

    async def work() -> None:
        await trio.sleep(0.5)
        patience[0] = LEAST_PATIENCE_S
        await trio.sleep(4.5)

    began = trio.current_time()
    await watch(work, lambda: began, lambda: told.append(trio.current_time() - began), patience=lambda: patience[0])
    assert told == [pytest.approx(LEAST_PATIENCE_S)]
