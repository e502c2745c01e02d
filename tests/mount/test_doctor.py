"""`d7yfs doctor`: a file for a bug report, with a daemon in any condition, and without a secret."""

from __future__ import annotations

import json
import signal
import stat
import subprocess
from functools import partial
from pathlib import Path

import pytest

from d7yfs import __version__
from d7yfs.cache.directory import FORMAT
from tests.mount.conftest import MIB, bytes_of, faulty_url
from tests.mount.mounted import D7YFS, Mounter, ended, is_mounted, run, until
from tests.mount.test_secrets import HEADER, KEY_ID, NEVER, SECRET_KEY, TOKEN
from tests.servers import faults
from tests.servers.dfdaemon import FakeDfdaemon
from tests.servers.in_thread import InThread
from tests.servers.s3_faults import S3Faults

pytestmark = pytest.mark.mount

ALONE = ("--anonymous", "--takeover", "off", "--metrics-listen", "none")
PASSWORD = "pass-word-of-somebody"


@pytest.fixture
def store(faulty: InThread[S3Faults]) -> InThread[S3Faults]:
    faulty.do(faulty.server.put, "b/file", b"bytes")
    return faulty


def report(tmp_path: Path, *arguments: str | Path, env: dict[str, str] | None = None) -> str:
    """The file, which must be its owner's alone."""
    file = tmp_path / "report.txt"
    file.unlink(missing_ok=True)
    done = run("doctor", *arguments, "-o", file, env=env, timeout_s=120)
    assert done.returncode == 0, done.stderr
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert done.stdout.startswith(f"{file}: ")
    assert "are in it" in done.stdout
    return file.read_text()


def section(text: str, title: str) -> str:
    """The lines of the section that begins so."""
    return text.split(f"\n== {title}", 1)[1].split("\n", 1)[1].split("\n== ", 1)[0].strip()


def test_a_running_mount_in_trouble_and_no_secret(mounter: Mounter, faulty: InThread[S3Faults], tmp_path: Path) -> None:
    """Secrets are planted in variables, files, headers and URLs, and all of them are used."""
    for seed, name in enumerate(("good", "denied")):
        faulty.do(faulty.server.put, f"b/{name}", bytes_of(seed, 6 * MIB))
    with InThread(FakeDfdaemon()) as dfdaemon:
        dragonfly = tmp_path / "dragonfly_config.json"
        dragonfly.write_text(json.dumps({"proxy": dfdaemon.server.url, "header": {"X-Tenant": HEADER}}))
        keys = {"key_id": KEY_ID, "secret_key": SECRET_KEY, "session_token": TOKEN}
        triton = tmp_path / "cloud_credential.json"
        triton.write_text(json.dumps({"s3": {"": keys}}))
        env = {
            "TRITON_DRAGONFLY_CONFIG_PATH": str(dragonfly),
            "TRITON_CLOUD_CREDENTIAL_PATH": str(triton),
        }
        mounted = mounter.mount(faulty_url(faulty), "--read-timeout", "2s", env=env)
        assert mounted.read("good") == bytes_of(0, 6 * MIB)
        refusal = faults.status(403, {}, b"<Error><Code>SignatureDoesNotMatch</Code></Error>")
        faulty.do(partial(faulty.server.script, refusal, key="b/denied", forever=True))
        dfdaemon.do(dfdaemon.server.kill)
        with pytest.raises(OSError, match=r"denied|error"):
            mounted.read("denied")
        elsewhere = env | {
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
            "AWS_SESSION_TOKEN": TOKEN,
            "D7YFS_SOURCE": f"s3://user:{PASSWORD}@host:9000/b",
            "MY_TOKEN": HEADER,
        }
        text = report(tmp_path, mounted.point, env=elsewhere)
        without_names = report(tmp_path, mounted.point, "--no-names", env=elsewhere)
    for secret in (*NEVER, PASSWORD):
        assert secret not in text + without_names
    assert f"d7yfs {__version__}" in section(text, "Versions")
    assert "trio " in section(text, "Versions")
    assert "/dev/fuse: mode" in section(text, "FUSE")
    assert f"{mounted.point}: fuse.d7yfs of s3://" in section(text, "FUSE mounts")
    assert "NOFILE" in section(text, "Limits")
    assert "AWS_SECRET_ACCESS_KEY" in section(text, "Variables").splitlines(), "by name alone"
    assert "already mounted by pid" in section(text, "Mount ")
    assert "credentials-refused since" in section(text, "Problems")
    assert "read_timeout = 2s  (from --read-timeout)" in section(text, "Settings of")
    assert "used_bytes = " in section(text, "Cache of")
    assert "Max open files" in section(text, "Processes")
    assert "SignatureDoesNotMatch" in section(text, "Log of"), "the log of the trouble"
    assert json.loads(section(text, "Status of"))["pid"] == mounted.pid
    assert "holds credentials" in section(text, "Settings as a new mount would have them")
    assert "b/denied" in text
    assert "b/denied" not in without_names
    assert "credentials-refused since" in without_names


def test_what_looks_like_a_secret_in_a_log_is_masked(
    mounter: Mounter, store: InThread[S3Faults], tmp_path: Path
) -> None:
    """The second line of defence: a library, say, wrote to the log."""
    mounted = mounter.mount(faulty_url(store), *ALONE)
    planted = (
        f"GET /b/k?X-Amz-Credential={KEY_ID}&X-Amz-Signature=0123abc&sig={PASSWORD} HTTP/1.1",
        f"Authorization: AWS4-HMAC-SHA256 Credential={KEY_ID}, Signature=0123abc",
        f"http://user:{PASSWORD}@proxy:3128",
        f"Bearer {PASSWORD}",
        "-----BEGIN RSA PRIVATE KEY-----\nMIIEowIBAAKCAQEA\n-----END RSA PRIVATE KEY-----",
        HEADER,
    )
    with mounted.log_file.open("a") as log:
        log.write("\n".join(planted) + "\nthe last line\n")
    text = report(tmp_path, mounted.point, env={"SOME_API_KEY": HEADER})
    assert "the last line" in section(text, "Log of")
    assert [each for each in (PASSWORD, KEY_ID, HEADER, "0123abc", "MIIEow") if each in text] == []


def test_a_daemon_that_hangs(mounter: Mounter, store: InThread[S3Faults], tmp_path: Path) -> None:
    mounted = mounter.mount(faulty_url(store), *ALONE)
    mounted.kill(signal.SIGSTOP)
    try:
        text = report(tmp_path, mounted.point)
    finally:
        mounted.kill(signal.SIGCONT)
    assert "does not answer within 5 s: it is stopped" in section(text, "Mount ")
    assert "T (stopped)" in section(text, "Processes")
    assert "is mounted on" in section(text, "Log of"), "its command names the file"
    assert section(text, "Status of") == "nothing is known"


def test_a_dead_daemon_and_all_mounts(mounter: Mounter, store: InThread[S3Faults], tmp_path: Path) -> None:
    dead = mounter.mount(faulty_url(store), *ALONE)
    well = mounter.mount(faulty_url(store), *ALONE)
    dead.kill()
    until(lambda: ended(dead.pid), "its end")
    text = report(tmp_path)
    assert "is a dead mount" in section(text, f"Mount {dead.point}")
    assert "already mounted by pid" in section(text, f"Mount {well.point}")


def test_a_log_on_stderr_is_looked_for_in_the_journal(
    mounter: Mounter, store: InThread[S3Faults], tmp_path: Path
) -> None:
    point = mounter.point()
    options = (*ALONE, "--foreground", "--cache-dir", str(tmp_path / "cache"))
    with subprocess.Popen(
        [*D7YFS, "mount", faulty_url(store), *options, str(point)], stderr=subprocess.PIPE
    ) as process:
        try:
            until(lambda: is_mounted(point) and run("health", point).returncode == 0, "the mount")
            text = report(tmp_path, point)
        finally:
            process.terminate()
            process.communicate(timeout=30)
    assert f"It goes to the stderr of process {process.pid}" in section(text, "Log of")


def test_without_any_mount(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    (cache / FORMAT).mkdir(parents=True)
    config = tmp_path / "c.toml"
    config.write_text(f'source = "s3://bucket/models"\ncache_dir = "{cache}"\nread_timeout = "7s"\n')
    text = report(tmp_path, "--config", config)
    assert "Mounts: none" in text
    assert f"read_timeout = 7s  (from {config})" in section(text, "Settings as a new mount")
    assert "0 versions of files" in section(text, "Cache directory of a new mount")


def test_the_file_is_a_new_one_in_the_working_directory(tmp_path: Path) -> None:
    command = [*D7YFS, "doctor"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=True)
    (made,) = tmp_path.glob("d7yfs-doctor-*.txt")
    assert done.stdout.startswith(f"{made.name}: ")
    (tmp_path / "link").symlink_to(tmp_path / "target")
    for name in ("link", made.name):
        done = run("doctor", "-o", tmp_path / name)
        assert done.returncode == 2
        assert "name a new file" in done.stderr
    assert not (tmp_path / "target").exists()
    assert run("doctor", "-o", "-").stdout.startswith("d7yfs doctor, ")
