"""Renewal of what expires, ahead of time: access keys, bearer tokens, delegation keys.

Owns when; each provider brings a `load` that says how. This is stale-while-revalidate: while the
held thing is valid, nobody waits for a renewal. It runs in a task of its own, and a failed one is
logged and tried again later. Only when nothing valid is held does a caller wait, and get the
failure; loads are single flight, so all who waited get the same one. Used by the origins'
credentials; belongs to the trio thread.
"""

from __future__ import annotations

import copy
import logging
import math
from collections.abc import Awaitable, Callable, Hashable
from pathlib import Path
from typing import Generic, Protocol, TypeVar

import trio

from d7yfs.errors import D7yfsError

AHEAD_S = 900.0
"""How long before its end a thing is renewed; a short-lived one after half of its life. A signature
made until then lives its whole life."""
RELOAD_INTERVAL_S = 5.0
"""Many refusals at once cause one load, not one each."""
_RETRY_S = 30.0
_MARGIN_S = 10.0
"""How long before its end a thing counts as expired: a request takes time to arrive."""

log = logging.getLogger(__name__)


def stamp(path: Path) -> Hashable:
    """A change mark of a file (mtime, inode, size); None for an absent one."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_ino, status.st_size


class Expiring(Protocol):
    """A thing with an end, such as a token."""

    @property
    def expires_at(self) -> float:
        """time.time() of its end; infinity for a lasting thing."""

    @property
    def check_again_s(self) -> float:
        """Seconds until its source, such as a file, is read again; infinity for never."""


T = TypeVar("T", bound=Expiring)


class Renewal(Generic[T]):
    """Holds one expiring thing and renews it; None lasts, and means that none is needed.

    `load` gets what is held, or None to begin anew, and raises D7yfsErrors. `name` is the thing's
    name in messages; `clock` is time.time(). `has_changed` is True if the source of a thing is
    another one now: it must be quick.
    """

    def __init__(
        self,
        load: Callable[[T | None], Awaitable[T | None]],
        *,
        name: str,
        clock: Callable[[], float],
        ahead_s: float = AHEAD_S,
        has_changed: Callable[[T], bool] = lambda _: False,
    ) -> None:
        self._load = load
        self._name = name
        self._clock = clock
        self._ahead_s = ahead_s
        self._has_changed = has_changed
        self._held: T | None = None
        self._loaded_at = self._begun_at = -math.inf
        self._renew_at = math.inf
        self._pause_until = -math.inf
        self._loads = 0
        self._failure: D7yfsError | None = None
        self._loading = trio.Lock()
        self._background: trio.CancelScope | None = None
        self._ended = trio.Event()

    @property
    def held(self) -> T | None:
        """The thing as last loaded, valid or not."""
        return self._held

    @property
    def is_valid(self) -> bool:
        """True if the held thing can be used."""
        if self._loaded_at == -math.inf:
            return False
        return self._held is None or self._clock() < self._held.expires_at - _MARGIN_S

    async def get(self) -> T | None:
        """A valid thing. Waits only when none is held, and then raises what `load` raises."""
        if not self.is_valid:
            return await self._load_once(self._held)
        if self._is_due() and self._background is None:
            self._background, self._ended = trio.CancelScope(), trio.Event()
            trio.lowlevel.spawn_system_task(self._renew_in_background, self._background, self._ended)
        return self._held

    async def reload(self) -> T | None:
        """Begin anew after a refusal, at most every RELOAD_INTERVAL_S.

        When that fails, the held thing stays in use while it is valid.
        """
        if self.is_valid and 0 <= self._clock() - self._begun_at < RELOAD_INTERVAL_S:
            return self._held
        try:
            return await self._load_once(None)
        except D7yfsError as error:
            if not self.is_valid:
                raise
            log.warning("%s: cannot be renewed, the one in use stays: %s", self._name, error)
            return self._held

    def invalidate(self) -> None:
        """Make the next `get` wait for another thing."""
        self._loaded_at = -math.inf

    async def aclose(self) -> None:
        """End a renewal that is under way and drop the held thing."""
        if self._background is not None:
            self._background.cancel()
            await self._ended.wait()
        self._held, self._loaded_at = None, -math.inf

    def _is_due(self) -> bool:
        now = self._clock()
        if now < self._pause_until:
            return False
        return now >= self._renew_at or (self._held is not None and self._has_changed(self._held))

    async def _renew_in_background(self, scope: trio.CancelScope, ended: trio.Event) -> None:
        try:
            with scope:
                await self._load_once(self._held)
        except D7yfsError as error:
            self._pause_until = self._clock() + _RETRY_S
            rest_s = self._held.expires_at - self._clock() if self._held is not None else math.inf
            log.warning("%s: cannot be renewed yet, the one in use lasts for %.0f s: %s", self._name, rest_s, error)
        except Exception:  # an exception that leaves a system task ends the program
            self._pause_until = self._clock() + _RETRY_S
            log.exception("%s: renewing failed unexpectedly", self._name)
        finally:
            self._background = None
            ended.set()

    async def _load_once(self, old: T | None) -> T | None:
        """Single flight: one load for all callers that ask at the same time."""
        loads, failure = self._loads, self._failure
        async with self._loading:
            if self._loads != loads:
                if self._failure is not None and self._failure is not failure:
                    raise copy.copy(self._failure)
                return self._held
            try:
                found = await self._load(old)
            except D7yfsError as error:
                self._failure, self._loads = error, self._loads + 1
                raise
            if found is None and self._held is not None and self.is_valid:
                found = self._held  # the chain found nothing this time: the valid thing stays
            self._held, self._loaded_at, self._loads = found, self._clock(), self._loads + 1
            if old is None:
                self._begun_at = self._loaded_at
            self._renew_at = math.inf if found is None else self._due_at(found)
            return found

    def _due_at(self, found: T) -> float:
        now = self._loaded_at
        ahead_s = min(self._ahead_s, (found.expires_at - now) / 2)
        return min(now + found.check_again_s, found.expires_at - ahead_s)
