"""How commands print JSON (docs/status.md): objects that begin with `schema`. One alone, a list of them, or one per line as they come.

What a daemon has answered keeps the daemon's own number.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

import click

from d7yfs.control import control_socket


def print_object(answer: Mapping[str, Any]) -> None:
    """Of a command that is about one thing."""
    click.echo(json.dumps(_numbered(answer), indent=2))


def print_list(answers: Iterable[Mapping[str, Any]]) -> None:
    """Of a command that is about several things."""
    click.echo(json.dumps([_numbered(each) for each in answers], indent=2))


def print_line(answer: Mapping[str, Any]) -> None:
    """Of a command that reports as it goes on."""
    click.echo(json.dumps(_numbered(answer)))


def _numbered(answer: Mapping[str, Any]) -> dict[str, Any]:
    return {"schema": control_socket.SCHEMA, **answer}
