"""The meaning of the answers of TorchServe's management API. Pure.

Owns the reading of every reply. Protocol: docs/management_api.md, docs/model_api_control.md and docs/token_authorization_api.md of
TorchServe 0.12; statuses and words are those of a running 0.12.0. `torchserve_api` sends, the
command line prints.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from d7yfs.bounds.values import read_integer
from d7yfs.errors import ModelServerError
from d7yfs.servers.model_store import ALL, bare

_REGISTERED = re.compile(
    r'Model "(?P<name>.+)" Version: (?P<version>\S+) registered with (?P<workers>[0-9]{1,9}) initial workers'
)
_CONFLICT = re.compile(r"Model version (?P<version>\S+) is already registered for model (?P<name>.+)")
_NO_WORKERS = "serves nothing until it has workers: --initial-workers N"
_LOG = "TorchServe's log says more"
_LIST = "d7yfs torchserve list shows when they are ready"
_STARTING = "its workers are starting"


@dataclass(frozen=True, slots=True)
class ApiReply:
    """One whole answer of the API; `body` is its JSON, None for anything else."""

    status: int
    body: object

    def said(self, key: str) -> str:
        """The text under `key`; empty if there is none."""
        found = self.body.get(key) if isinstance(self.body, dict) else None
        return found if isinstance(found, str) else ""


@dataclass(frozen=True, slots=True)
class Registered:
    """One version of a model that is registered with TorchServe."""

    name: str
    version: str
    url: str
    workers: int
    """Workers that are ready."""
    workers_wanted: int
    batch_size: int


@dataclass(frozen=True, slots=True)
class ModelOutcome:
    """The result of a command for one model."""

    model: str
    """Its name, without the ending of its archive."""
    result: str
    """`registered`, `accepted` (its workers still start), `present` (was registered before),
    `unregistered` or `failed`."""
    said: str
    hint: str = ""


class Unanswered(ModelServerError):
    """The failure of one request; the next one may succeed."""


def check(reply: ApiReply, where: str, *, token: bool) -> None:
    """Raise ModelServerError for failures that every request would meet: no access, no such API, no
    TorchServe. `token`: one was sent.

    Raises Unanswered for an error that is not in TorchServe's words, such as a gateway's.
    """
    kind = reply.said("type")
    if kind == "InvalidKeyException" or reply.status == 401:
        hint = "give --token-file the key_file.json in TorchServe's working directory, or start it with --disable-token-auth"
        if token:
            hint = "it lasts an hour, or token_expiration_min minutes; GET /token?type=management with the API key makes a new one"
        raise ModelServerError(f"TorchServe at {where} {'refuses the token' if token else 'wants a token'}", hint=hint)
    if reply.status == 405:
        raise ModelServerError(
            f"TorchServe at {where} does not let models be registered or removed while it runs",
            hint="start it with --enable-model-api (or enable_model_api=true), or have it load them at start with --models",
        )
    if reply.body is None and reply.status >= 500:
        raise Unanswered(f"TorchServe at {where} answered with status {reply.status} and no message", hint=_LOG)
    if reply.body is None or kind == "ResourceNotFoundException":
        raise ModelServerError(
            f"{where} is not TorchServe's management API: status {reply.status}",
            hint="--management must be management_address of its configuration, by default port 8081",
        )


def registered(model: str, reply: ApiReply) -> ModelOutcome:
    """The outcome of a registration."""
    words = reply.said("status") or _words(reply)
    match reply.status:
        case 200 if found := _REGISTERED.search(words):
            name = "" if found["name"] == model else f" as {found['name']}"
            workers = int(found["workers"])
            said = f"version {found['version']}{name}, {_workers(workers)}"
            return ModelOutcome(model, "registered", said, "" if workers else _NO_WORKERS)
        case 200:
            return ModelOutcome(model, "registered", words)
        case 202 | 206:
            return ModelOutcome(model, "accepted", _STARTING, _LIST)
        case 404:
            hint = "is this directory TorchServe's model store? --ts-config FILE compares them"
            return ModelOutcome(model, "failed", words, hint)
    return _refused(model, reply)


def conflict(model: str, reply: ApiReply) -> tuple[str, str] | None:
    """Name and version that conflict with a registration; None for no conflict. The version is
    empty if the reply does not say it."""
    if reply.status != 409:
        return None
    found = _CONFLICT.fullmatch(reply.said("message"))
    return (found["name"], found["version"]) if found else (model, "")


def present(model: str, reply: ApiReply, workers: int) -> ModelOutcome:
    """The outcome of a registration that met the same version, with `workers` workers."""
    hint = "unregister it first if its content has changed"
    return ModelOutcome(model, "present", reply.said("message"), hint if workers else _NO_WORKERS)


def scaled(model: str, conflict: ApiReply, workers: int, reply: ApiReply) -> ModelOutcome:
    """The same outcome after a request for more workers, whose answer is `reply`."""
    if reply.status == 200:
        found = present(model, conflict, workers)
        return replace(found, said=f"{found.said}; now {_workers(workers)}")
    if reply.status in (202, 206):
        return ModelOutcome(model, "accepted", _STARTING, _LIST)
    return _refused(model, reply)


def unanswered(model: str, error: Unanswered) -> ModelOutcome:
    """The outcome of a registration without an answer."""
    hint = "TorchServe may still be loading it: d7yfs torchserve list shows it when it is done; --timeout waits longer"
    return ModelOutcome(model, "failed", error.message, f"{hint}, d7yfs warm beforehand makes it shorter")


def unregistered(name: str, reply: ApiReply) -> ModelOutcome:
    """The outcome of a removal."""
    if reply.status == 200:
        return ModelOutcome(name, "unregistered", "")
    return _refused(name, reply)


def _refused(name: str, reply: ApiReply) -> ModelOutcome:
    return ModelOutcome(name, "failed", _words(reply), _LOG)


def _words(reply: ApiReply) -> str:
    return reply.said("message") or f"status {reply.status}"


def listed(reply: ApiReply) -> tuple[list[tuple[str, str]], str]:
    """Names and URLs on a page, and the token of the next one (empty for none)."""
    content = reply.body if isinstance(reply.body, dict) else {}
    rows = content.get("models")
    found = [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
    return [(str(row.get("modelName", "")), str(row.get("modelUrl", ""))) for row in found], reply.said("nextPageToken")


def described(reply: ApiReply) -> list[Registered]:
    """The versions in a description; none if the model has been removed since."""
    rows = reply.body if reply.status == 200 and isinstance(reply.body, list) else []
    return [_version(row) for row in rows if isinstance(row, dict)]


def matching(rows: Sequence[tuple[str, str]], wanted: Sequence[str]) -> tuple[list[str], list[str]]:
    """The models in `rows` (names and URLs) that `wanted` names or whose archives it names, and the
    rest of it."""
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
    known = [each for each in workers if isinstance(each, dict)] if isinstance(workers, list) else []
    ready = [each for each in known if each.get("status") == "READY"]
    return Registered(
        name=str(row.get("modelName", "")),
        version=str(row.get("modelVersion", "")),
        url=str(row.get("modelUrl", "")),
        workers=len(ready),
        workers_wanted=_number(row.get("minWorkers")),
        batch_size=_number(row.get("batchSize")),
    )


def _number(value: object) -> int:
    """The number in a reply; 0 for anything that is no number of workers or requests."""
    try:
        return read_integer(value, most=999_999_999)
    except ValueError:
        return 0


def _workers(count: int) -> str:
    return f"{count} worker" if count == 1 else f"{count} workers"
