"""Paths from a socket into a file, in Python: each fetches parts of one object by range over one
kept connection.

`bench.transport` compares them. Every path does the whole job, header included, and nothing else:
no retries, no validation.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import socket
import ssl
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import trio

_BUFFER_BYTES = 1 << 20
_PEEK_BYTES = 8192
_HOST = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Job:
    """An object to fetch into `fd`, which has its size already; all connections share `parts`."""

    port: int
    target: str
    size_bytes: int
    part_bytes: int
    fd: int
    tls: ssl.SSLContext | None
    parts: deque[tuple[int, int]] = field(default_factory=deque)

    def cut(self) -> None:
        """Fill `parts`."""
        starts = range(0, self.size_bytes, self.part_bytes)
        self.parts.extend((start, min(start + self.part_bytes, self.size_bytes)) for start in starts)

    def request(self, start: int, stop: int) -> bytes:
        return f"GET {self.target} HTTP/1.1\r\nHost: {_HOST}\r\nRange: bytes={start}-{stop - 1}\r\n\r\n".encode()

    def next(self) -> tuple[int, int] | None:
        try:
            return self.parts.popleft()
        except IndexError:
            return None


def context(ca_file: Path) -> ssl.SSLContext:
    """TLS of a client that trusts the store's own authority."""
    return ssl.create_default_context(cafile=ca_file)


async def trio_recv(job: Job) -> None:
    """Receive and write in the event loop itself."""
    if job.tls:
        await _trio_tls(job)
        return
    view = memoryview(bytearray(_BUFFER_BYTES))
    with trio.socket.socket() as connection:
        await connection.connect((_HOST, job.port))
        while part := job.next():
            start, stop = part
            await connection.send(job.request(start, stop))
            while (end := (await connection.recv(_PEEK_BYTES, socket.MSG_PEEK)).find(b"\r\n\r\n")) < 0:
                pass
            await connection.recv(end + 4)
            while start < stop:
                count = await connection.recv_into(view, min(_BUFFER_BYTES, stop - start))
                start += os.pwrite(job.fd, view[: _some(count)], start)


async def _trio_tls(job: Job) -> None:
    assert job.tls
    stream = await trio.open_ssl_over_tcp_stream(_HOST, job.port, ssl_context=job.tls)
    while part := job.next():
        start, stop = part
        await stream.send_all(job.request(start, stop))
        head = b""
        while (end := head.find(b"\r\n\r\n")) < 0:
            head += await stream.receive_some(_PEEK_BYTES)
        pending = [head[end + 4 :]]
        held = len(pending[0])
        while start < stop:
            if start + held < stop and held < _BUFFER_BYTES:
                chunk = await stream.receive_some(_BUFFER_BYTES)
                _some(len(chunk))
                pending.append(bytes(chunk))
                held += len(chunk)
                continue
            start += os.pwritev(job.fd, pending, start)
            pending, held = [], 0
    await trio.aclose_forcefully(stream)


def recv(job: Job) -> None:
    """Receive full buffers and write them in a thread."""
    view = memoryview(bytearray(_BUFFER_BYTES))
    with _connect(job) as connection:
        while part := job.next():
            start, stop = part
            connection.sendall(job.request(start, stop))
            if not isinstance(connection, ssl.SSLSocket):
                _skip_head(connection)
                while start < stop:
                    count = connection.recv_into(view, min(_BUFFER_BYTES, stop - start), socket.MSG_WAITALL)
                    start += os.pwrite(job.fd, view[: _some(count)], start)
                continue
            # A TLS socket cannot peek, and hands out a record (16 KiB) at most.
            head = b""
            while (end := head.find(b"\r\n\r\n")) < 0:
                head += connection.recv(_PEEK_BYTES)
            filled = len(head) - end - 4
            view[:filled] = head[end + 4 :]
            while start < stop:
                wanted = min(_BUFFER_BYTES, stop - start)
                while filled < wanted:
                    filled += _some(connection.recv_into(view[filled:wanted]))
                start += os.pwrite(job.fd, view[:filled], start)
                filled = 0


def splice(job: Job) -> None:
    """Move the pages in a thread from the socket through a pipe into the file; no byte enters the
    process.
    """
    reading, writing = os.pipe()
    fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, _BUFFER_BYTES)
    with _connect(job) as connection:
        while part := job.next():
            start, stop = part
            connection.sendall(job.request(start, stop))
            _skip_head(connection)
            while start < stop:
                left = _some(os.splice(connection.fileno(), writing, min(_BUFFER_BYTES, stop - start)))
                while left:
                    count = os.splice(reading, job.fd, left, offset_dst=start)
                    left -= count
                    start += count
    os.close(reading)
    os.close(writing)


def recv_into_map(job: Job) -> None:
    """Receive into the mapped file in a thread."""
    with mmap.mmap(job.fd, job.size_bytes) as memory, memoryview(memory) as view, _connect(job) as connection:
        while part := job.next():
            start, stop = part
            connection.sendall(job.request(start, stop))
            _skip_head(connection)
            while start < stop:
                with view[start : min(start + _BUFFER_BYTES, stop)] as target:
                    start += _some(connection.recv_into(target, 0, socket.MSG_WAITALL))


Way = Callable[[Job], None] | Callable[[Job], Awaitable[None]]

WAYS: Mapping[str, Way] = {
    "trio, recv_into + pwrite": trio_recv,
    "threads, recv_into + pwrite": recv,
    "threads, splice": splice,
    "threads, recv_into the mapped file": recv_into_map,
}


def _connect(job: Job) -> socket.socket:
    connection = socket.create_connection((_HOST, job.port))
    return job.tls.wrap_socket(connection, server_hostname=_HOST) if job.tls else connection


def _skip_head(connection: socket.socket) -> None:
    while (end := connection.recv(_PEEK_BYTES, socket.MSG_PEEK).find(b"\r\n\r\n")) < 0:
        pass
    connection.recv(end + 4)


def _some(count: int) -> int:
    if not count:
        raise ConnectionError("the store closed the connection")
    return count
