"""How a daemon tells that it is ready, or why it is not, to the command that waits and to systemd."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from d7yfs.errors import D7yfsError, MountError, UsageError
from d7yfs.host.launch import READY_FD_VARIABLE, Readiness, daemon_command, launch

_DAEMON = """
import os, sys
from pathlib import Path
from d7yfs.host.launch import Readiness

readiness = Readiness(os.environ)
assert readiness.in_background
readiness.tell_ready("it is there", ["a warning"], Path(sys.argv[1]))
os.write(1, b"lost")
os.write(2, b"kept")
assert os.getcwd() == "/"
assert os.read(0, 1) == b""
"""


def test_nobody_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    readiness = Readiness({})
    assert not readiness.in_background
    before = Path.cwd()
    readiness.tell_ready("ready", [], None)
    readiness.tell_failed(MountError("not ready"))
    readiness.notify("STATUS=x")
    assert Path.cwd() == before


def test_the_variable_is_taken_out_of_the_environment() -> None:
    environ = {READY_FD_VARIABLE: "7", "OTHER": "1"}
    assert Readiness(environ).in_background
    assert environ == {"OTHER": "1"}
    assert not Readiness({READY_FD_VARIABLE: "rubbish"}).in_background


def test_ready_in_the_background_lets_go_of_the_terminal(tmp_path: Path) -> None:
    read_fd, write_fd = os.pipe()
    child = subprocess.Popen(
        [sys.executable, "-c", _DAEMON, str(tmp_path / "log")],
        pass_fds=[write_fd],
        env=os.environ | {READY_FD_VARIABLE: str(write_fd)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    os.close(write_fd)
    with os.fdopen(read_fd) as pipe:
        assert json.loads(pipe.read()) == {"ready": "it is there", "warnings": ["a warning"]}, "and the pipe is closed"
    out, error = child.communicate(timeout=20)
    assert (child.returncode, out, error) == (0, b"", b"")
    assert (tmp_path / "log").read_bytes() == b"kept"


@pytest.mark.parametrize("kind", [MountError, UsageError])
def test_failed_tells_error_hint_and_whose_it_is(kind: type[D7yfsError]) -> None:
    read_fd, write_fd = os.pipe()
    readiness = Readiness({READY_FD_VARIABLE: str(write_fd)})
    readiness.tell_failed(kind("it broke", hint="mend it"))
    os.close(write_fd)
    with os.fdopen(read_fd) as pipe:
        assert json.loads(pipe.read()) == {"error": "it broke", "hint": "mend it", "usage": kind is UsageError}


def test_a_command_that_waits_no_more_is_no_trouble() -> None:
    read_fd, write_fd = os.pipe()
    os.close(read_fd)
    Readiness({READY_FD_VARIABLE: str(write_fd)}).tell_failed(MountError("nobody listens"))
    os.close(write_fd)


@pytest.mark.parametrize("abstract", [False, True])
def test_systemd_is_told(tmp_path: Path, abstract: bool) -> None:
    name = f"@d7yfs-test-{os.getpid()}" if abstract else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind("\0" + name[1:] if abstract else name)
        listener.settimeout(5)
        readiness = Readiness({"NOTIFY_SOCKET": name})
        readiness.tell_ready("it is there", [], None)
        assert listener.recv(4096).decode().splitlines() == ["READY=1", f"MAINPID={os.getpid()}", "STATUS=it is there"]
        readiness.notify("STOPPING=1")
        assert listener.recv(4096) == b"STOPPING=1"


def test_a_systemd_that_does_not_listen_is_no_trouble(tmp_path: Path) -> None:
    Readiness({"NOTIFY_SOCKET": str(tmp_path / "absent")}).tell_ready("it is there", [], None)


def test_launch_raises_what_the_daemon_said() -> None:
    with pytest.raises(UsageError) as caught:
        launch(daemon_command(["mount", "ftp://host/bucket", "/nonexistent"]), pytest.fail)
    assert "ftp" in caught.value.message
    assert "s3" in str(caught.value)


def test_launch_of_a_daemon_that_ends_without_a_word() -> None:
    with pytest.raises(MountError, match="ended before the mount answered"):
        launch(daemon_command(["completion", "bash"]), pytest.fail)


def test_launch_tells_what_the_daemon_waits_for() -> None:
    heard: list[str] = []
    daemon = """
import os
from d7yfs.host.launch import Readiness
readiness = Readiness(os.environ)
readiness.tell_wait("one")
readiness.tell_wait("two")
readiness.tell_ready("there", [], None)
"""
    assert launch([sys.executable, "-c", daemon], heard.append)["ready"] == "there"
    assert heard == ["one", "two"]
