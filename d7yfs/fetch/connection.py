"""One TCP or TLS connection to an origin or a proxy, as bytes. Its failures are told in words that
are safe to show.

Owns the socket and, for https, the TLS state. Knows no HTTP. The transport is its only caller.

Over TCP the kernel writes straight into the caller's buffer. Over TLS the records pass through a
memory BIO, and OpenSSL decrypts them into that buffer. That is one copy more, and the only way to
see whether decrypted bytes are left over: then the connection may not carry another request.
"""

from __future__ import annotations

import errno
import os
import select
import socket
import ssl
from dataclasses import dataclass
from typing import cast

import trio

from d7yfs.errors import BadReply, D7yfsError, OriginUnavailable, OriginUntrusted, ProxyUnavailable

_TLS_RECEIVE_BYTES = 256 << 10
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

    def __init__(self, peer: Peer, stream: trio.SocketStream, tls: ssl.SSLContext | None) -> None:
        self.peer = peer
        self.idle_since = 0.0
        """trio.current_time() when the pool took it back; 0 before its first request is done."""
        self._socket = stream.socket
        self._tls: ssl.SSLObject | None = None
        if tls is not None:
            self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
            self._tls = tls.wrap_bio(self._incoming, self._outgoing, server_hostname=peer.host)

    @classmethod
    async def open(cls, peer: Peer, tls: ssl.SSLContext | None, *, timeout_s: float) -> Connection:
        """Resolve, connect and, with `tls`, shake hands, in `timeout_s` altogether.

        IPv6 and IPv4 race (RFC 8305), with TCP_NODELAY. Raises the error of `Peer.failure`, or
        OriginUntrusted.
        """
        try:
            with trio.fail_after(timeout_s):
                connection = cls(peer, await trio.open_tcp_stream(peer.host, peer.port), tls)
                if tls is not None:
                    try:
                        await connection._shake_hands()
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
        if self._tls is not None:
            self._tls.write(data)
            data = self._outgoing.read()
        await self._send(data)

    async def receive_into(self, buffer: memoryview) -> int:
        """Receive 1 to `len(buffer)` (> 0) bytes; 0 when the peer has closed its side."""
        if self._tls is None:
            return await self._socket.recv_into(buffer)
        while (count := self._decrypt_into(buffer)) is None:
            await self._exchange_records()
        return count

    async def receive_through(self, mark: bytes, buffer: memoryview) -> int:
        """As `receive_into`, but what comes after the first `mark` is left where it is, if the
        connection is a plain one and the mark is among the next bytes."""
        if self._tls is None:
            count = await self._socket.recv_into(buffer[:_PEEK_BYTES], 0, socket.MSG_PEEK)
            end = bytes(buffer[:count]).find(mark)
            if end >= 0:
                buffer = buffer[: end + len(mark)]
        return await self.receive_into(buffer)

    @property
    def plain_fd(self) -> int | None:
        """The descriptor of a connection whose bytes are the body's own; None with TLS."""
        return self._socket.fileno() if self._tls is None else None

    def has_unread(self) -> bool:
        """True if anything came that was not read: bytes, the end of the stream, or an error."""
        if self._tls is not None and (self._incoming.pending or self._tls.pending()):
            return True
        poll = select.poll()
        poll.register(self._socket.fileno(), select.POLLIN)
        return bool(poll.poll(0))

    def close(self) -> None:
        """Close at once, without close_notify: HTTP's framing tells if a body was whole (RFC 9112,
        9.8).
        """
        self._socket.close()

    async def _send(self, data: bytes) -> None:
        try:  # a request fits into the socket's buffer
            rest = memoryview(data)[os.write(self._socket.fileno(), data) :]
        except BlockingIOError:
            rest = memoryview(data)
        while rest:
            rest = rest[await self._socket.send(rest) :]

    async def _shake_hands(self) -> None:
        assert self._tls is not None
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                await self._exchange_records()
            else:
                await self._send(self._outgoing.read())
                return

    async def _exchange_records(self) -> None:
        """Send the records of TLS (handshake, key update) and receive until there are more."""
        await self._send(self._outgoing.read())
        if records := await self._socket.recv(_TLS_RECEIVE_BYTES):
            self._incoming.write(records)
        else:
            self._incoming.write_eof()

    def _decrypt_into(self, buffer: memoryview) -> int | None:
        """Decrypt many records at once; None when TLS needs more, 0 at the peer's close_notify."""
        assert self._tls is not None
        filled = 0
        try:
            while filled < len(buffer):
                # With a buffer, read() returns a count; typeshed knows only the form without.
                count = cast("int", self._tls.read(len(buffer) - filled, buffer[filled:]))
                if not count:
                    break
                filled += count
        except ssl.SSLWantReadError:
            return filled or None
        return filled


def _reason(error: OSError) -> str:
    """The system's words for a failed connect; trio groups one error per address that it tried."""
    cause: BaseException | None = error.__cause__
    while isinstance(cause, BaseExceptionGroup):
        cause = cause.exceptions[0]
    code = cause.errno if isinstance(cause, OSError) else error.errno
    return os.strerror(code or errno.EIO).lower()
