"""The HTTP listener for Prometheus, for probes and for people: /metrics, /healthz, /readyz, /. It changes
nothing.

A mount never fails because of it: a port that is taken, a scraper that hangs and a page that fails
are logged, and the mount goes on. Each reply ends its connection. There is no authentication: it
listens on loopback unless told otherwise, and tells no secret.

Run by `reporter`.
"""

from __future__ import annotations

import json
import logging
import math
import socket
from collections.abc import Awaitable, Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass

import h11
import trio

from d7yfs.errors import MountError
from d7yfs.host.acceptor import accept_clients

log = logging.getLogger(__name__)

_HEAD_TIMEOUT_S = 2.0
_PATIENCE_S = 20.0
"""Longest time for one connection; a probe takes less."""
_CONNECTIONS = 64
"""Most connections at once; a further one takes the place of the oldest."""
_RECEIVE_BYTES = 4096
RENDER_PERIOD_S = 1.0


@dataclass(frozen=True, slots=True)
class HttpPage:
    """The answer to a GET."""

    status: int
    content_type: str
    body: bytes
    headers: tuple[tuple[str, str], ...] = ()
    """Beside those about the body."""

    @classmethod
    def of_json(cls, status: int, value: object) -> HttpPage:
        return cls(status, "application/json", json.dumps(value).encode() + b"\n")


class SharedPage:
    """A page that is rendered in a worker thread, once for all who ask within a second: to render takes the
    interpreter from readers. `prepare` returns what the thread has to do."""

    def __init__(self, prepare: Callable[[], Callable[[], HttpPage]]) -> None:
        self._prepare = prepare
        self._rendering = trio.Lock()
        self._page = HttpPage(500, "", b"")
        self._rendered_at = -math.inf

    async def show(self) -> HttpPage:
        """The page, at most `RENDER_PERIOD_S` old."""
        async with self._rendering:
            if trio.current_time() - self._rendered_at >= RENDER_PERIOD_S:
                self._page = await trio.to_thread.run_sync(self._prepare())
                self._rendered_at = trio.current_time()
        return self._page


Handler = Callable[[], Awaitable[HttpPage]]


def listen(address: str) -> trio.SocketListener:
    """Listen on `IP:PORT`; `[::]` means IPv4 too, in spite of the system. Raises MountError."""
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    with ExitStack() as stack:
        try:
            made = stack.enter_context(
                socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
            )
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if made.family is socket.AF_INET6:
                made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            made.bind((host, int(port)))
            made.listen(_CONNECTIONS)
        except OSError as error:
            raise MountError(
                f"no metrics: {address} cannot be listened on: {error.strerror}",
                hint="another mount may have it: give each one an address of its own (--metrics-listen)",
            ) from error
        stack.pop_all()
        return trio.SocketListener(trio.socket.from_stdlib_socket(made))


async def serve(listener: trio.SocketListener, handlers: Mapping[str, Handler]) -> None:
    """Answer GETs of the paths in `handlers` until cancelled."""

    async def answer(stream: trio.SocketStream) -> None:
        with trio.move_on_after(_PATIENCE_S):
            try:
                await _answer(stream, handlers)
            except (h11.RemoteProtocolError, h11.LocalProtocolError) as error:
                log.debug("metrics: a connection was given up: %s", error)

    with listener.socket:
        await accept_clients(listener.socket, answer, limit=_CONNECTIONS)


async def _answer(stream: trio.SocketStream, handlers: Mapping[str, Handler]) -> None:
    connection = h11.Connection(h11.SERVER, max_incomplete_event_size=16 << 10)
    event = None
    with trio.move_on_after(_HEAD_TIMEOUT_S):
        while (event := connection.next_event()) is h11.NEED_DATA:
            connection.receive_data(await stream.receive_some(_RECEIVE_BYTES))
    if not isinstance(event, h11.Request):
        return
    page = await _page(event, handlers)
    about_body = (("Content-Type", page.content_type), ("Content-Length", str(len(page.body))))
    headers = [*about_body, *page.headers, ("Connection", "close")]
    reply = connection.send(h11.Response(status_code=page.status, headers=headers)) or b""
    if event.method != b"HEAD":
        reply += connection.send(h11.Data(page.body)) or b""
    await stream.send_all(reply)


async def _page(request: h11.Request, handlers: Mapping[str, Handler]) -> HttpPage:
    if request.method not in (b"GET", b"HEAD"):
        return HttpPage.of_json(405, {"error": "only GET"})
    handler = handlers.get(request.target.partition(b"?")[0].decode("ascii", "replace"))
    if handler is None:
        return HttpPage.of_json(404, {"error": f"known: {', '.join(sorted(handlers))}"})
    try:
        return await handler()
    except Exception as error:
        log.exception("metrics: %s failed unexpectedly", request.target.decode("ascii", "replace"))
        return HttpPage.of_json(500, {"error": f"unexpected {type(error).__name__}; see the log"})
