"""Mounts by a daemon without any privilege, which receives the descriptor from another process."""

from __future__ import annotations

import os
import signal
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from d7yfs.host import fuse_device, mount_table
from d7yfs.host.fuse_device import MountFlags
from tests.mount.conftest import Bucket, both_engines
from tests.mount.mounted import D7YFS, READ_TIMEOUT_S, free_port, is_mounted, run, until, within

pytestmark = [pytest.mark.mount, pytest.mark.store, both_engines]


@pytest.fixture
def ground(tmp_path: Path) -> Path:
    (tmp_path / "mnt").mkdir()
    return tmp_path


@pytest.fixture
def helper(ground: Path) -> Iterator[subprocess.Popen[bytes]]:
    command = [*D7YFS, "fuse-helper", "--uid", "0", str(ground / "mnt"), str(ground / "own" / "socket")]
    with subprocess.Popen(command) as process:
        try:
            until(lambda: (ground / "own" / "socket").exists(), "the helper's socket")
            yield process
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(20)


@contextmanager
def daemon(ground: Path, url: str, env: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """Run a daemon without a single capability. It is ready when the block begins."""
    log = ground / "log"
    command = [
        *("setpriv", "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs"),
        *(
            *D7YFS,
            "mount",
            "--foreground",
            "--fuse-helper",
            str(ground / "own" / "socket"),
            "--cache-dir",
            str(ground / "cache"),
        ),
        *("--metrics-listen", "none", "--log-file", str(log), url, str(ground / "mnt")),
    ]
    with subprocess.Popen(command, env=os.environ | env) as process:
        try:
            until(lambda: log.exists() and "is mounted on" in log.read_text(), "the mount")
            yield process
        finally:
            if process.poll() is None:
                process.kill()
            process.wait(20)
            log.unlink()


def test_a_daemon_without_privilege(ground: Path, helper: subprocess.Popen[bytes], bucket: Bucket) -> None:
    assert helper.poll() is None
    point = ground / "mnt"
    with daemon(ground, bucket.url("library"), dict(bucket.env)) as first:
        caps = [
            line for line in Path(f"/proc/{first.pid}/status").read_text().splitlines() if line.startswith("CapEff")
        ]
        assert caps == ["CapEff:\t0000000000000000"]
        read = within(READ_TIMEOUT_S, (point / "over.bin").read_bytes)
        assert read == bucket.files["over.bin"]
        minor = os.minor(within(READ_TIMEOUT_S, point.stat).st_dev)
        background = Path(f"/sys/fs/fuse/connections/{minor}/max_background").read_text().strip()
        assert background == str(mount_table.MAX_BACKGROUND), "the helper raises the limit that the daemon may not"
        first.send_signal(signal.SIGTERM)
        assert first.wait(20) == 0
        until(lambda: not is_mounted(point), "the end of the mount")
    with daemon(ground, bucket.url("library"), dict(bucket.env)) as second:
        assert within(READ_TIMEOUT_S, (point / "one.bin").read_bytes) == bucket.files["one.bin"]
        second.kill()
        second.wait(20)
        until(lambda: not is_mounted(point), "the end of the dead mount")
    with daemon(ground, bucket.url("library"), dict(bucket.env)):
        assert within(READ_TIMEOUT_S, (point / "one.bin").read_bytes) == bucket.files["one.bin"]


def test_a_descriptor_that_another_program_hands_over(ground: Path, bucket: Bucket) -> None:
    point, log = ground / "mnt", ground / "log"
    fd = fuse_device.mount(point, MountFlags("handed", 0))
    command = [
        *(*D7YFS, "mount", "--foreground", "--cache-dir", str(ground / "cache"), "--log-file", str(log)),
        *("--metrics-listen", f"127.0.0.1:{free_port()}", bucket.url("library"), f"/dev/fd/{fd}"),
    ]
    with subprocess.Popen(command, env=os.environ | bucket.env, pass_fds=[fd]) as process:
        try:
            os.close(fd)
            until(lambda: log.exists() and "metrics are at" in log.read_text(), "the mount")
            assert within(READ_TIMEOUT_S, (point / "over.bin").read_bytes) == bucket.files["over.bin"]
            with urllib.request.urlopen(f"http://{command[-3]}/healthz", timeout=30) as reply:
                assert reply.status == 200
            process.send_signal(signal.SIGTERM)
            assert process.wait(20) == 0
        finally:
            process.kill()
            mount_table.unmount(point, lazy=True)


_ASK = """
import socket, sys
with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as client:
    client.settimeout(20)
    client.connect(sys.argv[1])
    print(len(socket.recv_fds(client, 64, 1)[1]))
"""
"""Asks a helper for its mount; prints the number of descriptors that come."""


def _ask_as_another_user(path: Path) -> subprocess.CompletedProcess[str]:
    command = ["setpriv", "--reuid=54321", "--clear-groups", "/usr/bin/env", "python3", "-c", _ASK, str(path)]
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)


def test_another_user_does_not_get_the_mount(ground: Path, helper: subprocess.Popen[bytes], bucket: Bucket) -> None:
    """Neither can he reach the socket, nor, where somebody opened it to him, is he believed."""
    assert helper.poll() is None
    socket = ground / "own" / "socket"
    for above in (ground, *ground.parents):
        if above.stat().st_mode & 0o011 != 0o011:
            above.chmod(above.stat().st_mode | 0o011)
    assert "PermissionError" in _ask_as_another_user(socket).stderr
    socket.parent.chmod(0o777)
    assert "PermissionError" in _ask_as_another_user(socket).stderr
    socket.chmod(0o777)
    assert _ask_as_another_user(socket).stdout == "0\n"
    assert not is_mounted(ground / "mnt")
    with daemon(ground, bucket.url("library"), dict(bucket.env)):
        assert within(READ_TIMEOUT_S, (ground / "mnt" / "one.bin").read_bytes) == bucket.files["one.bin"]


def test_a_directory_that_another_user_made_is_refused(ground: Path) -> None:
    for mode, uid in ((0o700, 54321), (0o755, 0), (0o777, 0)):
        (ground / "own").mkdir()
        (ground / "own").chmod(mode)
        os.chown(ground / "own", uid, -1)
        refused = run("fuse-helper", "--uid", "65532", ground / "mnt", ground / "own" / "socket")
        assert refused.returncode == 1
        assert "it must be uid 65532's alone" in refused.stderr
        (ground / "own").rmdir()


def test_no_helper_and_no_descriptor(tmp_path: Path, bucket: Bucket) -> None:
    (tmp_path / "m").mkdir()
    url, cache = bucket.url("library"), ("--cache-dir", str(tmp_path / "cache"), "--metrics-listen", "none")
    refused = run(
        "mount", "--foreground", *cache, "--fuse-helper", str(tmp_path / "none"), url, tmp_path / "m", env=bucket.env
    )
    assert refused.returncode == 1
    assert "no mount from the helper behind" in refused.stderr
    refused = run("mount", "--foreground", *cache, url, "/dev/fd/77", env=bucket.env)
    assert refused.returncode == 1
    assert "/dev/fd/77 is not open here" in refused.stderr
