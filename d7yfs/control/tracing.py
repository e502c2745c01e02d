"""`d7yfs trace` in the daemon: lines of the trace, as they come, to clients who follow it.

Bounded: a client that reads too slowly, or lines that come too fast, cost lines, which are counted.
Registered by `commands`. Trio thread only.
"""

from __future__ import annotations

import fnmatch
from collections import deque
from collections.abc import AsyncGenerator, Mapping
from typing import Any

import trio

from d7yfs.control.control_socket import Reply
from d7yfs.errors import UsageError
from d7yfs.logs import TRACE

_MOST_WAITING = 10_000
_MOST_AT_ONCE = 1000
_PERIOD_S = 0.1
"""Pause between two batches."""
_SIGN_OF_LIFE_S = 2.0


def _is_wanted(line: Mapping[str, Any], path: str, slow_ms: float) -> bool:
    """True for a line about a file that `path` matches (by its path in the mount, or its object), and
    that took as long as asked for."""
    if slow_ms and line.get("ms", 0) < slow_ms:
        return False
    if not path:
        return True
    about = str(line.get("path") or line.get("object") or "")
    return fnmatch.fnmatchcase(about, path) or ("object" in line and fnmatch.fnmatchcase(about, f"*/{path}"))


async def follow_trace(request: Mapping[str, Any]) -> AsyncGenerator[Reply, None]:
    """Report lines until the client leaves: `lines`, and `left_out`, the count of those that were too
    many. Raises UsageError."""
    path, slow_ms = request.get("path") or "", request.get("slow_ms") or 0
    if not isinstance(path, str) or not isinstance(slow_ms, int | float):
        raise UsageError("trace takes a pattern of paths, and a number of milliseconds")
    waiting: deque[Mapping[str, Any]] = deque()
    left_out = 0

    def hear(line: Mapping[str, Any]) -> None:
        nonlocal left_out
        if not _is_wanted(line, path, slow_ms):
            return
        if len(waiting) < _MOST_WAITING:
            waiting.append(line)
        else:
            left_out += 1

    with TRACE.heard_by(hear):
        yield {"lines": [], "left_out": 0}
        said_at = trio.current_time()
        while True:
            await trio.sleep(_PERIOD_S)
            if not waiting and not left_out and trio.current_time() < said_at + _SIGN_OF_LIFE_S:
                continue
            lines = [waiting.popleft() for _ in range(min(_MOST_AT_ONCE, len(waiting)))]
            missed, left_out, said_at = left_out, 0, trio.current_time()
            yield {"lines": lines, "left_out": missed}
