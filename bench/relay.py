"""The program behind `bench.minio`: a TCP relay in front of a real store, which shapes and counts
the store's bytes.

All connections share one link, as in `bench.store_server`, whose control file it uses. It applies
the rate of all bodies together, and counts bytes, heads included. It passes requests unchanged, so
signatures hold.

    python -m bench.relay UPSTREAM-PORT CONTROL     prints its port; ends with its stdin
"""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

from bench.store_server import BYTES, COUNTERS, SLOT_BYTES, Control

_CHUNK_BYTES = 128 << 10


class Relay:
    """The state that all connections share."""

    def __init__(self, upstream_port: int, control: Control) -> None:
        self._upstream_port = upstream_port
        self._control = control
        self._slots = memoryview(control.memory)[SLOT_BYTES : SLOT_BYTES + COUNTERS.size].cast("Q")
        self._lock = threading.Lock()

    def accept(self, listener: socket.socket) -> None:
        """Serve connections forever."""
        while True:
            connection, _ = listener.accept()
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with suppress(OSError), client, socket.create_connection(("127.0.0.1", self._upstream_port)) as upstream:
            for each in (client, upstream):
                each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=_pass_on, args=(client, upstream), daemon=True).start()
            buffer = memoryview(bytearray(_CHUNK_BYTES))
            while count := upstream.recv_into(buffer):
                client.sendall(buffer[:count])
                self._pace(count)
            client.shutdown(socket.SHUT_RDWR)

    def _pace(self, count: int) -> None:
        *_, total_bytes_per_s = self._control.shape()
        now = time.monotonic()
        with self._lock:
            self._slots[BYTES] += count
            turn = self._control.reserve(count / total_bytes_per_s, now) if total_bytes_per_s else now
        if turn > now:
            time.sleep(turn - now)


def _pass_on(source: socket.socket, sink: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(_CHUNK_BYTES):
            sink.sendall(data)
        sink.shutdown(socket.SHUT_RDWR)


def main() -> None:
    port, control_path = sys.argv[1:]
    relay = Relay(int(port), Control(Path(control_path)))
    listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
    threading.Thread(target=relay.accept, args=(listener,), daemon=True).start()
    print(listener.getsockname()[1], flush=True)
    os.read(0, 1)
    os._exit(0)


if __name__ == "__main__":
    main()
