"""The unit under a real systemd: kills of workers and of the supervisor, a restart, a stop."""

from __future__ import annotations

import itertools
import json
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.mount.conftest import Bucket
from tests.mount.mounted import until, within
from tests.servers.systemd import Systemd

pytestmark = [pytest.mark.mount, pytest.mark.store]

_numbers = itertools.count(1)


@dataclass
class Service:
    """An instance of the unit that mounts the library of a bucket."""

    manager: Systemd
    name: str
    point: Path
    bucket: Bucket

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

    def check_bytes(self) -> None:
        path = self.manager.inside(self.point) / "over.bin"
        assert within(60, path.read_bytes) == self.bucket.files["over.bin"]


@pytest.fixture
def service(manager: Systemd, bucket: Bucket) -> Iterator[Service]:
    instance = f"models{next(_numbers)}"
    with tempfile.TemporaryDirectory(prefix="d7yfs-service-", dir="/var/tmp") as ground:
        point, etc = Path(ground) / "mnt", manager.inside(Path("/etc/d7yfs"))
        point.mkdir()
        settings = {"source": bucket.url("library"), "mountpoint": str(point), "cache_dir": f"{ground}/cache"}
        settings |= {"metrics_listen": "none", "takeover": "standby"}
        (etc / f"{instance}.toml").write_text(
            "".join(f"{key} = {json.dumps(each)}\n" for key, each in settings.items())
        )
        (etc / f"{instance}.env").write_text("".join(f"{key}={each}\n" for key, each in bucket.env.items()))
        made = Service(manager, f"d7yfs@{instance}.service", point, bucket)
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


def test_the_supervisor_is_killed_and_systemd_starts_another(service: Service) -> None:
    main = service.show("MainPID")
    service.await_worker(1)
    service.systemctl("kill", "--signal=KILL", "--kill-whom=main")
    until(
        lambda: service.show("NRestarts") == "1" and service.show("ActiveState") == "active", "a restart", timeout_s=60
    )
    assert service.show("MainPID") != main
    service.await_worker(1)
    service.check_bytes()


def test_all_processes_are_killed_at_once(service: Service) -> None:
    service.await_worker(1)
    service.systemctl("kill", "--signal=KILL", "--kill-whom=all")
    until(
        lambda: service.show("NRestarts") == "1" and service.show("ActiveState") == "active", "a restart", timeout_s=60
    )
    service.await_worker(1)
    service.check_bytes()


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
