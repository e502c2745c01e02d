"""What is asked of a running daemon: to read its settings again, to log otherwise, to drop what it has cached."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from d7yfs import control
from tests.mount.conftest import MIB, Bucket
from tests.mount.mounted import Mounted, Mounter, Notified, run, until, within

pytestmark = [pytest.mark.mount, pytest.mark.store]


def mounted_from(config: Path, point: Path, bucket: Bucket) -> Mounted:
    """By a relative path, which must be found again from wherever the daemon is."""
    directory = config.parent
    before = Path.cwd()
    os.chdir(directory)
    try:
        done = run(
            "mount", "--config", config.name, env=bucket.env | {"AWS_SHARED_CREDENTIALS_FILE": str(directory / "keys")}
        )
    finally:
        os.chdir(before)
    assert done.returncode == 0, done.stderr
    pid = int(control.ask(control.socket_path(point), "status")["pid"])
    return Mounted(point, directory / "cache", directory / "log", pid)


def test_sighup_has_settings_read_again(mounter: Mounter, bucket: Bucket, tmp_path: Path) -> None:
    point, config = mounter.point(), tmp_path / "config.toml"
    text = f'source = "{bucket.url("library")}"\nmountpoint = "{point}"\ncache_dir = "cache"\nlog_file = "log"\nmetrics_listen = "none"\n'
    config.write_text(text)
    mounted = mounted_from(config, point, bucket)
    assert mounted.read("one.bin") == bucket.files["one.bin"]
    config.write_text(
        text
        + 'log_level = "debug"\nmetadata_ttl = "0s"\ncache_size = "1GiB"\nmax_connections = 7\nfile_mode = "0400"\n'
    )
    mounted.kill(signal.SIGHUP)
    until(lambda: "takes effect at the next mount: file_mode" in mounted.log(), "the daemon's word about it")
    status = mounted.status()
    assert "changed: cache_size = 1GiB" in mounted.log()
    assert status["log_level"] == "debug"
    assert status["cache"]["limit_bytes"] == 1 << 30
    assert status["repositories"][0]["load"]["transfers_limit"] == 7
    assert status["settings"]["metadata_ttl"]["value"] == "0s"
    assert status["settings"]["file_mode"]["value"] == "0444"

    config.write_text("cash_size = 1\n")
    mounted.kill(signal.SIGHUP)
    until(lambda: "settings stay as they are" in mounted.log(), "the daemon's word about the mistake")
    assert "cash_size" in mounted.log()
    assert mounted.read("block.bin") == bucket.files["block.bin"]
    assert run("umount", point).returncode == 0
    mounted.wait_ended()


def test_sighup_takes_other_credentials(mounter: Mounter, bucket: Bucket, tmp_path: Path) -> None:
    point, config, keys = mounter.point(), tmp_path / "config.toml", tmp_path / "keys"
    reader = bucket.server.reader
    section = "[{}]\naws_access_key_id = {}\naws_secret_access_key = {}\n"
    keys.write_text(section.format("old", "unknown", "wrong") + section.format("new", reader.key_id, reader.secret_key))
    text = (
        f'mountpoint = "{point}"\ncache_dir = "cache"\nlog_file = "log"\nmetrics_listen = "none"\n'
        f'[repositories.good]\nurl = "{bucket.url("library")}"\n'
        f'[repositories.late]\nurl = "{bucket.url("library")}"\nprofile = '
    )
    config.write_text(text + '"old"\n')
    mounted = mounted_from(config, point, bucket)
    assert mounted.names("late") == []
    config.write_text(text + '"new"\n')
    mounted.kill(signal.SIGHUP)
    until(lambda: "credentials of late" in mounted.log(), "the daemon's word about it")
    until(lambda: mounted.names("late") != [], "the repository", timeout_s=40)
    assert mounted.read("late/one.bin") == bucket.files["one.bin"]
    assert reader.secret_key not in mounted.log()
    assert run("umount", point).returncode == 0
    mounted.wait_ended()


def test_systemd_hears_of_a_reload(mounter: Mounter, bucket: Bucket, tmp_path: Path) -> None:
    with Notified(tmp_path / "notify") as notified:
        mounted = mounter.mount(bucket.url("library"), env=bucket.env | {"NOTIFY_SOCKET": str(notified.path)})
        assert notified.receive().startswith("READY=1")
        mounted.kill(signal.SIGHUP)
        assert notified.receive().startswith("RELOADING=1\nMONOTONIC_USEC=")
        assert notified.receive() == "READY=1"
    assert "no setting has changed" in mounted.log()


def test_log_level(mounter: Mounter, bucket: Bucket) -> None:
    mounted = mounter.mount(bucket.url("library"), env=bucket.env, log_level="warning")
    said = run("log-level", "debug", mounted.point)
    assert said.stdout == f"{mounted.point}: debug (was warning); the log is {mounted.log_file}\n"
    shown = json.loads(run("log-level", "--json").stdout)
    assert {"mountpoint": str(mounted.point), "level": "debug", "was": "debug", "log": str(mounted.log_file)} in shown
    assert run("log-level", "loud").returncode == 2


def test_cache_drop_by_path(mounter: Mounter, bucket: Bucket) -> None:
    mounted = mounter.mount(f"models={bucket.url('library')}", env=bucket.env)
    mounted.read("models/over.bin")
    mounted.read("models/model/1/weights.bin")
    until(lambda: mounted.status()["fuse"]["open_files"] == 0, "the end of the readers")
    before = mounted.fetched("models")["direct_bytes"]
    done = run("cache", "drop", "--json", mounted.point / "models" / "model")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"files": 1, "disk_bytes": 3 * MIB + 8192, "kept_files": 0, "kept": []}
    mounted.read("models/over.bin")
    assert mounted.fetched("models")["direct_bytes"] == before, "what is beside it stays"
    mounted.read("models/model/1/weights.bin")
    assert mounted.fetched("models")["direct_bytes"] == before + 3 * MIB, "which neither cache nor kernel has any more"

    fd = within(20, lambda: os.open(mounted.point / "models/over.bin", os.O_RDONLY))
    try:
        kept = run("cache", "drop", mounted.point)
        assert kept.returncode == 1
        assert "in use, kept: s3://" in kept.stdout
        assert "1 files dropped" in kept.stdout
    finally:
        os.close(fd)
    assert run("cache", "drop", mounted.point / "models" / "absent").returncode == 1
    assert "is not in a d7yfs mount" in run("cache", "drop", "/etc").stderr
