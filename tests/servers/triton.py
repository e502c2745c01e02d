"""A real Triton server, for `make integration-triton` and the bench: the program that
scripts/triton.sh installs.

It owns one tritonserver: its port, its log, its process group (the Python backend has a process per
model) and the HTTP requests to it. It does not import pytest. Only HTTP listens, on loopback:
inference, and the model repository API.

A server with an empty repository is "ready", so readiness is always a model's. The log is verbose
because only that shows the polls of the repository.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx

from tests.servers.seaweedfs import free_ports

_POLL_S = 0.02
_READY_TIMEOUT_S = 60.0
_INFER_TIMEOUT_S = 60.0
_LOAD_TIMEOUT_S = 300.0
_STOP_TIMEOUT_S = 20.0
_LOG_TAIL = 6000


class TritonError(Exception):
    """A refusal of the server, or a wait that timed out; the message ends with the server's reply
    or its log.
    """


class Triton:
    """A server started on `repository`, a directory or a URL that Triton reads itself; not ready
    yet: see `wait_for`.
    """

    def __init__(
        self,
        program: Path,
        repository: Path | str,
        log: Path,
        *,
        mode: str = "none",
        options: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        uid: int | None = None,
    ) -> None:
        """Start the server. `mode` is the model control mode: none, poll (every second) or
        explicit. With `uid` it runs as that user.
        """
        (self.port,) = free_ports(1)
        self._log = log
        self._client = httpx.Client(
            base_url=f"http://127.0.0.1:{self.port}/v2", trust_env=False, timeout=_LOAD_TIMEOUT_S
        )
        command = [
            *(str(program), f"--model-repository={repository}", f"--model-control-mode={mode}"),
            *(["--repository-poll-secs=1"] if mode == "poll" else []),
            *("--http-address=127.0.0.1", f"--http-port={self.port}", "--allow-grpc=false", "--allow-metrics=false"),
            *("--log-verbose=1", "--exit-timeout-secs=10", *options),
        ]
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                command,
                env=os.environ | (env or {}),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                user=uid,
                group=uid,
                extra_groups=None if uid is None else [],
            )

    def log(self) -> str:
        """The output of the server and its models, without the requests it got."""
        lines = self._log.read_text(errors="replace").splitlines(keepends=True)
        return "".join(line for line in lines if "http_server.cc" not in line)

    def polls(self) -> int:
        """Passes over the repository begun so far, in mode poll."""
        return self.log().count('"Polling model repository"')

    def loads(self, model: str) -> int:
        """The number of loads of the model so far, reloads included."""
        return self.log().count(f"\"successfully loaded '{model}'\"")

    def wait_until(self, happened: Callable[[], bool], what: str, *, timeout_s: float = _READY_TIMEOUT_S) -> None:
        """Return when `happened` is true. Raises TritonError with the log's tail."""
        deadline = time.monotonic() + timeout_s
        while not happened():
            if self._process.poll() is not None:
                raise TritonError(f"the server has ended before: {what}\n{self.log()[-_LOG_TAIL:]}")
            if time.monotonic() > deadline:
                raise TritonError(f"not within {timeout_s:g} s: {what}\n{self.log()[-_LOG_TAIL:]}")
            time.sleep(_POLL_S)

    def wait_for(self, model: str, *, version: int | None = None, timeout_s: float = _READY_TIMEOUT_S) -> None:
        """Return when the model, or that version of it, serves. Raises TritonError."""
        what = f"model {model} is ready" if version is None else f"version {version} of model {model} is ready"
        self.wait_until(lambda: self.is_ready(model, version), what, timeout_s=timeout_s)

    def is_live(self) -> bool:
        """True if the server answers; says nothing of any model."""
        try:
            return self._client.get("health/live").status_code == httpx.codes.OK
        except httpx.TransportError:
            return False

    def is_ready(self, model: str, version: int | None = None) -> bool:
        """True if the model, or that version of it, serves."""
        path = f"models/{model}" if version is None else f"models/{model}/versions/{version}"
        try:
            return self._client.get(f"{path}/ready").status_code == httpx.codes.OK
        except httpx.TransportError:  # It does not listen yet.
            return False

    def infer(self, model: str, inputs: Sequence[Mapping[str, Any]], *, version: int | None = None) -> dict[str, Any]:
        """The answer of the latest version, or of that version. Raises TritonError with the
        server's reply.
        """
        path = f"models/{model}" if version is None else f"models/{model}/versions/{version}"
        return self._post(f"{path}/infer", {"inputs": list(inputs)}, timeout_s=_INFER_TIMEOUT_S)

    def config(self, model: str) -> dict[str, Any]:
        """The configuration with which the model was loaded. Raises TritonError if it is not
        loaded.
        """
        reply = self._client.get(f"models/{model}/config")
        if reply.status_code != httpx.codes.OK:
            raise TritonError(f"config of {model}: {reply.status_code} {reply.text}")
        answer: dict[str, Any] = reply.json()
        return answer

    def load(self, model: str) -> None:
        """Load or reload the model, in mode explicit. Returns when it serves. Raises TritonError
        with the server's reply.
        """
        self._post(f"repository/models/{model}/load", {})

    def unload(self, model: str) -> None:
        """Order the unload of the model, in mode explicit. It takes a while (`index` shows it).
        Raises TritonError with the server's reply.
        """
        self._post(f"repository/models/{model}/unload", {})

    def index(self) -> dict[str, str]:
        """The state of each model in the repository, as `READY` or `UNAVAILABLE: reason`; empty for
        a model that was never loaded.
        """
        reply = self._client.post("repository/index", json={})
        models: Sequence[Mapping[str, str]] = reply.json()
        return {
            each["name"]: ": ".join(filter(None, (each.get("state", ""), each.get("reason", "")))) for each in models
        }

    def _post(self, path: str, body: Mapping[str, Any], *, timeout_s: float = _LOAD_TIMEOUT_S) -> dict[str, Any]:
        reply = self._client.post(path, json=body, timeout=timeout_s)
        if reply.status_code != httpx.codes.OK:
            raise TritonError(f"{path}: {reply.status_code} {reply.text}")
        answer: dict[str, Any] = reply.json() if reply.content else {}
        return answer

    def stop(self) -> None:
        """Stop the server and its models' processes, by force if they ignore a signal. One call is
        enough.
        """
        if self._client.is_closed:
            return
        self._client.close()
        try:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=_STOP_TIMEOUT_S)
        finally:  # a second Ctrl-C must not leave it running
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()


@contextlib.contextmanager
def running(program: Path, repository: Path | str, log: Path, **options: Any) -> Iterator[Triton]:
    """A started server, stopped at the end; the arguments are those of `Triton`."""
    server = Triton(program, repository, log, **options)
    try:
        yield server
    finally:
        server.stop()
