"""The shares of this process's file descriptors: how many the cache may have, and for what.

An open version is awake or asleep. Awake it holds the descriptors of its pair, and of dfdaemon's
file if there is one. Asleep it holds none, or one if it is large: that of its map, whose lock keeps
the pair from being deleted. To wake it is to open it once more. So a small version that was deleted
meanwhile is fetched again, and no state is kept that could differ from the disk.

Beyond a sixteenth of all descriptors versions that no one reads are laid to rest, the longest awake
first. No version is opened that would leave less than the headroom: sockets, threads and the
control socket live on that.

Used by `Cache` and `CachedVersion`. Trio thread only.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import trio

from d7yfs.cache.disk import Lane
from d7yfs.errors import ReadTimeout, TooManyOpenFiles
from d7yfs.host.process import descriptor_limit

T = TypeVar("T")

SMALL_BYTES = 8 << 20
"""A version up to this size holds no descriptor while it is asleep: it is soon fetched again."""
_HEADROOM = 128
"""At least so many descriptors stay free, if that is no more than half."""
_FIRST_RETRY_S, _LONGEST_RETRY_S = 0.02, 0.5
_TRIES = 8
"""How many versions are asked to rest at a time: most are idle, or else none need be."""


class Descriptors:
    """The versions that are awake now, within the share of a process with `limit` descriptors."""

    def __init__(self, limit: int | None = None) -> None:
        limit = descriptor_limit() if limit is None else limit
        # Each has up to four: those of the data, the map, dfdaemon's file and its map.
        self._most_awake = max(1, limit // 16)
        self._first_spare = limit - min(max(_HEADROOM, limit // 8), limit // 2)
        self._awake: dict[VersionUse, None] = {}
        """The longest awake first."""

    def add(self, use: VersionUse) -> None:
        """Note that a version is awake, and lay others to rest if there are too many."""
        self._awake[use] = None
        self.settle()

    def settle(self) -> None:
        """Lay versions to rest if too many are awake."""
        if len(self._awake) > self._most_awake:
            self.lay_to_rest(len(self._awake) - self._most_awake)

    def lay_to_rest(self, count: int) -> None:
        """Lay at most `count` versions to rest, a few at a time."""
        for _ in range(min(_TRIES, count, len(self._awake))):
            oldest = next(iter(self._awake))
            del self._awake[oldest]
            if not oldest.rest():
                self._awake[oldest] = None

    async def when_spared(self, opening: Callable[[], Awaitable[T]], deadline: float) -> T:
        """The result of `opening`, which is tried again while descriptors are used up: versions are
        laid to rest for it. Raises TooManyOpenFiles at the `deadline`."""
        pause_s = _FIRST_RETRY_S
        while True:
            try:
                return await opening()
            except TooManyOpenFiles:
                if trio.current_time() + pause_s >= deadline:
                    raise
            self.lay_to_rest(_TRIES)
            await trio.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_RETRY_S)

    def remove(self, use: VersionUse) -> None:
        """Note that a version is closed."""
        self._awake.pop(use, None)

    def are_short(self, newest_fd: int) -> bool:
        """True if `newest_fd`, which was just opened, is one of the headroom.

        The kernel gives the lowest number that is free, so all below it are in use.
        """
        return newest_fd >= self._first_spare


class VersionUse:
    """The use of one version's descriptors, which are closed only while nothing of it is under way.

    `close` closes them, and returns False where they must stay. `reopen` opens the version again.
    """

    __slots__ = ("_close", "_descriptors", "_lane", "_name", "_reopen", "_users", "_waking", "is_asleep")

    def __init__(
        self,
        name: str,
        lane: Lane,
        descriptors: Descriptors,
        *,
        close: Callable[[], bool],
        reopen: Callable[[], Awaitable[None]],
    ) -> None:
        self.is_asleep = False
        self._name = name
        self._lane = lane
        self._descriptors = descriptors
        self._close = close
        self._reopen = reopen
        self._users = 0
        self._waking: trio.Lock | None = None
        """Made at the first sleep: few versions sleep, and many are opened."""

    def begin(self) -> None:
        """Keep the version as it is, awake or asleep, until `end`; only `wake` may come between."""
        self._users += 1

    def end(self) -> None:
        self._users -= 1

    def settle(self) -> None:
        """Lay versions to rest, this one among them, if too many are awake: some were in use until now."""
        self._descriptors.settle()

    def rest(self) -> bool:
        """Close the descriptors until they are needed again. False if they are in use."""
        if self._users or self._lane.under_way or not self._close():
            return False
        self.is_asleep = True
        return True

    async def wake(self, deadline: float) -> None:
        """Open the version again. Waits while descriptors are used up.

        Raises ReadTimeout at the `deadline`.
        """
        if self._waking is None:
            self._waking = trio.Lock()
        async with self._waking:  # single flight
            if not self.is_asleep:
                return
            try:
                await self._descriptors.when_spared(self._reopen, deadline)
            except TooManyOpenFiles as error:
                short = "the daemon's file descriptors were used up too long"
                raise ReadTimeout(f"{self._name}: {short}") from error
            self.is_asleep = False
            self._descriptors.add(self)
