"""The listener for scrapes and probes, spoken to in bytes."""

from __future__ import annotations

import re
import socket
from pathlib import Path

import pytest
import trio

from d7yfs.config.schema import METRICS_ADDRESS, OPTIONS
from d7yfs.errors import MountError
from d7yfs.monitor import http_listener
from d7yfs.monitor.http_listener import HttpPage


async def _fine() -> HttpPage:
    return HttpPage(200, "text/plain", b"fine\n")


async def _guarded() -> HttpPage:
    return HttpPage(200, "text/html", b"page", (("Content-Security-Policy", "default-src 'none'"),))


async def _broken() -> HttpPage:
    raise ZeroDivisionError("secret in an unexpected text")


async def asked(port: int, data: bytes) -> bytes:
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
        await stream.send_all(data)
        return b"".join([chunk async for chunk in stream])


async def _serving(nursery: trio.Nursery) -> int:
    listener = http_listener.listen("127.0.0.1:0")
    nursery.start_soon(http_listener.serve, listener, {"/": _guarded, "/metrics": _fine, "/broken": _broken})
    port: int = listener.socket.getsockname()[1]
    return port


def _get(path: str, method: str = "GET") -> bytes:
    return f"{method} {path} HTTP/1.1\r\nHost: h\r\n\r\n".encode()


async def test_a_page(nursery: trio.Nursery) -> None:
    port = await _serving(nursery)
    reply = await asked(port, _get("/metrics?x=1"))
    head, body = reply.split(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200")
    assert b"content-length: 5" in head.lower()
    assert b"connection: close" in head.lower()
    assert body == b"fine\n"
    assert (await asked(port, _get("/metrics", "HEAD"))).endswith(b"\r\n\r\n")


async def test_a_page_has_its_own_headers(nursery: trio.Nursery) -> None:
    head, body = (await asked(await _serving(nursery), _get("/?x"))).split(b"\r\n\r\n")
    assert b"Content-Security-Policy: default-src 'none'" in head.splitlines()
    assert body == b"page"


async def test_anything_else_is_refused(nursery: trio.Nursery, caplog: pytest.LogCaptureFixture) -> None:
    port = await _serving(nursery)
    assert (await asked(port, _get("/secrets"))).startswith(b"HTTP/1.1 404")
    assert (await asked(port, _get("/metrics", "DELETE"))).startswith(b"HTTP/1.1 405")
    broken = await asked(port, _get("/broken"))
    assert broken.startswith(b"HTTP/1.1 500")
    assert b"ZeroDivisionError" in broken
    assert b"secret" not in broken
    assert "Traceback" in caplog.text


@pytest.mark.parametrize(
    "data", [b"\x16\x03\x01\x02\x00", b"GET\r\n\r\n", b"X" * (32 << 10), b"GET /metrics HTTP/1.1\r\n"]
)
async def test_rubbish_is_survived(nursery: trio.Nursery, data: bytes) -> None:
    port = await _serving(nursery)
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
        await stream.send_all(data)
        await stream.send_eof()
        try:
            while await stream.receive_some(4096):
                pass
        except trio.BrokenResourceError:
            pass
    assert (await asked(port, _get("/metrics"))).endswith(b"fine\n")


async def test_a_client_that_says_nothing_is_left(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    port = await _serving(nursery)
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
        assert await stream.receive_some(1) == b""


def test_a_port_that_is_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(MountError, match=f"{address} cannot be listened on") as caught:
            http_listener.listen(address)
    assert "--metrics-listen" in caught.value.hint


async def test_every_address_is_that_of_ipv4_too(nursery: trio.Nursery) -> None:
    try:
        socket.socket(socket.AF_INET6).close()
    except OSError:
        with pytest.raises(MountError):
            http_listener.listen("[::]:0")
        return
    assert OPTIONS["metrics_listen"].kind.parse("[::]:7717") == "[::]:7717"
    listener = http_listener.listen("[::]:0")
    nursery.start_soon(http_listener.serve, listener, {"/metrics": _fine})
    assert (await asked(listener.socket.getsockname()[1], _get("/metrics"))).endswith(b"fine\n")


TAKEN = {*range(8000, 8003), *range(8070, 8083), *range(4000, 4007), 65001}
"""Triton's, TorchServe's, dfdaemon's and its manager's and scheduler's; and that of a Dragonfly endpoint."""


def test_the_default_port_is_nobody_elses() -> None:
    shipped = Path(__file__).parents[2]
    texts = [shipped / "systemd" / "example.toml", *(shipped / "deploy" / "kubernetes").rglob("*.yaml")]
    addresses = [match for each in texts for match in re.findall(r"(?i)metrics_listen\W+(\S+:\d+)", each.read_text())]
    assert len(addresses) >= 2
    for address in (METRICS_ADDRESS, *addresses):
        assert int(address.rpartition(":")[2]) not in TAKEN


async def test_silent_connections_starve_no_probe(nursery: trio.Nursery) -> None:
    """Two hundred clients that connect and say nothing, or half a head."""
    port = await _serving(nursery)
    silent = [await trio.open_tcp_stream("127.0.0.1", port) for _ in range(200)]
    for each in silent[::2]:
        try:
            await each.send_all(b"GET /metrics HTTP/1.1\r\n")
        except trio.BrokenResourceError:
            continue  # its place was taken
    with trio.fail_after(10):
        assert (await asked(port, _get("/metrics"))).endswith(b"fine\n")
    for each in silent:
        await each.aclose()


async def test_a_head_must_come_soon(nursery: trio.Nursery, autojump_clock: trio.testing.MockClock) -> None:
    port = await _serving(nursery)
    autojump_clock.autojump_threshold = 0.05
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
        began = trio.current_time()
        assert await stream.receive_some(1) == b""
        assert 2 <= trio.current_time() - began < 3
