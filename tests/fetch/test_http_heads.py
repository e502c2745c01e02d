"""Heads that are read without h11, against h11: whatever is taken for plain is what h11 makes of it."""

from __future__ import annotations

import socket
from itertools import pairwise

import h11
import pytest
import trio
import trio.testing
from hypothesis import example, given, settings
from hypothesis import strategies as st

from d7yfs.fetch.connection import Connection, Peer
from d7yfs.fetch.http_heads import Headers, exchange_heads, make_request, parse_plain

NAMES = st.sampled_from([
    "Content-Length", "content-length", "ETag", "Connection", "Transfer-Encoding", "X-A", "Content-Range", "X A", "X-A ", "", "X\x01",
])  # fmt: skip
VALUES = st.sampled_from([
    "3", "0", "03", "+3", "3, 3", "12345678901234567890", "", "close", "Keep-Alive", "chunked", '"abc"', " a\tb ",
]) | st.text("a \t\x00\x0b\x7f\x80é", max_size=5)  # fmt: skip
LINES = st.tuples(NAMES, st.sampled_from([":", ": ", " :", ":\t", ""]), VALUES).map("".join)
STATUS = st.sampled_from(
    [
        "HTTP/1.1 200 OK",
        "HTTP/1.1 206 ",
        "HTTP/1.1 206",
        "HTTP/1.0 200 OK",
        "HTTP/1.1 404 No",
        "HTTP/2 200 OK",
        "HTTP/1.1  200 OK",
    ]
)
ENDS = st.sampled_from(["\r\n", "\n", "\r\n "])


def by_h11(received: bytes) -> tuple[h11.Response, h11.Connection]:
    http = h11.Connection(h11.CLIENT)
    http.send(h11.Request(method="GET", target="/", headers=[("Host", "h")]))
    http.send(h11.EndOfMessage())
    http.receive_data(received)
    head = http.next_event()
    assert isinstance(head, h11.Response)
    return head, http


@example("HTTP/1.1 206 Partial Content", [("Content-Length: 3", "\r\n"), ('ETag: "a"', "\r\n")], b"abc")
@example("HTTP/1.1 200 OK", [("Content-Length: 3", "\r\n"), ("Content-Length: 3", "\r\n")], b"abc")
@given(STATUS, st.lists(st.tuples(LINES, ENDS), max_size=4), st.binary(max_size=5))
@settings(max_examples=1500, deadline=None)
def test_a_plain_head_is_what_h11_makes_of_it(status: str, lines: list[tuple[str, str]], body: bytes) -> None:
    head = (f"{status}\r\n" + "".join(line + end for line, end in lines) + "\r\n").encode("latin-1")
    plain = parse_plain(memoryview(head + body), len(head))
    if plain is None:
        return
    expected, http = by_h11(head + body)
    headers = Headers(expected.headers)
    assert (plain.status, dict(plain.headers)) == (expected.status_code, dict(headers))
    assert plain.content_length == int(headers["content-length"])
    assert plain.arrived == body == http.trailing_data[0]
    assert plain.keep_alive == (http.our_state is h11.DONE)


def test_the_heads_of_stores_are_plain() -> None:
    for said in ("", "Connection: keep-alive\r\n", "x-amz-request-id: A/b+c=\r\nVary: a\r\nvary: b\r\n"):
        head = f'HTTP/1.1 206 Partial Content\r\n{said}ETag: "a"\r\nContent-Length: 3\r\n\r\n'.encode()
        assert parse_plain(memoryview(head + b"abc"), len(head)) is not None


@pytest.mark.parametrize("said", ["Transfer-Encoding: chunked", "Connection: close", "Content-Length: 4"])
def test_what_is_not_plain_is_left_to_h11(said: str) -> None:
    head = f"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n{said}\r\n\r\n".encode()
    assert parse_plain(memoryview(head), len(head)) is None


@given(st.dictionaries(st.text(min_size=1, max_size=4), st.text(max_size=6), max_size=3))
@settings(deadline=None)
def test_a_request_is_what_h11_sends_or_refused_as_there(headers: dict[str, str]) -> None:
    fields = [("Host", "s.example:81"), ("User-Agent", "u"), ("Accept-Encoding", "identity"), *headers.items()]
    try:
        expected = h11.Connection(h11.CLIENT).send(h11.Request(method="GET", target="/a?b", headers=fields))
    except (h11.LocalProtocolError, UnicodeEncodeError):
        expected = None
    try:
        peer, request = make_request("http://s.example:81/a?b", headers, "", "u")
    except ValueError:
        return
    assert request.data == expected
    assert peer == Peer("s.example", 81, tls=False)


HEAD = b"HTTP/1.1 206 Partial Content\r\nContent-Length: 12\r\n"


@pytest.mark.parametrize("long", [b"", b"X-Long: " + b"a" * 9000 + b"\r\n"], ids=["short", "long"])
@pytest.mark.parametrize("parts", [0, 1, 2], ids=["at-once", "in-two", "in-three"])
async def test_a_head_that_is_received_alone_leaves_the_body_where_it_is(long: bytes, parts: int) -> None:
    body = b"\r\n\r\n and more"[:12]
    said = HEAD + long + b"\r\n" + body
    peer, request = make_request("http://store/key", {}, "", "d7yfs")
    for cut in range(len(said) - len(body) - 5, len(said), 3) if parts else [0]:
        cuts = [0, *([cut // 2] if parts == 2 else []), cut, len(said)] if parts else [0, len(said)]
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        connection = Connection(peer, trio.socket.from_stdlib_socket(ours))
        heads: list[bytes] = []

        async def exchange(connection: Connection = connection, heads: list[bytes] = heads) -> None:
            head = await exchange_heads(connection, request, bytearray(1 << 16), head_alone=True)
            heads.append(bytes(head.arrived))

        with theirs:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(exchange)
                for start, stop in pairwise(cuts):
                    await trio.testing.wait_all_tasks_blocked()
                    theirs.sendall(said[start:stop])
            rest = bytearray(12)
            count = await connection.receive_into(memoryview(rest)) if len(heads[0]) < 12 else 0
            assert heads[0] + bytes(rest[:count]) == body
            if not parts and not long:
                assert heads[0] == b""
        connection.close()
