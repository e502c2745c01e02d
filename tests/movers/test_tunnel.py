"""A mover's side of a tunnel, without a process: a server's TLS in memory, and real sockets on both sides."""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import trustme
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from d7yfs.errors import ConfigError
from d7yfs.movers.protocol import TunnelOrder, TunnelState, TunnelWord
from d7yfs.movers.tunnel import Tunnel

NAME = "store.example"
DATA = os.urandom(3 << 20)


class Ends:
    """A tunnel, with the server and the engine on its two sides. The test takes every step."""

    def __init__(self, ca: trustme.CA, ca_file: Path, *, name: str = NAME, verify: bool = True) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        ca.issue_cert(name).configure_cert(context)
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.server = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._late = b""
        self.buffer = memoryview(bytearray(1 << 20))
        self.store, stores = socket.socketpair()
        self.engine, engines = socket.socketpair()
        for each in (self.store, self.engine):
            each.setblocking(False)
        self.tunnel = Tunnel(TunnelOrder(7, NAME, str(ca_file), verify), stores, engines)

    def exchange(self) -> None:
        """Let the server have what has come for it, and send what it has."""
        with suppress(BlockingIOError):
            self._incoming.write(self.store.recv(1 << 20))
        self._late += self._outgoing.read()
        with suppress(BlockingIOError):
            self._late = self._late[self.store.send(self._late) :] if self._late else b""

    def shake_hands(self) -> TunnelWord | None:
        while (word := self.tunnel.step(self.buffer)) is None:
            with suppress(ssl.SSLError):
                self.server.do_handshake()
            self.exchange()
        self.exchange()
        if word.state is TunnelState.OPEN:
            self.server.do_handshake()
            self.exchange()
        return word

    def send(self, data: bytes) -> None:
        self.server.write(data)
        self.exchange()

    def read(self, size_bytes: int) -> bytes:
        with suppress(BlockingIOError):
            return self.engine.recv(size_bytes)
        return b""

    def do_job(self, size_bytes: int) -> bytes:
        """The bytes of a job of that size; fewer if no more were sent."""
        source = self.tunnel.lend(1, self.engine.dup())
        done = b""
        while len(done) < size_bytes:
            try:
                count = source.receive_into(self.buffer, size_bytes - len(done))
            except BlockingIOError:
                assert not source.has_rest
                if not self._late:
                    break
                self.exchange()
            else:
                done += self.buffer[:count]
        source.close()
        assert self.tunnel.step(self.buffer) is None
        return done

    def close(self) -> None:
        self.tunnel.close()
        self.store.close()
        self.engine.close()


@pytest.fixture(scope="module")
def ca() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="module")
def ca_file(ca: trustme.CA, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("ca") / "ca.pem"
    ca.cert_pem.write_to_path(path)
    return path


@pytest.fixture
def ends(ca: trustme.CA, ca_file: Path) -> Iterator[Callable[..., Ends]]:
    made: list[Ends] = []

    def make(*, trusts: Path = ca_file, name: str = NAME, verify: bool = True) -> Ends:
        made.append(Ends(ca, trusts, name=name, verify=verify))
        return made[-1]

    yield make
    for each in made:
        each.close()


SIZES = st.integers(1, 100) | st.integers(1, 40_000) | st.integers(1, 400_000)
STEPS = st.lists(st.tuples(st.sampled_from(["send", "read", "job", "step"]), SIZES), max_size=30)


@given(STEPS)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60)
def test_bytes_keep_their_order_whoever_takes_them(ends: Callable[..., Ends], steps: list[tuple[str, int]]) -> None:
    made = ends()
    assert made.shake_hands() == TunnelWord(7, TunnelState.OPEN)
    sent = taken = 0

    def take(data: bytes) -> None:
        nonlocal taken
        assert data == DATA[taken : taken + len(data)]
        taken += len(data)

    for name, size_bytes in steps:
        if name == "send":
            data = DATA[sent : sent + size_bytes]
            if data:
                made.send(data)
            sent += len(data)
        elif name == "read":
            take(made.read(size_bytes))
        elif name == "job":
            take(made.do_job(size_bytes))
        else:
            assert made.tunnel.step(made.buffer) is None
    take(made.do_job((sent - taken + 1) // 2) if sent > taken else b"")
    while taken < sent:
        made.exchange()
        assert made.tunnel.step(made.buffer) is None
        take(made.read(1 << 20))


def test_requests_go_to_the_store(ends: Callable[..., Ends]) -> None:
    made = ends()
    made.shake_hands()
    made.exchange()
    made.engine.send(b"GET / HTTP/1.1\r\n\r\n")
    assert made.tunnel.step(made.buffer) is None
    made.exchange()
    assert made.server.read(100) == b"GET / HTTP/1.1\r\n\r\n"


def test_it_holds_no_more_than_a_turn_for_an_engine_that_does_not_read(ends: Callable[..., Ends]) -> None:
    made = ends()
    made.shake_hands()
    before = made.tunnel.store_events
    for _ in range(20):
        made.send(DATA[:200_000])
        assert made.tunnel.step(made.buffer) is None
    assert before
    assert not made.tunnel.store_events, "it must read on only once the engine has"
    assert len(made.tunnel._down) <= len(made.buffer)
    while made.read(1 << 20):
        pass
    assert made.tunnel.step(made.buffer) is None
    assert made.tunnel.store_events


def test_a_request_that_the_store_does_not_take_is_kept(ends: Callable[..., Ends]) -> None:
    made = ends()
    made.shake_hands()
    request = DATA[: 1 << 20]
    sent = 0
    for _ in range(100):
        with suppress(BlockingIOError):
            sent += made.engine.send(request[sent:])
        assert made.tunnel.step(made.buffer) is None
    assert not made.tunnel.engine_events, "it must read on only once the store has"
    came = b""
    while len(came) < sent:
        made.exchange()
        with suppress(ssl.SSLWantReadError):
            while True:
                came += made.server.read(1 << 20)
        assert made.tunnel.step(made.buffer) is None
    assert came == request[:sent]


@pytest.mark.parametrize("has_job", [False, True])
@pytest.mark.parametrize("is_proper", [False, True])
def test_an_end_with_close_notify_is_told_from_one_without(
    ends: Callable[..., Ends], *, is_proper: bool, has_job: bool
) -> None:
    made = ends()
    made.shake_hands()
    made.send(b"the last")
    if is_proper:
        with suppress(ssl.SSLWantReadError):
            made.server.unwrap()
    made.exchange()
    made.store.shutdown(socket.SHUT_WR)
    if has_job:
        source = made.tunnel.lend(1, made.engine.dup())
        assert source.receive_into(made.buffer, 1000) == 8
        if is_proper:
            assert source.receive_into(made.buffer, 1000) == 0
        else:
            with pytest.raises(ssl.SSLEOFError):
                source.receive_into(made.buffer, 1000)
        source.close()
    word = made.tunnel.step(made.buffer) or made.tunnel.step(made.buffer)
    assert word is not None
    assert word.state is (TunnelState.CLOSED if is_proper else TunnelState.BROKEN)
    assert made.tunnel.is_over
    assert made.read(1000) == (b"" if has_job else b"the last")


def test_a_connection_that_is_reset_has_the_systems_reason(ends: Callable[..., Ends]) -> None:
    made = ends()
    made.shake_hands()
    made.engine.send(b"unread")
    made.tunnel.step(made.buffer)
    made.store.close()  # with bytes unread: a reset
    word = made.tunnel.step(made.buffer) or made.tunnel.step(made.buffer)
    assert word is not None
    assert word.state is TunnelState.BROKEN
    assert "reset" in os.strerror(word.error)


def test_a_server_that_closes_in_the_handshake(ends: Callable[..., Ends]) -> None:
    made = ends()
    made.tunnel.step(made.buffer)
    made.store.shutdown(socket.SHUT_WR)
    word = made.tunnel.step(made.buffer)
    assert word is not None
    assert word.state is TunnelState.REFUSED
    assert "EOF" in word.reason.upper()


def test_a_certificate_must_be_of_that_name_and_of_a_known_authority(ends: Callable[..., Ends], tmp_path: Path) -> None:
    other = ends(name="other.example").shake_hands()
    assert other is not None
    assert other.state is TunnelState.UNTRUSTED
    assert "Hostname mismatch" in other.reason
    trustme.CA().cert_pem.write_to_path(tmp_path / "ca.pem")
    unknown = ends(trusts=tmp_path / "ca.pem").shake_hands()
    assert unknown is not None
    assert unknown.state is TunnelState.UNTRUSTED
    assert "unable to get local issuer certificate" in unknown.reason
    unchecked = ends(trusts=tmp_path / "ca.pem", verify=False).shake_hands()
    assert unchecked == TunnelWord(7, TunnelState.OPEN)


def test_without_authorities_there_is_no_tunnel(ends: Callable[..., Ends], tmp_path: Path) -> None:
    one, other = socket.socketpair()
    with one, other, pytest.raises(ConfigError):
        Tunnel(TunnelOrder(7, NAME, str(tmp_path / "missing.pem"), verify=True), one, other)


def test_an_engine_that_closes_its_end_ends_it(ends: Callable[..., Ends]) -> None:
    made = ends()
    made.shake_hands()
    made.engine.close()
    assert made.tunnel.step(made.buffer) is not None
    assert made.tunnel.is_over
