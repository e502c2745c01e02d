"""The shares of this process's file descriptors: how many the cache may have, and for what.

Each open version holds one, that of its map. A quarter of all may be data files besides; beyond
that the data files of idle versions are closed, the longest awake first. No version is opened that
would leave less than the headroom: sockets, threads and the control socket live on that.

Used by `Cache` and `CachedVersion`. Trio thread only.
"""

from __future__ import annotations

import os
from functools import partial

import trio

from d7yfs.cache.data_file import DataFile
from d7yfs.cache.disk import Lane
from d7yfs.errors import ReadTimeout
from d7yfs.host.descriptors import SHORTAGE
from d7yfs.host.process import descriptor_limit

_HEADROOM = 128
"""At least so many descriptors stay free, if that is no more than half."""
_RETRY_S = 0.5
_TRIES = 8
"""How many versions are asked to rest at a time: most are idle, or else none need be."""


class Descriptors:
    """The data files that are open now, within the share of a process with `limit` descriptors."""

    def __init__(self, limit: int | None = None) -> None:
        limit = descriptor_limit() if limit is None else limit
        self._most_awake = max(1, limit // 4)
        self._first_spare = limit - min(max(_HEADROOM, limit // 8), limit // 2)
        self._awake: dict[DataUse, None] = {}
        """Those whose data files are open, the longest awake first."""

    def add(self, use: DataUse) -> None:
        """Note that the data file of `use` is open, and have others closed if there are too
        many.
        """
        self._awake[use] = None
        if len(self._awake) > self._most_awake:
            self._lay_to_rest()

    def _lay_to_rest(self) -> None:
        for _ in range(min(_TRIES, len(self._awake) - self._most_awake)):
            oldest = next(iter(self._awake))
            del self._awake[oldest]
            if not oldest.rest():
                self._awake[oldest] = None

    def remove(self, use: DataUse) -> None:
        """Note that the version of `use` is closed."""
        self._awake.pop(use, None)

    def are_short(self, newest_fd: int) -> bool:
        """True if `newest_fd`, which was just opened, is one of the headroom.

        The kernel gives the lowest number that is free, so all below it are in use.
        """
        return newest_fd >= self._first_spare


class DataUse:
    """The use of one version's data file, which is closed only while nothing of it is under way."""

    __slots__ = ("_data", "_descriptors", "_lane", "_name", "_users")

    def __init__(self, name: str, data: DataFile | None, lane: Lane, descriptors: Descriptors) -> None:
        self._name = name
        self._data = data
        self._lane = lane
        self._descriptors = descriptors
        self._users = 0
        if data is not None:
            descriptors.add(self)

    def begin(self) -> bool:
        """Keep the file open until `end`. True if it is closed, so that `wake` must open it."""
        self._users += 1
        if self._data is None or not self._data.is_asleep:
            return False
        self._descriptors.add(self)
        return True

    @property
    def is_asleep(self) -> bool:
        """True if `begin` would say so."""
        return self._data is not None and self._data.is_asleep

    def end(self) -> None:
        self._users -= 1

    def rest(self) -> bool:
        """Close the file until it is needed again. False if it is in use."""
        if self._users or self._lane.under_way:
            return False
        if self._data is not None and (fd := self._data.detach_data()) >= 0:
            self._lane.disk.run_soon(partial(os.close, fd))
        return True

    async def wake(self, deadline: float) -> None:
        """Open the file, in a thread. Waits while descriptors are used up.

        Raises ReadTimeout at the `deadline`, and OSError.
        """
        assert self._data is not None
        while True:
            try:
                await self._lane.read(self._data.open_data)
            except OSError as error:
                if error.errno not in SHORTAGE:
                    raise
            else:
                return
            if trio.current_time() + _RETRY_S >= deadline:
                raise ReadTimeout(f"{self._name}: the daemon's file descriptors were used up too long")
            self._descriptors.add(self)  # has others closed
            await trio.sleep(_RETRY_S)

    def close(self) -> None:
        """End the use; the owner closes the file."""
        self._descriptors.remove(self)
