"""A server of this package in its own trio thread, for tests that are not async (real mounts,
commands).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType
from typing import Generic, Self, TypeVar

import trio

from tests.servers.http11 import HttpServer

S = TypeVar("S", bound=HttpServer)
T = TypeVar("T")

_START_TIMEOUT_S = 10.0


class InThread(Generic[S]):
    """A thread that runs `server` while its context lasts. Any thread may read its records; changes
    go through `do`.
    """

    def __init__(self, server: S) -> None:
        self.server = server
        self._token: trio.lowlevel.TrioToken
        self._scope = trio.CancelScope()
        self._started = threading.Event()
        self._thread = threading.Thread(target=trio.run, args=[self._run], daemon=True)

    async def _run(self) -> None:
        with self._scope:
            async with self.server.running():
                self._token = trio.lowlevel.current_trio_token()
                self._started.set()
                await trio.sleep_forever()

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._started.wait(_START_TIMEOUT_S)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.do(self._scope.cancel)
        self._thread.join(_START_TIMEOUT_S)
        assert not self._thread.is_alive()

    def do(self, function: Callable[..., T], *args: object) -> T:
        """Call `function` in the server's thread."""
        return trio.from_thread.run_sync(function, *args, trio_token=self._token)

    def revive(self) -> None:
        """Have the server listen again after `kill`."""
        trio.from_thread.run(self.server.revive, trio_token=self._token)

    def wait(self, event: trio.Event, *, timeout_s: float = 20.0) -> None:
        """Wait for an event in the server's thread, such as a fault's. Raises trio.TooSlowError."""

        async def waiting() -> None:
            with trio.fail_after(timeout_s):
                await event.wait()

        trio.from_thread.run(waiting, trio_token=self._token)
