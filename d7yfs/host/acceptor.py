"""Accepts the clients of a listening socket, so that no client and no failure ends the listener.

Invariants:

- A failure of accept(2) is logged and waited out. If descriptors are used up, those held back are
  given up for the client.
- No more clients than the limit are served at once. A further one takes the place of the oldest,
  so clients that stay silent cannot keep others out.
- An exception while one client is served is logged, and ends that client alone.

Used by the control socket and by the HTTP listener of a mount.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import NoReturn

import trio

from d7yfs.host.descriptors import SHORTAGE, Reserve

log = logging.getLogger(__name__)

_PAUSE_S = 0.1
"""Pause after a failure of accept(2) that giving up descriptors does not cure."""

Answer = Callable[[trio.SocketStream], Awaitable[object]]


async def accept_clients(
    listener: trio.socket.SocketType, answer: Answer, *, limit: int, reserve: Reserve | None = None
) -> NoReturn:
    """Give each client to `answer`, which need not close it, until cancelled."""
    clients: dict[trio.CancelScope, None] = {}  # the oldest first

    async def serve(stream: trio.SocketStream, scope: trio.CancelScope) -> None:
        try:
            with scope:
                await answer(stream)
        except trio.BrokenResourceError:
            log.debug("a client has hung up")
        except Exception:  # groups of exceptions are such, too
            log.exception("a client could not be served")
        finally:
            clients.pop(scope, None)
            stream.socket.close()
            if reserve is not None:
                reserve.refill()

    async with trio.open_nursery() as nursery:
        while True:
            try:
                accepted, _ = await listener.accept()
            except OSError as error:
                exhausted = error.errno in SHORTAGE
                if not (exhausted and reserve is not None and reserve.release()):
                    log.warning("a client could not be accepted: %s", error.strerror)
                    await trio.sleep(_PAUSE_S)
                continue
            if len(clients) >= limit:
                oldest = next(iter(clients))
                del clients[oldest]
                oldest.cancel()
            scope = trio.CancelScope()
            clients[scope] = None
            nursery.start_soon(serve, trio.SocketStream(accepted), scope)
