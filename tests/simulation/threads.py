"""Worker threads of a simulation: tasks that do their work at a random virtual time, so that other
tasks interleave with it.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, TypeVar

import trio

T = TypeVar("T")


class Threads:
    """Worker threads that are tasks; their calls take some time, or none, around the work."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance

    async def run_sync(
        self,
        work: Callable[..., T],
        *args: Any,
        abandon_on_cancel: bool = False,
        limiter: trio.CapacityLimiter | None = None,
        thread_name: str | None = None,
    ) -> T:
        """Run the work like trio.to_thread.run_sync. Abandoned work still happens, unless it has
        not begun.
        """
        if limiter is not None:
            async with limiter:
                return await self._run(work, args, abandon_on_cancel)
        return await self._run(work, args, abandon_on_cancel)

    async def _run(self, work: Callable[..., T], args: tuple[Any, ...], abandon_on_cancel: bool) -> T:
        await trio.lowlevel.checkpoint_if_cancelled()
        with trio.CancelScope(shield=not abandon_on_cancel):
            await trio.sleep(self.delay_s())
        try:
            return work(*args)
        finally:
            with trio.CancelScope(shield=True):
                await trio.sleep(self.delay_s())

    def start_soon(self, work: Callable[[], T], tell: Callable[[T], None]) -> None:
        """Start a thread as `d7yfs.cache.disk` does. Some hang for longer than any caller waits."""

        async def thread() -> None:
            await trio.sleep(7.0 if self._chance.random() < 0.01 else self.delay_s())
            result = work()
            await trio.sleep(self.delay_s())
            tell(result)

        trio.lowlevel.spawn_system_task(thread)

    def delay_s(self) -> float:
        return self._chance.choice((0.0, 0.0, 0.001, 0.003, 0.02, 0.2))
