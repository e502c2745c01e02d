"""The client of Dragonfly's manager: its open API, as far as jobs are concerned.

Owns the requests and the meaning of refusals; `preheat_job` has the bodies. `Rest` bounds time and
size of replies, tries again, follows no redirect and no proxy of the environment. So the token stays
here. Facts: `manager/middlewares/personal_access_token.go` of manager 2.5.1, and its
`api/manager/swagger.json`.

Called by `preheat` in `control`, one client for each preheat.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from d7yfs.bounds.values import read_json
from d7yfs.config.settings_file import read_file
from d7yfs.errors import BadReply, ConfigError, ManagerError, OriginUnavailable
from d7yfs.fetch.preheat_job import JobOutcome, read_number, read_outcome, showable
from d7yfs.objects import SecretStr
from d7yfs.origins.rest import ControlReply, Rest
from d7yfs.tls import Trust

_JOBS = "/oapi/v1/jobs"
_TOKEN_CHARACTERS = 4096
_HINTS = {
    401: "is the token in dragonfly_manager_token_file right, and does it still exist?",
    403: "the token needs the scope job, must be active, and must not have expired",
    404: "is dragonfly_manager the manager's REST address (port 8080), and not its gRPC port?",
    422: "is the manager older than 2.3, or p2p_piece_length over 64MiB?",
    429: "the manager limits jobs: try again later, or raise job_rate_limit of the cluster",
    500: "is a scheduler with the feature preheat active, and does it have Redis? The manager's log has more",
}


def read_token(path: Path | None) -> SecretStr:
    """The personal access token in a file. Raises ConfigError."""
    hint = "make a token of the scope job in the manager's console, and put it alone into a file"
    if path is None:
        raise ConfigError("dragonfly_manager_token_file is not set", hint=hint)
    try:
        text = read_file(path).decode("ascii").strip()
    except OSError as error:
        raise ConfigError(f"dragonfly_manager_token_file: {path} cannot be read: {error.strerror}", hint=hint) from None
    except UnicodeDecodeError:
        text = ""
    if not text or len(text) > _TOKEN_CHARACTERS or not text.isprintable() or " " in text:
        raise ConfigError(f"dragonfly_manager_token_file: {path} holds no token", hint=hint)
    return SecretStr(text)


class DragonflyManager:
    """The manager at `url`. Every method raises ManagerError."""

    def __init__(self, url: str, token: SecretStr) -> None:
        self._url = url.rstrip("/")
        self._token = token
        self._rest = Rest(Trust().context)

    async def create(self, job: Mapping[str, Any]) -> int:
        """Create a job; returns its number."""
        reply = await self._ask("POST", _JOBS, json.dumps(job).encode())
        try:
            return read_number(read_json(reply.body))
        except ValueError as error:
            raise self._strange(error) from None

    async def look_at(self, number: int) -> JobOutcome:
        """The state of a job, and its outcome."""
        reply = await self._ask("GET", f"{_JOBS}/{number}")
        try:
            return read_outcome(read_json(reply.body))
        except ValueError as error:
            raise self._strange(error) from None

    async def aclose(self) -> None:
        """Close the connections."""
        await self._rest.aclose()

    async def _ask(self, method: str, path: str, body: bytes = b"") -> ControlReply:
        headers = {"Authorization": f"Bearer {self._token.get_secret_value()}", "Accept": "application/json"}
        if body:
            headers["Content-Type"] = "application/json"
        try:
            reply = await self._rest.send(method, self._url + path, headers, subject="Dragonfly's manager", body=body)
        except (OriginUnavailable, BadReply) as error:
            hint = "is dragonfly_manager its REST address, such as http://dragonfly-manager:8080, and is it up?"
            raise ManagerError(error.message, hint=hint) from None
        if reply.status != 200:
            raise ManagerError(
                f"Dragonfly's manager at {self._url} answers {reply.status}{_said(reply.body)}",
                hint=_HINTS.get(reply.status, ""),
            )
        return reply

    def _strange(self, error: ValueError) -> ManagerError:
        return ManagerError(f"Dragonfly's manager at {self._url} gives an answer that is not its API's: {error}")


def _said(body: bytes) -> str:
    """The manager's own words, where it has some."""
    try:
        answer = read_json(body)
    except ValueError:
        return ""
    words = answer.get("message") or answer.get("errors") if isinstance(answer, dict) else None
    return f": {showable(words)}" if isinstance(words, str) else ""
