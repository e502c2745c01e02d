"""The findings of `d7yfs check`: one `Finding` per thing tried. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from d7yfs.errors import D7yfsError

NAMES_MAX = 1000
"""The most names in one finding."""
_EXAMPLES = 3


class Severity(Enum):
    """The result of a probe."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report of `d7yfs check`."""

    probe: str
    verdict: Severity
    said: str
    hint: str = ""
    names: tuple[str, ...] = ()
    """The objects of which `said` names a few, each with the reason; no more than `NAMES_MAX`."""


def count(number: int, one: str, many: str) -> str:
    """The number with its noun."""
    return f"{number} {one if number == 1 else many}"


def examples(names: Sequence[str]) -> str:
    """The first few names, in words."""
    return ", ".join(names[:_EXAMPLES]) + ", …" * (len(names) > _EXAMPLES)


def ok(probe: str, said: str, names: Sequence[str] = ()) -> Finding:
    """The finding of a probe that found nothing wrong."""
    return Finding(probe, Severity.OK, said, names=tuple(names[:NAMES_MAX]))


def warning(probe: str, said: str, hint: str = "", names: Sequence[str] = ()) -> Finding:
    """The finding of something wrong that a mount can live with."""
    return Finding(probe, Severity.WARNING, said, hint, tuple(names[:NAMES_MAX]))


def failed(probe: str, said: str | D7yfsError, hint: str = "") -> Finding:
    """The finding of something that stops a mount from working; an error has its own words."""
    if isinstance(said, D7yfsError):
        return Finding(probe, Severity.FAILED, said.message, said.hint)
    return Finding(probe, Severity.FAILED, said, hint)
