"""HTTP/1.1 GET that receives bodies straight into the caller's buffer, on connections that are kept
alive.

Owns the sockets of the data plane: connecting, the idle pool, request and reply head (by h11), body
framing, timeouts. Knows neither ranges nor retries nor signatures: the fetcher, its only caller,
decides what to ask and what a status means. One Transport serves any number of origins and proxies;
the caller bounds how many requests run at once.

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

import ssl
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import h11
import trio

from d7yfs.errors import D7yfsError
from d7yfs.fetch.connection import Connection, Peer

_HEAD_LIMIT_BYTES = 64 << 10
_HEAD_RECEIVE_BYTES = 16 << 10
_PARSED_RECEIVE_BYTES = 256 << 10
_DRAIN_LIMIT_BYTES = 64 << 10
_DRAIN_TIMEOUT_S = 0.25
"""A rest that takes longer than this to come costs more than a new connection."""
_IDLE_LIMIT_S = 60.0
"""Longer than a pause between two reads of a loading model, shorter than NAT gateways take to
forget a flow in silence."""


class Headers(Mapping[str, str]):
    """The header fields of a reply by case-insensitive name; repeated ones are joined (RFC 9110,
    5.3).
    """

    def __init__(self, fields: Iterable[tuple[bytes, bytes]]) -> None:
        self._values: dict[str, str] = {}
        for name_bytes, value_bytes in fields:
            name, value = name_bytes.decode("ascii").lower(), value_bytes.decode("latin-1")
            self._values[name] = f"{self._values[name]}, {value}" if name in self._values else value

    def __getitem__(self, name: str) -> str:
        return self._values[name.lower()]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


class Response:
    """A reply whose head has come; `receive_into` reads its body, inside its `async with`."""

    def __init__(self, connection: Connection, http: h11.Connection, head: h11.Response, idle_timeout_s: float) -> None:
        self.status = head.status_code
        self.headers = Headers(head.headers)
        self.content_length = _content_length(self.status, self.headers)
        """Size of the body in bytes; None when only its end tells (chunked, or a closed
        connection)."""
        self.received_bytes = 0
        """Bytes of the body handed out so far."""
        self._connection = connection
        self._http = http
        self._idle_timeout_s = idle_timeout_s
        self._ended = False
        self._early = memoryview(b"")
        # h11 leaves DONE for MUST_CLOSE when the reply says `Connection: close` or speaks HTTP/1.0.
        self._keep_alive = http.our_state is h11.DONE
        if self.content_length is not None:
            arrived = memoryview(http.trailing_data[0])
            self._early = arrived[: self.content_length]
            self._keep_alive &= len(arrived) <= self.content_length

    async def receive_into(self, buffer: memoryview) -> int:
        """Receive at most `len(buffer)` bytes of the body; 0 when it has ended, never before.

        `buffer` must not be empty. Raises OriginUnavailable or ProxyUnavailable when nothing comes
        for the idle timeout or the body is cut off, BadReply when the chunked coding is broken.
        """
        if not buffer:
            raise ValueError("receive_into needs room for at least one byte")
        if self.content_length is not None:
            buffer = buffer[: self.content_length - self.received_bytes]
        elif not self._early:
            await self._parse()
        if not buffer or (self._ended and not self._early):
            return 0
        if self._early:
            count = min(len(buffer), len(self._early))
            buffer[:count] = self._early[:count]
            self._early = self._early[count:]
        else:
            count = await self._receive_into(buffer)
            if count == 0:
                raise self._cut_off("closed the connection")
        self.received_bytes += count
        return count

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
        scratch = memoryview(bytearray(_HEAD_RECEIVE_BYTES))
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
        peer = self._connection.peer
        try:
            with trio.fail_after(self._idle_timeout_s):
                return await self._connection.receive_into(buffer)
        except trio.TooSlowError:
            self._keep_alive = False
            raise peer.failure(
                f"{peer} sent nothing for {self._idle_timeout_s:g} s in the middle of a body, after {self._progress()}"
            ) from None
        except OSError as error:
            raise self._cut_off("broke the connection") from error

    async def _parse(self) -> None:
        """Let h11 take the transfer coding off: sets `_early` to the next bytes, or `_ended`."""
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
        ssl_context: Callable[[], ssl.SSLContext] = ssl.create_default_context,
        user_agent: str = "d7yfs",
    ) -> None:
        """`connect_timeout_s` bounds name lookup, TCP and TLS together; `first_byte_timeout_s` the
        request and the whole reply head; `idle_timeout_s` the time between two arrivals of a body.
        `ssl_context` (default: the system's CAs) is called for the first connection with TLS.
        """
        self._connect_timeout_s = connect_timeout_s
        self._first_byte_timeout_s = first_byte_timeout_s
        self._idle_timeout_s = idle_timeout_s
        self._max_idle_connections = max_idle_connections
        self._load_ssl_context = ssl_context
        self._ssl_context: ssl.SSLContext | None = None
        self._user_agent = user_agent
        self._open: set[Connection] = set()
        self._idle: list[Connection] = []
        """Most recently used last, all peers together."""
        self._closed = False

    @asynccontextmanager
    async def get(self, url: str, headers: Mapping[str, str], *, via: str = "") -> AsyncIterator[Response]:
        """GET `url` and yield the reply once its head has come, with any status; redirects are not
        followed.

        `url` goes out byte for byte as given (path and query are signed), so it must be
        percent-encoded. `headers` adds to Host and User-Agent, which are ours; Accept-Encoding is
        identity unless it says otherwise. With `via`, the base URL of a plain HTTP proxy, the
        request goes there in absolute form (RFC 9112, 3.2.2); CONNECT is never used.

        A request on a reused connection that was closed before the first byte of a reply is
        repeated once on a new one.

        Raises OriginUnavailable (through a proxy: ProxyUnavailable, as the connection to the proxy
        fails), OriginUntrusted, BadReply; ValueError for a URL or header that cannot be sent.
        """
        peer, request = _request(url, headers, via, self._user_agent)
        response, connection = await self._start(peer, request)
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
            if reusable:
                self._put_idle(connection)
            else:
                self._discard(connection)

    async def connect(self, url: str, *, via: str = "") -> None:
        """Have an idle connection ready for the first `get` of a similar `url`. Raises as `get`."""
        peer, _ = _request(url, {}, via, self._user_agent)
        if not self._closed and all(connection.peer != peer for connection in self._idle):
            self._put_idle(await self._connect(peer))

    async def aclose(self) -> None:
        """Close idle connections now, and those in use when their replies are done."""
        self._closed = True
        while self._idle:
            self._discard(self._idle.pop())

    async def _start(self, peer: Peer, request: h11.Request) -> tuple[Response, Connection]:
        if (connection := self._take_idle(peer)) is not None:
            try:
                return await self._exchange(connection, request), connection
            except _NoReply:
                pass  # The peer closed it while it was idle, as it may; a GET can be repeated.
        connection = await self._connect(peer)
        try:
            return await self._exchange(connection, request), connection
        except _NoReply as closed:
            raise peer.failure(f"{peer} closed the connection without a reply") from closed.__cause__

    async def _connect(self, peer: Peer) -> Connection:
        connection = await Connection.open(peer, self._tls() if peer.tls else None, timeout_s=self._connect_timeout_s)
        self._open.add(connection)
        return connection

    async def _exchange(self, connection: Connection, request: h11.Request) -> Response:
        """Send `request` and receive the head of its reply. Any failure closes the connection."""
        # One h11 state per exchange: a body that bypasses it would leave it behind.
        http = h11.Connection(h11.CLIENT, max_incomplete_event_size=_HEAD_LIMIT_BYTES)
        peer = connection.peer
        try:
            with trio.fail_after(self._first_byte_timeout_s):
                head = await _exchange_heads(connection, http, request)
            return Response(connection, http, head, self._idle_timeout_s)
        except trio.TooSlowError:
            self._discard(connection)
            raise peer.failure(
                f"{peer} did not reply within {self._first_byte_timeout_s:g} s (no first byte)"
            ) from None
        except BaseException:
            self._discard(connection)
            raise

    def _tls(self) -> ssl.SSLContext:
        # Late: loading the system's CAs takes tens of milliseconds that plain http saves.
        if self._ssl_context is None:
            self._ssl_context = self._load_ssl_context()
            self._ssl_context.set_alpn_protocols(["http/1.1"])
        return self._ssl_context

    def _take_idle(self, peer: Peer) -> Connection | None:
        """Take the most recently used idle connection to `peer` on which nothing happened since."""
        self._expire_idle()
        for connection in reversed(self._idle):
            if connection.peer == peer:
                self._idle.remove(connection)
                return connection
        return None

    def _put_idle(self, connection: Connection) -> None:
        connection.idle_since = trio.current_time()
        self._idle.append(connection)
        self._expire_idle()

    def _expire_idle(self) -> None:
        """Close idle connections that the peer closed or sent bytes on, too old ones, too many."""
        oldest = trio.current_time() - _IDLE_LIMIT_S
        surplus = len(self._idle) if self._closed else len(self._idle) - self._max_idle_connections
        for index, connection in enumerate(list(self._idle)):
            if index < surplus or connection.idle_since < oldest or connection.has_unread():
                self._idle.remove(connection)
                self._discard(connection)

    def _discard(self, connection: Connection) -> None:
        self._open.discard(connection)
        connection.close()


class _NoReply(Exception):
    """The connection ended before the first byte of a reply."""


async def _exchange_heads(connection: Connection, http: h11.Connection, request: h11.Request) -> h11.Response:
    peer = connection.peer
    received_bytes = 0
    scratch = memoryview(bytearray(_HEAD_RECEIVE_BYTES))
    try:
        await connection.send((http.send(request) or b"") + (http.send(h11.EndOfMessage()) or b""))
        while True:
            event = http.next_event()
            if isinstance(event, h11.Response):
                return event
            if isinstance(event, h11.InformationalResponse):
                continue  # 100, 102, 103: the reply proper follows.
            if received_bytes == _HEAD_LIMIT_BYTES:
                raise peer.bad_reply(f"sent a reply head of more than {_HEAD_LIMIT_BYTES >> 10} KiB")
            count = await connection.receive_into(scratch[: _HEAD_LIMIT_BYTES - received_bytes])
            if count == 0 and received_bytes == 0:
                raise _NoReply
            received_bytes += count
            http.receive_data(bytes(scratch[:count]))
    except OSError as error:
        if received_bytes == 0:
            raise _NoReply from error
        raise peer.failure(f"{peer} broke the connection in the reply head") from error
    except h11.RemoteProtocolError:
        # `from None`: h11 quotes what it could not parse, which may be a header's value.
        if http.trailing_data[1]:
            raise peer.failure(f"{peer} closed the connection in the reply head") from None
        raise peer.bad_reply("sent a reply head that is not HTTP/1.1") from None


def _request(url: str, headers: Mapping[str, str], via: str, user_agent: str) -> tuple[Peer, h11.Request]:
    """The address and the request. ValueErrors are the caller's bugs and quote nothing."""
    origin, authority, target = _split(url)
    peer = origin
    if via:
        proxy, _, _ = _split(via)
        if proxy.tls:
            raise ValueError("a proxy is reached in plain http")
        peer = Peer(proxy.host, proxy.port, tls=False, proxy=True)
        target = f"{'https' if origin.tls else 'http'}://{authority}{target}"
    ours = {"Host": authority, "User-Agent": user_agent}
    if not any(name.lower() == "accept-encoding" for name in headers):
        ours["Accept-Encoding"] = "identity"
    reserved = {name.lower() for name in ours}
    fields = [*ours.items(), *((name, value) for name, value in headers.items() if name.lower() not in reserved)]
    try:
        return peer, h11.Request(method="GET", target=target, headers=fields)
    except (h11.LocalProtocolError, UnicodeEncodeError):
        raise ValueError("a header or the URL holds characters that HTTP does not allow") from None


def _split(url: str) -> tuple[Peer, str, str]:
    """Peer, authority as botocore signs it (lower case, no default port), and the exact target."""
    if not url.isascii() or not url.isprintable() or " " in url:
        raise ValueError("a URL must be percent-encoded")
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc:
        raise ValueError("not a http:// or https:// URL with a host and without user information")
    tls = parts.scheme == "https"
    default_port = 443 if tls else 80
    peer = Peer(parts.hostname, parts.port or default_port, tls)
    host = f"[{peer.host}]" if ":" in peer.host else peer.host
    authority = host if peer.port == default_port else f"{host}:{peer.port}"
    return peer, authority, (parts.path or "/") + (f"?{parts.query}" if parts.query else "")


def _content_length(status: int, headers: Headers) -> int | None:
    """Size of a GET reply's body, where its head tells (RFC 9112, 6.3).

    h11 has refused malformed and conflicting values.
    """
    if status in (204, 304):
        return 0
    if "transfer-encoding" in headers or "content-length" not in headers:
        return None
    return int(headers["content-length"])
