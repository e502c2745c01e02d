"""The network of the simulation: connections in memory, in place of
`d7yfs.fetch.connection.Connection`, and their faults.

A connection delivers the store's bytes in order, in pieces of random sizes at random moments. It
may be refused, reset, closed or silent at a random place. Another server may answer in the store's
place. A connection to a proxy answers as dfdaemon does: for a task, by its id.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import h11
import trio

from d7yfs.fetch import dragonfly_task
from d7yfs.fetch.connection import Peer
from tests.simulation.store import Store

PAGE = b"<html><body>" + b"Log in! " * 2000


@dataclass(slots=True)
class Sent:
    """The outcome of a connection: bytes, then its end."""

    data: bytes
    end: str = "open"
    """`open` for the next request, `closed`, `reset`, or `silent` forever."""


@dataclass
class Network:
    """The state that the connections of all daemons share; `faults` is the probability of a spoilt
    reply, from 0 to 1.
    """

    store: Store
    chance: random.Random
    faults: float = 0.0
    faulty_at: float = float("-inf")
    """The time of the latest fault."""
    refuses_proxy: bool = False
    ignores_conditions: bool = False
    """True if the store ignores If-Match, like `rclone serve s3`: it sends the current object under
    its own ETag.
    """
    loses: bool = False
    """True if there is a relay that loses bytes."""
    lossy: bool = False
    """True if the relay has lost bytes: a reader may have got wrong bytes once, but none stay in
    the end.
    """
    replies: dict[str, int] = field(default_factory=dict)
    """The number of replies of each kind."""
    record: Callable[..., None] = lambda *_: None
    """Called with each reply."""
    tasks: dict[str, tuple[bytes, str]] = field(default_factory=dict)
    """The tasks that dfdaemon knows, by id: body and ETag. It never revalidates them."""

    def spoils(self) -> bool:
        """True if the next reply is spoilt."""
        if self.chance.random() >= self.faults:
            return False
        self.faulty_at = trio.current_time()
        return True

    def note(self, kind: str) -> None:
        self.replies[kind] = self.replies.get(kind, 0) + 1

    def answer(self, peer: Peer, request: h11.Request) -> Sent:
        """The reply to `request` as it leaves the store at this moment, spoilt or not."""
        headers = {name.decode().lower(): value.decode() for name, value in request.headers}
        key = urlsplit(request.target.decode()).path.removeprefix("/models/")
        url = request.target.decode()
        status, found, body = self._through_proxy(url, key, headers) if peer.proxy else self._from_store(key, headers)
        said = key, headers.get("range", "whole"), headers.get("if-match"), status, "proxy" if peer.proxy else ""
        if not self.spoils():
            self.note("honest")
            self.record("honest", *said)
            return Sent(self._coded(status, found, body))
        kind = self.chance.choice(list(_SPOILT))
        if kind == "losing" and not self.loses:
            kind = "closed"
        self.note(kind)
        self.record(kind, *said)
        return _SPOILT[kind](self, status, found, body)

    def _from_store(self, key: str, headers: dict[str, str]) -> tuple[int, dict[str, str], bytes]:
        version = self.store.current(key)
        if version is None:
            return 404, {}, b"<Code>NoSuchKey</Code>"
        if headers.get("if-match", version.validator) != version.validator and not self.ignores_conditions:
            return 412, {}, b"<Code>PreconditionFailed</Code>"
        return _ranged(self.store.body(version), version.validator, headers)

    def _through_proxy(self, url: str, key: str, headers: dict[str, str]) -> tuple[int, dict[str, str], bytes]:
        content = headers.get("x-dragonfly-content-for-calculating-task-id", "")
        tag = headers.get("x-dragonfly-tag", "")
        task = dragonfly_task.task_id_of_content(content) if content else dragonfly_task.task_id(url, (), tag)
        if task not in self.tasks:
            version = self.store.current(key)
            if version is None:
                return 404, {"x-dragonfly-error-type": "backend"}, b""
            if headers.get("if-match", version.validator) != version.validator:
                return 412, {"x-dragonfly-error-type": "backend"}, b""
            self.tasks[task] = self.store.body(version), version.validator
        status, found, body = _ranged(*self.tasks[task], headers)
        return status, found | {"x-dragonfly-task-id": task}, body

    def _coded(self, status: int, headers: dict[str, str], body: bytes) -> bytes:
        """The reply in one of the codings that an honest server may choose."""
        how = self.chance.random()
        if how < 0.1:
            size = self.chance.choice((1000, 5000, 1 << 20))
            chunks = [body[start : start + size] for start in range(0, len(body), size)]
            coded = b"".join(b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in chunks) + b"0\r\n\r\n"
            return _head(status, headers | {"Transfer-Encoding": "chunked"}) + coded
        return _head(status, headers | {"Content-Length": str(len(body))}) + body


def _ranged(body: bytes, etag: str, headers: dict[str, str]) -> tuple[int, dict[str, str], bytes]:
    if "range" not in headers:
        return 200, {"ETag": etag}, body
    first, last = headers["range"].removeprefix("bytes=").split("-")
    start, stop = int(first), min(int(last) + 1 if last else len(body), len(body))
    if start >= stop:
        return 416, {}, b""
    return 206, {"ETag": etag, "Content-Range": f"bytes {start}-{stop - 1}/{len(body)}"}, body[start:stop]


def _head(status: int, headers: dict[str, str]) -> bytes:
    return "\r\n".join([f"HTTP/1.1 {status} x", *(f"{n}: {v}" for n, v in headers.items()), "", ""]).encode()


Spoil = Callable[[Network, int, dict[str, str], bytes], Sent]


def _broken(end: str) -> Spoil:
    def spoil(network: Network, status: int, headers: dict[str, str], body: bytes) -> Sent:
        whole = _head(status, headers | {"Content-Length": str(len(body))}) + body
        return Sent(whole[: network.chance.randrange(len(whole) + 1)], end)

    return spoil


def _losing(network: Network, status: int, headers: dict[str, str], body: bytes) -> Sent:
    """Lose some bytes in mid-stream, like a faulty relay."""
    at = network.chance.randrange(len(body) + 1)
    lost = network.chance.choice((1, 100, 5000))
    network.lossy = network.lossy or bool(body[at : at + lost])
    return Sent(_head(status, headers | {"Content-Length": str(len(body))}) + body[:at] + body[at + lost :], "closed")


def _other_head(more: dict[str, str]) -> Spoil:
    def spoil(network: Network, status: int, headers: dict[str, str], body: bytes) -> Sent:
        changed = headers | {"Content-Length": str(len(body))} | more
        return Sent(_head(status, {name: value for name, value in changed.items() if value}) + body)

    return spoil


def _shifted(network: Network, status: int, headers: dict[str, str], body: bytes) -> Sent:
    """Send other bytes of the same version than asked for, with a matching head."""
    if "Content-Range" not in headers or len(body) < 2:
        return Sent(_head(status, headers | {"Content-Length": str(len(body))}) + body)
    span, total = headers["Content-Range"].removeprefix("bytes ").split("/")
    first, last = map(int, span.split("-"))
    moved = headers | {"Content-Range": f"bytes {first + 1}-{last + 1}/{total}", "Content-Length": str(len(body))}
    return Sent(_head(status, moved) + body[1:] + b"?")


def _page(status: int, headers: dict[str, str] | None = None) -> Spoil:
    def spoil(network: Network, _status: int, found: dict[str, str], body: bytes) -> Sent:
        size = network.chance.choice((len(body), 3000, 0))
        page = (PAGE * (size // len(PAGE) + 1))[:size]
        if network.chance.random() < 0.3:
            return Sent(_head(status, {"Content-Type": "text/html", **(headers or {})}) + page, "closed")
        return Sent(_head(status, {"Content-Length": str(len(page)), **(headers or {})}) + page)

    return spoil


def _surplus(network: Network, status: int, headers: dict[str, str], body: bytes) -> Sent:
    return Sent(_head(status, headers | {"Content-Length": str(len(body))}) + body + b"HTTP/1.1 200 OK\r\n")


def _longer(network: Network, status: int, headers: dict[str, str], body: bytes) -> Sent:
    return Sent(_head(status, headers) + body + b"more", "closed")


_SPOILT: dict[str, Spoil] = {
    "closed": _broken("closed"),
    "closed again": _broken("closed"),
    "reset": _broken("reset"),
    "reset again": _broken("reset"),
    "silent": _broken("silent"),
    "losing": _losing,
    "surplus": _surplus,
    "longer": _longer,
    "page": _page(200),
    "page 206": _page(206),
    "page 404": _page(404),
    "page 412": _page(412),
    "page 503": _page(503),
    "page with an ETag": _page(200, {"ETag": '"page"'}),
    "no ETag": _other_head({"ETag": ""}),
    "weak ETag": _other_head({"ETag": 'W/"0-1"'}),
    "no range": _other_head({"Content-Range": ""}),
    "other range": _shifted,
    "other total": _other_head({"Content-Range": "bytes 1-2/3"}),
    "other length": _other_head({"Content-Length": "7"}),
}


def connection_in(network: Network) -> type:
    """The class that replaces `Connection`, over this network."""

    class SimulatedConnection:
        def __init__(self, peer: Peer) -> None:
            self.peer = peer
            self.idle_since = 0.0
            self.tunnel = None
            self._http = h11.Connection(h11.SERVER)
            self._request: h11.Request | None = None
            self._sent = Sent(b"")
            self._position = 0
            self._closed = False

        @classmethod
        async def open(cls, peer: Peer, trust: object, *, timeout_s: float, movers: object) -> SimulatedConnection:
            chance = network.chance
            await trio.sleep(chance.choice((0.0, 0.001, 0.02)))
            if (peer.proxy and network.refuses_proxy) or (network.faults and chance.random() < network.faults / 4):
                network.faulty_at = trio.current_time()
                raise peer.failure(f"cannot connect to {peer}: refused")
            return cls(peer)

        async def send(self, data: bytes) -> None:
            await trio.sleep(network.chance.choice((0.0, 0.0, 0.002)))
            assert not self._closed
            if self._sent.end != "open":
                raise BrokenPipeError
            http = h11.Connection(h11.SERVER)
            http.receive_data(data)
            request = http.next_event()
            assert isinstance(request, h11.Request)
            self._request = request

        async def receive_into(self, buffer: memoryview) -> int:
            assert not self._closed
            chance = network.chance
            await trio.sleep(chance.choice((0.0, 0.0, 0.0, 0.001, 0.004, 0.05)))
            if self._request is not None:
                request, self._request = self._request, None
                late = self._sent.data[self._position :]
                self._sent, self._position = network.answer(self.peer, request), 0
                self._sent.data = late + self._sent.data
            rest = len(self._sent.data) - self._position
            if not rest:
                if self._sent.end == "reset":
                    raise ConnectionResetError
                if self._sent.end == "closed":
                    return 0
                network.faulty_at = max(network.faulty_at, trio.current_time())
                await trio.sleep_forever()
            count = min(len(buffer), rest, chance.choice((1, 100, 1460, 9000, 1 << 20, 1 << 20)))
            buffer[:count] = self._sent.data[self._position : self._position + count]
            self._position += count
            return count

        def work(self) -> None:
            pass

        def rest(self) -> None:
            self.idle_since = trio.current_time()

        def has_unread(self) -> bool:
            # Only bytes that have arrived by now count.
            return network.chance.random() < 0.7 and (
                self._position < len(self._sent.data) or self._sent.end in ("closed", "reset")
            )

        def close(self) -> None:
            self._closed = True

    return SimulatedConnection
