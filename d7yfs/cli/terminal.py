"""Printing to a terminal: names from a store neither drive it nor are taken for markup.

Every command prints text by `say`, or by `cell` in a table of rich. Names that end up in a line of
their own go through `printable` too, because a name may hold a newline.
"""

from __future__ import annotations

import shutil
import textwrap
from typing import TYPE_CHECKING

import click

from d7yfs.objects import printable

if TYPE_CHECKING:
    from rich.text import Text


def say(text: str, *, err: bool = False) -> None:
    """Print lines, on stdout or stderr; control characters but newlines are escaped."""
    click.echo("\n".join(map(printable, text.split("\n"))), err=err)


def cell(text: str) -> Text:
    """Text for a table or console of rich, escaped, and without markup."""
    from rich.text import Text  # only here: most commands print no table

    return Text(printable(text))


def wrap(text: str, indent: str, first: str = "") -> list[str]:
    """Lines of at most the terminal's width, 80 where there is none, for `text` without markup. The first
    begins with `first`, the others with `indent`. Paths and URLs are never broken."""
    width = max(40, shutil.get_terminal_size().columns)
    lines: list[str] = []
    for line in map(printable, text.split("\n")):
        lines += textwrap.wrap(
            line,
            width,
            initial_indent=indent if lines else first or indent,
            subsequent_indent=indent,
            break_long_words=False,
            break_on_hyphens=False,
        )
    return lines
