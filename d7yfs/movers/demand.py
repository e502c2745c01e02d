"""How many movers the bytes that come are worth. Pure; times are monotonic seconds.

A mover is worth its memory when bytes come faster than the engine's one thread should carry beside
its readers. It ends when nothing has come for a while.
"""

from __future__ import annotations

_INTERVAL_S = 0.05
_FIRST_BYTES_S = 100e6
"""The rate at which the first mover starts: a tenth of what a thread can receive and write, …"""
_EACH_BYTES_S = 600e6
"""… and the rate that each one carries before there is another."""
IDLE_S = 10.0
"""Seconds without a job after which a mover ends, …"""
TUNNEL_IDLE_S = 60.0
"""… and with connections that wait for another request: as long as they are kept."""


class Demand:
    """The rate at which bytes of bodies come, through the engine and its movers together."""

    def __init__(self, limit: int, *, at_once: bool = False) -> None:
        """With `at_once` the first bytes are worth `limit` movers, whatever their rate."""
        self.limit = limit
        """The most movers, 0 for none at all."""
        self._at_once = at_once
        self._began_at = float("-inf")
        self._bytes = 0
        self._rate_bytes_s = 0.0

    def count(self, size_bytes: int, now: float) -> None:
        """Count bytes that have come."""
        self._bytes += size_bytes
        elapsed_s = now - self._began_at
        if elapsed_s >= _INTERVAL_S:
            # After a pause the interval says nothing of the rate now.
            self._rate_bytes_s = self._bytes / elapsed_s if elapsed_s < 4 * _INTERVAL_S else 0.0
            self._began_at, self._bytes = now, 0

    @property
    def movers(self) -> int:
        """The movers that are worth it now."""
        if self._at_once:
            return self.limit
        if self._rate_bytes_s < _FIRST_BYTES_S:
            return 0
        return min(self.limit, 1 + int(self._rate_bytes_s / _EACH_BYTES_S))
