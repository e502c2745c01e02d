"""What a network does to a reply on its way: resets, cuts, slices, stalls, limits of bytes and of bandwidth."""

from __future__ import annotations

import random
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

_SLICED_BYTES = 24 << 10
"""So much of a reply is sliced; the rest goes out as it comes."""


@dataclass(frozen=True)
class Fault:
    """One fault of one reply."""

    kind: str
    at: int = 0
    """After so many bytes, head and all."""
    seconds: float = 0.0
    rate: int = 0


class Budget:
    """How many bytes a connection may carry, as a limit on the way has it."""

    def __init__(self, rng: random.Random) -> None:
        self.rest = rng.randint(1, 24 << 20) if rng.random() < 0.3 else 1 << 60


def hang_up(connection: socket.socket) -> None:
    """End it from another thread. (Not by close: the thread that writes might then write to another connection of that number.)"""
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


def reset(connection: socket.socket) -> None:
    """End it with a TCP RST, from the thread that serves it."""
    with suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.close()


def choose(rng: random.Random, body_bytes: int) -> Fault:
    """A fault for a reply with so long a body."""
    inside = rng.choice([0, rng.randint(1, 200), rng.randint(200, 500), rng.randint(0, body_bytes + 400)])
    kind = rng.choices(
        ["reset", "cut", "slice", "stall", "stall-reset", "stall-cut", "slow", "slice-reset"], [4, 4, 5, 3, 2, 2, 2, 2]
    )[0]
    seconds = rng.choice([0.05, 0.3, 1.0, 3.0]) if "stall" in kind else 0.0
    return Fault(kind, inside, seconds, rng.choice([200_000, 1_000_000, 4_000_000]) if kind == "slow" else 0)


def send(
    connection: socket.socket, chunks: Iterator[bytes], fault: Fault | None, budget: Budget | None, rng: random.Random
) -> tuple[int, bool]:
    """Send a reply; how many bytes were sent, and whether the connection may go on."""
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
