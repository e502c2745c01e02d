"""What `d7yfs check` has to say: one `Finding` per thing tried. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from d7yfs.errors import D7yfsError


class Verdict(Enum):
    """How a probe ended."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report."""

    probe: str
    verdict: Verdict
    said: str
    hint: str = ""


def failed(probe: str, error: D7yfsError) -> Finding:
    """In the error's own words."""
    return Finding(probe, Verdict.FAILED, error.message, error.hint)
