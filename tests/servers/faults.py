"""Faults of a server, for `HttpServer.script`. Each works on any answer, of origin and proxy alike."""

from __future__ import annotations

import gzip
import re
from collections.abc import Mapping
from dataclasses import replace

import trio

from tests.servers.http11 import Answer, Exchange, Fault


async def honest(exchange: Exchange, answer: Answer) -> None:
    """No fault: a place-holder in a script of several."""
    await exchange.deliver(answer)


def status(code: int, headers: Mapping[str, str] | None = None, body: bytes = b"") -> Fault:
    """That status instead of the answer: 403, 404, 412, 416, 500, …; 429 and 503 with
    {"Retry-After": "7"}.
    """

    async def fault(exchange: Exchange, answer: Answer) -> None:
        await exchange.deliver(Answer(code, dict(headers or {}), body))

    return fault


archived = status(403, body=b"<Code>InvalidObjectState</Code>")
"""A refusal that a retry does not change."""


def with_headers(headers: Mapping[str, str], *, code: int | None = None) -> Fault:
    """The answer with these headers added or replaced, optionally with another status: a wrong
    ETag, a redirect, …
    """

    async def fault(exchange: Exchange, answer: Answer) -> None:
        await exchange.deliver(replace(answer, status=code or answer.status, headers={**answer.headers, **headers}))

    return fault


def other_etag(etag: str = '"another"') -> Fault:
    """The right bytes under another validator."""
    return with_headers({"ETag": etag})


def page(
    body: bytes,
    *,
    code: int = 200,
    chunked: bool = False,
    closed: bool = False,
    etag: str = "",
    headers: Mapping[str, str] | None = None,
) -> Fault:
    """HTML from a machine in the store's place: a captive portal, a gateway, a load balancer.

    `chunked` and `closed` end it without a Content-Length. `etag` is the page's own; "weak" is the
    object's, weakened.
    """

    async def fault(exchange: Exchange, answer: Answer) -> None:
        sent = {"Content-Type": "text/html", **(headers or {})}
        if chunked:
            sent["Transfer-Encoding"] = "chunked"
        elif closed:
            sent["Connection"] = "close"
        else:
            sent["Content-Length"] = str(len(body))
        if etag:
            sent["ETag"] = f"W/{answer.headers.get('ETag', '')}" if etag == "weak" else etag
        await exchange.send_head(code, sent)
        await exchange.send(b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body) if chunked else body)
        if closed:
            exchange.hang_up()

    return fault


def cut_after(body_bytes: int) -> Fault:
    """The true head, that many bytes of the body, then the connection's end, as from a proxy or
    origin that dies.
    """

    async def fault(exchange: Exchange, answer: Answer) -> None:
        await _send_start(exchange, answer, body_bytes)
        exchange.hang_up()

    return fault


def losing(at: int, lost_bytes: int) -> Fault:
    """A relay that loses some bytes in mid-body: the head is true, the rest is shifted and ends too
    soon.
    """

    async def fault(exchange: Exchange, answer: Answer) -> None:
        body = await answer.whole()
        await exchange.send_head(answer.status, answer.headers)
        await exchange.send_body(body[:at] + body[at + lost_bytes :])
        exchange.hang_up()

    return fault


def reset_after(body_bytes: int) -> Fault:
    """Like `cut_after`, but with a TCP reset; 0 breaks the connection before the head."""

    async def fault(exchange: Exchange, answer: Answer) -> None:
        if body_bytes:
            await _send_start(exchange, answer, body_bytes)
        exchange.reset()

    return fault


async def drop(exchange: Exchange, answer: Answer) -> None:
    """Close without a reply, like a server that has just given up an idle connection."""
    exchange.hang_up()


def longer_body(extra_bytes: int) -> Fault:
    """A body longer than the range, with a Content-Length that admits it."""

    async def fault(exchange: Exchange, answer: Answer) -> None:
        body = await answer.whole() + b"+" * extra_bytes
        await exchange.deliver(replace(answer, headers={**answer.headers, "Content-Length": str(len(body))}, body=body))

    return fault


def surplus(extra: bytes) -> Fault:
    """Bytes after the end of a complete reply."""

    async def fault(exchange: Exchange, answer: Answer) -> None:
        body = await answer.whole()
        headers = {**answer.headers, "Content-Length": str(len(body))}
        await exchange.deliver(replace(answer, headers=headers, body=body + extra))

    return fault


def shifted_range(by_bytes: int) -> Fault:
    """A Content-Range (with bytes of its length) other than the one in the request."""

    async def fault(exchange: Exchange, answer: Answer) -> None:
        span, total = answer.headers["Content-Range"].removeprefix("bytes ").split("/")
        start, last = (int(number) + by_bytes for number in span.split("-"))
        await exchange.deliver(
            replace(answer, headers={**answer.headers, "Content-Range": f"bytes {start}-{last}/{total}"})
        )

    return fault


def altered(at: int) -> Fault:
    """The right answer except for one bit of the body's byte `at`, which keeps every length; -1 is
    the last byte.
    """

    async def fault(exchange: Exchange, answer: Answer) -> None:
        body = bytearray(await answer.whole())
        body[at] ^= 1
        await exchange.deliver(replace(answer, body=bytes(body)))

    return fault


def resized(size_bytes: int, *, instead_of: int) -> Fault:
    """The answer with another object size in each place of it: in a listing's body, or in a header
    of the reply to HEAD.
    """
    number = re.compile(rb"(?<![0-9A-Za-z.])%d(?![0-9A-Za-z])" % instead_of)

    async def fault(exchange: Exchange, answer: Answer) -> None:
        body = number.sub(b"%d" % size_bytes, await answer.whole())
        headers = {k: str(size_bytes) if v == str(instead_of) else v for k, v in answer.headers.items()}
        if body:
            headers["Content-Length"] = str(len(body))
        await exchange.deliver(Answer(answer.status, headers, body))

    return fault


def other_total(total_bytes: int) -> Fault:
    """A Content-Range whose total is not the object's size."""

    async def fault(exchange: Exchange, answer: Answer) -> None:
        span = answer.headers["Content-Range"].split("/")[0]
        await exchange.deliver(replace(answer, headers={**answer.headers, "Content-Range": f"{span}/{total_bytes}"}))

    return fault


async def range_with_200(exchange: Exchange, answer: Answer) -> None:
    """The right range with its Content-Range, under status 200 (rclone; dfdaemon before 1.3.11)."""
    await exchange.deliver(replace(answer, status=200))


async def chunked(exchange: Exchange, answer: Answer) -> None:
    """Transfer-Encoding: chunked, in chunks that fit no buffer, with an extension and a trailer."""
    headers = {name: value for name, value in answer.headers.items() if name != "Content-Length"}
    await exchange.send_head(answer.status, {**headers, "Transfer-Encoding": "chunked"})
    read = answer.chunks()
    while block := await read():
        for start in range(0, len(block), 1009):
            chunk = block[start : start + 1009]
            await exchange.send(b"%x;note=1\r\n" % len(chunk))
            await exchange.send_body(chunk)
            await exchange.send(b"\r\n")
    await exchange.send(b"0\r\nX-Trailer: 1\r\n\r\n")


async def until_close(exchange: Exchange, answer: Answer) -> None:
    """No framing: the body ends with the connection."""
    await exchange.send_head(answer.status, {k: v for k, v in answer.headers.items() if k != "Content-Length"})
    await exchange.send_body(await answer.whole())
    exchange.hang_up()


async def gzipped(exchange: Exchange, answer: Answer) -> None:
    """A body compressed with gzip, although the client did not ask for it."""
    body = gzip.compress(await answer.whole())
    headers = {**answer.headers, "Content-Encoding": "gzip", "Content-Length": str(len(body))}
    await exchange.deliver(replace(answer, headers=headers, body=body))


async def closing(exchange: Exchange, answer: Answer) -> None:
    """The whole answer, with `Connection: close`."""
    await exchange.deliver(replace(answer, headers={**answer.headers, "Connection": "close"}))
    exchange.hang_up()


def raw(data: bytes, *, keep_alive: bool = False) -> Fault:
    """These bytes, in one segment, instead of a reply; then the connection's end."""

    async def fault(exchange: Exchange, answer: Answer) -> None:
        await exchange.send(data)
        if not keep_alive:
            exchange.hang_up()

    return fault


def preceded_by(data: bytes) -> Fault:
    """The answer after these bytes: interim replies, or garbage."""

    async def fault(exchange: Exchange, answer: Answer) -> None:
        await exchange.send(data)
        await exchange.deliver(answer)

    return fault


class Hang:
    """A silence before the head, or (`after_body_bytes`) in the middle of the body, until `resume`
    is set.

    It sets `reached` when the silence begins. The rest of the answer follows after `resume`.
    """

    def __init__(self, after_body_bytes: int | None = None) -> None:
        self.reached = trio.Event()
        self.resume = trio.Event()
        self._after_body_bytes = after_body_bytes

    async def __call__(self, exchange: Exchange, answer: Answer) -> None:
        if self._after_body_bytes is None:
            self.reached.set()
            await self.resume.wait()
            await exchange.deliver(answer)
            return
        left = self._after_body_bytes
        await exchange.send_head(answer.status, answer.headers)
        read = answer.chunks()
        while chunk := await read():
            await exchange.send_body(chunk[:left])
            if len(chunk) > left:
                self.reached.set()
                await self.resume.wait()
                await exchange.send_body(chunk[left:])
            left = max(0, left - len(chunk))


class Tap:
    """A slow body: the head at once, then `step_bytes` for each `flow()`, the last ones included."""

    def __init__(self, step_bytes: int) -> None:
        self._step_bytes = step_bytes
        self._steps = trio.Semaphore(0)

    def flow(self, steps: int = 1) -> None:
        for _ in range(steps):
            self._steps.release()

    async def __call__(self, exchange: Exchange, answer: Answer) -> None:
        body = await answer.whole()
        await exchange.send_head(answer.status, {**answer.headers, "Content-Length": str(len(body))})
        for start in range(0, len(body), self._step_bytes):
            await self._steps.acquire()
            await exchange.send_body(body[start : start + self._step_bytes])


async def _send_start(exchange: Exchange, answer: Answer, body_bytes: int) -> None:
    await exchange.send_head(answer.status, answer.headers)
    read = answer.chunks()
    while body_bytes > 0 and (chunk := await read()):
        await exchange.send_body(chunk[:body_bytes])
        body_bytes -= len(chunk)
