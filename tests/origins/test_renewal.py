"""Renewal: which callers wait for a new thing, and which do not."""

from __future__ import annotations

import math

import pytest
import trio
import trio.testing

from d7yfs.errors import AccessDenied, OriginUnavailable
from d7yfs.origins.access_keys import AccessKeys
from d7yfs.origins.renewal import Renewal


class Source:
    """A source that gives `keys` once `open` is set, and counts the loads."""

    def __init__(self, keys: AccessKeys | None) -> None:
        self.keys = keys
        self.failure: Exception | None = None
        self.now = 1000.0
        self.loads = 0
        self.open = trio.Event()
        self.open.set()
        self.renewal = Renewal(self.load, name="oss://bucket", clock=lambda: self.now)

    async def load(self, held: AccessKeys | None) -> AccessKeys | None:
        self.loads += 1
        await self.open.wait()
        if self.failure:
            raise self.failure
        return self.keys


def keys(name: str, expires_at: float = math.inf, check_again_s: float = math.inf) -> AccessKeys:
    return AccessKeys(name, "secret", expires_at=expires_at, check_again_s=check_again_s)


async def test_lasting_keys_are_loaded_once_for_all() -> None:
    source = Source(keys("a"))
    async with trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(source.renewal.get)
    source.now += 1e9
    assert await source.renewal.get() is source.keys
    assert source.loads == 1


async def test_renewed_ahead_of_their_end_while_nobody_waits() -> None:
    source = Source(keys("old", 1000 + 3600))
    old = await source.renewal.get()
    source.now += 3600 - 901
    assert await source.renewal.get() is old
    await trio.testing.wait_all_tasks_blocked()
    assert source.loads == 1
    source.now += 2
    source.open, source.keys = trio.Event(), keys("new", 9000)
    for _ in range(3):
        assert await source.renewal.get() is old
        await trio.testing.wait_all_tasks_blocked()
    assert source.loads == 2
    source.open.set()
    await trio.testing.wait_all_tasks_blocked()
    assert await source.renewal.get() is source.keys


async def test_short_lived_keys_are_renewed_after_half_their_life() -> None:
    source = Source(keys("old", 1000 + 60))
    await source.renewal.get()
    source.now += 31
    await source.renewal.get()
    await trio.testing.wait_all_tasks_blocked()
    assert source.loads == 2


async def test_what_fails_to_renew_goes_on_until_its_end(caplog: pytest.LogCaptureFixture) -> None:
    source = Source(keys("old", 1000 + 3600))
    old = await source.renewal.get()
    source.failure = OriginUnavailable("no metadata")
    source.now += 3000
    for later in (0, 1, 28, 2):
        source.now += later
        assert await source.renewal.get() is old
        await trio.testing.wait_all_tasks_blocked()
    assert source.loads == 3, "tried again after half a minute"
    assert caplog.text.count("no metadata") == 2
    assert "secret" not in caplog.text
    source.now = 1000 + 3600
    with pytest.raises(OriginUnavailable, match="no metadata"):
        await source.renewal.get()
    source.failure, source.keys = None, keys("new")
    assert await source.renewal.get() is source.keys


async def test_failure_that_nobody_foresaw_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    source = Source(keys("old", 1000 + 3600))
    old = await source.renewal.get()
    source.failure = ZeroDivisionError()
    source.now += 3000
    assert await source.renewal.get() is old
    await trio.testing.wait_all_tasks_blocked()
    assert "ZeroDivisionError" in caplog.text
    assert await source.renewal.get() is old


async def test_sources_that_may_change_are_looked_at_again() -> None:
    source = Source(keys("old", check_again_s=60))
    old = await source.renewal.get()
    source.keys = keys("new", check_again_s=60)
    source.now += 59
    assert await source.renewal.get() is old
    source.now += 2
    assert await source.renewal.get() is old
    await trio.testing.wait_all_tasks_blocked()
    assert await source.renewal.get() is source.keys


async def test_reload_looks_again_but_not_for_each_of_a_herd() -> None:
    source = Source(keys("old"))
    old = await source.renewal.get()
    source.keys = keys("new")
    assert await source.renewal.reload() is old, "just loaded"
    source.now += 6
    async with trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(source.renewal.reload)
    assert source.loads == 2
    assert source.renewal.held is source.keys


async def test_a_renewal_does_not_count_as_a_reload() -> None:
    source = Source(keys("old", check_again_s=60))
    await source.renewal.get()
    source.now += 61
    await source.renewal.get()
    await trio.testing.wait_all_tasks_blocked()
    source.keys = keys("new")
    assert await source.renewal.reload() is source.keys


async def test_reload_that_fails_keeps_valid_keys(caplog: pytest.LogCaptureFixture) -> None:
    source = Source(keys("old", 2000))
    old = await source.renewal.get()
    source.failure = AccessDenied("no longer")
    source.now += 6
    assert await source.renewal.reload() is old
    assert "no longer" in caplog.text
    source.now = 2001
    with pytest.raises(AccessDenied):
        await source.renewal.reload()


async def test_anonymous_is_not_asked_again() -> None:
    source = Source(None)
    assert await source.renewal.get() is None
    source.now += 1e6
    assert await source.renewal.get() is None
    assert source.loads == 1


async def test_valid_keys_do_not_give_way_to_none() -> None:
    source = Source(keys("old", 1000 + 3600))
    old = await source.renewal.get()
    source.keys, source.now = None, 1000 + 3000
    assert await source.renewal.get() is old
    await trio.testing.wait_all_tasks_blocked()
    assert await source.renewal.get() is old
    source.now = 1000 + 3600
    assert await source.renewal.get() is None


async def test_closing_ends_a_renewal() -> None:
    source = Source(keys("old", 2000))
    await source.renewal.get()
    source.now, source.open = 1900, trio.Event()
    await source.renewal.get()
    await trio.testing.wait_all_tasks_blocked()
    with trio.fail_after(10):
        await source.renewal.aclose()
    await trio.testing.wait_all_tasks_blocked()
    source.open.set()
    await source.renewal.get()
    await trio.testing.wait_all_tasks_blocked()
    assert source.loads == 3


def test_no_secret_in_a_repr() -> None:
    assert "secret" not in repr(keys("a"))
