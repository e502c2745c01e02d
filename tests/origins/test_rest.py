"""The control plane's HTTP client against a server that misbehaves."""

from __future__ import annotations

import gzip
import math
import random
import ssl
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from email.utils import formatdate
from functools import partial
from typing import Any

import httpx
import pytest
import trio
import trustme

from d7yfs.errors import BadReply, OriginUnavailable, OriginUntrusted
from d7yfs.origins import rest as rest_module
from d7yfs.origins.headers import retry_after_s
from d7yfs.origins.rest import ControlReply, Rest
from tests.servers import faults
from tests.servers.http11 import Answer, Exchange, HttpServer, Request

NOW = 1_700_000_000.0


class Echo(HttpServer):
    async def answer(self, request: Request) -> Answer:
        return Answer(200, {"Date": formatdate(NOW, usegmt=True)}, request.target.encode())


@pytest.fixture
async def server() -> AsyncIterator[Echo]:
    async with Echo().running() as running:
        yield running


@asynccontextmanager
async def client(**options: Any) -> AsyncIterator[Rest]:
    made = Rest(options.pop("context", ssl.create_default_context), clock=lambda: NOW, **options)
    async with aclosing(made):
        yield made


async def test_a_url_is_sent_as_it_is(server: Echo) -> None:
    target = "/b/a%2Fb%20c+d/%E2%82%AC?prefix=x%2F&x=a+b&empty"
    async with client() as rest:
        reply = await rest.send("GET", server.url + target, {"X-A": "1"}, subject="t://b/k")
    assert (reply.status, reply.body.decode(), reply.date) == (200, target, NOW)
    (request,) = server.requests
    assert request.headers["x-a"] == "1"
    assert request.headers["accept-encoding"] == "identity"


class Recorder(httpx.AsyncBaseTransport):
    """A transport that takes a body as httpx hands it to the connection."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        assert isinstance(request.stream, httpx.AsyncByteStream)
        self.pieces = [piece async for piece in request.stream]
        assert request.headers["content-length"] == str(sum(map(len, self.pieces)))
        return httpx.Response(200, stream=httpx.ByteStream(b""))


async def test_a_body_is_sent_in_pieces_and_each_has_the_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder()
    monkeypatch.setattr("httpx.AsyncClient", partial(httpx.AsyncClient, transport=recorder))
    body = random.Random(1).randbytes(3 * rest_module._PIECE_BYTES + 1)
    async with client() as rest:
        await rest.send("PUT", "http://store/key", {}, subject="t://b/k", body=body)
    assert b"".join(recorder.pieces) == body
    assert max(map(len, recorder.pieces)) <= rest_module._PIECE_BYTES


async def test_one_connection_serves_many_requests(server: Echo) -> None:
    async with client() as rest:
        for _ in range(3):
            await rest.send("GET", server.url, {}, subject="t://b/k")
    assert server.connections == 1


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504])
async def test_a_busy_provider_is_asked_again(
    server: Echo, autojump_clock: trio.testing.MockClock, status: int
) -> None:
    server.script(faults.status(status, {"Retry-After": "2"}))
    began = trio.current_time()
    async with client() as rest:
        reply = await rest.send("GET", server.url, {}, subject="t://b/k")
    assert reply.status == 200
    assert 2 <= trio.current_time() - began < 3


async def test_retry_after_may_be_a_date(server: Echo, autojump_clock: trio.testing.MockClock) -> None:
    server.script(faults.status(503, {"Retry-After": formatdate(NOW + 3, usegmt=True)}))
    began = trio.current_time()
    async with client() as rest:
        await rest.send("GET", server.url, {}, subject="t://b/k")
    assert 3 <= trio.current_time() - began < 4


async def test_a_long_pause_is_left_to_the_caller(server: Echo) -> None:
    server.script(faults.status(503, {"Retry-After": "60"}))
    async with client() as rest:
        reply = await rest.send("GET", server.url, {}, subject="t://b/k")
    assert (reply.status, retry_after_s(reply.headers, NOW)) == (503, 60)
    assert len(server.requests) == 1


async def test_it_gives_up(server: Echo, autojump_clock: trio.testing.MockClock) -> None:
    server.script(faults.status(503), forever=True)
    async with client() as rest:
        assert (await rest.send("GET", server.url, {}, subject="t://b/k")).status == 503
    assert len(server.requests) == 3


@pytest.mark.parametrize("status", [301, 307, 400, 401, 403, 404, 412])
async def test_other_statuses_are_the_callers(server: Echo, status: int) -> None:
    server.script(faults.status(status, {"Location": "http://127.0.0.1:1/"}))
    async with client() as rest:
        assert (await rest.send("GET", server.url, {}, subject="t://b/k")).status == status
    assert len(server.requests) == 1


async def test_a_cut_body_is_asked_for_again(server: Echo, autojump_clock: trio.testing.MockClock) -> None:
    server.script(faults.cut_after(3), faults.reset_after(0))
    async with client() as rest:
        assert (await rest.send("GET", f"{server.url}/whole", {}, subject="t://b/k")).body == b"/whole"
    assert len(server.requests) == 3


async def test_a_body_that_is_always_cut(server: Echo, autojump_clock: trio.testing.MockClock) -> None:
    server.script(faults.cut_after(3), forever=True)
    async with client() as rest:
        with pytest.raises(OriginUnavailable, match=r"t://b/k: http://127.0.0.1:\d+ broke off"):
            await rest.send("GET", f"{server.url}/whole?sig=hunter2", {}, subject="t://b/k")


async def test_nobody_listens(autojump_clock: trio.testing.MockClock) -> None:
    async with client() as rest:
        with pytest.raises(
            OriginUnavailable, match=r"t://b/k: .*127.0.0.1:1 cannot be reached: Connection refused"
        ) as error:
            await rest.send("GET", "http://127.0.0.1:1/?sig=hunter2", {}, subject="t://b/k")
    assert "hunter2" not in str(error.value)


async def test_silence(server: Echo, monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock) -> None:
    async def silent(exchange: Exchange, answer: Answer) -> None:
        await trio.sleep_forever()

    server.script(silent, forever=True)
    async with client() as rest:
        with pytest.raises(OriginUnavailable, match="did not answer in time"):
            await rest.send("GET", server.url, {}, subject="t://b/k")


async def test_too_much(server: Echo, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rest_module, "_BODY_MAX_BYTES", 10)
    async with client() as rest:
        with pytest.raises(BadReply, match="more than"):
            await rest.send("GET", f"{server.url}/{'x' * 20}", {}, subject="t://b/k")


async def test_a_certificate_must_verify() -> None:
    authority = trustme.CA()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    trusting = ssl.create_default_context()
    authority.configure_trust(trusting)
    async with Echo(context).running() as server:
        async with client() as rest:
            with pytest.raises(OriginUntrusted, match=r"certificate|issuer"):
                await rest.send("GET", server.url, {}, subject="t://b/k")
        async with client(context=lambda: trusting) as rest:
            assert (await rest.send("GET", server.url, {}, subject="t://b/k")).status == 200


async def test_plain_http_loads_no_certificates(server: Echo) -> None:
    def refuse() -> ssl.SSLContext:
        raise AssertionError("certificates are loaded")

    async with client(context=refuse) as rest:
        assert (await rest.send("GET", server.url, {}, subject="t://b/k")).status == 200


async def test_the_proxy_is_a_setting_and_nothing_else(server: Echo, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:1")
    async with client() as rest:
        assert (await rest.send("GET", server.url, {}, subject="t://b/k")).status == 200
    async with client(proxy=server.url) as rest:
        await rest.send("GET", "http://store.example/b/k", {}, subject="t://b/k")
    assert server.requests[-1].target == "http://store.example/b/k"


async def test_nothing_secret_is_shown(server: Echo) -> None:
    async with client() as rest:
        reply = await rest.send("GET", f"{server.url}/hunter2", {"Authorization": "hunter2"}, subject="t://b/k")
        assert "hunter2" not in repr(reply)
        assert "hunter2" not in repr(rest)


async def test_a_body_without_an_end_is_left_at_once(server: Echo) -> None:
    sent_bytes = 0

    async def endless(exchange: Exchange, answer: Answer) -> None:
        nonlocal sent_bytes
        await exchange.send_head(200, {"Transfer-Encoding": "chunked"})
        while True:
            await exchange.send(b"10000\r\n" + b"x" * 65536 + b"\r\n")
            sent_bytes += 65536

    server.script(endless, forever=True)
    async with client() as rest:
        with trio.fail_after(20), pytest.raises(BadReply, match="more than 16 MiB") as caught:
            await rest.send("GET", server.url, {}, subject="t://b/k")
    assert caught.value.lasting, "it is not asked for again"
    assert sent_bytes < 64 << 20, "what the sockets hold, and no more"
    assert len(server.requests) == 1


async def test_a_compressed_body_is_not_decompressed(server: Echo) -> None:
    bomb = gzip.compress(bytes(32 << 20))
    server.script(faults.status(200, {"Content-Encoding": "gzip"}, bomb))
    async with client() as rest:
        assert (await rest.send("GET", server.url, {}, subject="t://b/k")).body == bomb


@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n",
        b"HTTP/1.1 " + b"2" * 5000 + b" OK\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"9" * 500_000 + b"\r\n\r\n",
    ],
)
async def test_a_head_of_absurd_numbers(server: Echo, autojump_clock: trio.testing.MockClock, head: bytes) -> None:
    server.script(faults.raw(head), forever=True)
    async with client() as rest:
        with pytest.raises(OriginUnavailable, match="does not speak HTTP"):
            await rest.send("GET", server.url, {}, subject="t://b/k")


@pytest.mark.parametrize(
    "value",
    [
        "9" * 5000,
        "Mon, 01 Jan 2026 00:00:00 +" + "9" * 30,
        "Mon, 01 Jan " + "9" * 30 + " 00:00:00 GMT",
        "Mon, 01 Jan 2026 00:00:00 +9999",
        "\u0667",
    ],
)
def test_an_absurd_retry_after_or_date(value: str) -> None:
    assert retry_after_s({"retry-after": value}, NOW) in (0, math.inf)
    assert ControlReply(200, {"date": value}).date is None
