"""The thin client of TorchServe's management API: one connection, one request at a time, and files that say how to reach it.

Owns addresses, timeouts, the token, and the reading of config.properties and of key_file.json. What to ask and what an answer means is
`torchserve`'s. The environment is not consulted (no proxies), redirects are not followed: the token must not travel.

An address is http://host:port, https://host:port, or unix:/path (all three as TorchServe's `management_address` has them).
"""

from __future__ import annotations

import ipaddress
import json
import os
import ssl
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

import httpx
from pydantic import SecretStr

from d7yfs.errors import ModelServerError, UsageError
from d7yfs.origins.rest import is_untrusted, reason
from d7yfs.servers import torchserve
from d7yfs.servers.model_store import ALL, Model
from d7yfs.servers.torchserve import Outcome, Registered, Reply, Request, Unanswered
from d7yfs.servers.torchserve_process import Process, listening

DEFAULT_ADDRESS = "http://127.0.0.1:8081"
CONNECT_TIMEOUT_S = 5.0
_BODY_MAX_BYTES = 16 << 20
_UNSPECIFIED = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}  # noqa: S104  # what a server binds to is no address to call


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """What is of use here in TorchServe's config.properties; empty or None where it says nothing."""

    path: Path
    management_address: str
    model_store: Path | None


def read_config(path: Path) -> ServerConfig:
    """Read a config.properties the way TorchServe's launcher does: `key=value` lines, `#` comments. Raises UsageError."""
    try:
        lines = path.read_text(errors="surrogateescape").splitlines()
    except OSError as error:
        raise UsageError(
            f"{path}: cannot be read: {error.strerror}",
            hint="--ts-config, or $TS_CONFIG_FILE, is TorchServe's config.properties",
        ) from None
    pairs = [line.split("=", 1) for line in map(str.strip, lines) if "=" in line and not line.startswith("#")]
    values = {key.strip(): value.strip() for key, value in pairs}
    store = values.get("model_store", "")
    return ServerConfig(path, values.get("management_address", ""), Path(store).absolute() if store else None)


def read_token(path: Path) -> SecretStr:
    """The management token out of TorchServe's key_file.json, or out of a file with nothing but the token. Raises UsageError."""
    try:
        text = path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        words = error.strerror if isinstance(error, OSError) else "it is no text"
        raise UsageError(
            f"{path}: cannot be read: {words}", hint="--token-file is TorchServe's key_file.json"
        ) from None
    if text.startswith("{"):
        try:
            text = json.loads(text)["management"]["key"]
        except (ValueError, KeyError, TypeError):
            text = ""
    if not isinstance(text, str) or not text or not text.isascii() or not text.isprintable() or " " in text:
        raise UsageError(
            f"{path}: holds no management token", hint='allowed: {"management": {"key": "…"}}, or the token alone'
        ) from None
    return SecretStr(text)


def check_store(path: Path, config: ServerConfig | None) -> bool:
    """Whether `config` names a model store, to compare `path` with. Raises UsageError when it is another directory."""
    store = config.model_store if config else None
    if config is None or store is None:
        return False
    if os.path.realpath(path) != os.path.realpath(store):
        raise UsageError(
            f"{path} is not TorchServe's model store: {config.path} says model_store={store}",
            hint=f"mount there, or set model_store={path}; if TorchServe was started with --model-store, which outdoes the file, "
            "name its --management and leave --ts-config out",
        )
    return True


class Management:
    """A TorchServe's management API at `address`. Every method raises ModelServerError."""

    def __init__(
        self, address: str, *, token: SecretStr | None = None, ca_bundle: Path | None = None, timeout_s: float = 600.0
    ) -> None:
        """`timeout_s` bounds one registration, in which TorchServe reads the whole archive. Raises UsageError."""
        self._token = token
        base, self._socket_path = _split(address)
        self.where = address if self._socket_path else base
        try:
            verify = ssl.create_default_context(cafile=ca_bundle) if base.startswith("https:") else False
        except OSError as error:
            raise UsageError(f"{ca_bundle} holds no certificates: {error}", hint="allowed: a PEM file") from None
        self._client = httpx.Client(
            base_url=base,
            transport=httpx.HTTPTransport(verify=verify, uds=self._socket_path),
            trust_env=False,
            follow_redirects=False,
            timeout=httpx.Timeout(timeout_s, connect=CONNECT_TIMEOUT_S),
            headers={"User-Agent": "d7yfs", "Accept-Encoding": "identity"}
            | ({"Authorization": f"Bearer {token.get_secret_value()}"} if token else {}),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._client.close()

    def process(self) -> Process | None:
        """The server itself, if it runs on this host, and can be found."""
        url = self._client.base_url
        if not self._socket_path and not _is_loopback(url.host):
            return None
        return listening(url.port or (443 if url.scheme == "https" else 80), self._socket_path)

    def register(self, model: Model, parameters: Mapping[str, str]) -> Outcome:
        """Register one model. One that is there already gets its workers if it has fewer; it is never left with less than it had."""
        try:
            reply = self._send(torchserve.registration(model, parameters))
            there = torchserve.conflict(model, reply)
            if there is None:
                return torchserve.registered(model, reply)
            workers = max((each.workers_wanted for each in self._versions(*there)), default=0)
            wanted = int(parameters.get("initial_workers", "0"))
            if wanted <= workers:
                return torchserve.present(model, reply, workers)
            # A registration waits for its workers unless it is told not to, and scaling does not unless it is told to.
            synchronous = parameters.get("synchronous") != "false"
            answer = self._send(torchserve.scaling(*there, wanted, synchronous=synchronous))
            return torchserve.scaled(model, reply, wanted, answer)
        except Unanswered as error:
            return torchserve.unanswered(model, error)

    def unregister(self, name: str) -> Outcome:
        """Remove all versions of a model."""
        try:
            return self._unregister(name)
        except Unanswered as error:
            return Outcome(name, "failed", error.message, error.hint)

    def _unregister(self, name: str) -> Outcome:
        defaults = {each.version for each in self._versions(name)}
        versions = [each.version for each in self.versions(name)]
        for version in (each for each in versions if each not in defaults):
            outcome = torchserve.unregistered(name, self._send(torchserve.removal(name, version)))
            if outcome.result == "failed":
                return outcome
        return torchserve.unregistered(name, self._send(torchserve.removal(name)))

    def models(self) -> Iterator[tuple[str, str]]:
        """Name and URL of every registered model."""
        page = ""
        while True:
            rows, after = torchserve.listed(self._send(torchserve.listing(page)))
            yield from rows
            if not rows or not after or after == page:
                return
            page = after

    def versions(self, name: str) -> list[Registered]:
        """All versions of a model."""
        return self._versions(name, ALL)

    def _versions(self, name: str, version: str = "") -> list[Registered]:
        return torchserve.described(self._send(torchserve.description(name, version)))

    def _send(self, request: Request) -> Reply:
        try:
            with self._client.stream(request.method, request.path, params=request.query) as response:
                body = bytearray()
                for chunk in response.iter_raw():
                    body += chunk
                    if len(body) > _BODY_MAX_BYTES:
                        raise ModelServerError(f"{self.where} answers with more than {_BODY_MAX_BYTES >> 20} MiB")
        except httpx.ConnectTimeout:
            raise ModelServerError(f"TorchServe at {self.where} cannot be reached: no answer", hint=_REACH) from None
        except httpx.ConnectError as error:
            hint = "name its authority with --ca-bundle" if is_untrusted(error) else _REACH
            raise ModelServerError(
                f"TorchServe at {self.where} cannot be reached: {reason(error)}", hint=hint
            ) from None
        except httpx.TimeoutException:
            raise Unanswered(
                f"TorchServe at {self.where} did not answer in time",
                hint="its log says what it does; --timeout waits longer",
            ) from None
        except httpx.HTTPError:
            raise Unanswered(f"{self.where} broke off its reply, or does not speak HTTP", hint=_REACH) from None
        try:
            content = json.loads(body)
        except ValueError:
            content = None
        reply = Reply(response.status_code, content)
        torchserve.check(reply, self.where, token=self._token is not None)
        return reply


_REACH = "is it running, and is this its management_address? --management names another"


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _split(address: str) -> tuple[str, str | None]:
    """The base of URLs, and the path of a unix socket. Raises UsageError."""
    if address.startswith("unix:"):
        path = address.removeprefix("unix:").removeprefix("//")
        if path.startswith("/"):
            return "http://torchserve", path
    try:
        parts = urlsplit(address)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        parts, host, port = urlsplit(""), "", None
    if parts.scheme not in ("http", "https") or not host or "@" in parts.netloc or parts.query or parts.fragment:
        raise UsageError(
            "the management address is no URL that can be used",
            hint=f"allowed: such as {DEFAULT_ADDRESS}, or unix:/path",
        )
    host = _UNSPECIFIED.get(host, f"[{host}]" if ":" in host else host)
    return f"{parts.scheme}://{host}" + (f":{port}" if port else "") + parts.path.rstrip("/"), None
