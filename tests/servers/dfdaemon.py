"""A fake of dfdaemon's HTTP proxy: its task identity, its piece cache that is never revalidated,
its headers and errors.

Its behaviour was measured on dfdaemon 1.5.10 and scheduler 2.5.1. It holds tasks in memory. It
fetches each piece once from the real origin in the URL, and streams pieces on as they land. It has
no peers, no scheduler and no latency.

A `Fault` plays a failure: `Hang()` a stuck scheduler, `cut_after` a dying daemon, `error` a
refusal. `kill` ends the daemon.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Self
from urllib.parse import parse_qsl, urlencode, urlsplit

import trio

from d7yfs.errors import D7yfsError
from d7yfs.fetch.transport import Transport
from tests.servers.faults import status
from tests.servers.http11 import Answer, BodyLost, Exchange, Fault, HttpServer, Request
from tests.servers.scripted import parse_range

DEFAULT_FILTER = (
    "X-Amz-Algorithm,X-Amz-Credential,X-Amz-Date,X-Amz-Expires,X-Amz-SignedHeaders,X-Amz-Signature,X-Amz-Security-Token,"
    "X-Amz-User-Agent,X-Goog-Algorithm,X-Goog-Credential,X-Goog-Date,X-Goog-Expires,X-Goog-SignedHeaders,X-Goog-Signature,"
    "OSSAccessKeyId,Expires,Signature,SecurityToken,AccessKeyId,X-Obs-Date,X-Obs-Security-Token,q-sign-algorithm,q-ak,"
    "q-sign-time,q-key-time,q-header-list,q-url-param-list,q-signature,x-cos-security-token"
)
_NOT_FORWARDED = frozenset({"range", "connection"})


def error(code: int, error_type: str) -> Fault:
    """A reply that dfdaemon makes itself: 500 "dfdaemon" (scheduler, storage), or 429, 403, 400
    "proxy" (busy, blocked, header).
    """
    return status(code, {"X-Dragonfly-Error-Type": error_type})


async def wrong_total(exchange: Exchange, answer: Answer) -> None:
    """The effect of an origin that answers ranges with 200: dfdaemon takes the object for one byte,
    whatever its size.
    """
    await exchange.deliver(Answer(200, {"X-Dragonfly-Task-ID": answer.headers["X-Dragonfly-Task-ID"]}, b"\0"))


def other_task(task_id: str = "0" * 64) -> Fault:
    """The right bytes under another task's id, as from a client that computes ids differently. An
    empty `task_id` sends no id.
    """

    async def deliver(exchange: Exchange, answer: Answer) -> None:
        headers = {name: value for name, value in answer.headers.items() if name != "X-Dragonfly-Task-ID"}
        if task_id:
            headers["X-Dragonfly-Task-ID"] = task_id
        await exchange.deliver(Answer(answer.status, headers, answer.body))

    return deliver


@dataclass
class Task:
    """One object as dfdaemon knows it, from its first request to the end of the daemon."""

    id: str
    total_bytes: int
    headers: dict[str, str]
    """The origin's headers at the first request; the daemon serves them ever after."""
    pieces: dict[int, bytes] = field(default_factory=dict)
    lock: trio.Lock = field(default_factory=trio.Lock)


class _BackendError(BodyLost):
    """A failure of the origin: an error reply before the head, the end of the stream in a body."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


class FakeDfdaemon(HttpServer):
    """The fake proxy; `tasks` is its store by task id, and `requests` holds every request with its
    headers.
    """

    def __init__(self, *, piece_bytes: int = 4 << 20) -> None:
        super().__init__()
        self.tasks: dict[str, Task] = {}
        self._piece_bytes = piece_bytes
        self._origin = Transport(user_agent="fake-dfdaemon")
        self._downloads: trio.Nursery | None = None

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Self]:
        async with trio.open_nursery() as nursery:
            self._downloads = nursery
            async with super().running():
                try:
                    yield self
                finally:
                    nursery.cancel_scope.cancel()
                    await self._origin.aclose()

    async def answer(self, request: Request) -> Answer:
        if request.method != "GET" or not request.absolute:
            return Answer(400, {"X-Dragonfly-Error-Type": "proxy"})
        try:
            task = await self._task(request)
            span = range(task.total_bytes)
            ranged = "range" in request.headers
            if ranged and not task.total_bytes:
                return Answer(206, {**task.headers, "Content-Length": "1"}, _lost)
            if ranged:
                clamped = parse_range(request.headers["range"], task.total_bytes)
                if clamped is None:
                    return Answer(500, {"X-Dragonfly-Error-Type": "dfdaemon"})
                span = clamped
            if span:
                await self._piece(task, span.start // self._piece_bytes, request)
        except _BackendError as failed:
            return Answer(failed.status, {"X-Dragonfly-Error-Type": "backend"})
        if not ranged and self._downloads:
            # A rangeless download goes on to its end even when its client leaves.
            self._downloads.start_soon(self._download, task, request)
        headers = {**task.headers, "X-Dragonfly-Task-ID": task.id, "Content-Length": str(len(span))}
        if ranged:
            headers["Content-Range"] = f"bytes {span.start}-{span.stop - 1}/{task.total_bytes}"
        return Answer(206 if ranged else 200, headers, _Stream(self, task, span, request).read)

    async def _download(self, task: Task, request: Request) -> None:
        try:
            for number in range(-(-task.total_bytes // self._piece_bytes)):
                await self._piece(task, number, request)
        except _BackendError:
            return  # The reader of the stream meets the same error.

    async def _task(self, request: Request) -> Task:
        task_id = identify(request)
        if task_id not in self.tasks:
            # dfdaemon asks the origin for the first byte and believes the total. If the origin
            # answers 200, it takes the object for one byte.
            code, headers, body = await self._ask_origin(request, "bytes=0-0")
            total = int(headers["content-range"].split("/")[1]) if code == 206 else 0 if code == 416 else len(body)
            kept = {
                name: headers[name]
                for name in ("etag", "x-goog-generation", "last-modified", "content-type")
                if name in headers
            }
            self.tasks.setdefault(task_id, Task(task_id, total, kept))
        return self.tasks[task_id]

    async def _piece(self, task: Task, number: int, request: Request) -> bytes:
        async with task.lock:
            if number not in task.pieces:
                start = number * self._piece_bytes
                stop = min(start + self._piece_bytes, task.total_bytes)
                _, _, body = await self._ask_origin(request, f"bytes={start}-{stop - 1}", limit_bytes=stop - start)
                task.pieces[number] = body
            return task.pieces[number]

    async def _ask_origin(
        self, request: Request, span: str, limit_bytes: int = 1, attempts: int = 2
    ) -> tuple[int, Mapping[str, str], bytes]:
        forwarded = {name: value for name, value in request.headers.items() if name not in _NOT_FORWARDED}
        try:
            async with self._origin.get(request.target, {**forwarded, "Range": span}) as reply:
                if reply.status >= 500 and attempts > 1:
                    return await self._ask_origin(request, span, limit_bytes, attempts - 1)
                if reply.status not in (200, 206, 416):
                    raise _BackendError(reply.status)
                return reply.status, reply.headers, await reply.read(limit_bytes)
        except D7yfsError:
            raise _BackendError(500) from None


async def _lost() -> bytes:
    """Close after promising one byte: the measured reply to a range of an empty object."""
    raise BodyLost


class _Stream:
    """The bytes of a task in `span`, piece by piece; missing pieces are fetched with the request's
    own headers.
    """

    def __init__(self, daemon: FakeDfdaemon, task: Task, span: range, request: Request) -> None:
        self._daemon, self._task, self._span, self._request = daemon, task, span, request

    async def read(self) -> bytes:
        if not self._span:
            return b""
        number, offset = divmod(self._span.start, self._daemon._piece_bytes)
        piece = await self._daemon._piece(self._task, number, self._request)
        part = piece[offset : offset + len(self._span)]
        self._span = range(self._span.start + len(part), self._span.stop)
        return part


def identify(request: Request) -> str:
    """The task id as dfdaemon 1.5 computes it: from the content id if there is one, else from the
    filtered URL.
    """
    content_id = request.headers.get("x-dragonfly-content-for-calculating-task-id")
    if content_id:
        return hashlib.sha256(content_id.encode()).hexdigest()
    ignored = set(request.headers.get("x-dragonfly-filtered-query-params", DEFAULT_FILTER).split(","))
    parts = urlsplit(request.target)
    kept = [(name, value) for name, value in parse_qsl(parts.query, keep_blank_values=True) if name not in ignored]
    url = request.target.partition("?")[0]
    if kept:
        url += "?" + urlencode(sorted(kept, key=lambda pair: pair[0]))
    extra = (request.headers.get(f"x-dragonfly-{name}", "") for name in ("tag", "application", "piece-length"))
    return hashlib.sha256("".join((url, *extra, "STANDARD")).encode()).hexdigest()
