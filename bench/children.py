"""Child processes for all work on a mount: a hung mount hangs the child and a SIGBUS kills it, not
the bench.
"""

from __future__ import annotations

import multiprocessing
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import ParamSpec, TypeVar, cast

P = ParamSpec("P")
T = TypeVar("T")

# The child is forked, so that modules are loaded before the clock starts. The bench has no threads
# while it forks.
_CONTEXT = multiprocessing.get_context("fork")


class ReadError(Exception):
    """A failure of the child: an exception, or a signal."""


class OutOfTime(ReadError):
    """A child that was not done within its time."""

    def __init__(self, limit_s: float) -> None:
        super().__init__(f"not done within {limit_s:.0f} s")
        self.limit_s = limit_s


def in_child(limit_s: float, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call `function` in a forked child and return its result. Raises ReadError, OutOfTime."""
    receiving, sending = _CONTEXT.Pipe(duplex=False)
    child = _CONTEXT.Process(target=_run, args=(sending, function, args, kwargs))
    child.start()
    sending.close()
    try:
        if not receiving.poll(limit_s):
            raise OutOfTime(limit_s)
        try:
            well, value = receiving.recv()
        except EOFError:
            child.join(10)
            raise ReadError(f"the reader ended with status {child.exitcode}") from None
    finally:
        child.kill()  # No effect after a normal end.
        child.join(10)
        receiving.close()
    if not well:
        raise ReadError(str(value))
    return cast(T, value)


def _run(
    sending: Connection, function: Callable[..., object], args: tuple[object, ...], kwargs: dict[str, object]
) -> None:
    try:
        result = (True, function(*args, **kwargs))
    except Exception as error:
        result = (False, "; ".join(traceback.format_exception_only(error)).strip())
    sending.send(result)
