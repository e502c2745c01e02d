"""The schedule of the store's faults: seconds of trouble, then seconds of quiet.

It follows the clock, so every process knows it without a message.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Phases:
    """Phases that alternate from `start` on: `trouble_s` of trouble, `quiet_s` of quiet; no trouble
    if `trouble_s` is 0.
    """

    start: float
    trouble_s: float
    quiet_s: float

    def is_trouble(self, at: float) -> bool:
        if not self.trouble_s or at < self.start:
            return False
        return (at - self.start) % (self.trouble_s + self.quiet_s) < self.trouble_s

    def last_peace(self, at: float, settling_s: float) -> float:
        """The last moment up to `at` at which quiet had lasted for `settling_s`: by then the mounts
        knew the truth.
        """
        if not self.trouble_s or at < self.start:
            return at
        period = self.trouble_s + self.quiet_s
        into = (at - self.start) % period
        return at if into >= self.trouble_s + settling_s else max(at - into, self.start)
