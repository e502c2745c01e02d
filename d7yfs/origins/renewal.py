"""What expires and is fetched again before it does: access keys, bearer tokens, delegation keys.

Owns when; how is the `load` that each provider brings. Nobody waits for a renewal while what is held is valid: it runs in a task of its
own, and one that fails is logged and tried again later. Only where nothing valid is held does a caller wait, and hear the failure; those
who waited with him hear the same one. Used by the origins' credentials; belongs to the trio thread.
"""

from __future__ import annotations

import copy
import logging
import math
from collections.abc import Awaitable, Callable
from typing import Generic, Protocol, TypeVar

import trio

from d7yfs.errors import D7yfsError

AHEAD_S = 900.0
"""Renewed so long before the end, and what is short-lived after half of its life. A signature made till then is whole."""
RELOAD_INTERVAL_S = 5.0
"""A herd of refusals loads once, not once each."""
_RETRY_S = 30.0
_MARGIN_S = 10.0
"""So long before its end a thing counts as expired, for a request takes time to get there."""

log = logging.getLogger(__name__)


class Expiring(Protocol):
    """What is renewed."""

    @property
    def expires_at(self) -> float:
        """time.time() of its end; infinity for what lasts."""

    @property
    def check_again_s(self) -> float:
        """How soon to look again where it came from, a file that may change, say; infinity for never."""


T = TypeVar("T", bound=Expiring)


class Renewal(Generic[T]):
    """Holds one such thing; None stands for none needed (anonymous), and lasts.

    `load` is given what is held, or None to begin anew, and raises D7yfsErrors; `name` is what messages call the thing; `clock` is
    time.time(). `has_changed` may say of a thing that its source is another one now: it must be quick.
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
        self._loaded_at = -math.inf
        self._renew_at = math.inf
        self._pause_until = -math.inf
        self._loads = 0
        self._failure: D7yfsError | None = None
        self._turn = trio.Lock()
        self._beside: trio.CancelScope | None = None
        self._ended = trio.Event()

    @property
    def held(self) -> T | None:
        """As last loaded, valid or not."""
        return self._held

    @property
    def is_valid(self) -> bool:
        """Whether what is held can be used."""
        if self._loaded_at == -math.inf:
            return False
        return self._held is None or self._clock() < self._held.expires_at - _MARGIN_S

    async def current(self) -> T | None:
        """What is valid now. Waits only when there is nothing valid; then raises what `load` raises."""
        if not self.is_valid:
            return await self._loaded(self._held)
        if self._is_due() and self._beside is None:
            self._beside, self._ended = trio.CancelScope(), trio.Event()
            trio.lowlevel.spawn_system_task(self._renew_beside, self._beside, self._ended)
        return self._held

    async def reload(self) -> T | None:
        """Load anew what was refused, at most every RELOAD_INTERVAL_S. When that fails, what is held goes on while it is valid."""
        if self.is_valid and 0 <= self._clock() - self._loaded_at < RELOAD_INTERVAL_S:
            return self._held
        try:
            return await self._loaded(None)
        except D7yfsError as error:
            if not self.is_valid:
                raise
            log.warning("%s: cannot be renewed, going on with what is at hand: %s", self._name, error)
            return self._held

    def forget(self) -> None:
        """The next `current` waits for another one."""
        self._loaded_at = -math.inf

    async def aclose(self) -> None:
        """End a renewal that is under way."""
        if self._beside is not None:
            self._beside.cancel()
            await self._ended.wait()

    def _is_due(self) -> bool:
        now = self._clock()
        if now < self._pause_until:
            return False
        return now >= self._renew_at or (self._held is not None and self._has_changed(self._held))

    async def _renew_beside(self, scope: trio.CancelScope, ended: trio.Event) -> None:
        try:
            with scope:
                await self._loaded(self._held)
        except D7yfsError as error:
            self._pause_until = self._clock() + _RETRY_S
            rest_s = self._held.expires_at - self._clock() if self._held is not None else math.inf
            log.warning("%s: cannot be renewed yet, the one in use lasts for %.0f s: %s", self._name, rest_s, error)
        except Exception:  # what leaves a system task ends the program
            self._pause_until = self._clock() + _RETRY_S
            log.exception("%s: renewing failed unexpectedly", self._name)
        finally:
            self._beside = None
            ended.set()

    async def _loaded(self, old: T | None) -> T | None:
        """One load for all who ask for one at the same time."""
        loads, failure = self._loads, self._failure
        async with self._turn:
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
                found = self._held  # a chain that may find nothing did so: what is valid stays
            self._held, self._loaded_at, self._loads = found, self._clock(), self._loads + 1
            self._renew_at = math.inf if found is None else self._due_at(found)
            return found

    def _due_at(self, found: T) -> float:
        now = self._loaded_at
        ahead_s = min(self._ahead_s, (found.expires_at - now) / 2)
        return min(now + found.check_again_s, found.expires_at - ahead_s)
