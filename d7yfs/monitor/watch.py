"""Watches for problems of one mount: keeps since when each is there, and logs when it begins and ends.

It judges at each look at the account (`status`, health, scrapes), and every `PERIOD_S` by itself, so
that the log has both lines without anybody asking.

Run by `reporter`. Trio thread only.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import replace

import trio

from d7yfs.monitor.problems import EXPLAINING, find_problems, show_span
from d7yfs.stats.problems import ProblemStatus
from d7yfs.stats.status import MountStatus

log = logging.getLogger(__name__)

PERIOD_S = 5.0
"""Pause between two looks. A problem that nobody asks about is logged so late."""


class ProblemWatch:
    """The problems of one mount from look to look. `clock` is time.time()."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._known: dict[tuple[str, str], ProblemStatus] = {}
        self._explained: dict[str, float] = {}
        """When a problem that explains reads which fail was last seen, by repository."""

    def judge(self, account: MountStatus) -> MountStatus:
        """`account` with its problems; logs what has begun or ended since the last one."""
        now = self._clock()
        begun = {key: each.since for key, each in self._known.items()}
        found = find_problems(account, begun, self._explained, now)
        self._explained |= {each.repository: now for each in found if each.code in EXPLAINING}
        before, self._known = self._known, {(each.code, each.repository): each for each in found}
        for key, each in self._known.items():
            if key not in before:
                log.warning("%s: %s", each.code, each.line)
        for key, each in before.items():
            if key not in self._known:
                of = f" of {each.repository}" if each.repository else ""
                log.info("%s%s is over, after %s", each.code, of, show_span(now - each.since))
        return replace(account, problems=found)

    async def run(self, look: Callable[[], object]) -> None:
        """`look` at the account now and then, until cancelled."""
        while True:
            look()
            await trio.sleep(PERIOD_S)
