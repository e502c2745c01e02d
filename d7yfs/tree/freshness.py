"""What of one repository to ask for again before it expires, and by which way. Pure.

The rules: only what somebody has used since it was listed; at four fifths of its life, so that readers find it fresh at any moment; all of
the repository in one flat listing where that costs fewer requests than the directories in use, one by one; nothing that nobody has used
for as long as it lives. So a mount that is not looked at asks for nothing.

Asked by `refresher`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from d7yfs.tree.nodes import Directory

DUE = 0.8
"""The part of a listing's life after which it is asked for again."""

PAGE_ENTRIES = 1000
"""What one request lists, with every provider's default."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What to ask for now; false when that is nothing."""

    whole: bool = False
    directories: tuple[Directory, ...] = ()
    """Those that are due, each to be listed by itself unless `whole`; the one used last comes first."""

    def __bool__(self) -> bool:
        return bool(self.directories)


def plan(directories: Iterable[Directory], now: float, whole_requests: int | None) -> Plan:
    """What is due of `directories`, all of one repository, at `now`.

    `whole_requests`: how many requests a flat listing of the repository takes; None where it is not listed so.
    """
    due: list[Directory] = []
    requests = 0
    for directory in directories:
        life_s = directory.expires_at - directory.asked_at
        # Kept for ever or not at all, or used by nobody for a whole life.
        if (
            directory.huge
            or directory.children is None
            or not 0 < life_s < math.inf
            or directory.used_at <= now - life_s
        ):
            continue
        requests += max(1, -(-len(directory.children) // PAGE_ENTRIES))
        if directory.used_at >= directory.asked_at and now >= directory.asked_at + DUE * life_s:
            due.append(directory)
    due.sort(key=lambda each: each.used_at, reverse=True)
    # What is in use counts, not what is due: the rest of it would follow within the same life.
    whole = bool(due) and whole_requests is not None and whole_requests <= requests
    return Plan(whole, tuple(due))
