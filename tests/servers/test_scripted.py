"""The scripted server, read by httpx: its honest replies satisfy a foreign client, and each fault
is one.
"""

from __future__ import annotations

import gzip
from collections.abc import AsyncIterator

import httpx
import pytest
import trio

from tests.servers import faults
from tests.servers.http11 import Fault
from tests.servers.scripted import ScriptedServer

BODY = bytes(range(256)) * 40


@pytest.fixture
async def server() -> AsyncIterator[ScriptedServer]:
    async with ScriptedServer({"b/k ü": BODY}).running() as server:
        yield server


@pytest.fixture
async def client(server: ScriptedServer) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(trust_env=False, base_url=server.url, timeout=None) as client:
        yield client


@pytest.mark.parametrize(
    ("span", "start", "stop"),
    [("bytes=0-0", 0, 1), ("bytes=100-199", 100, 200), ("bytes=10000-", 10000, 10240), ("bytes=-5", 10235, 10240),
     ("bytes=10239-99999", 10239, 10240)],
)  # fmt: skip
async def test_ranges(client: httpx.AsyncClient, span: str, start: int, stop: int) -> None:
    reply = await client.get("/b/k ü", headers={"Range": span})
    assert reply.status_code == 206
    assert reply.content == BODY[start:stop]
    assert reply.headers["content-range"] == f"bytes {start}-{stop - 1}/10240"


async def test_whole_object_and_errors(server: ScriptedServer, client: httpx.AsyncClient) -> None:
    whole = await client.get("/b/k%20%C3%BC?signature=x")
    assert (whole.status_code, whole.content, whole.headers["etag"]) == (200, BODY, server.etag("b/k ü"))
    for path, headers, status in (
        ("/b/absent", {}, 404),
        ("/b/k ü", {"If-Match": '"old"'}, 412),
        ("/b/k ü", {"If-Match": whole.headers["etag"]}, 200),
        ("/b/k ü", {"Range": "bytes=10240-"}, 416),
    ):
        assert (await client.get(path, headers=headers)).status_code == status
    assert (await client.post("/b/k ü")).status_code == 405
    assert server.connections == 1, "the server must keep the connection alive"
    assert len(server.requests_for("b/k ü")) == 5
    assert server.sent_bytes["b/k ü"] >= 2 * len(BODY)


async def test_putting_another_body_changes_the_etag(server: ScriptedServer, client: httpx.AsyncClient) -> None:
    old = server.etag("b/k ü")
    server.put("b/k ü", b"new")
    assert (await client.get("/b/k ü", headers={"If-Match": old})).status_code == 412
    assert (await client.get("/b/k ü")).content == b"new"


async def test_scripts_are_used_up_in_order_and_by_key(server: ScriptedServer, client: httpx.AsyncClient) -> None:
    server.put("b/other", b"")
    server.script(faults.status(500), faults.honest, faults.status(503, {"Retry-After": "7"}), key="b/other")
    statuses = [(await client.get(f"/b/{name}")).status_code for name in ("other", "k ü", "other", "other", "other")]
    assert statuses == [500, 200, 200, 503, 200]
    server.script(faults.status(429), forever=True)
    assert [(await client.get("/b/k ü")).status_code for _ in range(3)] == [429] * 3


async def test_faults_of_the_head(server: ScriptedServer, client: httpx.AsyncClient) -> None:
    async def ask(fault: Fault) -> httpx.Response:
        server.script(fault)
        return await client.get("/b/k ü", headers={"Range": "bytes=10-19"})

    assert (await ask(faults.shifted_range(1))).headers["content-range"] == "bytes 11-20/10240"
    assert (await ask(faults.other_total(1))).headers["content-range"] == "bytes 10-19/1"
    assert (await ask(faults.other_etag())).headers["etag"] == '"another"'
    assert (await ask(faults.longer_body(3))).content == BODY[10:20] + b"+++"
    whole = await ask(server.whole_object)
    assert (whole.status_code, whole.content, "content-range" in whole.headers) == (200, BODY, False)
    old_dfdaemon = await ask(faults.range_with_200)
    assert (old_dfdaemon.status_code, old_dfdaemon.headers["content-range"]) == (200, "bytes 10-19/10240")
    assert (await ask(faults.chunked)).content == (await ask(faults.until_close)).content == BODY[10:20]
    server.script(faults.gzipped)
    async with client.stream("GET", "/b/k ü") as reply:
        assert gzip.decompress(b"".join([chunk async for chunk in reply.aiter_raw()])) == BODY


@pytest.mark.parametrize(
    "fault", [faults.cut_after(5000), faults.reset_after(5000), faults.reset_after(0), faults.drop]
)
async def test_faults_of_the_connection(server: ScriptedServer, client: httpx.AsyncClient, fault: Fault) -> None:
    server.script(fault)
    with pytest.raises(httpx.TransportError):
        await client.get("/b/k ü")
    assert (await client.get("/b/k ü")).content == BODY


@pytest.mark.parametrize("after_body_bytes", [None, 0, 5000])
async def test_hang_and_resume(server: ScriptedServer, client: httpx.AsyncClient, after_body_bytes: int | None) -> None:
    hang = faults.Hang(after_body_bytes)
    server.script(hang)
    replies: list[httpx.Response] = []

    async def ask() -> None:
        replies.append(await client.get("/b/k ü"))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask)
        await hang.reached.wait()
        assert server.sent_bytes.get("b/k ü", 0) == (after_body_bytes or 0)
        assert not replies
        hang.resume.set()
    assert replies[0].content == BODY


async def test_tap(server: ScriptedServer, client: httpx.AsyncClient) -> None:
    tap = faults.Tap(4000)
    server.script(tap)
    tap.flow()
    sizes = []
    async with client.stream("GET", "/b/k ü") as reply:
        async for chunk in reply.aiter_raw():
            sizes.append(len(chunk))
            tap.flow()
    assert sizes == [4000, 4000, 2240]


async def test_killed(server: ScriptedServer, client: httpx.AsyncClient) -> None:
    hang = faults.Hang(after_body_bytes=5000)
    server.script(hang)
    async with client.stream("GET", "/b/k ü") as reply:
        await hang.reached.wait()
        server.kill()
        with pytest.raises(httpx.TransportError):
            await reply.aread()
    with pytest.raises(httpx.ConnectError):
        await client.get("/b/k ü")
