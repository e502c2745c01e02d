"""A daemon's own check of its mount: by a child process with a deadline, never by touching the
mount itself.

There are two questions. `answers` is statfs(2), which the daemon answers from memory: it is about
the daemon alone, so a watchdog may rest on it. `serves` is stat(2) too, which may need a listing
from the store: it fails if the root has neither a new nor an old listing. Either answer is None if
the mount cannot be asked.

Single flight: a caller that asks while a child is out waits for it and shares its answer. A child
that a hung mount holds cannot even be killed (the kernel releases it with the answer to its
request). It is left behind, and no other is started until it has ended.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import trio

from d7yfs.host import mount_table

log = logging.getLogger(__name__)

ANSWER_TIMEOUT_S = 10.0
SERVE_TIMEOUT_S = 5.0
_FRESH_S = 1.0
"""How long an answer is reused, so that frequent probes start few children."""

_POLL_S = 0.02


class SentChild(Protocol):
    """A process that asks the mount; its exit status is the error number."""

    @property
    def returncode(self) -> int | None: ...

    def poll(self) -> int | None:
        """The exit status; None while it runs."""

    def kill(self) -> None: ...


class Probe:
    """The questions to the mount at `point`; None if it cannot be seen from here. `send` starts the
    process that asks one; it raises OSError."""

    def __init__(self, point: Path | None, send: Callable[[str, Path], SentChild] = mount_table.send_child) -> None:
        self._point = point
        self._send = send
        self._children: dict[str, SentChild] = {}
        self._said: dict[str, tuple[float, bool | None]] = {}
        """The time (trio's clock) and answer of each question."""
        self._asking = {mount_table.STATFS: trio.Lock(), mount_table.STAT: trio.Lock()}

    async def answers(self) -> bool | None:
        """True if the daemon answers its mount; None if it cannot be asked."""
        return await self._ask(mount_table.STATFS, ANSWER_TIMEOUT_S)

    async def serves(self) -> bool | None:
        """True if the root of the mount can be read; None if it cannot be asked."""
        return await self._ask(mount_table.STAT, SERVE_TIMEOUT_S)

    async def begins(self) -> bool | None:
        """True if the root of a new mount can be read; a store has longer for that."""
        return await self._ask(mount_table.STAT, mount_table.PROBE_TIMEOUT_S)

    async def _ask(self, question: str, timeout_s: float) -> bool | None:
        if self._point is None:
            return None
        async with self._asking[question]:
            asked_at, said = self._said.get(question, (-_FRESH_S, None))
            if trio.current_time() - asked_at >= _FRESH_S:
                said = await self._sent(question, timeout_s)
                self._said[question] = (trio.current_time(), said)
            return said

    async def _sent(self, question: str, timeout_s: float) -> bool | None:
        left = self._children.get(question)
        if left is not None and left.poll() is None:
            return False  # the last one still hangs
        assert self._point is not None
        try:
            child = self._send(question, self._point)
        except OSError as error:
            log.warning("whether the mount answers cannot be asked: %s", error.strerror)
            return None  # a host without room for another process says nothing about the mount
        self._children[question] = child
        with trio.move_on_after(timeout_s):
            while child.poll() is None:  # noqa: ASYNC110  # there is no event that a cancelled wait would let go of
                await trio.sleep(_POLL_S)
            return None if child.returncode is None else child.returncode == 0
        child.kill()
        return False
