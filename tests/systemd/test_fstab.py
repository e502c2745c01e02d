"""Lines of fstab under a real systemd: mount units and automounts."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import pytest

from tests.mount.conftest import Bucket
from tests.mount.mounted import until, within
from tests.servers.systemd import Systemd

pytestmark = [pytest.mark.mount, pytest.mark.store]


@dataclass
class Line:
    """A line of fstab that mounts the library of a bucket, and its units."""

    manager: Systemd
    bucket: Bucket
    ground: Path
    units: tuple[str, ...] = ()

    def add(self, *options: str) -> None:
        """Have systemd make units of the line."""
        keys = self.ground / "keys"
        keys.write_text("".join(f"{name}={value}\n" for name, value in self.bucket.env.items()))
        files = (f"credentials={keys}", f"cache_dir={self.ground}/cache", f"log_file={self.ground}/log")
        every = ("ro", "_netdev", *files, "metrics_listen=none")
        line = f"{self.bucket.url('library')} {self.point} d7yfs {','.join((*every, *options))} 0 0"
        self.units = tuple(self.manager.add_to_fstab(line))

    @property
    def point(self) -> Path:
        return self.ground / "mnt"

    def unit(self, kind: str) -> str:
        """The name of the mount unit, or of the automount unit."""
        (found,) = (each for each in self.units if each.endswith(f".{kind}"))
        return found

    def systemctl(self, verb: str, kind: str) -> None:
        done = self.manager.run("systemctl", verb, self.unit(kind))
        assert done.returncode == 0, done.stderr + self.manager.log()[-4000:]

    def state(self, kind: str) -> str:
        return self.manager.show(self.unit(kind), "ActiveState")

    def check_bytes(self, name: str = "over.bin") -> None:
        """Read a file as a process of the manager: an automount serves no process from outside."""
        done = self.manager.run("timeout", "60", "sha256sum", self.point / name)
        assert done.stdout.split()[:1] == [sha256(self.bucket.files[name]).hexdigest()], done.stderr


@pytest.fixture
def line(manager: Systemd, bucket: Bucket) -> Iterator[Line]:
    with tempfile.TemporaryDirectory(prefix="d7yfs-fstab-", dir="/var/tmp") as ground:
        made = Line(manager, bucket, Path(ground))
        made.point.mkdir()
        try:
            yield made
        finally:
            manager.run("systemctl", "stop", *made.units)


@pytest.mark.parametrize("takeover", ["standby", "off"])
def test_an_automount_mounts_at_the_first_access(line: Line, takeover: str) -> None:
    """The daemon does not wait for the automount that waits for it."""
    line.add("noauto", "x-systemd.automount", "x-systemd.mount-timeout=30s", f"takeover={takeover}")
    line.systemctl("start", "automount")
    assert line.state("mount") == "inactive"
    with ThreadPoolExecutor() as pool:
        list(pool.map(line.check_bytes, ["over.bin", "one.bin", "over.bin"]))
    assert line.state("mount") == "active"


def test_a_mount_by_hand_takes_the_place_of_an_automount(line: Line) -> None:
    line.add("noauto", "x-systemd.automount")
    line.systemctl("start", "automount")
    options = [
        "--credentials",
        f"{line.ground}/keys",
        "--cache-dir",
        f"{line.ground}/cache",
        "--log-file",
        f"{line.ground}/log",
        "--metrics-listen",
        "none",
    ]
    where = [line.bucket.url("library"), str(line.point)]
    done = line.manager.run("timeout", "30", "d7yfs", "mount", *options, *where)
    assert done.returncode == 0, done.stderr
    until(lambda: line.state("mount") == "active", "systemd to see it")
    line.check_bytes()


def test_an_idle_automount_is_unmounted_and_comes_again(line: Line) -> None:
    line.add("noauto", "x-systemd.automount", "x-systemd.idle-timeout=2s", "x-systemd.mount-timeout=30s")
    line.systemctl("start", "automount")
    for _ in range(2):
        line.check_bytes()
        until(lambda: line.state("mount") == "inactive", "the end of an idle mount", timeout_s=60)
    assert line.state("automount") == "active"


def test_a_mount_unit_starts_and_stops_but_not_under_readers(line: Line) -> None:
    line.add()
    line.systemctl("start", "mount")
    with (line.manager.inside(line.point) / "over.bin").open("rb") as file:
        assert line.manager.run("systemctl", "stop", line.unit("mount")).returncode != 0
        assert line.state("mount") == "active"
        assert within(60, file.read) == line.bucket.files["over.bin"]
    for _ in range(2):
        line.systemctl("restart", "mount")
        line.check_bytes()
    line.systemctl("stop", "mount")
    assert line.state("mount") == "inactive"
    assert str(line.point) not in line.manager.run("cat", "/proc/self/mounts").stdout


def test_a_mount_unit_that_unmounts_lazily_stops_under_readers(line: Line) -> None:
    line.add()
    line.manager.change(line.unit("mount"), "[Mount]\nLazyUnmount=yes\n")
    line.systemctl("start", "mount")
    with (line.manager.inside(line.point) / "over.bin").open("rb") as file:
        line.systemctl("stop", "mount")
        assert line.state("mount") == "inactive"
        assert str(line.point) not in line.manager.run("cat", "/proc/self/mounts").stdout
        assert within(60, file.read) == line.bucket.files["over.bin"], "a reader reads on"


def test_a_model_server_comes_back_with_its_mount_unit(line: Line) -> None:
    line.add()
    unit, server = line.unit("mount"), "server-of-fstab.service"
    command = f"/bin/sh -c 'exec sleep infinity <{line.point}/over.bin'"
    lines = f"[Unit]\nRequiresMountsFor={line.point}\n[Service]\nExecStart={command}\n"
    line.manager.add(server, lines, wanted_by=unit)
    assert line.manager.run("systemctl", "start", server).returncode == 0
    assert line.state("mount") == "active"
    for verbs in (["restart"], ["stop", "start"]):
        for verb in verbs:
            line.systemctl(verb, "mount")
        until(lambda: line.manager.show(server, "ActiveState") == "active", "the server")
    line.manager.run("systemctl", "stop", server)
