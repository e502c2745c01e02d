"""Whether an OPEN waits until its file is whole, so that the kernel reads it by itself. Pure.

A file that is whole at its OPEN costs one copy of each byte, any other one three, and a request for
each MiB. But a reader may want a few bytes of it only. So an OPEN waits only if the rest is expected
within a bound, and not again soon after that was wrong: a store that fails or is slow costs few
readers the bound.
"""

from __future__ import annotations

import math

SOBER_S = 10.0
"""How long no OPEN waits after one that waited in vain."""


class Patience:
    """The patience of one repository's OPENs, each of which waits `bound_s` at most; 0 for none."""

    def __init__(self, bound_s: float) -> None:
        self.bound_s = bound_s
        self._sober_until = -math.inf

    def is_worth_it(self, expected_s: float, now: float) -> bool:
        """True if an OPEN is to wait for bytes that are expected within so many seconds."""
        return 0 < self.bound_s >= expected_s and now >= self._sober_until

    def disappoint(self, now: float) -> None:
        """Note that bytes have not come in time."""
        self._sober_until = now + SOBER_S
