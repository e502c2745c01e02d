"""Virtual time with real sockets and real threads."""

from __future__ import annotations

import math

import trio
from trio.testing import MockClock, wait_all_tasks_blocked

_GRACE_S = 0.0005


async def jump_when_idle(clock: MockClock) -> None:
    """Move `clock` to the next deadline whenever nothing else can happen. Runs until cancelled.

    MockClock's own autojump does not know of worker threads: all patience would end while the disk
    is read. Bytes sent over loopback are nearly always there when `send` returns. If they are not,
    a task loses patience early and tries again.
    """
    threads = trio.to_thread.current_default_thread_limiter()
    while True:
        await wait_all_tasks_blocked(_GRACE_S)
        wait_s = trio.lowlevel.current_statistics().seconds_to_next_deadline
        if not threads.borrowed_tokens and not math.isinf(wait_s):
            clock.jump(max(0.0, wait_s))


async def threads_idle() -> None:
    """Wait for abandoned worker threads: a cancelled cache abandons the one that evicts."""
    threads = trio.to_thread.current_default_thread_limiter()
    while threads.borrowed_tokens:
        await wait_all_tasks_blocked(_GRACE_S)
