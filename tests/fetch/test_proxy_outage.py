"""How long and how many requests are held that go to the origin in place of a proxy."""

from __future__ import annotations

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock, wait_all_tasks_blocked

from d7yfs.fetch.proxy_outage import MAX_CONNECTIONS, PREFETCH_HELD_S, READERS_HELD_S, FallbackLimiter
from d7yfs.fetch.transfer import Permits, Urgency


def test_each_host_begins_at_a_moment_of_its_own() -> None:
    holds = []
    for number in range(11):
        outage = FallbackLimiter(lambda share=number / 10: share)  # type: ignore[misc]
        holds.append((outage.hold_s(100.0, urgent=True), outage.hold_s(100.0, urgent=False)))
    assert holds[0] == (0.0, 0.0)
    assert holds[10] == (READERS_HELD_S, PREFETCH_HELD_S)
    assert sorted(set(holds)) == holds


def test_readers_are_held_once_per_outage() -> None:
    outage = FallbackLimiter(lambda: 1.0)
    assert outage.hold_s(100.0, urgent=True) == READERS_HELD_S
    assert outage.hold_s(100.0 + READERS_HELD_S, urgent=True) == 0
    assert outage.hold_s(103.0, urgent=True) == 0
    assert outage.hold_s(103.0, urgent=False) == PREFETCH_HELD_S - 3
    outage.end_outage()
    assert outage.hold_s(200.0, urgent=True) == READERS_HELD_S


@given(st.lists(st.tuples(st.floats(0, 100), st.booleans(), st.booleans()), max_size=20))
def test_nobody_is_held_for_longer_than_that(steps: list[tuple[float, bool, bool]]) -> None:
    outage, now = FallbackLimiter(lambda: 1.0), 0.0
    for pause_s, urgent, over in steps:
        now += pause_s
        assert 0 <= outage.hold_s(now, urgent=urgent) <= (READERS_HELD_S if urgent else PREFETCH_HELD_S) + 1e-9
        if over:
            outage.end_outage()


@pytest.fixture
def clock() -> MockClock:
    return MockClock(autojump_threshold=0)


class Crowd:
    """Transfers that take their turn and keep it."""

    def __init__(self, limiter: FallbackLimiter, nursery: trio.Nursery) -> None:
        self.limiter, self._nursery = limiter, nursery
        self.at_s: list[float] = []
        """When each had its turn."""

    def add(self, count: int, urgency: Urgency) -> None:
        for _ in range(count):
            self._nursery.start_soon(self._hold, urgency)

    async def _hold(self, urgency: Urgency) -> None:
        began = trio.current_time()
        with Permits() as permits:
            await self.limiter.enter(permits, urgency)
            self.at_s.append(trio.current_time() - began)
            await trio.sleep_forever()


async def test_few_at_a_time_and_prefetch_takes_half_of_them(clock: MockClock, nursery: trio.Nursery) -> None:
    crowd = Crowd(FallbackLimiter(lambda: 1.0), nursery)
    crowd.add(20, Urgency(urgent=False))
    await trio.sleep(PREFETCH_HELD_S - 0.1)
    assert not crowd.at_s
    await trio.sleep(0.2)
    assert len(crowd.at_s) == MAX_CONNECTIONS // 2
    crowd.add(20, Urgency(urgent=True))
    await trio.sleep(1)
    assert len(crowd.at_s) == MAX_CONNECTIONS
    nursery.cancel_scope.cancel()


async def test_a_prefetch_that_a_reader_comes_to_wait_for_is_held_no_longer(
    clock: MockClock, nursery: trio.Nursery
) -> None:
    crowd, urgency = Crowd(FallbackLimiter(lambda: 1.0), nursery), Urgency(urgent=False)
    crowd.add(1, urgency)
    await trio.sleep(0.1)
    urgency.make_urgent()
    await trio.sleep(READERS_HELD_S)
    assert crowd.at_s == [pytest.approx(READERS_HELD_S)]
    nursery.cancel_scope.cancel()


async def test_a_turn_is_given_back(clock: MockClock, nursery: trio.Nursery) -> None:
    limiter = FallbackLimiter(lambda: 0.0)
    for _ in range(3 * MAX_CONNECTIONS):
        for urgency in (Urgency(urgent=True), Urgency(urgent=False)):
            with Permits() as permits:
                with trio.fail_after(1):
                    await limiter.enter(permits, urgency)
    await wait_all_tasks_blocked()
