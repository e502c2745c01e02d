"""What to ask of TorchServe's management API, and what its answers mean. Pure.

Owns the requests that register, scale and unregister models, and the reading of every reply.
Protocol: docs/management_api.md, docs/model_api_control.md and docs/token_authorization_api.md of TorchServe 0.12; statuses and words as
a running 0.12.0 gives them. `torchserve_api` sends, the command line prints.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from urllib.parse import quote

from d7yfs.errors import ModelServerError
from d7yfs.servers.model_store import ALL, Model, bare

PAGE = 100
"""Most models that one reply lists: the API's own limit."""

_REGISTERED = re.compile(
    r'Model "(?P<name>.+)" Version: (?P<version>\S+) registered with (?P<workers>\d+) initial workers'
)
_CONFLICT = re.compile(r"Model version (?P<version>\S+) is already registered for model (?P<name>.+)")
_NO_WORKERS = "serves nothing until it has workers: --initial-workers N"
_LOG = "TorchServe's log says more"
_LIST = "d7yfs torchserve list shows when they are ready"
_STARTING = "its workers are starting"


@dataclass(frozen=True, slots=True)
class Request:
    """One call: `path` is percent-encoded."""

    method: str
    path: str
    query: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Reply:
    """A whole answer; `body` is its JSON, None for anything else."""

    status: int
    body: object

    def said(self, key: str) -> str:
        """The text under `key`; empty when there is none."""
        found = self.body.get(key) if isinstance(self.body, dict) else None
        return found if isinstance(found, str) else ""


@dataclass(frozen=True, slots=True)
class Registered:
    """A version of a model that TorchServe has."""

    name: str
    version: str
    url: str
    workers: int
    """Workers that are ready."""
    workers_wanted: int
    batch_size: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """How it went with one model."""

    model: str
    result: str
    """registered, accepted (its workers still start), present (was registered before), unregistered or failed."""
    said: str
    hint: str = ""


class Unanswered(ModelServerError):
    """One request came to nothing; the next one may fare better."""


def registration(model: Model, parameters: Mapping[str, str]) -> Request:
    """Register `model`; `parameters` are the API's own, and only those that somebody gave."""
    return Request("POST", "/models", {"url": model.url, **parameters})


def scaling(name: str, version: str, workers: int, *, synchronous: bool) -> Request:
    """Give a version of a model `workers` workers; `synchronous` waits until they are ready."""
    query = {"min_worker": str(workers), "synchronous": str(synchronous).lower()}
    return Request("PUT", _path(name, version), query)


def removal(name: str, version: str = "") -> Request:
    """Unregister a version of a model; without one the default version, which goes last (a 403 says so)."""
    return Request("DELETE", _path(name, version), {})


def listing(page: str) -> Request:
    """One page of all models; `page` is empty for the first."""
    return Request("GET", "/models", {"limit": str(PAGE)} | ({"next_page_token": page} if page else {}))


def description(name: str, version: str = "") -> Request:
    """A model's default version, or with `all` each."""
    return Request("GET", _path(name, version), {})


def _path(name: str, version: str) -> str:
    return "/models/" + "/".join(quote(part, safe="") for part in (name, version) if part)


def check(reply: Reply, where: str, *, token: bool) -> None:
    """Raise ModelServerError for what would befall every request: no entry, no such API, no TorchServe. `token`: one was sent.

    Raises Unanswered for an error without TorchServe's words, such as a gateway's.
    """
    kind = reply.said("type")
    if kind == "InvalidKeyException" or reply.status == 401:
        hint = "give --token-file the key_file.json in TorchServe's working directory, or start it with --disable-token-auth"
        if token:
            hint = "it lives an hour, or token_expiration_min minutes; GET /token?type=management with the API key makes a new one"
        raise ModelServerError(f"TorchServe at {where} {'refuses the token' if token else 'wants a token'}", hint=hint)
    if reply.status == 405:
        raise ModelServerError(
            f"TorchServe at {where} does not let models be registered or removed while it runs",
            hint="start it with --enable-model-api (or enable_model_api=true), or let it load them at its start with --models",
        )
    if reply.body is None and reply.status >= 500:
        raise Unanswered(f"TorchServe at {where} answered with status {reply.status} and no words", hint=_LOG)
    if reply.body is None or kind == "ResourceNotFoundException":
        raise ModelServerError(
            f"{where} is not TorchServe's management API: status {reply.status}",
            hint="--management is management_address of its configuration, by default port 8081",
        )


def registered(model: Model, reply: Reply) -> Outcome:
    """What became of a registration."""
    words = reply.said("status") or reply.said("message") or f"status {reply.status}"
    match reply.status:
        case 200 if found := _REGISTERED.search(words):
            name = "" if found["name"] == model.name else f" as {found['name']}"
            workers = int(found["workers"])
            said = f"version {found['version']}{name}, {_workers(workers)}"
            return Outcome(model.name, "registered", said, "" if workers else _NO_WORKERS)
        case 200:
            return Outcome(model.name, "registered", words)
        case 202 | 206:
            return Outcome(model.name, "accepted", _STARTING, _LIST)
        case 404:
            hint = "is this directory TorchServe's model store? --ts-config FILE compares them"
            return Outcome(model.name, "failed", words, hint)
    return Outcome(model.name, "failed", words, _LOG)


def conflict(model: Model, reply: Reply) -> tuple[str, str] | None:
    """Name and version that stand in the way of a registration; None when none do. The version is empty where it is not said."""
    if reply.status != 409:
        return None
    found = _CONFLICT.fullmatch(reply.said("message"))
    return (found["name"], found["version"]) if found else (model.name, "")


def present(model: Model, reply: Reply, workers: int) -> Outcome:
    """A registration that met the same version, which has or is to have so many workers."""
    hint = "unregister it first if its content has changed"
    return Outcome(model.name, "present", reply.said("message"), hint if workers else _NO_WORKERS)


def scaled(model: Model, conflict: Reply, workers: int, reply: Reply) -> Outcome:
    """The same after `scaling`, whose answer is `reply`."""
    if reply.status == 200:
        found = present(model, conflict, workers)
        return replace(found, said=f"{found.said}; now {_workers(workers)}")
    if reply.status in (202, 206):
        return Outcome(model.name, "accepted", _STARTING, _LIST)
    return Outcome(model.name, "failed", reply.said("message") or f"status {reply.status}", _LOG)


def unanswered(model: Model, error: Unanswered) -> Outcome:
    """A registration of which nobody knows what became."""
    hint = "TorchServe may still be loading it: d7yfs torchserve list shows it once it has; --timeout waits longer"
    return Outcome(model.name, "failed", error.message, f"{hint}, d7yfs warm beforehand makes it shorter")


def unregistered(name: str, reply: Reply) -> Outcome:
    """What became of a removal."""
    if reply.status == 200:
        return Outcome(name, "unregistered", "")
    return Outcome(name, "failed", reply.said("message") or f"status {reply.status}", _LOG)


def listed(reply: Reply) -> tuple[list[tuple[str, str]], str]:
    """Names and URLs on a page, and the token of the next one (empty: there is none)."""
    content = reply.body if isinstance(reply.body, dict) else {}
    rows = content.get("models")
    found = [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
    return [(str(row.get("modelName", "")), str(row.get("modelUrl", ""))) for row in found], reply.said("nextPageToken")


def described(reply: Reply) -> list[Registered]:
    """The versions in a description; none when the model has gone meanwhile."""
    rows = reply.body if reply.status == 200 and isinstance(reply.body, list) else []
    return [_version(row) for row in rows if isinstance(row, dict)]


def matching(listed: Iterable[tuple[str, str]], wanted: Sequence[str]) -> tuple[list[str], list[str]]:
    """Names of the registered models that `wanted` means, by name or by archive, and the wanted ones that are none."""
    rows = list(listed)
    if ALL in wanted:
        return [name for name, _ in rows], []
    found: dict[str, None] = {}
    lacking = []
    for each in wanted:
        names = [name for name, url in rows if each in (name, url, bare(url.rpartition("/")[2]))]
        found |= dict.fromkeys(names)
        if not names:
            lacking.append(each)
    return list(found), lacking


def _version(row: Mapping[str, object]) -> Registered:
    workers = row.get("workers")
    ready = [each for each in workers if each.get("status") == "READY"] if isinstance(workers, list) else []
    return Registered(
        name=str(row.get("modelName", "")),
        version=str(row.get("modelVersion", "")),
        url=str(row.get("modelUrl", "")),
        workers=len(ready),
        workers_wanted=_number(row.get("minWorkers")),
        batch_size=_number(row.get("batchSize")),
    )


def _number(value: object) -> int:
    return value if isinstance(value, int) else 0


def _workers(count: int) -> str:
    return f"{count} worker" if count == 1 else f"{count} workers"
