"""How full the models of one repository are: of their files that were opened, how much is cached, and how long that took. Pure.

What counts is what somebody opened, a reader or a warm-up: versions that no server loads say nothing about those that it does. Of each
model (`models`) the last FILES such files count, each as its newest version, until the repository has them no more.

- A *load* begins when a file is opened of which something is missing, and is over when nothing is missing of any that is open. One that
  is closed before it was whole is not waited for. What is opened within PAUSE_S goes on with the same load: servers open file after file.
- What is cached of a file in use is known, at the cost of a look into a dictionary. Of one that is closed it is what was cached then, until
  it is looked at again: evictions and other daemons change it behind our back. A look is a small file read, so `describe` has them
  made in turn: two to five milliseconds of a thread every five seconds, however many files there are, and none where nobody asks. What
  they find is shown by the next `describe`.

Made and called by `filesystem`; `status` shows it.
"""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field
from functools import partial

from d7yfs.objects import ObjectVersion
from d7yfs.stats.models import OTHER, TOP, Models

FILES = 256
"""Of one model, those opened last."""

PAUSE_S = 30.0
"""So long after all was there the next missing file still belongs to the same load."""

LOOK_PERIOD_S = 5.0
LOOK_FILES = 50
_LOOK_BYTES = 16 << 30
"""Their size: what a look reads grows with it, by eight bytes per MiB."""


OpenBytes = Callable[[ObjectVersion], int | None]
Look = Callable[[Sequence[ObjectVersion], Callable[[list[int]], None]], None]


@dataclass(frozen=True, slots=True)
class Full:
    """One model, for `status`."""

    files: int = 0
    size_bytes: int = 0
    """Of the files that count."""
    cached_bytes: int = 0
    """Of these."""
    loads: int = 0
    """That have begun."""
    load_s: float | None = None
    """How long the last one took that brought anything whole: from its first open until the last such file was there."""


@dataclass(slots=True)
class _File:
    version: ObjectVersion
    opens: int = 0
    """That were not closed yet."""
    cached_bytes: int = 0
    """When it was looked at last."""
    awaited: bool = False
    """Open, and something is missing."""
    gone: bool = False
    """The repository has it no more."""


@dataclass(slots=True)
class _Model:
    files: OrderedDict[str, _File] = field(default_factory=OrderedDict)
    """By key, the one opened last at the end."""
    awaited: int = 0
    loads: int = 0
    began_at: float = -math.inf
    whole_at: float = -math.inf
    ended_at: float = -math.inf
    load_s: float | None = None

    def stop_waiting(self, file: _File, now: float) -> None:
        if not file.awaited:
            return
        file.awaited = False
        self.awaited -= 1
        if not self.awaited:
            self.ended_at = now
            if self.whole_at >= self.began_at:
                self.load_s = self.whole_at - self.began_at

    def drop(self, key: str, now: float) -> None:
        self.stop_waiting(self.files.pop(key), now)


class Fullness:
    """One repository's. Times are monotonic seconds.

    `open_bytes` tells how much of a version is cached that is open, and None of one that is not. `look` finds out how much of others is
    cached, without making anybody wait, and tells the function that it is given, from a thread.
    """

    def __init__(self, models: Models, open_bytes: OpenBytes, look: Look) -> None:
        self._names = models
        self._open_bytes = open_bytes
        self._look_at_versions = look
        self._models: dict[str, _Model] = {}
        self._turns: deque[_File] = deque()
        self._look_at = -math.inf
        self._looking = False

    def opened(self, version: ObjectVersion, now: float, *, whole: bool) -> bool:
        """It was opened, and all of it was there or not. True: tell `whole` when it is."""
        self._names.of(version.key)
        model = self._models.setdefault(self._names.label_of(version.key), _Model())
        file = model.files.get(version.key)
        if file is None or file.version.identity != version.identity:
            if file is not None:
                model.drop(version.key, now)
            elif len(model.files) >= FILES:
                model.drop(next(iter(model.files)), now)
            file = model.files[version.key] = _File(version)
        model.files.move_to_end(version.key)
        file.opens += 1
        file.gone = False
        if whole or file.awaited:
            return False
        if not model.awaited and now > model.ended_at + PAUSE_S:
            model.loads += 1
            model.began_at = now
        file.awaited = True
        model.awaited += 1
        return True

    def whole(self, version: ObjectVersion, now: float) -> None:
        """All of it is there now."""
        if (found := self._find(version)) is not None and found[1].awaited:
            model, file = found
            model.whole_at = now
            model.stop_waiting(file, now)

    def closed(self, version: ObjectVersion, now: float, cached_bytes: int) -> None:
        """Takes back one `opened`; so much of it is cached."""
        if (found := self._find(version)) is None:
            return
        model, file = found
        file.opens = max(0, file.opens - 1)
        if not file.opens:
            file.cached_bytes = cached_bytes
            model.stop_waiting(file, now)
            if file.gone:
                del model.files[version.key]

    def forget(self, prefix: str, names: Container[str]) -> None:
        """The directory at `prefix` has these names no more, or something else under them."""
        of_one = {self._names.label_of(prefix), OTHER} if self._names.name_of(prefix) != TOP else self._models.keys()
        for model in (self._models[name] for name in of_one if name in self._models):
            for key in [*model.files]:
                if key.startswith(prefix) and key[len(prefix) :].partition("/")[0] in names:
                    if model.files[key].opens:
                        model.files[key].gone = True
                    else:
                        del model.files[key]

    def describe(self, now: float) -> dict[str, Full]:
        """By model, under the names of `Models.all`."""
        self._look(now)
        return {name: self._sum(model) for name, model in self._models.items()}

    def _find(self, version: ObjectVersion) -> tuple[_Model, _File] | None:
        for name in (self._names.label_of(version.key), OTHER):  # the limit may have risen since it was opened
            model = self._models.get(name)
            file = model.files.get(version.key) if model is not None else None
            if model is not None and file is not None and file.version.identity == version.identity:
                return model, file
        return None

    def _look(self, now: float) -> None:
        if self._looking or now < self._look_at:
            return
        self._look_at = now + LOOK_PERIOD_S
        if not self._turns:
            self._turns.extend(file for model in self._models.values() for file in model.files.values())
        due: list[_File] = []
        looked_bytes = 0
        for _ in range(min(LOOK_FILES, len(self._turns))):
            if looked_bytes >= _LOOK_BYTES:
                break
            file = self._turns.popleft()
            if not file.opens:
                due.append(file)
                looked_bytes += file.version.size_bytes
        if due:
            self._looking = True
            self._look_at_versions([file.version for file in due], partial(self._looked, due))

    def _looked(self, files: list[_File], cached_bytes: list[int]) -> None:
        # From a thread: each is one assignment.
        for file, found in zip(files, cached_bytes, strict=True):
            file.cached_bytes = found
        self._looking = False

    def _cached_bytes(self, file: _File) -> int:
        open_bytes = self._open_bytes(file.version) if file.opens else None
        return file.cached_bytes if open_bytes is None else open_bytes

    def _sum(self, model: _Model) -> Full:
        files = model.files.values()
        return Full(
            files=len(files),
            size_bytes=sum(file.version.size_bytes for file in files),
            cached_bytes=sum(self._cached_bytes(file) for file in files),
            loads=model.loads,
            load_s=model.load_s,
        )
