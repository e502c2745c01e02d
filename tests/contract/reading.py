"""The suite's readers of signed GETs: a client of its own, and the product's data plane."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from urllib.parse import unquote, urlsplit

import httpx

from d7yfs.errors import D7yfsError
from d7yfs.fetch.dragonfly_proxy import Proxies, Proxy
from d7yfs.fetch.fetcher import Fetcher
from d7yfs.fetch.reply import error_of
from d7yfs.fetch.transport import Transport
from d7yfs.objects import ByteRange, ObjectVersion
from d7yfs.origins.origin import Origin, ReadRequest

_SECRET_NAME = re.compile(r"(sig|signature|token|authorization)$", re.IGNORECASE)


async def get(request: ReadRequest, wanted: ByteRange | None = None) -> httpx.Response:
    """The reply of an independent HTTP client."""
    sent = dict(request.headers)
    if wanted:
        sent["Range"] = wanted.http()
    async with httpx.AsyncClient(trust_env=False, verify=False) as client:
        return await client.get(request.url, headers=sent)


def refusal(reply: httpx.Response) -> D7yfsError:
    """The error that the data plane makes of a refused GET."""
    assert reply.status_code >= 400
    return error_of(reply.status_code, reply.headers, name="it", body=reply.content)


def secrets_of(request: ReadRequest) -> set[str]:
    """The signatures and tokens in a request, percent-encoded and plain."""
    found = set()
    for pair in urlsplit(request.url).query.split("&"):
        name, _, value = pair.partition("=")
        if value and _SECRET_NAME.search(name):
            found |= {value, unquote(value)}
    for name, value in request.headers.items():
        if _SECRET_NAME.search(name):
            found.add(re.split(r"Signature=|[\s:,]", value)[-1])
    return found


def garbled(request: ReadRequest) -> ReadRequest:
    """The request with one character of each signature and token changed."""
    url, headers = request.url, dict(request.headers)
    for secret in secrets_of(request):
        at = next(i for i in range(4, len(secret)) if "%" not in secret[i - 2 : i + 1])
        other = secret[:at] + ("0" if secret[at] != "0" else "1") + secret[at + 1 :]
        url = url.replace(secret, other)
        headers = {name: value.replace(secret, other) for name, value in headers.items()}
    assert (url, headers) != (request.url, request.headers)
    return replace(request, url=url, headers=headers)


@dataclass
class Reader:
    """The product's own way to an object's bytes."""

    fetcher: Fetcher

    async def read(self, version: ObjectVersion, wanted: ByteRange | None = None, *, streamed: bool = False) -> bytes:
        """Read `wanted` (default: the whole); `streamed` means through dfdaemon, in one GET."""
        wanted = wanted or version.whole
        sink = _Sink(wanted.start)
        await (self.fetcher.stream if streamed else self.fetcher.fetch)(version, wanted, sink)
        return bytes(sink.data)


@asynccontextmanager
async def reader(origin: Origin, *, dfdaemon_url: str = "") -> AsyncIterator[Reader]:
    transport = Transport(connect_timeout_s=5, first_byte_timeout_s=10, idle_timeout_s=10)
    proxy = Proxies([Proxy(dfdaemon_url, transport)], required=True) if dfdaemon_url else None
    try:
        yield Reader(Fetcher(origin, transport, proxy=proxy, read_timeout_s=20, max_connections=4))
    finally:
        await transport.aclose()


class _Sink:
    def __init__(self, start: int) -> None:
        self.start = start
        self.data = bytearray()

    async def write(self, offset: int, data: memoryview) -> None:
        assert offset == self.start + len(self.data)
        self.data += data

    def retract(self, wanted: ByteRange) -> int:
        del self.data[max(0, wanted.start - self.start) :]
        return wanted.start
