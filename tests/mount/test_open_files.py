"""One user opens as many files as there are descriptors: the others, and the daemon, go on."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
from collections.abc import Iterable
from functools import partial
from pathlib import Path

import pytest

from d7yfs.cache.descriptors import SMALL_BYTES
from d7yfs.fuse.openers import MAX_OPEN_DIRECTORIES
from tests.mount.conftest import Bucket, both_engines, bytes_of, faulty_url
from tests.mount.mounted import Mounted, Mounter, run, until, within
from tests.mount.test_faults import NOBODY
from tests.servers.in_thread import InThread
from tests.servers.s3_faults import S3Faults

pytestmark = [pytest.mark.mount, pytest.mark.store, both_engines]

LIMIT = 256
FILES = 2000
LARGE = 100
LARGE_BYTES = SMALL_BYTES + 1


def _open_all(paths: Iterable[Path], uid: int, opened: list[int]) -> list[int]:
    """Open the files as user `uid` into `opened`; returns the errors. For a thread of its own."""
    errors = []
    directories: dict[Path, int] = {}
    for path in paths:
        if path.parent not in directories:
            directories[path.parent] = os.open(path.parent, os.O_PATH)
    ctypes.CDLL(None).setfsuid(uid)  # of this thread alone, and FUSE goes by it: setfsuid(2)
    for path in paths:
        try:
            opened.append(os.open(path.name, os.O_RDONLY, dir_fd=directories[path.parent]))
        except OSError as error:
            errors.append(error.errno or 0)
    for fd in directories.values():
        os.close(fd)
    return errors


def _read_anew(fd: int) -> bytes:
    """All bytes of an open file, from the daemon: the kernel's page cache is dropped first."""
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    return os.pread(fd, 1 << 20, 0)


def _read_end_anew(fd: int) -> bytes:
    """The last byte of a large file, from the daemon."""
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    return os.pread(fd, 10, LARGE_BYTES - 1)


def _close_all(opened: list[int]) -> None:
    while opened:
        os.close(opened.pop())


def _commands_work(mounted: Mounted, bucket: Bucket) -> None:
    for command in ("status", "health", "refresh"):
        done = run(command, mounted.point, env=bucket.env)
        assert done.returncode == 0, (command, done.stdout, done.stderr)


def _descriptors(mounted: Mounted) -> int:
    return len([*Path(f"/proc/{mounted.pid}/fd").iterdir()])


def _mount(mounter: Mounter, bucket: Bucket, store: InThread[S3Faults]) -> Mounted:
    return mounter.mount(
        f"many={faulty_url(store)}",
        f"well={bucket.url('library')}",
        *("--allow-other", "--no-passthrough"),  # it is about what the daemon reads
        env=bucket.env,
        under=("prlimit", f"--nofile={LIMIT}:{LIMIT}"),
    )


@pytest.mark.parametrize("times", ["cold", "warm"])
def test_a_user_opens_thousands_of_small_files_with_few_descriptors(
    mounter: Mounter, bucket: Bucket, times: str
) -> None:
    objects = {f"b/{number:04}": bytes_of(number, 4096 + number) for number in range(FILES)}
    opened: list[int] = []
    with InThread(S3Faults(objects)) as store, contextlib.ExitStack() as closing:
        mounted = _mount(mounter, bucket, store)
        paths = [mounted.point / "many" / name.removeprefix("b/") for name in objects]
        if times == "warm":
            assert run("warm", mounted.point / "many", env=bucket.env).returncode == 0
        closing.callback(_close_all, opened)
        assert within(120, partial(_open_all, paths, NOBODY, opened)) == []
        for _ in range(2):
            assert within(120, lambda: [_read_anew(fd) for fd in opened]) == [*objects.values()]
            # Neighbours that are still being fetched, and the connections for them, come beside.
            until(lambda: _descriptors(mounted) < LIMIT // 2, "versions that nobody reads at rest")
        fuse = mounted.status()["fuse"]
        assert (fuse["open_files"], fuse["open_files_limit"]) == (FILES, 1 << 16)

        others: list[int] = []
        closing.callback(_close_all, others)
        assert within(60, partial(_open_all, paths[-100:], 12345, others)) == []
        assert within(60, lambda: [_read_anew(fd) for fd in others]) == [*objects.values()][-100:]
        assert mounted.read("well/twenty.bin") == bucket.files["twenty.bin"], "not cached"
        _commands_work(mounted, bucket)

        # While they sleep, their files are anybody's to delete.
        fetched = mounted.status()["repositories"][0]["fetched"]["direct_bytes"]
        dropped = run("cache", "drop", "--all", "--cache-dir", mounted.cache_dir)
        assert dropped.returncode in (0, 1), (dropped.stdout, dropped.stderr)
        assert within(120, lambda: [_read_anew(fd) for fd in opened]) == [*objects.values()]
        assert (
            mounted.status()["repositories"][0]["fetched"]["direct_bytes"]
            > fetched + sum(map(len, objects.values())) // 2
        )
        assert within(120, lambda: [_read_anew(fd) for fd in opened]) == [*objects.values()]
        assert mounted.status()["fuse"]["errors"]["read"] == 0
        assert "Traceback" not in mounted.log()


def test_a_user_who_opens_all_large_files_takes_no_descriptor_of_others(mounter: Mounter, bucket: Bucket) -> None:
    objects = {f"b/{number:03}": bytes(LARGE_BYTES - 1) + bytes([number]) for number in range(LARGE)}
    opened: list[int] = []
    with InThread(S3Faults(objects)) as store, contextlib.ExitStack() as closing:
        mounted = _mount(mounter, bucket, store)
        paths = [mounted.point / "many" / name.removeprefix("b/") for name in objects]
        closing.callback(_close_all, opened)
        errors = within(120, partial(_open_all, paths, NOBODY, opened))
        assert {*errors} == {errno.EMFILE}
        assert len(opened) == LIMIT // 4, "half of the half that is for large files"
        for _ in range(2):
            ends = within(120, lambda: [_read_end_anew(fd) for fd in opened])
            assert ends == [bytes([number]) for number in range(len(opened))]
        assert _descriptors(mounted) < LIMIT - 128, "the headroom is left"

        _commands_work(mounted, bucket)
        others: list[int] = []
        closing.callback(_close_all, others)
        assert within(60, partial(_open_all, paths[-20:], 12345, others)) == []
        assert [_read_end_anew(fd) for fd in others] == [bytes([number]) for number in range(LARGE - 20, LARGE)]
        assert mounted.read("well/twenty.bin") == bucket.files["twenty.bin"], "not cached"
        assert mounted.status()["fuse"]["errors"]["read"] == 0
        assert "Traceback" not in mounted.log()
        assert f"uid {NOBODY} has" in mounted.log()

        _close_all(others)
        os.close(opened.pop())
        until(lambda: not within(60, partial(_open_all, paths[-1:], NOBODY, opened)), "room after a close")


def test_a_user_who_opens_directories_without_end_holds_up_no_other(mounter: Mounter, bucket: Bucket) -> None:
    names = 4000
    objects = {f"b/d/{number:04}": b"" for number in range(names)}
    opened: list[int] = []
    with InThread(S3Faults(objects)) as store, contextlib.ExitStack() as closing:
        mounted = _mount(mounter, bucket, store)
        closing.callback(_close_all, opened)
        paths = [mounted.point / "many" / "d"] * 2000
        errors = within(120, partial(_open_all, paths, NOBODY, opened))
        assert {*errors} == {errno.EMFILE}
        assert len(opened) == MAX_OPEN_DIRECTORIES // 2 // (1 + names // 1000)
        fuse = mounted.status()["fuse"]
        assert fuse["open_directories"] == len(opened)
        assert fuse["open_directories_limit"] == MAX_OPEN_DIRECTORIES
        assert len(os.listdir(opened[0])) == names  # noqa: PTH208  # of a descriptor
        others: list[int] = []
        closing.callback(_close_all, others)
        assert within(60, partial(_open_all, paths[:100], 12345, others)) == []
        assert len(os.listdir(others[-1])) == names  # noqa: PTH208
        assert "shares of the open directories" in mounted.log()
        _close_all(others)
        os.close(opened.pop())
        until(lambda: not within(60, partial(_open_all, paths[:1], NOBODY, opened)), "room after a close")
