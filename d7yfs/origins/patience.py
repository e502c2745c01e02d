"""Asks a store again whose answer was not one: a gateway's page where a listing was expected, or half of it.

Origins ask again by themselves while a store is busy or cannot be reached. Here is the rest: a `BadReply`, which says nothing of the
name that was asked for, and most often stands in a store's place for a moment. Called by `survey` and `visible`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import trio

from d7yfs.errors import BadReply

T = TypeVar("T")

_PAUSES_S = (0.1, 0.4)
"""A reader of a name waits for this, so it is short; while an older listing is known, that is served afterwards."""


async def ask_again(ask: Callable[[], Awaitable[T]]) -> T:
    """What `ask` gives, asked up to three times. Raises what it raises."""
    for pause_s in _PAUSES_S:
        try:
            return await ask()
        except BadReply as error:
            if error.lasting:
                raise
        await trio.sleep(pause_s)
    return await ask()
