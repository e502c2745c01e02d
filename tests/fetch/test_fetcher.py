"""The fetcher over real sockets, against an origin that fails in every way it can."""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from d7yfs.errors import (
    AccessDenied,
    BadReply,
    D7yfsError,
    ObjectArchived,
    OriginUnavailable,
    ProxyUnavailable,
    VersionGone,
    VersionUnbound,
)
from d7yfs.fetch import dragonfly_task, proxy_outage
from d7yfs.fetch.dragonfly_proxy import MAX_REGISTRATIONS, Proxies, Proxy
from d7yfs.fetch.dragonfly_task import TaskOptions
from d7yfs.fetch.fetcher import Fetcher
from d7yfs.fetch.receiver import BUFFER_BYTES
from d7yfs.fetch.transfer import SEAM_BYTES, Urgency, pause_before_retry_s
from d7yfs.fetch.transport import Transport
from d7yfs.objects import ByteRange, ObjectVersion
from tests.fetch.doubles import SECRET, FakeOrigin
from tests.servers import dfdaemon, faults
from tests.servers.dfdaemon import FakeDfdaemon, error, other_task
from tests.servers.http11 import Answer, Exchange, Fault, Request
from tests.servers.scripted import ScriptedServer

KEY = "models/m/weights.bin"
BODY = os.urandom(3_000_017)
WANTED = ByteRange(1_000_000, 2_500_000)
READ_TIMEOUT_S = 20.0


class Sink:
    """Takes what is written; refuses gaps and repetitions. What is retracted is gone."""

    def __init__(self, start: int) -> None:
        self.start = start
        self.data = bytearray()

    async def write(self, offset: int, data: memoryview) -> None:
        assert offset == self.start + len(self.data)
        self.data += data

    def retract(self, wanted: ByteRange) -> int:
        del self.data[max(0, wanted.start - self.start) :]
        return wanted.start


@pytest.fixture
def clock() -> MockClock:
    """Jumps to the next timeout when all has been silent for longer than sockets take to answer (in
    real seconds).
    """
    return MockClock(autojump_threshold=0.05)


@pytest.fixture
async def server() -> AsyncIterator[ScriptedServer]:
    async with ScriptedServer({KEY: BODY}).running() as server:
        yield server


@pytest.fixture
def origin(server: ScriptedServer) -> FakeOrigin:
    return FakeOrigin(server)


@pytest.fixture
def version(origin: FakeOrigin) -> ObjectVersion:
    return origin.version(KEY)


@pytest.fixture
async def transport() -> AsyncIterator[Transport]:
    transport = Transport(connect_timeout_s=3, first_byte_timeout_s=5, idle_timeout_s=5)
    yield transport
    await transport.aclose()
    assert not transport._open


def new_fetcher(
    origin: FakeOrigin, transport: Transport, proxy: Proxies | None = None, *, max_connections: int = 16
) -> Fetcher:
    return Fetcher(origin, transport, proxy=proxy, read_timeout_s=READ_TIMEOUT_S, max_connections=max_connections)


@pytest.fixture
def fetcher(origin: FakeOrigin, transport: Transport) -> Fetcher:
    return new_fetcher(origin, transport)


@asynccontextmanager
async def failing(kind: type[D7yfsError], words: str) -> AsyncIterator[None]:
    """The block must raise exactly `kind`; its text names the object and holds no secret."""
    with pytest.raises(D7yfsError, match=words) as caught:
        yield
    assert type(caught.value) is kind
    cause: BaseException | None = caught.value
    while cause is not None:
        assert SECRET not in f"{cause!s} {cause!r}"
        assert "X-Amz" not in f"{cause!s} {cause!r}"
        cause = cause.__cause__ or cause.__context__


# --- before anything is asked for ---


async def test_what_the_first_read_would_wait_for_is_prepared(
    server: ScriptedServer, origin: FakeOrigin, fetcher: Fetcher, version: ObjectVersion
) -> None:
    await fetcher.prepare()
    assert (origin.signed, server.connections, server.requests) == ([(False, False)], 1, [])
    await fetcher.fetch(version, WANTED, Sink(WANTED.start))
    assert server.connections == 1


async def test_what_cannot_be_prepared_is_the_first_reads_to_tell(
    server: ScriptedServer, origin: FakeOrigin, fetcher: Fetcher, version: ObjectVersion
) -> None:
    origin.refusals.append(OriginUnavailable("no credentials yet"))
    await fetcher.prepare()
    assert server.connections == 0
    await fetcher.fetch(version, WANTED, Sink(WANTED.start))


async def test_a_connection_to_the_proxy_is_prepared(
    daemon: FakeDfdaemon, streamer: Fetcher, origin: FakeOrigin, server: ScriptedServer, version: ObjectVersion
) -> None:
    await streamer.prepare()
    assert (origin.signed, daemon.connections, server.connections) == ([(True, False)], 1, 0)
    await streamer.stream(version, version.whole, Sink(0))
    assert daemon.connections == 1


# --- what arrives ---


@pytest.mark.parametrize(
    "wanted", [WANTED, ByteRange(0, len(BODY)), ByteRange(0, 1), ByteRange(3_000_016, 3_000_017), ByteRange(5, 5)]
)
async def test_exactly_the_range(
    server: ScriptedServer, fetcher: Fetcher, version: ObjectVersion, wanted: ByteRange
) -> None:
    sink = Sink(wanted.start)
    await fetcher.fetch(version, wanted, sink)
    assert sink.data == BODY[wanted.start : wanted.stop]
    await wait_all_tasks_blocked()
    assert server.sent_bytes.get(KEY, 0) == fetcher.models.total.direct_bytes == wanted.size
    for request in server.requests:
        assert request.headers["range"] == f"bytes={wanted.start}-{wanted.stop - 1}"
        assert request.headers["if-match"] == version.validator
        assert not request.absolute
        assert not [name for name in request.headers if name.startswith("x-dragonfly")]
    assert len(server.requests) == bool(wanted)


@pytest.mark.parametrize(
    "fault",
    [
        faults.range_with_200,
        faults.chunked,
        faults.until_close,
        faults.closing,
        faults.preceded_by(b"HTTP/1.1 103 Early Hints\r\n\r\n"),
    ],
)
async def test_other_ways_to_say_the_same(
    server: ScriptedServer, fetcher: Fetcher, version: ObjectVersion, fault: Fault
) -> None:
    server.script(fault)
    sink = Sink(WANTED.start)
    await fetcher.fetch(version, WANTED, sink)
    assert sink.data == BODY[WANTED.start : WANTED.stop]
    assert len(server.requests) == 1


async def test_the_whole_object_with_200(server: ScriptedServer, fetcher: Fetcher, version: ObjectVersion) -> None:
    server.script(server.whole_object)
    sink = Sink(0)
    await fetcher.fetch(version, version.whole, sink)
    assert sink.data == BODY


# --- what is written when ---


async def test_what_has_come_is_written_at_once(
    clock: MockClock, server: ScriptedServer, fetcher: Fetcher, version: ObjectVersion, nursery: trio.Nursery
) -> None:
    slow = faults.Tap(1000)
    server.script(slow)
    sink = Sink(0)
    nursery.start_soon(fetcher.fetch, version, version.whole, sink)
    await wait_all_tasks_blocked(0.01)
    for reached in (1000, 2000, 3000):
        slow.flow()
        await wait_all_tasks_blocked(0.01)
        assert len(sink.data) == reached
    nursery.cancel_scope.cancel()


async def test_what_came_before_a_cut_is_written_before_the_rest_is_asked_for(
    clock: MockClock, server: ScriptedServer, fetcher: Fetcher, version: ObjectVersion
) -> None:
    sink = Sink(WANTED.start)
    written = []

    async def look(exchange: Exchange, answer: Answer) -> None:
        written.append(len(sink.data))
        await exchange.deliver(answer)

    server.script(faults.cut_after(400_000), look)
    await fetcher.fetch(version, WANTED, sink)
    assert written == [400_000]
    assert server.requests[1].headers["range"] == f"bytes={WANTED.start + 400_000 - SEAM_BYTES}-{WANTED.stop - 1}"
    assert sink.data == BODY[WANTED.start : WANTED.stop]


# --- what is tried again ---


@pytest.mark.parametrize(
    "fault",
    [faults.cut_after(400_000), faults.reset_after(400_000), faults.Hang(400_000)],
    ids=["cut", "reset", "hang"],
)
async def test_goes_on_at_the_offset_reached(
    clock: MockClock, server: ScriptedServer, fetcher: Fetcher, version: ObjectVersion, fault: Fault
) -> None:
    server.script(fault)
    sink = Sink(WANTED.start)
    await fetcher.fetch(version, WANTED, sink)
    assert sink.data == BODY[WANTED.start : WANTED.stop]
    _, second = server.requests
    resumed = int(second.headers["range"].removeprefix("bytes=").split("-")[0])
    assert WANTED.start <= resumed <= WANTED.start + 400_000 - SEAM_BYTES
    if not isinstance(fault, faults.Hang) and fault.__qualname__.startswith("cut"):
        assert resumed == WANTED.start + 400_000 - SEAM_BYTES
    assert fetcher.counters.retries == {"OriginUnavailable": 1}


@pytest.mark.parametrize("fault", [faults.drop, faults.reset_after(0), faults.status(500), faults.status(429)])
async def test_a_moment_of_trouble(
    clock: MockClock, server: ScriptedServer, fetcher: Fetcher, version: ObjectVersion, fault: Fault
) -> None:
    server.script(fault, fault, fault, fault)
    sink = Sink(WANTED.start)
    await fetcher.fetch(version, WANTED, sink)
    assert sink.data == BODY[WANTED.start : WANTED.stop]
    assert fetcher.counters.retries == {"OriginUnavailable": 4}
    assert fetcher.counters.direct_requests == 5


async def test_progress_renews_patience(
    clock: MockClock, server: ScriptedServer, fetcher: Fetcher, version: ObjectVersion
) -> None:
    """Ten hangs of 5 s exceed the read timeout of 20 s, but bytes come between them."""
    server.script(*(faults.Hang(100_000) for _ in range(10)))
    sink = Sink(WANTED.start)
    began = trio.current_time()
    await fetcher.fetch(version, WANTED, sink)
    assert sink.data == BODY[WANTED.start : WANTED.stop]
    assert trio.current_time() - began > 2 * READ_TIMEOUT_S


async def test_an_origin_that_hangs_for_ever(
    clock: MockClock, server: ScriptedServer, fetcher: Fetcher, version: ObjectVersion
) -> None:
    server.script(*(faults.Hang() for _ in range(20)))
    began = trio.current_time()
    async with failing(OriginUnavailable, "no first byte"):
        await fetcher.fetch(version, WANTED, Sink(WANTED.start))
    assert READ_TIMEOUT_S <= trio.current_time() - began <= READ_TIMEOUT_S + 6
    assert 3 <= len(server.requests) <= 6


async def test_an_origin_that_is_down(
    clock: MockClock, server: ScriptedServer, fetcher: Fetcher, version: ObjectVersion
) -> None:
    server.kill()
    began = trio.current_time()
    async with failing(OriginUnavailable, "connection refused"):
        await fetcher.fetch(version, WANTED, Sink(WANTED.start))
    assert READ_TIMEOUT_S <= trio.current_time() - began <= READ_TIMEOUT_S + 6


async def test_retry_after_is_honoured(
    clock: MockClock, server: ScriptedServer, fetcher: Fetcher, version: ObjectVersion
) -> None:
    server.script(faults.status(503, {"Retry-After": "7"}), faults.status(429, {"Retry-After": "9"}))
    began = trio.current_time()
    sink = Sink(WANTED.start)
    await fetcher.fetch(version, WANTED, sink)
    assert sink.data == BODY[WANTED.start : WANTED.stop]
    assert 16.0 <= trio.current_time() - began < 17.0


async def test_retry_after_never_exceeds_the_read_timeout(
    clock: MockClock, server: ScriptedServer, fetcher: Fetcher, version: ObjectVersion
) -> None:
    server.script(faults.status(503, {"Retry-After": "3600"}), forever=True)
    began = trio.current_time()
    async with failing(OriginUnavailable, "503"):
        await fetcher.fetch(version, WANTED, Sink(WANTED.start))
    assert trio.current_time() - began == pytest.approx(READ_TIMEOUT_S, abs=0.5)
    assert len(server.requests) == 2, "one more try when the time is over"


def test_pauses_double_with_jitter() -> None:
    problem = OriginUnavailable("x")
    for attempt, longest in enumerate((0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0, 5.0)):
        pauses = {pause_before_retry_s(attempt, problem) for _ in range(50)}
        assert longest / 2 <= min(pauses) <= max(pauses) <= longest
        assert len(pauses) > 1
    assert pause_before_retry_s(2000, problem) <= 5.0
    assert pause_before_retry_s(0, OriginUnavailable("x", retry_after_s=7.0)) == 7.0
    assert pause_before_retry_s(0, BadReply("x")) <= 0.1


# --- what is refused ---


async def whole_of_another(exchange: Exchange, answer: Answer) -> None:
    await exchange.deliver(Answer(200, {"ETag": answer.headers["ETag"]}, b"x" * 10))


LASTING = [(whole_of_another, "whole object")]


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (faults.shifted_range(1), "asked for"),
        (faults.other_total(1), "1 bytes in all"),
        (faults.longer_body(1), "announces"),
        (faults.with_headers({"Content-Length": "10"}), "announces 10"),
        (faults.gzipped, "announces|encoded"),
        (faults.raw(b"SSH-2.0-OpenSSH_9.2\r\n\r\n"), "not HTTP"),
        (faults.status(302, {"Location": "http://127.0.0.1:1/"}), "redirects"),
        (faults.status(204), "204"),
        *LASTING,
    ],
)
async def test_bad_replies_bring_no_byte(
    clock: MockClock, server: ScriptedServer, fetcher: Fetcher, version: ObjectVersion, fault: Fault, words: str
) -> None:
    server.script(fault, forever=True)
    sink = Sink(WANTED.start)
    async with failing(BadReply, words):
        await fetcher.fetch(version, WANTED, sink)
    assert not sink.data


@pytest.mark.parametrize(("fault", "words"), LASTING)
async def test_a_server_that_will_not_do_better_is_given_up_soon(
    clock: MockClock, server: ScriptedServer, fetcher: Fetcher, version: ObjectVersion, fault: Fault, words: str
) -> None:
    server.script(fault, forever=True)
    began = trio.current_time()
    async with failing(BadReply, words):
        await fetcher.fetch(version, WANTED, Sink(WANTED.start))
    assert len(server.requests) == 3
    assert trio.current_time() - began < 1.0


PAGES = {
    "of another length": faults.page(b"<html>Log in!</html>"),
    "of the same length": faults.page(b"<html>".ljust(len(BODY))),
    "chunked": faults.page(b"<html>".ljust(len(BODY)), chunked=True),
    "closed by the peer": faults.page(b"<html>".ljust(len(BODY)), closed=True),
    "longer": faults.page(b"<html>".ljust(2 * len(BODY)), closed=True),
    "with another status": faults.page(b"<html>".ljust(len(BODY)), code=206),
    "with a weak ETag": faults.page(b"<html>".ljust(len(BODY)), etag="weak"),
    "with its own ETag": faults.page(b"<html>".ljust(len(BODY)), etag='"5f3-60a"'),
    "that says 404": faults.page(b"<html>Not found</html>", code=404),
    "that says 412": faults.page(b"", code=412),
    "that redirects": faults.page(b"", code=302),
    "that says 405": faults.page(b"<html>Not allowed</html>", code=405),
    "that says 503": faults.page(b"<html>Maintenance</html>", code=503),
}


@pytest.mark.parametrize("fault", PAGES.values(), ids=PAGES.keys())
@pytest.mark.parametrize("wanted", [WANTED, ByteRange(0, len(BODY))], ids=["range", "whole"])
async def test_a_page_that_comes_in_the_stores_place_is_waited_out(
    clock: MockClock,
    server: ScriptedServer,
    fetcher: Fetcher,
    version: ObjectVersion,
    fault: Fault,
    wanted: ByteRange,
) -> None:
    """A captive portal, a gateway, a load balancer: no byte of the page is believed, for any status
    and length.
    """
    server.script(*[fault] * 8)
    sink = Sink(wanted.start)
    await fetcher.fetch(version, wanted, sink)
    assert sink.data == BODY[wanted.start : wanted.stop]
    assert len(server.requests) == 9


@pytest.mark.parametrize("fault", PAGES.values(), ids=PAGES.keys())
async def test_a_page_that_stays_is_an_error_in_the_end(
    clock: MockClock, server: ScriptedServer, fetcher: Fetcher, version: ObjectVersion, fault: Fault
) -> None:
    server.script(fault, forever=True)
    sink = Sink(0)
    began = trio.current_time()
    with pytest.raises((OriginUnavailable, BadReply), match=KEY):
        await fetcher.fetch(version, version.whole, sink)
    assert trio.current_time() - began > READ_TIMEOUT_S - 0.01, "no pause of a millisecond is worth a try"
    assert not sink.data


async def test_a_server_that_ignores_ranges(
    clock: MockClock, server: ScriptedServer, fetcher: Fetcher, version: ObjectVersion
) -> None:
    server.script(server.whole_object, forever=True)
    sink = Sink(WANTED.start)
    async with failing(BadReply, "got the whole object"):
        await fetcher.fetch(version, WANTED, sink)
    assert not sink.data


async def test_one_bad_reply_is_no_reason_to_give_up(
    clock: MockClock, server: ScriptedServer, fetcher: Fetcher, version: ObjectVersion
) -> None:
    server.script(faults.shifted_range(1), faults.other_total(1))
    sink = Sink(WANTED.start)
    await fetcher.fetch(version, WANTED, sink)
    assert sink.data == BODY[WANTED.start : WANTED.stop]


async def endless_chunks(exchange: Exchange, answer: Answer) -> None:
    """As many bytes as asked for, and one more, in a coding that tells no length beforehand."""
    headers = {name: value for name, value in answer.headers.items() if name != "Content-Length"}
    await exchange.send_head(answer.status, {**headers, "Transfer-Encoding": "chunked"})
    body = await answer.whole() + b"+"
    await exchange.send(b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body))


async def test_too_many_bytes_of_unknown_length_are_never_complete(
    clock: MockClock, server: ScriptedServer, fetcher: Fetcher, version: ObjectVersion
) -> None:
    """The surplus shows only at the end; until then what came is right by all that is known, but
    the rest never lands.
    """
    server.script(endless_chunks, forever=True)
    sink = Sink(WANTED.start)
    async with failing(BadReply, "more bytes than were asked for"):
        await fetcher.fetch(version, WANTED, sink)
    assert len(sink.data) < WANTED.size
    assert sink.data == BODY[WANTED.start : WANTED.start + len(sink.data)]


# --- what is final ---


GONE = [
    (faults.status(404), "s3://models/models/m/weights.bin: was deleted"),
    (faults.status(412), "was replaced"),
    (faults.status(416), "was replaced"),
    (faults.other_etag(), "was replaced|was deleted"),
    (faults.raw(b"HTTP/1.1 412 No\r\nContent-Length: 500\r\n\r\n<Code>Precond"), "was replaced"),
]


@pytest.mark.parametrize(("fault", "words"), GONE, ids=["404", "412", "416", "etag", "412 with half an explanation"])
@pytest.mark.parametrize("change", ["replaced", "deleted", "refused"])
async def test_a_version_that_is_gone_is_final_at_once(
    server: ScriptedServer,
    origin: FakeOrigin,
    fetcher: Fetcher,
    version: ObjectVersion,
    fault: Fault,
    words: str,
    change: str,
) -> None:
    """The store confirms it; where it may not be asked, the reply alone must do."""
    if change == "replaced":
        server.put(KEY, b"another")
    elif change == "deleted":
        del server.objects[KEY]
    else:
        origin.stat_failure = AccessDenied("s3://models: may not be asked")
    server.script(fault, forever=True)
    sink = Sink(WANTED.start)
    async with failing(VersionGone, words):
        await fetcher.fetch(version, WANTED, sink)
    assert not sink.data
    assert len(server.requests) == 1


async def test_parts_that_fail_together_ask_the_store_once(
    clock: MockClock, server: ScriptedServer, origin: FakeOrigin, fetcher: Fetcher, version: ObjectVersion
) -> None:
    del server.objects[KEY]
    for _ in range(3):
        async with failing(VersionGone, "was deleted"):
            await fetcher.fetch(version, WANTED, Sink(WANTED.start))
    assert origin.stats == 1
    server.put(KEY, BODY)  # the same content again
    sink = Sink(WANTED.start)
    await fetcher.fetch(version, WANTED, sink)
    assert sink.data == BODY[WANTED.start : WANTED.stop]


async def test_while_the_store_cannot_confirm_it_no_version_is_gone(
    clock: MockClock, server: ScriptedServer, origin: FakeOrigin, fetcher: Fetcher, version: ObjectVersion
) -> None:
    server.put(KEY, b"another")
    origin.stat_failure = OriginUnavailable("s3://models: does not answer")
    async with failing(OriginUnavailable, "does not answer"):
        await fetcher.fetch(version, WANTED, Sink(WANTED.start))
    origin.stat_failure = None
    async with failing(VersionGone, "was replaced"):
        await fetcher.fetch(version, WANTED, Sink(WANTED.start))


async def test_an_archived_object_is_final_at_once(
    server: ScriptedServer, fetcher: Fetcher, version: ObjectVersion
) -> None:
    server.script(faults.status(403, body=b"<Code>InvalidObjectState</Code>"), forever=True)
    sink = Sink(WANTED.start)
    async with failing(ObjectArchived, "restore it"):
        await fetcher.fetch(version, WANTED, sink)
    assert not sink.data
    assert len(server.requests) == 1


async def test_an_object_that_is_replaced_in_mid_body_is_never_mixed(
    clock: MockClock, server: ScriptedServer, fetcher: Fetcher, version: ObjectVersion
) -> None:
    async def replaced(exchange: Exchange, answer: Answer) -> None:
        await faults.cut_after(400_000)(exchange, answer)
        server.put(KEY, os.urandom(len(BODY)))

    server.script(replaced)
    sink = Sink(WANTED.start)
    async with failing(VersionGone, "412"):
        await fetcher.fetch(version, WANTED, sink)
    assert not sink.data, "what came before the cut cannot be proved any more"


# --- what a relay loses ---


@pytest.mark.parametrize("lost", [1, 4096, 200_000], ids=["a byte", "a page", "much"])
async def test_bytes_that_a_relay_lost_in_mid_stream_are_dropped_and_fetched_again(
    clock: MockClock,
    server: ScriptedServer,
    fetcher: Fetcher,
    version: ObjectVersion,
    lost: int,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """All that follows the gap is shifted, and the body ends too soon: so the end of what came is
    compared first.
    """
    told: list[ObjectVersion] = []
    fetcher.on_retracted = told.append
    gap = faults.losing(100_000, lost)
    server.script(faults.cut_after(300_000), gap, faults.honest, gap)
    sink = Sink(WANTED.start)
    await fetcher.fetch(version, WANTED, sink)
    assert sink.data == BODY[WANTED.start : WANTED.stop]
    assert told == [version, version]
    assert "came wrong" in caplog.text
    assert "https" in caplog.text
    # What the first connection brought was proved by the second, and is not asked for again.
    starts = [int(request.headers["range"].removeprefix("bytes=").split("-")[0]) for request in server.requests]
    assert min(starts[1:]) == WANTED.start + 300_000 - SEAM_BYTES


async def test_bytes_that_nothing_has_proved_are_given_back_with_the_error(
    clock: MockClock, server: ScriptedServer, fetcher: Fetcher, version: ObjectVersion
) -> None:
    server.script(faults.cut_after(300_000), faults.losing(100_000, 7), faults.archived)
    sink = Sink(WANTED.start)
    async with failing(ObjectArchived, "restore it"):
        await fetcher.fetch(version, WANTED, sink)
    assert sink.data == BODY[WANTED.start : WANTED.start + 300_000]


# --- signatures ---


async def test_a_refused_signature_is_made_anew_once(
    clock: MockClock, server: ScriptedServer, origin: FakeOrigin, fetcher: Fetcher, version: ObjectVersion
) -> None:
    server.script(faults.status(403))
    sink = Sink(WANTED.start)
    began = trio.current_time()
    await fetcher.fetch(version, WANTED, sink)
    assert sink.data == BODY[WANTED.start : WANTED.stop]
    assert origin.signed == [(False, False), (False, True)]
    assert fetcher.counters.resigned == 1
    assert trio.current_time() - began < 0.1, "at once"


@pytest.mark.parametrize(
    "fault", [faults.status(403), faults.status(401), faults.status(400, body=b"<Code>ExpiredToken</Code>")]
)
async def test_a_lasting_refusal(
    server: ScriptedServer, origin: FakeOrigin, fetcher: Fetcher, version: ObjectVersion, fault: Fault
) -> None:
    server.script(fault, forever=True)
    async with failing(AccessDenied, "refused"):
        await fetcher.fetch(version, WANTED, Sink(WANTED.start))
    assert origin.signed == [(False, False), (False, True)]


async def test_a_signature_that_ends_again_during_a_long_transfer(
    clock: MockClock, server: ScriptedServer, origin: FakeOrigin, fetcher: Fetcher, version: ObjectVersion
) -> None:
    denied, cut = faults.status(403), faults.cut_after(100_000)
    server.script(denied, cut, denied, cut, denied)
    sink = Sink(WANTED.start)
    await fetcher.fetch(version, WANTED, sink)
    assert sink.data == BODY[WANTED.start : WANTED.stop]
    assert fetcher.counters.resigned == 3


async def test_credentials_that_cannot_be_had(
    clock: MockClock, server: ScriptedServer, origin: FakeOrigin, fetcher: Fetcher, version: ObjectVersion
) -> None:
    origin.refusals = [OriginUnavailable("no metadata service"), AccessDenied("expired"), AccessDenied("expired")]
    async with failing(AccessDenied, "expired"):
        await fetcher.fetch(version, WANTED, Sink(WANTED.start))
    assert not server.requests


async def test_secrets_reach_no_log(
    clock: MockClock, server: ScriptedServer, fetcher: Fetcher, version: ObjectVersion, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    server.script(
        faults.status(403), faults.status(500), faults.raw(b"junk\r\n\r\n"), faults.cut_after(10), faults.drop
    )
    sink = Sink(WANTED.start)
    await fetcher.fetch(version, WANTED, sink)
    assert sink.data == BODY[WANTED.start : WANTED.stop]
    assert len(caplog.records) >= 5
    assert SECRET not in caplog.text
    assert SECRET in server.requests[0].headers["authorization"], "the test looks for what was really sent"


# --- how many at once ---


async def test_prefetch_leaves_room_for_readers(
    server: ScriptedServer, origin: FakeOrigin, transport: Transport, version: ObjectVersion, nursery: trio.Nursery
) -> None:
    fetcher = new_fetcher(origin, transport, max_connections=6)
    server.script(*(faults.Hang() for _ in range(6)))
    ahead = [Urgency(urgent=False) for _ in range(8)]
    for urgency in ahead:
        nursery.start_soon(partial(fetcher.fetch, version, WANTED, Sink(WANTED.start), urgency=urgency))
        await wait_all_tasks_blocked(0.01)
    assert len(server.requests) == 2, "six less the reserve of four"
    for _ in range(2):
        nursery.start_soon(fetcher.fetch, version, WANTED, Sink(WANTED.start))
    await wait_all_tasks_blocked(0.01)
    assert len(server.requests) == 4
    # A reader has come for what is still queued as a prefetch.
    ahead[7].make_urgent()
    await wait_all_tasks_blocked(0.01)
    assert len(server.requests) == 5
    ahead[0].make_urgent()
    await wait_all_tasks_blocked(0.01)
    assert len(server.requests) == 5, "is under way already"
    nursery.start_soon(fetcher.fetch, version, WANTED, Sink(WANTED.start))
    nursery.start_soon(fetcher.fetch, version, WANTED, Sink(WANTED.start))
    await wait_all_tasks_blocked(0.01)
    assert len(server.requests) == 6, "max_connections bounds everything"
    nursery.cancel_scope.cancel()


async def test_prefetches_are_bounded_for_all_origins_together_and_readers_are_not(
    server: ScriptedServer, origin: FakeOrigin, transport: Transport, version: ObjectVersion, nursery: trio.Nursery
) -> None:
    together = trio.CapacityLimiter(3)
    stalled, other = (
        Fetcher(origin, transport, proxy=None, read_timeout_s=60, max_connections=6, all_prefetches=together)
        for _ in range(2)
    )
    server.script(*(faults.Hang() for _ in range(3)))
    for fetcher in (stalled, stalled, other, other):
        ahead = Urgency(urgent=False)
        nursery.start_soon(partial(fetcher.fetch, version, WANTED, Sink(WANTED.start), urgency=ahead))
        await wait_all_tasks_blocked(0.01)
    assert len(server.requests) == 3
    sink = Sink(WANTED.start)
    await other.fetch(version, WANTED, sink)
    assert sink.data == BODY[WANTED.start : WANTED.stop]
    ahead.make_urgent()
    await wait_all_tasks_blocked(0.01)
    assert len(server.requests) == 5, "a reader has come for the one that queued"
    nursery.cancel_scope.cancel()


async def test_a_single_connection_serves_prefetches_too(
    origin: FakeOrigin, transport: Transport, version: ObjectVersion
) -> None:
    fetcher = new_fetcher(origin, transport, max_connections=1)
    for urgency in (Urgency(urgent=False), Urgency(urgent=True), None):
        sink = Sink(WANTED.start)
        await fetcher.fetch(version, WANTED, sink, urgency=urgency)
        assert sink.data == BODY[WANTED.start : WANTED.stop]


@pytest.mark.parametrize("fault", [faults.Hang, lambda: faults.Hang(100_000)], ids=["head", "body"])
async def test_a_cancelled_fetch_gives_everything_back(
    server: ScriptedServer, origin: FakeOrigin, transport: Transport, version: ObjectVersion,
    fault: Callable[[], faults.Hang],
) -> None:  # fmt: skip
    fetcher = new_fetcher(origin, transport, max_connections=1)
    for _ in range(3):
        stuck = fault()
        server.script(stuck)
        async with trio.open_nursery() as nursery:
            urgency = Urgency(urgent=False)
            nursery.start_soon(partial(fetcher.fetch, version, WANTED, Sink(WANTED.start), urgency=urgency))
            await stuck.reached.wait()
            nursery.cancel_scope.cancel()
    assert fetcher._connections.borrowed_tokens == fetcher._prefetches.borrowed_tokens == 0
    assert [len(buffer) for buffer in fetcher._receiver._buffers] in ([], [BUFFER_BYTES])
    assert not transport._open
    sink = Sink(WANTED.start)
    await fetcher.fetch(version, WANTED, sink)
    assert sink.data == BODY[WANTED.start : WANTED.stop]


async def test_what_write_raises_reaches_the_caller_and_nothing_leaks(
    fetcher: Fetcher, version: ObjectVersion, transport: Transport, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def write(offset: int, data: memoryview) -> None:
        raise ZeroDivisionError

    sink = Sink(WANTED.start)
    monkeypatch.setattr(sink, "write", write)
    with pytest.raises(ZeroDivisionError):
        await fetcher.fetch(version, WANTED, sink)
    assert fetcher._connections.borrowed_tokens == 0
    assert len(fetcher._receiver._buffers) == 1


# --- through the proxy ---


@pytest.fixture
async def daemon() -> AsyncIterator[FakeDfdaemon]:
    async with FakeDfdaemon(piece_bytes=1 << 20).running() as daemon:
        yield daemon


@pytest.fixture
async def proxy(daemon: FakeDfdaemon) -> AsyncIterator[Proxies]:
    transport = Transport(connect_timeout_s=3, first_byte_timeout_s=3, idle_timeout_s=5)
    headers = {"X-Team": SECRET, "x-dragonfly-use-p2p": "false"}
    yield Proxies(
        [Proxy(daemon.url, transport)], required=False, options=TaskOptions(headers=headers, filter=("mine",))
    )
    await transport.aclose()
    assert not transport._open


@pytest.fixture
def streamer(origin: FakeOrigin, transport: Transport, proxy: Proxies) -> Fetcher:
    return new_fetcher(origin, transport, proxy)


@pytest.mark.parametrize(
    ("wanted", "range_header"),
    [
        (ByteRange(0, len(BODY)), None),
        (ByteRange(1 << 20, len(BODY)), "bytes=1048576-"),
        (ByteRange(0, 1 << 20), "bytes=0-1048575"),
        (WANTED, "bytes=1000000-2499999"),
    ],
)
async def test_one_get_through_the_proxy(
    server: ScriptedServer, daemon: FakeDfdaemon, streamer: Fetcher, version: ObjectVersion,
    wanted: ByteRange, range_header: str | None,
) -> None:  # fmt: skip
    sink = Sink(wanted.start)
    await streamer.stream(version, wanted, sink)
    assert sink.data == BODY[wanted.start : wanted.stop]
    (request,) = daemon.requests
    assert request.target == f"{server.url}/{KEY}?X-Amz-Date=1&X-Amz-Signature={SECRET}1", "absolute form, sorted query"
    assert request.headers.get("range") == range_header
    assert request.headers["if-match"] == version.validator
    assert request.headers["x-dragonfly-use-p2p"] == "true"
    names = request.headers["x-dragonfly-filtered-query-params"].split(",")
    assert {"X-Amz-Signature", "X-Amz-Date", "mine"} <= set(names)
    assert request.headers["x-team"] == SECRET
    assert request.headers["accept-encoding"] == "identity"
    assert "authorization" not in request.headers
    assert (streamer.counters.proxy_requests, streamer.models.total.proxy_bytes) == (1, wanted.size)
    assert (streamer.counters.direct_requests, streamer.models.total.direct_bytes) == (0, 0)


@pytest.mark.parametrize(
    ("wanted", "rest_too"),
    [
        (ByteRange(0, len(BODY)), None),
        (ByteRange(1 << 20, len(BODY)), "true"),
        (ByteRange(1 << 20, 1 << 21), None),
        (ByteRange(1 << 20, (1 << 21) + 1), "true"),
    ],
)
async def test_of_a_range_that_peers_are_to_have_dfdaemon_brings_the_rest(
    monkeypatch: pytest.MonkeyPatch, daemon: FakeDfdaemon, streamer: Fetcher, version: ObjectVersion,
    wanted: ByteRange, rest_too: str | None,
) -> None:  # fmt: skip
    """Else each host that comes later has it from the origin by itself."""
    monkeypatch.setattr(dragonfly_task, "MAX_DIRECT_BYTES", 1 << 20)
    await streamer.stream(version, wanted, Sink(wanted.start))
    (request,) = daemon.requests
    assert request.headers.get("x-dragonfly-prefetch") == rest_too


async def test_the_users_headers_stay_away_from_the_origin(
    server: ScriptedServer, streamer: Fetcher, version: ObjectVersion
) -> None:
    await streamer.fetch(version, WANTED, Sink(WANTED.start))
    (request,) = server.requests
    assert not {"x-team", "x-dragonfly-use-p2p"} & request.headers.keys()


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (error(500, "dfdaemon"), r"answered 500 \(dfdaemon\)"),
        (error(429, "proxy"), r"answered 429 \(proxy\)"),
        (error(403, "proxy"), r"answered 403 \(proxy\)"),
        (faults.status(502), r"answered 502 \(no reason\)"),
        (faults.drop, "without a reply"),
        (faults.Hang(), "within 3 s"),
    ],
)
async def test_the_proxys_own_trouble_is_told_at_once(
    clock: MockClock,
    server: ScriptedServer,
    daemon: FakeDfdaemon,
    streamer: Fetcher,
    version: ObjectVersion,
    fault: Fault,
    words: str,
) -> None:
    daemon.script(fault, forever=True)
    began = trio.current_time()
    async with failing(ProxyUnavailable, words):
        await streamer.stream(version, version.whole, Sink(0))
    assert trio.current_time() - began < 3.5
    assert len(daemon.requests) == 1


async def test_a_proxy_that_dies_in_mid_body_gets_one_more_try(
    clock: MockClock, daemon: FakeDfdaemon, streamer: Fetcher, version: ObjectVersion
) -> None:
    daemon.script(faults.cut_after(1_500_000))
    sink = Sink(0)
    await streamer.stream(version, version.whole, sink)
    assert sink.data == BODY
    assert daemon.requests[1].headers["range"] == f"bytes={1_500_000 - SEAM_BYTES}-"
    daemon.script(faults.cut_after(1_500_000), faults.drop)
    async with failing(ProxyUnavailable, "without a reply"):
        await streamer.stream(version, version.whole, Sink(0))


@pytest.mark.parametrize(
    ("fault", "kind", "requests"),
    [
        (error(503, "backend"), OriginUnavailable, 3),
        (faults.other_total(1), BadReply, 3),
        (error(412, "backend"), VersionGone, 1),
        (error(404, "backend"), VersionGone, 1),
        (error(403, "backend"), AccessDenied, 2),
    ],
)
async def test_what_the_proxy_says_about_the_origin_is_asked_again_only_a_little(
    clock: MockClock,
    daemon: FakeDfdaemon,
    streamer: Fetcher,
    version: ObjectVersion,
    fault: Fault,
    kind: type[D7yfsError],
    requests: int,
) -> None:
    """The origin itself can be asked instead."""
    daemon.script(fault, forever=True)
    began = trio.current_time()
    sink = Sink(1 << 20)
    async with failing(kind, KEY):
        await streamer.stream(version, ByteRange(1 << 20, len(BODY)), sink)
    assert not sink.data
    assert len(daemon.requests) == requests
    assert trio.current_time() - began < 1.0


async def test_a_required_proxy_is_tried_for_the_read_timeout(
    clock: MockClock,
    daemon: FakeDfdaemon,
    proxy: Proxies,
    streamer: Fetcher,
    server: ScriptedServer,
    version: ObjectVersion,
) -> None:
    proxy.required = True
    daemon.kill()
    began = trio.current_time()
    async with failing(ProxyUnavailable, "connection refused"):
        await streamer.stream(version, version.whole, Sink(0))
    assert READ_TIMEOUT_S <= trio.current_time() - began < READ_TIMEOUT_S + 6
    assert not server.requests


# --- which version it is about ---


async def test_a_page_in_the_proxys_place_is_not_the_object(
    clock: MockClock, daemon: FakeDfdaemon, proxy: Proxies, streamer: Fetcher, version: ObjectVersion
) -> None:
    """It names no task and proves no version: not dfdaemon's reply, and no reason to think that it
    ignores content ids.
    """
    daemon.script(faults.page(b"<html>".ljust(len(BODY))))
    sink = Sink(0)
    async with failing(ProxyUnavailable, "something else than dfdaemon has answered"):
        await streamer.stream(version, version.whole, sink)
    assert not sink.data
    assert proxy.all[0].binds_content_ids


async def test_a_page_that_dfdaemon_took_for_the_object_is_not_used(
    clock: MockClock, server: ScriptedServer, daemon: FakeDfdaemon, streamer: Fetcher, version: ObjectVersion
) -> None:
    """It got the page in the store's place, and made this version's task of it: but such a task has
    no ETag.
    """
    page = b"<html>".ljust(len(BODY))
    server.script(faults.page(page, headers={"Content-Range": f"bytes 0-0/{len(BODY)}"}, code=206), faults.page(page))
    sink = Sink(0)
    async with failing(OriginUnavailable, "no ETag"):
        await streamer.stream(version, version.whole, sink)
    assert not sink.data


@pytest.mark.parametrize("task_id", ["0" * 64, ""])
async def test_a_reply_about_another_task_is_not_used_and_content_ids_no_more(
    daemon: FakeDfdaemon, proxy: Proxies, streamer: Fetcher, version: ObjectVersion, task_id: str
) -> None:
    daemon.script(other_task(task_id))
    sink = Sink(0)
    async with failing(VersionUnbound, "did not answer for this version's task"):
        await streamer.stream(version, version.whole, sink)
    assert not sink.data
    assert (len(daemon.requests), streamer.counters.unbound, proxy.trips) == (1, 1, 0)
    assert not proxy.all[0].binds_content_ids
    await streamer.stream(version, version.whole, sink)
    assert sink.data == BODY
    assert "x-dragonfly-content-for-calculating-task-id" not in daemon.requests[1].headers
    assert len(daemon.requests[1].headers["x-dragonfly-tag"]) == 64


@pytest.mark.parametrize("tells", [True, False])
async def test_a_daemon_that_ignores_content_ids_never_mixes_versions(
    server: ScriptedServer,
    origin: FakeOrigin,
    daemon: FakeDfdaemon,
    proxy: Proxies,
    streamer: Fetcher,
    version: ObjectVersion,
    monkeypatch: pytest.MonkeyPatch,
    tells: bool,
) -> None:
    """An old client, or the Go one, which does not tell its task either."""
    identify = dfdaemon.identify

    def old(request: Request) -> str:
        headers = {name: value for name, value in request.headers.items() if "task-id" not in name}
        return identify(replace(request, headers=headers))

    monkeypatch.setattr(dfdaemon, "identify", old)
    if not tells:
        daemon.script(other_task(""), forever=True)
    proxy.required = True
    bodies = [BODY, os.urandom(len(BODY)), BODY[::-1]]
    for body in bodies:
        server.put(KEY, body)
        sink = Sink(0)
        await streamer.stream(origin.version(KEY), version.whole, sink)
        assert sink.data == body
    assert streamer.counters.unbound == 1
    assert len(daemon.requests) == 4
    assert len(daemon.tasks) == 4, "one for each version, and the one that was bound to none"


async def test_a_tag_that_does_not_bind_is_the_proxys_fault(
    daemon: FakeDfdaemon, proxy: Proxies, streamer: Fetcher, version: ObjectVersion
) -> None:
    """Nothing is left to ask it by: it is left alone, longer each time."""
    daemon.script(other_task(), forever=True)
    proxy.all[0].binds_content_ids = False
    async with failing(ProxyUnavailable, "did not answer for this version's task"):
        await streamer.stream(version, version.whole, Sink(0))
    assert (len(daemon.requests), proxy.trips, proxy.usable) == (1, 1, False)


# --- more than one, and late ---


async def test_the_next_proxy_stands_in_for_one_that_is_down(
    clock: MockClock, origin: FakeOrigin, transport: Transport, daemon: FakeDfdaemon, version: ObjectVersion
) -> None:
    async with FakeDfdaemon(piece_bytes=1 << 20).running() as service:
        through = Transport(connect_timeout_s=3, first_byte_timeout_s=3, idle_timeout_s=5)
        proxies = Proxies([Proxy(daemon.url, through), Proxy(service.url, through)], required=False)
        fetcher, busy = new_fetcher(origin, transport, proxies), error(429, "proxy")
        await fetcher.stream(version, version.whole, Sink(0))
        assert (len(daemon.requests), len(service.requests)) == (1, 0)
        daemon.script(busy)
        async with failing(ProxyUnavailable, "answered 429"):
            await fetcher.stream(version, version.whole, Sink(0))
        await fetcher.stream(version, version.whole, Sink(0))
        assert (len(daemon.requests), len(service.requests)) == (2, 1)
        await trio.sleep(5)
        await fetcher.stream(version, version.whole, Sink(0))
        assert (len(daemon.requests), len(service.requests)) == (3, 1), "it is back"
        daemon.script(busy, busy)
        service.script(busy)
        proxies.required = True
        sink = Sink(0)
        await fetcher.stream(version, version.whole, sink)
        assert sink.data == BODY
        await through.aclose()


async def test_a_late_stream_tells_and_goes_on(
    clock: MockClock, daemon: FakeDfdaemon, origin: FakeOrigin, transport: Transport, version: ObjectVersion
) -> None:
    """As with a hung scheduler: 10 s of silence, then the source. Nobody else is sent there
    meanwhile.
    """
    through = Transport(connect_timeout_s=3, first_byte_timeout_s=15, idle_timeout_s=10)
    proxy = Proxies([Proxy(daemon.url, through)], required=False)
    fetcher = new_fetcher(origin, transport, proxy)
    stuck = faults.Hang()
    daemon.script(stuck)
    told: list[tuple[float, bool]] = []
    began = trio.current_time()
    sink = Sink(0)

    async def stream() -> None:
        await fetcher.stream(
            version, version.whole, sink, on_silence=lambda: told.append((trio.current_time() - began, proxy.usable))
        )

    async with trio.open_nursery() as nursery:
        nursery.start_soon(stream)
        await trio.sleep(10)
        stuck.resume.set()
    assert sink.data == BODY
    assert [round(at_s) for at_s, _ in told] == [3]
    assert not told[0][1], "others go elsewhere until it answers"
    assert (proxy.trips, proxy.usable, len(daemon.requests)) == (1, True, 1)
    await through.aclose()


async def test_a_slow_disk_is_not_the_proxys_silence(
    clock: MockClock, daemon: FakeDfdaemon, proxy: Proxies, streamer: Fetcher, version: ObjectVersion
) -> None:
    class SlowSink(Sink):
        async def write(self, offset: int, data: memoryview) -> None:
            await trio.sleep(10)
            await super().write(offset, data)

    told: list[str] = []
    sink = SlowSink(0)
    await streamer.stream(version, version.whole, sink, on_silence=lambda: told.append("silent"))
    assert sink.data == BODY
    assert (told, proxy.trips) == ([], 0)


@pytest.mark.parametrize(
    ("fault", "blamed"),
    [
        (faults.Hang(), True),
        (faults.Hang(100_000), True),
        (faults.drop, True),
        (error(500, "dfdaemon"), True),
        (error(404, "backend"), False),
        (faults.gzipped, False),
        (other_task(), False),
    ],
    ids=["silent", "silent in mid-body", "hung up", "500", "404", "gzip", "another task"],
)
async def test_a_range_that_a_proxy_does_not_bring_in_time_comes_from_the_origin(
    clock: MockClock,
    daemon: FakeDfdaemon,
    proxy: Proxies,
    streamer: Fetcher,
    version: ObjectVersion,
    fault: Fault,
    blamed: bool,
) -> None:
    daemon.script(fault, forever=True)
    sink = Sink(WANTED.start)
    began = trio.current_time()
    await streamer.fetch(version, WANTED, sink, proxied=True, reason="waiting")
    assert sink.data == BODY[WANTED.start : WANTED.stop]
    assert trio.current_time() - began < 4
    total = streamer.models.total
    assert streamer.counters.direct_bytes_by_reason == {"fallback": total.direct_bytes}
    assert total.direct_bytes + total.proxy_bytes == WANTED.size
    assert proxy.usable is not blamed


async def test_a_range_that_is_slow_beside_a_stream_that_flows_is_no_failure_of_the_proxy(
    clock: MockClock, daemon: FakeDfdaemon, origin: FakeOrigin, transport: Transport, version: ObjectVersion
) -> None:
    through = Transport(connect_timeout_s=3, first_byte_timeout_s=15, idle_timeout_s=10)
    proxy = Proxies([Proxy(daemon.url, through)], required=False)
    fetcher = new_fetcher(origin, transport, proxy)
    daemon.script(faults.Hang())
    sink = Sink(WANTED.start)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(fetcher.fetch, version, WANTED, sink, proxied=True))
        await trio.sleep(2)
        await fetcher.stream(version, version.whole, Sink(0))
    assert sink.data == BODY[WANTED.start : WANTED.stop]
    assert fetcher.models.total.direct_bytes == WANTED.size
    assert (proxy.usable, proxy.trips) == (True, 0)
    await through.aclose()


async def test_bytes_are_counted_by_reason(streamer: Fetcher, version: ObjectVersion) -> None:
    for reason in ("small", "peek", "small"):
        await streamer.fetch(version, WANTED, Sink(WANTED.start), reason=reason)
    await streamer.fetch(version, WANTED, Sink(WANTED.start))
    await streamer.fetch(version, WANTED, Sink(WANTED.start), proxied=True, reason="small")
    size = WANTED.size
    assert streamer.counters.direct_bytes_by_reason == {"small": 2 * size, "peek": size, "direct": size}
    assert (streamer.models.total.direct_bytes, streamer.models.total.proxy_bytes) == (4 * size, size)


async def test_ranges_that_the_scheduler_sees_wait_for_their_turn(
    daemon: FakeDfdaemon,
    proxy: Proxies,
    streamer: Fetcher,
    version: ObjectVersion,
    nursery: trio.Nursery,
) -> None:
    proxy.required = True
    stuck = [faults.Hang() for _ in range(5)]
    daemon.script(*stuck)
    fetch = partial(streamer.fetch, proxied=True)
    for _ in stuck:
        nursery.start_soon(fetch, version, WANTED, Sink(WANTED.start))
    await wait_all_tasks_blocked(0.01)
    assert sum(each.reached.is_set() for each in stuck) == MAX_REGISTRATIONS
    asked = {request.headers.get("x-dragonfly-scheduling-policy") for request in daemon.requests}
    assert asked == {"always"}
    nursery.cancel_scope.cancel()


# --- no proxy answers ---


async def test_in_place_of_proxies_the_origin_is_asked_gently(
    clock: MockClock, server: ScriptedServer, proxy: Proxies, streamer: Fetcher, version: ObjectVersion
) -> None:
    proxy.all[0].record_failure()
    stuck = [faults.Hang() for _ in range(30)]
    server.script(*stuck)
    async with trio.open_nursery() as nursery:
        for number in range(15):
            prefetch = partial(streamer.fetch, urgency=Urgency(urgent=False))
            nursery.start_soon(prefetch, version, WANTED, Sink(WANTED.start))
            if number:
                nursery.start_soon(streamer.fetch, version, WANTED, Sink(WANTED.start))
        await trio.sleep(proxy_outage.READERS_HELD_S)
        await wait_all_tasks_blocked(0.02)
        assert proxy_outage.MAX_CONNECTIONS // 2 <= len(server.requests) <= proxy_outage.MAX_CONNECTIONS
        nursery.cancel_scope.cancel()


async def test_registrations_are_few_and_streams_many(
    daemon: FakeDfdaemon, streamer: Fetcher, version: ObjectVersion, nursery: trio.Nursery
) -> None:
    """The scheduler is bothered by a stream without a first byte; one that flows makes way for the
    next.
    """
    stuck = [faults.Hang(1000 if number % 2 else None) for number in range(12)]
    daemon.script(*stuck)
    for _ in stuck:
        nursery.start_soon(streamer.stream, version, version.whole, Sink(0))
    await wait_all_tasks_blocked(0.01)
    silent = sum(1 for each in stuck if each.reached.is_set() and each._after_body_bytes is None)
    flowing = sum(1 for each in stuck if each.reached.is_set()) - silent
    assert silent == MAX_REGISTRATIONS
    assert flowing >= MAX_REGISTRATIONS - 1
    nursery.cancel_scope.cancel()


async def test_a_reader_does_not_queue_behind_prefetches_for_a_registration(
    daemon: FakeDfdaemon, proxy: Proxies, streamer: Fetcher, version: ObjectVersion
) -> None:
    turns = proxy.limits
    for _ in range(MAX_REGISTRATIONS):
        await turns.take(lambda: True)
    pieces = ByteRange(0, 2_500_000).split(500_000)
    urgencies = [Urgency(urgent=False) for _ in pieces]
    async with trio.open_nursery() as nursery:
        for piece, urgency in zip(pieces, urgencies, strict=True):
            fetch = partial(streamer.fetch, urgency=urgency, proxied=True)
            nursery.start_soon(fetch, version, piece, Sink(piece.start))
            await wait_all_tasks_blocked(0.01)
        assert daemon.requests == []
        urgencies[3].make_urgent()
        turns.give_back()
    asked = [request.headers["range"] for request in daemon.requests]
    assert asked == [pieces[number].http() for number in (3, 0, 1, 2, 4)]


async def test_a_cancelled_stream_gives_everything_back(
    daemon: FakeDfdaemon, proxy: Proxies, streamer: Fetcher, version: ObjectVersion
) -> None:
    for fault in (faults.Hang(), faults.Hang(1000)):
        daemon.script(fault)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(streamer.stream, version, version.whole, Sink(0))
            await fault.reached.wait()
            await wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        assert proxy.limits.streams.borrowed_tokens == proxy.limits.taken == 0
