"""A source that cannot be mounted is refused within seconds, before any mount, with a message that
names the remedy.
"""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.mount.conftest import Bucket, faulty_url
from tests.mount.mounted import Mounter, is_mounted
from tests.servers import faults
from tests.servers.in_thread import InThread
from tests.servers.s3_faults import S3Faults

pytestmark = [pytest.mark.mount, pytest.mark.store]


@contextmanager
def tmpfs(point: Path, options: str) -> Iterator[Path]:
    point.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", point], check=True, timeout=20)
    try:
        yield point
    finally:
        subprocess.run(["umount", "--lazy", point], check=True, timeout=20)


# --- the repository ---


def test_an_absent_prefix_names_the_nearest(mounter: Mounter, bucket: Bucket) -> None:
    done = mounter.refused(bucket.url("libary"), env=bucket.env)
    assert done.returncode == 1
    assert "nothing under this prefix" in done.stderr
    assert f"/{bucket.name}/library" in done.stderr


def test_an_empty_prefix_can_be_mounted_on_demand(mounter: Mounter, bucket: Bucket) -> None:
    mounted = mounter.mount(
        bucket.url("nothing/yet"), "--allow-empty", "--metadata-ttl", "0", "--negative-ttl", "0", env=bucket.env
    )
    assert mounted.names() == []
    bucket.put("nothing/yet/late.bin", b"late")
    try:
        assert mounted.read("late.bin") == b"late"
    finally:
        bucket.delete("nothing/yet/late.bin")


def test_a_wrong_secret(mounter: Mounter, bucket: Bucket) -> None:
    done = mounter.refused(bucket.url("library"), env=bucket.env | {"AWS_SECRET_ACCESS_KEY": "not-the-secret"})
    assert bucket.name in done.stderr
    assert "hint: " in done.stderr
    assert "not-the-secret" not in done.stderr


def test_no_credentials_at_all(mounter: Mounter, bucket: Bucket) -> None:
    done = mounter.refused(bucket.url("library"))
    assert "credentials" in done.stderr


def test_no_such_bucket(mounter: Mounter, bucket: Bucket) -> None:
    done = mounter.refused(f"s3://127.0.0.1:{bucket.server.port}/no-such-bucket/x", env=bucket.env)
    assert "no-such-bucket" in done.stderr
    assert "bucket" in done.stderr.replace("no-such-bucket", "")


def test_an_endpoint_that_refuses_connections(mounter: Mounter) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
        started = time.monotonic()
        done = mounter.refused(f"s3://127.0.0.1:{port}/bucket", "--anonymous", timeout_s=30)
    assert time.monotonic() - started < 20
    assert f"127.0.0.1:{port}" in done.stderr


def test_an_endpoint_that_is_no_s3(mounter: Mounter, faulty: InThread[S3Faults]) -> None:
    faulty.do(lambda: faulty.server.script(faults.status(200, {}, b"<html>hello</html>"), forever=True))
    done = mounter.refused(faulty_url(faulty), "--anonymous")
    assert "S3" in done.stderr


@pytest.mark.parametrize("url", ["ftp://host/b", "hf://organisation/model"])
def test_an_unsupported_scheme_lists_those_that_are(mounter: Mounter, url: str) -> None:
    done = mounter.refused(url)
    assert done.returncode == 2
    assert "s3" in done.stderr


# --- the mount point ---


def test_no_mount_point(mounter: Mounter, bucket: Bucket, tmp_path: Path) -> None:
    done = mounter.refused(bucket.url("library"), env=bucket.env, point=tmp_path / "absent")
    assert f"{tmp_path}/absent does not exist" in done.stderr
    assert f"mkdir -p {tmp_path}/absent" in done.stderr


def test_a_mount_point_with_something_in_it(mounter: Mounter, bucket: Bucket, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full/file").touch()
    done = mounter.refused(bucket.url("library"), env=bucket.env, point=tmp_path / "full")
    assert "is not empty" in done.stderr


def test_a_mount_point_that_is_a_file(mounter: Mounter, bucket: Bucket, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = mounter.refused(bucket.url("library"), env=bucket.env, point=tmp_path / "file")
    assert "is not a directory" in done.stderr


def test_a_mount_point_that_is_mounted_already(mounter: Mounter, bucket: Bucket) -> None:
    mounted = mounter.mount(bucket.url("library"), env=bucket.env)
    done = mounter.refused(bucket.url("library"), env=bucket.env, point=mounted.point)
    assert "already mounted" in done.stderr
    assert f"d7yfs umount {mounted.point}" in done.stderr
    assert mounted.read("one.bin") == bucket.files["one.bin"], "the first mount continues"
    assert mounted.status()["pid"] == mounted.pid


# --- the cache directory ---


def test_a_read_only_cache_directory(mounter: Mounter, bucket: Bucket, tmp_path: Path) -> None:
    with tmpfs(tmp_path / "ro", "ro") as read_only:
        done = mounter.refused(bucket.url("library"), env=bucket.env, cache_dir=read_only / "cache")
        assert f"cache directory {read_only}/cache cannot be used: Read-only file system" in done.stderr


def test_a_cache_directory_of_somebody_else(mounter: Mounter, bucket: Bucket, tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir()
    os.chown(tmp_path / "theirs", 12345, 12345)
    done = mounter.refused(bucket.url("library"), env=bucket.env, cache_dir=tmp_path / "theirs")
    assert "belongs to another user (uid 12345)" in done.stderr
    assert "--cache-dir" in done.stderr


@pytest.mark.parametrize("min_free", ["0", "2GiB"])
def test_a_full_cache_disk_means_right_bytes_uncached(
    mounter: Mounter, bucket: Bucket, tmp_path: Path, min_free: str
) -> None:
    with tmpfs(tmp_path / "small", "size=6m") as small:
        mounted = mounter.mount(
            bucket.url("library"), "--cache-min-free", min_free, env=bucket.env, cache_dir=small / "cache"
        )
        for _ in range(2):
            assert mounted.read_anew("twenty.bin") == bucket.files["twenty.bin"]
        assert mounted.read("over.bin") == bucket.files["over.bin"]
        kept = int(mounted.stat("twenty.bin")["cached_bytes"])
        assert kept < len(bucket.files["twenty.bin"])
        assert mounted.status()["rss_bytes"] < 150 << 20
        mounted.kill()
        mounted.wait_ended()


def test_the_size_limit_of_the_cache_holds(mounter: Mounter, bucket: Bucket) -> None:
    mounted = mounter.mount(bucket.url("library"), "--cache-size", "8MiB", env=bucket.env)
    assert mounted.read("twenty.bin") == bucket.files["twenty.bin"]
    assert mounted.read("model/1/weights.bin") == bucket.files["model/1/weights.bin"]
    assert mounted.read_anew("twenty.bin") == bucket.files["twenty.bin"]
    on_disk = sum(path.stat().st_blocks * 512 for path in mounted.cache_dir.rglob("*") if path.is_file())
    assert on_disk <= (8 << 20) + (1 << 20)


# --- the configuration ---


def test_a_broken_toml_file_is_named_with_the_key(mounter: Mounter, tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text('cash_size = "1GiB"\n')
    done = mounter.refused("s3://bucket", "--config", str(config))
    assert done.returncode == 2
    assert str(config) in done.stderr
    assert "cash_size" in done.stderr
    config.write_text("cache_size = \n")
    assert str(config) in mounter.refused("s3://bucket", "--config", str(config)).stderr


@pytest.mark.parametrize("variable", ["TRITON_CLOUD_CREDENTIAL_PATH", "TRITON_DRAGONFLY_CONFIG_PATH"])
def test_broken_triton_files_are_named(mounter: Mounter, tmp_path: Path, variable: str) -> None:
    path = tmp_path / "file.json"
    path.write_text('{"s3": ')
    assert str(path) in mounter.refused("s3://bucket", env={variable: str(path)}).stderr
    assert f"{path}x" in mounter.refused("s3://bucket", env={variable: f"{path}x"}).stderr


def test_nothing_is_left_behind(mounter: Mounter, bucket: Bucket) -> None:
    point = mounter.point()
    mounter.refused(bucket.url("libary"), env=bucket.env, point=point)
    assert not is_mounted(point)
    assert list(point.iterdir()) == []
    assert mounter.mount(bucket.url("library"), env=bucket.env, point=point).read("one.bin") == bucket.files["one.bin"]
