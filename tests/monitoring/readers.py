"""Readers of a mount while its picture is drawn."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def repeating(once: Callable[[int], None], every_s: float) -> Iterator[None]:
    """Meanwhile have a thread call `once` with 1, 2, …; `every_s` passes before each call."""
    over = threading.Event()

    def repeat() -> None:
        turn = 0
        while not over.wait(every_s):
            turn += 1
            once(turn)

    thread = threading.Thread(target=repeat)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
