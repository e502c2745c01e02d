"""The numbers of a status, and which of them no scrape shows."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from typing import Any

from d7yfs.monitor import metrics
from d7yfs.stats.status import MountStatus, parse

LEFT_OUT = {
    r"schema|pid|takeover\.(generation|worker_pid|worker_uid)": "no quantities",
    r"started_at|uptime_s": "process_start_time_seconds",
    r"rss_bytes": "process_resident_memory_bytes",
    r"fuse\.calls\..*": "the histograms count requests that have ended, and the others are in flight",
    r"fuse\.oldest_requests\..*": "single requests; the oldest one's age is shown",
    r"fuse\.waiting_reads\..*": "as many users as the host has; their sum is in flight",
    r"fuse\.read_bytes": "the sum over all repositories",
    r"repositories\.\d+\.proxy_trips": "of one of the proxies, each of which has its own",
    r"repositories\.\d+\.fetched\.(direct|proxy)_bytes": "the same is under traffic",
    r"repositories\.\d+\.fetched\.direct_bytes_by_reason\..*": "the same is under traffic",
    r"repositories\.\d+\.handover\.\w+_bytes": "the same is under traffic",
    r"repositories\.\d+\.fills\..*": "single files",
    r"repositories\.\d+\.failures\.\w+\.(since|last_at)": "alerts count by their own clock; d7yfs_failures has the numbers",
    r"problems\..*": "single problems; d7yfs_problem counts them by code",
    r"warm_ups\.\d+\.(?!missing_bytes|fetched_bytes|files_failed).*": "single warm-ups; what all together have still to bring is shown",
}
"""Paths (regular expressions) and why no scrape has these numbers."""


def numbers(document: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Where in a document there is a number."""
    if isinstance(document, (dict, list, tuple)):
        items = document.items() if isinstance(document, dict) else enumerate(document)
        for key, value in items:
            yield from numbers(value, (*path, key))
    elif isinstance(document, (int, float)) and not isinstance(document, bool):
        yield path


def unshown(status: dict[str, Any]) -> set[str]:
    """The numbers that may be any other without a scrape changing by it."""
    before = _samples(status)
    found = set()
    for path in numbers(status):
        other = copy.deepcopy(status)
        holder: Any = other
        for key in path[:-1]:
            holder = holder[key]
        holder[path[-1]] += 1
        if _samples(other) == before:
            found.add(".".join(map(str, path)))
    return found


def left_out(paths: set[str]) -> set[str]:
    """Those of `paths` for whose absence there is a reason."""
    return {path for path in paths if any(re.fullmatch(pattern, path) for pattern in LEFT_OUT)}


def _samples(status: dict[str, Any]) -> list[Any]:
    return [
        (sample.name, sample.labels, sample.value)
        for family in metrics.families(parse(MountStatus, status))
        for sample in family.samples
    ]
