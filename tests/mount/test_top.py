"""`d7yfs top` on real mounts: once, as JSON, piped, and beside a daemon that hangs."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from tests.mount.conftest import MIB, Bucket, both_engines, bytes_of, faulty_url
from tests.mount.mounted import D7YFS, Mounted, Mounter, in_background, run, until
from tests.servers import faults
from tests.servers.in_thread import InThread
from tests.servers.s3_faults import S3Faults

pytestmark = [pytest.mark.mount, pytest.mark.store, both_engines]


@contextmanager
def stopped(mounted: Mounted) -> Iterator[None]:
    """A daemon that hangs meanwhile."""
    pids = {mounted.worker_pid, mounted.pid}
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


@contextmanager
def following(*arguments: str | Path, stdout: int = subprocess.PIPE) -> Iterator[subprocess.Popen[str]]:
    """`d7yfs top` as it goes on; killed at the end, if it has not ended."""
    command = [*D7YFS, "top", *map(str, arguments), "--interval", "0.2s"]
    with subprocess.Popen(command, stdout=stdout, stderr=subprocess.PIPE, text=True) as process:
        watchdog = threading.Timer(60, process.kill)
        watchdog.start()
        try:
            yield process
        finally:
            watchdog.cancel()
            process.kill()


def ended(process: subprocess.Popen[str]) -> str:
    """The rest of its errors, after Ctrl-C; it must end well."""
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=20)
    assert process.returncode == 0
    return errors


def test_a_picture_of_what_is_read_and_what_waits(mounter: Mounter, faulty: InThread[S3Faults]) -> None:
    faulty.do(lambda: faulty.server.put("b/llm/w.bin", bytes_of(5, 9 * MIB)))
    faulty.do(lambda: faulty.server.put("b/slow/w.bin", bytes_of(6, 9 * MIB)))
    mounted = mounter.mount(faulty_url(faulty), "--anonymous", "--no-passthrough")
    slow = faults.Hang()
    faulty.do(partial(faulty.server.script, slow, key="b/slow/w.bin", forever=True))
    reader = in_background(partial(mounted.pread, "slow/w.bin", 0, 10, timeout_s=60))
    until(lambda: mounted.status()["fuse"]["oldest_request_s"] > 1, "a reader that waits")
    with following(mounted.point) as process:
        assert process.stdout is not None
        until(lambda: "rates" in process.stdout.readline(), "the first look")  # type: ignore[union-attr]
        mounted.read("llm/w.bin")
        seen = ""
        while "MiB/s" not in seen or "read slow/w.bin" not in seen:
            seen += process.stdout.readline()
        assert ended(process) == ""
    assert "\x1b" not in seen, "it is no terminal"
    (one,) = json.loads(run("top", "--once", "--json", "--interval", "0.2s", mounted.point).stdout)
    assert one["mountpoint"] == str(mounted.point)
    assert one["waiting_reads"] == {"0": 1}
    (request,) = one["oldest_requests"]
    assert (request["operation"], request["path"]) == ("read", "slow/w.bin")
    assert request["waited_s"] > 1
    faulty.do(slow.resume.set)
    assert reader.result(60) == bytes_of(6, 9 * MIB)[:10]


def test_a_daemon_that_hangs_costs_its_own_row(mounter: Mounter, bucket: Bucket) -> None:
    hanging, living = (mounter.mount(bucket.url("library"), env=bucket.env) for _ in range(2))
    with stopped(hanging):
        done = run("top", "--once", "--interval", "0.2s", hanging.point, living.point)
    assert done.returncode == 1
    assert f"{hanging.point}: no daemon answers" in done.stdout
    assert f"{living.point}  s3://" in done.stdout
    assert " store        0 B/s" in done.stdout
    assert done.stderr.startswith(f"d7yfs: error: no daemon answers for {hanging.point}")


def test_json_goes_on_line_by_line_for_all_mounts(mounter: Mounter, bucket: Bucket) -> None:
    mounted = [mounter.mount(bucket.url("library"), env=bucket.env) for _ in range(2)]
    with following("--json") as process:
        assert process.stdout is not None
        lines = [json.loads(process.stdout.readline()) for _ in range(6)]
        assert ended(process) == ""
    assert {line["mountpoint"] for line in lines} >= {str(each.point) for each in mounted}
    assert {line["schema"] for line in lines} == {1}


def test_on_a_terminal_it_redraws_the_screen(mounter: Mounter, bucket: Bucket) -> None:
    mounted = mounter.mount(bucket.url("library"), env=bucket.env)
    ours, its = pty.openpty()
    said = bytearray()
    try:
        with following(mounted.point, stdout=its) as process:
            while b"disk" not in said:
                said += os.read(ours, 4096)
            process.send_signal(signal.SIGINT)
            while b"\x1b[?1049l" not in said:
                said += os.read(ours, 4096)
            assert process.wait(20) == 0
    finally:
        os.close(ours)
        os.close(its)
    assert said.startswith(b"\x1b[?1049h"), "the screen from before comes back"


def test_without_a_mount() -> None:
    done = run("top", "--once", "--interval", "0.2s")
    assert (done.returncode, done.stdout.splitlines()[1]) == (0, "nothing is mounted")
    assert json.loads(run("top", "--once", "--json").stdout) == []
    done = run("top", "--once", "/nowhere")
    assert done.returncode == 1
    assert done.stderr.startswith("d7yfs: error: no daemon answers for /nowhere")
