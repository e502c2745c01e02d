"""Faults of a network that a reply meets: resets, cuts, slices, stalls, limits of bytes and of
bandwidth.
"""

from __future__ import annotations

import random
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

_SLICED_BYTES = 24 << 10
"""Bytes of a reply that are sliced; the rest goes out in whole chunks."""


@dataclass(frozen=True)
class Fault:
    """A fault of one reply."""

    kind: str
    at: int = 0
    """Bytes before the fault, the head included."""
    seconds: float = 0.0
    rate: int = 0


class Budget:
    """The bytes that a connection may carry, as a limit on the network path allows."""

    def __init__(self, rng: random.Random) -> None:
        self.rest = rng.randint(1, 24 << 20) if rng.random() < 0.3 else 1 << 60


def hang_up(connection: socket.socket) -> None:
    """End the connection from another thread.

    It does not close the socket: the writing thread might then write to another connection with the
    same descriptor.
    """
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


def reset(connection: socket.socket) -> None:
    """End the connection with a TCP RST, from the thread that serves it."""
    with suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.close()


def choose(rng: random.Random, body_bytes: int) -> Fault:
    """A random fault for a reply with a body of that size."""
    inside = rng.choice([0, rng.randint(1, 200), rng.randint(200, 500), rng.randint(0, body_bytes + 400)])
    kind = rng.choices(
        ["reset", "cut", "slice", "stall", "stall-reset", "stall-cut", "slow", "slice-reset"], [4, 4, 5, 3, 2, 2, 2, 2]
    )[0]
    seconds = rng.choice([0.05, 0.3, 1.0, 3.0]) if "stall" in kind else 0.0
    return Fault(kind, inside, seconds, rng.choice([200_000, 1_000_000, 4_000_000]) if kind == "slow" else 0)


def send(
    connection: socket.socket, chunks: Iterator[bytes], fault: Fault | None, budget: Budget | None, rng: random.Random
) -> tuple[int, bool]:
    """Send a reply. Returns the bytes sent, and True if the connection may go on."""
    sent = 0
    slices = fault is not None and fault.kind.startswith("slice")
    for chunk in chunks:
        rest = memoryview(chunk)
        while rest:
            part = rest
            if fault is not None and sent < fault.at:
                part = part[: fault.at - sent]
            elif fault is not None and sent == fault.at:
                if fault.seconds:
                    time.sleep(fault.seconds)
                if fault.kind.endswith("reset"):
                    reset(connection)
                    return sent, False
                if fault.kind.endswith("cut"):
                    return sent, False
                fault = Fault(fault.kind, -1, 0, fault.rate)
            if slices and sent < _SLICED_BYTES:
                part = part[: rng.choice([1, 2, 7, 64, 500])]
                if rng.random() < 0.02:
                    time.sleep(0.001)
            if fault is not None and fault.rate:
                part = part[:16384]
                time.sleep(len(part) / fault.rate)
            if budget is not None:
                if not budget.rest:
                    return sent, False
                part = part[: budget.rest]
                budget.rest -= len(part)
            connection.sendall(part)
            sent += len(part)
            rest = rest[len(part) :]
    return sent, True
