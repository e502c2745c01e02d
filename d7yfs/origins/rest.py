"""The HTTP client of the control plane, for origins that speak to their provider themselves: lists, stats, tokens.

Owns connections, timeouts, the proxy and the retries of calls that move little; bodies of objects never come this way. One `Rest` per
origin. What a status means is the origin's business (`refusal`), except that 429 and 5xx are tried again here: after the time that the
provider asks for in Retry-After, else after a growing pause.

The environment is not consulted (`trust_env=False`): proxies and authorities are settings. Redirects are not followed: a signature, or a
bearer token, must not travel to another host.
"""

from __future__ import annotations

import logging
import os
import random
import socket
import ssl
import time
from collections.abc import Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import httpx
import trio

from d7yfs.errors import BadReply, OriginUnavailable, OriginUntrusted
from d7yfs.origins import http_time

CONNECT_TIMEOUT_S = 5.0
READ_TIMEOUT_S = 15.0
_WHOLE_TIMEOUT_S = 30.0
_ATTEMPTS = 3
"""With the timeouts above a call that nobody answers ends within the default read timeout of a mount (60 s)."""
_PAUSE_S = 0.2
_LONGEST_PAUSE_S = 5.0
_CONNECTIONS = 8
_BODY_MAX_BYTES = 64 << 20
"""No listing page is near it; what is longer is no control-plane reply."""

# At DEBUG and INFO these write URLs, which may hold signatures.
for _name in ("httpx", "httpcore"):
    logging.getLogger(_name).setLevel(logging.WARNING)


@dataclass(frozen=True, slots=True, repr=False)
class Reply:
    """A whole reply. No repr: a token may be in it."""

    status: int
    headers: Mapping[str, str]
    """Case-insensitive."""
    body: bytes = field(default=b"")

    @property
    def date(self) -> float | None:
        """The reply's `Date` as seconds since the epoch; None when absent or malformed."""
        return http_time.date_of(self.headers)

    def retry_after_s(self, now: float) -> float:
        """See `http_time.retry_after_s`."""
        return http_time.retry_after_s(self.headers, now)


class Rest:
    """Sends control-plane requests to one origin. `proxy` is an HTTP proxy's URL, empty for none."""

    def __init__(
        self, context: ssl.SSLContext | bool, *, proxy: str = "", clock: Callable[[], float] = time.time
    ) -> None:
        self._clock = clock
        self._client = httpx.AsyncClient(
            verify=context,
            proxy=proxy or None,
            trust_env=False,
            follow_redirects=False,
            timeout=httpx.Timeout(READ_TIMEOUT_S, connect=CONNECT_TIMEOUT_S),
            limits=httpx.Limits(max_connections=_CONNECTIONS, max_keepalive_connections=_CONNECTIONS),
            headers={"User-Agent": "d7yfs", "Accept-Encoding": "identity"},
        )

    async def send(
        self, method: str, url: str, headers: Mapping[str, str], *, subject: str, body: bytes = b""
    ) -> Reply:
        """One request, tried again while the provider is busy or cannot be reached; the reply, whatever its status.

        `url` is sent as it is, percent-encoded by the caller; `subject` names the object in messages. Raises OriginUnavailable,
        OriginUntrusted and BadReply.
        """
        for attempt in range(1, _ATTEMPTS + 1):
            last = attempt == _ATTEMPTS
            pause_s = _PAUSE_S * 2**attempt * random.uniform(0.5, 1)  # noqa: S311 - no secret rests on it
            try:
                reply = await self._once(method, url, headers, subject, body)
            except OriginUnavailable as error:
                if last or not error.transient:
                    raise
            else:
                if last or (reply.status < 500 and reply.status != 429) or reply.status in (501, 505):
                    return reply
                pause_s = max(pause_s, reply.retry_after_s(self._clock()))
                if pause_s > _LONGEST_PAUSE_S:
                    return reply
            await trio.sleep(pause_s)
        raise AssertionError("unreachable")

    async def aclose(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    async def _once(self, method: str, url: str, headers: Mapping[str, str], subject: str, body: bytes) -> Reply:
        where = _where(url)
        try:
            request = self._client.build_request(method, url, headers=dict(headers), content=body or None)
            async with aclosing(await self._client.send(request, stream=True)) as response:
                # Read to its end, whatever it is: httpx's iterators cannot be left half-way.
                with trio.fail_after(_WHOLE_TIMEOUT_S):
                    received, too_long = bytearray(), False
                    async for chunk in response.aiter_raw():
                        too_long = too_long or len(received) + len(chunk) > _BODY_MAX_BYTES
                        if not too_long:
                            received += chunk
                if too_long:
                    raise BadReply(f"{subject}: {where} answers with more than {_BODY_MAX_BYTES >> 20} MiB")
        except (httpx.TimeoutException, trio.TooSlowError):
            raise OriginUnavailable(f"{subject}: {where} did not answer in time", hint=_REACH) from None
        except httpx.InvalidURL:
            raise BadReply(f"{subject}: has no URL") from None
        except httpx.RemoteProtocolError:
            raise OriginUnavailable(f"{subject}: {where} broke off its reply, or does not speak HTTP") from None
        except httpx.ProxyError as error:
            raise OriginUnavailable(f"{subject}: the control proxy refused: {reason(error)}") from None
        except httpx.HTTPError as error:
            trouble = reason(error)
            if is_untrusted(error):
                raise OriginUntrusted(
                    f"{subject}: TLS with {where} failed: {trouble}",
                    hint="a private certificate authority is set with ca_bundle",
                ) from None
            raise OriginUnavailable(f"{subject}: {where} cannot be reached: {trouble}", hint=_REACH) from None
        return Reply(response.status_code, response.headers, bytes(received))


def reason(error: BaseException) -> str:
    """The operating system's or TLS library's own words under httpx's and httpcore's wrappers, which may repeat the URL."""
    return next((words for each in _causes(error) if (words := _words(each))), "connection failed")


def is_untrusted(error: BaseException) -> bool:
    """Whether a certificate that does not verify is behind it."""
    return any(isinstance(each, ssl.SSLCertVerificationError) for each in _causes(error))


def _causes(error: BaseException) -> list[BaseException]:
    """`error` and what is behind it, the innermost first."""
    found: list[BaseException] = []
    pending: list[BaseException | None] = [error]
    while pending:
        each = pending.pop()
        if each is None or each in found:
            continue
        found.append(each)
        pending += [each.__context__, each.__cause__]
        if isinstance(each, BaseExceptionGroup):
            pending += each.exceptions
    return found[::-1]


def _words(error: BaseException) -> str:
    if not isinstance(error, OSError):
        return ""
    if error.errno and not isinstance(error, ssl.SSLError | socket.gaierror):
        return os.strerror(error.errno)  # trio's own text names the address, which the message does too
    return str(getattr(error, "verify_message", "") or error.strerror or "")


def _where(url: str) -> str:
    """Scheme, host and port, and nothing that could be secret."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"


_REACH = "is the endpoint right, the service up, and the network open?"
