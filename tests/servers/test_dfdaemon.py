"""The fake dfdaemon behaves as measured on the real one; the integration tests repeat these against
the real one.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator

import pytest
import trio

from d7yfs.errors import ProxyUnavailable
from d7yfs.fetch.transport import Transport
from tests.servers import faults
from tests.servers.dfdaemon import FakeDfdaemon, error, wrong_total
from tests.servers.http11 import Fault
from tests.servers.scripted import ScriptedServer

OLD, NEW = b"old" * 1000, b"new" * 1000
KEY = "b/k"


@pytest.fixture
async def origin() -> AsyncIterator[ScriptedServer]:
    async with ScriptedServer({KEY: OLD, "b/empty": b""}).running() as server:
        yield server


@pytest.fixture
async def daemon() -> AsyncIterator[FakeDfdaemon]:
    async with FakeDfdaemon(piece_bytes=1000).running() as daemon:
        yield daemon


@pytest.fixture
async def transport() -> AsyncIterator[Transport]:
    transport = Transport()
    yield transport
    await transport.aclose()


class Client:
    """A client that asks the daemon for one origin's objects."""

    def __init__(self, transport: Transport, origin: ScriptedServer, daemon: FakeDfdaemon) -> None:
        self._transport, self._origin, self._daemon = transport, origin, daemon

    async def get(self, query: str = "", *, key: str = KEY, **headers: str) -> tuple[int, dict[str, str], bytes]:
        fields = {"X-Dragonfly-Use-P2P": "true", **{name.replace("_", "-"): value for name, value in headers.items()}}
        url = self._origin.url_of(key) + query
        async with self._transport.get(url, fields, via=self._daemon.url) as reply:
            return reply.status, dict(reply.headers), await reply.read(10_000)


@pytest.fixture
def client(transport: Transport, origin: ScriptedServer, daemon: FakeDfdaemon) -> Client:
    return Client(transport, origin, daemon)


async def test_whole_and_ranges(client: Client, origin: ScriptedServer, daemon: FakeDfdaemon) -> None:
    status, headers, body = await client.get(X_Mine="1")
    assert (status, body) == (200, OLD)
    assert headers["etag"] == origin.etag(KEY)
    assert headers["x-dragonfly-task-id"] in daemon.tasks
    assert daemon.requests[0].headers["x-mine"] == origin.requests[0].headers["x-mine"] == "1"
    fetched = origin.sent_bytes[KEY]
    assert fetched == 1 + len(OLD), "a stat of one byte, then every piece once"
    for span, start, stop in (("bytes=0-0", 0, 1), ("bytes=999-1000", 999, 1001), ("bytes=1500-", 1500, 3000),
                              ("bytes=2999-9999", 2999, 3000), ("bytes=1-2,5-6", 1, 3)):  # fmt: skip
        status, headers, body = await client.get(Range=span)
        assert (status, body) == (206, OLD[start:stop])
        assert headers["content-range"] == f"bytes {start}-{stop - 1}/3000"
    assert origin.sent_bytes[KEY] == fetched, "every byte came from the daemon's store"


async def test_the_body_streams_while_it_is_downloaded(
    transport: Transport, origin: ScriptedServer, daemon: FakeDfdaemon
) -> None:
    stuck = faults.Hang()
    origin.script(faults.honest, faults.honest, stuck)  # Stat, first piece, second piece.
    async with transport.get(origin.url_of(KEY), {}, via=daemon.url) as reply:
        assert await reply.read(1000) == OLD[:1000]
        await stuck.reached.wait()
        stuck.resume.set()
        assert await reply.read(10_000) == OLD[1000:]


async def test_a_dropped_rangeless_get_is_downloaded_to_its_end(
    transport: Transport, origin: ScriptedServer, daemon: FakeDfdaemon
) -> None:
    stuck, last = faults.Hang(), faults.Hang()
    origin.script(faults.honest, faults.honest, stuck, last)
    with trio.CancelScope() as client_leaves:
        async with transport.get(origin.url_of(KEY), {}, via=daemon.url) as reply:
            await reply.read(1)
            client_leaves.cancel()
            await trio.lowlevel.checkpoint()
    await stuck.reached.wait()
    stuck.resume.set()
    await last.reached.wait()


async def test_only_absolute_gets(transport: Transport, daemon: FakeDfdaemon) -> None:
    stream = await trio.open_tcp_stream("127.0.0.1", daemon.port)
    async with stream:
        await stream.send_all(b"CONNECT h:443 HTTP/1.1\r\nHost: h:443\r\n\r\n")
        assert (await stream.receive_some()).startswith(b"HTTP/1.1 400 ")
    async with transport.get(f"{daemon.url}/b/k", {}) as reply:
        assert (reply.status, reply.headers["x-dragonfly-error-type"]) == (400, "proxy")


async def test_task_identity(client: Client, origin: ScriptedServer) -> None:
    async def task(query: str = "", **headers: str) -> str:
        return (await client.get(query, **headers))[1]["x-dragonfly-task-id"]

    plain = hashlib.sha256(f"{origin.url_of(KEY)}STANDARD".encode()).hexdigest()
    assert await task() == await task("?X-Amz-Signature=1&X-Amz-Date=2") == await task(Range="bytes=5-9") == plain
    assert await task("?versionId=1&X-Amz-Date=2") == await task("?X-Amz-Date=3&versionId=1") != plain
    assert await task("?b=1&a=") == await task("?a=&b=1")
    assert await task("?X-Amz-Date=1", X_Dragonfly_Filtered_Query_Params="sig") != plain, "the header replaces the list"
    assert await task("?sig=1", X_Dragonfly_Filtered_Query_Params="sig,se") == plain
    assert len({plain, await task(X_Dragonfly_Tag="t"), await task(X_Dragonfly_Piece_Length="4194304")}) == 3
    by_content = await task("?any=1", X_Dragonfly_Content_For_Calculating_Task_ID="id")
    assert by_content == await task(X_Dragonfly_Content_For_Calculating_Task_ID="id", X_Dragonfly_Tag="t")
    assert by_content == hashlib.sha256(b"id").hexdigest()


async def test_a_known_task_is_never_revalidated(client: Client, origin: ScriptedServer) -> None:
    assert (await client.get(Range="bytes=0-9"))[2] == OLD[:10]
    old_etag = origin.etag(KEY)
    origin.put(KEY, NEW)
    assert (await client.get(Range="bytes=10-19"))[2] == OLD[10:20]
    status, headers, body = await client.get(Range="bytes=1000-1009", If_Match=old_etag)
    assert (status, headers["x-dragonfly-error-type"], body) == (412, "backend", b"")
    assert (await client.get())[2] == OLD[:1000] + NEW[1000:], "the reply mixes two versions"


@pytest.mark.parametrize("code", [403, 404, 412])
async def test_origin_errors(client: Client, origin: ScriptedServer, daemon: FakeDfdaemon, code: int) -> None:
    origin.script(faults.status(code, body=b"<Error/>"))
    status, headers, body = await client.get()
    assert (status, headers["x-dragonfly-error-type"], body) == (code, "backend", b"")
    assert (len(origin.requests), daemon.tasks) == (1, {})
    assert (await client.get())[0] == 200


async def test_origin_5xx_is_tried_twice(client: Client, origin: ScriptedServer) -> None:
    origin.script(faults.status(503))
    assert (await client.get())[0] == 200
    origin.script(faults.status(503), faults.status(503))
    assert (await client.get(X_Dragonfly_Tag="cold"))[0] == 503


async def test_origin_down(client: Client, origin: ScriptedServer) -> None:
    origin.kill()
    status, headers, _ = await client.get()
    assert (status, headers["x-dragonfly-error-type"]) == (500, "backend")


async def test_an_origin_error_in_mid_body_ends_the_stream(client: Client, origin: ScriptedServer) -> None:
    origin.script(faults.honest, faults.honest, faults.status(403), forever=True)
    with pytest.raises(ProxyUnavailable, match="cut off after 1000 of 3000 bytes"):
        await client.get()


async def test_an_origin_without_ranges_makes_one_byte_of_the_object(client: Client, origin: ScriptedServer) -> None:
    origin.script(origin.whole_object, forever=True)
    status, headers, body = await client.get()
    assert (status, headers["content-length"], body) == (200, "1", OLD[:1])


async def test_range_beyond_the_end_and_empty_objects(client: Client) -> None:
    status, headers, _ = await client.get(Range="bytes=3000-")
    assert (status, headers["x-dragonfly-error-type"]) == (500, "dfdaemon")
    with pytest.raises(ProxyUnavailable, match="cut off after 0 of 1 bytes"):
        await client.get(key="b/empty", Range="bytes=0-0")


@pytest.mark.parametrize(
    ("fault", "status", "error_type"),
    [(error(500, "dfdaemon"), 500, "dfdaemon"), (error(429, "proxy"), 429, "proxy"), (wrong_total, 200, None)],
)
async def test_errors_of_its_own(
    client: Client, daemon: FakeDfdaemon, fault: Fault, status: int, error_type: str | None
) -> None:
    daemon.script(fault)
    code, headers, body = await client.get()
    assert (code, headers.get("x-dragonfly-error-type")) == (status, error_type)
    assert len(body) < 2
    assert (await client.get())[2] == OLD


async def test_a_daemon_that_dies_in_mid_body_leaves_no_mark(client: Client, daemon: FakeDfdaemon) -> None:
    daemon.script(faults.cut_after(1500))
    with pytest.raises(ProxyUnavailable, match="cut off after 1500 of 3000 bytes"):
        await client.get()
    daemon.kill()
    with pytest.raises(ProxyUnavailable, match="connection refused"):
        await client.get()


async def test_a_silent_daemon(client: Client, daemon: FakeDfdaemon) -> None:
    silent = faults.Hang()
    daemon.script(silent)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(client.get)
        await silent.reached.wait()
        nursery.cancel_scope.cancel()
