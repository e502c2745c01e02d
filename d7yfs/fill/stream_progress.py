"""The progress of one stream through dfdaemon: how far it is, how fast, and for how long it has been
silent. `StreamFiller` keeps one while a stream runs, and `route` decides by its `state`.
"""

from __future__ import annotations

import trio

from d7yfs.fetch import silence
from d7yfs.fetch.dragonfly_proxy import Limits, Registration
from d7yfs.fill.route import Stream
from d7yfs.objects import ByteRange

_SHORTEST_RATED_S = 0.1
"""Seconds: a rate is not judged by less, as the first buffer is no rate."""


class StreamProgress:
    """The progress of a stream that runs now. Of a `trial`, a stream through a dfdaemon that failed
    before, nothing is expected until its first byte.
    """

    __slots__ = (
        *("_first_byte_at", "_last_byte_at", "_least_patience_s", "_limits", "_longest_gap_s", "_rated_from"),
        *("_trial", "position", "registration", "wanted"),
    )

    def __init__(self, wanted: ByteRange, limits: Limits, least_patience_s: float, *, trial: bool) -> None:
        self._limits, self._least_patience_s, self._trial = limits, least_patience_s, trial
        self.begin_anew(wanted)
        self._last_byte_at = trio.current_time()
        """Time of the request, while there is no byte."""
        self.registration: Registration | None = None
        """Its slot at the scheduler, taken or not."""

    def begin_anew(self, wanted: ByteRange) -> None:
        """Begin again with `wanted`."""
        self.wanted = wanted
        self.position = self._rated_from = wanted.start
        self._first_byte_at: float | None = None
        self._longest_gap_s = 0.0

    @property
    def is_on_trial(self) -> bool:
        """True if readers do not wait for it."""
        return self._trial and self._first_byte_at is None

    def advance(self, position: int) -> None:
        now = trio.current_time()
        if self._first_byte_at is None:
            self._first_byte_at = now
            self._rated_from = self.position
        else:
            self._longest_gap_s = max(self._longest_gap_s, now - self._last_byte_at)
        self._last_byte_at = now
        self.position = position

    def patience(self) -> float:
        """The seconds of silence after which readers go elsewhere."""
        begun = self._first_byte_at is not None
        usual_s = silence.patience_s(self._longest_gap_s) if begun else self._limits.patience()
        return max(usual_s, self._least_patience_s)

    def alive_at(self) -> float:
        """Time of the last reason to expect bytes."""
        return max(self._last_byte_at, self.registration.alive_at() if self.registration else self._last_byte_at)

    def state(self) -> Stream:
        now = trio.current_time()
        silent_s, patience_s = now - self.alive_at(), self.patience()
        begun_s = now - self._first_byte_at if self._first_byte_at is not None else 0.0
        rate = 0.0
        if self._first_byte_at is not None and silent_s < patience_s:
            rate = (self.position - self._rated_from) / max(begun_s, _SHORTEST_RATED_S)
        return Stream(self.wanted.start, self.position, self.wanted.stop, rate, silent_s, begun_s, patience_s)
