"""Files that the kernel reads by itself from the cache: the same bytes by every way of reading, the
same permissions, and no read that comes to the daemon.

It needs the passthrough of Linux 6.9 and root. `fuse/test_passthrough.py` has the decisions.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import mmap
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from d7yfs.host import fuse_device
from d7yfs.host.fuse_device import MountFlags
from tests.mount import passthrough
from tests.mount.conftest import MIB, bytes_of, faulty_url
from tests.mount.mounted import D7YFS, READ_TIMEOUT_S, Mounted, Mounter, in_background, run, until, within
from tests.mount.passthrough import (
    BODY,
    SMALL,
    fill,
    opened,
    pread,
    told,
)
from tests.mount.uring import read_by_io_uring
from tests.servers.in_thread import InThread
from tests.servers.s3_faults import S3Faults

pytestmark = [pytest.mark.mount]

kernel_reads_by_itself, mounted, store = passthrough.kernel_reads_by_itself, passthrough.mounted, passthrough.store


# --- ways of reading ---


def _by_mmap(fd: int) -> bytes:
    with mmap.mmap(fd, 0, prot=mmap.PROT_READ) as mapped:
        return mapped[:]


def _by_sendfile(fd: int) -> bytes:
    sink = os.memfd_create("sink")
    try:
        sent = 0
        while count := os.sendfile(sink, fd, sent, MIB):
            sent += count
        return os.pread(sink, sent, 0)
    finally:
        os.close(sink)


def _by_splice(fd: int) -> bytes:
    reader, writer = os.pipe()
    try:
        found = b""
        while count := os.splice(fd, writer, 1 << 16, offset_src=len(found)):
            found += os.read(reader, count)
        return found
    finally:
        os.close(reader)
        os.close(writer)


def _by_preadv2(fd: int) -> bytes:
    into = bytearray(len(BODY) + 1)
    return bytes(into[: os.preadv(fd, [memoryview(into)[:100], memoryview(into)[100:]], 0, 0)])


def _by_preadv2_without_waiting(fd: int) -> bytes:
    into = bytearray(len(BODY))
    with contextlib.suppress(OSError):  # a file system may refuse it
        return bytes(into[: os.preadv(fd, [into], 0, os.RWF_NOWAIT)])
    return os.pread(fd, len(BODY), 0)


def _by_copy_file_range(fd: int) -> bytes:
    sink = os.memfd_create("sink")
    try:
        with pytest.raises(OSError, match="cross-device link"):
            os.copy_file_range(fd, sink, 100, 0, 0)
        return _by_sendfile(fd)  # as shutil and cp do then
    finally:
        os.close(sink)


def _by_cat(fd: int) -> bytes:
    return subprocess.run(["cat"], stdin=fd, capture_output=True, check=True, timeout=READ_TIMEOUT_S).stdout


def _at_random(fd: int) -> bytes:
    choose, found = random.Random(3), bytearray(BODY)
    for _ in range(300):
        size_bytes = choose.choice([1, 4095, 4096, 70_000])
        offset = choose.randrange(len(BODY) + 4096)
        data = os.pread(fd, size_bytes, offset)
        assert data == BODY[offset : offset + size_bytes]
    return bytes(found)


def _by_io_uring(fd: int) -> bytes:
    return read_by_io_uring(fd, size_bytes=len(BODY))


@pytest.mark.parametrize(
    "read",
    [
        lambda fd: os.read(fd, len(BODY) + 1),
        _by_mmap,
        _by_sendfile,
        _by_splice,
        _by_preadv2,
        _by_preadv2_without_waiting,
        _by_copy_file_range,
        _by_cat,
        _at_random,
        _by_io_uring,
    ],
    ids=["read", "mmap", "sendfile", "splice", "preadv2", "RWF_NOWAIT", "copy_file_range", "cat", "pread", "io_uring"],
)
def test_every_way_of_reading_has_the_bytes_and_asks_nobody(mounted: Mounted, read: Callable[[int], bytes]) -> None:
    opens, reads = told(mounted)
    with opened(mounted) as fd:
        assert within(READ_TIMEOUT_S, lambda: read(fd)) == BODY
        assert told(mounted) == (opens + 1, reads)


def test_direct_reads_are_as_those_of_a_local_file(mounted: Mounted) -> None:
    opens, reads = told(mounted)
    with opened(mounted, flags=os.O_DIRECT) as fd, mmap.mmap(-1, 4 * MIB) as aligned:
        count = within(READ_TIMEOUT_S, lambda: os.preadv(fd, [aligned], 0))
        assert aligned[:count] == BODY
        count = within(READ_TIMEOUT_S, lambda: os.preadv(fd, [memoryview(aligned)[:4096]], 3 * MIB))
        assert aligned[:count] == BODY[-17:]
    assert told(mounted) == (opens + 1, reads)


def test_an_empty_file_and_one_of_a_byte(mounter: Mounter, store: InThread[S3Faults]) -> None:
    for name, body in (("empty", b""), ("one", b"1")):
        store.do(store.server.put, f"b/{name}", body)
    mounted = mounter.mount(faulty_url(store), "--anonymous")
    for _ in range(3):
        assert (mounted.read("empty"), mounted.read("one")) == (b"", b"1")


def test_a_program_runs_from_the_mount(mounter: Mounter, store: InThread[S3Faults]) -> None:
    """exec(2) reads by the kernel's own maps."""
    store.do(store.server.put, "b/true", Path("/bin/true").resolve().read_bytes())
    mounted = mounter.mount(faulty_url(store), "--anonymous", "--file-mode", "0555")
    for _ in range(2):
        assert subprocess.run([mounted.point / "true"], timeout=READ_TIMEOUT_S).returncode == 0
    assert told(mounted)[0] >= 1


def test_attributes_are_those_of_the_mount(mounter: Mounter, store: InThread[S3Faults]) -> None:
    mounted = mounter.mount(faulty_url(store), "--anonymous", "--file-mode", "0400", "--uid", "1234")
    before = within(READ_TIMEOUT_S, (mounted.point / "file").stat)
    fill(mounted)
    with opened(mounted) as fd:
        assert pread(fd) == BODY
        assert pread(fd, 10, len(BODY)) == b""
        after = within(READ_TIMEOUT_S, lambda: os.fstat(fd))
        end = within(READ_TIMEOUT_S, lambda: os.lseek(fd, 0, os.SEEK_END))
    assert end == len(BODY)
    for name in (
        "st_ino",
        "st_dev",
        "st_size",
        "st_mode",
        "st_uid",
        "st_gid",
        "st_nlink",
        "st_mtime_ns",
        "st_ctime_ns",
    ):
        assert getattr(after, name) == getattr(before, name), name
    assert (after.st_mode & 0o777, after.st_uid) == (0o400, 1234)
    assert told(mounted)[0] == 1


@pytest.mark.parametrize("flags", [os.O_WRONLY, os.O_RDWR, os.O_RDONLY | os.O_TRUNC])
def test_nobody_writes_to_the_cache(mounted: Mounted, flags: int) -> None:
    with opened(mounted), pytest.raises(OSError, match="Read-only"):
        within(READ_TIMEOUT_S, lambda: os.open(mounted.point / "file", flags))
    with opened(mounted) as fd, pytest.raises(PermissionError):
        mmap.mmap(fd, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    with opened(mounted) as fd, pytest.raises(OSError, match="Invalid argument"):
        os.ftruncate(fd, 0)
    assert mounted.read("file") == BODY


def test_a_daemon_that_hangs_holds_up_no_reader(mounted: Mounted) -> None:
    with opened(mounted) as fd:
        mounted.kill(signal.SIGSTOP)
        try:
            assert pread(fd) == BODY
            assert within(READ_TIMEOUT_S, lambda: _by_mmap(fd)) == BODY
        finally:
            mounted.kill(signal.SIGCONT)


def test_a_daemon_that_was_killed_leaves_open_files_readable(mounted: Mounted) -> None:
    with opened(mounted) as fd:
        mounted.kill(signal.SIGKILL)
        mounted.wait_ended()
        try:
            assert pread(fd) == BODY
        except OSError as error:
            assert error.errno == errno.ENOTCONN  # noqa: PT017  # both are right, other bytes are not


# --- from one mode to the other ---


def test_a_file_that_becomes_whole_while_it_is_open(mounter: Mounter, store: InThread[S3Faults]) -> None:
    """Later readers need no daemon; handles and maps from before go on."""
    mounted = mounter.mount(faulty_url(store), "--anonymous")
    with opened(mounted) as fd, mmap.mmap(fd, 0, prot=mmap.PROT_READ) as mapped:
        assert pread(fd, 100) == BODY[:100]
        before = within(READ_TIMEOUT_S, lambda: os.fstat(fd))
        assert run("warm", mounted.point / "file").returncode == 0
        changed_over(mounted)
        opens, reads = told(mounted)
        with opened(mounted) as second, mmap.mmap(second, 0, prot=mmap.PROT_READ) as other:
            assert pread(second) == BODY
            assert within(READ_TIMEOUT_S, lambda: other[:]) == BODY
            assert told(mounted) == (opens + 1, reads)
            after = within(READ_TIMEOUT_S, lambda: os.fstat(second))
            assert (after.st_ino, after.st_dev, after.st_size) == (before.st_ino, before.st_dev, before.st_size)
            assert within(READ_TIMEOUT_S, (mounted.point / "file").stat).st_ino == before.st_ino
            assert mounted.names() == ["file", "small"]
            again = within(READ_TIMEOUT_S, lambda: os.open(f"/proc/self/fd/{fd}", os.O_RDONLY))
            assert pread(again) == BODY, "in the mode of its own node, else it is EIO"
            within(READ_TIMEOUT_S, lambda: os.close(again))
        assert pread(fd) == BODY
        assert within(READ_TIMEOUT_S, lambda: mapped[:]) == BODY
        assert told(mounted)[0] == opens + 1
    with opened(mounted) as fd, opened(mounted) as second:
        assert pread(fd) == pread(second) == BODY
        assert told(mounted)[0] == opens + 3
    until(lambda: not mounted.status()["fuse"]["open_files"], "the end of all handles")
    assert "Traceback" not in mounted.log()


def changed_over(mounted: Mounted, name: str = "file") -> None:
    """Wait until an open of the file is one that the kernel serves by itself."""
    before = told(mounted)[0]

    def opens_by_itself() -> bool:
        with opened(mounted, name):
            return told(mounted)[0] > before

    until(opens_by_itself, "the change to the kernel's own reading")


def test_a_bind_mount_of_a_file_that_becomes_whole(mounter: Mounter, store: InThread[S3Faults], tmp_path: Path) -> None:
    """It stays what it was: the file as the daemon serves it, while somebody has it open."""
    mounted, place = mounter.mount(faulty_url(store), "--anonymous"), tmp_path / "bound"
    place.touch()
    with opened(mounted) as fd:
        assert pread(fd, 100) == BODY[:100]
        subprocess.run(["mount", "--bind", mounted.point / "file", place], check=True, timeout=READ_TIMEOUT_S)
        try:
            assert run("warm", mounted.point / "file").returncode == 0
            changed_over(mounted)
            opens = told(mounted)[0]
            assert within(READ_TIMEOUT_S, place.read_bytes) == BODY
            assert told(mounted)[0] == opens
        finally:
            subprocess.run(["umount", place], check=True, timeout=READ_TIMEOUT_S)


def test_small_files_stay_as_they_are(mounter: Mounter, store: InThread[S3Faults]) -> None:
    """Their pages are there already. The next notice comes for the other file, which is younger."""
    mounted = mounter.mount(faulty_url(store), "--anonymous")
    with opened(mounted, "small") as small, opened(mounted) as fd:
        assert pread(small, len(SMALL)) == SMALL
        assert pread(fd) == BODY
        changed_over(mounted)
        opens = told(mounted)[0]
        assert mounted.read("small") == SMALL
        assert told(mounted)[0] == opens


_MAP = """
import hashlib, mmap, os, sys
fd = os.open(sys.argv[1], os.O_RDONLY)
mapped = mmap.mmap(fd, 0, prot=mmap.PROT_READ)
os.close(fd)
print("mapped", flush=True)
sys.stdin.readline()
print(hashlib.sha256(mapped).hexdigest())
"""
"""A process of its own: whoever waits for a page holds Python's lock, which the store here needs."""


def test_a_mapping_goes_on_after_its_descriptor_is_closed(mounter: Mounter, store: InThread[S3Faults]) -> None:
    """It keeps its node open in the daemon's mode, and others read the file by the second node."""
    mounted = mounter.mount(faulty_url(store), "--anonymous")
    command = [sys.executable, "-c", _MAP, str(mounted.point / "file")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert within(READ_TIMEOUT_S, process.stdout.readline) == "mapped\n"
        assert mounted.read("file") == BODY
        changed_over(mounted)
        assert mounted.read("file") == BODY
        said, _ = process.communicate("\n", timeout=READ_TIMEOUT_S)
        assert said.strip() == hashlib.sha256(BODY).hexdigest()
    until(lambda: not mounted.status()["fuse"]["open_files"], "the end of the mapping")
    opens, reads = told(mounted)
    assert mounted.read("file") == BODY
    assert told(mounted) == (opens + 1, reads)


def test_opens_and_closes_from_many_threads(mounted: Mounted) -> None:
    """No order of opens, closes and changes of the mode is an error."""

    def read_often(seed: int) -> int:
        choose = random.Random(seed)
        for _ in range(150):
            name, body = choose.choice([("file", BODY), ("small", SMALL)])
            with (mounted.point / name).open("rb", buffering=0) as file:
                offset = choose.randrange(len(body))
                assert os.pread(file.fileno(), 5000, offset) == body[offset : offset + 5000]
        return 1

    readers = [in_background(partial(read_often, seed)) for seed in range(8)]
    for _ in range(5):
        dropped = run("cache", "drop", mounted.point / "file")
        in_use = dropped.stdout.startswith("in use, kept: ")
        assert dropped.returncode == in_use, dropped
    assert sum(each.result(60) for each in readers) == 8
    assert "Traceback" not in mounted.log()
    until(lambda: not mounted.status()["fuse"]["open_files"], "the end of all handles")


def test_another_version_is_another_file(mounted: Mounted, store: InThread[S3Faults]) -> None:
    other = bytes_of(19, len(BODY))
    with opened(mounted) as fd:
        store.do(store.server.put, "b/file", other)
        assert run("refresh", mounted.point).returncode == 0
        assert mounted.read("file") == other
        assert mounted.read("file") == other
        assert pread(fd) == BODY


# --- where it is not to be had ---


def _read_twice(point: Path) -> None:
    for _ in range(2):
        assert within(READ_TIMEOUT_S, (point / "file").read_bytes) == BODY


def test_it_can_be_turned_off(mounter: Mounter, store: InThread[S3Faults]) -> None:
    mounted = mounter.mount(faulty_url(store), "--anonymous", "--no-passthrough")
    fill(mounted)
    assert mounted.read_anew("file") == BODY
    assert told(mounted)[0] == 0
    assert mounted.status()["fuse"]["passthrough"] is False


def test_a_daemon_without_the_right_serves_files_itself(
    mounter: Mounter, store: InThread[S3Faults], tmp_path: Path
) -> None:
    """Another program has mounted for it. It says once why the kernel reads nothing by itself."""
    point, log, cache_dir = mounter.point(), tmp_path / "log", tmp_path / "cache"
    fd = fuse_device.mount(point, MountFlags("handed", 0))
    command = [
        *("setpriv", "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs"),
        *(*D7YFS, "mount", "--foreground", "--anonymous", "--metrics-listen", "none"),
        *("--cache-dir", str(cache_dir), "--log-file", str(log), faulty_url(store), f"/dev/fd/{fd}"),
    ]
    with subprocess.Popen(command, pass_fds=[fd]) as process:
        mounter.made.append(Mounted(point, cache_dir, log, process.pid))
        os.close(fd)
        until(lambda: log.exists() and "is mounted on" in log.read_text(), "the mount")
        _read_twice(point)
        until(lambda: log.read_text().count("passthrough is off for this mount: it needs CAP_SYS_ADMIN") == 1, "a word")
        _read_twice(point)
        assert "Traceback" not in log.read_text()
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
