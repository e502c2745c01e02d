"""The program that parses the pages of large listings, beside an engine: XML in, columns out.

    python -m d7yfs.origins.parser FD VALIDATOR [ARCHIVE …]        FD: its end of a socket pair

It has no keys and no connections. It ends with its engine, as the channel closes then, and when it has
had nothing to do for a while. Started by `parser_process`. Imports no event loop, no HTTP and no SDK.
"""

from __future__ import annotations

import contextlib
import signal
import socket
import struct
import sys
from collections.abc import Container

from d7yfs.origins.listing_columns import encode
from d7yfs.origins.xml_listing import parse_listing

READY = b"1"
"""Its first word, once it takes pages: the version of what is said here."""
IDLE_S = 10.0
"""Seconds without a page after which it ends."""
_LENGTH = struct.Struct("=I")
_MESSAGE_MAX_BYTES = 64 << 20


def send(channel: socket.socket, message: bytes) -> None:
    """Send a message whole. Raises OSError."""
    channel.sendall(_LENGTH.pack(len(message)) + message)


def receive(channel: socket.socket) -> bytes:
    """The next message. Raises OSError, and EOFError if the other side has closed."""
    (size_bytes,) = _LENGTH.unpack(_receive_exactly(channel, _LENGTH.size))
    if size_bytes > _MESSAGE_MAX_BYTES:
        raise OSError(f"a message of {size_bytes} bytes")
    return bytes(_receive_exactly(channel, size_bytes))


def _receive_exactly(channel: socket.socket, size_bytes: int) -> bytearray:
    received = bytearray(size_bytes)
    left = memoryview(received)
    while left:
        count = channel.recv_into(left)
        if not count:
            raise EOFError
        left = left[count:]
    return received


def serve(channel: socket.socket, validator: str, archives: Container[str]) -> None:
    """Answer each page with its columns, or with nothing if the engine must read it itself. Raises
    OSError and EOFError at the end."""
    channel.sendall(READY)
    channel.settimeout(IDLE_S)
    while True:
        body = receive(channel)
        try:
            columns = encode(parse_listing(body, archives=archives, validator=validator))
        except ValueError:  # whose words are the engine's
            columns = b""
        send(channel, columns)


def main() -> None:
    """Parse until the channel is closed."""
    # The engine closes the channel; a terminal and systemd signal all processes of a mount.
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    fd, validator, *archives = sys.argv[1:]
    with socket.socket(fileno=int(fd)) as channel, contextlib.suppress(OSError, EOFError):
        serve(channel, validator, archives)


if __name__ == "__main__":
    main()
