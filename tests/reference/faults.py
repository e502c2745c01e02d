"""The faults of a reply in the reference model, by name, and the reader's errors that each
excuses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum, auto

import trio

from tests.servers import faults
from tests.servers.http11 import Answer, Exchange, Fault
from tests.servers.scripted import ScriptedServer

MAX_PAUSE_S = 5.0
"""The pause between two tries of the fetcher."""

SILENCE_S = 7.5
"""The silence after which a connection is given up."""

_MIDWAY = 700_000


class Harm(Enum):
    """The effect of a fault on a reader."""

    NONE = auto()
    DELAY = auto()
    """Tried again until patience ends."""
    NONSENSE = auto()
    """The third one in a row is an error."""
    GONE = auto()
    """The version is not there any more, rightly or not."""
    DENIED = auto()
    """The second one in a row is an error."""


@dataclass(frozen=True)
class Named:
    make: Callable[[ScriptedServer], Fault]
    harm: Harm
    delay_s: float
    """The longest time that a transfer may stand still for it, pauses included."""


async def _slowly(exchange: Exchange, answer: Answer) -> None:
    body = await answer.whole()
    await exchange.send_head(answer.status, answer.headers)
    for start in range(0, len(body), _MIDWAY // 2):
        await trio.sleep(0.05)
        await exchange.send_body(body[start : start + _MIDWAY // 2])


async def _elsewhere(exchange: Exchange, answer: Answer) -> None:
    """Other bytes than were asked for, and a head that admits it."""
    span, total = answer.headers["Content-Range"].removeprefix("bytes ").split("/")
    start, last = (int(number) for number in span.split("-"))
    body = (await answer.whole())[1:] + b"?"
    headers = {**answer.headers, "Content-Range": f"bytes {start + 1}-{last + 1}/{total}"}
    await exchange.deliver(replace(answer, headers=headers, body=body))


async def _short_until_close(exchange: Exchange, answer: Answer) -> None:
    """The beginning of the body, ended by the connection alone."""
    headers = {name: value for name, value in answer.headers.items() if name != "Content-Length"}
    body = await answer.whole()
    await exchange.send_head(answer.status, headers)
    await exchange.send_body(body[: len(body) * 2 // 3])
    exchange.hang_up()


def _delay(fault: Callable[[], Fault], delay_s: float = MAX_PAUSE_S) -> Named:
    return Named(lambda _server: fault(), Harm.DELAY, delay_s)


def _other(fault: Fault, harm: Harm) -> Named:
    return Named(lambda _server: fault, harm, MAX_PAUSE_S)


FAULTS: dict[str, Named] = {
    "honest": _other(faults.honest, Harm.NONE),
    "slow": _other(_slowly, Harm.NONE),
    "503": _delay(lambda: faults.status(503)),
    "429, retry later": _delay(lambda: faults.status(429, {"Retry-After": "3"})),
    "cut": _delay(lambda: faults.cut_after(_MIDWAY)),
    "cut between blocks": _delay(lambda: faults.cut_after(1 << 20)),
    "reset": _delay(lambda: faults.reset_after(_MIDWAY)),
    "reset before the head": _delay(lambda: faults.reset_after(0)),
    "drop": _delay(lambda: faults.drop),
    "hang": _delay(faults.Hang, SILENCE_S + MAX_PAUSE_S),
    "hang midway": _delay(lambda: faults.Hang(_MIDWAY), SILENCE_S + MAX_PAUSE_S),
    "chunked": _other(faults.chunked, Harm.NONE),
    "until close": _other(faults.until_close, Harm.NONE),
    "short until close": _delay(lambda: _short_until_close),
    "closing": _other(faults.closing, Harm.NONE),
    "range under 200": _other(faults.range_with_200, Harm.NONE),
    "surplus": _other(faults.surplus(b"HTTP/1.1 200 OK\r\n"), Harm.NONE),
    "longer": _other(faults.longer_body(10), Harm.NONSENSE),
    "gzipped": _other(faults.gzipped, Harm.NONSENSE),
    "wrong range": _other(_elsewhere, Harm.NONSENSE),
    "wrong total": _other(faults.other_total(12_345), Harm.NONSENSE),
    "whole": Named(lambda server: server.whole_object, Harm.NONSENSE, MAX_PAUSE_S),
    "other etag": _delay(faults.other_etag),
    "404": _delay(lambda: faults.status(404)),
    "412": _delay(lambda: faults.status(412)),
    "page": _delay(lambda: faults.page(b"<html>" * 1000)),
    "chunked page": _delay(lambda: faults.page(b"<html>" * 1_000_000, chunked=True)),
    "page with a weak ETag": _delay(lambda: faults.page(b"<html>", etag="weak")),
    "403": _other(faults.status(403), Harm.DENIED),
}
