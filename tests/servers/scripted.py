"""An object store reduced to its GET: objects in memory, with Range, If-Match, ETags and errors as
in S3.

It also answers requests in absolute form, by path alone, as a proxy would. It records signatures
and never checks them: the contract suite does that against a real store.
"""

from __future__ import annotations

import hashlib
import re
import ssl
from collections.abc import Mapping
from dataclasses import replace
from email.utils import formatdate

from tests.servers.http11 import Answer, Exchange, HttpServer, Request


class ScriptedServer(HttpServer):
    """A server of `objects` (bytes by key, bucket included); `put` replaces one and its ETag."""

    def __init__(
        self, objects: Mapping[str, bytes] | None = None, *, ssl_context: ssl.SSLContext | None = None
    ) -> None:
        super().__init__(ssl_context)
        self.objects = dict(objects or {})

    def put(self, key: str, body: bytes) -> None:
        self.objects[key] = body

    def etag(self, key: str) -> str:
        """The ETag as S3 makes it for a simple upload: the MD5 in quotes."""
        return f'"{hashlib.md5(self.objects[key]).hexdigest()}"'

    def url_of(self, key: str) -> str:
        return f"{self.url}/{key}"

    async def whole_object(self, exchange: Exchange, answer: Answer) -> None:
        """A fault: the server ignores ranges and answers 200 with the whole object."""
        headers = {name: value for name, value in exchange.request.headers.items() if name != "range"}
        await exchange.deliver(await self.answer(replace(exchange.request, headers=headers)))

    async def answer(self, request: Request) -> Answer:
        if request.method != "GET":
            return _error(405, "MethodNotAllowed")
        if request.key not in self.objects:
            return _error(404, "NoSuchKey")
        body, etag = self.objects[request.key], self.etag(request.key)
        if request.headers.get("if-match", etag) != etag:
            return _error(412, "PreconditionFailed")
        headers = {
            "ETag": etag,
            "Last-Modified": formatdate(1_700_000_000, usegmt=True),
            "Accept-Ranges": "bytes",
            "Content-Type": "application/octet-stream",
        }
        if "range" not in request.headers:
            return Answer(200, headers, body)
        span = parse_range(request.headers["range"], len(body))
        if span is None:
            error = _error(416, "InvalidRange")
            error.headers["Content-Range"] = f"bytes */{len(body)}"
            return error
        headers["Content-Range"] = f"bytes {span.start}-{span.stop - 1}/{len(body)}"
        return Answer(206, headers, body[span.start : span.stop])


def parse_range(value: str, size_bytes: int) -> range | None:
    """The first range of a Range header, cut at the object's end; None if it starts there or
    beyond.
    """
    matched = re.match(r"bytes=(\d*)-(\d*)", value)
    assert matched, f"not a byte range: {value}"
    first, last = matched.groups()
    if not first:
        start, stop = max(0, size_bytes - int(last)), size_bytes
    else:
        start, stop = int(first), min(int(last) + 1 if last else size_bytes, size_bytes)
    return range(start, stop) if start < stop else None


def _error(status: int, code: str) -> Answer:
    body = f"<?xml version='1.0'?><Error><Code>{code}</Code></Error>".encode()
    return Answer(status, {"Content-Type": "application/xml"}, body)
