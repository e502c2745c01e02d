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

from tests.mount.conftest import Bucket, bytes_of, faulty_url
from tests.mount.mounted import Mounted, Mounter, run, until, within
from tests.mount.test_faults import NOBODY
from tests.servers.in_thread import InThread
from tests.servers.s3_faults import S3Faults

LIMIT = 1024
FILES = 600


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


def _close_all(opened: list[int]) -> None:
    while opened:
        os.close(opened.pop())


def _commands_work(mounted: Mounted, bucket: Bucket) -> None:
    for command in ("status", "health", "refresh"):
        done = run(command, mounted.point, env=bucket.env)
        assert done.returncode == 0, (command, done.stdout, done.stderr)


@pytest.mark.parametrize("times", ["cold", "warm"])
def test_a_user_who_opens_all_he_can_takes_no_descriptor_of_others(
    mounter: Mounter, bucket: Bucket, times: str
) -> None:
    objects = {f"b/{number:03}": bytes_of(number, 4096 + number) for number in range(FILES)}
    opened: list[int] = []
    with InThread(S3Faults(objects)) as store, contextlib.ExitStack() as closing:
        mounted = mounter.mount(
            f"small={faulty_url(store)}",
            f"well={bucket.url('library')}",
            "--allow-other",
            env=bucket.env,
            under=("prlimit", f"--nofile={LIMIT}:{LIMIT}"),
        )
        paths = [mounted.point / "small" / name.removeprefix("b/") for name in objects]
        if times == "warm":
            assert run("warm", mounted.point / "small", env=bucket.env).returncode == 0
        closing.callback(_close_all, opened)
        errors = within(120, partial(_open_all, paths, NOBODY, opened))
        assert set(errors) == {errno.EMFILE}
        assert LIMIT // 8 < len(opened) < FILES

        # His own are read, and more descriptors than the daemon may hold for them are not needed.
        for _ in range(2):
            found = within(120, lambda: [_read_anew(fd) for fd in opened])
            assert found == [*objects.values()][: len(opened)]
        fds = len([*Path(f"/proc/{mounted.pid}/fd").iterdir()])
        assert fds < LIMIT - 128, "the headroom is left"

        _commands_work(mounted, bucket)
        others: list[int] = []
        closing.callback(_close_all, others)
        assert within(60, partial(_open_all, paths[-100:], 12345, others)) == []
        assert within(60, lambda: [_read_anew(fd) for fd in others]) == [*objects.values()][-100:]
        assert mounted.read("well/twenty.bin") == bucket.files["twenty.bin"], "not cached"
        assert within(60, lambda: [_read_anew(fd) for fd in opened]) == found
        _commands_work(mounted, bucket)

        errors_told = mounted.status()["fuse"]["errors"]
        assert errors_told["read"] == 0
        assert "Traceback" not in mounted.log()
        assert f"uid {NOBODY} has" in mounted.log()

        _close_all(others)
        os.close(opened.pop())
        until(lambda: not within(60, partial(_open_all, paths[-1:], NOBODY, opened)), "room after a close")
