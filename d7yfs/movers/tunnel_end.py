"""The engine's end of a tunnel: a connection whose TLS a mover ends (`tunnel`).

Made by `pool`, and owned by a connection of `fetch`. Trio thread only.
"""

from __future__ import annotations

import contextlib
import socket
from typing import Protocol

import trio

from d7yfs.movers.protocol import TunnelState, TunnelWord


class TunnelMover(Protocol):
    """The mover on the other side."""

    busy_at: float

    @property
    def tunnels(self) -> dict[int, TunnelEnd]: ...


class TunnelEnd:
    """The engine's end of a connection whose TLS a mover ends. Its socket has the plain bytes."""

    def __init__(self, number: int, mover: TunnelMover, pair: socket.socket) -> None:
        self.number = number
        self.socket = pair
        self.mover = mover
        self._words: list[TunnelWord] = []
        self._opened, self._ended = trio.Event(), trio.Event()
        self._in_use = True

    @property
    def in_use(self) -> bool:
        """True while a request is under way on it: its mover may not end."""
        return self._in_use

    @in_use.setter
    def in_use(self, in_use: bool) -> None:
        self._in_use = in_use
        self.mover.busy_at = trio.current_time()

    async def opened(self) -> TunnelWord:
        """The first word: the outcome of the handshake."""
        await self._opened.wait()
        return self._words[0]

    async def ended(self) -> TunnelWord:
        """The last word, once the socket has ended, or fails. A mover says it before."""
        await self._ended.wait()
        return self._words[-1]

    def hear(self, word: TunnelWord) -> None:
        self._words.append(word)
        self._opened.set()
        if word.state is not TunnelState.OPEN:
            self._ended.set()
            with contextlib.suppress(OSError):
                self.socket.shutdown(socket.SHUT_RDWR)  # a mover that hangs does not close its side

    def close(self) -> None:
        """Close it; the mover closes the connection then."""
        self.mover.tunnels.pop(self.number, None)
        self.socket.close()
