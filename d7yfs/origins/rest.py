"""The HTTP client of the control plane, and the common part of the origins that use it.

Owns connections, timeouts, the proxy and the bounded retries (`ask_again`). Bodies of objects never
come this way; what `d7yfs publish` writes goes by it. Each origin has one `Rest`. The origin decides
what a status means (`refusal`), except that 429 and 5xx are tried again here, after Retry-After or a
growing pause.

A `RestOrigin` owns the order of a list, a stat and a read request, the bounded table of read
requests, and that of version ids. Signing never blocks while the credentials at hand are valid.

The environment is not consulted (`trust_env=False`): proxies and authorities are settings.
Redirects are not followed: a signature or a bearer token must not travel to another host.
"""

from __future__ import annotations

import logging
import math
import random
import socket
import ssl
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Hashable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar, Self, TypeVar
from urllib.parse import urlsplit
from weakref import WeakValueDictionary

import httpx
import trio
from cachetools import LRUCache, TLRUCache

from d7yfs.bounds.values import excerpt
from d7yfs.config.schema import RepositoryConfig
from d7yfs.errors import BadReply, BucketNotFound, NotFound, OriginUnavailable, OriginUntrusted, VersionGone
from d7yfs.objects import ListingPage, ObjectVersion
from d7yfs.origins.failure import REACH, causes, is_untrusted, reason
from d7yfs.origins.headers import parse_date, retry_after_s
from d7yfs.origins.origin import Checksums, ReadRequest
from d7yfs.origins.tracing import traced
from d7yfs.tls import ssl_context

CONNECT_TIMEOUT_S = 5.0
READ_TIMEOUT_S = 15.0
_WHOLE_TIMEOUT_S = 30.0
_CONNECTIONS = 8
_BODY_MAX_BYTES = 16 << 20
"""Above any listing page: an entry of Azure's may have a key of 6 KiB and 8 KiB of metadata."""
_PIECE_BYTES = 256 << 10
"""The bytes of a body that are sent at once: a write's timeout is for these, however large the body."""
_ENTRIES_MAX = 10_000
"""The most entries of a page. d7yfs asks for a thousand; some stores do not heed that."""
_TOKEN_MAX_CHARACTERS = 4096
"""The longest continuation token; a provider's is some hundred characters and a key."""
_PARSERS = 2
"""Pages of one origin that are parsed at once: each takes memory, and one interpreter parses."""
_ATTEMPTS = 3
"""With the origins' timeouts, an unanswered call ends within a mount's default read timeout (60 s).
"""
_PAUSE_S = 0.1
"""Short, because a reader of a name waits; an older listing, where known, is served afterwards."""
_LONGEST_PAUSE_S = 5.0
"""A store that asks for more in Retry-After is not asked again by the same call."""
_NO_HOST = (socket.EAI_NONAME, socket.EAI_NODATA)
_REQUESTS_MAX = 2048
"""Read requests kept by one origin; about 2 KiB each, of which a session token is the most."""
_PINS_MAX = 8192
"""Version ids kept; about 0.4 KiB each."""
_UNREADABLE = (ValueError, KeyError, TypeError, AttributeError)
"""The errors of a parser that was given a reply of something else."""

T = TypeVar("T")

# At DEBUG and INFO these write URLs, which may hold signatures.
for _name in ("httpx", "httpcore"):
    logging.getLogger(_name).setLevel(logging.WARNING)


@dataclass(frozen=True, slots=True, repr=False)
class ControlReply:
    """A whole reply of the control plane. It has no repr, because a token may be in it."""

    status: int
    headers: Mapping[str, str]
    """Looked up by lower-case names."""
    body: bytes = b""

    @property
    def date(self) -> float | None:
        """The `Date` in seconds since the epoch; None when absent or malformed."""
        return parse_date(self.headers.get("date", ""))

    def date_ns(self, now: float) -> int:
        """The `Date` in nanoseconds since the epoch; `now` (time.time()) without a valid one."""
        date = self.date
        return int((now if date is None else date) * 1e9)


async def ask_again(
    ask: Callable[[], Awaitable[T]], *, after: type[BadReply] | type[OriginUnavailable] = BadReply
) -> T:
    """The result of `ask`, called up to three times while it raises `after`, with growing pauses.

    Raises what `ask` raises; at once when the error is lasting, or asks for a long pause.
    """
    for attempt in range(1, _ATTEMPTS):
        try:
            return await ask()
        except after as error:
            pause_s = _pause_s(error, attempt)
            if pause_s > _LONGEST_PAUSE_S:
                raise
        await trio.sleep(pause_s)
    return await ask()


def _pause_s(error: BadReply | OriginUnavailable, attempt: int) -> float:
    pause_s = _PAUSE_S * 2**attempt * random.uniform(0.5, 1)  # noqa: S311 - no secret rests on it
    if isinstance(error, BadReply):
        return math.inf if error.lasting else pause_s
    return max(pause_s, error.retry_after_s) if error.transient else math.inf


class Rest:
    """Sends control-plane requests of one origin, through an HTTP `proxy` if given."""

    def __init__(
        self,
        context: Callable[[], ssl.SSLContext] = ssl.create_default_context,
        *,
        proxy: str = "",
        clock: Callable[[], float] = time.time,
        no_host_hint: str = REACH,
    ) -> None:
        self._clock = clock
        self._no_host_hint = no_host_hint
        self._has_proxy = bool(proxy)
        self._context = context
        self._clients: dict[str, httpx.AsyncClient] = {}
        """By URL scheme."""
        self._make_client = partial(
            httpx.AsyncClient,
            proxy=proxy or None,
            trust_env=False,
            follow_redirects=False,
            timeout=httpx.Timeout(READ_TIMEOUT_S, connect=CONNECT_TIMEOUT_S),
            limits=httpx.Limits(max_connections=_CONNECTIONS, max_keepalive_connections=_CONNECTIONS),
            headers={"User-Agent": "d7yfs", "Accept-Encoding": "identity"},
        )

    async def send(
        self, method: str, url: str, headers: Mapping[str, str], *, subject: str, body: bytes = b""
    ) -> ControlReply:
        """The reply to one request, whatever its status; see `patience` for the retries.

        `url` is sent as it is, percent-encoded by the caller; `subject` names the object in
        messages. Raises OriginUnavailable, OriginUntrusted and BadReply.
        """
        try:
            return await ask_again(
                lambda: traced(self._send_once(method, url, headers, subject, body), method, subject),
                after=OriginUnavailable,
            )
        except _BusyReply as busy:
            return busy.reply

    async def aclose(self) -> None:
        """Close the connections."""
        for client in self._clients.values():
            await client.aclose()

    async def _send_once(
        self, method: str, url: str, headers: Mapping[str, str], subject: str, body: bytes
    ) -> ControlReply:
        where = _where(url)
        try:
            client = self._client_for(url)
            request = client.build_request(method, url, headers=dict(headers), content=body or None)
            if body:
                request.stream = _Pieces(body)
            async with aclosing(await client.send(request, stream=True)) as response:
                with trio.fail_after(_WHOLE_TIMEOUT_S):
                    received = await _receive(response)
                if received is None:
                    raise BadReply(
                        f"{subject}: {where} answers with more than {_BODY_MAX_BYTES >> 20} MiB", lasting=True
                    )
        except (httpx.TimeoutException, trio.TooSlowError):
            raise OriginUnavailable(f"{subject}: {where} did not answer in time", hint=REACH) from None
        except httpx.InvalidURL:
            raise BadReply(f"{subject}: has no URL") from None
        except httpx.RemoteProtocolError:
            raise OriginUnavailable(f"{subject}: {where} broke off its reply, or does not speak HTTP") from None
        except httpx.HTTPError as error:
            trouble = reason(error)
            if is_untrusted(error):
                raise OriginUntrusted(
                    f"{subject}: TLS with {where} failed: {trouble}",
                    hint="a private certificate authority is set with ca_bundle; a plain-text server has an http:// endpoint URL",
                ) from None
            if isinstance(error, httpx.ProxyError) or (self._has_proxy and isinstance(error, httpx.ConnectError)):
                raise OriginUnavailable(
                    f"{subject}: the control proxy does not let through to {where}: {trouble}",
                    hint="is control_proxy right, and up?",
                ) from None
            if any(isinstance(each, socket.gaierror) and each.errno in _NO_HOST for each in causes(error)):
                host = urlsplit(url).hostname
                raise OriginUnavailable(f"{subject}: there is no host {host}", hint=self._no_host_hint) from None
            is_unresolved = any(isinstance(each, socket.gaierror) for each in causes(error))
            hint = self._no_host_hint if is_unresolved else REACH
            raise OriginUnavailable(f"{subject}: {where} cannot be reached: {trouble}", hint=hint) from None
        reply = ControlReply(response.status_code, response.headers, bytes(received))
        if reply.status == 429 or (reply.status >= 500 and reply.status not in (501, 505)):
            raise _BusyReply(reply, retry_after_s(reply.headers, self._clock()))
        return reply

    def _client_for(self, url: str) -> httpx.AsyncClient:
        scheme = url.partition(":")[0]
        if (client := self._clients.get(scheme)) is None:
            # Plain HTTP loads no certificates. What it has instead trusts nobody.
            context = self._context() if scheme == "https" else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            client = self._clients[scheme] = self._make_client(verify=context)
        return client


class _Pieces(httpx.AsyncByteStream):
    """A body that is sent piece by piece. No generator, which a failure would leave half-way."""

    def __init__(self, body: bytes) -> None:
        self._rest = (body[at : at + _PIECE_BYTES] for at in range(0, len(body), _PIECE_BYTES))

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        if (piece := next(self._rest, None)) is None:
            raise StopAsyncIteration
        return piece


async def _receive(response: httpx.Response) -> bytearray | None:
    """The body as it was sent, not decompressed; None for one that is too long.

    httpx's iterators cannot be left half-way. So the connection is closed under a body that is too
    long, which ends them.
    """
    received, too_long = bytearray(), False
    try:
        async for chunk in response.aiter_raw():
            too_long = too_long or len(received) + len(chunk) > _BODY_MAX_BYTES
            if too_long:
                received.clear()
                await response.aclose()
            else:
                received += chunk
    except (httpx.HTTPError, httpx.StreamError):
        if not too_long:
            raise
    return None if too_long else received


class _BusyReply(OriginUnavailable):
    """A reply that asks for another attempt; the last one is handed to the origin."""

    def __init__(self, reply: ControlReply, retry_after_s: float) -> None:
        super().__init__("busy", retry_after_s=retry_after_s)
        self.reply = reply


def _where(url: str) -> str:
    """Scheme, host and port, without user names, passwords and query."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"


def _check_page(page: ListingPage, token: str) -> None:
    """Return if a page after `token` keeps within the bounds, else raise ValueError."""
    entries = len(page.objects) + len(page.prefixes)
    if entries > _ENTRIES_MAX:
        raise ValueError(f"a page of the listing has {entries:,} entries, over {_ENTRIES_MAX:,}")
    if not isinstance(page.next_token, str) or len(page.next_token) > _TOKEN_MAX_CHARACTERS:
        raise ValueError(f"the listing names a next page that cannot be asked for: {excerpt(page.next_token)}")
    if page.next_token and page.next_token == token:
        raise ValueError("the listing is cut off and names no next page")


class RestOrigin(ABC):
    """One bucket or container behind a REST interface, as far as all stores are alike."""

    service: ClassVar[str]
    """The service's name for people."""
    no_host_hint: ClassVar[str] = "is the host right, in --endpoint-url or the URL, and does this host's DNS know it?"
    """The hint where the host's name has no address."""

    def __init__(self, repository: RepositoryConfig, root: str, *, clock: Callable[[], float]) -> None:
        """`root` names the bucket in messages: `gs://bucket`."""
        self._root = root
        context = partial(ssl_context, repository.ca_bundle, verify=repository.verify_tls)
        if repository.ca_bundle:
            context()  # so that a mount says at once that it cannot be used
        self._rest = Rest(context, proxy=repository.control_proxy, clock=clock, no_host_hint=self.no_host_hint)
        self._parsing = trio.CapacityLimiter(_PARSERS)
        self._versioned = repository.versioned
        self._clock = clock
        # Each is kept for half of the time that it is valid.
        self._signed: TLRUCache[Hashable, ReadRequest] = TLRUCache(
            _REQUESTS_MAX, lambda _key, request, now: now + (request.expires_at - now) / 2, timer=clock
        )
        self._pins: LRUCache[tuple[str, str, int], str] = LRUCache(_PINS_MAX)
        self._pinning: WeakValueDictionary[tuple[str, str, int], trio.Lock] = WeakValueDictionary()

    @property
    @abstractmethod
    def _endpoint(self) -> str:
        """The endpoint in words."""

    @abstractmethod
    async def _ask_list(self, prefix: str, delimiter: str, token: str, page_size: int) -> ControlReply:
        """The reply with one page of a listing."""

    @abstractmethod
    def _parse_list(self, reply: ControlReply, date_ns: int) -> ListingPage:
        """The page in a reply of that date, in a worker thread. Raises one of _UNREADABLE."""

    @abstractmethod
    async def _head(self, key: str, recorded: ObjectVersion | None = None) -> ControlReply:
        """The reply about an object; about the checksums of `recorded` if that is given."""

    @abstractmethod
    def _parse_stat(self, reply: ControlReply, key: str) -> ObjectVersion:
        """The version that the reply is about. Raises one of _UNREADABLE."""

    @abstractmethod
    def _parse_checksums(self, reply: ControlReply) -> tuple[str, Checksums]:
        """Validator and recorded checksums. Raises one of _UNREADABLE."""

    @abstractmethod
    async def _renew(self) -> None:
        """Load the credentials anew, after a refusal."""

    @abstractmethod
    async def _build_request(self, version: ObjectVersion, *, presigned: bool) -> ReadRequest:
        """See `read_request`. Raises ValueError for a key that has no URL."""

    async def list(self, prefix: str, *, delimiter: str = "/", token: str = "", page_size: int = 1000) -> ListingPage:
        """One page; times are as `stat` gives them. Keys that are not UTF-8 cannot be read."""
        reply = await self._ask_list(prefix, delimiter, token, page_size)
        parse = partial(self._parse_list, reply, reply.date_ns(self._clock()))
        try:
            page = await trio.to_thread.run_sync(parse, limiter=self._parsing)  # a thousand entries take milliseconds
            _check_page(page, token)
        except _UNREADABLE as error:
            raise self._unreadable(error, prefix) from None
        return page

    async def stat(self, key: str) -> ObjectVersion:
        """The current version, by one request. Raises NotFound."""
        reply = await self._head(key)
        try:
            return self._parse_stat(reply, key)
        except _UNREADABLE as error:
            raise self._unreadable(error, key) from None

    async def checksums(self, version: ObjectVersion) -> Checksums:
        """The recorded checksums in one request, if its reply is about `version`.

        A store that ignores If-Match would answer for another version.
        """
        pin = version.version_id or self._pins.get(version.identity, "")
        reply = await self._head(version.key, replace(version, version_id=pin))
        try:
            validator, found = self._parse_checksums(reply)
        except _UNREADABLE as error:
            raise self._unreadable(error, version.key) from None
        return found if validator == version.validator else Checksums()

    async def read_request(self, version: ObjectVersion, *, presigned: bool, fresh: bool = False) -> ReadRequest:
        """A GET that is valid until its signature or its credentials expire; reused half as long.

        Waits only when no valid credentials are at hand, for a service that signs, and for an
        unknown id of a version that is to be pinned. Raises NotFound for an impossible key, and
        VersionGone when the id is another version's.
        """
        known_as = (version.identity, version.version_id, version.encoding, presigned)
        if fresh:
            self._signed.clear()
            await self._renew()
        elif (known := self._signed.get(known_as)) is not None:
            return known
        if self._versioned and not version.version_id:
            version = await self._pin(version)
        try:
            request = await self._build_request(version, presigned=presigned)
        except ValueError:
            raise self._no_name(version.key) from None
        self._signed[known_as] = request
        return request

    async def aclose(self) -> None:
        """Close the connections."""
        self._signed.clear()
        await self._rest.aclose()

    async def _pin(self, version: ObjectVersion) -> ObjectVersion:
        """`version` with its id, which no listing carries. Single flight. Raises VersionGone."""
        identity = version.identity
        if (version_id := self._pins.get(identity)) is None:
            async with self._pinning.setdefault(identity, trio.Lock()):
                if (version_id := self._pins.get(identity)) is None:
                    self._pins[identity] = version_id = await self._version_id(version)
        return replace(version, version_id=version_id)

    async def _version_id(self, version: ObjectVersion) -> str:
        """The version's id, by one stat; empty where the bucket gives it none."""
        subject = self._subject(version.key)
        try:
            current = await self.stat(version.key)
        except BucketNotFound:
            raise
        except NotFound:
            raise VersionGone(f"{subject}: was deleted before it was first read") from None
        if not version.is_stored_as(current):
            raise VersionGone(f"{subject}: was replaced before it was first read")
        return current.version_id

    def _unreadable(self, error: Exception, key: str) -> BadReply:
        missing = isinstance(error, KeyError)
        said = f"the reply leaves out {error}" if missing else f"the reply is not {self.service}'s: {error}"
        return BadReply(f"{self._subject(key)}: {said}", hint=f"endpoint {self._endpoint}")

    def _no_name(self, key: str) -> NotFound:
        return NotFound(f"{self._subject(key)}: not a name that {self.service} allows")

    def _subject(self, key: str) -> str:
        return f"{self._root}/{key}" if key else self._root
