"""The JSON that commands print (docs/status.md): objects that begin with `schema`, alone, as a
list, or one per line as they come.

A daemon's answer keeps the daemon's own schema number.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

import click

from d7yfs.control import control_socket


def print_object(answer: Mapping[str, Any]) -> None:
    """Print the answer of a command that is about one thing."""
    click.echo(json.dumps(_numbered(answer), indent=2))


def print_list(answers: Iterable[Mapping[str, Any]]) -> None:
    """Print the answers of a command that is about several things."""
    click.echo(json.dumps([_numbered(each) for each in answers], indent=2))


def print_line(answer: Mapping[str, Any]) -> None:
    """Print one report of a command that has several, one after the other."""
    click.echo(json.dumps(_numbered(answer)))


def _numbered(answer: Mapping[str, Any]) -> dict[str, Any]:
    return {"schema": control_socket.SCHEMA, **answer}
