"""Answers on the control socket of a mount, in `daemon`'s nursery: `control_socket` says what."""

from __future__ import annotations

import contextlib
import json
import logging
import math
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import trio

from d7yfs.bounds.values import read_json
from d7yfs.control.control_socket import (
    CLIENT_TIMEOUT_S,
    REQUEST_BYTES,
    SCHEMA,
    Reply,
    listen,
)
from d7yfs.errors import D7yfsError, MountError, UsageError
from d7yfs.host.acceptor import accept_clients
from d7yfs.host.descriptors import Reserve

log = logging.getLogger(__name__)

_CHUNK_BYTES = 64 << 10
_CLIENTS = 256
"""Most clients at once; reports, which may last, are such."""

REPORT_PERIOD_S = 0.5
"""Pause between two lines of a report: much less than a client waits for one."""

Handler = Callable[[Mapping[str, Any]], Awaitable[Reply] | AsyncGenerator[Reply, None]]
"""Answers a request with one object, or reports: the generator is closed when the client leaves."""


async def serve(
    path: Path,
    handlers: Mapping[str, Handler],
    handed: socket.socket | None = None,
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Answer commands on `path` until cancelled; started when it listens. `handed` is a socket that
    listens there already, and stays. Raises MountError."""
    listener = trio.socket.from_stdlib_socket(listen(path) if handed is None else handed)
    task_status.started()
    try:
        await accept_clients(listener, lambda stream: _answer(stream, handlers), limit=_CLIENTS, reserve=Reserve())
    finally:
        listener.close()
        if handed is None:
            path.unlink(missing_ok=True)


async def _answer(stream: trio.SocketStream, handlers: Mapping[str, Handler]) -> None:
    async with stream:
        with trio.move_on_after(CLIENT_TIMEOUT_S) as patience:
            try:
                request = read_json(await _line(stream))
                handler = handlers.get(request.get("command"))
                if handler is None:
                    await _send(stream, {"error": f"unknown command; known: {', '.join(sorted(handlers))}"})
                    return
                answer = handler(request)
                if isinstance(answer, AsyncGenerator):
                    patience.deadline = math.inf
                    await _report(stream, answer)
                else:
                    await _send(stream, await answer)
            except D7yfsError as error:
                await _send(stream, {"error": error.message, "hint": error.hint})
            except (ValueError, AttributeError):
                await _send(
                    stream,
                    {"error": f"a request is one JSON object in one line of up to {REQUEST_BYTES} bytes"},
                )
            except trio.BrokenResourceError:
                return
            except Exception as error:
                log.exception("control: a command failed unexpectedly")
                await _send(stream, {"error": f"unexpected {type(error).__name__}; see the log"})


async def _send(stream: trio.SocketStream, reply: Reply) -> None:
    with contextlib.suppress(trio.BrokenResourceError):
        await stream.send_all(json.dumps({"schema": SCHEMA, **reply}).encode() + b"\n")


async def _report(stream: trio.SocketStream, replies: AsyncGenerator[Reply, None]) -> None:
    """Send each of `replies` until they end or the client has gone. Raises their errors."""

    async def until_gone(scope: trio.CancelScope) -> None:
        with contextlib.suppress(trio.BrokenResourceError):
            while await stream.receive_some(_CHUNK_BYTES):
                pass
        scope.cancel()

    failure: D7yfsError | None = None
    async with contextlib.aclosing(replies), trio.open_nursery() as nursery:
        nursery.start_soon(until_gone, nursery.cancel_scope)
        try:
            async for reply in replies:
                await _send(stream, reply)
        except D7yfsError as error:
            failure = error
        nursery.cancel_scope.cancel()
    if failure is not None:
        raise failure


def paths_of(request: Mapping[str, Any], what: str) -> list[str]:
    """The paths below the mount that a request names. Raises UsageError if there is none."""
    paths = request.get("paths")
    if not isinstance(paths, list) or not paths or not all(isinstance(path, str) for path in paths):
        raise UsageError(f"{what} needs a list of paths")
    return paths


async def reporting(nursery: trio.Nursery, work: Callable[[], Awaitable[Reply]]) -> AsyncGenerator[Reply, None]:
    """Report on `work` that may take long: its `state` while it runs, and at the end its result as
    `outcome`.

    The work is done to its end in `nursery` even if the client leaves. Raises its D7yfsError.
    """
    ended = trio.Event()
    outcome: Reply | D7yfsError = {}

    async def one() -> None:
        nonlocal outcome
        try:
            outcome = await work()
        except D7yfsError as error:
            outcome = error
        except Exception as error:  # a bug in a command must not end the mount
            log.exception("control: a command failed unexpectedly")
            outcome = MountError(f"unexpected {type(error).__name__}; see the log")
        ended.set()

    nursery.start_soon(one)
    while not ended.is_set():
        with trio.move_on_after(REPORT_PERIOD_S):
            await ended.wait()
        if not ended.is_set():
            yield {"state": "running"}
    if isinstance(outcome, D7yfsError):
        raise outcome
    yield {"state": "done", "outcome": outcome}


async def _line(stream: trio.SocketStream) -> bytes:
    received = bytearray()
    while not received.endswith(b"\n"):
        chunk = await stream.receive_some(_CHUNK_BYTES)
        if not chunk or len(received) > REQUEST_BYTES:
            raise ValueError("no whole line")
        received += chunk
    return bytes(received)
