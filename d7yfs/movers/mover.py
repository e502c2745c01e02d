"""The program of a mover: receives bodies from connections, writes them into files of the cache, and
ends TLS (`tunnel`).

A process of one thread that knows neither names nor versions: a job is two descriptors and a range
(`protocol`). Where it ends TLS, requests with their signatures pass through its memory, so it forbids
others to look there. It ends when its engine does, as the channel closes then. A disk that stalls
holds up this process alone; the engine sees that it says nothing, and does without it.

    python -m d7yfs.movers.mover FD        FD: its end of a socket pair of packets

Started by `pool`. Imports no event loop and no SDK, and TLS with its first tunnel, so that it starts
quickly and stays small.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from d7yfs import checksum
from d7yfs.checksum import crc32c
from d7yfs.host.process import forbid_core_dumps
from d7yfs.movers.protocol import (
    ALIVE,
    ALIVE_S,
    PACKET_BYTES,
    TAIL_BYTES,
    Ending,
    Job,
    TunnelOrder,
    TunnelState,
    TunnelWord,
    Word,
    decode_order,
)
from d7yfs.objects import BLOCK_BYTES

if TYPE_CHECKING:
    from d7yfs.movers.tunnel import Tunnel, TunnelSource

_BUFFER_BYTES = 1 << 20
_SAY_S = 0.001
"""Bytes that have come are told after this time at the latest."""


class _Connection:
    """The bytes of a job from a connection of its own."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self.has_rest = False
        """True if something is here that is not on the socket."""

    def receive_into(self, buffer: memoryview, limit_bytes: int) -> int:
        """Raises BlockingIOError while nothing is there, and OSError."""
        return self.socket.recv_into(buffer[:limit_bytes], 0, socket.MSG_DONTWAIT)

    def close(self) -> None:
        self.socket.close()


class _Body:
    """A job under way."""

    __slots__ = ("_crc", "_crcs", "_file_fd", "_said_to", "_tail", "due", "heard_at", "job", "position", "source")

    def __init__(self, job: Job, source: _Connection | TunnelSource, file_fd: int, now: float) -> None:
        self.job = job
        self.source = source
        self.position = self._said_to = job.start
        self.heard_at = now
        self.due = 0.0
        """Time at which what has come must be told; 0 while there is nothing to tell."""
        self._file_fd = file_fd
        self._crc = job.crc
        self._crcs: list[int] = []
        self._tail = b""

    def step(self, buffer: memoryview, now: float) -> Word | None:
        """Receive once, and write; returns what is to be said now."""
        try:
            count = self.source.receive_into(buffer, min(self.job.stop - self.position, len(buffer)))
        except (BlockingIOError, InterruptedError):
            return self._tell_silence(now)
        except OSError as error:
            return self.tell(Ending.BROKEN, error.errno or 0)
        if not count:
            return self.tell(Ending.CLOSED)
        self.heard_at = now
        self.due = self.due or now + _SAY_S
        try:
            self._write(buffer[:count])
        except OSError as error:
            return self.tell(Ending.DISK, error.errno or 0)
        if self.position == self.job.stop:
            return self.tell(Ending.DONE)
        return self.tell() if self._crcs else None

    def _tell_silence(self, now: float) -> Word | None:
        return self.tell(Ending.SILENT) if now - self.heard_at >= self.job.idle_timeout_s else None

    def _write(self, data: memoryview) -> None:
        done = 0
        while done < len(data):
            done += os.pwrite(self._file_fd, data[done:], self.position + done)
        last = bytes(data[-TAIL_BYTES:])
        self._tail = (self._tail + last)[-TAIL_BYTES:] if len(last) < TAIL_BYTES else last
        while data:
            piece = data[: BLOCK_BYTES - self.position % BLOCK_BYTES]
            self._crc = crc32c(piece, self._crc)
            self.position += len(piece)
            if not self.position % BLOCK_BYTES:
                self._crcs.append(self._crc)
                self._crc = 0
            data = data[len(piece) :]

    def tell(self, ending: Ending = Ending.NONE, error: int = 0) -> Word:
        """The word on all that has come since the last one."""
        crcs = list(self._crcs)
        if self.position % BLOCK_BYTES and self.position > self._said_to:
            crcs.append(self._crc)
        self._crcs.clear()
        self.due, self._said_to = 0.0, self.position
        return Word(self.job.number, self.position, tuple(crcs), ending, error, self._tail)

    def close(self) -> None:
        self.source.close()
        os.close(self._file_fd)


class Mover:
    """The jobs and tunnels of one mover, and the channel to its engine."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._bodies: dict[int, _Body] = {}
        """Indexed by the number of their job."""
        self._tunnels: dict[int, Tunnel] = {}
        """Indexed by their number."""
        self._watched: dict[int, tuple[int, Callable[[float, int], None]]] = {}
        """Indexed by descriptor: the events to wait for, and what is called with the time and what came."""
        self._poll = select.epoll()
        self._buffer = memoryview(bytearray(_BUFFER_BYTES))
        self._said_at = 0.0
        self._is_over = False
        """True once the engine has closed the channel."""

    def run(self) -> None:
        """Do jobs until the engine closes the channel. Each descriptor in turn gets one step."""
        self._watch(self._channel.fileno(), select.EPOLLIN, self._take_orders)
        self._send(ALIVE)  # from now on it takes jobs
        while not self._is_over:
            due = any(body.due for body in self._bodies.values())
            for fd, came in self._poll.poll(_SAY_S if due else ALIVE_S / 2):
                now = time.monotonic()
                if (watched := self._watched.get(fd)) is not None:
                    watched[1](now, came)
                self._say_what_is_due(now)
            self._say_what_is_due(time.monotonic())

    def _watch(self, fd: int, events: int, step: Callable[[float, int], None]) -> None:
        """Have `step` called at these events of a descriptor, at its end, and at errors."""
        if fd not in self._watched:
            self._poll.register(fd, events)
        elif self._watched[fd][0] != events:
            self._poll.modify(fd, events)
        self._watched[fd] = events, step

    def _unwatch(self, fd: int) -> None:
        if self._watched.pop(fd, None) is not None:
            self._poll.unregister(fd)

    def _say_what_is_due(self, now: float) -> None:
        for body in list(self._bodies.values()):
            if body.due and now >= body.due:
                self._say(body, body.tell())
            elif now - body.heard_at >= body.job.idle_timeout_s:
                self._step(body, now)  # it may have come just now
        if now - self._said_at >= ALIVE_S:
            self._send(ALIVE)

    def _take_orders(self, now: float, _came: int) -> None:
        """Take what the engine has sent."""
        while True:
            try:
                packet, fds, _, _ = socket.recv_fds(self._channel, PACKET_BYTES, 2)
            except BlockingIOError:
                return
            except ConnectionError:
                packet = b""
            if not packet:
                self._is_over = True
                return
            order = decode_order(packet)
            if isinstance(order, TunnelOrder):
                self._open_tunnel(order, fds)
            elif not order.cancels:
                self._begin(order, fds, now)
            elif (body := self._bodies.get(order.number)) is not None:
                self._say(body, body.tell(Ending.CANCELLED))

    def _begin(self, job: Job, fds: list[int], now: float) -> None:
        connection, file_fd = socket.socket(fileno=fds[0]), fds[1]
        if (tunnel := self._tunnels.get(job.tunnel)) is None:
            body = self._bodies[job.number] = _Body(job, _Connection(connection), file_fd, now)
            self._watch(connection.fileno(), select.EPOLLIN, partial(self._step, body))
            return
        self._bodies[job.number] = _Body(job, tunnel.lend(job.number, connection), file_fd, now)
        self._work(tunnel, now)

    def _step(self, body: _Body, now: float, _came: int = 0) -> None:
        self._say(body, body.step(self._buffer, now))

    def _say(self, body: _Body, word: Word | None) -> None:
        if word is None:
            return
        if word.ending is not Ending.NONE:
            del self._bodies[body.job.number]
            if isinstance(body.source, _Connection):
                self._unwatch(body.source.socket.fileno())
            body.close()
            if (tunnel := self._tunnels.get(body.job.tunnel)) is not None and not tunnel.is_over:
                self._carry(tunnel)  # what came beyond the job is in the pair before its word
        self._send(word)

    def _open_tunnel(self, order: TunnelOrder, fds: list[int]) -> None:
        from d7yfs.errors import ConfigError  # with TLS, and not before
        from d7yfs.movers.tunnel import Tunnel

        store, engine = (socket.socket(fileno=fd) for fd in fds)
        try:
            tunnel = self._tunnels[order.number] = Tunnel(order, store, engine)
        except ConfigError:
            self._send(TunnelWord(order.number, TunnelState.UNABLE))
            store.close()
            engine.close()
        else:
            self._carry(tunnel)

    def _carry(self, tunnel: Tunnel) -> None:
        """Carry what a tunnel has."""
        word = tunnel.step(self._buffer)
        if word is not None:
            self._send(word)
        if tunnel.is_over:
            self._close_tunnel(tunnel)
        else:
            self._watch_tunnel(tunnel)

    def _watch_tunnel(self, tunnel: Tunnel) -> None:
        if tunnel.store_events:
            self._watch(tunnel.store.fileno(), tunnel.store_events, partial(self._hear_store, tunnel))
        else:  # or an end that it must not have yet would be told again and again
            self._unwatch(tunnel.store.fileno())
        self._watch(tunnel.engine.fileno(), tunnel.engine_events, partial(self._hear_engine, tunnel))

    def _hear_store(self, tunnel: Tunnel, now: float, came: int) -> None:
        if tunnel.job and came != select.EPOLLOUT:
            self._work(tunnel, now)
        else:
            self._carry(tunnel)

    def _work(self, tunnel: Tunnel, now: float) -> None:
        """Take a step in a tunnel's job, and more while no event would tell of what is here."""
        body = self._bodies[tunnel.job]
        self._step(body, now)
        while tunnel.job and body.source.has_rest:
            self._step(body, now)
        if not tunnel.is_over:
            self._watch_tunnel(tunnel)

    def _hear_engine(self, tunnel: Tunnel, _now: float, came: int) -> None:
        if came & select.EPOLLHUP:
            self._close_tunnel(tunnel)  # nobody wants any more
        else:
            self._carry(tunnel)

    def _close_tunnel(self, tunnel: Tunnel) -> None:
        """Close both sides, and end the job that is at work there."""
        del self._tunnels[tunnel.number]
        self._unwatch(tunnel.store.fileno())
        self._unwatch(tunnel.engine.fileno())
        tunnel.close()
        if tunnel.job:
            body = self._bodies[tunnel.job]
            self._say(body, body.tell(Ending.CANCELLED))

    def _send(self, word: Word | TunnelWord) -> None:
        self._said_at = time.monotonic()
        while True:
            try:
                self._channel.send(word.encode())
            except BlockingIOError:
                select.select([], [self._channel], [])  # the engine is behind
            else:
                return


def main() -> None:
    """Be a mover."""
    # The engine ends its movers itself; a terminal and systemd signal all processes of a mount.
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    forbid_core_dumps()
    channel = socket.socket(fileno=int(sys.argv[1]))
    channel.setblocking(False)
    checksum.load()  # no job should wait for it
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        Mover(channel).run()


if __name__ == "__main__":
    main()
