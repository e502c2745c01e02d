"""Clients that stay silent, clients that fail, and a process without descriptors."""

from __future__ import annotations

import os
import resource
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path

import pytest
import trio

from d7yfs.host.acceptor import accept_clients
from d7yfs.host.descriptors import Reserve

LIMIT = 4


@asynccontextmanager
async def serving(path: Path, reserve: Reserve | None = None) -> AsyncIterator[None]:
    """Serve `echo` on `path`."""
    with trio.socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        await listener.bind(str(path))
        listener.listen(16)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: accept_clients(listener, echo, limit=LIMIT, reserve=reserve))
            yield
            nursery.cancel_scope.cancel()


async def echo(stream: trio.SocketStream) -> None:
    """Answer one message with itself; `boom` is a bug."""
    said = await stream.receive_some(100)
    if said == b"boom":
        raise ZeroDivisionError
    await stream.send_all(said)


async def ask(path: Path, said: bytes = b"hello") -> bytes:
    async with await trio.open_unix_socket(str(path)) as client:
        await client.send_all(said)
        return b"".join([chunk async for chunk in client])


@contextmanager
def no_descriptors() -> Iterator[None]:
    """Use up all descriptors of this process but one, which a client in it takes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(each.name) for each in Path("/proc/self/fd").iterdir())
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 20, hard))
    with ExitStack() as stack:
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        taken: list[int] = []
        try:
            while True:
                taken.append(os.open("/dev/null", os.O_RDONLY))
        except OSError:
            os.close(taken.pop())
        for fd in taken:
            stack.callback(os.close, fd)
        yield


async def test_silent_clients_keep_nobody_out(tmp_path: Path) -> None:
    path = tmp_path / "s"
    async with serving(path):
        silent = [await trio.open_unix_socket(str(path)) for _ in range(5 * LIMIT)]
        with trio.fail_after(10):
            assert await ask(path) == b"hello"
            assert await silent[0].receive_some(1) == b""
        for each in silent:
            await each.aclose()


async def test_a_client_that_fails_fails_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "s"
    async with serving(path):
        with trio.fail_after(10):
            assert await ask(path, b"boom") == b""
            assert await ask(path) == b"hello"
    assert "ZeroDivisionError" in caplog.text


@pytest.mark.parametrize("reserved", [True, False])
async def test_without_descriptors(tmp_path: Path, caplog: pytest.LogCaptureFixture, reserved: bool) -> None:
    """Those held back serve a client; without them it waits until others are closed."""
    path = tmp_path / "s"
    reserve = Reserve() if reserved else None
    answer = None
    async with serving(path, reserve):
        with no_descriptors():
            with trio.move_on_after(10 if reserved else 0.5):
                answer = await ask(path)
            assert answer == (b"hello" if reserved else None)
        assert ("could not be accepted: Too many open files" in caplog.text) is not reserved
        with trio.fail_after(10):
            assert await ask(path) == b"hello"
    if reserve is not None:
        assert reserve.release()
