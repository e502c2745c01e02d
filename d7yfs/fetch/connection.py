"""One TCP or TLS connection to an origin or a proxy, as bytes. Its failures are told in words that
are safe to show.

Owns the socket and, for https, the TLS state. Knows no HTTP. The transport is its only caller.

Over TCP the kernel writes straight into the caller's buffer. TLS ends in a mover if one is ready: the
socket is then one end of a pair, which has the plain bytes. Else it ends here (`d7yfs.tls`).
"""

from __future__ import annotations

import errno
import os
import select
import socket
import ssl
from collections.abc import Awaitable
from contextlib import suppress
from dataclasses import dataclass

import trio

from d7yfs.errors import BadReply, D7yfsError, MoverLost, OriginUnavailable, OriginUntrusted, ProxyUnavailable
from d7yfs.movers.pool import MoverPool
from d7yfs.movers.protocol import TunnelState, TunnelWord
from d7yfs.movers.tunnel_end import TunnelEnd
from d7yfs.tls import RECORDS_BYTES, TlsSession, Trust

_PEEK_BYTES = 4 << 10
"""Most heads of replies whole."""


@dataclass(frozen=True, slots=True)
class Peer:
    """The address of a connection. Equal peers share connections; `str()` is for messages."""

    host: str
    port: int
    tls: bool
    proxy: bool = False

    def __str__(self) -> str:
        address = f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"
        return f"proxy {address}" if self.proxy else address

    def failure(self, what: str, *, hint: str = "") -> D7yfsError:
        """The error when the peer fails; another class for a proxy: the origin may be healthy."""
        return (ProxyUnavailable if self.proxy else OriginUnavailable)(what, hint=hint)

    def bad_reply(self, what: str) -> BadReply:
        """The error when the peer broke HTTP."""
        return BadReply(f"{self} {what}", hint="is this an HTTP/1.1 server?")


class Connection:
    """An open connection. `send` and `receive_into` raise OSError, which the caller interprets.

    A cancelled `send` leaves the connection in an unknown state; close it then.
    """

    def __init__(self, peer: Peer, connected: trio.socket.SocketType) -> None:
        self.peer = peer
        self.idle_since = 0.0
        """trio.current_time() when the pool took it back; 0 before its first request is done."""
        self.tunnel: TunnelEnd | None = None
        """The mover's work on it; None for a connection of this process alone."""
        self._socket = connected
        self._tls: TlsSession | None = None

    @classmethod
    async def open(
        cls, peer: Peer, trust: Trust | None, *, timeout_s: float, movers: MoverPool | None = None
    ) -> Connection:
        """Resolve, connect and, with `trust`, shake hands, in `timeout_s` altogether.

        IPv6 and IPv4 race (RFC 8305), with TCP_NODELAY. TLS ends in one of `movers` if it takes it.
        Raises the error of `Peer.failure`, or OriginUntrusted.
        """
        try:
            with trio.fail_after(timeout_s):
                connection = cls(peer, (await trio.open_tcp_stream(peer.host, peer.port)).socket)
                try:
                    if trust is not None and not (movers and await connection._tunnelled(movers, trust)):
                        await connection._shake_hands(trust)
                except BaseException:
                    connection.close()
                    raise
                return connection
        except trio.TooSlowError:
            raise peer.failure(
                f"no connection to {peer} within {timeout_s:g} s", hint="is the address right and the way to it open?"
            ) from None
        except (socket.gaierror, UnicodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "not a host name"
            raise peer.failure(
                f"cannot resolve the host name of {peer}: {reason}", hint="check the endpoint's spelling and DNS"
            ) from error
        except ssl.SSLCertVerificationError as error:
            raise OriginUntrusted(
                f"the TLS certificate of {peer} does not verify: {error.verify_message}",
                hint="if a private CA signed it, give that CA; else the server's certificate or this machine's clock is wrong",
            ) from error
        except ssl.SSLError as error:
            raise peer.failure(
                f"no TLS with {peer}: {error.reason or 'closed during the handshake'}",
                hint="does it speak https there?",
            ) from error
        except OSError as error:
            raise peer.failure(
                f"cannot connect to {peer}: {_reason(error)}", hint="is it running, and is the address right?"
            ) from error

    async def send(self, data: bytes) -> None:
        """Send all of `data`."""
        try:
            await self._send(data if self._tls is None else self._tls.encrypt(data))
        except OSError:
            await self._check_tunnel()
            raise

    async def receive_into(self, buffer: memoryview) -> int:
        """Receive 1 to `len(buffer)` (> 0) bytes; 0 when the peer has closed its side.

        Raises MoverLost if it was the end of a mover, which says nothing of the peer."""
        if self._tls is None:
            return await self._checked(self._read(buffer))
        while (decrypted := self._tls.decrypt_into(buffer)) is None:
            await self._exchange_records(self._tls)
        return decrypted

    async def receive_through(self, mark: bytes, buffer: memoryview) -> int:
        """As `receive_into`, but what comes after the first `mark` is left where it is, if TLS does
        not end here and the mark is among the next bytes."""
        if self._tls is None:
            count = await self._checked(self._socket.recv_into(buffer[:_PEEK_BYTES], 0, socket.MSG_PEEK))
            end = bytes(buffer[:count]).find(mark)
            if end >= 0:
                buffer = buffer[: end + len(mark)]
        return await self.receive_into(buffer)

    async def _read(self, buffer: memoryview) -> int:
        while True:  # what is asked for has hardly ever come: so wait first
            await trio.lowlevel.wait_readable(self._socket.fileno())
            with suppress(BlockingIOError):
                return os.readv(self._socket.fileno(), [buffer])

    async def _checked(self, receiving: Awaitable[int]) -> int:
        """The count of bytes that `receiving` brings. Raises MoverLost if they end with a mover."""
        try:
            count = await receiving
        except OSError:
            await self._check_tunnel()
            raise
        if not count:
            await self._check_tunnel()
        return count

    @property
    def plain_fd(self) -> int | None:
        """The descriptor of a connection whose bytes are the body's own; None where TLS ends here."""
        return self._socket.fileno() if self._tls is None else None

    def has_unread(self) -> bool:
        """True if anything came that was not read: bytes, the end of the stream, or an error."""
        if self._tls is not None and self._tls.has_rest():
            return True
        poll = select.poll()
        poll.register(self._socket.fileno(), select.POLLIN)
        return bool(poll.poll(0))

    def work(self) -> None:
        """Be in use from now on, as it was at first."""
        if self.tunnel is not None:
            self.tunnel.in_use = True

    def rest(self) -> None:
        """Be idle from now on."""
        self.idle_since = trio.current_time()
        if self.tunnel is not None:
            self.tunnel.in_use = False

    def close(self) -> None:
        """Close at once, without close_notify: HTTP's framing tells if a body was whole (RFC 9112,
        9.8).
        """
        self._socket.close()
        if self.tunnel is not None:
            self.tunnel.close()

    async def _send(self, data: bytes) -> None:
        try:  # a request fits into the socket's buffer
            rest = memoryview(data)[os.write(self._socket.fileno(), data) :]
        except BlockingIOError:
            rest = memoryview(data)
        while rest:
            rest = rest[await self._socket.send(rest) :]

    async def _tunnelled(self, movers: MoverPool, trust: Trust) -> bool:
        """Have a mover end the TLS of this connection. Returns False if it is to end here: then the
        connection is a new one, if the mover has had the old one.

        Raises what a handshake here raises."""
        peer = self.peer
        self.tunnel = movers.open_tunnel(self._socket.fileno(), peer.host, trust)
        if self.tunnel is None:
            return False
        self._socket.close()
        self._socket = trio.socket.from_stdlib_socket(self.tunnel.socket)
        word = await self.tunnel.opened()
        if word.state is TunnelState.OPEN:
            return True
        if word.state not in (TunnelState.LOST, TunnelState.UNABLE):
            raise _error_of(word)
        self.close()
        self.tunnel = None
        self._socket = (await trio.open_tcp_stream(peer.host, peer.port)).socket
        return False

    async def _check_tunnel(self) -> None:
        """At the end of a tunnel: raise unless its peer has closed it in good order."""
        if self.tunnel is None:
            return
        word = await self.tunnel.ended()
        if word.state is TunnelState.LOST:
            raise MoverLost(f"the process that had the connection to {self.peer} has ended")
        if word.state is not TunnelState.CLOSED:
            raise _error_of(word)

    async def _shake_hands(self, trust: Trust) -> None:
        tls = self._tls = TlsSession(trust.context(), self.peer.host)
        while not tls.shake_hands():
            await self._exchange_records(tls)
        await self._send(tls.take_outgoing())

    async def _exchange_records(self, tls: TlsSession) -> None:
        """Send the records of TLS (handshake, key update) and receive until there are more."""
        await self._send(tls.take_outgoing())
        tls.feed(await self._socket.recv(RECORDS_BYTES))


def _error_of(word: TunnelWord) -> OSError:
    """The error as it is where TLS ends here."""
    if word.state is TunnelState.UNTRUSTED:
        untrusted = ssl.SSLCertVerificationError()
        untrusted.verify_message = word.reason
        return untrusted
    if word.state is TunnelState.REFUSED:
        refused = ssl.SSLError()
        refused.reason = word.reason
        return refused
    return OSError(word.error or errno.ECONNRESET, os.strerror(word.error or errno.ECONNRESET))


def _reason(error: OSError) -> str:
    """The system's words for a failed connect; trio groups one error per address that it tried."""
    cause: BaseException | None = error.__cause__
    while isinstance(cause, BaseExceptionGroup):
        cause = cause.exceptions[0]
    code = cause.errno if isinstance(cause, OSError) else error.errno
    return os.strerror(code or errno.EIO).lower()
