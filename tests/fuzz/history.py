"""The versions that each key had, and when. The store writes one record before each change, and
every client reads them.

Times are CLOCK_MONOTONIC's, which all processes of a machine share. A record has the store's time.
A client asks for an interval that contains its request to the mount: it gets every version that the
mount may have answered with.
"""

from __future__ import annotations

import os
import struct
import threading
from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

_RECORD = struct.Struct("<IQQd")
ABSENT = 0
"""The serial of a key that does not exist."""


class Writer:
    """The store's end of the record: it appends."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def write(self, key: int, serial: int, size_bytes: int, at: float) -> None:
        os.write(self._fd, _RECORD.pack(key, serial, size_bytes, at))


class History:
    """A client's end of the record: the known versions of `keys`, by index."""

    def __init__(self, path: Path, keys: Sequence[str]) -> None:
        self.keys = keys
        self.index = {key: index for index, key in enumerate(keys)}
        self._fd = os.open(path, os.O_RDONLY)
        self._read_bytes = 0
        self._lock = threading.Lock()
        self._times: list[list[float]] = [[] for _ in keys]
        self._versions: list[list[tuple[int, int]]] = [[] for _ in keys]
        self.sizes: dict[int, int] = {}
        self.key_of: dict[int, int] = {}

    def update(self) -> None:
        """Read the records that are new."""
        with self._lock:
            while new := os.pread(self._fd, 1 << 20, self._read_bytes):
                new = new[: len(new) // _RECORD.size * _RECORD.size]
                if not new:
                    return
                self._read_bytes += len(new)
                for key, serial, size_bytes, at in _RECORD.iter_unpack(new):
                    self._versions[key].append((serial, size_bytes))
                    self._times[key].append(at)
                    self.sizes[serial] = size_bytes
                    self.key_of[serial] = key

    def current(self, key: int, since: float, until: float) -> list[tuple[int, int]]:
        """The versions (serial, size) that were current at any time of the interval, the newest
        last.
        """
        times = self._times[key]
        first = max(bisect_right(times, since) - 1, 0)
        last = bisect_right(times, until)
        return list(dict.fromkeys(self._versions[key][first:last]))

    def is_steady(self, key: int, serial: int, since: float, until: float) -> bool:
        """True if only that version was current during the whole interval."""
        return [found for found, _ in self.current(key, since, until)] == [serial]

    def was_superseded(self, key: int, serial: int, since: float, until: float) -> bool:
        """True if that version was current in the interval and then, for a moment at least, was
        not.
        """
        found = [each for each, _ in self.current(key, since, until)]
        return serial not in found or found[-1] != serial or self._came_back(key, serial, since)

    def _came_back(self, key: int, serial: int, since: float) -> bool:
        stays = [each == serial for each, _ in self._versions[key][max(bisect_right(self._times[key], since) - 1, 0) :]]
        return any(stayed and not stays_on for stayed, stays_on in pairwise(stays))

    def all_serials(self) -> list[int]:
        return [serial for serial in self.sizes if serial]
