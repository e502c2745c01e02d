"""dfdaemon's HTTP proxy as one thing: where it is, what it wants to be told, and whether it is worth asking now.

The `Breaker` is pure (the time is an argument). One `Proxy` serves all repositories that name the same address.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import trio

from d7yfs.fetch.transport import Transport

FIRST_BYTE_TIMEOUT_S = 3.0
"""A hung scheduler keeps dfdaemon silent for 10 s; nobody waits that long when the origin can answer."""

IDLE_TIMEOUT_S = 10.0
"""A stream that stalls for so long is given up: those who already wait for it would go elsewhere."""

MAX_STREAMS = 32
"""Whole-object GETs in flight; each takes a connection and a buffer."""

MAX_REGISTRATIONS = 4
"""Of these, how many may be without a first byte: each is then a registration at the scheduler, which delays concurrent ones."""

_FIRST_PAUSE_S = 5.0
_LONGEST_PAUSE_S = 300.0
_PROBE_S = 10.0
"""A probe that has neither failed nor brought a byte for so long is forgotten, and another one may be tried."""


class Breaker:
    """Closed until a failure; then open for 5 s, doubling up to 300 s; then one request at a time probes. The first byte closes it."""

    def __init__(self) -> None:
        self.trips = 0
        self._open_until = float("-inf")
        self._pause_s = _FIRST_PAUSE_S
        self._open = self._probing = False

    def admits(self, now: float) -> bool:
        """Whether the proxy may be asked now."""
        return now >= self._open_until

    def asked(self, now: float) -> None:
        """A request that was admitted begins. If it is a probe, nobody else is admitted until it has told how it went."""
        if self._open:
            self._probing = True
            self._open_until = now + _PROBE_S

    def failed(self, now: float) -> None:
        """The proxy did not answer, or broke off. Failures of requests from before the breaker opened count once."""
        if self._probing or self.admits(now):
            self.trips += 1
            self._open, self._probing = True, False
            self._open_until = now + self._pause_s
            self._pause_s = min(self._pause_s * 2, _LONGEST_PAUSE_S)

    def succeeded(self) -> None:
        """A byte has come through the proxy."""
        self._open = self._probing = False
        self._open_until = float("-inf")
        self._pause_s = _FIRST_PAUSE_S


@dataclass(slots=True, repr=False)
class Proxy:
    """A dfdaemon proxy. `headers` are the user's own, already freed of names that are ours; their values are secrets."""

    url: str
    transport: Transport
    required: bool
    """No fallback: what the proxy fails to bring is never fetched from the origin instead."""
    headers: Mapping[str, str] = field(default_factory=dict)
    filter: Sequence[str] = ()
    breaker: Breaker = field(default_factory=Breaker)
    streams: trio.CapacityLimiter = field(default_factory=lambda: trio.CapacityLimiter(MAX_STREAMS))
    registrations: trio.CapacityLimiter = field(default_factory=lambda: trio.CapacityLimiter(MAX_REGISTRATIONS))

    @property
    def usable(self) -> bool:
        """Whether a new stream should be tried through it now."""
        return self.required or self.breaker.admits(trio.current_time())
