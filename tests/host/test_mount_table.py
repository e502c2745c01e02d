"""The mount table, mount points, unmounting; with dead and mute FUSE mounts that no daemon stands behind."""

from __future__ import annotations

import ctypes
import errno
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from d7yfs.errors import MountError
from d7yfs.host import mount_table
from tests.host.automount import automounting
from tests.mount.mounted import within

_libc = ctypes.CDLL(None, use_errno=True)

as_root = pytest.mark.mount


class MuteMounts:
    """FUSE mounts whose only end is a descriptor: nobody answers while it is open, and the mount is dead once it is closed."""

    def __init__(self) -> None:
        self._points: list[Path] = []

    def make(self, point: Path) -> int:
        fd = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
        options = f"fd={fd},rootmode=40000,user_id=0,group_id=0".encode()
        if _libc.mount(b"mem://mute", os.fsencode(point), b"fuse.d7yfs", 0, options):
            raise OSError(ctypes.get_errno(), "mount")
        self._points.append(point)
        return fd

    def close(self) -> None:
        for point in self._points:
            while mount_table.mounted_at(point) is not None:
                subprocess.run(["umount", "--lazy", point], check=True, timeout=20)


@pytest.fixture
def mute_mount() -> Iterator[Callable[[Path], int]]:
    if os.geteuid() or not Path("/dev/fuse").exists():
        pytest.skip("needs root and /dev/fuse")
    made = MuteMounts()
    yield made.make
    made.close()


@pytest.fixture
def tmpfs(tmp_path: Path) -> Iterator[Path]:
    if os.geteuid():
        pytest.skip("needs root")
    point = tmp_path / "with space\\and\nmore"
    point.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "a source", point], check=True, timeout=20)
    yield point
    if mount_table.mounted_at(point) is not None:
        subprocess.run(["umount", "--lazy", point], check=True, timeout=20)


def test_the_mount_table() -> None:
    table = mount_table.mount_table()
    assert Path("/") in {mount.point for mount in table}
    proc = next(mount for mount in table if mount.point == Path("/proc"))
    assert proc.fstype == "proc"
    assert mount_table.mounted_at(Path("/proc")) is not None
    assert mount_table.mounted_at(Path("/proc/self")) is None


@as_root
def test_odd_names_in_the_mount_table(tmpfs: Path) -> None:
    mount = mount_table.mounted_at(tmpfs)
    assert mount is not None
    assert (mount.point, mount.fstype, mount.source) == (tmpfs, "tmpfs", "a source")
    assert mount.device == f"{os.major(tmpfs.stat().st_dev)}:{os.minor(tmpfs.stat().st_dev)}"


def test_an_empty_directory_can_be_mounted_on(tmp_path: Path) -> None:
    assert mount_table.prepare_mountpoint(tmp_path) is False
    assert mount_table.stat_errno(tmp_path) == 0
    assert mount_table.stat_errno(tmp_path / "absent") == errno.ENOENT


@pytest.mark.parametrize(
    ("name", "said"), [("absent", "does not exist"), ("file", "is not a directory"), ("full", "is not empty")]
)
def test_what_cannot_be_mounted_on(tmp_path: Path, name: str, said: str) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "full").mkdir()
    (tmp_path / "full/file").touch()
    with pytest.raises(MountError, match=said) as caught:
        mount_table.prepare_mountpoint(tmp_path / name)
    assert str(tmp_path / name) in caught.value.message
    assert caught.value.hint


@as_root
def test_a_dead_mount_is_cleaned_up(tmp_path: Path, mute_mount: Callable[[Path], int]) -> None:
    for _ in range(2):  # one upon the other
        os.close(mute_mount(tmp_path))
    with pytest.raises(OSError) as caught:  # noqa: PT011  # the errno is what matters
        os.statvfs(tmp_path)
    assert caught.value.errno == errno.ENOTCONN
    assert mount_table.stat_errno(tmp_path) == errno.ENOTCONN
    assert mount_table.prepare_mountpoint(tmp_path) is True
    assert mount_table.mounted_at(tmp_path) is None
    assert mount_table.prepare_mountpoint(tmp_path) is False


@as_root
def test_an_automount_point_is_not_looked_at(tmp_path: Path, mute_mount: Callable[[Path], int]) -> None:
    with subprocess.Popen(["sleep", "infinity"], process_group=0) as other, automounting(tmp_path, other.pid):
        assert within(5, lambda: mount_table.prepare_mountpoint(tmp_path)) is False
        os.close(mute_mount(tmp_path))
        assert within(20, lambda: mount_table.prepare_mountpoint(tmp_path)) is True
        assert mount_table.mounted_at(tmp_path) is not None, "the automount itself"
        other.kill()


@as_root
def test_a_mount_that_does_not_answer_is_left_alone(
    tmp_path: Path, mute_mount: Callable[[Path], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    fd = mute_mount(tmp_path)
    began = time.monotonic()
    monkeypatch.setattr(mount_table, "PROBE_TIMEOUT_S", 0.3)
    assert mount_table.stat_errno(tmp_path) == errno.ETIMEDOUT
    assert time.monotonic() - began < 5
    monkeypatch.setattr(mount_table, "stat_errno", lambda point: errno.ETIMEDOUT)
    with pytest.raises(MountError, match=r"already mounted \(mem://mute\)") as caught:
        mount_table.prepare_mountpoint(tmp_path)
    assert f"d7yfs umount {tmp_path}" in caught.value.hint
    assert mount_table.mounted_at(tmp_path) is not None
    os.close(fd)


@as_root
def test_unmounting_what_is_in_use(tmpfs: Path) -> None:
    user = subprocess.Popen(
        [sys.executable, "-c", "import sys; print(flush=True); sys.stdin.read()"],
        cwd=tmpfs, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    try:
        assert user.stdout is not None
        assert user.stdout.readline()
        with pytest.raises(mount_table.Busy, match="is in use") as caught:
            mount_table.unmount(tmpfs)
        assert caught.value.errno == errno.EBUSY
        assert "--lazy" in caught.value.hint
        mount_table.unmount(tmpfs, lazy=True)
        assert mount_table.mounted_at(tmpfs) is None
    finally:
        user.communicate(timeout=20)


@as_root
def test_unmounting_what_is_not_mounted(tmp_path: Path) -> None:
    with pytest.raises(MountError, match="could not be unmounted") as caught:
        mount_table.unmount(tmp_path)
    assert not isinstance(caught.value, mount_table.Busy)


def test_limits_that_cannot_be_raised_are_said(tmp_path: Path) -> None:
    (said,) = mount_table.tune(tmp_path)
    assert str(tmp_path) in said


def test_which_mount_a_path_is_in(monkeypatch: pytest.MonkeyPatch) -> None:
    table = [
        mount_table.Mount(Path(point), "0:1", fstype, "s3://b")
        for point, fstype in (("/mnt/a", mount_table.FSTYPE), ("/mnt/a/deep/b", mount_table.FSTYPE), ("/mnt", "ext4"))
    ]
    monkeypatch.setattr(mount_table, "mount_table", lambda: table)
    monkeypatch.chdir("/")
    for path, found in {
        "/mnt/a/x/y": (Path("/mnt/a"), "x/y"),
        "/mnt/a": (Path("/mnt/a"), ""),
        "mnt/a/x": (Path("/mnt/a"), "x"),
        "/mnt/a/deep/b/c": (Path("/mnt/a/deep/b"), "c"),
        "/mnt/a/x/../deep/./b": (Path("/mnt/a/deep/b"), ""),
    }.items():
        assert mount_table.containing(Path(path)) == found, path
    for path in ("/mnt/ab", "/mnt/a/..", "/"):
        with pytest.raises(MountError, match="is not in a d7yfs mount"):
            mount_table.containing(Path(path))
