"""The transport against real sockets: every promise of `d7yfs.fetch.transport`, with servers that
keep none of theirs.
"""

from __future__ import annotations

import gzip
import itertools
import logging
import os
import socket
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress

import pytest
import trio
import trustme
from trio.testing import MockClock, wait_all_tasks_blocked

from d7yfs.errors import BadReply, NotFound, OriginUnavailable, OriginUntrusted, ProxyUnavailable
from d7yfs.fetch.connection import Connection
from d7yfs.fetch.http_heads import Headers
from d7yfs.fetch.transport import Transport
from d7yfs.movers.pool import MoverPool
from d7yfs.tls import Trust
from tests.movers.test_pool import running
from tests.servers import faults
from tests.servers.http11 import Answer, Exchange, Fault
from tests.servers.scripted import ScriptedServer

BODY = os.urandom(3_000_017)
KEY = "models/a/model.onnx"
SECRET = "X-Amz-Signature=0123secret"


@pytest.fixture
async def server() -> AsyncIterator[ScriptedServer]:
    async with ScriptedServer({KEY: BODY, "models/small": b"tiny", "models/empty": b""}).running() as server:
        yield server


@pytest.fixture
async def transport() -> AsyncIterator[Transport]:
    transport = Transport(connect_timeout_s=3, first_byte_timeout_s=5, idle_timeout_s=7)
    yield transport
    await transport.aclose()
    assert not transport._open, "a connection outlives its reply"


async def fetch(transport: Transport, url: str, headers: Mapping[str, str] | None = None, *, via: str = "") -> bytes:
    async with transport.get(url, headers or {}, via=via) as reply:
        return await reply.read(len(BODY) + 1000)


async def expect_reused(transport: Transport, server: ScriptedServer, *, reused: bool) -> None:
    """Whether a further request to `server` goes over the connection that is there."""
    before = server.connections
    assert await fetch(transport, server.url_of("models/small")) == b"tiny"
    assert server.connections == before + (not reused)


# --- requests ---


async def test_the_body_lands_in_the_callers_buffer(server: ScriptedServer, transport: Transport) -> None:
    buffer = bytearray(len(BODY) + 100)
    async with transport.get(server.url_of(KEY), {}) as reply:
        assert (reply.status, reply.content_length) == (200, len(BODY))
        assert reply.headers["etag"] == reply.headers["ETag"] == server.etag(KEY)
        assert "content-encoding" not in reply.headers
        filled = 0
        while count := await reply.receive_into(memoryview(buffer)[filled:]):
            filled += count
        assert await reply.receive_into(memoryview(buffer)) == 0, "the end is the end, however often one asks"
    assert filled == len(BODY)
    assert buffer[:filled] == BODY
    assert buffer[filled:] == bytes(100), "nothing is written beyond the body"
    assert reply.received_bytes == len(BODY)


async def test_what_we_send(server: ScriptedServer, transport: Transport) -> None:
    url = server.url_of("models/small") + "?b=2&a=%2F%20~&a=&X=y%3D"
    await fetch(transport, url, {"Range": "bytes=1-2", "host": "elsewhere", "X-Mine": "1"})
    (request,) = server.requests
    assert request.target == "/models/small?b=2&a=%2F%20~&a=&X=y%3D", "signed: not a byte may change"
    assert request.headers == {
        "host": f"127.0.0.1:{server.port}",
        "user-agent": "d7yfs",
        "accept-encoding": "identity",
        "range": "bytes=1-2",
        "x-mine": "1",
    }


async def test_a_request_may_say_how_it_takes_the_body(server: ScriptedServer, transport: Transport) -> None:
    await fetch(transport, server.url_of("models/small"), {"accept-encoding": "gzip"})
    (request,) = server.requests
    assert request.headers["accept-encoding"] == "gzip"


async def test_the_environment_is_not_consulted(
    server: ScriptedServer, transport: Transport, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    assert await fetch(transport, server.url_of("models/small")) == b"tiny"


async def test_localhost_is_resolved(server: ScriptedServer, transport: Transport) -> None:
    assert await fetch(transport, f"http://localhost:{server.port}/models/small") == b"tiny"
    assert server.requests[0].headers["host"] == f"localhost:{server.port}"


async def test_ipv6(transport: Transport, nursery: trio.Nursery) -> None:
    try:
        (listener,) = await trio.open_tcp_listeners(0, host="::1")
    except OSError:
        pytest.skip("no IPv6 loopback here")
    heads: list[bytes] = []

    async def answer(stream: trio.SocketStream) -> None:
        heads.append(await stream.receive_some())
        await stream.send_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

    nursery.start_soon(trio.serve_listeners, answer, [listener])
    port = listener.socket.getsockname()[1]
    assert await fetch(transport, f"http://[::1]:{port}/k") == b"ok"
    assert f"Host: [::1]:{port}\r\n".encode() in heads[0]
    nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("url", "headers"),
    [
        ("ftp://h/k", {}),
        ("http:///k", {}),
        ("http://user:pw@h/k", {}),
        (f"http://h/k y?{SECRET}", {}),
        (f"http://h/k\n?{SECRET}", {}),
        (f"http://h/é?{SECRET}", {}),
        ("http://h/k", {"X": f"a\r\nInjected: {SECRET}"}),
        ("http://h/k", {"X": f"é☃{SECRET}"}),
    ],
)
async def test_what_cannot_be_sent_is_refused_without_quoting_it(
    transport: Transport, url: str, headers: Mapping[str, str]
) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the message is asserted below
        await fetch(transport, url, headers)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("code", [301, 307, 403, 404, 412, 416, 429, 500, 503])
async def test_every_status_is_returned_and_redirects_are_not_followed(
    server: ScriptedServer, transport: Transport, code: int
) -> None:
    server.script(faults.status(code, {"Location": server.url_of(KEY), "Retry-After": "7"}, b"<why/>"))
    async with transport.get(server.url_of("models/small"), {}) as reply:
        assert reply.status == code
        assert reply.headers["retry-after"] == "7"
        assert await reply.read(1000) == b"<why/>"
    assert len(server.requests) == 1
    await expect_reused(transport, server, reused=True)


# --- bodies ---


@pytest.mark.parametrize("fault", [faults.honest, faults.chunked, faults.until_close])
@pytest.mark.parametrize("key", [KEY, "models/small", "models/empty"])
@pytest.mark.parametrize("room", [7_001, 4 << 20])
async def test_every_framing_gives_the_same_bytes(
    server: ScriptedServer, transport: Transport, fault: Fault, key: str, room: int
) -> None:
    server.script(fault)
    got = bytearray()
    buffer = memoryview(bytearray(room))
    async with transport.get(server.url_of(key), {}) as reply:
        assert reply.content_length == (len(server.objects[key]) if fault is faults.honest else None)
        while count := await reply.receive_into(buffer):
            got += buffer[:count]
    assert got == server.objects[key]
    await expect_reused(transport, server, reused=fault is not faults.until_close)


async def test_no_content_has_no_body(server: ScriptedServer, transport: Transport) -> None:
    server.script(faults.raw(b"HTTP/1.1 204 No Content\r\n\r\n"))
    async with transport.get(server.url_of(KEY), {}) as reply:
        assert (reply.content_length, await reply.read(10)) == (0, b"")


async def test_a_compressed_body_is_passed_on_as_it_is(server: ScriptedServer, transport: Transport) -> None:
    server.script(faults.gzipped)
    async with transport.get(server.url_of("models/small"), {}) as reply:
        assert reply.headers["content-encoding"] == "gzip"
        assert gzip.decompress(await reply.read(1000)) == b"tiny"


async def test_read_stops_at_its_limit(server: ScriptedServer, transport: Transport) -> None:
    async with transport.get(server.url_of(KEY), {}) as reply:
        assert await reply.read(1000) == BODY[:1000]


async def test_an_empty_buffer_is_a_bug_not_an_end(server: ScriptedServer, transport: Transport) -> None:
    async with transport.get(server.url_of(KEY), {}) as reply:
        with pytest.raises(ValueError, match="room"):
            await reply.receive_into(memoryview(b""))


async def test_bytes_that_came_with_the_head_stay_until_the_reply_is_left(
    server: ScriptedServer, transport: Transport
) -> None:
    buffer = memoryview(bytearray(len(BODY)))
    for _ in range(2):  # with the memory of the replies before
        async with transport.get(server.url_of(KEY), {"Range": "bytes=0-999"}) as first:
            async with transport.get(server.url_of(KEY), {"Range": "bytes=1000-1999"}) as second:
                assert await second.receive(buffer) == BODY[1000:2000]
            async with transport.get(server.url_of(KEY), {"Range": "bytes=2000-2999"}) as third:
                assert await first.receive(buffer) == BODY[:1000]
                assert not await first.receive(buffer)
                assert await third.receive(buffer) == BODY[2000:3000]


async def test_a_slow_body_arrives_as_it_comes(server: ScriptedServer, transport: Transport) -> None:
    tap = faults.Tap(1000)
    server.script(tap)
    buffer = memoryview(bytearray(1 << 20))
    async with transport.get(server.url_of(KEY), {"Range": "bytes=0-2499"}) as reply:
        sizes: list[int] = []
        for _ in range(3):
            tap.flow()
            sizes.append(await reply.receive_into(buffer[sum(sizes) :]))
    assert sizes == [1000, 1000, 500]
    assert buffer[:2500] == BODY[:2500]


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (faults.cut_after(1_000_000), "cut off after 1000000 of 3000017 bytes"),
        (faults.cut_after(0), "cut off after 0 of 3000017 bytes"),
        (faults.raw(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab"), "cut off after 2 bytes"),
    ],
)
async def test_a_body_cut_short_says_how_short(
    server: ScriptedServer, transport: Transport, fault: Fault, words: str
) -> None:
    server.script(fault)
    with pytest.raises(OriginUnavailable, match=words) as caught:
        await fetch(transport, server.url_of(KEY))
    assert caught.value.transient
    await expect_reused(transport, server, reused=False)


async def test_a_reset_in_mid_body(server: ScriptedServer, transport: Transport) -> None:
    server.script(faults.reset_after(5000))
    with pytest.raises(OriginUnavailable, match=r"cut off after \d+ of 3000017 bytes"):
        await fetch(transport, server.url_of(KEY))
    await expect_reused(transport, server, reused=False)


@pytest.mark.parametrize("key", ["models/small", KEY])
async def test_surplus_bytes_are_not_delivered_and_never_read_as_the_next_reply(
    server: ScriptedServer, transport: Transport, key: str
) -> None:
    server.script(faults.surplus(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil"))
    assert await fetch(transport, server.url_of(key)) == server.objects[key]
    await expect_reused(transport, server, reused=False)


@pytest.mark.parametrize(
    "reply",
    [b"Content-Length: 2\r\n\r\nab", b"Transfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n"],
    ids=["length", "chunked"],
)
async def test_surplus_that_came_along_with_the_head(
    server: ScriptedServer, transport: Transport, reply: bytes
) -> None:
    server.script(faults.raw(b"HTTP/1.1 200 OK\r\n" + reply + b"HTTP/1.1 200 OK\r\n", keep_alive=True))
    assert await fetch(transport, server.url_of("models/small")) == b"ab"
    await expect_reused(transport, server, reused=False)


# --- heads ---


async def test_interim_replies_are_skipped(server: ScriptedServer, transport: Transport) -> None:
    server.script(faults.preceded_by(b"HTTP/1.1 102 Processing\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n"))
    assert await fetch(transport, server.url_of("models/small")) == b"tiny"
    await expect_reused(transport, server, reused=True)


async def test_a_head_of_just_under_64_kib_is_read(server: ScriptedServer, transport: Transport) -> None:
    server.script(faults.with_headers({"X-Long": "x" * 65_000}))
    assert await fetch(transport, server.url_of("models/small")) == b"tiny"


@pytest.mark.parametrize("interim", [b"", b"HTTP/1.1 102 Processing\r\n\r\n" * 3000])
async def test_a_larger_head_is_refused(server: ScriptedServer, transport: Transport, interim: bytes) -> None:
    server.script(faults.preceded_by(interim or b"HTTP/1.1 200 OK\r\nX-Long: " + b"x" * (64 << 10)))
    with pytest.raises(BadReply, match="more than 64 KiB"):
        await fetch(transport, server.url_of("models/small"))


@pytest.mark.parametrize(
    "head",
    [
        b"SSH-2.0-OpenSSH_9.6\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nbad header secret\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 4secret\r\n\r\ntiny",
        b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\nContent-Length: 5\r\n\r\ntiny",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: secret\r\n\r\ntiny",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nsecret\r\n",
    ],
)
async def test_what_is_not_http_is_refused_without_quoting_it(
    server: ScriptedServer, transport: Transport, head: bytes
) -> None:
    server.script(faults.raw(head))
    with pytest.raises(BadReply, match=f"127.0.0.1:{server.port} sent a") as caught:
        await fetch(transport, server.url_of("models/small"))
    assert "secret" not in str(caught.value)
    assert caught.value.__suppress_context__, "a traceback would show what h11 quotes"


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (faults.drop, "without a reply"),
        (faults.reset_after(0), "without a reply"),
        (faults.raw(b"HTTP/1.1 200 OK\r\nX-"), "in the reply head"),
    ],
)
async def test_a_new_connection_that_ends_before_the_reply_is_an_error(
    server: ScriptedServer, transport: Transport, fault: Fault, words: str
) -> None:
    server.script(fault)
    with pytest.raises(OriginUnavailable, match=words):
        await fetch(transport, server.url_of("models/small"))
    assert len(server.requests) == 1


# --- the pool ---


async def test_connections_are_reused_last_in_first_out(server: ScriptedServer, transport: Transport) -> None:
    small = server.url_of("models/small")
    async with transport.get(small, {}), transport.get(small, {}):
        assert len(transport._open) == 2
    # The inner one, number 1, came back first; number 0 last.
    for _ in range(3):
        await fetch(transport, small)
    assert [request.connection for request in server.requests] == [0, 1, 0, 0, 0]
    assert (len(transport._open), len(transport._idle), server.connections) == (2, 2, 2)


async def test_a_connection_made_ahead_is_the_first_requests(server: ScriptedServer, transport: Transport) -> None:
    small = server.url_of("models/small")
    for _ in range(2):
        await transport.connect(small)
        assert (server.connections, server.requests) == (1, []), "one, however often it is asked for"
    await fetch(transport, small)
    assert server.connections == 1


async def test_a_connection_made_ahead_may_have_ended_by_the_first_request(
    server: ScriptedServer, transport: Transport, mock_clock: MockClock
) -> None:
    small = server.url_of("models/small")
    await transport.connect(small)
    mock_clock.jump(61)
    assert await fetch(transport, small)
    assert server.connections == 2


async def test_connection_close_is_honoured(server: ScriptedServer, transport: Transport) -> None:
    server.script(faults.closing)
    assert await fetch(transport, server.url_of("models/small")) == b"tiny"
    assert not transport._open


async def test_http_1_0_is_understood_and_not_kept(server: ScriptedServer, transport: Transport) -> None:
    server.script(faults.raw(b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok"))
    assert await fetch(transport, server.url_of("models/small")) == b"ok"
    assert not transport._open


async def test_no_more_idle_connections_than_allowed(server: ScriptedServer) -> None:
    transport = Transport(max_idle_connections=1)
    small = server.url_of("models/small")
    async with transport.get(small, {}), transport.get(small, {}), transport.get(small, {}):
        pass
    assert len(transport._idle) == len(transport._open) == 1
    await transport.aclose()


async def test_old_idle_connections_are_not_reused(
    server: ScriptedServer, transport: Transport, mock_clock: MockClock
) -> None:
    await fetch(transport, server.url_of("models/small"))
    mock_clock.jump(59)
    await expect_reused(transport, server, reused=True)
    mock_clock.jump(61)
    await expect_reused(transport, server, reused=False)


async def test_a_connection_is_ready_after_any_pause(
    server: ScriptedServer, transport: Transport, nursery: trio.Nursery, mock_clock: MockClock
) -> None:
    small = server.url_of("models/small")
    await transport.connect(small)
    nursery.start_soon(transport.stay_connected, small)
    for _ in range(30):
        known = server.connections
        mock_clock.jump(20)
        await wait_all_tasks_blocked(0.01)
    assert known <= 16, "one lasts for 40 s and more"
    assert len(transport._open) == len(transport._idle) <= 2
    await expect_reused(transport, server, reused=True)


async def test_a_peer_that_is_down_is_left_alone_for_longer_each_time(
    server: ScriptedServer, transport: Transport, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    tried = list[float]()

    async def refused(_: object) -> Connection:
        tried.append(trio.current_time())
        raise OriginUnavailable("it is down")

    transport._connect = refused  # type: ignore[method-assign, assignment]
    nursery.start_soon(transport.stay_connected, server.url_of("models/small"))
    await trio.sleep(3600)
    assert 5 < len(tried) <= 10


async def test_a_connection_that_the_server_closed_meanwhile_is_noticed(
    server: ScriptedServer, transport: Transport, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def whole_then_close(exchange: Exchange, answer: Answer) -> None:
        await exchange.deliver(answer)
        exchange.hang_up()

    server.script(whole_then_close)
    await fetch(transport, server.url_of("models/small"))
    await wait_all_tasks_blocked()
    exchanges, exchange = itertools.count(), transport._exchange
    monkeypatch.setattr(transport, "_exchange", lambda *used, **how: (next(exchanges), exchange(*used, **how))[1])
    await expect_reused(transport, server, reused=False)
    assert next(exchanges) == len(transport._open) == 1, "noticed before a request was wasted on it"


@pytest.mark.parametrize("fault", [faults.drop, faults.reset_after(0)])
async def test_a_reused_connection_that_fails_before_the_reply_is_retried_once(
    server: ScriptedServer, transport: Transport, fault: Fault
) -> None:
    small = server.url_of("models/small")
    await fetch(transport, small)
    server.script(fault)
    assert await fetch(transport, small) == b"tiny"
    assert [request.connection for request in server.requests] == [0, 0, 1]

    server.script(fault, fault)
    with pytest.raises(OriginUnavailable, match="without a reply"):
        await fetch(transport, small)
    assert len(server.requests) == 5, "once, not for ever"


@pytest.mark.parametrize("fault", [faults.raw(b"H"), faults.cut_after(2)])
async def test_a_reused_connection_that_fails_later_is_not_retried(
    server: ScriptedServer, transport: Transport, fault: Fault
) -> None:
    small = server.url_of("models/small")
    await fetch(transport, small)
    server.script(fault)
    with pytest.raises(OriginUnavailable):
        await fetch(transport, small)
    assert len(server.requests) == 2


@pytest.mark.parametrize(("unread", "reused"), [(60_000, True), (70_000, False)])
@pytest.mark.parametrize("fault", [faults.honest, faults.chunked])
async def test_a_small_unread_rest_is_dropped_and_a_large_one_costs_the_connection(
    server: ScriptedServer,
    transport: Transport,
    fault: Fault,
    unread: int,
    reused: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("d7yfs.fetch.transport._DRAIN_TIMEOUT_S", 10.0)  # a busy machine sends late
    server.script(fault)
    async with transport.get(server.url_of(KEY), {"Range": f"bytes=0-{unread - 1}"}) as reply:
        assert reply.status == 206
    await expect_reused(transport, server, reused=reused)


async def test_a_caller_that_fails_on_the_status_keeps_the_connection(
    server: ScriptedServer, transport: Transport
) -> None:
    async def refuse() -> None:
        async with transport.get(server.url_of("models/absent"), {}) as reply:
            raise NotFound(f"status {reply.status}")

    with pytest.raises(NotFound, match="404"):
        await refuse()
    await expect_reused(transport, server, reused=True)


async def test_a_rest_that_does_not_come_is_not_waited_for_long(
    server: ScriptedServer, transport: Transport, mock_clock: MockClock, nursery: trio.Nursery
) -> None:
    hang = faults.Hang(after_body_bytes=2)
    server.script(hang)
    left = trio.Event()

    async def leave_early() -> None:
        async with transport.get(server.url_of("models/small"), {}):
            await hang.reached.wait()
        left.set()

    nursery.start_soon(leave_early)
    await hang.reached.wait()
    await wait_all_tasks_blocked()
    mock_clock.jump(0.3)
    await left.wait()
    assert not transport._open


async def test_a_large_rest_is_not_waited_for_at_all(
    server: ScriptedServer, transport: Transport, mock_clock: MockClock
) -> None:
    hang = faults.Hang(after_body_bytes=2)
    server.script(hang)
    async with transport.get(server.url_of(KEY), {}):
        await hang.reached.wait()
    assert not transport._open, "with a clock that stands still"


async def test_after_aclose_nothing_stays_open(server: ScriptedServer, transport: Transport) -> None:
    async with transport.get(server.url_of("models/small"), {}) as reply:
        await transport.aclose()
        assert await reply.read(10) == b"tiny"
    assert not transport._open


# --- timeouts and cancellation ---


async def expect_timeout(
    transport: Transport, clock: MockClock, url: str, reached: trio.Event, just_before_s: float, *, via: str = ""
) -> str:
    """Fetch `url`; once the server is `reached`, nothing may happen until `just_before_s`, and a
    second later it must.
    """
    messages: list[str] = []

    async def fails() -> None:
        with pytest.raises(ProxyUnavailable if via else OriginUnavailable) as caught:
            await fetch(transport, f"{url}?{SECRET}", via=via)
        assert caught.value.transient
        messages.append(str(caught.value))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(fails)
        await reached.wait()
        await wait_all_tasks_blocked()
        clock.jump(just_before_s)
        await wait_all_tasks_blocked()
        assert not messages
        clock.jump(1)
    assert "secret" not in messages[0]
    assert not transport._open
    return messages[0]


async def test_no_first_byte(server: ScriptedServer, transport: Transport, mock_clock: MockClock) -> None:
    hang = faults.Hang()
    server.script(hang)
    message = await expect_timeout(transport, mock_clock, server.url_of(KEY), hang.reached, 4.5)
    assert f"127.0.0.1:{server.port} did not reply within 5 s (no first byte)" in message


async def test_nothing_between_bytes(server: ScriptedServer, transport: Transport, mock_clock: MockClock) -> None:
    hang = faults.Hang(after_body_bytes=1000)
    server.script(hang)
    message = await expect_timeout(transport, mock_clock, server.url_of(KEY), hang.reached, 6.5)
    assert (
        f"127.0.0.1:{server.port} sent nothing for 7 s in the middle of a body, after 1000 of 3000017 bytes" in message
    )


async def test_a_caller_may_take_its_time_between_two_receives(
    server: ScriptedServer, transport: Transport, mock_clock: MockClock
) -> None:
    async with transport.get(server.url_of(KEY), {}) as reply:
        assert await reply.read(1000)
        mock_clock.jump(1000)
        assert len(await reply.read(1000)) == 1000


@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_no_connection(transport: Transport, mock_clock: MockClock, scheme: str) -> None:
    """http: a listener whose queue is full answers no SYN; https: TCP connects and the handshake
    hangs.
    """
    listener = trio.socket.socket()
    await listener.bind(("127.0.0.1", 0))
    listener.listen(0)
    address = listener.getsockname()
    reached = trio.Event()
    reached.set()
    fillers: list[trio.socket.SocketType] = []
    try:
        while scheme == "http" and len(fillers) < 2:
            filler = trio.socket.socket()
            fillers.append(filler)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(filler.connect, address)
                await wait_all_tasks_blocked()
                nursery.cancel_scope.cancel()
        message = await expect_timeout(transport, mock_clock, f"{scheme}://127.0.0.1:{address[1]}/k", reached, 2.5)
        assert f"no connection to 127.0.0.1:{address[1]} within 3 s" in message
    finally:
        for connection in (*fillers, listener):
            connection.close()


@pytest.mark.parametrize("after_body_bytes", [None, 1000])
async def test_a_cancelled_get_closes_its_connection(
    server: ScriptedServer, transport: Transport, after_body_bytes: int | None
) -> None:
    hang = faults.Hang(after_body_bytes)
    server.script(hang)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(fetch, transport, server.url_of(KEY))
        await hang.reached.wait()
        await wait_all_tasks_blocked()
        assert len(transport._open) == 1
        nursery.cancel_scope.cancel()
    assert not transport._open


# --- connecting ---


def free_port() -> int:
    with socket.socket() as unbound:
        unbound.bind(("127.0.0.1", 0))
        return int(unbound.getsockname()[1])


async def test_connection_refused(transport: Transport) -> None:
    port = free_port()
    with pytest.raises(OriginUnavailable, match=f"cannot connect to 127.0.0.1:{port}: connection refused") as caught:
        await fetch(transport, f"http://127.0.0.1:{port}/k?{SECRET}")
    assert caught.value.hint
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("host", ["no-such-host.invalid", f"{'x' * 64}.invalid"])
async def test_unknown_host(transport: Transport, host: str) -> None:
    with pytest.raises(OriginUnavailable, match=f"cannot resolve the host name of {host}:80") as caught:
        await fetch(transport, f"http://{host}/k")
    assert "DNS" in caught.value.hint


# --- TLS ---


@pytest.fixture(scope="module")
def ca() -> trustme.CA:
    return trustme.CA()


def server_context(ca: trustme.CA, *names: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ca.issue_cert(*names).configure_cert(context)
    context.set_alpn_protocols(["h2", "http/1.1"])
    return context


@pytest.fixture
async def tls_server(ca: trustme.CA) -> AsyncIterator[ScriptedServer]:
    objects = {KEY: BODY, "models/small": b"tiny"}
    async with ScriptedServer(objects, ssl_context=server_context(ca, "127.0.0.1", "localhost")).running() as server:
        yield server


@pytest.fixture(scope="module")
def trust(ca: trustme.CA, tmp_path_factory: pytest.TempPathFactory) -> Trust:
    path = tmp_path_factory.mktemp("ca") / "ca.pem"
    ca.cert_pem.write_to_path(path)
    return Trust(path)


@pytest.fixture(params=["engine", "mover"])
async def tls_movers(request: pytest.FixtureRequest) -> AsyncIterator[MoverPool | None]:
    """Where TLS ends: None is here."""
    if request.param == "engine":
        yield None
        return
    async with running() as movers:
        yield movers


@pytest.fixture
async def tls_transport(trust: Trust, tls_movers: MoverPool | None) -> AsyncIterator[Transport]:
    transport = Transport(trust=trust, movers=tls_movers)
    yield transport
    await transport.aclose()
    assert not transport._open
    if tls_movers is not None:
        assert tls_movers._numbers, "no mover has had a connection"
        assert tls_movers.ready, "a mover has died"


@pytest.mark.parametrize("fault", [faults.honest, faults.chunked])
async def test_tls_bodies_and_reuse(tls_server: ScriptedServer, tls_transport: Transport, fault: Fault) -> None:
    tls_server.script(fault)
    assert await fetch(tls_transport, tls_server.url_of(KEY)) == BODY
    await expect_reused(tls_transport, tls_server, reused=True)


@pytest.mark.parametrize("key", ["models/small", KEY])
async def test_tls_surplus_is_noticed_even_when_it_lies_decrypted_in_our_own_buffers(
    tls_server: ScriptedServer, tls_transport: Transport, key: str
) -> None:
    tls_server.script(faults.surplus(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil"))
    assert await fetch(tls_transport, tls_server.url_of(key)) == tls_server.objects[key]
    await expect_reused(tls_transport, tls_server, reused=False)


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (faults.cut_after(1_000_000), "cut off after 1000000 of 3000017 bytes"),
        (faults.until_close, "cut off after 3000017 bytes"),
    ],
)
async def test_tls_bodies_cut_off_by_a_bare_end_of_stream(
    tls_server: ScriptedServer, tls_transport: Transport, fault: Fault, words: str
) -> None:
    """Without close_notify nobody can tell the end of an unframed body from an attacker's cut: both
    are refused.
    """
    tls_server.script(fault)
    with pytest.raises(OriginUnavailable, match=words):
        await fetch(tls_transport, tls_server.url_of(KEY))


async def test_tls_bodies_that_end_with_the_connection_in_good_order(ca: trustme.CA, tls_transport: Transport) -> None:
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")

    async def answer(tcp: trio.SocketStream) -> None:
        async with trio.SSLStream(tcp, server_context(ca, "127.0.0.1"), server_side=True) as stream:
            await stream.receive_some()
            await stream.send_all(b"HTTP/1.1 200 OK\r\n\r\n" + BODY)
            # Leaving sends close_notify and waits for ours; we just close, as HTTP allows.
            with suppress(trio.BrokenResourceError):
                await stream.unwrap()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, answer, [listener])
        assert await fetch(tls_transport, f"https://127.0.0.1:{listener.socket.getsockname()[1]}/k") == BODY
        nursery.cancel_scope.cancel()


async def test_an_unknown_ca_is_refused_in_words_and_for_good(
    tls_server: ScriptedServer, tls_movers: MoverPool | None
) -> None:
    transport = Transport(movers=tls_movers)
    with pytest.raises(OriginUntrusted, match=f"certificate of 127.0.0.1:{tls_server.port} does not verify") as caught:
        await fetch(transport, f"{tls_server.url_of(KEY)}?{SECRET}")
    assert not caught.value.transient
    assert "CA" in caught.value.hint
    assert not tls_server.requests, "nothing was sent"


async def test_a_certificate_for_another_name_is_refused(ca: trustme.CA, tls_transport: Transport) -> None:
    async with ScriptedServer({KEY: BODY}, ssl_context=server_context(ca, "example.org")).running() as server:
        with pytest.raises(OriginUntrusted, match="IP address mismatch"):
            await fetch(tls_transport, server.url_of(KEY))
        assert not server.requests


async def test_https_to_a_plain_server(tls_transport: Transport) -> None:
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")

    async def speak_plainly(stream: trio.SocketStream) -> None:
        await stream.receive_some()
        await stream.send_all(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, speak_plainly, [listener])
        with pytest.raises(OriginUnavailable, match="no TLS with") as caught:
            await fetch(tls_transport, f"https://127.0.0.1:{listener.socket.getsockname()[1]}/k")
        assert "https" in caught.value.hint
        nursery.cancel_scope.cancel()


async def test_only_http_1_1_is_negotiated(ca: trustme.CA, tls_transport: Transport) -> None:
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    chosen: list[str | None] = []

    async def answer(tcp: trio.SocketStream) -> None:
        stream = trio.SSLStream(tcp, server_context(ca, "127.0.0.1"), server_side=True)
        await stream.receive_some()
        chosen.append(stream.selected_alpn_protocol())
        await stream.send_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, answer, [listener])
        assert await fetch(tls_transport, f"https://127.0.0.1:{listener.socket.getsockname()[1]}/k") == b"ok"
        nursery.cancel_scope.cancel()
    assert chosen == ["http/1.1"]


# --- through a proxy ---


@pytest.mark.parametrize(
    ("origin", "host"),
    [
        ("http://bucket.example:9000", "bucket.example:9000"),
        ("https://bucket.example", "bucket.example"),
        ("https://bucket.example:443", "bucket.example"),
    ],
)
async def test_a_proxy_gets_the_absolute_form_and_the_origins_host(
    server: ScriptedServer, transport: Transport, origin: str, host: str
) -> None:
    assert await fetch(transport, f"{origin}/models/small?a=%2F", via=server.url) == b"tiny"
    (request,) = server.requests
    assert request.method == "GET"
    assert request.target == f"{origin.split(':')[0]}://{host}/models/small?a=%2F"
    assert request.headers["host"] == host


async def test_origins_share_a_proxys_connections_but_not_with_direct_requests(
    server: ScriptedServer, transport: Transport
) -> None:
    for url in ("http://a.example/models/small", "https://b.example/models/small"):
        assert await fetch(transport, url, via=server.url) == b"tiny"
    assert server.connections == 1
    await expect_reused(transport, server, reused=False)


async def test_a_proxy_is_never_reached_over_tls(transport: Transport) -> None:
    with pytest.raises(ValueError, match="plain http"):
        await fetch(transport, "http://a.example/k", via="https://127.0.0.1:1")


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (faults.cut_after(1000), r"proxy 127.0.0.1:\d+ closed the connection: .* cut off after 1000 of 3000017"),
        (faults.drop, r"proxy 127.0.0.1:\d+ closed the connection without a reply"),
        (faults.reset_after(1000), r"proxy 127.0.0.1:\d+ broke the connection: .* cut off"),
    ],
)
async def test_a_proxys_failures_are_its_own(
    server: ScriptedServer, transport: Transport, fault: Fault, words: str
) -> None:
    server.script(fault)
    with pytest.raises(ProxyUnavailable, match=words) as caught:
        await fetch(transport, f"http://a.example/{KEY}?{SECRET}", via=server.url)
    assert "secret" not in str(caught.value)


async def test_a_refused_proxy(transport: Transport) -> None:
    port = free_port()
    with pytest.raises(ProxyUnavailable, match=f"cannot connect to proxy 127.0.0.1:{port}: connection refused"):
        await fetch(transport, "http://a.example/k", via=f"http://127.0.0.1:{port}")


async def test_a_silent_proxy(server: ScriptedServer, transport: Transport, mock_clock: MockClock) -> None:
    hang = faults.Hang()
    server.script(hang)
    message = await expect_timeout(transport, mock_clock, f"http://a.example/{KEY}", hang.reached, 4.5, via=server.url)
    assert f"proxy 127.0.0.1:{server.port} did not reply" in message


# --- secrets ---


async def test_nothing_is_logged_and_no_repr_shows_a_value(
    server: ScriptedServer, transport: Transport, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    server.script(faults.with_headers({"X-Amz-Meta": "secret"}))
    async with transport.get(f"{server.url_of(KEY)}?{SECRET}", {"Authorization": "secret"}) as reply:
        assert "secret" not in f"{reply!r} {reply.headers!r} {transport!r}"
    assert "secret" not in caplog.text


def test_a_repeated_header_is_joined() -> None:
    headers = Headers([(b"vary", b"A"), (b"x", b"1"), (b"Vary", b"B")])
    assert dict(headers) == {"vary": "A, B", "x": "1"}
