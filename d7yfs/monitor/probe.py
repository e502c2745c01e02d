"""Whether a mount answers, as its own daemon may ask: by a child process with a deadline, never by touching the mount itself.

Two questions. `answers` is statfs(2), which the daemon answers from memory: it is about the daemon alone, so a watchdog may rest on it.
`serves` is stat(2) too, which may need a listing from the store: a root whose listing cannot be had, now or from before, fails it.
The answer to either is None where nobody can be asked.

One child at a time: who asks while one is out waits for it and shares its answer. A child that a hung mount holds cannot even be killed
(the kernel lets it go with the answer to its request), so it is left behind, and no other is sent after it until it has ended.
"""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path

import trio

log = logging.getLogger(__name__)

ANSWER_TIMEOUT_S = 10.0
SERVE_TIMEOUT_S = 5.0
_FRESH_S = 1.0
"""How long an answer counts for who asks again: probes may come as they like, children may not."""

_POLL_S = 0.02

_STATFS = "import os, sys; os.statvfs(sys.argv[1])"
_STAT = "import os, sys; os.statvfs(sys.argv[1]); os.stat(sys.argv[1])"


class Probe:
    """Asks about the mount at `point`; None where it is not to be seen from here."""

    def __init__(self, point: Path | None) -> None:
        self._point = point
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self._said: dict[str, tuple[float, bool | None]] = {}
        """By question, when it was answered (trio's clock) and how."""
        self._asking = {_STATFS: trio.Lock(), _STAT: trio.Lock()}

    async def answers(self) -> bool | None:
        """Whether the daemon answers its mount; None where that cannot be told."""
        return await self._ask(_STATFS, ANSWER_TIMEOUT_S)

    async def serves(self) -> bool | None:
        """Whether the root of the mount can be looked at; None where that cannot be told."""
        return await self._ask(_STAT, SERVE_TIMEOUT_S)

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
        command = [sys.executable, "-I", "-S", "-c", question, str(self._point)]
        try:
            child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # noqa: ASYNC220, S603  # vfork(2)
        except OSError as error:
            log.warning("whether the mount answers cannot be asked: %s", error.strerror)
            return None  # a host without room for another process says nothing about the mount
        self._children[question] = child
        with trio.move_on_after(timeout_s):
            while child.poll() is None:  # noqa: ASYNC110  # there is no event that a cancelled wait would let go of
                await trio.sleep(_POLL_S)
            return child.returncode == 0
        child.kill()
        return False
