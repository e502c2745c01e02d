"""The client of TorchServe's management API: one connection, one request at a time, and files that
say how to reach it.

Owns addresses, timeouts, the token, and the reading of config.properties and of key_file.json.
`torchserve` has the meaning of answers. The environment is not read (no proxies)
and redirects are not followed, so the token stays here.

An address is http://host:port, https://host:port, or unix:/path (all three as TorchServe's
`management_address` has them).
"""

from __future__ import annotations

import ipaddress
import os
import re
import ssl
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self
from urllib.parse import quote, urlsplit

import httpx

from d7yfs.bounds.values import read_json
from d7yfs.errors import ModelServerError, UsageError
from d7yfs.objects import SecretStr
from d7yfs.origins.failure import is_untrusted, reason
from d7yfs.servers import torchserve
from d7yfs.servers.model_store import ALL, Process, bare, listening
from d7yfs.servers.torchserve import ApiReply, ModelOutcome, Registered, Unanswered

DEFAULT_ADDRESS = "http://127.0.0.1:8081"
CONNECT_TIMEOUT_S = 5.0
PAGE = 100
"""Most models that one reply lists: the API's own limit."""
_PAGES_MAX = 10_000
"""A server without an end to its list is none; a million models are more than one has."""
_BODY_MAX_BYTES = 16 << 20
_UNSPECIFIED = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}  # noqa: S104  # a server binds to these, but they are no addresses to call


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """The useful part of TorchServe's config.properties; empty or None where it says nothing."""

    path: Path = Path()
    management_address: str = ""
    model_store: Path | None = None


def read_config(path: Path) -> ServerConfig:
    """Read config.properties as TorchServe's launcher: `key=value`, `#` comments. Raises
    UsageError."""
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
    """The management token in a key_file.json, or in a file of its own. Raises UsageError."""
    try:
        text = path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        words = error.strerror if isinstance(error, OSError) else "it is not text"
        raise UsageError(
            f"{path}: cannot be read: {words}", hint="--token-file is TorchServe's key_file.json"
        ) from None
    if text.startswith("{"):
        try:
            text = read_json(text)["management"]["key"]
        except (ValueError, KeyError, TypeError):
            text = ""
    if not isinstance(text, str) or not re.fullmatch("[!-~]+", text):
        raise UsageError(
            f"{path}: holds no management token", hint='allowed: {"management": {"key": "…"}}, or the token alone'
        ) from None
    return SecretStr(text)


def check_store(path: Path, config: ServerConfig) -> bool:
    """True if `config` names `path` as the model store. Raises UsageError if it names another."""
    store = config.model_store
    if store is None:
        return False
    if os.path.realpath(path) != os.path.realpath(store):
        raise UsageError(
            f"{path} is not TorchServe's model store: {config.path} says model_store={store}",
            hint=f"mount there, or set model_store={path}; if TorchServe was started with --model-store, which overrides the file, "
            "give its --management and omit --ts-config",
        )
    return True


class Management:
    """The management API of the TorchServe at `address`. Every method raises ModelServerError."""

    def __init__(
        self, address: str, *, token: SecretStr | None = None, ca_bundle: Path | None = None, timeout_s: float = 600.0
    ) -> None:
        """`timeout_s` bounds one registration, which reads a whole archive. Raises UsageError."""
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

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def find_process(self) -> Process | None:
        """The server's process, if it runs on this host and can be found."""
        url = self._client.base_url
        if not self._socket_path and not _is_loopback(url.host):
            return None
        return listening(url.port or (443 if url.scheme == "https" else 80), self._socket_path)

    def register(self, url: str, parameters: Mapping[str, str]) -> ModelOutcome:
        """Register a model. A registered one gets more workers if it has fewer; it loses none."""
        model = bare(url)
        try:
            reply = self._send("POST", "/models", url=url, **parameters)
            there = torchserve.conflict(model, reply)
            if there is None:
                return torchserve.registered(model, reply)
            workers = max((each.workers_wanted for each in self.list_versions(*there)), default=0)
            wanted = int(parameters.get("initial_workers", "0"))
            if wanted <= workers:
                return torchserve.present(model, reply, workers)
            # By default a registration waits for its workers, and scaling does not.
            synchronous = parameters.get("synchronous", "true")
            answer = self._send("PUT", _path(*there), min_worker=str(wanted), synchronous=synchronous)
            return torchserve.scaled(model, reply, wanted, answer)
        except Unanswered as error:
            return torchserve.unanswered(model, error)

    def unregister(self, name: str) -> ModelOutcome:
        """Remove all versions of a model."""
        try:
            defaults = {each.version for each in self.list_versions(name, "")}
            versions = [each.version for each in self.list_versions(name)]
            # Without a version, the default one is meant, which must go last.
            for version in (*(each for each in versions if each not in defaults), ""):
                outcome = torchserve.unregistered(name, self._send("DELETE", _path(name, version)))
                if outcome.result == "failed":
                    break
            return outcome
        except Unanswered as error:
            return ModelOutcome(name, "failed", error.message, error.hint)

    def list_models(self) -> Iterator[tuple[str, str]]:
        """Name and URL of every registered model."""
        page: dict[str, str] = {}
        for _ in range(_PAGES_MAX):
            rows, after = torchserve.listed(self._send("GET", "/models", limit=str(PAGE), **page))
            yield from rows
            if not rows or not after or after == page.get("next_page_token"):
                return
            page = {"next_page_token": after}
        raise ModelServerError(f"TorchServe at {self.where} lists models without an end", hint="its log says more")

    def list_versions(self, name: str, version: str = ALL) -> list[Registered]:
        """The versions of a model that `version` means: all, or if it is empty the default one."""
        return torchserve.described(self._send("GET", _path(name, version)))

    def _send(self, method: str, path: str, **query: str) -> ApiReply:
        try:
            with self._client.stream(method, path, params=query) as response:
                body = bytearray()
                for chunk in response.iter_raw():
                    body += chunk
                    if len(body) > _BODY_MAX_BYTES:
                        raise ModelServerError(f"{self.where} answered with more than {_BODY_MAX_BYTES >> 20} MiB")
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
                hint="its log says what it is doing; --timeout waits longer",
            ) from None
        except httpx.HTTPError:
            raise Unanswered(f"{self.where} broke off its reply, or does not speak HTTP", hint=_REACH) from None
        try:
            content = read_json(body)
        except ValueError:
            content = None
        reply = ApiReply(response.status_code, content)
        torchserve.check(reply, self.where, token=self._token is not None)
        return reply


_REACH = "is it running, and is this its management_address? --management gives another"


def _path(name: str, version: str = "") -> str:
    return "/models/" + "/".join(quote(part, safe="") for part in (name, version) if part)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _split(address: str) -> tuple[str, str | None]:
    """The base URL, and the path of a Unix socket or None. Raises UsageError."""
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
            "the management address is not a usable URL",
            hint=f"allowed: such as {DEFAULT_ADDRESS}, or unix:/path",
        )
    host = _UNSPECIFIED.get(host, f"[{host}]" if ":" in host else host)
    return f"{parts.scheme}://{host}" + (f":{port}" if port else "") + parts.path.rstrip("/"), None
