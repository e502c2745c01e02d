"""The program of a mover: receives bodies from connections, and writes them into files of the cache.

A process of one thread that knows neither names, versions nor credentials: a job is two descriptors
and a range (`protocol`). It ends when its engine does, as the channel closes then. A disk that stalls
holds up this process alone; the engine sees that it says nothing, and does without it.

    python -m d7yfs.movers.mover FD        FD: its end of a socket pair of packets

Started by `pool`. Imports no event loop and no SDK, so that it starts quickly and stays small.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import sys
import time

from d7yfs import checksum
from d7yfs.checksum import crc32c
from d7yfs.movers.protocol import ALIVE, ALIVE_S, PACKET_BYTES, TAIL_BYTES, Ending, Job, Word
from d7yfs.objects import BLOCK_BYTES

_BUFFER_BYTES = 1 << 20
_SAY_S = 0.001
"""Bytes that have come are told after this time at the latest."""


class _Body:
    """A job under way."""

    __slots__ = ("_crc", "_crcs", "_file_fd", "_said_to", "_tail", "due", "heard_at", "job", "position", "socket")

    def __init__(self, job: Job, connection: socket.socket, file_fd: int, now: float) -> None:
        self.job = job
        self.socket = connection
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
            count = self.socket.recv_into(buffer[: self.job.stop - self.position], 0, socket.MSG_DONTWAIT)
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
        self.socket.close()
        os.close(self._file_fd)


class Mover:
    """The jobs of one mover, and the channel to its engine."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._bodies: dict[int, _Body] = {}
        """Indexed by the descriptor of their connection."""
        self._poll = select.epoll()
        self._poll.register(channel.fileno(), select.EPOLLIN)
        self._buffer = memoryview(bytearray(_BUFFER_BYTES))
        self._said_at = 0.0

    def run(self) -> None:
        """Do jobs until the engine closes the channel. Each body in turn is received from once."""
        self._send(ALIVE)  # from now on it takes jobs
        while True:
            due = any(body.due for body in self._bodies.values())
            for fd, _ in self._poll.poll(_SAY_S if due else ALIVE_S / 2):
                now = time.monotonic()
                if fd == self._channel.fileno():
                    if not self._take_jobs(now):
                        return
                elif (body := self._bodies.get(fd)) is not None:
                    self._say(body, body.step(self._buffer, now))
                self._say_what_is_due(now)
            self._say_what_is_due(time.monotonic())

    def _say_what_is_due(self, now: float) -> None:
        for body in list(self._bodies.values()):
            if body.due and now >= body.due:
                self._say(body, body.tell())
            elif now - body.heard_at >= body.job.idle_timeout_s:
                self._say(body, body.step(self._buffer, now))  # it may have come just now
        if now - self._said_at >= ALIVE_S:
            self._send(ALIVE)

    def _take_jobs(self, now: float) -> bool:
        """Take what the engine has sent; False once it has closed the channel."""
        while True:
            try:
                packet, fds, _, _ = socket.recv_fds(self._channel, PACKET_BYTES, 2)
            except BlockingIOError:
                return True
            except ConnectionError:
                return False
            if not packet:
                return False
            job = Job.decode(packet)
            if not job.cancels:
                connection, file_fd = fds
                body = _Body(job, socket.socket(fileno=connection), file_fd, now)
                self._bodies[connection] = body
                self._poll.register(connection, select.EPOLLIN)
                continue
            for body in list(self._bodies.values()):
                if body.job.number == job.number:
                    self._say(body, body.tell(Ending.CANCELLED))

    def _say(self, body: _Body, word: Word | None) -> None:
        if word is None:
            return
        if word.ending is not Ending.NONE:
            fd = body.socket.fileno()
            self._poll.unregister(fd)
            del self._bodies[fd]
            body.close()
        self._send(word)

    def _send(self, word: Word) -> None:
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
    channel = socket.socket(fileno=int(sys.argv[1]))
    channel.setblocking(False)
    checksum.load()  # no job should wait for it
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        Mover(channel).run()


if __name__ == "__main__":
    main()
