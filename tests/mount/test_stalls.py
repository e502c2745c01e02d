"""A cache disk that stalls, and locks that others hold: reads that need neither are served
meanwhile, and the rest go on uncached.

The cache lies on its own file system in a file, which the test freezes (fsfreeze(8)). The test, or
a watchdog process, always thaws it. No test measures time: an answer counts if it comes while the
disk is still frozen.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.mount.conftest import MIB, Bucket, bytes_of, faulty_url
from tests.mount.mounted import Mounted, Mounter, in_background, run, until, within
from tests.servers import faults
from tests.servers.in_thread import InThread
from tests.servers.s3_faults import S3Faults

pytestmark = [pytest.mark.mount, pytest.mark.store]

FAILSAFE_S = 90
SMALL = ("--cache-size", "200M", "--cache-min-free", "0")
ANSWER_S = 60.0
"""Seconds; less than the watchdog's patience, and far more than any operation here takes."""


class Freezer:
    """A file system that can be frozen."""

    def __init__(self, point: Path) -> None:
        self.point = point

    @contextlib.contextmanager
    def frozen(self) -> Iterator[None]:
        watchdog = subprocess.Popen(["sh", "-c", f"sleep {FAILSAFE_S}; fsfreeze --unfreeze '{self.point}'"])
        try:
            subprocess.run(["fsfreeze", "--freeze", self.point], check=True)
            try:
                yield
                assert watchdog.poll() is None, "the watchdog thawed the disk, so the test proves nothing"
            finally:
                subprocess.run(["fsfreeze", "--unfreeze", self.point], check=False)
        finally:
            watchdog.kill()
            watchdog.wait()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Freezer]:
    image, point = tmp_path / "disk.img", tmp_path / "disk"
    point.mkdir()
    with image.open("wb") as file:
        file.truncate(256 * MIB)
    subprocess.run(["mkfs.ext4", "-q", image], check=True)
    subprocess.run(["mount", "-o", "loop", image, point], check=True)
    try:
        yield Freezer(point)
    finally:
        subprocess.run(["umount", "--lazy", point], check=True)


@pytest.fixture
def mounted(mounter: Mounter, bucket: Bucket, disk: Freezer) -> Mounted:
    return mounter.mount(bucket.url("library"), *SMALL, env=bucket.env, cache_dir=disk.point / "cache")


def check_reads_without_the_disk(mounted: Mounted, known: bytes) -> None:
    """Check what the mount serves without its disk; `twenty.bin`, with the bytes `known`, was read
    before.
    """
    fetched = mounted.data_requests()
    assert run("status", mounted.point).returncode == 0
    assert "twenty.bin" in mounted.names()
    assert within(ANSWER_S, lambda: os.statvfs(mounted.point)).f_namemax == 255
    assert mounted.read("twenty.bin") == known, "the kernel's page cache must serve it"
    assert mounted.read_anew("twenty.bin", timeout_s=ANSWER_S) == known, "the daemon's cache must serve it"
    assert mounted.data_requests() == fetched


def test_a_frozen_disk_holds_up_nobody_for_long(mounted: Mounted, bucket: Bucket, disk: Freezer) -> None:
    known = mounted.read("twenty.bin")
    with (mounted.point / "over.bin").open("rb", buffering=0) as opened, disk.frozen():
        check_reads_without_the_disk(mounted, known)
        cold = in_background(lambda: mounted.read("model/1/weights.bin", timeout_s=ANSWER_S))
        open_before = in_background(opened.read)
        assert run("status", mounted.point).returncode == 0
        assert cold.result(ANSWER_S) == bucket.files["model/1/weights.bin"]
        assert open_before.result(ANSWER_S) == bucket.files["over.bin"]
        assert mounted.read("under.bin", timeout_s=ANSWER_S) == bucket.files["under.bin"]
        stalled = mounted.status()["cache"]
        assert stalled["disk_stalled_s"] > 0
        assert stalled["uncached_opens"] >= 2
        check_reads_without_the_disk(mounted, known)
    until(lambda: not mounted.status()["cache"]["disk_stalled_s"], "the disk to answer")
    until(lambda: mounted.status()["cache"]["open_versions"] == 0, "the end of all handles")
    # No handle is open any more, so the file is cached again.
    assert run("warm", mounted.point / "model").returncode == 0
    assert mounted.stat("model/1/weights.bin")["cached_bytes"] == 3 * MIB


def test_a_freeze_between_two_pieces_of_one_file(mounter: Mounter, faulty: InThread[S3Faults], disk: Freezer) -> None:
    body = bytes_of(7, 3 * MIB)
    faulty.do(faulty.server.put, "b/file", body)
    faulty.do(faulty.server.put, "b/other", b"other")
    mounted = mounter.mount(faulty_url(faulty), "--anonymous", *SMALL, cache_dir=disk.point / "cache")
    assert mounted.read("other") == b"other"
    stall = faults.Hang(after_body_bytes=MIB + 100_000)
    faulty.do(lambda: faulty.server.script(stall, key="b/file"))
    reader = in_background(lambda: mounted.read("file", timeout_s=ANSWER_S))
    faulty.wait(stall.reached)
    landed = len(b"other") + MIB + 100_000
    until(lambda: mounted.status()["cache"]["disk_bytes_written"] == landed, "the write of all received bytes")
    with disk.frozen():
        assert run("status", mounted.point).returncode == 0
        faulty.do(stall.resume.set)
        assert reader.result(ANSWER_S) == body
        assert run("status", mounted.point).returncode == 0
    assert mounted.read_anew("file") == body


def test_a_daemon_ends_while_its_disk_is_frozen(mounted: Mounted, disk: Freezer) -> None:
    mounted.read("one.bin")
    assert run("status", mounted.point).returncode == 0, "status takes longer than the last write counts as recent"
    with disk.frozen():
        opening = in_background(lambda: mounted.read("under.bin", timeout_s=ANSWER_S))
        opening.result(ANSWER_S)
        assert run("umount", mounted.point).returncode == 0
        mounted.wait_ended(timeout_s=ANSWER_S)


@contextlib.contextmanager
def locked(paths: list[Path]) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for path in paths:
            fcntl.flock(stack.enter_context(path.open("rb")), fcntl.LOCK_EX)
        yield


def test_locks_that_another_process_holds_hold_up_nobody_for_long(mounter: Mounter, bucket: Bucket) -> None:
    mounted = mounter.mount(bucket.url("library"), env=bucket.env)
    known = mounted.read("twenty.bin")
    mounted.read("under.bin")
    maps = [*mounted.cache_dir.rglob("*.map")]
    assert len(maps) == 2
    until(lambda: mounted.status()["cache"]["open_versions"] == 0, "the end of all handles")
    reading: list[Callable[[], bytes]] = [lambda: mounted.read_anew("under.bin", timeout_s=ANSWER_S)] * 4
    with locked(maps):
        readers = [in_background(each) for each in reading]
        assert mounted.read("block.bin") == bucket.files["block.bin"]
        assert run("status", mounted.point).returncode == 0
        for each in readers:
            assert each.result(ANSWER_S) == bucket.files["under.bin"]
        assert mounted.read_anew("twenty.bin", timeout_s=ANSWER_S) == known
        assert mounted.status()["cache"]["disk_stalled_s"] == 0, "readers must wait for the lock, not for the disk"
    before = mounted.data_requests()
    until(lambda: mounted.status()["cache"]["open_versions"] == 0, "the end of all handles")
    assert mounted.read_anew("under.bin") == bucket.files["under.bin"]
    assert mounted.data_requests() == before, "the file must still be cached"
