"""A tiny HTTP/1.1 server on 127.0.0.1 whose every reply a test can spoil: the base of the servers
in this package.

It reads requests properly and writes replies as raw bytes on purpose. A proper HTTP library would
refuse to send bodies cut short, surplus bytes and wrong lengths, which the tests need. Subclasses
answer in `answer`. A `Fault` decides how that answer goes out, or replaces it. The server waits on
events and never sleeps.
"""

from __future__ import annotations

import itertools
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Self
from urllib.parse import unquote, urlsplit

import trio


@dataclass(frozen=True, slots=True)
class Request:
    """One request as it came, with header names in lower case."""

    method: str
    target: str
    """The target as sent: a path, or a whole URL if this server is used as a proxy."""
    headers: Mapping[str, str]
    connection: int
    """The number of the request's connection, counted from 0."""
    body: bytes = b""

    @property
    def key(self) -> str:
        """The target's path, percent-decoded, without its first slash."""
        return unquote(urlsplit(self.target).path).removeprefix("/")

    @property
    def absolute(self) -> bool:
        return self.target.startswith(("http://", "https://"))


Chunks = Callable[[], Awaitable[bytes]]
"""A function that gives the next part of a body, empty at its end.

It is not an async generator, because one left half-way needs closing.
"""


class BodyLost(Exception):
    """Raised by a body that cannot go on: the server can only close the connection."""


@dataclass(slots=True)
class Answer:
    """The reply of an honest server. A body that is still to come needs its Content-Length among
    `headers`.
    """

    status: int
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes | Chunks = b""

    def __post_init__(self) -> None:
        if isinstance(self.body, bytes):
            self.headers = {"Content-Length": str(len(self.body)), **self.headers}

    def chunks(self) -> Chunks:
        if not isinstance(self.body, bytes):
            return self.body
        parts = iter((self.body,))

        async def read() -> bytes:
            await trio.lowlevel.checkpoint()
            return next(parts, b"")

        return read

    async def whole(self) -> bytes:
        read = self.chunks()
        whole = bytearray()
        while chunk := await read():
            whole += chunk
        return bytes(whole)


class Exchange:
    """One request and the raw connection for its answer."""

    def __init__(self, server: HttpServer, request: Request, stream: trio.abc.Stream, tcp: trio.SocketStream) -> None:
        self.request = request
        self.keep_alive = request.headers.get("connection", "").lower() != "close"
        self._server = server
        self._stream = stream
        self._tcp = tcp

    async def send(self, data: bytes) -> None:
        """Send raw bytes that do not count as body."""
        await self._stream.send_all(data)

    async def send_head(self, status: int, headers: Mapping[str, str]) -> None:
        lines = [
            f"HTTP/1.1 {status} {HTTPStatus(status).phrase}",
            *(f"{name}: {value}" for name, value in headers.items()),
        ]
        await self.send("\r\n".join([*lines, "", ""]).encode("latin-1"))

    async def send_body(self, data: bytes) -> None:
        if data:
            await self.send(data)
            self._server.sent_bytes[self.request.key] = self._server.sent_bytes.get(self.request.key, 0) + len(data)

    async def deliver(self, answer: Answer) -> None:
        """Send `answer` as an honest server does."""
        await self.send_head(answer.status, answer.headers)
        read = answer.chunks()
        while chunk := await read():
            await self.send_body(chunk)

    def hang_up(self) -> None:
        """Close after the bytes sent so far, whatever the head promised."""
        self.keep_alive = False

    def reset(self) -> None:
        """Break the connection with a TCP RST."""
        self._tcp.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._tcp.socket.close()
        self.keep_alive = False


Fault = Callable[[Exchange, Answer], Awaitable[None]]


class HttpServer:
    """A server that listens on 127.0.0.1 while its `running` context lasts, and records its
    requests.

    `script(*faults)` plans the next replies, for any key or for one. When the plan is used up,
    replies are honest again.
    """

    def __init__(self, ssl_context: ssl.SSLContext | None = None) -> None:
        self.requests: list[Request] = []
        self.sent_bytes: dict[str, int] = {}
        """Body bytes sent, by key."""
        self.connections = 0
        """Connections accepted so far."""
        self.port = 0
        self._ssl_context = ssl_context
        self._scripts: dict[str | None, Iterator[Fault]] = {}
        self._running: trio.Nursery | None = None
        self._nursery: trio.Nursery | None = None
        self._listeners: list[trio.SocketListener] = []

    async def answer(self, request: Request) -> Answer:
        """The honest answer to a request."""
        raise NotImplementedError

    @property
    def url(self) -> str:
        return f"{'https' if self._ssl_context else 'http'}://127.0.0.1:{self.port}"

    def script(self, *faults: Fault, key: str | None = None, forever: bool = False) -> None:
        """Answer the next requests (for `key`, else for any) with one fault each; `forever` repeats
        the last one.
        """
        self._scripts[key] = itertools.chain(faults, itertools.repeat(faults[-1]) if forever else ())

    def requests_for(self, key: str) -> list[Request]:
        return [request for request in self.requests if request.key == key]

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Self]:
        self._listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        self.port = self._listeners[0].socket.getsockname()[1]
        async with trio.open_nursery() as nursery:
            self._nursery, self._running = nursery, await nursery.start(self._accept)
            try:
                yield self
            finally:
                nursery.cancel_scope.cancel()

    def kill(self) -> None:
        """Stop like a killed process: open connections end, new ones are refused."""
        assert self._running
        self._running.cancel_scope.cancel()
        for listener in self._listeners:
            listener.socket.close()

    async def revive(self) -> None:
        """Listen again where `kill` has ended."""
        assert self._nursery
        self._listeners = await trio.open_tcp_listeners(self.port, host="127.0.0.1")
        self._running = await self._nursery.start(self._accept)

    async def _accept(self, task_status: trio.TaskStatus[trio.Nursery]) -> None:
        async with trio.open_nursery() as nursery:
            task_status.started(nursery)
            await trio.serve_listeners(self._serve, self._listeners, handler_nursery=nursery)

    async def _serve(self, tcp: trio.SocketStream) -> None:
        number, self.connections = self.connections, self.connections + 1
        stream: trio.abc.Stream = tcp
        if self._ssl_context:
            stream = trio.SSLStream(tcp, self._ssl_context, server_side=True, https_compatible=True)
        try:
            # The client may leave, reset or refuse the certificate at any time. The tests check its
            # view of that.
            with suppress(trio.BrokenResourceError, trio.ClosedResourceError, BodyLost):
                while (request := await _read_request(stream, number)) is not None:
                    self.requests.append(request)
                    exchange = Exchange(self, request, stream, tcp)
                    answer = await self.answer(request)
                    if fault := self._next_fault(request.key):
                        await fault(exchange, answer)
                    else:
                        await exchange.deliver(answer)
                    if not exchange.keep_alive:
                        break
        finally:
            with suppress(OSError):
                # Shut down before close(): unread request bytes would turn close() into a reset.
                tcp.socket.shutdown(socket.SHUT_WR)
            tcp.socket.close()

    def _next_fault(self, key: str) -> Fault | None:
        for scope in (key, None):
            if fault := next(self._scripts.get(scope, iter(())), None):
                return fault
        return None


async def _read_request(stream: trio.abc.Stream, connection: int) -> Request | None:
    head = b""
    while b"\r\n\r\n" not in head:
        received = await stream.receive_some(4096)
        if not received:
            return None
        head += received
    head, _, rest = head.partition(b"\r\n\r\n")
    request_line, *lines = head.decode("latin-1").split("\r\n")
    method, target, version = request_line.split(" ")
    assert version == "HTTP/1.1"
    fields = (line.partition(":") for line in lines)
    headers = {name.lower(): value.strip() for name, _, value in fields}
    body, length = bytearray(rest), int(headers.get("content-length", "0"))
    while len(body) < length:
        received = await stream.receive_some(1 << 16)
        if not received:
            return None
        body += received
    assert len(body) == length, "the client does not pipeline"
    return Request(method, target, headers, connection, bytes(body))
