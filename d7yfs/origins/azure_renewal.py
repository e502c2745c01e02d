"""A value that expires, renewed before it does: bearer tokens and user delegation keys.

Owns when to ask for the next one. From half its life on it is renewed in the background, and whoever asks meanwhile gets the one there is:
only when none is valid does anybody wait. A renewal that fails is logged and tried again, while what is held lasts. Used by
`azure_credentials`; belongs to the trio thread.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

import trio

from d7yfs.errors import D7yfsError

T = TypeVar("T")

_RETRY_S = 30.0
"""Pause after a renewal, failed or not."""
_MARGIN_S = 10.0
"""So long before its end a value counts as expired, for a request takes time to get there."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, repr=False)
class Expiring(Generic[T]):
    """A secret and its end in time.time(). No repr."""

    value: T
    expires_at: float


class Renewing(Generic[T]):
    """`fetch` gets a new value, raising D7yfsError; `name` is for the log; `clock` is time.time()."""

    def __init__(self, fetch: Callable[[], Awaitable[Expiring[T]]], name: str, clock: Callable[[], float]) -> None:
        self._fetch = fetch
        self._name = name
        self._clock = clock
        self._lock = trio.Lock()
        self._held: Expiring[T] | None = None
        self._renew_at = 0.0
        self._background: trio.CancelScope | None = None
        self._ended = trio.Event()

    async def get(self) -> Expiring[T]:
        """The value, which is valid for seconds at least. Raises what `fetch` raises, when there is none."""
        held, now = self._held, self._clock()
        if held is None or not self._is_valid(held):
            async with self._lock:
                if self._held is held:
                    self._take(await self._fetch())
                assert self._held is not None
                return self._held
        if now >= self._renew_at and self._background is None:
            self._background, self._ended = trio.CancelScope(), trio.Event()
            trio.lowlevel.spawn_system_task(self._renew_quietly, self._background, self._ended)
        return held

    async def renew(self) -> None:
        """Get another value now. Raises what `fetch` raises, unless the one that is held is still valid."""
        try:
            async with self._lock:
                self._take(await self._fetch())
        except D7yfsError as error:
            self._renew_at = self._clock() + _RETRY_S
            if self._held is None or not self._is_valid(self._held):
                raise
            rest_s = self._held.expires_at - self._clock()
            log.warning("the %s cannot be renewed, the one in use lasts for %.0f s more: %s", self._name, rest_s, error)

    def drop(self) -> None:
        """Forget the value: the next `get` waits for another one."""
        self._held = None

    async def aclose(self) -> None:
        """End a renewal in the background."""
        if self._background is not None:
            self._background.cancel()
            await self._ended.wait()

    def _is_valid(self, held: Expiring[T]) -> bool:
        return self._clock() < held.expires_at - _MARGIN_S

    def _take(self, fetched: Expiring[T]) -> None:
        now = self._clock()
        self._held = fetched
        self._renew_at = now + max(_RETRY_S, (fetched.expires_at - now) / 2)

    async def _renew_quietly(self, scope: trio.CancelScope, ended: trio.Event) -> None:
        try:
            with scope:
                await self.renew()
        except D7yfsError:
            pass  # it expired meanwhile: whoever needs it asks for himself, and is told
        except Exception as error:  # a system task must not raise
            log.error("the %s cannot be renewed: %s", self._name, type(error).__name__)
        finally:
            self._background = None
            ended.set()
