"""The program behind `bench.store`: a read-only S3 server over the buckets of a directory.

It is fast enough to limit no peer, and counts exactly. Forked workers share two listening sockets
(plain and TLS), and each connection has a thread. Plain bodies leave by sendfile(2), so that the
interpreter sees one call per MiB.

Counters and the shape of the answers (delay, rate) lie in a small file that `bench.store` maps too.
Every worker writes its own slots under its own lock. Any signature is accepted.

    python -m bench.store_server DIRECTORY CONTROL WORKERS [CERTIFICATE]
        prints {"plain": port, "tls": port}; ends with its stdin
"""

from __future__ import annotations

import email.utils
import json
import mmap
import multiprocessing
import os
import socket
import ssl
import struct
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from multiprocessing.synchronize import Lock
from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlsplit
from xml.sax.saxutils import escape

from bench.catalog import Catalog, Entry

SHAPE = struct.Struct("ddd")
"""Seconds before the first byte of every answer; bytes per second of one body, and of all bodies
together; 0 for no limit.
"""
DUE = struct.Struct("d")
"""The time after which all bodies together may send again, behind the shape (CLOCK_MONOTONIC, the
same for all processes).
"""
COUNTERS = struct.Struct("QQQQ")
"""GETs of objects, HEADs, listings, body bytes of objects handed to the kernel."""
SLOT_BYTES = 64

_CHUNK_BYTES = 1 << 20
_PACED_CHUNK_BYTES = 128 << 10
_BURST_S = 0.01
"""Seconds that a slow reader may catch up: the limit is the link's, which saves nothing for later.
"""
_GETS, _HEADS, _LISTS, BYTES = range(4)
"""The indices of the counters."""


class Control:
    """The mapped control file: the shape first, then one slot of counters per worker."""

    def __init__(self, path: Path) -> None:
        with path.open("r+b") as file:
            self.memory = mmap.mmap(file.fileno(), 0)

    @staticmethod
    def size_bytes(workers: int) -> int:
        return SLOT_BYTES * (1 + workers)

    def shape(self) -> tuple[float, float, float]:
        delay_s, bytes_per_s, total_bytes_per_s = SHAPE.unpack_from(self.memory)
        return delay_s, bytes_per_s, total_bytes_per_s

    def set_shape(self, delay_s: float, bytes_per_s: float, total_bytes_per_s: float) -> None:
        SHAPE.pack_into(self.memory, 0, delay_s, bytes_per_s, total_bytes_per_s)

    def reserve(self, seconds: float, now: float) -> float:
        """Take `seconds` of the shared link, and return the time when they are over. The caller
        holds the lock of all workers.
        """
        (due,) = DUE.unpack_from(self.memory, SHAPE.size)
        due = max(due, now - _BURST_S) + seconds
        DUE.pack_into(self.memory, SHAPE.size, due)
        return float(due)

    def totals(self) -> list[int]:
        """The counters, summed over the workers."""
        slots = range(SLOT_BYTES, len(self.memory), SLOT_BYTES)
        return [sum(column) for column in zip(*(COUNTERS.unpack_from(self.memory, at) for at in slots), strict=True)]


class Worker:
    """One process of the server, with its slot of counters."""

    def __init__(self, catalogs: Mapping[str, Catalog], control: Control, number: int, link: Lock) -> None:
        self._catalogs = catalogs
        self._control = control
        start = SLOT_BYTES * (1 + number)
        self._slots = memoryview(control.memory)[start : start + COUNTERS.size].cast("Q")
        self._lock = threading.Lock()
        self._link = link

    def accept(self, listener: socket.socket, tls: ssl.SSLContext | None) -> None:
        """Serve connections forever."""
        while True:
            connection, _ = listener.accept()
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=self._connection, args=(connection, tls), daemon=True).start()

    def _connection(self, connection: socket.socket, tls: ssl.SSLContext | None) -> None:
        with suppress(OSError), connection:
            stream = tls.wrap_socket(connection, server_side=True) if tls else connection
            with stream:
                pending = b""
                while True:
                    while (end := pending.find(b"\r\n\r\n")) < 0:
                        received = stream.recv(65536)
                        if not received:
                            return
                        pending += received
                    head, pending = pending[:end], pending[end + 4 :]
                    if not self._answer(stream, head.decode("latin-1")):
                        return

    def _answer(self, stream: socket.socket, head: str) -> bool:
        """Answer one request; False ends the connection."""
        request_line, *lines = head.split("\r\n")
        method, target, _ = request_line.split(" ", 2)
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        delay_s, bytes_per_s, total_bytes_per_s = self._control.shape()
        if delay_s:
            time.sleep(delay_s)
        url = urlsplit(target)
        bucket, _, key = unquote(url.path).lstrip("/").partition("/")
        if method not in ("GET", "HEAD"):
            _reply(stream, "405 Method Not Allowed", _error("MethodNotAllowed"))
            return False  # Its body, if any, is not read.
        catalog = self._catalogs.get(bucket)
        if catalog is None:
            _reply(stream, "404 Not Found", _error("NoSuchBucket"), method)
        elif key:
            self._object(stream, method, catalog.find(key), headers, (bytes_per_s, total_bytes_per_s))
        elif method == "HEAD":
            self._count(_HEADS)
            _reply(stream, "200 OK", b"", method, "x-amz-bucket-region: us-east-1\r\n")
        else:
            self._count(_LISTS)
            query = dict(parse_qsl(url.query, keep_blank_values=True))
            _reply(stream, "200 OK", catalog.listing(query), method)
        return headers.get("connection", "").lower() != "close"

    def _object(
        self,
        stream: socket.socket,
        method: str,
        entry: Entry | None,
        headers: dict[str, str],
        rates: tuple[float, float],
    ) -> None:
        self._count(_HEADS if method == "HEAD" else _GETS)
        if entry is None:
            _reply(stream, "404 Not Found", _error("NoSuchKey"), method)
            return
        if headers.get("if-match", entry.etag) not in (entry.etag, entry.etag.strip('"'), "*"):
            _reply(stream, "412 Precondition Failed", _error("PreconditionFailed"), method)
            return
        start, stop, status, extra = 0, entry.size_bytes, "200 OK", ""
        if wanted := headers.get("range"):
            span = _parse_range(wanted, entry.size_bytes)
            if span is None:
                refused = f"Content-Range: bytes */{entry.size_bytes}\r\n"
                _reply(stream, "416 Range Not Satisfiable", _error("InvalidRange"), method, refused)
                return
            start, stop = span
            status, extra = "206 Partial Content", f"Content-Range: bytes {start}-{stop - 1}/{entry.size_bytes}\r\n"
        head = (
            f"HTTP/1.1 {status}\r\nContent-Length: {stop - start}\r\n{extra}ETag: {entry.etag}\r\n"
            f"Last-Modified: {entry.last_modified}\r\nAccept-Ranges: bytes\r\nContent-Type: binary/octet-stream\r\n"
            f"Date: {email.utils.formatdate(usegmt=True)}\r\n\r\n"
        ).encode()
        if method == "HEAD":
            stream.sendall(head)
        elif isinstance(stream, ssl.SSLSocket):
            stream.sendall(head)
            self._body(stream, entry, start, stop, rates)
        else:
            stream.send(head, socket.MSG_MORE)
            self._body(stream, entry, start, stop, rates)

    def _body(self, stream: socket.socket, entry: Entry, start: int, stop: int, rates: tuple[float, float]) -> None:
        bytes_per_s, total_bytes_per_s = rates
        chunk = _PACED_CHUNK_BYTES if any(rates) else _CHUNK_BYTES
        secured = isinstance(stream, ssl.SSLSocket)
        due = time.monotonic()
        while start < stop:
            count = min(chunk, stop - start)
            if secured:
                stream.sendall(entry.memory()[start : start + count])
            else:
                count = os.sendfile(stream.fileno(), entry.fd(), start, count)
            self._count(BYTES, count)
            start += count
            if bytes_per_s:
                now = time.monotonic()
                due = max(due, now - _BURST_S) + count / bytes_per_s
                if due > now:
                    time.sleep(due - now)
            if total_bytes_per_s:
                now = time.monotonic()
                with self._link:
                    turn = self._control.reserve(count / total_bytes_per_s, now)
                if turn > now:
                    time.sleep(turn - now)

    def _count(self, slot: int, value: int = 1) -> None:
        with self._lock:
            self._slots[slot] += value


def _reply(stream: socket.socket, status: str, body: bytes, method: str = "GET", extra: str = "") -> None:
    head = (
        f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\nContent-Type: application/xml\r\n{extra}"
        f"Date: {email.utils.formatdate(usegmt=True)}\r\n\r\n"
    ).encode()
    stream.sendall(head if method == "HEAD" else head + body)


def _error(code: str) -> bytes:
    return f'<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>{code}</Code><Message>{escape(code)}</Message></Error>'.encode()


def _parse_range(value: str, size_bytes: int) -> tuple[int, int] | None:
    """[start, stop) of `bytes=a-b`, `bytes=a-` or `bytes=-n`; None if no byte of it exists (RFC
    9110, 14.1.2).
    """
    first, _, last = value.removeprefix("bytes=").partition("-")
    if first:
        start, stop = int(first), min(int(last) + 1, size_bytes) if last else size_bytes
    else:
        start, stop = max(size_bytes - int(last), 0), size_bytes
    return (start, stop) if start < stop else None


def main() -> None:
    directory, control_path, workers, *certificate = sys.argv[1:]
    catalogs = {path.name: Catalog(path) for path in Path(directory).iterdir()}
    control = Control(Path(control_path))
    tls = None
    if certificate:
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(certificate[0])
    plain, secured = (socket.create_server(("127.0.0.1", 0), backlog=1024) for _ in range(2))
    numbers = range(int(workers))
    link = multiprocessing.Lock()
    # Every worker is a child, so that this process waits only for its stdin.
    for number in numbers:
        if os.fork() == 0:
            worker = Worker(catalogs, control, number, link)
            threading.Thread(target=worker.accept, args=(plain, None), daemon=True).start()
            if tls:
                threading.Thread(target=worker.accept, args=(secured, tls), daemon=True).start()
            break
    else:
        print(json.dumps({"plain": plain.getsockname()[1], "tls": secured.getsockname()[1] if tls else 0}), flush=True)
    # The end of stdin reaches every process: the parent is gone, or wants the server to end.
    os.read(0, 1)
    os._exit(0)


if __name__ == "__main__":
    main()
