"""A real manager of Dragonfly on loopback, with the MariaDB and the Redis that it needs, for `make
integration-dragonfly`.

It owns the three processes and their folders below one directory. scripts/dragonfly-manager.sh builds
the manager, and installs the other two. A scheduler and daemons join it by `scheduler_settings` and
`daemon_settings`. It does not import pytest.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.servers.dragonfly_cluster import Part, _accepts
from tests.servers.seaweedfs import free_ports

TOKEN = "a-personal-access-token"
_PASSWORD = "dragonfly"


class Manager:
    """A manager that serves, with the personal access token `TOKEN`."""

    def __init__(self, directory: Path, program: Path) -> None:
        directory.mkdir(parents=True)
        self._directory = directory
        database, self._redis_port, grpc, rest = map(int, free_ports(4))
        self.url = f"http://127.0.0.1:{rest}"
        self._grpc = f"127.0.0.1:{grpc}"
        self._database = Part(
            "mariadb", self._database_command(database), directory / "mariadb.log", lambda: _accepts(database)
        )
        redis: list[str | Path] = ["redis-server", "--bind", "127.0.0.1", "--port", str(self._redis_port)]
        redis += ["--save", "", "--dir", directory]
        self._redis = Part("redis", redis, directory / "redis.log", lambda: _accepts(self._redis_port))
        config = {
            "server": {
                "grpc": {"listenIP": "127.0.0.1", "advertiseIP": "127.0.0.1", "port": {"start": grpc, "end": grpc}},
                "rest": {"addr": f"127.0.0.1:{rest}"},
                **{f"{name}Dir": str(directory / name) for name in ("log", "plugin")},
            },
            "auth": {"jwt": {"key": "of-a-test"}},
            "database": {
                "type": "mariadb",
                "mysql": {
                    "user": "dragonfly",
                    "password": _PASSWORD,
                    "host": "127.0.0.1",
                    "port": database,
                    "dbname": "manager",
                },
                "redis": self._redis_settings,
            },
            "console": True,
        }
        config_file = directory / "manager.yaml"
        config_file.write_text(json.dumps(config))  # JSON is YAML too.
        command: list[str | Path] = ["env", f"DRAGONFLY_PAT={TOKEN}", program, "--config", config_file]
        self._manager = Part("manager", command, directory / "manager.log", lambda: _accepts(rest) and _accepts(grpc))

    @property
    def _redis_settings(self) -> Mapping[str, Any]:
        return {"addrs": [f"127.0.0.1:{self._redis_port}"], "brokerDB": 1, "backendDB": 2}

    @property
    def scheduler_settings(self) -> Mapping[str, Any]:
        """Top-level keys of a scheduler's configuration."""
        redis = self._redis_settings
        return {
            "manager": {"addr": self._grpc, "schedulerClusterID": 1, "keepAlive": {"interval": "1s"}},
            "database": {"redis": redis},
            "job": {"enable": True},
            "dynConfig": {"refreshInterval": "1s"},
        }

    @property
    def daemon_settings(self) -> Mapping[str, Any]:
        """Top-level keys of a daemon's configuration."""
        return {"manager": {"addr": f"http://{self._grpc}"}}

    def _database_command(self, port: int) -> list[str | Path]:
        data, socket_path = self._directory / "mariadb", self._directory / "mariadb.sock"
        # As root it would go on as the user mysql, who may not enter the directories of tests.
        owner = ["--user=root"] if os.geteuid() == 0 else []
        subprocess.run(
            [
                "mariadb-install-db",
                "--no-defaults",
                f"--datadir={data}",
                "--skip-test-db",
                "--auth-root-authentication-method=normal",
                *owner,
            ],
            check=True,
            capture_output=True,
        )
        first = self._directory / "first.sql"
        first.write_text(
            "CREATE DATABASE IF NOT EXISTS manager;\n"
            f"CREATE USER IF NOT EXISTS 'dragonfly'@'%' IDENTIFIED BY '{_PASSWORD}';\n"
            "GRANT ALL ON manager.* TO 'dragonfly'@'%';\n"
        )
        return [
            "mariadbd",
            "--no-defaults",
            f"--datadir={data}",
            f"--socket={socket_path}",
            f"--pid-file={data}/pid",
            "--bind-address=127.0.0.1",
            f"--port={port}",
            f"--init-file={first}",
            *owner,
        ]

    def start(self) -> None:
        """Raises ClusterError."""
        for part in (self._database, self._redis, self._manager):
            part.start()
            part.wait()

    def kill(self) -> None:
        for part in (self._manager, self._redis, self._database):
            part.kill()

    def log(self) -> str:
        """The manager's log."""
        return self._manager.log()

    def jobs(self) -> list[dict[str, Any]]:
        """All jobs, as the open API shows them, the oldest first."""
        request = urllib.request.Request(
            f"{self.url}/oapi/v1/jobs?page=1&per_page=50", headers={"Authorization": f"Bearer {TOKEN}"}
        )
        with urllib.request.urlopen(request, timeout=10) as reply:
            found: list[dict[str, Any]] = json.load(reply)
        return sorted(found, key=lambda job: int(job["id"]))


@contextlib.contextmanager
def running(directory: Path, program: Path) -> Iterator[Manager]:
    """A manager that serves, killed at the end. Raises ClusterError."""
    manager = Manager(directory, program)
    try:
        manager.start()
        yield manager
    finally:
        manager.kill()
