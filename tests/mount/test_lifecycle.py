"""The beginning and end of a mount: readiness, signals, every form of unmounting, a killed daemon,
fstab.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import os
import shutil
import signal
import subprocess
import sysconfig
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from d7yfs.control import control_socket
from d7yfs.objects import PART_BYTES
from tests.mount.conftest import MIB, Bucket, both_engines, bytes_of, faulty_url
from tests.mount.mounted import Mounted, Mounter, Notified, ended, in_background, is_mounted, run, until, within
from tests.servers import faults
from tests.servers.http11 import Answer, Exchange
from tests.servers.in_thread import InThread
from tests.servers.s3_faults import S3Faults

pytestmark = [pytest.mark.mount, pytest.mark.store, both_engines]

_PIDFD_GETFD = 438
"""The number of pidfd_getfd(2), which `os` does not offer."""


def _open(mounted: Mounted, name: str) -> int:
    return within(20, lambda: os.open(mounted.point / name, os.O_RDONLY))


# --- beginning ---


def test_mount_returns_when_the_mount_answers(mounter: Mounter, bucket: Bucket) -> None:
    mounted = mounter.mount(bucket.url("library"), env=bucket.env)
    url = f"s3://http://127.0.0.1:{bucket.server.port}/mounted/library"
    assert mounted.said == f"{url} mounted on {mounted.point}, for uid 0 alone (see --allow-other)\n"
    assert Path(f"/proc/{mounted.pid}/cwd").readlink() == Path("/"), "the daemon must not keep another mount busy"
    terminal = {Path(f"/proc/{mounted.pid}/fd/{fd}").readlink() for fd in (0, 1)}
    assert terminal == {Path(os.devnull)}
    assert os.getsid(mounted.pid) != os.getsid(0)


def test_what_the_first_bytes_need_is_loaded_before_they_are_wanted(mounter: Mounter, bucket: Bucket) -> None:
    mounted = mounter.mount(bucket.url("library"), env=bucket.env)
    maps = Path(f"/proc/{mounted.worker_pid}/maps")
    until(lambda: "_awscrt" in maps.read_text(), "the library for checksums")
    assert mounted.status()["fuse"]["calls"].get("read", 0) == 0


def test_systemd_hears_of_it_when_the_mount_answers_and_not_before(
    mounter: Mounter, faulty: InThread[S3Faults]
) -> None:
    faulty.do(faulty.server.put, "b/file", b"bytes")
    silence = faults.Hang()
    faulty.do(lambda: faulty.server.script(silence, key="b"))
    points: list[Path] = []

    def meanwhile(notified: Notified) -> None:
        faulty.wait(silence.reached)
        points.append(notified.path.with_suffix(""))
        assert not is_mounted(points[0])
        assert notified.is_silent()
        faulty.do(silence.resume.set)

    mounted = mounter.foreground(faulty_url(faulty), "--anonymous", on_start=meanwhile)
    assert points == [mounted.point]
    told = dict(line.split("=", 1) for line in mounted.said.splitlines())
    assert told["READY"] == "1"
    assert told["MAINPID"] == str(mounted.pid)
    assert str(mounted.point) in told["STATUS"]
    assert mounted.read("file", timeout_s=5) == b"bytes"


def test_a_mount_from_a_toml_file_alone(mounter: Mounter, bucket: Bucket, tmp_path: Path) -> None:
    point, log = mounter.point(), tmp_path / "toml.log"
    config = tmp_path / "config.toml"
    config.write_text(
        f'mountpoint = "{point}"\ncache_dir = "{tmp_path}/cache"\nlog_file = "{log}"\nlog_format = "json"\n'
        f'log_level = "debug"\n[repositories.models]\nurl = "{bucket.url("library")}"\n'
    )
    done = run("mount", "--config", config, env=bucket.env)
    assert done.returncode == 0, done.stderr
    pid = int(control_socket.ask(control_socket.socket_path(point), "status")["pid"])
    mounted = Mounted(point, tmp_path / "cache", log, pid)
    assert mounted.read("models/one.bin") == bucket.files["one.bin"]
    assert mounted.status()["settings"]["cache_dir"]["from"].startswith(str(config))
    assert run("umount", point).returncode == 0
    mounted.wait_ended()
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert all({"time", "level", "logger", "message"} <= line.keys() for line in lines)
    assert any(f"is mounted on {point}" in line["message"] for line in lines)


@pytest.fixture
def helper() -> Iterator[None]:
    """The link to `mount.d7yfs` in /sbin, the only directory in which mount(8) searches its
    helpers.
    """
    link = Path("/sbin/mount.d7yfs")
    if link.exists():
        yield
        return
    link.symlink_to(Path(sysconfig.get_path("scripts")) / "mount.d7yfs")
    try:
        yield
    finally:
        link.unlink()


@pytest.mark.usefixtures("helper")
def test_mount_by_mount_8_as_fstab_does(mounter: Mounter, bucket: Bucket, tmp_path: Path) -> None:
    point, log = mounter.point(), tmp_path / "fstab.log"
    options = f"ro,allow_other,user,nofail,_netdev,metadata_ttl=5m,cache_dir={tmp_path}/cache,log_file={log}"
    done = subprocess.run(
        ["mount", "-t", "d7yfs", bucket.url("library"), point, "-o", options],
        env=os.environ | bucket.env,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    mounted = Mounted(
        point, tmp_path / "cache", log, int(control_socket.ask(control_socket.socket_path(point), "status")["pid"])
    )
    assert mounted.read("model/config.pbtxt") == bucket.files["model/config.pbtxt"]
    assert mounted.status()["settings"]["metadata_ttl"]["value"] == "300s"
    flags = next(
        line.split()[5] for line in Path("/proc/self/mountinfo").read_text().splitlines() if f" {point} " in line
    )
    assert {"ro", "nosuid", "nodev", "noexec"} <= set(flags.split(",")), "what the option user implies"
    subprocess.run(["umount", point], check=True, timeout=20)
    mounted.wait_ended()

    refused = subprocess.run(
        ["mount", "-t", "d7yfs", bucket.url("library"), point, "-o", "cash_size=1"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert refused.returncode != 0
    assert "cash_size" in refused.stderr


# --- ending ---


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_with_nothing_open_is_a_clean_end(mounter: Mounter, bucket: Bucket, number: signal.Signals) -> None:
    mounted = mounter.foreground(bucket.url("library"), env=bucket.env)
    assert mounted.read("one.bin") == bucket.files["one.bin"]
    assert mounted.process is not None
    mounted.kill(number)
    assert mounted.process.wait(20) == 0
    assert not is_mounted(mounted.point)
    assert not control_socket.socket_path(mounted.point).exists()
    assert "is unmounted" in mounted.log()
    assert "lazily" not in mounted.log()


def test_a_signal_with_a_file_open_unmounts_lazily_after_the_timeout(mounter: Mounter, bucket: Bucket) -> None:
    mounted = mounter.foreground(bucket.url("library"), "--shutdown-timeout", "1s", env=bucket.env)
    assert mounted.process is not None
    fd = _open(mounted, "twenty.bin")
    try:
        started = time.monotonic()
        mounted.kill(signal.SIGTERM)
        assert mounted.process.wait(20) == 0
        assert 0.9 < time.monotonic() - started < 10
        assert not is_mounted(mounted.point)
        assert "unmounted lazily" in mounted.log()
        assert "1 open files" in mounted.log()
        with pytest.raises(OSError) as caught:  # noqa: PT011  # the test checks the errno
            within(20, lambda: os.pread(fd, 1, 0))
        assert caught.value.errno in (errno.ENOTCONN, errno.ECONNABORTED)
    finally:
        with contextlib.suppress(OSError):  # close(2) tells the file system too.
            os.close(fd)


def test_a_signal_waits_for_a_reader_to_finish(mounter: Mounter, bucket: Bucket) -> None:
    mounted = mounter.foreground(bucket.url("library"), "--shutdown-timeout", "30s", env=bucket.env)
    assert mounted.process is not None
    fd = _open(mounted, "twenty.bin")
    mounted.kill(signal.SIGTERM)
    until(lambda: "unmounting" in mounted.log(), "the signal in the log")
    try:
        assert within(20, lambda: os.pread(fd, 4096, 10 * MIB)) == bucket.files["twenty.bin"][10 * MIB :][:4096]
    finally:
        os.close(fd)
    assert mounted.process.wait(20) == 0
    assert "lazily" not in mounted.log()


def test_a_signal_answers_readers_who_wait_for_the_store(mounter: Mounter, faulty: InThread[S3Faults]) -> None:
    faulty.do(faulty.server.put, "b/file", bytes_of(1, MIB))
    mounted = mounter.foreground(faulty_url(faulty), "--anonymous", "--shutdown-timeout", "1s")
    assert mounted.process is not None
    stall = faults.Hang()
    faulty.do(lambda: faulty.server.script(stall, key="b/file", forever=True))
    reader = in_background(lambda: mounted.read("file", timeout_s=60))
    faulty.wait(stall.reached)
    mounted.kill(signal.SIGTERM)
    assert mounted.process.wait(20) == 0
    with pytest.raises(OSError):  # noqa: PT011  # the error depends on the order of events
        reader.result(20)


def test_plain_umount_ends_the_daemon(mounter: Mounter, bucket: Bucket) -> None:
    mounted = mounter.mount(bucket.url("library"), env=bucket.env)
    subprocess.run(["umount", mounted.point], check=True, timeout=20)
    mounted.wait_ended()
    assert not control_socket.socket_path(mounted.point).exists()


def test_d7yfs_umount_ends_the_daemon_and_says_when_it_cannot(mounter: Mounter, bucket: Bucket) -> None:
    mounted = mounter.mount(bucket.url("library"), env=bucket.env)
    fd = _open(mounted, "one.bin")
    try:
        busy = run("umount", mounted.point)
        assert busy.returncode == 1
        assert f"{mounted.point} is in use" in busy.stderr
        assert "--lazy" in busy.stderr
        assert mounted.read("one.bin") == bucket.files["one.bin"], "the mount must be unchanged"
    finally:
        os.close(fd)
    done = run("umount", mounted.point)
    assert (done.returncode, done.stderr) == (0, "")
    mounted.wait_ended(timeout_s=1)

    again = run("umount", mounted.point)
    assert again.returncode == 1
    assert "is not a d7yfs mount" in again.stderr


def test_d7yfs_umount_lazily(mounter: Mounter, bucket: Bucket) -> None:
    mounted = mounter.mount(bucket.url("library"), env=bucket.env)
    fd = _open(mounted, "over.bin")
    try:
        assert run("umount", "--lazy", mounted.point).returncode == 0
        assert not is_mounted(mounted.point)
        assert within(20, lambda: os.pread(fd, 16, 0)) == bucket.files["over.bin"][:16], "an open handle keeps its file"
    finally:
        os.close(fd)
    mounted.wait_ended()


# --- a killed daemon ---


def test_killed_in_the_middle_of_reading_and_mounted_again(mounter: Mounter, faulty: InThread[S3Faults]) -> None:
    body = bytes_of(2, 3 * PART_BYTES)
    faulty.do(faulty.server.put, "b/file", body)
    mounted = mounter.mount(faulty_url(faulty), "--anonymous")
    assert mounted.pread("file", 0, 4096) == body[:4096]
    until(lambda: mounted.stat("file")["cached_bytes"] == 2 * MIB, "the bytes of the first read in the cache")

    stall = faults.Hang(after_body_bytes=MIB // 2 + 17)
    faulty.do(lambda: faulty.server.script(stall, key="b/file", forever=True))
    reader = in_background(lambda: mounted.pread("file", 2 * PART_BYTES - 4096, 4096, timeout_s=60))
    faulty.wait(stall.reached)
    mounted.kill(signal.SIGKILL)
    mounted.wait_ended()
    with pytest.raises(OSError):  # noqa: PT011  # the error depends on the progress
        reader.result(20)
    with pytest.raises(OSError) as caught:  # noqa: PT011
        within(20, lambda: os.statvfs(mounted.point))
    assert caught.value.errno == errno.ENOTCONN
    assert within(20, mounted.point.stat), "the kernel answers from its cache: this is no sign of life"

    faulty.do(lambda: faulty.server.script(key="b/file"))
    again = mounter.mount(faulty_url(faulty), "--anonymous", point=mounted.point, cache_dir=mounted.cache_dir)
    assert "was a dead mount; cleaned up" in again.said
    assert again.pid != mounted.pid
    assert again.stat("file")["cached_bytes"] == 2 * MIB, "the cache keeps all bytes except half a block"
    assert again.read("file") == body
    assert again.fetched()["direct_bytes"] == len(body) - 2 * MIB, "cached bytes must not be fetched again"


def test_a_killed_daemon_whose_connection_lives_on_is_cleaned_up_too(mounter: Mounter, bucket: Bucket) -> None:
    """A killed daemon with a thread stuck in the kernel: here another process holds its /dev/fuse."""
    first = mounter.mount(bucket.url("library"), env=bucket.env)
    (device,) = (int(link.name) for link in Path(f"/proc/{first.pid}/fd").iterdir() if _names_fuse(link))
    process = os.pidfd_open(first.pid)
    held = ctypes.CDLL(None, use_errno=True).syscall(_PIDFD_GETFD, process, device, 0)
    assert held >= 0, os.strerror(ctypes.get_errno())
    try:
        first.kill(signal.SIGKILL)
        first.wait_ended()
        again = mounter.mount(bucket.url("library"), env=bucket.env, point=first.point)
    finally:
        os.close(held)
        os.close(process)
    assert "was a dead mount; cleaned up" in again.said
    assert again.read("over.bin") == bucket.files["over.bin"]


def _names_fuse(link: Path) -> bool:
    with contextlib.suppress(FileNotFoundError):
        return str(link.readlink()) == "/dev/fuse"
    return False


def test_what_a_killed_daemon_left_is_not_trusted_blindly(mounter: Mounter, bucket: Bucket) -> None:
    first = mounter.mount(bucket.url("library"), env=bucket.env)
    assert first.read("twenty.bin") == bucket.files["twenty.bin"]
    first.kill(signal.SIGKILL)
    first.wait_ended()
    (data,) = (path for path in first.cache_dir.rglob("*.data") if path.stat().st_size == 20 * MIB)
    data.write_bytes(b"\0" * MIB)  # A shorter file, as after a crash of the host.
    again = mounter.mount(bucket.url("library"), env=bucket.env, cache_dir=first.cache_dir)
    assert again.read("twenty.bin") == bucket.files["twenty.bin"]


def test_a_block_that_another_boot_left_spoilt_is_fetched_again(mounter: Mounter, bucket: Bucket) -> None:
    first = mounter.mount(bucket.url("library"), env=bucket.env)
    assert first.read("twenty.bin") == bucket.files["twenty.bin"]
    first.kill(signal.SIGTERM)
    first.wait_ended()
    (data,) = (path for path in first.cache_dir.rglob("*.data") if path.stat().st_size == 20 * MIB)
    with data.open("r+b") as file:
        file.seek(5 * MIB + 100)
        file.write(b"spoilt")
    _age_by_a_boot(data.with_suffix(".map"), blocks=20)
    again = mounter.mount(bucket.url("library"), env=bucket.env, cache_dir=first.cache_dir)
    assert again.read("twenty.bin") == bucket.files["twenty.bin"]
    assert again.status()["cache"]["corrupt_blocks"] == 1
    assert again.fetched()["direct_bytes"] == MIB
    assert "does not match its checksum" in again.log()


def _age_by_a_boot(map_path: Path, *, blocks: int) -> None:
    """Change the boot tag in each entry of a map; it is the entry's lower half."""
    with map_path.open("r+b") as file:
        file.seek(4096)
        entries = bytearray(file.read(8 * blocks))
        assert len(entries) == 8 * blocks
        for start in range(0, len(entries), 8):
            assert any(entries[start : start + 4]), "the block must be present"
            entries[start] ^= 2  # Little endian; the tag's lowest bit is always set.
        file.seek(4096)
        file.write(entries)


def test_d7yfs_umount_of_a_dead_mount_cleans_up(mounter: Mounter, bucket: Bucket) -> None:
    mounted = mounter.mount(bucket.url("library"), env=bucket.env)
    mounted.kill(signal.SIGKILL)
    mounted.wait_ended()
    assert is_mounted(mounted.point)
    status = run("status")
    assert status.returncode == 1
    assert str(mounted.point) in status.stderr
    assert run("umount", mounted.point).returncode == 0
    assert not is_mounted(mounted.point)


def test_two_daemons_share_a_cache(mounter: Mounter, bucket: Bucket) -> None:
    first = mounter.mount(bucket.url("library"), env=bucket.env)
    second = mounter.mount(bucket.url("library"), env=bucket.env, cache_dir=first.cache_dir)
    assert first.read("twenty.bin") == bucket.files["twenty.bin"]
    assert second.read("twenty.bin") == bucket.files["twenty.bin"]
    assert second.data_requests() == 0


def test_d7yfs_is_where_the_service_looks_for_it() -> None:
    assert shutil.which("d7yfs", path=sysconfig.get_path("scripts"))
    assert shutil.which("mount.d7yfs", path=sysconfig.get_path("scripts"))


def test_d7yfs_umount_by_force_frees_waiting_readers(mounter: Mounter, faulty: InThread[S3Faults]) -> None:
    faulty.do(faulty.server.put, "b/file", bytes_of(1, MIB))
    mounted = mounter.mount(faulty_url(faulty), "--anonymous")
    stall = faults.Hang()
    faulty.do(lambda: faulty.server.script(stall, key="b/file", forever=True))
    reader = in_background(lambda: mounted.read("file", timeout_s=60))
    faulty.wait(stall.reached)
    assert run("umount", mounted.point).returncode == 1, "the mount is in use"
    done = run("umount", "--force", mounted.point)
    assert (done.returncode, done.stderr) == (0, "")
    assert not is_mounted(mounted.point)
    with pytest.raises(OSError):  # noqa: PT011  # the error depends on the order of events
        reader.result(20)
    mounted.wait_ended()


def test_d7yfs_umount_by_force_of_a_daemon_that_stands_still(mounter: Mounter, bucket: Bucket) -> None:
    mounted = mounter.mount(bucket.url("library"), env=bucket.env)
    worker = mounted.worker_pid
    os.kill(worker, signal.SIGSTOP)
    try:
        reader = in_background(lambda: mounted.read("one.bin", timeout_s=60))
        assert run("umount", "--force", mounted.point).returncode == 0
        assert not is_mounted(mounted.point)
        with pytest.raises(OSError):  # noqa: PT011  # the error depends on the order of events
            reader.result(20)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(worker, signal.SIGCONT)
    mounted.wait_ended()


@pytest.mark.parametrize("asked", ["file", "listing"])
def test_d7yfs_umount_by_force_of_a_mount_whose_store_reads_from_it(
    mounter: Mounter, faulty: InThread[S3Faults], asked: str
) -> None:
    """A deadlock: the daemon waits for its store, and the store for the daemon."""
    faulty.do(faulty.server.put, "b/file", bytes_of(1, 3 * MIB))
    mounted = mounter.mount(faulty_url(faulty), "--anonymous", "--metadata-ttl", "0")
    reading = trio.Event()

    async def read_from_the_mount(exchange: Exchange, answer: Answer) -> None:
        reading.set()
        with contextlib.suppress(OSError):
            await trio.to_thread.run_sync(lambda: (mounted.point / "file").read_bytes())
        await exchange.deliver(answer)

    faulty.do(lambda: faulty.server.script(read_from_the_mount, key="b/file" if asked == "file" else "b", forever=True))
    reader = in_background(lambda: mounted.read("file", timeout_s=60))
    faulty.wait(reading)
    done = run("umount", "--force", mounted.point)
    assert (done.returncode, done.stderr) == (0, "")
    assert ended(mounted.pid)
    with pytest.raises(OSError):  # noqa: PT011  # the error depends on the order of events
        reader.result(20)
