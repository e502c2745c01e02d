"""Mounts in the group of their caller, and by lines of fstab: `mount -a`, an automount that waits. (tests/systemd
has a real systemd.)"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sysconfig
from pathlib import Path

import pytest

from d7yfs.control import control_socket
from tests.host.automount import automounting
from tests.mount.conftest import Bucket, faulty_url
from tests.mount.mounted import D7YFS, Mounter, Notified, ended, in_background, is_mounted, run, until
from tests.servers import faults
from tests.servers.in_thread import InThread
from tests.servers.s3_faults import S3Faults

pytestmark = [pytest.mark.mount, pytest.mark.store]

# mount(8) looks for its helpers in /sbin alone: here in an empty file system, which ends with the script.
_MOUNT_ALL = """
set -e
mount -t tmpfs none "$(readlink -f /sbin)"
ln -s "$1" /sbin/mount.d7yfs
for run in first second; do mount -a -T "$2" && echo "$run"; done
grep -F "$3" /proc/self/mounts || true
for point in "$3"/*; do umount "$point"; done
"""


@pytest.mark.parametrize("takeover", ["auto", "off"])
def test_a_mount_does_not_wait_for_the_automount_that_waits_for_it(
    mounter: Mounter, bucket: Bucket, takeover: str
) -> None:
    point = mounter.point()
    options = ("--takeover", takeover, "--cache-dir", str(mounter.directory / "cache"), "--log-file")
    command = [*D7YFS, "mount", *options, str(mounter.directory / "log"), bucket.url("library"), str(point)]
    with (
        subprocess.Popen(
            ["sh", "-c", 'read go && exec "$@"', "sh", *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=os.environ | bucket.env,
            process_group=0,
            text=True,
        ) as mounting,
        automounting(point, mounting.pid) as automount,
    ):
        reader = in_background((point / "one.bin").read_bytes)
        token = automount.await_reader()
        said, _ = mounting.communicate("go\n", timeout=30)
        assert mounting.returncode == 0, said
        assert not reader.done()
        automount.let_pass(token)
        assert reader.result(20) == bucket.files["one.bin"]
        pid = int(control_socket.ask(control_socket.socket_path(point), "status")["pid"])
        assert os.getsid(pid) != os.getsid(0), "a daemon is in a session of its own"
    until(lambda: ended(pid), "the end of the daemon of a mount that was taken away")


@pytest.mark.parametrize("takeover", ["auto", "off"])
def test_ctrl_c_ends_a_mount_that_waits_for_its_store(
    mounter: Mounter, faulty: InThread[S3Faults], takeover: str
) -> None:
    """The daemon is in the terminal's group until it is ready."""
    faulty.do(faulty.server.put, "b/file", b"bytes")
    silence = faults.Hang()
    faulty.do(lambda: faulty.server.script(silence, key="b", forever=True))
    point = mounter.point()
    files = ("--cache-dir", str(mounter.directory / "cache"), "--log-file", str(mounter.directory / "log"))
    with subprocess.Popen(
        [*D7YFS, "mount", "--anonymous", "--takeover", takeover, *files, faulty_url(faulty), str(point)],
        stderr=subprocess.PIPE,
        process_group=0,
        text=True,
    ) as mounting:
        faulty.wait(silence.reached)
        os.killpg(mounting.pid, signal.SIGINT)
        _, said = mounting.communicate(timeout=20)
    assert (mounting.returncode, said) == (1, "\nAborted!\n")
    until(lambda: not processes_about(point), "the end of all its processes")
    assert not is_mounted(point)


def processes_about(point: Path) -> list[int]:
    """The processes that have it among their arguments."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if os.fsencode(point) in (process / "cmdline").read_bytes().split(b"\0"):
                found.append(int(process.name))
    return found


def test_mount_all_knows_what_is_mounted_however_it_is_written(bucket: Bucket, tmp_path: Path) -> None:
    host, points = f"127.0.0.1:{bucket.server.port}", tmp_path / "points"
    place = f"{host}/{bucket.name}"
    sources = [
        *(f"s3://{place}/library", f"S3://{place}//library/", f"a=s3://{place}/library;b=S3://http://{place}"),
        f"s3://http://LOCALHOST:{bucket.server.port}/{bucket.name}/library/model",
    ]
    lines, keys = [], tmp_path / "models.env"
    keys.write_text("".join(f"{name}={value}\n" for name, value in bucket.env.items()))
    keys.chmod(0o600)
    for number, source in enumerate(sources):
        (points / str(number)).mkdir(parents=True)
        options = f"ro,takeover=off,metrics_listen=none,cache_dir={tmp_path}/cache,log_file={tmp_path}/log{number}"
        options += f",credentials={keys}"
        lines.append(f"{source} {points}/{number} d7yfs {options} 0 0\n")
    lines.append(f"none {points}/by-file d7yfs ro,config={tmp_path}/models.toml,credentials={keys} 0 0\n")
    (points / "by-file").mkdir()
    settings = {
        "takeover": "off",
        "metrics_listen": "none",
        "cache_dir": f"{tmp_path}/cache",
        "log_file": f"{tmp_path}/log",
        "source": f"s3://{place}/library",
    }
    (tmp_path / "models.toml").write_text("".join(f"{key} = {json.dumps(each)}\n" for key, each in settings.items()))
    sources.append(settings["source"])
    (tmp_path / "fstab").write_text("".join(lines))
    helper = Path(sysconfig.get_path("scripts")) / "mount.d7yfs"
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", _MOUNT_ALL, "sh", helper, tmp_path / "fstab", points],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stderr) == (0, "")
    said = done.stdout.splitlines()
    assert [said[len(sources)], said[len(sources) + 1]] == ["first", "second"], "the second one says nothing"
    assert [line.split()[0].rstrip("/") for line in said[len(sources) + 2 :]] == [
        source.rstrip("/") for source in sources
    ]


def test_only_the_same_mount_is_one_that_is_there_already(mounter: Mounter, bucket: Bucket) -> None:
    mounted = mounter.mount(bucket.url("library"), "--takeover", "off", env=bucket.env)
    again = ("mount", "--unless-mounted", "--cache-dir", mounted.cache_dir, "--log-file", mounter.directory / "log")
    done = run(*again, bucket.url("library"), mounted.point, env=bucket.env)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    done = run(*again, bucket.url("library/model"), mounted.point, env=bucket.env)
    assert done.returncode == 1
    assert f"{mounted.point} is already mounted ({bucket.url('library')})" in done.stderr
    mounted.kill(signal.SIGKILL)
    done = run(*again, bucket.url("library"), mounted.point, env=bucket.env)
    assert done.returncode == 0, done.stderr
    assert "was a dead mount; cleaned up" in done.stderr
    assert mounted.read("one.bin") == bucket.files["one.bin"]


def test_a_service_without_keys_is_told_where_they_go(mounter: Mounter, bucket: Bucket) -> None:
    point = mounter.point()
    with Notified(point.with_suffix(".notify")) as notified:
        files = ("--cache-dir", mounter.directory / "cache")
        variables = {name: "wrong" if "KEY" in name else value for name, value in bucket.env.items()}
        environment = variables | {"NOTIFY_SOCKET": str(notified.path)}
        done = run("mount", "--foreground", *files, bucket.url("library"), point, env=environment)
    assert done.returncode == 1
    assert "d7yfs: error: " in done.stderr
    assert "go into /etc/d7yfs/NAME.env, as KEY=value lines (mode 0600)" in done.stderr


@pytest.mark.parametrize("takeover", ["auto", "off"])
def test_refused_keys_of_a_file_name_it(mounter: Mounter, bucket: Bucket, takeover: str) -> None:
    keys = mounter.directory / "models.env"
    keys.write_text("".join(f"{name}={'wrong' if 'KEY' in name else value}\n" for name, value in bucket.env.items()))
    keys.chmod(0o600)
    files = ("--cache-dir", mounter.directory / "cache", "--log-file", mounter.directory / "log", "--credentials", keys)
    done = run("mount", "--takeover", takeover, *files, bucket.url("library"), mounter.point())
    assert done.returncode == 1
    assert (
        f"environment variables (AWS_ACCESS_KEY_ID, …); variables were read from {keys} (--credentials)" in done.stderr
    )
