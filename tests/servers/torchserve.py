"""A real TorchServe, for `make integration-torchserve`: the programs that scripts/torchserve.sh
installs.

It owns one server: its ports, its working directory (configuration, keys, logs, unpacked archives)
and its process group. That group has Java, and a Python process per worker. It also sends the HTTP
requests that d7yfs itself does not send. It does not import pytest. Everything listens on loopback.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx

_POLL_S = 0.05
_START_TIMEOUT_S = 120.0
_INFER_TIMEOUT_S = 60.0
_STOP_TIMEOUT_S = 20.0
_LOG_TAIL = 6000


class TorchServeError(Exception):
    """A refusal of the server, or a wait that timed out; the message ends with the server's reply
    or its log.
    """


class TorchServe:
    """A server started on the model store `store`; not ready yet: see `wait`."""

    def __init__(
        self,
        programs: Path,
        store: Path,
        directory: Path,
        *,
        models: Sequence[str] = (),
        load_models: str = "",
        token: bool = False,
        model_api: bool = True,
        configured_store: Path | None = None,
    ) -> None:
        """Start the server with `directory` as its working directory.

        `models` go to its command line, `load_models` to its configuration. If the configuration
        names another store (`configured_store`), `store` goes to the command line.
        """
        directory.mkdir()
        self.directory = directory
        inference, management, metrics, *grpc = _ports(5)
        self.management = f"http://127.0.0.1:{management}"
        self.config = directory / "config.properties"
        settings = {
            "inference_address": f"http://127.0.0.1:{inference}",
            "management_address": self.management,
            "metrics_address": f"http://127.0.0.1:{metrics}",
            "grpc_inference_port": grpc[0],
            "grpc_management_port": grpc[1],
            "model_store": configured_store or store,
            "default_startup_timeout": 60,
        }
        if models or load_models:
            # The default is one worker per processor, and a registration without a number would
            # take it too.
            settings["default_workers_per_model"] = 1
        if load_models:
            settings["load_models"] = load_models
        self.config.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        command = [
            *(str(programs / "torchserve"), "--start", "--foreground", "--no-config-snapshots"),
            *("--ts-config", str(self.config)),
            *(() if token else ("--disable-token-auth",)),
            *(("--enable-model-api",) if model_api else ()),
            *(("--model-store", str(store)) if configured_store else ()),
            *(("--models", *models) if models else ()),
        ]
        self._client = httpx.Client(base_url=f"http://127.0.0.1:{inference}", trust_env=False, timeout=_INFER_TIMEOUT_S)
        # The launcher keeps a file with its process id in the temporary directory, and refuses a
        # second start there.
        temporary = {"TMPDIR": str(directory), "TEMP": str(directory), "PATH": f"{programs}:{os.environ['PATH']}"}
        with self._log.open("ab") as output:
            self._process = subprocess.Popen(
                command,
                cwd=directory,
                env=os.environ | temporary,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    @property
    def _log(self) -> Path:
        return self.directory / "torchserve.log"

    @property
    def key_file(self) -> Path:
        return self.directory / "key_file.json"

    def keys(self) -> Mapping[str, str]:
        """Its keys by purpose: management, inference."""
        return {name: each["key"] for name, each in json.loads(self.key_file.read_text()).items()}

    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def wait_until(self, happened: Callable[[], bool], what: str, *, timeout_s: float = _START_TIMEOUT_S) -> None:
        """Return when `happened` is true. Raises TorchServeError with the log's tail."""
        deadline = time.monotonic() + timeout_s
        while not happened():
            if self._process.poll() is not None:
                raise TorchServeError(f"the server has ended before: {what}\n{self.log()[-_LOG_TAIL:]}")
            if time.monotonic() > deadline:
                raise TorchServeError(f"not within {timeout_s:g} s: {what}\n{self.log()[-_LOG_TAIL:]}")
            time.sleep(_POLL_S)

    def wait(self) -> None:
        """Return when both of its interfaces answer: by then it has loaded the models of its start.
        Raises TorchServeError.
        """
        self.wait_until(self._listens, "its interfaces answer")

    def _listens(self) -> bool:
        try:
            self._client.get("/ping")
            self._client.get(f"{self.management}/models")
        except httpx.TransportError:
            return False
        return True

    def manage(self, method: str, path: str, **query: str) -> tuple[int, str]:
        """Status and text of one call of the management API, without d7yfs and without a token."""
        reply = self._client.request(method, f"{self.management}{path}", params=query)
        return reply.status_code, reply.text

    def infer(self, model: str, offsets: Sequence[int], *, token: str = "") -> Any:
        """The answer of `model`. Raises TorchServeError with the server's reply."""
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        reply = self._client.post(f"/predictions/{model}", json={"offsets": list(offsets)}, headers=headers)
        if reply.status_code != httpx.codes.OK:
            raise TorchServeError(f"{model}: {reply.status_code} {reply.text}")
        return reply.json()

    def stop(self) -> None:
        """Stop the server and its workers, by force if they ignore a signal. One call is enough."""
        if self._process.returncode is not None:
            return
        self._client.close()
        group = self._process.pid
        try:
            # Its launcher does not pass a signal on.
            os.killpg(group, signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=_STOP_TIMEOUT_S)
        finally:  # a second Ctrl-C must not leave it running
            with contextlib.suppress(ProcessLookupError):
                os.killpg(group, signal.SIGKILL)
            self._process.wait()


def _ports(count: int) -> list[int]:
    """Free ports outside the range of outgoing connections, because the server takes seconds to
    bind them.
    """
    first_outgoing = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    found: list[int] = []
    for port in random.sample(range(5_000, max(first_outgoing, 10_000)), 1000):
        with contextlib.suppress(OSError), socket.socket() as one:
            one.bind(("127.0.0.1", port))
            found.append(port)
        if len(found) == count:
            return found
    raise TorchServeError("no ports are free")


@contextlib.contextmanager
def running(programs: Path, store: Path, directory: Path, **options: Any) -> Iterator[TorchServe]:
    """A server that answers, stopped at the end; the arguments are those of `TorchServe`."""
    server = TorchServe(programs, store, directory, **options)
    try:
        server.wait()
        yield server
    finally:
        server.stop()
