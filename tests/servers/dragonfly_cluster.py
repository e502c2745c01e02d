"""A real Dragonfly on loopback, for `make integration-dragonfly` and the bench: one scheduler, one
seed and some peers.

It owns the processes that scripts/dragonfly.sh builds: their folders below one directory, their
free ports, configurations, readiness and end. There is no manager, database or Redis: the list of
schedulers is a file, unless the settings name a manager (`dragonfly_manager`).

The settings are those that measurements showed to matter: a short `collectedPieceTimeout`, and the
scheduler's own retries or the `tuned` ones. The tuned ones spare a cold range its 2 s, but cost
traffic from the store. It does not import pytest.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.servers.seaweedfs import free_ports

TRAFFIC = "dragonfly_client_download_traffic"
_ANNOUNCED = "dragonfly_scheduler_announce_host_total"
_READY_TIMEOUT_S = 90.0
"""Seconds; the port of a killed process may stay taken for a minute."""
_POLL_S = 0.05
_PROBE_S = 0.5


class ClusterError(Exception):
    """A part that did not become ready; the message ends with its log."""


class Part:
    """One process of the cluster; `ready` is true when it serves."""

    def __init__(self, name: str, command: Sequence[str | Path], log: Path, ready: Callable[[], bool]) -> None:
        self.name = name
        self._command = command
        self._log = log
        self._ready = ready
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def log(self) -> str:
        """The log of all its lives."""
        return self._log.read_text(errors="replace")

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def wait(self) -> None:
        """Return when the part serves. It restarts a part that ends, until the time is over. Raises
        ClusterError.
        """
        deadline = time.monotonic() + _READY_TIMEOUT_S
        while not (self.alive and self._ready()):
            if time.monotonic() > deadline:
                raise ClusterError(f"{self.name} is not ready after {_READY_TIMEOUT_S:g} s:\n{self.log()[-4000:]}")
            if not self.alive:
                # "Address already in use": the system has not released the earlier port yet.
                self.start()
            time.sleep(_POLL_S)

    def kill(self) -> None:
        """Send SIGKILL and wait for the end. Also works for a stopped part, and for one that never
        started.
        """
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def stop(self) -> None:
        """Send SIGSTOP: the kernel accepts connections, but no request gets an answer."""
        os.kill(self.pid, signal.SIGSTOP)

    def cont(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def restart(self) -> None:
        """Start a new life on the same ports. A daemon empties its store at its start."""
        self.kill()
        self.start()
        self.wait()


class Daemon(Part):
    """A dfdaemon; `proxy_url` and `socket_path` are its two ways in, and `store` holds its tasks."""

    def __init__(
        self, name: str, directory: Path, binaries: Path, dynconfig: Path, *, seed: bool, settings: Mapping[str, Any]
    ) -> None:
        directory.mkdir()
        upload, proxy, metrics, health, stats, tcp, quic = map(int, free_ports(7))
        self.store = directory / "data"
        self.socket_path = directory / "dfdaemon.sock"
        self.proxy_url = f"http://127.0.0.1:{proxy}"
        self._metrics_url = f"http://127.0.0.1:{metrics}/metrics"
        address = {"ip": "127.0.0.1"}
        config = {
            "host": {"hostname": name, **address},
            "seedPeer": {"enable": seed, "type": "super"},
            "download": {"server": {"socketPath": str(self.socket_path)}, "collectedPieceTimeout": "2s"},
            "upload": {"server": {"port": upload, **address}},
            "storage": {"dir": str(self.store), "server": {"tcpPort": tcp, "quicPort": quic, **address}},
            "proxy": {"server": {"port": proxy, **address}, "rules": [{"regex": ".*"}]},
            "metrics": {"server": {"port": metrics, **address}},
            "health": {"server": {"port": health, **address}},
            "stats": {"server": {"port": stats, **address}},
            "backend": {"enableHickoryDNS": False},
            "server": {
                "adaptiveRateLimit": None,
                "pluginDir": str(directory / "plugins"),
                "cacheDir": str(directory / "cache"),
            },
            "scheduler": {"announceInterval": "10s"},
            **settings,
        }
        config_file = directory / "dfdaemon.yaml"
        config_file.write_text(json.dumps(config))  # JSON is YAML too.
        command: list[str | Path] = [binaries / "dfdaemon", "--config", config_file, "--dynconfig", dynconfig]
        command += ["--log-dir", directory / "logs", "--console"]
        self._health_url = f"http://127.0.0.1:{health}/healthy"
        self._proxy_port = proxy
        super().__init__(name, command, directory / "log", self._serves)

    def _serves(self) -> bool:
        """True if all interfaces serve: `/healthy` may answer before the others do."""
        return _answers(self._health_url) and _accepts(self._proxy_port) and self.socket_path.exists()

    def kill(self) -> None:
        super().kill()
        self.socket_path.unlink(missing_ok=True)  # A new socket then means a new life.

    def metrics(self) -> Mapping[str, float]:
        """Its Prometheus samples, by name and labels as printed."""
        return _samples(self._metrics_url)

    def traffic_bytes(self) -> Mapping[str, int]:
        """Bytes downloaded since its start, by source: BACK_TO_SOURCE, REMOTE_PEER, LOCAL_PEER."""
        pattern = re.compile(TRAFFIC + r'\{.*type="(\w+)".*\}')
        return {found[1]: int(value) for name, value in self.metrics().items() if (found := pattern.match(name))}

    def task_files(self) -> Sequence[Path]:
        """The files of its tasks: each task's bytes are one file."""
        return [path for path in (self.store / "content").rglob("*") if path.is_file()]

    def wipe(self) -> None:
        """Remove the bytes of every task while the daemon runs; it still believes that it has them."""
        for path in self.task_files():
            path.unlink()

    def spoil(self, offset: int) -> None:
        """Change the byte at `offset` in every task that is long enough."""
        for path in self.task_files():
            if path.stat().st_size > offset:
                with path.open("r+b") as file:
                    file.seek(offset)
                    (byte,) = file.read(1)
                    file.seek(offset)
                    file.write(bytes([byte ^ 1]))


class Cluster:
    """The parts of a Dragonfly, ready once `start` returns; `seed` is None if the caller wanted a
    single daemon.
    """

    def __init__(
        self,
        scheduler: Part,
        address: str,
        seed: Daemon | None,
        peers: Sequence[Daemon],
        announced: Callable[[], int],
    ) -> None:
        """`address` is the scheduler's."""
        self.scheduler = scheduler
        self.address = address
        self.seed = seed
        self.peers = peers
        self._announced = announced

    @property
    def daemons(self) -> Sequence[Daemon]:
        return [*([self.seed] if self.seed else []), *self.peers]

    @property
    def parts(self) -> Sequence[Part]:
        return [self.scheduler, *self.daemons]

    def start(self) -> None:
        """Start the scheduler first: a daemon that cannot reach it at its start announces itself
        late. Raises ClusterError.
        """
        self.scheduler.start()
        self.scheduler.wait()
        for daemon in self.daemons:
            daemon.start()
        for daemon in self.daemons:
            daemon.wait()
        deadline = time.monotonic() + _READY_TIMEOUT_S
        while self._announced() < len(self.daemons):
            if time.monotonic() > deadline:
                raise ClusterError(f"the scheduler knows {self._announced()} of {len(self.daemons)} daemons")
            time.sleep(_POLL_S)
        if self.seed and self.peers:
            self._wait_for_seed(self.seed, self.peers[0], deadline)

    def _wait_for_seed(self, seed: Daemon, peer: Daemon, deadline: float) -> None:
        """Wait until the scheduler knows the seed. It looks for seeds every 30 s; before the first
        time every daemon goes to the store itself.
        """
        with ThreadingHTTPServer(("127.0.0.1", 0), _Probe) as origin:
            threading.Thread(target=origin.serve_forever, daemon=True).start()
            for number in itertools.count():
                url = f"http://127.0.0.1:{origin.server_port}/{number}"
                _get(url, proxy_url=peer.proxy_url, headers={"X-Dragonfly-Scheduling-Policy": "always"})
                if "BACK_TO_SOURCE" in seed.traffic_bytes():
                    break
                if time.monotonic() > deadline:
                    raise ClusterError("the scheduler sends no peer to the seed")
                time.sleep(_PROBE_S)
            origin.shutdown()

    def kill(self) -> None:
        for part in self.parts:
            part.kill()


@contextlib.contextmanager
def running(
    directory: Path,
    binaries: Path,
    *,
    peers: int = 2,
    seed: bool = True,
    tuned: bool = False,
    settings: Mapping[str, Any] | None = None,
    scheduler_settings: Mapping[str, Any] | None = None,
) -> Iterator[Cluster]:
    """A ready cluster, killed at the end, with its folders in `directory`. Raises ClusterError.

    `directory` must be short: a unix socket's path has 107 bytes at most.

    `tuned` sets the scheduler's retries so that each cold range spares the first 2 s. The first
    host then goes to the store at the same time as the seed. Without it the scheduler has its own
    defaults, with which the store sees each object once.

    `settings` replace top-level keys of every daemon's configuration, `scheduler_settings` the scheduler's.
    """
    directory.mkdir(parents=True, exist_ok=True)
    port, metrics_port = free_ports(2)
    config: dict[str, Any] = {
        "server": {"advertiseIP": "127.0.0.1", "advertisePort": port, "listenIP": "127.0.0.1", "port": port}
        | {f"{name}Dir": str(directory / "scheduler" / name) for name in ("log", "cache", "plugin", "data")},
        "metrics": {"enable": True, "addr": f"127.0.0.1:{metrics_port}"},
        "console": True,
    }
    if tuned:
        config["scheduler"] = {"retryBackToSourceLimit": 1, "retryLimit": 3, "retryInterval": "50ms"}
    config |= scheduler_settings or {}
    config_file = directory / "scheduler.yaml"
    config_file.write_text(json.dumps(config))
    dynconfig = directory / "dynconfig.yaml"
    dynconfig.write_text(json.dumps({"scheduler": {"addrs": [f"127.0.0.1:{port}"]}}))
    scheduler = Part(
        "scheduler",
        [binaries / "scheduler", "--config", config_file, "--dynconfig", directory / "scheduler-dynconfig.yaml"],
        directory / "scheduler.log",
        lambda: _accepts(port),
    )

    def daemon(name: str, *, seed: bool = False) -> Daemon:
        return Daemon(name, directory / name, binaries, dynconfig, seed=seed, settings=settings or {})

    cluster = Cluster(
        scheduler,
        f"127.0.0.1:{port}",
        daemon("seed", seed=True) if seed else None,
        [daemon(f"p{number + 1}") for number in range(peers)],
        lambda: _announced(_samples(f"http://127.0.0.1:{metrics_port}/metrics")),
    )
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.kill()
        for each in cluster.daemons:
            shutil.rmtree(each.store, ignore_errors=True)


def _announced(samples: Mapping[str, float]) -> int:
    """The number of announcements to the scheduler; its labels are the daemons' operating systems."""
    return int(sum(value for name, value in samples.items() if name.partition("{")[0] == _ANNOUNCED))


def _accepts(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


class _Probe(BaseHTTPRequestHandler):
    """An origin of four-byte objects, ranges included, for each name that `_wait_for_seed` makes."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        span = self.headers.get("Range")
        self.send_response(206 if span else 200)
        if span:
            self.send_header("Content-Range", f"bytes 0-{0 if span == 'bytes=0-0' else 3}/4")
        body = b"0123"[: 1 if span == "bytes=0-0" else 4]
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: the standard error belongs to the test."""


def _get(url: str, *, proxy_url: str = "", headers: Mapping[str, str] | None = None) -> str:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({"http": proxy_url} if proxy_url else {}))
    with opener.open(urllib.request.Request(url, headers=dict(headers or {})), timeout=10) as reply:
        return str(reply.read().decode())


def _answers(url: str) -> bool:
    try:
        _get(url)
    except (urllib.error.URLError, OSError):
        return False
    return True


def _samples(url: str) -> Mapping[str, float]:
    """The samples of a Prometheus page (its text format: name and labels, a space, the value)."""
    lines = (line for line in _get(url).splitlines() if line and not line.startswith("#"))
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}
