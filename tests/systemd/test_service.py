"""The unit under a real systemd: readiness, kills of workers and of the supervisor, the watchdog, a reload, a
restart, a stop."""

from __future__ import annotations

import itertools
import json
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from tests.mount.conftest import Bucket
from tests.mount.mounted import until, within
from tests.servers.systemd import Systemd

pytestmark = [pytest.mark.mount, pytest.mark.store]

ROOT = Path(__file__).resolve().parents[2]
_numbers = itertools.count(1)


@dataclass
class Service:
    """An instance of the unit that mounts the library of a bucket."""

    manager: Systemd
    name: str
    point: Path
    bucket: Bucket
    settings: Path
    """Its TOML file."""

    def systemctl(self, *command: str) -> None:
        done = self.manager.run("systemctl", *command, self.name)
        assert done.returncode == 0, done.stderr + self.manager.log()[-4000:]

    def show(self, name: str) -> str:
        return self.manager.show(self.name, name)

    def takeover(self) -> dict[str, Any]:
        """The account of the supervisor; empty while no worker answers."""
        done = self.manager.run("/usr/local/bin/d7yfs", "status", "--json", self.point)
        if done.returncode:
            return {}
        found = json.loads(done.stdout)
        (mount,) = found if isinstance(found, list) else [found]
        return dict(mount["takeover"])

    def await_worker(self, generation: int) -> dict[str, Any]:
        until(lambda: self.takeover().get("generation") == generation, f"generation {generation}", timeout_s=60)
        return self.takeover()

    def open(self, name: str) -> BinaryIO:
        """A file of the mount, open for reading."""
        path = self.manager.inside(self.point) / name
        return within(60, lambda: path.open("rb", buffering=0))

    def check_bytes(self) -> None:
        with self.open("over.bin") as file:
            assert within(60, file.read) == self.bucket.files["over.bin"]


@pytest.fixture
def settings() -> str:
    """Lines of the unit's section [Service] that a test changes."""
    return ""


@pytest.fixture
def service(manager: Systemd, bucket: Bucket, settings: str) -> Iterator[Service]:
    instance = f"models{next(_numbers)}"
    with tempfile.TemporaryDirectory(prefix="d7yfs-service-", dir="/var/tmp") as ground:
        point, etc = Path(ground) / "mnt", manager.inside(Path("/etc/d7yfs"))
        point.mkdir()
        options = {"source": bucket.url("library"), "mountpoint": str(point), "cache_dir": f"{ground}/cache"}
        options |= {"metrics_listen": "none", "takeover": "standby", "shutdown_timeout": "2s"}
        file = etc / f"{instance}.toml"
        file.write_text("".join(f"{key} = {json.dumps(each)}\n" for key, each in options.items()))
        (etc / f"{instance}.env").write_text("".join(f"{key}={each}\n" for key, each in bucket.env.items()))
        made = Service(manager, f"d7yfs@{instance}.service", point, bucket, file)
        if settings:
            manager.change(made.name, f"[Service]\n{settings}\n")
        made.systemctl("start")
        try:
            yield made
        finally:
            manager.run("systemctl", "stop", made.name)


def test_a_worker_is_killed_and_the_service_goes_on(service: Service) -> None:
    main = service.show("MainPID")
    for generation in (1, 2, 3):
        found = service.await_worker(generation)
        assert str(found["worker_pid"]) != main
        service.check_bytes()
        done = service.manager.run("kill", "-KILL", str(found["worker_pid"]))
        assert done.returncode == 0, done.stderr
    assert service.await_worker(4)["restarts"] == 3
    service.check_bytes()
    assert (service.show("MainPID"), service.show("NRestarts"), service.show("ActiveState")) == (main, "0", "active")


@pytest.mark.parametrize("killed", ["main", "all"])
def test_the_supervisor_is_killed_and_the_next_one_goes_on_with_the_mount(service: Service, killed: str) -> None:
    main = service.show("MainPID")
    service.await_worker(1)
    body = service.bucket.files["over.bin"]
    with service.open("over.bin") as file:
        assert within(60, lambda: file.read(1000)) == body[:1000]
        service.systemctl("kill", "--signal=KILL", f"--kill-whom={killed}")
        until(
            lambda: service.show("NRestarts") == "1" and service.show("ActiveState") == "active",
            "a restart",
            timeout_s=60,
        )
        assert service.show("MainPID") != main
        until(lambda: service.takeover().get("generation", 1) > 1, "a worker that follows", timeout_s=60)
        assert within(60, file.read) == body[1000:], "a file that was open all the time"
    service.check_bytes()


def test_it_is_ready_when_the_mount_answers(service: Service) -> None:
    """`systemctl start` has returned."""
    service.check_bytes()
    assert f" mounted on {service.point}, " in service.show("StatusText")


@pytest.mark.parametrize("settings", ["WatchdogSec=6"])
def test_a_supervisor_that_hangs_is_killed_and_followed(service: Service) -> None:
    service.await_worker(1)
    main = service.show("MainPID")
    assert service.manager.run("kill", "-STOP", main).returncode == 0
    until(
        lambda: service.show("NRestarts") == "1" and service.show("ActiveState") == "active",
        "a restart by the watchdog",
        timeout_s=60,
    )
    assert service.show("MainPID") != main
    service.check_bytes()


def test_a_stop_under_a_busy_reader(service: Service) -> None:
    """It gives him time, and ends well even so."""
    with service.open("over.bin"):
        service.systemctl("stop")
        assert (service.show("ActiveState"), service.show("Result")) == ("inactive", "success")
        assert str(service.point) not in service.manager.run("cat", "/proc/self/mounts").stdout
    service.systemctl("start")
    service.check_bytes()


@pytest.mark.parametrize("settings", ["", "Environment=D7YFS_TAKEOVER=off"])
def test_a_stop_of_a_mount_in_which_somebody_stands(service: Service) -> None:
    """A working directory is no open file, and keeps the mount busy all the same."""
    with service.manager.start("sleep", "600", directory=service.point) as standing:
        service.systemctl("stop")
        assert (service.show("ActiveState"), service.show("Result")) == ("inactive", "success")
        assert str(service.point) not in service.manager.run("cat", "/proc/self/mounts").stdout
        assert standing.poll() is None
        standing.kill()
    assert f"{service.point} is still in use after 2 s (0 open files): unmounted lazily" in service.manager.log()
    service.systemctl("start")
    service.check_bytes()


def test_the_status_line_is_that_of_the_last_reload(service: Service) -> None:
    service.await_worker(1)
    right = service.settings.read_text()
    service.settings.write_text(right + "cash_size = 1\n")
    assert service.manager.run("systemctl", "reload", service.name).returncode != 0
    assert "cash_size" in service.show("StatusText")
    service.settings.write_text(right)
    service.systemctl("reload")
    assert f" on {service.point}: 0 files open, " in service.show("StatusText")
    assert "cash_size" not in service.show("StatusText")


def test_a_mistake_in_its_file_of_variables_is_named(service: Service) -> None:
    file = service.settings.with_suffix(".env")
    right = file.read_text()
    file.write_text(right + "D7YFS_CACHE_SIZE=x\n")
    assert service.manager.run("systemctl", "restart", service.name).returncode != 0
    assert (service.show("ActiveState"), service.show("ExecMainStatus")) == ("failed", "2"), "it is not tried again"
    assert "D7YFS_CACHE_SIZE 'x' is not a size" in service.manager.log()
    file.write_text(right)
    service.systemctl("start")
    service.check_bytes()


@pytest.fixture
def consumer(service: Service) -> Iterator[str]:
    """A model server that has a file of the mount open, with the lines that the manual has for its unit."""
    name, said = service.name.replace("d7yfs@", "server-of-"), (ROOT / "docs" / "operations.md").read_text()
    shown = said.partition("**A model server under systemd**")[2].partition("\n\n")[2].partition("\n- ")[0]
    block = shown.replace("    ", "").replace("d7yfs@models.service", service.name)
    wanted_by = block.partition("WantedBy=")[2].strip()
    assert wanted_by == service.name
    command = f"/bin/sh -c 'exec sleep infinity <{service.point}/over.bin'"
    service.manager.add(name, f"{block}\n[Service]\nExecStart={command}\n", wanted_by=wanted_by)
    service.manager.run("systemctl", "start", name)
    assert service.manager.show(name, "ActiveState") == "active"
    yield name
    service.manager.run("systemctl", "stop", name)


def test_a_model_server_comes_back_with_its_mount(service: Service, consumer: str) -> None:
    def await_back(cause: str) -> None:
        until(lambda: service.manager.show(consumer, "ActiveState") == "active", f"the server after {cause}")
        until(lambda: service.show("ActiveState") == "active", f"the mount after {cause}")

    pid = service.manager.show(consumer, "MainPID")
    service.await_worker(1)
    assert service.manager.run("kill", "-KILL", str(service.takeover()["worker_pid"])).returncode == 0
    service.await_worker(2)
    assert service.manager.show(consumer, "MainPID") == pid, "a worker is not the mount"
    service.systemctl("restart")
    await_back("a restart")
    assert service.manager.show(consumer, "MainPID") != pid
    service.systemctl("stop")
    assert service.manager.show(consumer, "ActiveState") == "inactive"
    service.systemctl("start")
    await_back("stop and start")
    service.systemctl("kill", "--signal=KILL", "--kill-whom=all")
    until(lambda: service.show("NRestarts") == "1", "a restart of the mount")
    await_back("a kill")


def test_a_model_server_comes_when_a_mount_that_failed_succeeds(service: Service, consumer: str) -> None:
    right = service.settings.read_text()
    service.settings.write_text(right.replace("/library", "/nothing-here"))
    service.manager.run("systemctl", "restart", service.name)
    assert service.manager.show(consumer, "ActiveState") == "inactive"
    service.settings.write_text(right)
    until(lambda: service.manager.show(consumer, "ActiveState") == "active", "the server", timeout_s=60)
    assert service.show("ActiveState") == "active"


def test_reload_restart_and_stop(service: Service) -> None:
    service.await_worker(1)
    service.systemctl("reload")
    service.check_bytes()
    service.systemctl("restart")
    service.await_worker(1)
    service.check_bytes()
    service.systemctl("stop")
    assert (service.show("ActiveState"), service.show("Result")) == ("inactive", "success")
    assert str(service.point) not in service.manager.run("cat", "/proc/self/mounts").stdout
