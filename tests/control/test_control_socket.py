"""The control socket between the real client and the real server."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import stat
from collections.abc import AsyncGenerator, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from d7yfs.config.sources import load_settings
from d7yfs.control import control_socket, server
from d7yfs.control.control_socket import NoAnswer
from d7yfs.errors import MountError, NotFound, UsageError


@pytest.fixture
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A runtime directory of the test's own."""
    directory = tmp_path / "run"
    monkeypatch.setattr(control_socket, "runtime_directory", lambda environ=None: directory)
    return directory


async def _echo(request: Mapping[str, Any]) -> dict[str, Any]:
    return {"heard": dict(request)}


async def _absent(_request: Mapping[str, Any]) -> dict[str, Any]:
    raise NotFound("no such thing", hint="look elsewhere")


async def _broken(_request: Mapping[str, Any]) -> dict[str, Any]:
    raise ZeroDivisionError("secret in an unexpected text")


async def _count(request: Mapping[str, Any]) -> AsyncGenerator[dict[str, Any], None]:
    for number in range(request["to"]):
        yield {"number": number}
    if request.get("fails"):
        raise NotFound("no more of them", hint="count on your fingers")


HANDLERS: dict[str, server.Handler] = {"echo": _echo, "absent": _absent, "broken": _broken, "count": _count}


async def _serving(nursery: trio.Nursery, path: Path) -> None:
    await nursery.start(server.serve, path, HANDLERS)


async def ask(path: Path, command: str, /, **arguments: Any) -> dict[str, Any]:
    return await trio.to_thread.run_sync(partial(control_socket.ask, path, command, **arguments))


async def _raw(path: Path, data: bytes) -> bytes:
    async with await trio.open_unix_socket(path) as client:
        await client.send_all(data)
        await client.send_eof()
        return b"".join([chunk async for chunk in client])


async def test_a_command_and_its_arguments(runtime: Path, nursery: trio.Nursery) -> None:
    path = control_socket.socket_path(Path("/mnt/models"))
    await _serving(nursery, path)
    assert await ask(path, "echo", path="a/ü") == {"schema": 1, "heard": {"command": "echo", "path": "a/ü"}}


async def test_a_request_may_hold_a_whole_command_line(runtime: Path, nursery: trio.Nursery) -> None:
    path = control_socket.socket_path(Path("/mnt/models"))
    await _serving(nursery, path)
    paths = [f"models/größe/{number:07}" for number in range(100_000)]
    assert sum(len(each.encode()) for each in paths) > 2 << 20
    heard = await ask(path, "echo", paths=paths)
    assert heard["heard"]["paths"] == paths
    with pytest.raises(UsageError, match="too much is asked for at once") as caught:
        await ask(path, "echo", paths=["x" * control_socket.REQUEST_BYTES])
    assert "fewer paths" in caught.value.hint


async def test_only_its_user_may_speak_to_it(runtime: Path, nursery: trio.Nursery) -> None:
    path = control_socket.socket_path(Path("/mnt/models"))
    await _serving(nursery, path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(runtime.stat().st_mode) == 0o700


async def test_failures_come_back_in_words(
    runtime: Path, nursery: trio.Nursery, caplog: pytest.LogCaptureFixture
) -> None:
    path = control_socket.socket_path(Path("/mnt/models"))
    await _serving(nursery, path)
    with pytest.raises(MountError, match="no such thing") as caught:
        await ask(path, "absent")
    assert caught.value.hint == "look elsewhere"
    with pytest.raises(MountError, match="unknown command; known: absent, broken, count, echo"):
        await ask(path, "nonsense")
    with pytest.raises(MountError, match="unexpected ZeroDivisionError; see the log") as caught:
        await ask(path, "broken")
    assert "secret" not in str(caught.value)
    assert "Traceback" in caplog.text
    assert await ask(path, "echo"), "it goes on"


async def test_a_report_is_many_lines_and_ends(runtime: Path, nursery: trio.Nursery) -> None:
    path = control_socket.socket_path(Path("/mnt/models"))
    await _serving(nursery, path)
    lines = await trio.to_thread.run_sync(lambda: list(control_socket.follow(path, "count", to=3)))
    assert lines == [{"schema": 1, "number": 0}, {"schema": 1, "number": 1}, {"schema": 1, "number": 2}]

    heard: list[dict[str, Any]] = []

    def follow() -> None:
        heard.extend(control_socket.follow(path, "count", to=0, fails=True))

    with pytest.raises(MountError, match="no more of them") as caught:
        await trio.to_thread.run_sync(follow)
    assert (heard, caught.value.hint) == ([], "count on your fingers")


async def test_a_report_ends_when_its_client_leaves(runtime: Path, nursery: trio.Nursery) -> None:
    path = control_socket.socket_path(Path("/mnt/models"))
    ended = trio.Event()

    async def endless(_request: Mapping[str, Any]) -> AsyncGenerator[dict[str, Any], None]:
        try:
            yield {"number": 0}
            await trio.sleep_forever()
        finally:
            ended.set()

    await nursery.start(server.serve, path, {"endless": endless})

    def look_once() -> None:
        report = control_socket.follow(path, "endless")
        assert next(report)["number"] == 0
        report.close()

    await trio.to_thread.run_sync(look_once)
    with trio.fail_after(10):
        await ended.wait()


@pytest.mark.parametrize(
    "data",
    [
        *(b"rubbish\n", b"[1]\n", b'"text"\n', b'{"command": 1}\n', b'{"command": "echo"', b"", b"x" * 200_000),
        pytest.param(b"x" * (control_socket.REQUEST_BYTES + (1 << 20)), id="endless"),
        pytest.param(b'{"command":' + b"[" * 100_000 + b"\n", id="deep"),
        pytest.param(b"[" + b"1," * (2 << 20) + b"1]\n", id="many values"),
    ],
)
async def test_rubbish_is_answered_and_survived(runtime: Path, nursery: trio.Nursery, data: bytes) -> None:
    path = control_socket.socket_path(Path("/mnt/models"))
    await _serving(nursery, path)
    try:
        answer = await _raw(path, data)
        assert "error" in json.loads(answer)
    except trio.BrokenResourceError:
        assert len(data) > control_socket.REQUEST_BYTES
    assert await ask(path, "echo")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        pytest.param(b"[" * 100_000 + b"\n", "JSON that is too deep", id="deep"),
        pytest.param(b'{"x": [' + b"1," * (2 << 20) + b"1]}\n", "JSON of more than", id="many values"),
        pytest.param(b'{"x": "' + b"x" * control_socket.REPLY_BYTES, "its answer has more than 16 MiB", id="endless"),
        pytest.param(b'{"x": NaN}\n', "JSON with the number", id="no number"),
        *((each, "its answer is no JSON object") for each in (b"5\n", b"[]\n", b'"error"\n')),
    ],
)
async def test_no_answer_of_a_daemon_fills_its_client(
    runtime: Path, nursery: trio.Nursery, line: bytes, said: str
) -> None:
    control_socket.prepare_runtime_directory()
    path = control_socket.socket_path(Path("/mnt/models"))
    listener = trio.socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    await listener.bind(str(path))
    listener.listen(1)

    async def answer() -> None:
        client, _ = await listener.accept()
        async with trio.SocketStream(client) as stream:
            with contextlib.suppress(trio.BrokenResourceError):
                await stream.receive_some()
                await stream.send_all(line)

    nursery.start_soon(answer)
    with pytest.raises(NoAnswer, match=said):
        await ask(path, "status")
    listener.close()


async def test_the_socket_goes_with_the_server(runtime: Path) -> None:
    path = control_socket.socket_path(Path("/mnt/models"))
    async with trio.open_nursery() as nursery:
        await _serving(nursery, path)
        assert path.exists()
        nursery.cancel_scope.cancel()
    assert not path.exists()
    with pytest.raises(MountError, match="no answer from the daemon"):
        control_socket.ask(path, "echo")


async def test_what_a_killed_daemon_left_is_replaced_and_not_listed(runtime: Path, nursery: trio.Nursery) -> None:
    dead, alive = control_socket.socket_path(Path("/mnt/dead")), control_socket.socket_path(Path("/mnt/alive"))
    assert dead != alive
    await _serving(nursery, alive)
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(dead))
    assert await trio.to_thread.run_sync(control_socket.find_sockets) == [alive]
    assert not dead.exists()
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(dead))
    await _serving(nursery, dead)
    assert sorted(await trio.to_thread.run_sync(control_socket.find_sockets)) == sorted([alive, dead])


async def test_a_daemon_that_takes_up_no_connection_is_listed_and_not_waited_for(runtime: Path) -> None:
    path = control_socket.socket_path(Path("/mnt/hangs"))
    runtime.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as hangs, contextlib.ExitStack() as waiting:
        hangs.bind(str(path))
        hangs.listen(0)
        assert control_socket.find_socket(os.getpid()) == path
        with contextlib.suppress(BlockingIOError):
            while True:
                client = waiting.enter_context(socket.socket(socket.AF_UNIX))
                client.setblocking(False)
                client.connect(str(path))
        assert control_socket.find_sockets() == [path]
        with pytest.raises(MountError, match="is no daemon of yours"):
            control_socket.find_socket(os.getpid())


async def test_a_daemon_that_hangs_up_has_not_answered(runtime: Path, nursery: trio.Nursery) -> None:
    path = control_socket.socket_path(Path("/mnt/models"))
    await nursery.start(server.serve, path, {"leave": _leave})
    with pytest.raises(NoAnswer, match="it has hung up") as caught:
        await ask(path, "leave")
    assert caught.value.reason == "it has hung up"


async def _leave(_request: Mapping[str, Any]) -> AsyncGenerator[dict[str, Any], None]:
    for _ in ():
        yield {}


async def test_a_daemon_is_found_by_its_process(runtime: Path, nursery: trio.Nursery) -> None:
    path = control_socket.socket_path(Path("/mnt/models"))
    await _serving(nursery, path)
    assert await trio.to_thread.run_sync(control_socket.find_socket, os.getpid()) == path
    with pytest.raises(MountError, match="process 1 is no daemon of yours"):
        await trio.to_thread.run_sync(control_socket.find_socket, 1)


async def test_a_runtime_directory_that_others_may_enter_is_refused(runtime: Path) -> None:
    runtime.mkdir(mode=0o755)
    runtime.chmod(0o755)
    with pytest.raises(MountError, match="0700"):
        await server.serve(control_socket.socket_path(Path("/mnt/models")), HANDLERS)


def test_socket_paths_are_short_however_long_the_mount_point(runtime: Path) -> None:
    assert len(control_socket.socket_path(Path("/" + "x" * 4000)).name) < 30


def test_runtime_directory_of_an_ordinary_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert control_socket.runtime_directory({"XDG_RUNTIME_DIR": "/run/user/1000"}) == Path("/run/user/1000/d7yfs")
    assert control_socket.runtime_directory({"XDG_RUNTIME_DIR": "relative"}) == Path("/tmp/d7yfs-1000")
    assert control_socket.runtime_directory({}) == Path("/tmp/d7yfs-1000")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert control_socket.runtime_directory({"XDG_RUNTIME_DIR": "/run/user/0"}) == Path("/run/d7yfs")


def test_a_runtime_directory_that_is_named() -> None:
    environ = {"D7YFS_RUNTIME_DIR": "/run/ours", "XDG_RUNTIME_DIR": "/run/user/0"}
    assert control_socket.runtime_directory(environ) == Path("/run/ours")
    assert control_socket.runtime_directory({"D7YFS_RUNTIME_DIR": "relative"}) == control_socket.runtime_directory({})
    assert load_settings({}, ["s3://b/m"], Path("/mnt/m"), environ, None).warnings == ()


async def test_what_is_reported_is_done_though_its_client_leaves_and_fails_in_words(autojump_clock: object) -> None:
    done: list[str] = []

    async def work() -> control_socket.Reply:
        await trio.sleep(60)
        done.append("work")
        return {"files": 1}

    async def broken() -> control_socket.Reply:
        raise KeyError("x")

    async with trio.open_nursery() as nursery:
        async with contextlib.aclosing(server.reporting(nursery, work)) as replies:
            assert await anext(replies) == {"state": "running"}
        *_, last = [reply async for reply in server.reporting(nursery, work)]
        assert last == {"state": "done", "outcome": {"files": 1}}
        with pytest.raises(MountError, match="unexpected KeyError; see the log"):
            [reply async for reply in server.reporting(nursery, broken)]
    assert done == ["work", "work"]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give a directory to another user")
@pytest.mark.parametrize("attack", ["owner", "mode", "link"])
async def test_no_client_believes_a_socket_that_another_user_made(
    runtime: Path, nursery: trio.Nursery, tmp_path: Path, attack: str
) -> None:
    """As in /tmp/d7yfs-UID, made by another user before the first daemon."""
    path = control_socket.socket_path(Path("/mnt/models"))
    await _serving(nursery, path)
    if attack == "owner":
        os.chown(runtime, 54321, -1)
    elif attack == "mode":
        runtime.chmod(0o777)
    else:
        runtime.symlink_to(runtime.rename(tmp_path / "elsewhere"))
    clients: list[Callable[[], object]] = [
        partial(control_socket.ask, path, "echo"),
        partial(next, control_socket.follow(path, "count")),
        control_socket.find_sockets,
        partial(control_socket.find_socket, os.getpid()),
        partial(control_socket.is_abandoned, path),
        control_socket.prepare_runtime_directory,
    ]
    for client in clients:
        with pytest.raises(MountError, match="its sockets are not believed"):
            await trio.to_thread.run_sync(client)
