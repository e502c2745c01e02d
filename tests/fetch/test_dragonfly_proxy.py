"""When the breaker lets a proxy be asked, which of several is asked, and which requests `/healthy`
spares.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from d7yfs.errors import ProxyUnavailable
from d7yfs.fetch.dragonfly_proxy import (
    MAX_REGISTRATIONS,
    Breaker,
    Limits,
    Proxies,
    Proxy,
    Registration,
    address_meant_instead,
)
from d7yfs.fetch.dragonfly_task import TaskOptions
from d7yfs.fetch.silence import HEDGE_AFTER_S, LEAST_PATIENCE_S
from d7yfs.fetch.transport import Transport
from tests.servers import faults
from tests.servers.scripted import ScriptedServer


def tripped(times: int = 1) -> tuple[Breaker, float]:
    """A breaker whose first request and all probes failed at once, and the time of its last
    failure.
    """
    breaker, now = Breaker(), 100.0
    breaker.record_failure(now)
    for number in range(times - 1):
        pause_s = min(2.0 * 1.25**number, 300.0)
        assert not breaker.admits(now + pause_s - 0.01)
        now += pause_s
        assert breaker.admits(now)
        breaker.begin(now)
        breaker.record_failure(now)
    return breaker, now


def test_closed_at_first() -> None:
    breaker = Breaker()
    for _ in range(3):
        assert breaker.admits(0.0)
        breaker.begin(0.0)
    assert (breaker.trips, breaker.state) == (0, "closed")


def test_opens_at_a_failure_and_waits_a_quarter_longer_each_time_up_to_a_limit() -> None:
    breaker, now = tripped(25)
    assert breaker.trips == 25
    assert not breaker.admits(now + 299)
    assert breaker.admits(now + 300)


def test_failures_of_requests_that_were_under_way_count_once() -> None:
    breaker = Breaker()
    for moment in (100.0, 100.1, 101.5):
        breaker.record_failure(moment)
    assert breaker.trips == 1
    assert breaker.admits(102.0)


def test_one_probe_at_a_time() -> None:
    breaker, now = tripped()
    assert breaker.state == "open"
    assert breaker.admits(now + 5)
    assert breaker.admits(now + 5), "asking whether does not use it up"
    breaker.begin(now + 5)
    assert breaker.state == "probing"
    assert not breaker.admits(now + 5)
    breaker.record_failure(now + 8)
    assert not breaker.admits(now + 10.4)
    assert breaker.admits(now + 10.5)
    assert breaker.trips == 2


def test_a_probe_that_never_tells_is_replaced() -> None:
    breaker, now = tripped()
    breaker.begin(now + 5)
    assert not breaker.admits(now + 14.9)
    assert breaker.admits(now + 15)


def test_a_byte_closes_it_and_forgets_the_past() -> None:
    breaker, now = tripped(4)
    breaker.begin(now + 40)
    breaker.record_success()
    for _ in range(3):
        assert breaker.admits(now + 40)
        breaker.begin(now + 40)
    breaker.record_failure(now + 41)
    assert not breaker.admits(now + 42.9)
    assert breaker.admits(now + 43)


def test_a_stream_from_before_that_still_flows_closes_it() -> None:
    breaker, now = tripped()
    breaker.record_success()
    assert breaker.admits(now)
    assert breaker.state == "closed"


# --- one, or several ---


def two(*, required: bool = False) -> tuple[Proxies, Proxy, Proxy]:
    transport = Transport()
    node, service = Proxy("http://node:4001", transport), Proxy("http://service:4001", transport)
    return Proxies([node, service], required=required), node, service


async def test_a_required_proxy_is_always_usable(mock_clock: MockClock) -> None:
    for required in (False, True):
        options = TaskOptions(headers={"X-Team": "secret"})
        proxy = Proxies([Proxy("http://127.0.0.1:1", Transport())], required=required, options=options)
        assert proxy.usable
        proxy.all[0].record_failure()
        assert proxy.usable is required
        assert proxy.down
        assert "secret" not in f"{proxy!r} {proxy.all[0]!r} {proxy.options!r}"
    mock_clock.jump(5)
    assert proxy.usable


async def test_the_first_one_that_is_worth_asking_is_asked(mock_clock: MockClock) -> None:
    proxies, node, service = two()
    assert await proxies.choose() is node
    assert proxies.url == node.url
    node.record_failure()
    for _ in range(2):
        assert await proxies.choose() is service
    assert (proxies.url, proxies.usable, proxies.down) == (service.url, True, False)
    service.record_failure()
    with pytest.raises(ProxyUnavailable, match=node.url):
        await proxies.choose()
    assert (proxies.usable, proxies.down, proxies.trips) == (False, True, 2)


async def test_a_better_one_that_comes_back_is_preferred_again(mock_clock: MockClock) -> None:
    proxies, node, service = two()
    node.record_failure()
    mock_clock.jump(5)
    assert await proxies.choose() is node, "one request finds out"
    assert await proxies.choose() is service, "the others do not wait for that"
    node.breaker.record_success()
    assert await proxies.choose() is node


async def test_of_required_ones_that_are_down_the_next_to_be_tried_is_asked(mock_clock: MockClock) -> None:
    proxies, node, service = two(required=True)
    node.record_failure()
    mock_clock.jump(1)
    service.record_failure()
    assert await proxies.choose() is node
    mock_clock.jump(5)
    assert await proxies.choose() is node
    node.record_failure()
    assert await proxies.choose() is service


async def test_repositories_share_what_is_known_of_a_proxy(mock_clock: MockClock) -> None:
    proxies, node, service = two()
    other = Proxies([service], required=True)
    service.record_failure()
    node.record_failure()
    assert not proxies.usable
    service.breaker.record_success()
    assert await proxies.choose() is await other.choose() is service


# --- /healthy ---


@pytest.fixture
async def server() -> AsyncIterator[ScriptedServer]:
    async with ScriptedServer({"healthy": b""}).running() as server:
        yield server


class LocalProxy(Proxy):
    """Its health port is wherever the test has one."""

    def __init__(self, health_url: str) -> None:
        super().__init__("http://127.0.0.1:4001", Transport())
        self._health_url = health_url

    @property
    def health_url(self) -> str:
        return self._health_url


@pytest.fixture
async def proxy(server: ScriptedServer) -> AsyncIterator[LocalProxy]:
    proxy = LocalProxy(f"{server.url}/healthy")
    yield proxy
    await proxy.transport.aclose()


@pytest.fixture
def clock() -> MockClock:
    return MockClock(autojump_threshold=0.05)


@pytest.mark.parametrize("kill", [True, False])
async def test_a_proxy_that_is_known_to_tell_is_not_probed_while_it_tells_nothing(
    clock: MockClock, server: ScriptedServer, proxy: LocalProxy, kill: bool
) -> None:
    await proxy.learn_health()
    await proxy.learn_health()
    assert len(server.requests) == 1, "once is enough"
    proxy.record_failure()
    assert not await proxy.admits()
    assert len(server.requests) == 1
    await trio.sleep(5)
    if kill:
        server.kill()
    else:
        server.script(faults.Hang())
    began = trio.current_time()
    assert not await proxy.admits()
    assert trio.current_time() - began <= 1.1, "nobody waits long to hear that"
    assert proxy.breaker.trips == 2


async def test_a_proxy_that_lives_is_probed(clock: MockClock, server: ScriptedServer, proxy: LocalProxy) -> None:
    await proxy.learn_health()
    proxy.record_failure()
    await trio.sleep(5)
    assert await proxy.admits()
    assert len(server.requests) == 2
    assert not await proxy.admits(), "that one is the probe"
    proxy.breaker.record_success()
    assert await proxy.admits()
    assert len(server.requests) == 2, "a proxy that answers is not asked how it is"


async def test_a_proxy_that_never_told_is_probed_by_a_request(
    clock: MockClock, server: ScriptedServer, proxy: LocalProxy
) -> None:
    server.script(faults.status(404))
    await proxy.learn_health()
    proxy.record_failure()
    await trio.sleep(5)
    assert await proxy.admits()
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("url", "health_url", "instead"),
    [
        ("http://127.0.0.1:4001", "http://127.0.0.1:4003/healthy", ""),
        ("http://127.0.0.1:65001", "http://127.0.0.1:4003/healthy", "http://127.0.0.1:4001"),
        ("http://node", "http://node:4003/healthy", "http://node:4001"),
        ("http://[::1]:65001", "http://[::1]:4003/healthy", "http://[::1]:4001"),
        ("http://node:65002", "http://node:4003/healthy", ""),
    ],
)
def test_addresses(url: str, health_url: str, instead: str) -> None:
    assert Proxy(url, Transport()).health_url == health_url
    assert address_meant_instead(url) == instead


# --- turns at the scheduler ---


async def test_registrations_are_counted_over_all_repositories(nursery: trio.Nursery) -> None:
    limits = Limits()
    holding: list[Registration] = []

    async def hold() -> None:
        async with Registration(limits) as registration:
            holding.append(registration)
            await trio.sleep_forever()

    for _ in range(5):
        nursery.start_soon(hold)
    await wait_all_tasks_blocked()
    assert len(holding) == MAX_REGISTRATIONS
    holding[0].release()
    holding[0].release()
    await wait_all_tasks_blocked()
    assert len(holding) == MAX_REGISTRATIONS + 1, "the first byte makes way for the next, once"
    nursery.cancel_scope.cancel()


async def test_readers_have_their_turn_first_and_who_leaves_the_queue_takes_none(nursery: trio.Nursery) -> None:
    limits, order = Limits(), list[str]()
    for _ in range(MAX_REGISTRATIONS):
        await limits.take(lambda: True)
    wanted = {"late": False}
    leaving = trio.CancelScope()

    async def hold(name: str) -> None:
        with leaving if name == "leaves" else trio.CancelScope():
            async with Registration(limits, lambda: wanted.get(name, name.startswith("reader"))):
                order.append(name)

    for name in ("ahead", "late", "leaves", "reader", "reader too"):
        nursery.start_soon(hold, name)
        await wait_all_tasks_blocked()
    wanted["late"] = True
    leaving.cancel()
    await wait_all_tasks_blocked()
    limits.give_back()
    await wait_all_tasks_blocked()
    assert order == ["late", "reader", "reader too", "ahead"]
    assert limits.taken == MAX_REGISTRATIONS - 1


async def test_the_queue_is_no_silence_while_it_moves_and_somebody_waits(autojump_clock: MockClock) -> None:
    limits, wanted = Limits(), False
    first = Registration(limits)
    for _ in range(MAX_REGISTRATIONS - 1):
        await limits.take(lambda: True)
    async with first:
        queued = Registration(limits, lambda: wanted, patience_s=10)
        await trio.sleep(5)
        assert queued.alive_at() == trio.current_time(), "nobody waits"
        since, wanted = trio.current_time(), True
        await trio.sleep(2)
        assert queued.alive_at() == since, "nothing moves"
        first.release()
        assert queued.alive_at() == since + 2
        await trio.sleep(9)
        limits.moved_at = trio.current_time()
        assert queued.alive_at() == since + 10 - HEDGE_AFTER_S, "for so long"
        async with queued:
            assert queued.alive_at() == trio.current_time(), "asked now"


async def test_first_bytes_that_come_soon_make_readers_wait_for_the_next_one() -> None:
    limits = Limits()
    assert (limits.is_prompt, limits.patience()) == (False, HEDGE_AFTER_S), "nothing is known"
    limits.note_first_byte(0.02, 0)
    assert (limits.is_prompt, limits.patience()) == (False, HEDGE_AFTER_S), "one is no rule"
    limits.note_first_byte(0.2, 0)
    assert (limits.is_prompt, limits.patience()) == (True, LEAST_PATIENCE_S)
    limits.note_first_byte(0.5, 0)
    assert (limits.is_prompt, limits.patience()) == (False, 2.0), "a cold one"
    for _ in range(4):
        limits.note_first_byte(0.02, 0)
    assert limits.is_prompt, "long ago"


async def test_a_slot_tells_what_its_first_byte_took(autojump_clock: MockClock) -> None:
    """The time in the queue for the slot is no part of it."""
    limits = Limits()
    for _ in range(2):
        await trio.sleep(5)
        async with Registration(limits) as registration:
            await trio.sleep(0.4)
            registration.release()
            await trio.sleep(5)
            registration.release()
    assert limits.patience() == pytest.approx(1.6)
