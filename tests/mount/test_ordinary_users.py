"""Mounts of users who may not mount: fusermount3 or a helper makes them. They lack passthrough, and
nothing else.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from d7yfs.host import kernel
from tests.mount.conftest import bytes_of, faulty_url
from tests.mount.mounted import D7YFS, Mounted, Mounter, is_mounted, run, until
from tests.mount.ordinary import AS_NOBODY, NOBODY, cat_as_nobody, ground_of_nobody, with_everybodys_device
from tests.servers.in_thread import InThread
from tests.servers.s3_faults import S3Faults

pytestmark = pytest.mark.mount

BODY = bytes_of(41, 3 << 20)


@pytest.fixture
def store(faulty: InThread[S3Faults]) -> InThread[S3Faults]:
    faulty.do(faulty.server.put, "b/file", BODY)
    return faulty


@pytest.fixture
def ground(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    with ground_of_nobody() as made:
        monkeypatch.setenv("D7YFS_RUNTIME_DIR", str(made / "run"))
        yield made


@contextmanager
def daemon(mounter: Mounter, ground: Path, under: Sequence[str], *arguments: str) -> Iterator[Mounted]:
    """A mount of nobody's, which ends well with the block."""
    point, cache_dir, log = ground / "mnt", ground / "cache", ground / "log"
    command = [
        *(*under, *D7YFS, "mount", "--foreground", "--anonymous", "--metrics-listen", "none"),
        *("--cache-dir", str(cache_dir), "--log-file", str(log), *arguments, str(point)),
    ]
    with subprocess.Popen(command, text=True) as process:
        mounted = Mounted(point, cache_dir, log, process.pid, process)
        mounter.made.append(mounted)
        try:
            until(lambda: log.exists() and "is mounted on" in log.read_text(), "the mount")
            yield mounted
            assert "Traceback" not in log.read_text()
            process.send_signal(signal.SIGTERM)
            assert process.wait(20) == 0
        finally:
            process.kill()


def status(mounted: Mounted) -> dict[str, Any]:
    command = [*AS_NOBODY, *D7YFS, "status", "--json", str(mounted.point)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    (found,) = json.loads(done.stdout)
    assert isinstance(found, dict)
    return found


def has_said_why(mounted: Mounted) -> bool:
    return "passthrough is off for this mount: it needs CAP_SYS_ADMIN" in mounted.log()


@pytest.mark.skipif(bool(kernel.takeover_obstacle("auto")), reason="nobody takes over here")
def test_fusermount_mounts(mounter: Mounter, store: InThread[S3Faults], ground: Path) -> None:
    """The daemon serves cached files, too; when it is killed, the next one takes over."""
    with daemon(mounter, ground, with_everybodys_device(ground), faulty_url(store)) as mounted:
        inside = Path(f"/proc/{mounted.pid}/root{ground}")
        for _ in range(2):
            assert cat_as_nobody("mnt/file", inside) == BODY
        until(lambda: has_said_why(mounted), "a word")
        worker = status(mounted)["takeover"]["worker_pid"]
        assert worker != mounted.pid
        os.kill(worker, signal.SIGKILL)
        assert cat_as_nobody("mnt/file", inside) == BODY
        found = status(mounted)
        assert found["takeover"]["worker_pid"] != worker
        assert found["fuse"]["passthrough"] is False


def status_of_root(runtime: Path) -> str:
    """The output of `d7yfs status` of root, who has no mount."""
    done = run("status", env={"D7YFS_RUNTIME_DIR": str(runtime)})
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_a_mount_in_the_background_has_a_log_that_its_user_can_read(
    mounter: Mounter, store: InThread[S3Faults], ground: Path
) -> None:
    point, state = ground / "mnt", ground / "state"
    mount = [*D7YFS, "mount", "--anonymous", "--cache-dir", str(ground / "cache"), faulty_url(store), str(point)]
    script = '"$@" >"$0/said" 2>&1; d7yfs status --json "$0/mnt" >"$0/status"; d7yfs umount "$0/mnt"'
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    state.mkdir(mode=0o700)
    os.chown(state, NOBODY, NOBODY)
    done = subprocess.run(
        [*with_everybodys_device(ground), "sh", "-c", script, str(ground), *mount],
        env=os.environ | {"XDG_STATE_HOME": str(state), "PATH": path},
        timeout=60,
    )
    assert done.returncode == 0, (ground / "said").read_text()
    ((found,), (log,)) = json.loads((ground / "status").read_text()), (state / "d7yfs").glob("mnt-*.log")
    assert (log.stat().st_uid, log.stat().st_mode & 0o777) == (NOBODY, 0o600)
    assert "is mounted on" in log.read_text()
    assert found["log"] == str(log)
    assert found["metrics"]["listens_on"] == ""


def test_a_helper_mounts(mounter: Mounter, store: InThread[S3Faults], ground: Path, tmp_path: Path) -> None:
    """As in Kubernetes: only the helper is root. Nobody else reads the mount, root neither."""
    socket = ground / "own" / "socket"
    command = [*D7YFS, "fuse-helper", "--uid", str(NOBODY), str(ground / "mnt"), str(socket)]
    with subprocess.Popen(command) as helper:
        try:
            until(socket.is_socket, "the helper's socket")
            for _ in range(2):
                under = (*AS_NOBODY, "--no-new-privs")
                with daemon(mounter, ground, under, "--fuse-helper", str(socket), faulty_url(store)) as mounted:
                    for _ in range(2):
                        assert cat_as_nobody("mnt/file", ground) == BODY
                    until(lambda: has_said_why(mounted), "a word")
                    with pytest.raises(PermissionError):
                        (ground / "mnt" / "file").read_bytes()
                    line = f"{mounted.point}: mounted by user nobody (uid {NOBODY}): it is served; ask as that user"
                    assert line in status_of_root(tmp_path).splitlines()
                    named = run("status", mounted.point)
                    assert (named.returncode, f"d7yfs: error: {line}\n" in named.stderr) == (1, True)
                until(lambda: not is_mounted(ground / "mnt"), "the end of the mount")
                (ground / "log").unlink()
        finally:
            helper.send_signal(signal.SIGTERM)
            helper.wait(20)


# --- what `check` says of it ---


def findings(under: Sequence[str], *arguments: str, env: dict[str, str] | None = None) -> dict[str, dict[str, str]]:
    command = [*under, *D7YFS, "check", "--json", "--anonymous", *arguments, "s3://127.0.0.1:1/b"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=os.environ | (env or {}))
    assert done.returncode == 1, done.stderr
    return {each["probe"]: each for each in json.loads(done.stdout)}


def test_check_tells_a_user_what_he_needs_and_what_he_lacks(ground: Path) -> None:
    under = with_everybodys_device(ground)
    cache = ("--cache-dir", str(ground / "cache"))
    found = findings(under, *cache)
    assert (found["fuse"]["verdict"], found["engine"]["verdict"]) == ("ok", "ok")
    assert found["fuse"]["said"].endswith("fusermount3 mounts")
    assert (found["limits"]["verdict"], found["passthrough"]["verdict"]) == ("warning", "warning")
    assert "CAP_SYS_ADMIN" in found["passthrough"]["said"]
    shared = findings(under, *cache, "--allow-other")
    assert "user_allow_other" in shared["fuse"]["hint"]
    alone = findings((*under, "env", "PATH=/nonexistent"), *cache)
    assert (alone["fuse"]["verdict"], alone["fuse"]["hint"]) == ("failed", "install the package fuse3, or run as root")
    closed = findings(AS_NOBODY, *cache)
    assert closed["fuse"]["verdict"] == "failed" or Path("/dev/fuse").stat().st_mode & 0o006 == 0o006


def test_check_tells_root_without_the_capability(tmp_path: Path) -> None:
    under = ("setpriv", "--bounding-set=-sys_admin", "--inh-caps=-all")
    found = findings(under, "--cache-dir", str(tmp_path / "cache"))
    assert found["fuse"]["verdict"] == "failed"
    assert "--cap-add SYS_ADMIN" in found["fuse"]["hint"]
