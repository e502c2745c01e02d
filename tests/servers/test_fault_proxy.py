"""The fault proxy changes only replies that a script names."""

from __future__ import annotations

from contextlib import aclosing

import httpx
import pytest

from d7yfs.fetch.transport import Transport
from tests.servers import faults
from tests.servers.fault_proxy import FaultProxy
from tests.servers.scripted import ScriptedServer

TARGET = "/b//a%20b%2Fc%25/+~%7E?X-Sig=%2B%2f&empty&y=1"
KEY = "b//a b/c%/+~~"


@pytest.mark.parametrize("forward", [False, True], ids=["reverse", "forward"])
async def test_requests_pass_as_they_are(forward: bool) -> None:
    async with (
        ScriptedServer({KEY: b"0123456789"}).running() as upstream,
        FaultProxy("" if forward else upstream.url).running() as proxy,
        aclosing(Transport()) as transport,
    ):
        url = f"{upstream.url if forward else proxy.url}{TARGET}"
        headers = {"Range": "bytes=2-4", "Authorization": "Some signature"}
        async with transport.get(url, headers, via=proxy.url if forward else "") as reply:
            assert (reply.status, await reply.read(99)) == (206, b"234")
            assert reply.headers["Content-Range"] == "bytes 2-4/10"
            assert reply.headers["ETag"] == upstream.etag(KEY)
        (seen,), (got,) = upstream.requests, proxy.requests
        assert seen.target == TARGET
        assert got.absolute == forward
        assert {name: seen.headers[name] for name in got.headers if name != "connection"} == dict(got.headers)


async def test_replies_can_be_spoilt() -> None:
    async with (
        ScriptedServer({"k": b"<Size>7654</Size>17654"}).running() as upstream,
        FaultProxy(upstream.url).running() as proxy,
        httpx.AsyncClient(trust_env=False, verify=False) as client,
    ):
        proxy.script(faults.resized(5, instead_of=7654), faults.with_headers({"Date": "then", "ETag": "other"}))
        assert (await client.get(f"{proxy.url}/k")).text == "<Size>5</Size>17654"
        spoilt = await client.get(f"{proxy.url}/k")
        assert spoilt.headers.get_list("ETag") == ["other"]
        assert spoilt.headers["Date"] == "then"
        assert (await client.get(f"{proxy.url}/k")).text == "<Size>7654</Size>17654"
