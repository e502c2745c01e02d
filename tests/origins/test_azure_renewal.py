"""Renewing: who waits for a new value, and who does not."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import aclosing

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from d7yfs.errors import AccessDenied, OriginUnavailable
from d7yfs.origins.azure_renewal import Expiring, Renewing

LIFE_S = 3600.0


class Source:
    """Gives "1", "2", … for an hour each, as soon as `gate` is open, or raises `failure`."""

    def __init__(self) -> None:
        self.now = 1_800_000_000.0
        self.fetched = 0
        self.failure: Exception | None = None
        self.gate = trio.Event()
        self.gate.set()

    def clock(self) -> float:
        return self.now

    async def fetch(self) -> Expiring[str]:
        self.fetched += 1
        number = self.fetched
        await self.gate.wait()
        if self.failure:
            raise self.failure
        return Expiring(str(number), self.now + LIFE_S)


@pytest.fixture
def source() -> Source:
    return Source()


@pytest.fixture
async def renewing(source: Source) -> AsyncIterator[Renewing[str]]:
    async with aclosing(Renewing(source.fetch, "token", source.clock)) as renewing:
        yield renewing


async def value(renewing: Renewing[str]) -> str:
    return (await renewing.get()).value


async def test_first_value_is_fetched_once_for_all(source: Source, renewing: Renewing[str]) -> None:
    async with trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(renewing.get)
    assert source.fetched == 1


async def test_kept_for_half_its_life(source: Source, renewing: Renewing[str]) -> None:
    await renewing.get()
    source.now += LIFE_S / 2 - 1
    assert await value(renewing) == "1"
    await wait_all_tasks_blocked()
    assert source.fetched == 1


async def test_renewed_behind_those_who_ask(source: Source, renewing: Renewing[str]) -> None:
    await renewing.get()
    source.now += LIFE_S / 2 + 1
    source.gate = trio.Event()
    for _ in range(3):
        assert await value(renewing) == "1", "nobody waits"
    await wait_all_tasks_blocked()
    assert source.fetched == 2, "one renewal at a time"
    source.gate.set()
    await wait_all_tasks_blocked()
    assert await value(renewing) == "2"


@pytest.mark.parametrize("failure", [OriginUnavailable("no network"), RuntimeError("a bug")])
async def test_failed_renewal_keeps_what_is_valid(
    source: Source, renewing: Renewing[str], failure: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    await renewing.get()
    source.failure = failure
    source.now += LIFE_S / 2 + 1
    assert await value(renewing) == "1"
    await wait_all_tasks_blocked()
    assert [record.levelno >= logging.WARNING for record in caplog.records] == [True]
    source.now += 31
    source.failure = None
    assert await value(renewing) == "1"
    await wait_all_tasks_blocked()
    assert await value(renewing) == "3", "tried again"


async def test_failed_renewal_is_not_repeated_at_once(source: Source, renewing: Renewing[str]) -> None:
    await renewing.get()
    source.failure = OriginUnavailable("no network")
    source.now += LIFE_S / 2 + 1
    for _ in range(5):
        await renewing.get()
        await wait_all_tasks_blocked()
    assert source.fetched == 2


async def test_expired_value_is_waited_for(source: Source, renewing: Renewing[str]) -> None:
    await renewing.get()
    source.now += LIFE_S - 5
    assert await value(renewing) == "2", "one that ends on the way is no use"
    source.now += LIFE_S
    source.failure = AccessDenied("no more")
    with pytest.raises(AccessDenied):
        await renewing.get()


async def test_renew_on_demand(source: Source, renewing: Renewing[str]) -> None:
    await renewing.get()
    await renewing.renew()
    assert await value(renewing) == "2"
    source.failure = OriginUnavailable("no network")
    await renewing.renew()
    assert await value(renewing) == "2"
    renewing.drop()
    with pytest.raises(OriginUnavailable):
        await renewing.renew()


async def test_cancelled_reader_leaves_the_fetch_to_the_next(source: Source, renewing: Renewing[str]) -> None:
    source.gate = trio.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(renewing.get)
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    source.gate.set()
    assert await value(renewing) == "2"


async def test_close_ends_a_renewal(source: Source) -> None:
    renewing = Renewing(source.fetch, "token", source.clock)
    await renewing.get()
    source.now += LIFE_S / 2 + 1
    source.gate = trio.Event()
    await renewing.get()
    await wait_all_tasks_blocked()
    with trio.fail_after(10):
        await renewing.aclose()
    source.gate.set()
    assert await value(renewing) == "1"


def test_no_repr_shows_the_value() -> None:
    assert "hush" not in repr(Expiring("hush", 0.0))
