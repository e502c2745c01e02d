"""The mount as seen by programs that do more than read: permissions, writing, attributes, odd
system calls.
"""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.mount.conftest import Bucket, both_engines
from tests.mount.mounted import Mounted, Mounter, within

pytestmark = [pytest.mark.mount, pytest.mark.store, both_engines]

NOBODY = 65534


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory, bucket: Bucket, fuse_engine: str) -> Iterator[Mounted]:
    with Mounter(tmp_path_factory.mktemp("posix")) as mounter:
        yield mounter.mount(bucket.url("library"), env=bucket.env)


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory, bucket: Bucket, fuse_engine: str) -> Iterator[Mounted]:
    """A mount with every setting of its appearance changed, and listings that are never fresh."""
    appearance = ("--uid", "1234", "--gid", "2345", "--file-mode", "0400", "--dir-mode", "0510")
    fresh = ("--metadata-ttl", "0", "--negative-ttl", "0")
    with Mounter(tmp_path_factory.mktemp("tuned")) as mounter:
        yield mounter.mount(bucket.url("library"), "--xattr", *appearance, *fresh, env=bucket.env)


def error_of(action: Callable[[], object]) -> int | None:
    with pytest.raises(OSError) as caught:  # noqa: PT011  # the test checks the errno
        within(20, action)
    return caught.value.errno


@pytest.mark.parametrize(
    "action",
    [
        pytest.param(lambda point: os.open(point / "one.bin", os.O_RDWR), id="open for writing"),
        pytest.param(lambda point: os.open(point / "one.bin", os.O_RDONLY | os.O_TRUNC), id="truncate"),
        pytest.param(lambda point: (point / "new").write_bytes(b"x"), id="create"),
        pytest.param(lambda point: (point / "new").mkdir(), id="mkdir"),
        pytest.param(lambda point: (point / "one.bin").unlink(), id="unlink"),
        pytest.param(lambda point: (point / "model").rmdir(), id="rmdir"),
        pytest.param(lambda point: (point / "one.bin").rename(point / "two.bin"), id="rename"),
        pytest.param(lambda point: (point / "one.bin").chmod(0o644), id="chmod"),
        pytest.param(lambda point: os.chown(point / "one.bin", 1, 1), id="chown"),
        pytest.param(lambda point: os.utime(point / "one.bin"), id="utime"),
        pytest.param(lambda point: (point / "link").symlink_to("one.bin"), id="symlink"),
        pytest.param(lambda point: os.setxattr(point / "one.bin", "user.x", b"1"), id="setxattr"),
    ],
)
def test_whatever_would_write_is_erofs(library: Mounted, action: Callable[[Path], object]) -> None:
    assert error_of(lambda: action(library.point)) == errno.EROFS


def test_access(library: Mounted) -> None:
    path = library.point / "one.bin"
    assert within(20, lambda: os.access(path, os.R_OK))
    assert not within(20, lambda: os.access(path, os.W_OK))
    assert not within(20, lambda: os.access(path, os.X_OK))
    assert within(20, lambda: os.access(library.point / "model", os.R_OK | os.X_OK))


def test_statvfs_is_that_of_a_full_read_only_file_system(library: Mounted) -> None:
    data = within(20, lambda: os.statvfs(library.point))
    assert data.f_flag & os.ST_RDONLY
    assert (data.f_bavail, data.f_namemax) == (0, 255)
    assert data.f_files > 1


def test_absent_names_and_wrong_kinds(library: Mounted) -> None:
    point = library.point
    assert error_of(lambda: (point / "absent").stat()) == errno.ENOENT
    assert error_of(lambda: (point / "absent/below").stat()) == errno.ENOENT
    assert error_of(lambda: (point / "one.bin/below").stat()) == errno.ENOTDIR
    assert error_of(lambda: (point / "model").read_bytes()) == errno.EISDIR
    assert error_of(lambda: library.names("one.bin")) == errno.ENOTDIR


def test_a_directorys_mtime_is_positive_and_stays(tuned: Mounted) -> None:
    def mtimes() -> list[int]:
        return [within(20, (tuned.point / name).stat).st_mtime_ns for name in (".", "model", "model/1")]

    first = mtimes()
    assert min(first) > 0
    tuned.names("model")
    assert mtimes() == first


def test_owner_and_modes_are_as_configured(tuned: Mounted) -> None:
    file, directory = (within(20, (tuned.point / name).stat) for name in ("one.bin", "model"))
    assert (file.st_uid, file.st_gid, file.st_mode) == (1234, 2345, 0o100400)
    assert (directory.st_uid, directory.st_gid, directory.st_mode) == (1234, 2345, 0o040510)


def test_what_a_server_starts_can_be_started(tmp_path: Path, bucket: Bucket, fuse_engine: str) -> None:
    names = ("triton_python_backend_stub", "run.sh", "run.py")
    for name in names:
        bucket.put(f"programs/{name}", b"#!/bin/sh\necho it runs\n")

    def start(path: Path) -> tuple[str, int] | None:
        if not os.access(path, os.X_OK):
            return None
        assert subprocess.check_output([path]) == b"it runs\n"
        return path.name, path.stat().st_mode & 0o777

    def started(mounted: Mounted) -> list[tuple[str, int]]:
        found = within(20, lambda: [start(path) for path in sorted(mounted.point.iterdir())])
        return [*filter(None, found)]

    with Mounter(tmp_path) as mounter:
        first = mounter.mount(bucket.url("programs"), env=bucket.env)
        assert started(first) == [("triton_python_backend_stub", 0o555)]
        second = mounter.mount(
            bucket.url("programs"), "--executable", "*.sh,*.py", "--file-mode", "0440", env=bucket.env
        )
        assert started(second) == [("run.py", 0o550), ("run.sh", 0o550)]


def test_extended_attributes_on_demand(tuned: Mounted, bucket: Bucket) -> None:
    path = tuned.point / "over.bin"
    names = within(20, lambda: os.listxattr(path))
    assert {"user.d7yfs.etag", "user.d7yfs.url", "user.d7yfs.cached_bytes", "user.d7yfs.size"} <= set(names)
    head = bucket.client.head_object(Bucket=bucket.name, Key="library/over.bin")
    assert within(20, lambda: os.getxattr(path, "user.d7yfs.etag")).decode() == head["ETag"]
    assert within(20, lambda: os.getxattr(path, "user.d7yfs.url")).decode().endswith("/mounted/library/over.bin")
    assert error_of(lambda: os.getxattr(path, "user.d7yfs.absent")) == errno.ENODATA


def test_no_extended_attributes_unless_asked_for(library: Mounted) -> None:
    path = library.point / "over.bin"
    assert error_of(lambda: os.getxattr(path, "user.d7yfs.etag")) == errno.ENOTSUP
    assert error_of(lambda: os.listxattr(path)) == errno.ENOTSUP


def _as_nobody(mounted: Mounted, name: str) -> subprocess.CompletedProcess[bytes]:
    # subprocess changes the working directory before the user: nobody may not pass through the
    # test's own directory.
    return subprocess.run(
        ["cat", name], cwd=mounted.point, user=NOBODY, group=NOBODY, extra_groups=[], capture_output=True, timeout=20
    )


def test_another_user_reads_roots_mount_if_so_configured(mounter: Mounter, bucket: Bucket) -> None:
    shared = mounter.mount(bucket.url("library"), "--allow-other", env=bucket.env)
    assert shared.said.endswith(f"mounted on {shared.point}, for all users\n")
    done = _as_nobody(shared, "model/config.pbtxt")
    assert (done.returncode, done.stdout) == (0, bucket.files["model/config.pbtxt"])


def test_another_user_is_kept_out_of_roots_mount(library: Mounted) -> None:
    done = _as_nobody(library, "model/config.pbtxt")
    assert done.returncode != 0
    assert b"Permission denied" in done.stderr
