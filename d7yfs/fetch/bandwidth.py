"""Measures an origin: how fast it is in all, how long one request takes, and so how much must be in flight to keep it busy. Pure.

The window is twice the bandwidth-delay product, of the best rate seen lately and of the *least* time that a part takes when nothing queues:
twice, so that it grows as long as more in flight brings more; the least time, so that a queue of our own making does not count as delay.

Fed by the `Fetcher`; read by fillers and, through them, by the filesystem's readahead windows. `now` is monotonic seconds.
"""

from __future__ import annotations

from collections import deque

from d7yfs.objects import PART_BYTES

LEAST_WINDOW_BYTES = 32 << 20
MOST_WINDOW_BYTES = 256 << 20

_INTERVAL_S = 0.25
_MEMORY_S = 10.0
_SAMPLE_BYTES = 1 << 20
"""Smaller transfers say more about the sender's first window than about the rate of a connection."""
_FORGET = 1.02
"""Per sample: an origin that has become slower is believed after some dozens of requests."""


class Bandwidth:
    """One origin's rate and delay, as seen by the requests of this process."""

    def __init__(self) -> None:
        self.first_byte_s = 0.0
        """The least time to the first byte, lately; 0 before the first sample."""
        self.connection_bytes_s = 0.0
        """The best rate of one response, lately."""
        self._interval_start = float("-inf")
        self._interval_bytes = 0
        self._rates: deque[tuple[float, float]] = deque()

    def landed(self, size_bytes: int, now: float) -> None:
        """Bytes have arrived, on whichever connection."""
        if now - self._interval_start >= _INTERVAL_S:
            elapsed_s = now - self._interval_start
            if elapsed_s < 2 * _INTERVAL_S:
                self._rates.append((now, self._interval_bytes / elapsed_s))
            while self._rates and now - self._rates[0][0] > _MEMORY_S:
                self._rates.popleft()
            self._interval_start, self._interval_bytes = now, 0
        self._interval_bytes += size_bytes

    def replied(self, size_bytes: int, first_byte_s: float, body_s: float) -> None:
        """A request has ended: its first byte came after `first_byte_s`, and `size_bytes` within `body_s` from then."""
        self.first_byte_s = min(self.first_byte_s * _FORGET, first_byte_s) if self.first_byte_s else first_byte_s
        if size_bytes >= _SAMPLE_BYTES and body_s > 0:
            self.connection_bytes_s = max(self.connection_bytes_s / _FORGET, size_bytes / body_s)

    @property
    def total_bytes_s(self) -> float:
        """The best rate of all connections together in the last seconds; 0 while unknown."""
        return max((rate for _, rate in self._rates), default=0.0)

    @property
    def window_bytes(self) -> int:
        """How much should be in flight for a reader that takes all it can get."""
        if not self.connection_bytes_s:
            return LEAST_WINDOW_BYTES
        part_s = self.first_byte_s + PART_BYTES / self.connection_bytes_s
        wanted = int(2 * self.total_bytes_s * part_s)
        return min(max(wanted, LEAST_WINDOW_BYTES), MOST_WINDOW_BYTES)
