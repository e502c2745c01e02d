"""Paths on the command line that may lie in a mount: never looked at, for one look at a mount that hangs hangs the command."""

from __future__ import annotations

import os
from pathlib import Path

import click


class Place(click.Path):
    """Completed by shells as any path; click's own type would stat(2) it."""

    def convert(
        self,
        value: str | os.PathLike[str],
        param: click.Parameter | None,  # noqa: ARG002
        ctx: click.Context | None,  # noqa: ARG002
    ) -> Path:
        return Path(value)
