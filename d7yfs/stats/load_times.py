"""How full the models of one repository are: how much of their opened files is cached, and how long
loads took. Pure.

Only files that a reader or a warm-up has opened count: versions that no server loads say nothing
about those that it does. Of each model (`models`) the last FILES such files count, each as its
newest version, until they are deleted.

- A *load* begins when an incomplete file is opened, and ends when all open files are complete. A
  file that is closed before it is complete is not waited for. A file that is opened within PAUSE_S
  continues the same load, because servers open file after file.
- The cached bytes of an open file are known, at the cost of a look into a dictionary. Those of a
  closed file are as they were when it was closed, until it is checked again: evictions and other
  daemons change them. A check reads a small file, so `measure` has them made in turn: two to five
  milliseconds of a thread every five seconds, for any number of files, and none while no client
  asks. The next `measure` shows the results.

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
from d7yfs.stats.repository_status import ModelStatus
from d7yfs.stats.status import blank

FILES = 256
"""Files of one model that count: those opened last."""

PAUSE_S = 30.0
"""Within this time after a load an incomplete file still belongs to it."""

LOOK_PERIOD_S = 5.0
LOOK_FILES = 50
_LOOK_BYTES = 16 << 30
"""Size of the files of one round: a check reads eight bytes per MiB of a file."""


OpenBytes = Callable[[ObjectVersion], int | None]
Look = Callable[[Sequence[ObjectVersion], Callable[[list[int]], None]], None]


@dataclass(slots=True)
class _File:
    version: ObjectVersion
    opens: int = 0
    """Handles that were not closed yet."""
    cached_bytes: int = 0
    """Cached bytes at the last check."""
    awaited: bool = False
    """True while it is open and incomplete."""
    gone: bool = False
    """True if it was deleted from the repository."""


@dataclass(slots=True)
class _Model:
    files: OrderedDict[str, _File] = field(default_factory=OrderedDict)
    """By key, the file opened last at the end."""
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
    """The fullness of one repository's models. Times are monotonic seconds.

    `open_bytes` returns how much of an open version is cached, and None for a closed one. `look`
    finds out how much of closed versions is cached; it returns at once and calls the given function
    from a thread.
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
        """Count an open. True if the file is incomplete, and `whole` must be called later."""
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
        """Note that a file is complete now."""
        if (found := self._find(version)) is not None and found[1].awaited:
            model, file = found
            model.whole_at = now
            model.stop_waiting(file, now)

    def closed(self, version: ObjectVersion, now: float, cached_bytes: int) -> None:
        """Take back one `opened`; `cached_bytes` of the file are cached now."""
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
        """Drop files of these names in the directory at `prefix`: deleted or replaced ones."""
        of_one = {self._names.label_of(prefix), OTHER} if self._names.name_of(prefix) != TOP else self._models.keys()
        for model in (self._models[name] for name in of_one if name in self._models):
            for key in [*model.files]:
                if key.startswith(prefix) and key[len(prefix) :].partition("/")[0] in names:
                    if model.files[key].opens:
                        model.files[key].gone = True
                    else:
                        del model.files[key]

    def measure(self, now: float) -> dict[str, ModelStatus]:
        """The models of `Models.all`, and how full each is."""
        self._look(now)
        shown = self._names.all()
        for name, model in self._models.items():
            files, status = model.files.values(), shown.setdefault(name, blank(ModelStatus))
            status.files = len(files)
            status.size_bytes = sum(file.version.size_bytes for file in files)
            status.cached_bytes = sum(self._cached_bytes(file) for file in files)
            status.loads, status.load_s = model.loads, model.load_s
        return shown

    def _find(self, version: ObjectVersion) -> tuple[_Model, _File] | None:
        for name in (self._names.label_of(version.key), OTHER):  # the limit may have risen
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
