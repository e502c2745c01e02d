"""A person who waits for a mount, a check or a listing is told after 5 s for what."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from d7yfs.repository.slow_store import FIRST_S
from tests.mount.conftest import faulty_url
from tests.mount.mounted import D7YFS, Mounter, is_mounted, run
from tests.servers.faults import Hang
from tests.servers.in_thread import InThread
from tests.servers.s3_faults import S3Faults

pytestmark = pytest.mark.mount


@pytest.fixture
def silent(faulty: InThread[S3Faults]) -> Hang:
    """The fault of the store, which keeps silent until it is resumed."""
    faulty.do(faulty.server.put, "b/file", b"bytes")
    hang = Hang()
    faulty.do(lambda: faulty.server.script(hang, key="b", forever=True))
    return hang


def hear(command: Sequence[str | Path], faulty: InThread[S3Faults], silent: Hang) -> tuple[float, str, int, str]:
    """Run d7yfs, and end the silence with the first line of stderr: after how long it came, the line, the
    exit status, and the rest of stderr."""
    began = time.monotonic()
    with subprocess.Popen(
        [*D7YFS, *map(str, command)], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, env=os.environ
    ) as process:
        assert process.stderr is not None
        line = process.stderr.readline()
        took_s = time.monotonic() - began
        faulty.do(silent.resume.set)
        faulty.do(lambda: faulty.server.script(key="b"))
        rest = process.stderr.read()
        return took_s, line, process.wait(30), rest


@pytest.mark.parametrize("command", ["check", "ls"])
def test_ctrl_c_ends_a_wait_without_a_traceback(
    mounter: Mounter, faulty: InThread[S3Faults], silent: Hang, tmp_path: Path, command: str
) -> None:
    program = [*D7YFS, command, faulty_url(faulty), "--anonymous"]
    with subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        faulty.wait(silent.reached)
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate(timeout=30)
    assert process.returncode == 1
    assert "Aborted!" in said
    assert "Traceback" not in said
    faulty.do(silent.resume.set)


@pytest.mark.parametrize("kind", ["mount", "alone", "check", "ls"])
def test_a_silent_store_is_named_after_5_s(
    mounter: Mounter, faulty: InThread[S3Faults], silent: Hang, tmp_path: Path, kind: str
) -> None:
    url, point = faulty_url(faulty), mounter.point()
    cache = ("--cache-dir", tmp_path / "cache")
    log = ("--log-file", tmp_path / "log", "--metrics-listen", "none")
    command = {
        "mount": ("mount", url, "--anonymous", *cache, *log, point),
        "alone": ("mount", url, "--anonymous", "--takeover", "off", *cache, *log, point),
        "check": ("check", url, "--anonymous", *cache),
        "ls": ("ls", url, "--anonymous"),
    }[kind]
    took_s, line, status, rest = hear(command, faulty, silent)
    assert f"no answer from http://127.0.0.1:{faulty.server.port} for 5 s" in " ".join((line + rest).split())
    assert FIRST_S <= took_s < FIRST_S + 10
    assert status == 0, rest
    if kind in ("mount", "alone"):
        assert "for 5 s (credentials: none (anonymous)); trying on" in (tmp_path / "log").read_text()
        assert is_mounted(point)
        assert run("umount", point).returncode == 0
