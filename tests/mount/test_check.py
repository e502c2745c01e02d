"""`d7yfs check` of a place where something is mounted: what runs, what hangs, what is dead, and what is
another user's are told apart.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from d7yfs.host import kernel
from tests.mount.conftest import MIB, Bucket, bytes_of, faulty_url
from tests.mount.mounted import D7YFS, Mounted, Mounter, ended, run, until
from tests.mount.ordinary import AS_NOBODY, NOBODY, ground_of_nobody
from tests.servers.dfdaemon import FakeDfdaemon
from tests.servers.in_thread import InThread
from tests.servers.s3_faults import S3Faults

pytestmark = pytest.mark.mount

ALONE = ("--anonymous", "--takeover", "off", "--metrics-listen", "none")
"""A mount whose daemon nobody replaces."""


@pytest.fixture
def store(faulty: InThread[S3Faults]) -> InThread[S3Faults]:
    faulty.do(faulty.server.put, "b/file", b"bytes")
    return faulty


def checked(*arguments: str | Path, env: dict[str, str] | None = None) -> tuple[int, str]:
    """The exit status, and what is printed, without line breaks."""
    done = run("check", *arguments, env=env)
    assert not done.stderr
    return done.returncode, " ".join(done.stdout.split())


@pytest.mark.store
def test_a_running_mount_is_checked_by_its_daemon_with_its_own_settings(mounter: Mounter, bucket: Bucket) -> None:
    mounted = mounter.mount(bucket.url("library"), "--cache-size", "50%", env=bucket.env)
    status, said = checked(mounted.point, "--settings")  # without any key
    assert status == 0, said
    assert re.search(rf"ok mount {mounted.point}: already mounted by pid {mounted.pid}, answers in \d+ ms: s3://", said)
    assert "ok list" in said
    assert "bytes by range, of this version" in said
    assert re.search(r"\d ok, 0 warnings, 0 failed: it is mounted ", said)
    assert "environment variables (AWS_ACCESS_KEY_ID, …) (auto-detected)" in said
    assert re.search(r"cache_size = 50%, now [0-9.]+ [GT]iB \(from --cache-size\)", said)
    assert bucket.env["AWS_SECRET_ACCESS_KEY"] not in said
    assert mounted.status()["tree"]["remembered"] <= 1, "nothing was looked up in it"
    status, said = checked(mounted.point / "model")
    assert (status, f"run d7yfs check {mounted.point}" in said) == (1, True), said


def test_settings_of_the_command_that_the_mount_does_not_have(mounter: Mounter, store: InThread[S3Faults]) -> None:
    mounted = mounter.mount(faulty_url(store), *ALONE)
    status, said = checked(faulty_url(store), mounted.point, "--anonymous", "--read-timeout", "7s")
    assert status == 0, said
    assert "warning settings not tried, because the mount runs with its own settings: read_timeout = 7s" in said
    assert "anonymous =" not in said
    status, said = checked(f"{faulty_url(store)}/other", mounted.point, "--anonymous")
    assert (status, f"{mounted.point} is mounted from s3://" in said) == (1, True), said
    assert "/b/other" in said
    status, said = checked(mounted.point, "--read-timeout", "7s")
    assert "read_timeout = 7s (the mount has 1m)" in said or "read_timeout = 7s (the mount has 60s)" in said
    assert "leave out the directory" in said


def test_a_mount_in_trouble(mounter: Mounter, store: InThread[S3Faults]) -> None:
    mounted = mounter.mount(faulty_url(store), *ALONE, "--read-timeout", "1s", "--metadata-ttl", "0.1s")
    store.do(store.server.kill)
    with pytest.raises(OSError, match="Input/output"):
        mounted.read("file")
    until(lambda: bool(mounted.status()["problems"]), "a problem that lasts")
    status, said = checked(mounted.point)
    assert status == 1
    assert "already mounted by pid" in said
    assert "warning problem store unreachable for" in said
    assert "failed list" in said
    assert "1 failed: it is mounted, with trouble" in said


def test_a_proxy_that_the_store_stands_in_for_is_a_warning(mounter: Mounter, store: InThread[S3Faults]) -> None:
    store.do(store.server.put, "b/large", bytes_of(1, 6 * MIB))
    with InThread(FakeDfdaemon()) as dfdaemon:
        flags = ("--proxy", dfdaemon.server.url)
        mounted = mounter.mount(faulty_url(store), *ALONE, *flags)
        status, said = checked(mounted.point)
        assert (status, "ok proxy" in said) == (0, True), said
        dfdaemon.do(dfdaemon.server.kill)
        status, said = checked(mounted.point)
        assert status == 0, said
        assert "warning proxy" in said
        assert "files come straight from the store meanwhile" in said


def test_a_daemon_that_hangs_is_not_called_dead(mounter: Mounter, store: InThread[S3Faults]) -> None:
    mounted = mounter.mount(faulty_url(store), *ALONE)
    mounted.kill(signal.SIGSTOP)
    try:
        for arguments in ((mounted.point,), (faulty_url(store), mounted.point, "--anonymous")):
            status, said = checked(*arguments)
            assert status == 1
            assert f"failed mount {mounted.point}: " in said
            assert f"its daemon (pid {mounted.pid}) does not answer within 5 s: it is stopped" in said
            assert f"kill -CONT {mounted.pid} lets it go on" in said
            assert f"d7yfs umount --force {mounted.point}" in said
            assert "dead" not in said
    finally:
        mounted.kill(signal.SIGCONT)
    assert mounted.read("file") == b"bytes", "it is left alone"


@pytest.mark.skipif(bool(kernel.takeover_obstacle("auto")), reason="nobody takes over here")
def test_a_mount_whose_worker_is_just_replaced(mounter: Mounter, store: InThread[S3Faults]) -> None:
    mounted = mounter.mount(faulty_url(store), "--anonymous", "--metrics-listen", "none")
    worker = mounted.worker_pid
    os.kill(worker, signal.SIGKILL)
    status, said = checked(mounted.point)
    assert (status, "already mounted by pid" in said) == (0, True), said
    assert mounted.worker_pid != worker


def test_a_dead_mount(mounter: Mounter, store: InThread[S3Faults]) -> None:
    mounted = mounter.mount(faulty_url(store), *ALONE)
    mounted.kill()
    until(lambda: ended(mounted.pid), "its end")
    status, said = checked(mounted.point)
    assert (status, "is a dead mount of s3://" in said) == (1, True), said
    assert f"d7yfs umount {mounted.point}" in said
    status, said = checked(faulty_url(store), mounted.point, "--anonymous", "--cache-dir", mounted.cache_dir)
    assert (status, "a new mount cleans it up" in said) == (0, True), said
    assert said.endswith("0 failed: it would mount")


@pytest.fixture
def theirs(mounter: Mounter, store: InThread[S3Faults]) -> Iterator[Mounted]:
    """A mount of nobody's, which root cannot read."""
    with ground_of_nobody() as ground:
        socket, point = ground / "own" / "socket", ground / "mnt"
        helper = subprocess.Popen([*D7YFS, "fuse-helper", "--uid", str(NOBODY), str(point), str(socket)])
        env = os.environ | {"D7YFS_RUNTIME_DIR": str(ground / "run")}
        options = ("--foreground", "--anonymous", "--metrics-listen", "none", "--fuse-helper", str(socket))
        paths = ("--cache-dir", str(ground / "cache"), "--log-file", str(ground / "log"))
        command = [*AS_NOBODY, *D7YFS, "mount", *options, *paths, faulty_url(store), str(point)]
        try:
            until(socket.is_socket, "the helper's socket")
            with subprocess.Popen(command, env=env, text=True) as process:
                mounted = Mounted(point, ground / "cache", ground / "log", process.pid, process)
                mounter.made.append(mounted)
                try:
                    until(lambda: mounted.log_file.exists() and "is mounted on" in mounted.log(), "the mount")
                    yield mounted
                finally:
                    process.send_signal(signal.SIGTERM)
                    process.wait(20)
        finally:
            helper.send_signal(signal.SIGTERM)
            helper.wait(20)


def test_another_users_mount(theirs: Mounted, store: InThread[S3Faults]) -> None:
    status, said = checked(theirs.point)
    assert status == 0
    assert re.search(r"warning mount .* is mounted by \w+ \(uid \d+\), who alone can ask its daemon", said)
    status, said = checked(faulty_url(store), theirs.point, "--anonymous")
    assert (status, "choose another directory" in said) == (1, True), said
    assert "dead" not in said
    command = [*AS_NOBODY, *D7YFS, "check", faulty_url(store), str(theirs.point), "--anonymous"]
    env = os.environ | {"D7YFS_RUNTIME_DIR": str(theirs.point.parent / "run")}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "already mounted by pid" in " ".join(done.stdout.split())


def test_a_mount_whose_daemon_has_its_socket_elsewhere(
    mounter: Mounter, store: InThread[S3Faults], tmp_path: Path
) -> None:
    mounted = mounter.mount(faulty_url(store), *ALONE)
    env = {"D7YFS_RUNTIME_DIR": str(tmp_path / "elsewhere")}
    status, said = checked(mounted.point, env=env)
    assert (status, "has no control socket here" in said) == (0, True), said
    assert "dead" not in said


def test_another_kind_of_file_system(store: InThread[S3Faults], tmp_path: Path) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "memory", tmp_path], check=True)
    try:
        status, said = checked(tmp_path)
        assert (status, "of another kind: tmpfs of memory" in said) == (1, True), said
        status, said = checked(faulty_url(store), tmp_path, "--anonymous", "--cache-dir", tmp_path.parent / "cache")
        assert (status, "the top of a file system (tmpfs of memory)" in said) == (0, True), said
    finally:
        subprocess.run(["umount", tmp_path], check=True)


def test_keys_that_cannot_be_shown_are_named(mounter: Mounter, faulty: InThread[S3Faults]) -> None:
    """By the dry run and by the daemon; all of them with -v."""
    for number in range(5):
        faulty.do(faulty.server.put, f"b/m/{number}//x", b"x")
    mounted = mounter.mount(f"s3://127.0.0.1:{faulty.server.port}/b", "--anonymous")
    for arguments in ((f"s3://127.0.0.1:{faulty.server.port}/b", "--anonymous"), (mounted.point,)):
        _, few = checked(*arguments)
        assert "5 keys cannot be shown, with an empty path segment: 'm/0//', 'm/1//', 'm/2//', …" in few
        assert "'m/4//'" not in few
        _, named = checked("-v", *arguments)
        assert all(f"'m/{number}//': empty path segment" in named for number in range(5))
