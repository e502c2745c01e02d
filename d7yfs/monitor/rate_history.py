"""The rates of one mount in the last ten minutes, for the picture of its status page.

Bounded: a few numbers per look, of which there are `LOOKS`, and the counters of all models twice.

Kept by `reporter`. Trio thread only.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Sequence
from dataclasses import replace

from d7yfs.stats.activity import WAYS, ActivityStatus, Totals, measure
from d7yfs.stats.status import MountStatus

LOOKS = 120
"""Rates that are kept of each way."""
_MODELS_S = 60.0
"""Least time over which the rates of models are."""


class RateHistory:
    """The rates of one mount from look to look."""

    def __init__(self) -> None:
        self._rates = {way: array("f") for way in WAYS}
        self._looks: deque[Totals] = deque(maxlen=2)
        """The last two, without models."""
        self._models: deque[Totals] = deque(maxlen=2)
        """Two looks, at least `_MODELS_S` apart."""

    def note(self, account: MountStatus) -> None:
        """Take up another look. The time between two is the caller's."""
        now = Totals.of(account)
        if self._looks:
            for way, rates in self._rates.items():
                rates.append(now.rate_since(self._looks[-1], way))
                del rates[:-LOOKS]
        self._looks.append(replace(now, models={}))
        if not self._models or now.span_since(self._models[-1]) >= _MODELS_S:
            self._models.append(now)

    def describe(self, account: MountStatus) -> tuple[dict[str, Sequence[float]], ActivityStatus]:
        """The rates by way, the oldest first, and the activity now: over the last two looks, that of models
        over a minute or two."""
        now = Totals.of(account)
        before = self._looks[0] if self._looks else now
        models_before = self._models[0] if self._models else now
        return {way: tuple(rates) for way, rates in self._rates.items()}, measure(account, before, models_before)
