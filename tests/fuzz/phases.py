"""When the store has faults: some seconds of trouble, some of quiet, by the clock, so that every process knows it without being told."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Phases:
    """Trouble for `trouble_s`, then quiet for `quiet_s`, and so on from `start` on; no trouble at all where `trouble_s` is 0."""

    start: float
    trouble_s: float
    quiet_s: float

    def is_trouble(self, at: float) -> bool:
        if not self.trouble_s or at < self.start:
            return False
        return (at - self.start) % (self.trouble_s + self.quiet_s) < self.trouble_s

    def last_peace(self, at: float, settling_s: float) -> float:
        """The last moment up to `at` at which quiet had lasted for `settling_s`; what was true then was known then."""
        if not self.trouble_s or at < self.start:
            return at
        period = self.trouble_s + self.quiet_s
        into = (at - self.start) % period
        return at if into >= self.trouble_s + settling_s else max(at - into, self.start)
