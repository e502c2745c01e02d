"""Telling a person who waits for a store that it has not answered yet, and what is being tried.

Used where somebody waits: by `latecomer` when a mount begins, by `check`, and by `d7yfs ls`.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

import trio

from d7yfs.repository.repository import Repository

log = logging.getLogger(__name__)

FIRST_S = 5.0
_AGAIN_S = 15.0

T = TypeVar("T")


async def tell_while_slow(work: Callable[[], Awaitable[T]], repository: Repository, tell: Callable[[str], None]) -> T:
    """The result of `work`, which asks the store of `repository`. Calls `tell` with a line after
    FIRST_S seconds, and again while it lasts. Raises what `work` raises, as it is."""
    scope = trio.CancelScope()
    # No nursery, which would wrap what `work` raises, Ctrl-C too.
    trio.lowlevel.spawn_system_task(_tell_again, repository, tell, scope)
    try:
        return await work()
    finally:
        scope.cancel()


async def _tell_again(repository: Repository, tell: Callable[[str], None], scope: trio.CancelScope) -> None:
    began_at = trio.current_time()
    with scope:
        await trio.sleep(FIRST_S)
        while True:
            try:
                tell(_describe_wait(repository, trio.current_time() - began_at))
            except Exception:  # an exception that leaves a system task ends the program
                log.exception("a wait could not be told")
            await trio.sleep(_AGAIN_S)


def _describe_wait(repository: Repository, waited_s: float) -> str:
    """The wait for a store, in one line."""
    found = repository.origin.describe()
    where = found["endpoint"] if "://" in found["endpoint"] else f"{found['endpoint']} endpoint"
    said = f"{repository.config.url}: no answer from {where} for {waited_s:.0f} s"
    return f"{said} (credentials: {found['credentials']}); trying on"
