"""A TLS connection that a mover ends: records on the store's side, plain bytes on the engine's.

The engine's side is one end of a pair, whose other end the engine reads and writes as if it were the
store's socket. Bytes are carried as far as the other side takes them: a tunnel holds one turn's at
most. While a job is at work, bytes from the store are the job's: first those in the pair, then those
behind them. What it leaves is carried on to the pair, so the stream has no gap.

Nothing waits here. `ssl` is imported with the first tunnel. Called by `mover`.
"""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
from pathlib import Path

from d7yfs.movers.protocol import TunnelOrder, TunnelState, TunnelWord
from d7yfs.tls import RECORDS_BYTES, TlsSession, ssl_context

_REQUEST_BYTES = 64 << 10


class Tunnel:
    """The mover's side of a tunnel."""

    def __init__(self, order: TunnelOrder, store: socket.socket, engine: socket.socket) -> None:
        """Raises ConfigError where there is nothing to verify a certificate with."""
        self.number = order.number
        self.store = store
        self.engine = engine
        self.is_over = False
        self.job = 0
        """The number of the job that gets the bytes from the store; 0 for none."""
        context = ssl_context(Path(order.ca_file), verify=order.verify)
        self._tls = TlsSession(context, order.server_name)
        self._is_open = False
        self._up = b""
        """Records that the store has not taken yet."""
        self._down = memoryview(b"")
        """Bytes that the pair has not taken yet."""
        for each in (store, engine):
            each.setblocking(False)

    @property
    def store_events(self) -> int:
        """The events of the store's socket to wait for."""
        wants_more = self.job or not self._down
        return select.EPOLLIN * bool(wants_more) | select.EPOLLOUT * bool(self._up)

    @property
    def engine_events(self) -> int:
        """The events of the engine's side to wait for. Its end comes in any case."""
        return select.EPOLLIN * (self._is_open and not self._up) | select.EPOLLOUT * bool(self._down)

    @property
    def has_rest(self) -> bool:
        """True if something is here that came before what is on the socket: bytes, or the end."""
        return bool(self._down) or self._tls.is_at_end

    def step(self, buffer: memoryview) -> TunnelWord | None:
        """Carry what can be carried now; returns what is to be said."""
        try:
            self._send_records(self._tls.take_outgoing())
            if not self._is_open:
                return self._shake_hands(buffer)
            self._carry_up(buffer)
            if not self.job:
                return self._carry_down(buffer)
        except ssl.SSLCertVerificationError as error:
            return self._end(TunnelState.UNTRUSTED, reason=error.verify_message)
        except ssl.SSLError as error:
            state = TunnelState.BROKEN if self._is_open else TunnelState.REFUSED
            return self._end(state, reason=error.reason or "")
        except OSError as error:
            return self._end(TunnelState.BROKEN, error.errno or 0)
        return None

    def receive_into(self, buffer: memoryview, limit_bytes: int) -> int:
        """Receive bytes from the store for a job, `limit_bytes` at most; 0 at the end in good order.
        All of `buffer` is used on the way.

        Raises BlockingIOError while nothing is there, and OSError.
        """
        if self._down:
            count = min(limit_bytes, len(self._down))
            buffer[:count] = self._down[:count]
            self._down = self._down[count:]
            return count
        while (count_or_none := self._tls.decrypt_into(buffer[:limit_bytes])) is None:
            self._send_records(self._tls.take_outgoing())
            self._tls.feed(buffer[: self.store.recv_into(buffer[:RECORDS_BYTES])])
        return count_or_none

    def lend(self, job: int, engines_end: socket.socket) -> TunnelSource:
        """Give a job the bytes from the store, until it closes what it gets here."""
        self.job = job
        return TunnelSource(self, engines_end)

    def close(self) -> None:
        """Close both sides, without close_notify: HTTP's framing tells if a body was whole."""
        self.is_over = True
        self.store.close()
        self.engine.close()

    def _shake_hands(self, buffer: memoryview) -> TunnelWord | None:
        with contextlib.suppress(BlockingIOError):
            while not self._tls.shake_hands():
                self._send_records(self._tls.take_outgoing())
                self._tls.feed(buffer[: self.store.recv_into(buffer[:RECORDS_BYTES])])
            self._is_open = True
            self._send_records(self._tls.take_outgoing())
            return TunnelWord(self.number, TunnelState.OPEN)
        return None

    def _carry_up(self, buffer: memoryview) -> None:
        with contextlib.suppress(BlockingIOError):
            while not self._up:
                count = self.engine.recv_into(buffer[:_REQUEST_BYTES])
                if not count:
                    raise BrokenPipeError
                self._send_records(self._tls.encrypt(buffer[:count]))

    def _carry_down(self, buffer: memoryview) -> TunnelWord | None:
        with contextlib.suppress(BlockingIOError):
            while True:
                if not self._down:
                    count = self.receive_into(buffer, len(buffer))
                    if not count:
                        return self._end(TunnelState.CLOSED)
                    self._down = buffer[:count]
                try:
                    self._down = self._down[self.engine.send(self._down) :]
                finally:
                    self._down = memoryview(bytes(self._down))
                if self._down or not self._tls.is_at_end:
                    break
        return None

    def _send_records(self, records: bytes) -> None:
        self._up += records
        with contextlib.suppress(BlockingIOError):
            while self._up:
                self._up = self._up[self.store.send(self._up) :]

    def _end(self, state: TunnelState, error: int = 0, *, reason: str = "") -> TunnelWord:
        self.is_over = True
        return TunnelWord(self.number, state, error, reason)


class TunnelSource:
    """The bytes of a tunnel's job in their order: those that the engine has left in the pair, then
    those from the store."""

    def __init__(self, tunnel: Tunnel, engines_end: socket.socket) -> None:
        self.tunnel = tunnel
        self._pair: socket.socket | None = engines_end

    @property
    def has_rest(self) -> bool:
        """True if something is here that came before what is on the store's socket."""
        return self._pair is not None or self.tunnel.has_rest

    def receive_into(self, buffer: memoryview, limit_bytes: int) -> int:
        """As `Tunnel.receive_into`."""
        if self._pair is not None:
            try:
                return self._pair.recv_into(buffer[:limit_bytes], 0, socket.MSG_DONTWAIT)
            except BlockingIOError:  # it is empty, and nobody fills it now
                self._close_pair()
        return self.tunnel.receive_into(buffer, limit_bytes)

    def close(self) -> None:
        """Leave the tunnel to the engine again."""
        self.tunnel.job = 0
        self._close_pair()

    def _close_pair(self) -> None:
        if self._pair is not None:
            self._pair.close()
            self._pair = None
