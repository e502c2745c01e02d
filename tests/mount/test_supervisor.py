"""The supervisor of a mount: workers die, hang, and are replaced, and readers notice nothing."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from d7yfs.errors import MountError
from d7yfs.host.handed_session import JOURNAL_NAME
from tests.mount.conftest import MIB, Bucket, faulty_url
from tests.mount.mounted import D7YFS, Mounted, Mounter, ended, in_background, is_mounted, run, until, within
from tests.servers import faults
from tests.servers.in_thread import InThread
from tests.servers.s3_faults import S3Faults

pytestmark = [pytest.mark.mount, pytest.mark.store]

_KILLS = 5
"""In each of four tests."""

_READER = """
import hashlib, mmap, os, sys
mode, root = sys.argv[1:]
big, digest, rounds = f"{root}/twenty.bin", None, 0
while not os.path.exists(root + ".stop"):
    if mode == "find":
        found = sorted(f"{at}/{name}:{os.stat(f'{at}/{name}').st_size}" for at, _, names in os.walk(root) for name in names)
        said = hashlib.sha256(repr(found).encode()).hexdigest()
    elif mode == "mmap":
        with open(big, "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as view:
            said = hashlib.sha256(view).hexdigest()
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    else:
        said = ""
        for name in ("twenty.bin",) if mode == "sha256" else ("twenty.bin", "over.bin", "one.bin", "model/config.pbtxt"):
            with open(f"{root}/{name}", "rb") as file:
                said += hashlib.sha256(file.read()).hexdigest()
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    assert digest in (None, said)
    digest, rounds = said, rounds + 1
print(rounds)
"""


@contextmanager
def reading(mounted: Mounted, mode: str) -> Iterator[None]:
    """A process that reads all the time; none of its calls may fail, and all answers must agree."""
    stop = Path(f"{mounted.point}.stop")
    reader = subprocess.Popen(
        [sys.executable, "-c", _READER, mode, str(mounted.point)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield
        assert reader.poll() is None, reader.communicate()
        stop.touch()
        out, error = reader.communicate(timeout=60)
        assert (reader.returncode, error) == (0, "")
        assert int(out) > 0
    finally:
        reader.kill()
        reader.communicate()
        stop.unlink(missing_ok=True)


def takeover(mounted: Mounted) -> dict[str, Any]:
    """The account of the supervisor; empty while no worker answers."""
    with suppress(MountError):
        return dict(mounted.status()["takeover"])
    return {}


def await_generation(mounted: Mounted, generation: int, *, standby: str = "", timeout_s: float = 30.0) -> None:
    """Wait until this worker serves, and the next one is in this state."""

    def there() -> bool:
        found = takeover(mounted)
        return found.get("generation") == generation and found["standby"].startswith(standby)

    until(there, f"generation {generation}, standby {standby}", timeout_s=timeout_s)


@pytest.mark.parametrize("mode", ["find", "cat", "sha256", "mmap"])
def test_readers_notice_no_kill(mounter: Mounter, bucket: Bucket, mode: str) -> None:
    mounted = mounter.mount(bucket.url("library"), "--metadata-ttl", "0", "--takeover", "standby", env=bucket.env)
    held = descriptors(mounted.pid)
    with reading(mounted, mode):
        for number in range(_KILLS):
            found = takeover(mounted)
            os.kill(found["worker_pid"], signal.SIGKILL)
            until(lambda found=found: takeover(mounted).get("generation", 0) > found["generation"], "the next worker")  # type: ignore[misc]
            await_generation(mounted, takeover(mounted)["generation"], standby="ready")
            assert takeover(mounted)["restarts"] == number + 1
    until(lambda: descriptors(mounted.pid) <= held + 1, "the supervisor to hold one more channel, the standby's")
    assert resident_bytes(mounted.pid) < 15 * MIB
    assert journal_bytes(mounted.pid) < MIB
    assert takeover(mounted)["last_reason"] == "it was killed by SIGKILL"
    assert mounted.pid == mounted.status()["pid"]
    assert "the worker before this one ended: it was killed by SIGKILL" in mounted.log()
    assert run("umount", mounted.point).returncode == 0
    mounted.wait_ended()
    assert "the supervisor has ended" not in mounted.log()


def test_the_supervisor_is_small_and_the_standby_waits(mounter: Mounter, bucket: Bucket) -> None:
    mounted = mounter.mount(bucket.url("library"), env=bucket.env)
    await_generation(mounted, 1, standby="ready")
    assert resident_bytes(mounted.pid) < 15 * MIB
    workers = children(mounted.pid)
    assert len(workers) == 2
    assert takeover(mounted)["worker_pid"] in workers
    mounted.kill(signal.SIGTERM)
    mounted.wait_ended()
    until(lambda: all(map(ended, workers)), "the end of the workers")
    assert not is_mounted(mounted.point)


def test_without_a_standby_a_worker_is_started_at_need(mounter: Mounter, bucket: Bucket) -> None:
    mounted = mounter.mount(bucket.url("library"), "--takeover", "cold", env=bucket.env)
    assert takeover(mounted)["standby"] == "off"
    with reading(mounted, "cat"):
        os.kill(takeover(mounted)["worker_pid"], signal.SIGKILL)
        await_generation(mounted, 2)


def test_a_worker_that_hangs_is_replaced(mounter: Mounter, bucket: Bucket) -> None:
    mounted = mounter.impatient(bucket.url("library"), env=bucket.env, silence_s=2.0)
    hung = takeover(mounted)["worker_pid"]
    os.kill(hung, signal.SIGSTOP)
    assert mounted.read("over.bin") == bucket.files["over.bin"]
    await_generation(mounted, 2)
    assert takeover(mounted)["last_reason"] == "it gave no sign of life for 2 s"
    until(lambda: ended(hung), "the end of the worker that hung")


def test_a_worker_that_cannot_start_is_tried_again_less_and_less_often(
    mounter: Mounter, bucket: Bucket, tmp_path: Path
) -> None:
    point, config = mounter.point(), tmp_path / "c.toml"
    text = f'source = "{bucket.url("library")}"\nmetrics_listen = "none"\ntakeover = "cold"\n'
    config.write_text(text)
    mounted = mounter.mount("--config", str(config), env=bucket.env, point=point)
    config.write_text("cash_size = 1\n")
    refused = run("upgrade", point)
    assert refused.returncode == 1
    assert "cash_size" in refused.stderr
    assert takeover(mounted)["generation"] == 1, "the worker goes on"
    os.kill(takeover(mounted)["worker_pid"], signal.SIGKILL)
    reader = in_background(lambda: mounted.read("one.bin", timeout_s=90))
    workers: set[int] = set()

    def several_were_tried() -> bool:
        workers.update(children(mounted.pid))
        return len(workers) >= 6

    until(several_were_tried, "six attempts", timeout_s=60)
    assert not reader.done()
    config.write_text(text)
    assert reader.result(60) == bucket.files["one.bin"]
    found = takeover(mounted)
    assert found["restarts"] >= 5
    assert "cash_size" in found["last_reason"]


def test_an_upgrade_under_load(mounter: Mounter, bucket: Bucket) -> None:
    mounted = mounter.mount(bucket.url("library"), "--metadata-ttl", "0", env=bucket.env)
    before = takeover(mounted)
    with reading(mounted, "cat"):
        done = run("upgrade", mounted.point)
        assert (done.returncode, done.stderr) == (0, "")
        assert str(mounted.point) in done.stdout
    after = takeover(mounted)
    assert after["upgrades"] == 1
    assert (after["restarts"], after["last_reason"]) == (0, "upgrade")
    assert after["worker_pid"] != before["worker_pid"]
    until(lambda: ended(before["worker_pid"]), "the end of the old worker")
    off = mounter.mount(bucket.url("library"), "--takeover", "off", env=bucket.env)
    assert takeover(off)["off"] == "--takeover off"
    assert "--takeover off" in run("upgrade", off.point).stderr


def test_a_killed_supervisor_is_a_dead_mount(mounter: Mounter, bucket: Bucket) -> None:
    mounted = mounter.mount(bucket.url("library"), env=bucket.env)
    await_generation(mounted, 1, standby="ready")
    workers = children(mounted.pid)
    mounted.kill(signal.SIGKILL)
    until(lambda: all(map(ended, workers)), "the end of the workers")
    with pytest.raises(OSError) as caught:  # noqa: PT011  # the test checks the errno
        within(20, lambda: os.statvfs(mounted.point))
    assert caught.value.errno in (errno.ENOTCONN, errno.ECONNABORTED)
    again = mounter.mount(bucket.url("library"), env=bucket.env, point=mounted.point)
    assert again.read("one.bin") == bucket.files["one.bin"]


def test_settings_for_another_mount_are_refused(mounter: Mounter, bucket: Bucket, tmp_path: Path) -> None:
    point, config = mounter.point(), tmp_path / "c.toml"
    config.write_text(f'source = "{bucket.url("library")}"\nmetrics_listen = "none"\n')
    mounted = mounter.mount("--config", str(config), env=bucket.env, point=point)
    config.write_text(f'source = "{bucket.url("library/model")}"\nmetrics_listen = "none"\n')
    refused = run("upgrade", point)
    assert "the settings are for a mount of" in refused.stderr
    assert mounted.read("one.bin") == bucket.files["one.bin"]


def test_a_hangup_of_the_terminal_or_ctrl_c_reaches_the_supervisor_alone(mounter: Mounter, bucket: Bucket) -> None:
    mounted = mounter.foreground(bucket.url("library"), env=bucket.env)
    assert os.getpgid(mounted.worker_pid) != os.getpgid(mounted.pid)
    assert f"MAINPID={mounted.pid}" in mounted.said


def test_a_worker_that_is_killed_before_the_mount_answers_is_a_failed_mount(
    mounter: Mounter, faulty: InThread[S3Faults], tmp_path: Path
) -> None:
    silence, point = faults.Hang(), mounter.point()
    faulty.do(lambda: faulty.server.script(silence, key="b"))
    process = subprocess.Popen(
        [*D7YFS, "mount", "--foreground", faulty_url(faulty), "--anonymous", "--cache-dir", tmp_path / "cache", point],
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        faulty.wait(silence.reached)
        (worker,) = children(process.pid)
        os.kill(worker, signal.SIGKILL)
        _, error = process.communicate(timeout=20)
    finally:
        process.kill()
    assert process.returncode == 1
    assert f"{point} cannot be served: it was killed by SIGKILL" in error
    assert not is_mounted(point)


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


def descriptors(pid: int) -> int:
    """The number of descriptors that a process has open."""
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def journal_bytes(pid: int) -> int:
    """The memory that the journal of a supervisor takes."""
    (journal,) = (each for each in Path(f"/proc/{pid}/fd").iterdir() if JOURNAL_NAME in str(each.readlink()))
    return journal.stat().st_blocks * 512


def children(pid: int) -> list[int]:
    with suppress(OSError):
        return list(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))
    return []
