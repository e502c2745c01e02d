"""`d7yfs status --cluster`: the figures of all hosts, from the Prometheus that scrapes them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any
from urllib.parse import quote

import trio
from rich.console import Console
from rich.table import Table

from d7yfs.bounds.values import excerpt, read_json
from d7yfs.cli.as_json import print_object
from d7yfs.cli.terminal import cell
from d7yfs.config.url import normal_endpoint
from d7yfs.errors import BadReply, D7yfsError, OriginUnavailable, UsageError
from d7yfs.monitor.cluster import COLUMNS, WINDOW, Labels, describe, queries, read_figures, rows
from d7yfs.origins.rest import Rest
from d7yfs.tls import Trust

_HINT = "--prometheus is the address of the Prometheus that scrapes the mounts, such as http://prometheus:9090"


def show_cluster(prometheus: str, over: str, *, as_json: bool) -> None:
    """Ask Prometheus, and print. Raises UsageError, and D7yfsError if it does not answer."""
    if not re.fullmatch(r"[1-9][0-9]{0,4}[smhdw]", over):
        raise UsageError(f"--over {over!r} is no time", hint=f"allowed: such as 30m, {WINDOW} or 2d")
    try:
        url = normal_endpoint(prometheus)
    except ValueError as error:
        raise UsageError(f"--prometheus {prometheus!r}: it {error}", hint=_HINT) from None
    answers = trio.run(_ask_all, url, over)
    try:
        figures = read_figures(answers)
    except ValueError as error:
        raise _strange(url, error) from None
    if as_json:
        print_object({"prometheus": url, "over": over, **asdict(figures)})
        return
    console = Console(soft_wrap=True, highlight=False)
    for line in describe(figures, over):
        console.print(cell(line))
    if figures.models:
        table = Table(*COLUMNS)
        for row in rows(figures):
            table.add_row(*map(cell, row))
        console.print(table)
    if not figures.hosts:
        raise D7yfsError(
            f"the Prometheus at {url} knows no mount", hint="docs/operations.md, Monitoring: have it scrape them"
        )


async def _ask_all(url: str, over: str) -> Mapping[tuple[str, Labels], Sequence[Any]]:
    rest = Rest(Trust().context)
    try:
        return {name: await _ask(rest, url, expression) for name, expression in queries(over).items()}
    finally:
        await rest.aclose()


async def _ask(rest: Rest, url: str, expression: str) -> Sequence[Any]:
    target = f"{url}/api/v1/query?query={quote(expression, safe='')}"
    try:
        reply = await rest.send("GET", target, {"Accept": "application/json"}, subject="Prometheus")
    except (OriginUnavailable, BadReply) as error:
        raise D7yfsError(error.message, hint=_HINT) from None
    try:
        answer = read_json(reply.body)
        if reply.status != 200:
            words = answer.get("error", "") if isinstance(answer, dict) else ""
            raise D7yfsError(f"the Prometheus at {url} answers {reply.status} {excerpt(words)}", hint=_HINT)
        result = answer["data"]["result"]
    except (ValueError, KeyError, TypeError) as error:
        raise _strange(url, error) from None
    if not isinstance(result, list):
        raise _strange(url, ValueError("no list"))
    return result


def _strange(url: str, error: Exception) -> D7yfsError:
    return D7yfsError(f"what answers at {url} is no Prometheus: {error}", hint=_HINT)
