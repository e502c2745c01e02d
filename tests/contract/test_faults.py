"""List and stat of every origin against a store, or a server before it, that misbehaves."""

from __future__ import annotations

from contextlib import aclosing

import pytest
import trio

from d7yfs.errors import AccessDenied, BadReply, D7yfsError, OriginUnavailable
from d7yfs.origins.origin import Origin
from tests.contract.stores import Store
from tests.servers import faults
from tests.servers.fault_proxy import FaultProxy
from tests.servers.http11 import Fault
from tests.servers.scripted import ScriptedServer

pytestmark = pytest.mark.store


async def keys(origin: Origin, prefix: str) -> list[str]:
    return [version.key for version in (await origin.list(prefix)).objects]


@pytest.mark.parametrize("code", [429, 503])
async def test_busy_store_is_asked_again(store: Store, faulty: FaultProxy, through: Origin, code: int) -> None:
    key = store.put("object", b"1")
    faulty.script(faults.status(code, {"Retry-After": "0"}))
    assert await keys(through, store.prefix) == [key]
    assert len(faulty.requests) == 2
    faulty.script(faults.status(code, {"Retry-After": "0"}))
    assert (await through.stat(key)).key == key


async def test_store_that_stays_busy(store: Store, faulty: FaultProxy, through: Origin) -> None:
    faulty.script(faults.status(503, {"Retry-After": "77"}), forever=True)
    with pytest.raises(OriginUnavailable) as caught:
        await through.list(store.prefix)
    assert caught.value.transient
    assert caught.value.retry_after_s == 77


@pytest.mark.parametrize("fault", [faults.cut_after(60), faults.drop], ids=["cut", "dropped"])
async def test_truncated_listing(store: Store, faulty: FaultProxy, through: Origin, fault: Fault) -> None:
    key = store.put("object", b"1")
    faulty.script(fault, forever=True)
    with pytest.raises((OriginUnavailable, BadReply)) as caught:
        await through.list(store.prefix)
    assert caught.value.transient
    faulty.script()
    assert await keys(through, store.prefix) == [key]


@pytest.mark.parametrize("size", ["3", "30000", "30000\r\n"], ids=["in a number", "after it", "after a line"])
async def test_a_head_that_is_cut_off_is_not_believed(
    store: Store, faulty: FaultProxy, through: Origin, size: str
) -> None:
    """No body contradicts the reply to a HEAD."""
    key = store.put("object", bytes(30_000))
    version = await through.stat(key)
    head = f'HTTP/1.1 200 OK\r\nETag: "cut"\r\nLast-Modified: Tue, 14 Nov 2023 22:13:20 GMT\r\nContent-Length: {size}'
    faulty.script(faults.raw(head.encode()), forever=True)
    with pytest.raises((OriginUnavailable, BadReply)) as caught:
        await through.stat(key)
    assert caught.value.transient
    faulty.script(faults.raw(head.encode()))
    assert await through.stat(key) == version


@pytest.mark.parametrize("body", [b"<html><body>Log in!</body></html>", b"{}", b""], ids=["html", "json", "empty"])
async def test_what_answers_is_no_store(faulty: FaultProxy, through: Origin, body: bytes) -> None:
    faulty.script(faults.status(200, {"Content-Type": "text/html"}, body), forever=True)
    with pytest.raises((BadReply, OriginUnavailable)):
        await through.list("")


async def test_refused(store: Store, faulty: FaultProxy, through: Origin) -> None:
    key = store.put("object", b"1")
    faulty.script(faults.status(403), forever=True)
    for call in (lambda: through.list(store.prefix), lambda: through.stat(key)):
        with pytest.raises(AccessDenied) as caught:
            await call()
        assert caught.value.hint


async def test_bucket_that_is_elsewhere(store: Store, faulty: FaultProxy) -> None:
    key = store.put("object", b"1")
    assert store.elsewhere, "a provider that never says so belongs into `cannot`"
    for name, fault in store.elsewhere.items():
        faulty.script(fault)
        async with aclosing(store.origin_at(faulty.url)) as through:
            if store.follows:
                assert await keys(through, store.prefix) == [key], name
            else:
                with pytest.raises(AccessDenied) as caught:
                    await through.list(store.prefix)
                assert caught.value.hint, name


@pytest.mark.parametrize("code", [301, 302, 307, 308])
async def test_redirect_to_another_host_is_not_followed(
    store: Store, faulty: FaultProxy, through: Origin, code: int
) -> None:
    key = store.put("object", b"1")
    async with ScriptedServer().running() as other:
        there = other.url.replace("127.0.0.1", "localhost")
        for call in (lambda: through.list(store.prefix), lambda: through.stat(key)):
            faulty.script(faults.status(code, {"Location": f"{there}/object?list-type=2"}), forever=True)
            with pytest.raises(D7yfsError) as caught:
                await call()
            assert not caught.value.transient
        assert other.requests == []


async def test_cancelled_call_leaves_at_once(store: Store, faulty: FaultProxy, through: Origin) -> None:
    hang = faults.Hang()
    faulty.script(hang)
    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(through.list, store.prefix)
            await hang.reached.wait()
            nursery.cancel_scope.cancel()
    hang.resume.set()
    assert await keys(through, store.prefix) == []


async def test_control_proxy_is_used(store: Store) -> None:
    key = store.put("object", b"1")
    async with FaultProxy().running() as proxy, aclosing(store.origin(control_proxy=proxy.url)) as origin:
        assert await keys(origin, store.prefix) == [key]
        version = await origin.stat(key)
        assert len(proxy.requests) == 2
        assert all(request.absolute for request in proxy.requests)
        request = await origin.read_request(version, presigned=False)
        assert request.url.startswith(store.endpoint_url), "data goes its own way"
        proxy.kill()
        with pytest.raises(OriginUnavailable):
            await origin.list(store.prefix)
