"""What is remembered and logged of a repository's whole-object fills: by which way each version came, as which task.

A fill is two log lines, at its begin and its end, with the task's id: the same that dfdaemon's log has, so that one can be found from the
other. As JSON the same facts stand in fields of their own.

Called by fillers; `daemon` and `status` ask it what to show of a version, and of the latest fills.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

import trio
from cachetools import LRUCache

from d7yfs.logs import fields
from d7yfs.objects import ObjectVersion
from d7yfs.stats.models import Model, Models

log = logging.getLogger(__name__)

COMPLETE = "complete"
"""The outcome of a fill that has brought all there was to bring."""

_REMEMBERED = 10_000
"""Versions whose way is known; of older ones only the configured way can be told."""
_SHOWN = 20
"""Ended fills that `status` shows, beside those under way."""


class Fill:
    """One fill. Its filler counts what it brings."""

    def __init__(self, name: str, version: ObjectVersion, route: str, model: Model) -> None:
        self.fetched_bytes = 0
        self.outcome = "stopped"
        """How it ends, in a word or two, if nobody says otherwise."""
        self._name = name
        self._route = route
        self._model = model
        self._facts: dict[str, object] = {"object": name, "route": route, "size_bytes": version.size_bytes}
        self._as_task = ""
        self._began_at: float | None = None

    def begins(self, task_id: str = "") -> None:
        """It is asked for, where Dragonfly has a part in it as this task. Only the first time is told."""
        if self._began_at is not None:
            return
        self._began_at = trio.current_time()
        if task_id:
            self._facts["task_id"] = task_id
            self._as_task = f" as task {task_id}"
        size_bytes = self._facts["size_bytes"]
        log.info(
            "%s: filling %d bytes by %s%s",
            self._name,
            size_bytes,
            self._route,
            self._as_task,
            extra=fields(self._facts),
        )

    def ended(self) -> None:
        """Tell what came of it, unless it never began."""
        if self._began_at is None:
            return
        took_s = trio.current_time() - self._began_at
        if self.outcome == COMPLETE:
            self._model.fills += 1
            self._model.fill_s += took_s
        self._facts |= {"fetched_bytes": self.fetched_bytes, "seconds": round(took_s, 3), "outcome": self.outcome}
        said = f"{self.outcome}: {self.fetched_bytes} bytes by {self._route} in {took_s:.2f} s{self._as_task}"
        log.info("%s: fill %s", self._name, said, extra=fields(self._facts))

    def describe(self) -> dict[str, object]:
        """What its lines in the log say, `outcome` being "under way" before the second one; empty when it never began."""
        if self._began_at is None:
            return {}
        return {"fetched_bytes": self.fetched_bytes, "outcome": "under way"} | self._facts


class Journal:
    """One repository's."""

    def __init__(self, models: Models | None = None) -> None:
        self._models = models or Models()
        self._routes: LRUCache[tuple[str, str, int], str] = LRUCache(_REMEMBERED)
        self._under_way: set[Fill] = set()
        self._ended: deque[Fill] = deque(maxlen=_SHOWN)

    def describe(self) -> list[dict[str, object]]:
        """The latest fills, for `status`: those that have ended in that order, then those under way."""
        return [shown for fill in (*self._ended, *self._under_way) if (shown := fill.describe())]

    def route_of(self, version: ObjectVersion) -> str | None:
        """The way by which `version` was filled last; None when it was not, or long ago."""
        return self._routes.get(version.identity)

    @contextmanager
    def fill(self, name: str, version: ObjectVersion, *, route: str, task_id: str | None = None) -> Iterator[Fill]:
        """A fill that lasts as long as the block. With a `task_id`, which may be empty, it begins at once, else when that is said."""
        fill = Fill(name, version, route, self._models.of(version.key))
        self._under_way.add(fill)
        if task_id is not None:
            fill.begins(task_id)
        try:
            yield fill
        finally:
            if fill.fetched_bytes:
                self._routes[version.identity] = route
            fill.ended()
            self._under_way.discard(fill)
            if fill.describe():
                self._ended.append(fill)
