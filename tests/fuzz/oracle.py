"""The judge: the answers that docs/semantics.md allows, given the versions that the store had and
when.

- An open file is one version. The store had it at open or at most `bound_s` before. That bound is
  the metadata TTL, some slack, and 25 times the duration of listings that the mount reports. In
  trouble the bound counts back from the last quiet moment.
- A read is full up to the end of the file, or an error.
- ESTALE is for versions that were replaced or deleted since they may have been opened. No other
  error is allowed, unless a kill of the daemon excuses it.
- A name that existed all that time is found and listed. A name that never did in that time is not.
- An inode number is one version, for as long as the daemon lives.
"""

from __future__ import annotations

import errno
import json
import os
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from tests.fuzz import content
from tests.fuzz.history import ABSENT, History
from tests.fuzz.phases import Phases
from tests.fuzz.shared import Shared

SETTLING_S = 5.0
LAX_S = 200.0
"""Seconds: the oracle does not search for versions older than this."""
SLOW_S = 25.0
_MOST_RECORDS = 100
_PAGE_BYTES = 4096
_DEAD = frozenset(
    {errno.ENOTCONN, errno.ECONNABORTED, errno.EIO, errno.ENOENT, errno.EBADF, errno.ENODEV, errno.ESTALE}
)


@dataclass(frozen=True)
class Rules:
    """The rules by which a client judges."""

    directory: Path
    points: tuple[Path, ...]
    keys: tuple[str, ...]
    phases: Phases
    bound_s: float
    most_listing_s: float
    """Seconds that a listing counts for at most; half a second if it is one page."""
    kind: str
    seed: int


@dataclass(slots=True)
class Handle:
    """An open file, and the facts known of its version."""

    fd: int
    mount: int
    generation: int
    key: int
    since: float
    """The earliest time whose version this may be."""
    opened: float
    size: int
    ino: int
    mtime_ns: int
    candidates: list[int]
    is_direct: bool = False


@dataclass
class Tally:
    """The counts of one thread."""

    counts: Counter[str] = field(default_factory=Counter)
    slowest: dict[str, float] = field(default_factory=dict)

    def took(self, operation: str, seconds: float) -> None:
        if seconds > self.slowest.get(operation, 0.0):
            self.slowest[operation] = seconds

    def at_most(self, name: str, value: float) -> None:
        self.took(name, value)


class Oracle:
    """The judge of one client process; any thread may call its methods."""

    def __init__(self, rules: Rules, client: int) -> None:
        self.rules = rules
        self.history = History(rules.directory / "history", rules.keys)
        self.history.update()
        self.shared = Shared(rules.directory / "shared")
        self.client = client
        self._records: TextIO = (rules.directory / f"deviations-{client}").open("a", buffering=1)
        self._recorded = 0
        self._lock = threading.Lock()
        self._inodes: dict[tuple[int, int, int], tuple[int, int, int]] = {}

    def close(self) -> None:
        """Close the record of deviations."""
        self._records.close()

    def since(self, at: float) -> float:
        """The earliest time whose versions a mount may show at `at`."""
        bound_s = self.rules.bound_s + 26 * min(self.shared.slowest_listing_s, self.rules.most_listing_s)
        return self.rules.phases.last_peace(at, SETTLING_S) - bound_s

    # --- handles ---

    def opened(self, tally: Tally, fd: int, mount: int, generation: int, key: int, before: float) -> Handle:
        """The handle of a file that was just opened; `before` is a time before open(2)."""
        after = time.monotonic()
        found = os.fstat(fd)
        self.history.update()
        since = before - LAX_S
        sizes = self.history.current(key, since, after)
        candidates = [serial for serial, size in sizes if serial and size == found.st_size]
        handle = Handle(
            fd, mount, generation, key, since, after, found.st_size, found.st_ino, found.st_mtime_ns, candidates
        )
        if not candidates:
            older = self.history.current(key, -1.0, after)
            self.deviation(
                tally,
                "open: size of no version then",
                handle,
                size=found.st_size,
                allowed=sizes,
                once=[(serial, size) for serial, size in older if size == found.st_size][-4:],
            )
            handle.candidates = [serial for serial, size in older if serial and size == found.st_size]
        if len(candidates) == 1:
            self._identified(tally, handle)
        return handle

    def refused(self, tally: Tally, key: int, mount: int, generation: int, before: float, error: OSError) -> None:
        """Judge a failed lookup or open of a name."""
        after = time.monotonic()
        if self.is_excused(mount, generation, error):
            tally.counts["excused " + _name(error)] += 1
            return
        self.history.update()
        since = self.since(before)
        current = self.history.current(key, since, after)
        if error.errno == errno.ENOENT and (any(serial == ABSENT for serial, _ in current) or not current):
            tally.counts["ENOENT of what was absent"] += 1
            changed = self._last_absence_end(key, after)
            tally.at_most("(absence remembered)", before - changed)
            return
        tally.counts["refused " + _name(error)] += 1
        self.deviation(
            tally,
            f"lookup: {_name(error)}",
            None,
            key=self.rules.keys[key],
            mount=mount,
            allowed=current,
        )

    def _last_absence_end(self, key: int, until: float) -> float:
        """The time when the key last came into being, if it exists; else `until`."""
        with_times = list(zip(self.history._times[key], self.history._versions[key], strict=False))
        end = until
        for at, (serial, _) in reversed(with_times):
            if at > until:
                continue
            if serial == ABSENT:
                return end
            end = at
        return until

    def is_excused(self, mount: int, generation: int, error: OSError | None = None) -> bool:
        """True if the mount is no longer the one of that generation."""
        gone = self.shared.generation(mount) != generation or generation % 2 == 1
        return gone and (error is None or error.errno in _DEAD)

    def failed(self, tally: Tally, what: str, handle: Handle, error: OSError) -> bool:
        """Judge an error of an open file. True if it is allowed."""
        if self.is_excused(handle.mount, handle.generation, error):
            tally.counts["excused " + _name(error)] += 1
            return True
        if error.errno == errno.ESTALE and self.may_be_stale(handle):
            tally.counts["ESTALE"] += 1
            return True
        tally.counts[f"wrong {_name(error)}"] += 1
        self.deviation(tally, f"{what}: {_name(error)}", handle)
        return False

    def may_be_stale(self, handle: Handle) -> bool:
        now = time.monotonic()
        self.history.update()
        return not any(self.history.is_steady(handle.key, serial, handle.since, now) for serial in handle.candidates)

    # --- bytes ---

    def read(self, tally: Tally, what: str, handle: Handle, offset: int, asked: int, data: bytes) -> bool:
        """Judge what a read returned. False if the bytes are wrong."""
        counts = tally.counts
        counts["reads"] += 1
        counts["bytes"] += len(data)
        full = max(0, min(asked, handle.size - offset))
        if len(data) != full:
            self._short(tally, what, handle, offset, asked, data, full)
        if not data:
            return True
        candidates = handle.candidates
        if len(candidates) == 1:
            if content.piece(candidates[0], offset, len(data)) == data:
                return True
        else:
            left = [serial for serial in candidates if content.piece(serial, offset, len(data)) == data]
            if left:
                handle.candidates = left
                if len(left) == 1:
                    self._identified(tally, handle)
                return True
        counts["wrong bytes"] += 1
        expected = content.piece(candidates[-1], offset, len(data)) if candidates else b""
        at = content.first_difference(data, expected)
        self.history.update()
        self.deviation(
            tally,
            f"{what}: wrong bytes",
            handle,
            offset=offset,
            asked=asked,
            got=len(data),
            first_wrong_at=offset + at,
            provenance=content.provenance(data, offset, self.history.all_serials()),
            around=data[max(at - 16, 0) : at + 64].hex(),
            key_serials=self.history.current(handle.key, -1.0, time.monotonic())[-12:],
        )
        return False

    def _short(self, tally: Tally, what: str, handle: Handle, offset: int, asked: int, data: bytes, full: int) -> None:
        if self.is_excused(handle.mount, handle.generation):
            tally.counts["excused short"] += 1
            return
        try:
            more: object = len(os.pread(handle.fd, full - len(data), offset + len(data)))
        except OSError as error:
            more = _name(error)
        if self.is_excused(handle.mount, handle.generation):
            tally.counts["excused short"] += 1
            return
        stale = self.may_be_stale(handle)
        if more == "ESTALE" and stale and (offset + len(data)) % _PAGE_BYTES == 0:
            # The kernel hands over the pages that it has; the next read gets the error.
            tally.counts["short at a page's end, then ESTALE"] += 1
            return
        tally.counts[f"short, then {more if isinstance(more, str) else 'more'}{', may be stale' if stale else ''}"] += 1
        self.deviation(
            tally,
            f"{what}: short, then {more if isinstance(more, str) else 'more'}{', may be stale' if stale else ''}",
            handle,
            offset=offset,
            asked=asked,
            got=len(data),
            full=full,
            then=more,
            direct=handle.is_direct,
        )

    def _identified(self, tally: Tally, handle: Handle) -> None:
        serial = handle.candidates[0]
        stale = self._superseded(handle.key, serial, handle.opened)
        if stale is not None:
            tally.at_most("(old version opened)", handle.opened - stale)
            if stale < self.since(handle.opened):
                self.deviation(tally, "open: a version that is too old", handle, age=handle.opened - stale)
        if handle.generation % 2 or self.shared.generation(handle.mount) != handle.generation:
            return
        known = self._inodes.setdefault(
            (handle.mount, handle.generation, handle.ino), (serial, handle.size, handle.mtime_ns)
        )
        if known != (serial, handle.size, handle.mtime_ns):
            self.deviation(
                tally, "inode of two versions", handle, before=known, now=(serial, handle.size, handle.mtime_ns)
            )

    def _superseded(self, key: int, serial: int, at: float) -> float | None:
        """Judge the result of a read. False if the bytes are wrong."""
        times, versions = self.history._times[key], self.history._versions[key]
        stopped: float | None = None
        for when, (found, _) in zip(times, versions, strict=False):
            if when > at:
                break
            stopped = None if found == serial else stopped if stopped is not None else when
        return stopped

    # --- deviations ---

    def deviation(self, tally: Tally, what: str, handle: Handle | None, **more: Any) -> None:
        """Record a forbidden answer."""
        now = time.monotonic()
        tally.counts["deviations"] += 1
        tally.counts["! " + what] += 1
        with self._lock:
            self._recorded += 1
            if self._recorded > _MOST_RECORDS:
                return
        record: dict[str, Any] = {
            "what": what,
            "at": now,
            "wall": time.strftime("%H:%M:%S"),
            "client": self.client,
            "operation": self.shared.done(self.client),
            "seed": self.rules.seed,
            "trouble": bool(self.rules.phases.trouble_s) and self.rules.phases.is_trouble(now),
        }
        if handle is not None:
            record |= {
                "key": self.rules.keys[handle.key],
                "mount": handle.mount,
                "size": handle.size,
                "ino": handle.ino,
                "since": handle.since,
                "opened": handle.opened,
                "candidates": handle.candidates[:6],
                "versions": list(
                    zip(self.history._times[handle.key], self.history._versions[handle.key], strict=False)
                )[-8:],
            }
        self._records.write(json.dumps(record | more, default=str) + "\n")


def _name(error: OSError) -> str:
    return errno.errorcode.get(error.errno or 0, str(error.errno))
