"""The findings of `d7yfs check`: one `Finding` per thing tried. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from d7yfs.errors import D7yfsError


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


def count(number: int, one: str, many: str) -> str:
    """The number with its noun."""
    return f"{number} {one if number == 1 else many}"


def ok(probe: str, said: str) -> Finding:
    """The finding of a probe that found nothing wrong."""
    return Finding(probe, Severity.OK, said)


def warning(probe: str, said: str, hint: str = "") -> Finding:
    """The finding of something wrong that a mount can live with."""
    return Finding(probe, Severity.WARNING, said, hint)


def failed(probe: str, said: str | D7yfsError, hint: str = "") -> Finding:
    """The finding of something that stops a mount from working; an error has its own words."""
    if isinstance(said, D7yfsError):
        return Finding(probe, Severity.FAILED, said.message, said.hint)
    return Finding(probe, Severity.FAILED, said, hint)
