"""Queries to a real Prometheus, and the queries of the project's dashboard and rules."""

from __future__ import annotations

import json
import re
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.mount.mounted import free_port, until

_DEPLOY = Path(__file__).parent.parent.parent / "deploy"
ALERTS = _DEPLOY / "prometheus" / "alerts.yaml"
ALERTS_TEST = _DEPLOY / "prometheus" / "alerts.test.yaml"
CLUSTER = _DEPLOY / "prometheus" / "cluster.yaml"
CLUSTER_TEST = _DEPLOY / "prometheus" / "cluster.test.yaml"
DASHBOARD = _DEPLOY / "grafana" / "d7yfs.json"
CLUSTER_DASHBOARD = _DEPLOY / "grafana" / "d7yfs-cluster.json"


class Refused(Exception):
    """A query that Prometheus refused."""


class Prometheus:
    """A Prometheus server that runs."""

    def __init__(self, url: str) -> None:
        self.url = url

    def is_up(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/-/ready", timeout=5):
                return True
        except OSError:
            return False

    def ask(self, path: str, **parameters: str) -> Any:
        """`data` of the reply to an API call. Raises Refused."""
        url = f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
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


@contextmanager
def scraping(addresses: Sequence[str], directory: Path) -> Iterator[Prometheus]:
    """A Prometheus that scrapes `addresses` every second, with this project's rules and its data in
    `directory`. It records as often.
    """
    cluster = directory / "cluster.yaml"
    cluster.write_text(CLUSTER.read_text().replace("interval: 1m", "interval: 1s"))
    config = directory / "prometheus.yaml"
    config.write_text(
        "global: {scrape_interval: 1s, evaluation_interval: 1s}\n"
        f"rule_files: [{ALERTS}, {cluster}]\n"
        f"scrape_configs:\n  - job_name: d7yfs\n    static_configs: [{{targets: {json.dumps(list(addresses))}}}]\n"
    )
    port = free_port()
    command = [
        *("prometheus", f"--config.file={config}", f"--storage.tsdb.path={directory / 'tsdb'}"),
        *(f"--web.listen-address=127.0.0.1:{port}", "--log.level=warn"),
    ]
    with (directory / "prometheus.log").open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        try:
            found = Prometheus(f"http://127.0.0.1:{port}")
            until(found.is_up, "Prometheus", timeout_s=60)
            yield found
        finally:
            process.terminate()


@dataclass(frozen=True)
class Panel:
    """One panel of the dashboard."""

    title: str
    unit: str
    expressions: tuple[tuple[str, str], ...]
    """Pairs of expression and legend."""


def panels(dashboard: Path = DASHBOARD, *, interval: str = "10s") -> Iterator[Panel]:
    """The panels of a dashboard that have queries, with its variables filled in."""
    for panel in json.loads(dashboard.read_text())["panels"]:
        if panel["type"] != "row":
            expressions = tuple(
                (_filled(target["expr"], interval), target["legendFormat"]) for target in panel["targets"]
            )
            yield Panel(panel["title"], panel["fieldConfig"]["defaults"]["unit"], expressions)


def _filled(expression: str, interval: str) -> str:
    return re.sub(r"\$(instance|repository)\b", ".*", expression.replace("$__rate_interval", interval))
