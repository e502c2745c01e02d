"""Commands to a running daemon: re-read its settings, change its log level, drop cached files."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from d7yfs.config.schema import OPTIONS
from d7yfs.control import control_socket
from tests.mount.conftest import MIB, Bucket
from tests.mount.mounted import Mounted, Mounter, Notified, run, until, within

LIVE = {name for name, option in OPTIONS.items() if option.live}

pytestmark = [pytest.mark.mount, pytest.mark.store]


def mounted_from(config: Path, point: Path, bucket: Bucket) -> Mounted:
    """Mount from a config file with a relative path, which the daemon must find from any working
    directory.
    """
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
    pid = int(control_socket.ask(control_socket.socket_path(point), "status")["pid"])
    return Mounted(point, directory / "cache", directory / "log", pid)


def toml(bucket: Bucket, point: Path) -> str:
    return f'source = "{bucket.url("library")}"\nmountpoint = "{point}"\ncache_dir = "cache"\nlog_file = "log"\nmetrics_listen = "none"\n'


def test_sighup_rereads_the_settings(mounter: Mounter, bucket: Bucket, tmp_path: Path) -> None:
    point, config = mounter.point(), tmp_path / "config.toml"
    text = toml(bucket, point)
    config.write_text(text)
    mounted = mounted_from(config, point, bucket)
    assert mounted.read("one.bin") == bucket.files["one.bin"]
    config.write_text(
        text
        + 'log_level = "debug"\nmetadata_ttl = "0s"\ncache_size = "1GiB"\nmax_connections = 7\nfile_mode = "0400"\n'
    )
    mounted.kill(signal.SIGHUP)
    until(lambda: "takes effect at the next mount: file_mode" in mounted.log(), "the daemon's message")
    status = mounted.status()
    assert "changed: cache_size = 1GiB" in mounted.log()
    assert status["log_level"] == "debug"
    assert status["cache"]["limit_bytes"] == 1 << 30
    assert status["repositories"][0]["load"]["transfers_limit"] == 7
    assert status["settings"]["metadata_ttl"]["value"] == "0s"
    assert status["settings"]["file_mode"]["value"] == "0444"

    config.write_text("cash_size = 1\n")
    mounted.kill(signal.SIGHUP)
    until(lambda: "settings stay as they are" in mounted.log(), "the daemon's message about the mistake")
    assert "cash_size" in mounted.log()
    assert mounted.read("block.bin") == bucket.files["block.bin"]
    assert run("umount", point).returncode == 0
    mounted.wait_ended()


SHOWN: dict[str, tuple[str, str, Callable[[dict[str, Any]], object], object]] = {
    "log_level": ("info", "debug", lambda status: status["log_level"], "debug"),
    "cache_size": ("9GiB", "1GiB", lambda status: status["cache"]["limit_bytes"], 1 << 30),
    "memory_buffer": ("16MiB", "32MiB", lambda status: status["cache"]["memory_limit_bytes"], 32 * MIB),
    "max_connections": ("9", "7", lambda status: status["repositories"][0]["load"]["transfers_limit"], 7),
    "max_inodes": ("50000", "60000", lambda status: status["tree"]["inodes_limit"], 60_000),
    "listing_limit": ("2", "300", lambda status: status["repositories"][0]["listing"]["limit"], 300),
}
"""Options with a value before and one after, and the value that `status` then shows. Tests by name
cover the others.
"""
SEEN_OTHERWISE = {"metadata_ttl", "negative_ttl", "cache_min_free", "metrics_per_model", "shutdown_timeout"}
ASKED_FOR_EACH_TIME = {"dragonfly_manager", "dragonfly_manager_token_file"}
"""Read by `warm --cluster` alone, from the settings (`control/test_preheat.py`)."""


def test_every_live_option_counts_at_once(mounter: Mounter, bucket: Bucket, tmp_path: Path) -> None:
    assert SHOWN.keys() | SEEN_OTHERWISE | ASKED_FOR_EACH_TIME == LIVE
    point, config = mounter.point(), tmp_path / "config.toml"
    first = 'metadata_ttl = "1h"\nnegative_ttl = "1h"\nmetrics_per_model = 0\ncache_min_free = "0"\nshutdown_timeout = "10m"\n'
    config.write_text(toml(bucket, point) + first + "".join(f'{name} = "{old}"\n' for name, (old, *_) in SHOWN.items()))
    mounted = mounted_from(config, point, bucket)

    def looked_up(name: str) -> int:
        """The number of lookups in the daemon for two tests of an absent name."""
        before = mounted.status()["fuse"]["calls"].get("lookup", 0)
        for _ in range(2):
            assert not within(20, (point / name).exists)
        return int(mounted.status()["fuse"]["calls"]["lookup"] - before)

    assert looked_up("absent") == 1
    assert mounted.names() == sorted({name.partition("/")[0] for name in bucket.files})
    assert mounted.read("model/1/weights.bin") == bucket.files["model/1/weights.bin"]
    until(
        lambda: not mounted.status()["fuse"]["open_files"], "the end of all handles: an eviction spares what is in use"
    )
    status = mounted.status()
    assert status["repositories"][0]["listing"]["reason"] == "it has more than 2 objects"
    assert status["repositories"][0]["models"].keys() == {"other"}
    assert status["cache"]["used_bytes"] > 0
    assert all(shown(status) != value for _, _, shown, value in SHOWN.values())

    then = 'metadata_ttl = "1h"\nnegative_ttl = "0s"\nmetrics_per_model = 9\ncache_min_free = "1000TiB"\nshutdown_timeout = "0.1s"\n'
    config.write_text(
        toml(bucket, point) + then + "".join(f'{name} = "{new}"\n' for name, (_, new, *_) in SHOWN.items())
    )
    done = run("reload", "--json", point)
    assert (done.returncode, done.stderr) == (0, "")
    (answer,) = json.loads(done.stdout)
    assert answer["changed"].keys() == LIVE - {"metadata_ttl"} - ASKED_FOR_EACH_TIME
    assert answer["later"] == []
    status = mounted.status()
    assert {name: shown(status) for name, (_, _, shown, _) in SHOWN.items()} == {
        name: value for name, (*_, value) in SHOWN.items()
    }
    assert looked_up("absent as well") == 2
    assert status["repositories"][0]["listing"]["in_use"] == "whole", "the repository is below the new limit"
    until(lambda: mounted.status()["cache"]["used_bytes"] == 0, "the eviction that frees disk space")
    mounted.read("model/config.pbtxt")
    assert mounted.status()["repositories"][0]["models"].keys() == {"other", "model"}
    fd = within(20, lambda: os.open(point / "one.bin", os.O_RDONLY))
    try:
        mounted.kill(signal.SIGTERM)
        mounted.wait_ended()
    finally:
        os.close(fd)
    assert "still in use after 0.1 s" in mounted.log()


def test_reload_says_what_counts_and_what_is_wrong(mounter: Mounter, bucket: Bucket, tmp_path: Path) -> None:
    point, config = mounter.point(), tmp_path / "config.toml"
    config.write_text(toml(bucket, point))
    mounted = mounted_from(config, point, bucket)
    done = run("reload", point)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"{point}: no setting has changed; credentials were read again\n"

    config.write_text(toml(bucket, point) + 'log_level = "debug"\nfile_mode = "0400"\n')
    done = run("reload", "--pid", str(mounted.pid))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"{point}: changed: log_level = debug\n{point}: takes effect at the next mount: file_mode\n"

    config.write_text("cash_size = 1\n")
    done = run("reload", point)
    assert (done.returncode, done.stdout) == (1, f"{point}: nothing has changed\n")
    assert done.stderr.startswith(f"d7yfs: error: {point}: the settings stay as they are: ")
    assert "cash_size" in done.stderr
    assert "Traceback" not in done.stderr
    done = run("reload", "--json", point)
    assert done.returncode == 1
    (answer,) = json.loads(done.stdout)
    assert (answer["mountpoint"], answer["changed"]) == (str(point), {})
    assert "cash_size" in answer["error"]
    last = mounted.status()["last_reload"]
    assert {name: value for name, value in answer.items() if name not in ("schema", "mountpoint")} == last
    assert "could not be read again: " in run("status", point).stdout

    config.write_text(toml(bucket, point))
    assert run("reload", point).stdout == f"{point}: changed: log_level = info\n"
    assert mounted.status()["last_reload"]["error"] == ""
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
    config.write_text(text + '"absent"\n')
    done = run("reload", point)
    assert (done.returncode, done.stdout) == (1, f"{point}: changed: credentials of late\n")
    assert done.stderr.startswith(f"d7yfs: error: {point}: the credentials of late: ")
    config.write_text(text + '"new"\n')
    mounted.kill(signal.SIGHUP)
    until(lambda: mounted.log().count("changed: credentials of late") == 2, "the daemon's message")
    until(lambda: mounted.names("late") != [], "the repository", timeout_s=40)
    assert mounted.read("late/one.bin") == bucket.files["one.bin"]
    assert reader.secret_key not in mounted.log()
    assert run("umount", point).returncode == 0
    mounted.wait_ended()


def test_systemd_hears_of_a_reload(mounter: Mounter, bucket: Bucket, tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text("")
    with Notified(tmp_path / "notify") as notified:
        env = bucket.env | {"NOTIFY_SOCKET": str(notified.path)}
        mounted = mounter.mount(bucket.url("library"), "--config", str(config), env=env)
        assert notified.receive().startswith("READY=1")
        mounted.kill(signal.SIGHUP)
        assert notified.receive().startswith("RELOADING=1\nMONOTONIC_USEC=")
        assert notified.receive().startswith("READY=1\nSTATUS=s3://")
        for text, is_wrong in (("cash_size = 1\n", True), ("", False)):
            config.write_text(text)
            mounted.kill(signal.SIGHUP)
            assert notified.receive().startswith("RELOADING=1\n")
            told = notified.receive()
            assert told.startswith("READY=1\nSTATUS=s3://")
            assert ("; settings stay as they are: " in told, "cash_size" in told) == (is_wrong, is_wrong)
    assert "no setting has changed" in mounted.log()


def test_log_level(mounter: Mounter, bucket: Bucket) -> None:
    mounted = mounter.mount(bucket.url("library"), env=bucket.env, log_level="warning")
    said = run("log-level", "debug", mounted.point)
    assert said.stdout == f"{mounted.point}: debug (was warning); the log is {mounted.log_file}\n"
    shown = json.loads(run("log-level", "--json").stdout)
    answer = {"mountpoint": str(mounted.point), "level": "debug", "was": "debug", "log": str(mounted.log_file)}
    assert {"schema": 1} | answer in shown
    assert run("log-level", "loud").returncode == 2


def test_cache_drop_by_path(mounter: Mounter, bucket: Bucket) -> None:
    mounted = mounter.mount(f"models={bucket.url('library')}", env=bucket.env)
    mounted.read("models/over.bin")
    mounted.read("models/model/1/weights.bin")
    until(lambda: mounted.status()["fuse"]["open_files"] == 0, "the end of the readers")
    before = mounted.fetched("models")["direct_bytes"]
    done = run("cache", "drop", "--json", mounted.point / "models" / "model")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "schema": 1,
        "files": 1,
        "disk_bytes": 3 * MIB + 8192,
        "kept_files": 0,
        "kept": [],
    }
    mounted.read("models/over.bin")
    assert mounted.fetched("models")["direct_bytes"] == before, "the neighbouring file stays cached"
    mounted.read("models/model/1/weights.bin")
    assert mounted.fetched("models")["direct_bytes"] == before + 3 * MIB, (
        "neither cache nor kernel may still have the file"
    )

    fd = within(20, lambda: os.open(mounted.point / "models/over.bin", os.O_RDONLY))
    try:
        kept = run("cache", "drop", mounted.point)
        assert kept.returncode == 1
        assert "in use, kept: s3://" in kept.stdout
        assert "1 file dropped" in kept.stdout
    finally:
        os.close(fd)
    assert run("cache", "drop", mounted.point / "models" / "absent").returncode == 1
    assert "is not in a d7yfs mount" in run("cache", "drop", "/etc").stderr
