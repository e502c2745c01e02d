"""`d7yfs warm` as users run it: with a real mount, on a real store and on one that fails."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path

import pytest

from tests.mount.conftest import MIB, Bucket, bytes_of, faulty_url
from tests.mount.mounted import D7YFS, Mounted, Mounter, run, until
from tests.servers import faults
from tests.servers.dfdaemon import FakeDfdaemon
from tests.servers.dfdaemon_socket import FakeDfdaemonSocket
from tests.servers.in_thread import InThread
from tests.servers.s3_faults import S3Faults

pytestmark = pytest.mark.mount


def _reports(*arguments: str | Path) -> tuple[int, list[dict[str, object]], str]:
    done = run("warm", "--json", *arguments)
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()], done.stderr


def _put(faulty: InThread[S3Faults], key: str, body: bytes) -> None:
    faulty.do(lambda: faulty.server.put(key, body))


def _running(mounted: Mounted) -> list[dict[str, object]]:
    found = mounted.status()["warm_ups"]
    assert isinstance(found, list)
    return found


@pytest.mark.store
def test_what_is_warm_is_read_without_the_store(mounter: Mounter, bucket: Bucket) -> None:
    mounted = mounter.mount(bucket.url("library"), env=bucket.env)
    size = sum(map(len, bucket.files.values()))
    status, reports, _ = _reports(mounted.point)
    assert status == 0
    last = reports[-1]
    assert (last["state"], last["files"], last["files_done"]) == ("done", len(bucket.files), len(bucket.files))
    assert last["size_bytes"] == last["fetched_bytes"] == size
    assert mounted.fetched()["direct_bytes"] == size

    requests = mounted.data_requests()
    for name, body in bucket.files.items():
        assert mounted.read(name) == body
    assert mounted.data_requests() == requests

    done = run("warm", mounted.point / "model", mounted.point / "twenty.bin")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("warm: 3 files, 23 MiB, of which 23 MiB was cached; 0 B fetched"), done.stdout
    assert mounted.data_requests() == requests


@pytest.mark.store
def test_through_the_proxy_a_file_is_one_task(mounter: Mounter, bucket: Bucket) -> None:
    body = bytes_of(5, 24 * MIB)
    bucket.put("warmed/weights.bin", body)
    with InThread(FakeDfdaemon()) as dfdaemon:
        mounted = mounter.mount(bucket.url("warmed"), "--proxy", dfdaemon.server.url, env=bucket.env)
        assert run("warm", mounted.point / "weights.bin").returncode == 0
        (request,) = dfdaemon.server.requests_for("mounted/warmed/weights.bin")
        assert "range" not in request.headers
        fetched = mounted.fetched()
        assert (fetched["proxy_bytes"], fetched["direct_bytes"]) == (len(body), 0), (
            "no reader waits, so no range is fetched directly"
        )
        assert mounted.read("weights.bin") == body


def test_a_file_that_fails_is_named_and_the_others_are_brought(mounter: Mounter, faulty: InThread[S3Faults]) -> None:
    for name in ("a", "b", "c"):
        _put(faulty, f"b/models/{name}.bin", bytes_of(1, MIB))
    faulty.do(lambda: faulty.server.script(faults.status(403), key="b/models/b.bin", forever=True))
    mounted = mounter.mount(faulty_url(faulty, "models"), "--anonymous", "--read-timeout", "1s")
    done = run("warm", mounted.point)
    assert done.returncode == 1
    assert f"{mounted.point}/b.bin: " in done.stderr
    assert "a.bin" not in done.stderr
    assert done.stdout.startswith("2 of 3 files")
    assert mounted.stat("c.bin")["cached_bytes"] == MIB


def test_more_than_the_cache_keeps_is_said_first(mounter: Mounter, faulty: InThread[S3Faults]) -> None:
    for number in range(6):
        _put(faulty, f"b/m/{number}", bytes_of(number, 4 * MIB))
    options = ("--anonymous", "--cache-size", "16MiB", "--cache-min-free", "0")
    mounted = mounter.mount(faulty_url(faulty, "m"), *options)
    done = run("warm", mounted.point)
    assert done.returncode == 1
    assert "24 MiB in 6 files is more than the cache keeps at once (13.6 MiB)" in done.stderr
    assert "left out" in done.stdout
    status = mounted.status()
    assert status["cache"]["evicted_files"] == 0
    assert mounted.stat("0")["cached_bytes"] == 4 * MIB
    assert status["cache"]["used_bytes"] <= 16 * MIB


def test_a_warm_up_that_is_interrupted_goes_on_later(mounter: Mounter, faulty: InThread[S3Faults]) -> None:
    for number in range(60):
        _put(faulty, f"b/m/{number:02}", b"x" * 1000)
    held = "b/m/20"
    faulty.do(lambda: faulty.server.script(faults.Hang(), key=held, forever=True))
    mounted = mounter.mount(faulty_url(faulty, "m"), "--anonymous", "--read-timeout", "16s")
    # If a shell runs the tests in the background, they ignore SIGINT, and children inherit that.
    command = ["env", "--default-signal=INT", *D7YFS, "warm", str(mounted.point)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        until(lambda: any(each["files_done"] == 59 for each in _running(mounted)), "all files but one")
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=20)
        assert process.returncode == 1
        assert "Traceback" not in said
    until(lambda: not _running(mounted), "the daemon to stop it")
    assert "stopped, 59 of 60 files" in mounted.log()

    faulty.do(lambda: faulty.server.script(faults.honest, key=held, forever=True))
    before = {number: len(faulty.server.data_requests(f"b/m/{number:02}")) for number in range(60)}
    assert run("warm", mounted.point).returncode == 0
    after = {number: len(faulty.server.data_requests(f"b/m/{number:02}")) for number in range(60)}
    assert {number for number in before if after[number] != before[number]} <= {20}


def test_in_the_background(mounter: Mounter, faulty: InThread[S3Faults]) -> None:
    _put(faulty, "b/m/large", bytes_of(1, 9 * MIB))
    faulty.do(lambda: faulty.server.script(faults.Hang(), key="b/m/large", forever=True))
    mounted = mounter.mount(faulty_url(faulty, "m"), "--anonymous")
    done = run("warm", "--background", mounted.point)
    assert done.returncode == 0
    assert "warming in the background: 1 file, 9 MiB" in done.stdout
    (running,) = _running(mounted)
    assert (running["state"], running["background"], running["files"]) == ("running", True, 1)
    assert "warm-up 1" in run("status", mounted.point).stdout


def test_what_cannot_be_warmed(mounter: Mounter, faulty: InThread[S3Faults], tmp_path: Path) -> None:
    _put(faulty, "b/m/one", b"1")
    mounted = mounter.mount(faulty_url(faulty, "m"), "--anonymous")
    done = run("warm", mounted.point / "absent")
    assert (done.returncode, done.stdout) == (1, "")
    assert "absent: no such file or directory" in done.stderr
    assert "Traceback" not in done.stderr
    done = run("warm", tmp_path)
    assert done.returncode == 1
    assert "is not in a d7yfs mount" in done.stderr


@pytest.mark.store
def test_over_dfdaemons_socket_files_are_linked(mounter: Mounter, bucket: Bucket, tmp_path: Path) -> None:
    body = bytes_of(6, 24 * MIB)
    bucket.put("linked/weights.bin", body)
    with FakeDfdaemonSocket(tmp_path / "d") as dfdaemon:
        mounted = mounter.mount(bucket.url("linked"), "--dfdaemon-socket", dfdaemon.url, "--xattr", env=bucket.env)
        done = run("warm", mounted.point)
        assert (done.returncode, done.stderr) == (0, ""), mounted.log()
        assert len(dfdaemon.orders) == 1
        (repository,) = mounted.status()["repositories"]
        assert repository["way"] == "socket"
        assert repository["traffic"]["back_to_source_bytes"] == len(body)
        assert repository["traffic"]["direct_bytes"] == 0
        described = mounted.stat("weights.bin")
        assert (described["route"], described["task_id"]) == ("socket", next(iter(dfdaemon.tasks)))
        assert described["cached_bytes"] == len(body)
        assert "24 MiB from the store by dfdaemon, 0 B direct" in run("status", mounted.point).stdout
    assert mounted.read("weights.bin") == body, "the file must survive dfdaemon's end"
    again = run("warm", mounted.point)
    assert again.returncode == 0
    assert "of which 24 MiB was cached; 0 B fetched" in again.stdout
