"""A real Azure Blob Storage server for tests: Azurite, Microsoft's emulator, which `make
setup-tests` installs with npm.

It owns one `azurite-blob` process: its port, its one account and its end. It does not import
pytest, so any code may import it.

Azurite checks account keys, shared access signatures and user delegation signatures. Of a bearer
token (over TLS only) it checks the claims alone.

It differs from the real service: it has no versioning, no hierarchical namespace and no firewall.
An expired signature is an AuthorizationFailure there, not an AuthenticationFailed.
"""

from __future__ import annotations

import base64
import contextlib
import os
import secrets
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from azure.core.exceptions import AzureError
from azure.storage.blob import BlobServiceClient

_SCRIPT = Path(__file__).parents[2] / "scripts" / "azurite.sh"


@dataclass(frozen=True, slots=True)
class Tls:
    """PEM files for a server that speaks https, which bearer tokens need."""

    certificate: Path
    key: Path
    authority: Path


class Azurite:
    """A running server; `account` and `key` may do everything.

    Both are new for each server, so that a test may search logs for the key.
    """

    def __init__(self, directory: Path, *, tls: Tls | None = None) -> None:
        """Start the server on loopback with its data in `directory`. Raises RuntimeError without
        Azurite.

        It is not ready yet: see `wait`.
        """
        self.directory = directory
        self.account = f"d7yfs{secrets.token_hex(4)}"
        self.key = base64.b64encode(secrets.token_bytes(64)).decode()
        self.port = _free_port()
        self.endpoint_url = f"{'https' if tls else 'http'}://127.0.0.1:{self.port}"
        self._tls = tls
        directory.mkdir(parents=True, exist_ok=True)
        command = [_azurite(), "--blobHost", "127.0.0.1", "--blobPort", str(self.port), "--location", str(directory)]
        command += ["--silent", "--disableTelemetry", "--skipApiVersionCheck"]
        if tls:
            command += ["--cert", str(tls.certificate), "--key", str(tls.key), "--oauth", "basic"]
        environment = os.environ | {"AZURITE_ACCOUNTS": f"{self.account}:{self.key}"}
        with (directory / "azurite.log").open("wb") as log:
            self._process = subprocess.Popen(
                command, cwd=directory, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def client(self) -> BlobServiceClient:
        """The SDK's own client with the account's key, with which tests put and delete blobs. The
        caller closes it.
        """
        verify = str(self._tls.authority) if self._tls else True
        return BlobServiceClient(
            f"{self.endpoint_url}/{self.account}",
            credential={"account_name": self.account, "account_key": self.key},
            connection_verify=verify,
            use_env_settings=False,
            retry_total=0,
        )

    @property
    def ca_bundle(self) -> Path | None:
        """The certificate's authority; None without TLS."""
        return self._tls.authority if self._tls else None

    def ssl_context(self) -> ssl.SSLContext | bool:
        """A context that trusts the server's certificate; True without TLS."""
        return ssl.create_default_context(cafile=str(self._tls.authority)) if self._tls else True

    def wait(self, *, timeout_s: float = 60.0) -> None:
        """Return when the server answers. Raises RuntimeError with the log's tail."""
        deadline = time.monotonic() + timeout_s
        with contextlib.closing(self.client()) as client:
            while True:
                try:
                    list(client.list_containers())
                    return
                except AzureError as error:
                    if self._process.poll() is not None or time.monotonic() > deadline:
                        log = (self.directory / "azurite.log").read_text(errors="replace")[-4000:]
                        raise RuntimeError(f"Azurite does not become ready: {error}\n{log}") from error
                    time.sleep(0.1)

    def stop(self) -> None:
        """Stop the process, by force after a few seconds. The data stays in `directory`."""
        try:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=5)
        finally:  # a second Ctrl-C must not leave it running
            self._process.kill()
            self._process.wait()


@contextlib.contextmanager
def running(directory: Path, *, tls: Tls | None = None) -> Iterator[Azurite]:
    """A ready server with its data in `directory`, stopped at the end."""
    server = Azurite(directory, tls=tls)
    try:
        server.wait()
        yield server
    finally:
        server.stop()


def _azurite() -> str:
    """The installed `azurite-blob`. Tests do not install it, because several processes run them at
    once.
    """
    found = subprocess.run([_SCRIPT, "--installed"], stdout=subprocess.PIPE, text=True, check=False)
    if found.returncode != 0:
        raise RuntimeError("Azurite is not installed, or not as this tree locks it; please run: make setup-tests")
    return found.stdout.strip()


def _free_port() -> int:
    with socket.socket() as each:
        each.bind(("127.0.0.1", 0))
        return int(each.getsockname()[1])
