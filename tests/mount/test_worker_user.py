"""Workers that run as another user than their supervisor, without any privilege (`--worker-user`)."""

from __future__ import annotations

import configparser
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from d7yfs.control import control_socket
from d7yfs.host import kernel
from d7yfs.host.mount_table import READ_AHEAD_KIB, mounted_at
from d7yfs.host.privileges import SUPERVISING
from tests.mount.conftest import bytes_of, faulty_url
from tests.mount.mounted import Mounted, Mounter, ended, is_mounted, movers_of, run, until
from tests.mount.passthrough import opened, pread, told
from tests.servers.in_thread import InThread
from tests.servers.s3_faults import S3Faults

pytestmark = pytest.mark.mount

USER = 64123
"""A user without an account."""
BODY = bytes_of(5, 3 << 20)
MANY = {f"many/{number:03}": bytes_of(number, 700) for number in range(200)}
_KEPT = sum(1 << each for each in SUPERVISING)
_ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(scope="module", autouse=True)
def needs_the_kernels_help(fuse_engine: str) -> None:
    if obstacle := kernel.takeover_obstacle(fuse_engine):
        pytest.skip(f"no process takes over here: {obstacle}")


@pytest.fixture(scope="module")
def program() -> Iterator[Sequence[str]]:
    """d7yfs by an interpreter that every user can execute; this one may lie in root's home."""
    with pytest.MonkeyPatch.context() as patch:
        for python in (
            sys.executable,
            shutil.which(f"python3.{sys.version_info.minor}", path="/usr/bin:/usr/local/bin"),
        ):
            if python is None:
                continue
            if python != sys.executable:
                packages = [each for each in sys.path if each.endswith("site-packages")]
                patch.setenv("PYTHONPATH", os.pathsep.join([str(_ROOT), *packages]))
            command = (python, "-P", "-m", "d7yfs")
            try:
                done = subprocess.run(
                    [*command, "--version"], user=USER, group=USER, extra_groups=[], capture_output=True, cwd="/"
                )
            except PermissionError:
                continue
            if done.returncode == 0:
                yield command
                return
    pytest.skip("no Python here can be executed by every user")


@pytest.fixture
def ground() -> Iterator[Path]:
    """A directory that the workers' user can reach."""
    with tempfile.TemporaryDirectory(prefix="d7yfs-user-") as name:
        ground = Path(name)
        ground.chmod(0o755)
        os.chown(ground, USER, USER)
        yield ground


@pytest.fixture
def store(faulty: InThread[S3Faults]) -> InThread[S3Faults]:
    for name, body in {"file": BODY, **MANY}.items():
        faulty.do(faulty.server.put, f"b/{name}", body)
    return faulty


@pytest.fixture
def mounter(ground: Path) -> Iterator[Mounter]:
    with Mounter(ground) as made:
        yield made


def mount(mounter: Mounter, store: InThread[S3Faults], program: Sequence[str], *options: str) -> Mounted:
    options = ("--metrics-listen", "none", "--worker-user", str(USER), *options)
    return mounter.foreground(faulty_url(store), "--anonymous", *options, program=program)


def of_process(pid: int, name: str) -> list[str]:
    """A line of /proc/PID/status."""
    lines = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return lines[name].split()


def judge_processes(mounted: Mounted, *, kept: int = _KEPT) -> None:
    """Make sure that both processes have what they need, and nothing else. `kept`: the supervisor's
    capabilities, one bit each."""
    worker = mounted.worker_pid
    assert mounted.status()["takeover"]["worker_uid"] == USER
    for name in ("Uid", "Gid"):
        assert of_process(worker, name) == [str(USER)] * 4
        assert of_process(mounted.pid, name) == ["0"] * 4
    assert of_process(worker, "Groups") == []
    for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        assert int(of_process(worker, name)[0], 16) == 0
    for name in ("CapPrm", "CapEff", "CapBnd"):
        assert int(of_process(mounted.pid, name)[0], 16) == kept
    assert of_process(worker, "NoNewPrivs") == of_process(mounted.pid, "NoNewPrivs") == ["1"]
    assert Path(f"/proc/{mounted.pid}/cwd").readlink() == Path("/")


def test_movers_have_the_rights_of_their_worker(
    mounter: Mounter, store: InThread[S3Faults], program: Sequence[str]
) -> None:
    mounted = mount(mounter, store, program, "--movers", "1", "--allow-other")
    assert mounted.read("file") == BODY
    until(lambda: bool(movers_of(mounted.worker_pid)), "a mover")
    (mover,) = movers_of(mounted.worker_pid)
    assert of_process(mover, "Uid") == [str(USER)] * 4
    assert of_process(mover, "Groups") == []
    assert of_process(mover, "NoNewPrivs") == ["1"]
    for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        assert int(of_process(mover, name)[0], 16) == 0
    # The kernel gives these files to root where other processes of the user may not look into this one.
    until(lambda: Path(f"/proc/{mover}/mem").stat().st_uid == 0, "a mover whose memory is its own")


def fill(mounted: Mounted) -> None:
    assert mounted.read("file") == BODY
    until(lambda: not mounted.status()["fuse"]["open_files"], "the end of the handle that the daemon serves")


def test_the_kernel_reads_by_itself_and_a_killed_worker_is_followed(
    mounter: Mounter, store: InThread[S3Faults], program: Sequence[str]
) -> None:
    mounted = mount(mounter, store, program, "--allow-other")
    judge_processes(mounted)
    assert mounted.cache_dir.stat().st_uid == USER
    device = mounted_at(mounted.point)
    assert device is not None
    read_ahead = Path(f"/sys/class/bdi/{device.device}/read_ahead_kb").read_text()
    assert read_ahead.strip() == str(READ_AHEAD_KIB), mounted.log()
    fill(mounted)
    with opened(mounted) as fd:
        opens, reads = told(mounted)
        assert opens == 1
        assert pread(fd, len(BODY)) == BODY
        assert told(mounted) == (opens, reads)
        for generation in (2, 3):
            killed = mounted.worker_pid
            os.kill(killed, signal.SIGKILL)
            assert {name: mounted.read(name) for name in MANY} == MANY
            assert pread(fd, len(BODY)) == BODY
            assert mounted.status()["takeover"]["generation"] == generation
            judge_processes(mounted)
    opens = told(mounted)[0]
    assert mounted.read("file") == BODY
    assert told(mounted)[0] == opens + 1, "the worker that took over has files registered, too"
    path = control_socket.socket_path(mounted.point)
    assert path.stat().st_uid == 0
    worker = mounted.worker_pid
    assert run("umount", mounted.point).returncode == 0
    mounted.wait_ended()
    until(lambda: ended(worker), "the end of the worker")
    assert not path.exists()


def test_a_mount_of_root_alone_is_watched_by_a_worker_that_may_not_read_it(
    mounter: Mounter, store: InThread[S3Faults], program: Sequence[str]
) -> None:
    mounted = mount(mounter, store, program)
    done = subprocess.run(
        ["cat", "file"], cwd="/", user=USER, group=USER, extra_groups=[], capture_output=True, timeout=20
    )
    assert done.returncode
    health = json.loads(run("health", "--json", mounted.point).stdout)
    assert (health[0]["alive"], health[0]["ready"], health[0]["mount_answers"]) == (True, True, True)
    assert mounted.read("file") == BODY
    os.kill(mounted.worker_pid, signal.SIGSTOP)
    assert mounted.process is not None
    mounted.kill(signal.SIGTERM)
    mounted.wait_ended(timeout_s=60)
    assert not is_mounted(mounted.point)


def test_an_upgrade_keeps_the_user(mounter: Mounter, store: InThread[S3Faults], program: Sequence[str]) -> None:
    mounted = mount(mounter, store, program, "--takeover", "cold")
    before = mounted.worker_pid
    done = run("upgrade", mounted.point)
    assert (done.returncode, done.stderr) == (0, "")
    assert mounted.worker_pid != before
    judge_processes(mounted)


def refusal(program: Sequence[str], *arguments: str | Path) -> str:
    """The words of a `d7yfs mount` that must fail."""
    done = subprocess.run(
        [*program, "mount", "--metrics-listen", "none", *map(str, arguments)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode in (1, 2)
    assert "Traceback" not in done.stderr
    return done.stderr


def test_what_the_user_may_not_have_is_told(
    mounter: Mounter, store: InThread[S3Faults], program: Sequence[str], ground: Path
) -> None:
    point, url, log = mounter.point(), faulty_url(store), ground / "log" / "d7yfs.log"
    named = ("--anonymous", "--log-file", log, "--worker-user", str(USER))
    (ground / "roots").mkdir(mode=0o700)
    said = refusal(program, *named, "--cache-dir", ground / "roots", url, point)
    assert f"{ground}/roots belongs to uid 0, and --worker-user is uid {USER}" in said
    assert f"chown -R {USER}:{USER} {ground}/roots" in said
    config = ground / "c.toml"
    config.write_text(f'source = "{url}"\n')
    config.chmod(0o600)
    said = refusal(program, *named, "--cache-dir", ground / "cache", "--config", config, point)
    assert f"as user {USER} (--worker-user): {config}: cannot be read: Permission denied" in said
    (ground / "closed").mkdir(mode=0o700)
    said = refusal(program, *named, "--cache-dir", ground / "closed" / "cache", url, point)
    assert f"{ground}/closed/cache" in said
    assert "Permission denied" in said
    said = refusal(
        program, *named[:2], ground / "closed" / "log", *named[3:], "--cache-dir", ground / "cache", url, point
    )
    assert f"cannot make files in {ground}/closed" in said
    assert not is_mounted(point)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--worker-user", "nobody-of-this-name"), "there is no user 'nobody-of-this-name'"),
        (("--worker-user", "root"), "root is root"),
        (("--worker-user", str(USER), "--takeover", "off"), "--worker-user is not possible: --takeover off"),
    ],
)
def test_what_is_not_possible_is_refused(
    mounter: Mounter, program: Sequence[str], options: Sequence[str], said: str
) -> None:
    assert said in refusal(program, *options, "--anonymous", "s3://b/x", mounter.point())


def test_a_plain_user_is_told_that_this_is_for_root(mounter: Mounter, program: Sequence[str]) -> None:
    done = subprocess.run(
        [*program, "mount", "--foreground", "--worker-user", "1", "s3://b/x", str(mounter.point())],
        user=USER,
        group=USER,
        extra_groups=[],
        cwd="/",
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "--worker-user is for mounts of root's" in done.stderr


def test_check_tries_all_that_matters_as_that_user(
    mounter: Mounter, store: InThread[S3Faults], program: Sequence[str], ground: Path
) -> None:
    config, point = ground / "c.toml", mounter.point()
    config.write_text(f'source = "{faulty_url(store)}"\nanonymous = true\nworker_user = "{USER}"\n')

    def findings() -> dict[str, tuple[str, str]]:
        command = [*program, "check", "--json", "--config", f"{config}", "--cache-dir", f"{ground}/cache", f"{point}"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        return {each["probe"]: (each["verdict"], each["said"]) for each in json.loads(done.stdout)}

    found = findings()
    assert found["worker user"][0] == found["cache"][0] == found["read"][0] == "ok", found
    (ground / "cache").mkdir(mode=0o700)
    assert findings()["cache"] == ("failed", f"cache directory {ground}/cache cannot be used: Permission denied")
    config.chmod(0o600)
    verdict, said = findings()["worker user"]
    assert (verdict, said) == ("failed", f"{USER}: {config}: cannot be read: Permission denied")


def test_check_of_such_a_mount_is_done_by_its_worker(
    mounter: Mounter, store: InThread[S3Faults], program: Sequence[str]
) -> None:
    mounted = mount(mounter, store, program)
    command = [*program, "check", "--json", f"{mounted.point}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    found = {each["probe"]: each for each in json.loads(done.stdout)}
    assert done.returncode == 0, found
    assert f"already mounted by pid {mounted.pid}" in found["mount"]["said"]
    assert (found["list"]["verdict"], found["read"]["verdict"]) == ("ok", "ok")


def test_root_works_in_such_a_cache_as_its_owner(
    mounter: Mounter, store: InThread[S3Faults], program: Sequence[str]
) -> None:
    mounted = mount(mounter, store, program)
    fill(mounted)
    mounted.kill(signal.SIGTERM)
    mounted.wait_ended()
    command = [*program, "cache", "verify", "--json", "--cache-dir", f"{mounted.cache_dir}"]
    (verdict,) = json.loads(subprocess.run(command, capture_output=True, timeout=60, check=True).stdout)
    assert (verdict["checked_blocks"], verdict["bad_blocks"]) == (3, [])
    done = subprocess.run([*program, "cache", "drop", "--all", "--cache-dir", mounted.cache_dir], timeout=60)
    assert done.returncode == 0
    assert not list(mounted.cache_dir.rglob("*.data"))


def test_the_units_capabilities_and_system_calls_are_enough(
    mounter: Mounter, store: InThread[S3Faults], program: Sequence[str], ground: Path
) -> None:
    unit = configparser.ConfigParser(interpolation=None)
    unit.read(_ROOT / "systemd" / "d7yfs@.service")
    dropped_in = (_ROOT / "systemd" / "worker-user.conf").read_text()
    capabilities = dropped_in.rpartition("CapabilityBoundingSet=")[2].split()
    numbers = {"CAP_SYS_ADMIN": 21, "CAP_SETUID": 7, "CAP_SETGID": 6, "CAP_SETPCAP": 8, "CAP_KILL": 5}
    assert set(capabilities) == set(numbers)
    bounding = ",".join(["-all", *(f"+{each.removeprefix('CAP_').lower()}" for each in capabilities)])
    under = ["setpriv", f"--bounding-set={bounding}", sys.executable, str(_ROOT / "tests" / "syscall_filter.py")]
    cache_dir = ground / "cache-mnt1"
    cache_dir.mkdir(mode=0o700)
    os.chown(cache_dir, USER, USER)
    filtered = (*under, *unit["Service"]["SystemCallFilter"].split(), "--", *program)
    mounted = mount(mounter, store, filtered, "--allow-other")
    judge_processes(mounted, kept=sum(1 << number for number in numbers.values()))
    fill(mounted)
    with opened(mounted):
        assert told(mounted)[0] == 1
    os.kill(mounted.worker_pid, signal.SIGKILL)
    assert mounted.read("many/000") == MANY["many/000"]
    mounted.kill(signal.SIGTERM)
    mounted.wait_ended()
