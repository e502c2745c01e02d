"""A real dfdaemon behind the interface of the fake: tests of `tests.servers.dfdaemon` can run
against the real proxy.

It hands on each request unchanged and streams the reply back. A fault can spoil the real reply.
`kill` ends this relay, which a client cannot tell from the daemon's end.
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
"""Headers that `Transport` writes itself; the tests do not check their client's User-Agent."""
_OF_THE_CONNECTION = frozenset({"connection", "keep-alive", "transfer-encoding"})


class RelayedDfdaemon(HttpServer):
    """A relay in front of the real proxy at `proxy_url`; `tasks` has the ids of its successful
    replies, with their status.
    """

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
        """Relay one reply. Without its client it stays until the server ends, as its download in
        dfdaemon goes on until it is complete.
        """
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
    """The name in the spelling of `Answer` and the faults."""
    return "ETag" if name == "etag" else name.title()
