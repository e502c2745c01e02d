"""HTTP/1.1 GET that receives bodies straight into the caller's buffer, on connections that are kept
alive.

Owns the sockets of the data plane: connecting, the idle pool, body framing, timeouts. `http_heads`
has the heads. Knows neither ranges nor retries nor signatures: the fetcher, its only caller, decides
what to ask and what a status means. One Transport serves any number of origins and proxies; the
caller bounds how many requests run at once.

Invariants:

- A connection is in the idle pool, or belongs to one reply, or is closed. It returns to the pool
  only after its reply was read to the end and nothing more came. In any other case (error,
  cancellation, surplus bytes) it is closed.
- A reader gets exactly the bytes that the framing promises, or an error: a body never ends early in
  silence.
- Errors name host and port; never a URL, a path, a query or a header's value, which may hold
  signatures.
- The environment (proxies, .netrc) is never consulted.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial

import h11
import trio

from d7yfs.errors import D7yfsError, MoverLost
from d7yfs.fetch.connection import Connection, Peer
from d7yfs.fetch.http_heads import GetRequest, NoReply, ReplyHead, exchange_heads, make_request
from d7yfs.movers.pool import MoverPool
from d7yfs.movers.protocol import Ending
from d7yfs.movers.tunnel_end import TunnelEnd
from d7yfs.tls import Trust

_FIRST_RECEIVE_BYTES = 136 << 10
"""Bytes to receive with a head: most small objects whole."""
_KEPT_BUFFERS = 32
_PARSED_RECEIVE_BYTES = 256 << 10
_DRAIN_LIMIT_BYTES = 64 << 10
_DRAIN_RECEIVE_BYTES = 16 << 10
_DRAIN_TIMEOUT_S = 0.25
"""A rest that takes longer than this to come costs more than a new connection."""
_IDLE_LIMIT_S = 60.0
"""Longer than a pause between two reads of a loading model, shorter than NAT gateways take to
forget a flow in silence."""
_READY_S = 20.0
"""Interval in seconds at which a connection is made ready, …"""
_LONGEST_PAUSE_S = 600.0
"""… and the longest one while the peer cannot be reached."""


class Response:
    """A reply whose head has come; `receive` reads its body, inside its `async with`."""

    def __init__(
        self, connection: Connection, head: ReplyHead, idle_timeout_s: float, give_back: Callable[[], None]
    ) -> None:
        """The first bytes of the body may lie in memory that is lent until `give_back` is called."""
        self.status = head.status
        self.headers = head.headers
        self.content_length = head.content_length
        """Size of the body in bytes; None when only its end tells (chunked, or a closed
        connection)."""
        self.received_bytes = 0
        """Bytes of the body handed out so far."""
        self._connection = connection
        self._http = head.http
        self._idle_timeout_s = idle_timeout_s
        self._ended = False
        self._give_back: Callable[[], None] | None = give_back
        self._early = memoryview(b"")
        self._keep_alive = head.keep_alive
        if self.content_length is not None:
            self._early = head.arrived[: self.content_length]
            self._keep_alive &= len(head.arrived) <= self.content_length

    async def receive(self, buffer: memoryview) -> memoryview:
        """Receive at most `len(buffer)` bytes of the body; none when it has ended, never before.

        They lie in `buffer`, or where they came with the head: then until more is received, or the
        reply is left. `buffer` must not be empty. Raises OriginUnavailable or ProxyUnavailable when
        nothing comes for the idle timeout or the body is cut off, BadReply when the chunked coding
        is broken.
        """
        if not buffer:
            raise ValueError("there must be room for at least one byte")
        if self.content_length is not None:
            buffer = buffer[: self.content_length - self.received_bytes]
        elif not self._early:
            await self._parse()
        if not buffer or (self._ended and not self._early):
            return buffer[:0]
        if self._early:
            received = self._early[: len(buffer)]
            self._early = self._early[len(buffer) :]
        else:
            self.give_back()
            received = buffer[: await self._receive_into(buffer)]
            if not received:
                raise self._cut_off("closed the connection")
        self.received_bytes += len(received)
        return received

    async def receive_into(self, buffer: memoryview) -> int:
        """`receive`, into `buffer` in any case; returns how many bytes."""
        received = await self.receive(buffer)
        if received.obj is not buffer.obj:
            buffer[: len(received)] = received
        return len(received)

    def give_back(self) -> None:
        """Give back the memory that was lent for what came with the head."""
        if self._give_back is not None:
            self._give_back()
            self._give_back = None

    @property
    def rest_fd(self) -> int | None:
        """The descriptor of the connection from which another process may receive the rest of the
        body; None while some of it is here, or where it comes in a coding or by TLS that ends here."""
        if self.content_length is None or self._early:
            return None
        return self._connection.plain_fd

    @property
    def tunnel(self) -> TunnelEnd | None:
        """The tunnel by which the body comes, if it does."""
        return self._connection.tunnel

    @property
    def idle_timeout_s(self) -> float:
        return self._idle_timeout_s

    def moved(self, size_bytes: int) -> None:
        """Note that another process has received so many bytes of the body."""
        self.give_back()
        self.received_bytes += size_bytes

    def abandon(self) -> None:
        """Have the connection closed: another process has left it in the middle of the body."""
        self._keep_alive = False

    def failure(self, ending: Ending, number: int) -> D7yfsError:
        """The error for a body that another process could not receive to the end."""
        if ending is Ending.SILENT:
            return self._silence()
        return self._cut_off("broke the connection" if number else "closed the connection")

    async def read(self, limit_bytes: int) -> bytes:
        """Read the body, or its first `limit_bytes` (> 0). Raises as `receive_into`."""
        buffer = memoryview(bytearray(limit_bytes))
        filled = 0
        while filled < limit_bytes and (count := await self.receive_into(buffer[filled:])):
            filled += count
        return bytes(buffer[:filled])

    async def finish(self) -> bool:
        """Drop a small rest of the body. True if the connection may carry another request."""
        rest = _DRAIN_LIMIT_BYTES
        if self.content_length is not None:
            if self.content_length == self.received_bytes:
                return self._keep_alive
            if self.content_length - self.received_bytes > rest:
                return False
        scratch = memoryview(bytearray(_DRAIN_RECEIVE_BYTES))
        with trio.move_on_after(_DRAIN_TIMEOUT_S):
            while self._keep_alive and rest > 0:
                try:
                    count = await self.receive_into(scratch)
                except D7yfsError:
                    return False
                if count == 0:
                    return self._keep_alive
                rest -= count
        return False

    async def _receive_into(self, buffer: memoryview) -> int:
        try:
            with trio.fail_after(self._idle_timeout_s):
                return await self._connection.receive_into(buffer)
        except trio.TooSlowError:
            raise self._silence() from None
        except OSError as error:
            raise self._cut_off("broke the connection") from error

    async def _parse(self) -> None:
        """Let h11 take the transfer coding off: sets `_early` to the next bytes, or `_ended`."""
        assert self._http is not None
        scratch: memoryview | None = None
        while not (self._ended or self._early):
            try:
                event = self._http.next_event()
            except h11.RemoteProtocolError:
                # `from None`: h11 quotes what it could not parse.
                if self._http.trailing_data[1]:
                    raise self._cut_off("closed the connection") from None
                self._keep_alive = False
                raise self._connection.peer.bad_reply("sent a body in a broken chunked coding") from None
            if event is h11.NEED_DATA:
                scratch = scratch or memoryview(bytearray(_PARSED_RECEIVE_BYTES))
                self._http.receive_data(bytes(scratch[: await self._receive_into(scratch)]))
            elif isinstance(event, h11.Data):
                self._early = memoryview(event.data)
            elif isinstance(event, h11.EndOfMessage):
                self._ended = True
                self._keep_alive &= self._http.trailing_data == (b"", False)

    def _silence(self) -> D7yfsError:
        self._keep_alive = False
        peer = self._connection.peer
        return peer.failure(
            f"{peer} sent nothing for {self._idle_timeout_s:g} s in the middle of a body, after {self._progress()}"
        )

    def _cut_off(self, how: str) -> D7yfsError:
        self._keep_alive = False
        peer = self._connection.peer
        return peer.failure(f"{peer} {how}: the body was cut off after {self._progress()}")

    def _progress(self) -> str:
        total = "" if self.content_length is None else f" of {self.content_length}"
        return f"{self.received_bytes}{total} bytes"


class Transport:
    """A GET client and its pool of idle connections. Made by the daemon; trio thread only."""

    def __init__(
        self,
        *,
        connect_timeout_s: float = 10.0,
        first_byte_timeout_s: float = 30.0,
        idle_timeout_s: float = 30.0,
        max_idle_connections: int = 16,
        trust: Trust | None = None,
        movers: MoverPool | None = None,
        user_agent: str = "d7yfs",
    ) -> None:
        """`connect_timeout_s` bounds name lookup, TCP and TLS together; `first_byte_timeout_s` the
        request and the whole reply head; `idle_timeout_s` the time between two arrivals of a body.
        `trust` (default: the system's CAs) is for connections with TLS, which end in one of `movers`
        while one takes them.
        """
        self._connect_timeout_s = connect_timeout_s
        self._first_byte_timeout_s = first_byte_timeout_s
        self._idle_timeout_s = idle_timeout_s
        self._max_idle_connections = max_idle_connections
        self._trust = trust or Trust()
        self._movers = movers
        self._user_agent = user_agent
        self._open: set[Connection] = set()
        self._idle: list[Connection] = []
        """Most recently used last, all peers together."""
        self._buffers: list[bytearray] = []
        """Memory for heads, and for what comes with them: written from there to its file."""
        self._closed = False

    @asynccontextmanager
    async def get(
        self,
        url: str,
        headers: Mapping[str, str],
        *,
        via: str = "",
        for_mover: bool = False,
        head_alone: bool = False,
    ) -> AsyncIterator[Response]:
        """GET `url` and yield the reply once its head has come, with any status; redirects are not
        followed.

        `url` goes out byte for byte as given (path and query are signed), so it must be
        percent-encoded. `headers` adds to Host and User-Agent, which are ours; Accept-Encoding is
        identity unless it says otherwise. With `via`, the base URL of a plain HTTP proxy, the
        request goes there in absolute form (RFC 9112, 3.2.2); CONNECT is never used. `for_mover` says
        that the body is worth a mover: then it comes by a connection that is one's, if it can. With
        `head_alone` the body is left there, where that is possible.

        A request on a reused connection that was closed before the first byte of a reply is
        repeated once on a new one.

        Raises OriginUnavailable (through a proxy: ProxyUnavailable, as the connection to the proxy
        fails), OriginUntrusted, BadReply; ValueError for a URL or header that cannot be sent.
        """
        peer, request = make_request(url, headers, via, self._user_agent)
        response, connection = await self._start(peer, request, for_mover=for_mover, head_alone=head_alone)
        reusable = False
        try:
            try:
                yield response
            except Exception:
                # The caller refused the reply (a 403, say), which is no fault of the connection.
                reusable = await response.finish()
                raise
            reusable = await response.finish()
        finally:
            response.give_back()
            if reusable:
                self._put_idle(connection)
            else:
                self._discard(connection)

    async def connect(self, url: str, *, via: str = "", for_s: float = 0.0) -> None:
        """Have an idle connection ready for the next `get` of a similar `url`, within `for_s` seconds.
        Raises as `get`."""
        peer, _ = make_request(url, {}, via, self._user_agent)
        since = trio.current_time() + for_s - _IDLE_LIMIT_S
        for idle in [each for each in self._idle if each.peer == peer and each.has_unread()]:
            self._idle.remove(idle)
            self._discard(idle)
        if not self._closed and not any(each.peer == peer and each.idle_since >= since for each in self._idle):
            self._put_idle(await self._connect(peer))

    async def stay_connected(self, url: str) -> None:
        """Have an idle connection ready for a similar `url` after any pause. Runs until cancelled."""
        pause_s = _READY_S
        while True:
            await trio.sleep(pause_s)
            try:
                await self.connect(url, for_s=_READY_S)
                pause_s = _READY_S
            except D7yfsError:  # the next request will tell
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    async def aclose(self) -> None:
        """Close idle connections now, and those in use when their replies are done."""
        self._closed = True
        while self._idle:
            self._discard(self._idle.pop())

    async def _start(
        self, peer: Peer, request: GetRequest, *, for_mover: bool, head_alone: bool
    ) -> tuple[Response, Connection]:
        if (connection := self._take_idle(peer, for_mover=for_mover)) is not None:
            try:
                return await self._exchange(connection, request, head_alone=head_alone), connection
            except (NoReply, MoverLost):
                pass  # The peer closed it while it was idle, as it may; a GET can be repeated.
        connection = await self._connect(peer)
        try:
            return await self._exchange(connection, request, head_alone=head_alone), connection
        except NoReply as closed:
            raise peer.failure(f"{peer} closed the connection without a reply") from closed.__cause__

    async def _connect(self, peer: Peer) -> Connection:
        connection = await Connection.open(
            peer, self._trust if peer.tls else None, timeout_s=self._connect_timeout_s, movers=self._movers
        )
        self._open.add(connection)
        return connection

    async def _exchange(self, connection: Connection, request: GetRequest, *, head_alone: bool) -> Response:
        """Send `request` and receive the head of its reply. Any failure closes the connection."""
        peer = connection.peer
        buffer = self._buffers.pop() if self._buffers else bytearray(_FIRST_RECEIVE_BYTES)
        try:
            with trio.fail_after(self._first_byte_timeout_s):
                head = await exchange_heads(connection, request, buffer, head_alone=head_alone)
            return Response(connection, head, self._idle_timeout_s, partial(self._take_back, buffer))
        except trio.TooSlowError:
            self._discard(connection)
            raise peer.failure(
                f"{peer} did not reply within {self._first_byte_timeout_s:g} s (no first byte)"
            ) from None
        except BaseException:
            self._discard(connection)
            raise

    def _take_back(self, buffer: bytearray) -> None:
        if len(self._buffers) < _KEPT_BUFFERS:
            self._buffers.append(buffer)

    def _take_idle(self, peer: Peer, *, for_mover: bool) -> Connection | None:
        """Take the most recently used idle connection to `peer` on which nothing happened since."""
        self._expire_idle()
        for index in reversed(range(len(self._idle))):
            if self._idle[index].peer == peer:
                connection = self._idle.pop(index)
                unsuitable = for_mover and peer.tls and self._movers and not self._movers.suits(connection.tunnel)
                if not unsuitable and not connection.has_unread():
                    connection.work()
                    return connection
                self._discard(connection)  # or the peer has closed it, or sent bytes on it
        return None

    def _put_idle(self, connection: Connection) -> None:
        connection.rest()
        self._idle.append(connection)
        self._expire_idle()

    def _expire_idle(self) -> None:
        """Close idle connections that are too old, and those that are too many."""
        oldest = trio.current_time() - _IDLE_LIMIT_S
        most = 0 if self._closed else self._max_idle_connections
        while self._idle and (len(self._idle) > most or self._idle[0].idle_since < oldest):
            self._discard(self._idle.pop(0))

    def _discard(self, connection: Connection) -> None:
        self._open.discard(connection)
        connection.close()
