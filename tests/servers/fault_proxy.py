"""A reverse proxy whose replies a test can spoil, for answers that a real store cannot be made to
give.

It hands on each request unchanged: the target byte for byte, with `Host`, so that signatures hold.
It takes the whole reply, and the faults of `tests.servers.faults` decide the bytes that the client
sees. It sends a request in absolute form to its URL's host, as a forward proxy.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Self
from urllib.parse import urlsplit

import httpx

from tests.servers.http11 import Answer, HttpServer, Request

_OF_THE_CONNECTION = frozenset({"connection", "keep-alive", "transfer-encoding", "proxy-connection"})


class FaultProxy(HttpServer):
    """A proxy in front of the server at `upstream_url`; empty for a forward proxy only."""

    def __init__(self, upstream_url: str = "") -> None:
        super().__init__()
        self._upstream_url = upstream_url
        self._client: httpx.AsyncClient

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Self]:
        async with httpx.AsyncClient(trust_env=False, verify=False, timeout=30) as self._client, super().running():
            yield self

    async def answer(self, request: Request) -> Answer:
        there = urlsplit(request.target if request.absolute else self._upstream_url)
        target = request.target.removeprefix(f"{there.scheme}://{there.netloc}")
        headers = {name: value for name, value in request.headers.items() if name not in _OF_THE_CONNECTION}
        sent = httpx.Request(
            request.method,
            f"{there.scheme}://{there.netloc}",
            headers=headers,
            content=request.body or None,
            extensions={"target": target.encode("latin-1")},  # Without it, httpx would normalise the target.
        )
        async with aclosing(await self._client.send(sent, stream=True)) as reply:
            body = b"".join([chunk async for chunk in reply.aiter_raw()])
        return Answer(reply.status_code, {_spelled(name): value for name, value in _kept(reply)}, body)


def _kept(reply: httpx.Response) -> list[tuple[str, str]]:
    return [(name, value) for name, value in reply.headers.items() if name not in _OF_THE_CONNECTION]


def _spelled(name: str) -> str:
    """The name in the spelling of `Answer` and the faults: httpx has all names in lower case."""
    return "ETag" if name == "etag" else name.title()
