"""The journal of a repository's whole-object fills: by which way each version came, as which task.

A fill is two log lines, at its begin and its end. They carry the task's id, as dfdaemon's log does,
so that one can be found from the other. As JSON the same facts stand in fields of their own.

Called by fillers; `daemon` and `status` ask it for the way of a version, and for the latest fills.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import trio
from cachetools import LRUCache

from d7yfs.logs import fields
from d7yfs.objects import ObjectVersion
from d7yfs.stats.models import Models
from d7yfs.stats.repository_status import FillStatus, ModelStatus

log = logging.getLogger(__name__)

COMPLETE = "complete"
"""The outcome of a fill that has brought all there was to bring."""

_REMEMBERED = 10_000
"""Versions whose way is known; for older ones only the configured way can be told."""
_SHOWN = 20
"""Ended fills that `status` shows, in addition to those under way."""


class Fill:
    """One whole-object fill. Its filler counts the bytes that it brings."""

    def __init__(self, name: str, version: ObjectVersion, route: str, model: ModelStatus) -> None:
        self.fetched_bytes = 0
        self.outcome = "stopped"
        """The fill's end in a word or two, unless its filler sets another."""
        self._name = name
        self._route = route
        self._model = model
        self._facts: dict[str, object] = {"object": name, "route": route, "size_bytes": version.size_bytes}
        self._as_task = ""
        self._began_at: float | None = None

    def begin(self, task_id: str = "") -> None:
        """Log, once, that the version is asked for, as this task of Dragonfly if there is one."""
        if self._began_at is not None:
            return
        self._began_at = trio.current_time()
        if task_id:
            self._facts["task_id"] = task_id
            self._as_task = f" as task {task_id}"
        said = f"{self._facts['size_bytes']} bytes by {self._route}{self._as_task}"
        log.info("%s: filling %s", self._name, said, extra=fields(self._facts))

    def end(self) -> None:
        """Log the outcome, unless the fill never began."""
        if self._began_at is None:
            return
        took_s = trio.current_time() - self._began_at
        if self.outcome == COMPLETE:
            self._model.fills += 1
            self._model.fill_s += took_s
        self._facts |= {"fetched_bytes": self.fetched_bytes, "seconds": round(took_s, 3), "outcome": self.outcome}
        said = f"{self.outcome}: {self.fetched_bytes} bytes by {self._route} in {took_s:.2f} s{self._as_task}"
        log.info("%s: fill %s", self._name, said, extra=fields(self._facts))

    def describe(self) -> FillStatus | None:
        """The facts of its log lines, "under way" before the second; None before it begins."""
        if self._began_at is None:
            return None
        facts: dict[str, Any] = {"fetched_bytes": self.fetched_bytes, "outcome": "under way"} | self._facts
        return FillStatus(**facts)


class Journal:
    """The fills of one repository: those under way, and the latest that have ended."""

    def __init__(self, models: Models | None = None) -> None:
        self._models = models or Models()
        self._routes: LRUCache[tuple[str, str, int], str] = LRUCache(_REMEMBERED)
        self._under_way: set[Fill] = set()
        self._ended: deque[Fill] = deque(maxlen=_SHOWN)

    def describe(self) -> tuple[FillStatus, ...]:
        """The latest fills, for `status`: the ended ones in that order, then those under way."""
        return tuple(shown for fill in (*self._ended, *self._under_way) if (shown := fill.describe()))

    def route_of(self, version: ObjectVersion) -> str | None:
        """The way by which `version` was filled last; None when it was not, or long ago."""
        return self._routes.get(version.identity)

    @contextmanager
    def fill(self, name: str, version: ObjectVersion, *, route: str, task_id: str | None = None) -> Iterator[Fill]:
        """Open a fill that lasts as long as the block. With a `task_id` it begins at once."""
        fill = Fill(name, version, route, self._models.of(version.key))
        self._under_way.add(fill)
        if task_id is not None:
            fill.begin(task_id)
        try:
            yield fill
        finally:
            if fill.fetched_bytes:
                self._routes[version.identity] = route
            fill.end()
            self._under_way.discard(fill)
            if fill.describe():
                self._ended.append(fill)
