"""Asking a real Prometheus, and reading what the project's dashboard and rules ask it."""

from __future__ import annotations

import json
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_DEPLOY = Path(__file__).parent.parent.parent / "deploy"
ALERTS = _DEPLOY / "prometheus" / "alerts.yaml"
ALERTS_TEST = _DEPLOY / "prometheus" / "alerts.test.yaml"
DASHBOARD = _DEPLOY / "grafana" / "d7yfs.json"


class Refused(Exception):
    """Prometheus did not take a question."""


class Prometheus:
    """One that runs."""

    def __init__(self, url: str) -> None:
        self._url = url

    def is_up(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self._url}/-/ready", timeout=5):
                return True
        except OSError:
            return False

    def ask(self, path: str, **parameters: str) -> Any:
        """`data` of the reply to an API call. Raises Refused."""
        url = f"{self._url}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(url, timeout=30) as reply:
                return json.load(reply)["data"]
        except urllib.error.HTTPError as error:
            with error:
                raise Refused(f"{parameters}: {error.read().decode()}") from None

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The samples of an expression now."""
        found: list[dict[str, Any]] = self.ask("query", query=expression)["result"]
        return found


@dataclass(frozen=True)
class Panel:
    """One panel of the dashboard."""

    title: str
    unit: str
    expressions: tuple[tuple[str, str], ...]
    """Expression and legend."""


def panels(*, interval: str = "10s") -> Iterator[Panel]:
    """Those of the dashboard that ask something, with its variables filled in."""
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        if panel["type"] != "row":
            expressions = tuple(
                (_filled(target["expr"], interval), target["legendFormat"]) for target in panel["targets"]
            )
            yield Panel(panel["title"], panel["fieldConfig"]["defaults"]["unit"], expressions)


def _filled(expression: str, interval: str) -> str:
    return expression.replace("$__rate_interval", interval).replace("$instance", ".*")
