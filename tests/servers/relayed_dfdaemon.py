"""A real dfdaemon with the face of the fake: what a test of `tests.servers.dfdaemon` looks at and scripts, in front of the real proxy.

Hands each request on as it came and streams the reply back. So the tests that are written against the fake run against the real thing,
and a fault can spoil what the real one says. `kill` ends this relay, which a client cannot tell from the daemon's end.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Self

import trio

from d7yfs.errors import D7yfsError
from d7yfs.fetch.transport import Transport
from tests.servers.http11 import Answer, BodyLost, HttpServer, Request

_CHUNK_BYTES = 1 << 20
_OURS = frozenset({"host", "user-agent", "connection"})
"""What `Transport` writes itself; the User-Agent of the test's client is not what is looked at."""
_OF_THE_CONNECTION = frozenset({"connection", "keep-alive", "transfer-encoding"})


class RelayedDfdaemon(HttpServer):
    """Before the real proxy at `proxy_url`. `tasks` are the ids of its replies that succeeded, with their status."""

    def __init__(self, proxy_url: str) -> None:
        super().__init__()
        self.tasks: dict[str, int] = {}
        self._proxy_url = proxy_url
        self._transport = Transport(user_agent="relay")
        self._replies: trio.Nursery | None = None

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Self]:
        async with trio.open_nursery() as nursery:
            self._replies = nursery
            async with super().running():
                try:
                    yield self
                finally:
                    nursery.cancel_scope.cancel()
                    await self._transport.aclose()

    async def answer(self, request: Request) -> Answer:
        if request.method != "GET" or not request.absolute:
            return Answer(400, {"X-Dragonfly-Error-Type": "proxy"})
        assert self._replies
        send, receive = trio.open_memory_channel[bytes | None](0)
        try:
            status, headers = await self._replies.start(self._relay, request, send)
        except D7yfsError:
            raise BodyLost from None
        if status < 400 and "X-Dragonfly-Task-Id" in headers:
            self.tasks[headers["X-Dragonfly-Task-Id"]] = status

        async def read() -> bytes:
            try:
                chunk = await receive.receive()
            except trio.EndOfChannel:
                return b""
            if chunk is None:
                raise BodyLost
            return chunk

        return Answer(status, headers, read)

    async def _relay(
        self,
        request: Request,
        send: trio.MemorySendChannel[bytes | None],
        task_status: trio.TaskStatus[tuple[int, dict[str, str]]],
    ) -> None:
        """Whose client has left stays until the server ends, as does its download in dfdaemon until it is complete."""
        headers = {name: value for name, value in request.headers.items() if name not in _OURS}
        started = False
        async with send:
            try:
                async with self._transport.get(request.target, headers, via=self._proxy_url) as reply:
                    kept = {
                        _spelled(name): reply.headers[name] for name in reply.headers if name not in _OF_THE_CONNECTION
                    }
                    assert reply.content_length is not None, "dfdaemon tells the length of every body"
                    task_status.started((reply.status, {"Content-Length": str(reply.content_length), **kept}))
                    started = True
                    buffer = bytearray(_CHUNK_BYTES)
                    while count := await reply.receive_into(memoryview(buffer)):
                        await send.send(bytes(buffer[:count]))
            except D7yfsError:
                if not started:
                    raise
                await send.send(None)


def _spelled(name: str) -> str:
    """As `Answer` and the faults spell it."""
    return "ETag" if name == "etag" else name.title()
