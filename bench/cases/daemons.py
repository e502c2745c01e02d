"""The daemon itself: its start, its memory, and the pause of a reader while it is replaced."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from bench import dataset, reads, workers
from bench.cases.case import Case, Figures, Goal, Metric, Run
from bench.processes import drop_page_cache

_STARTS = 5
_KILLS_OF_A_MOUNT = 5
"""Further ones are followed after a pause (`d7yfs/supervisor/policy.py`)."""
_QUIET_S = 2.0
_ROLES = ("supervisor", "worker", "standby")


def _start(run: Run) -> Figures:
    run.mount.unmount()
    drop_page_cache()
    run.mount.mount()
    return {"mount cold": run.mount.start_s * 1e3}


def _start_again(run: Run) -> Figures:
    taken_s = []
    for _ in range(_STARTS):
        run.mount.unmount()
        run.mount.mount()
        taken_s.append(run.mount.start_s)
    run.mount.settle()
    processes = run.mount.memory()
    figures = {
        "mount": statistics.median(taken_s) * 1e3,
        "PSS": sum(each.pss_bytes for each in processes) / 1e6,
        "RSS": sum(each.rss_bytes for each in processes) / 1e6,
    }
    if len(processes) == len(_ROLES):
        figures |= {f"RSS of {role}": each.rss_bytes / 1e6 for role, each in zip(_ROLES, processes, strict=True)}
    return figures


def _takeover(run: Run) -> Figures:
    path = run.directory / dataset.SMALL / "00000.bin"
    quiet_s = run.do(reads.longest_pause, path, partial(time.sleep, _QUIET_S))
    killed_s = []
    for number in range(run.sizes.kills):
        if number and number % _KILLS_OF_A_MOUNT == 0:
            run.mount.unmount()
            run.mount.mount()
        killed_s.append(_pause(run, path, workers.kill))
    upgraded_s = [_pause(run, path, workers.upgrade) for _ in range(run.sizes.upgrades)]
    return {
        "no kill": quiet_s * 1e3,
        "kill": max(killed_s) * 1e3,
        "kill median": statistics.median(killed_s) * 1e3,
        "upgrade": max(upgraded_s) * 1e3,
        "upgrade median": statistics.median(upgraded_s) * 1e3,
    }


def _pause(run: Run, path: Path, replace: Callable[[Path], None]) -> float:
    run.mount.settle()
    return run.do(reads.longest_pause, path, partial(replace, run.directory))


CASES = (
    Case(
        "start",
        "mounting, and the memory of an idle mount",
        (
            Metric("mount cold", "ms", "lower"),
            Metric("mount", "ms", "lower", (Goal(250, "constant"),)),
            Metric("PSS", "MB", "lower"),
            Metric("RSS", "MB", "lower"),
            *(Metric(f"RSS of {role}", "MB", "lower") for role in _ROLES),
        ),
        _start,
        _start_again,
        references=False,
    ),
    Case(
        "takeover",
        "the longest pause of a reader while the daemon is killed or upgraded",
        (
            Metric("no kill", "ms", "lower"),
            Metric("kill", "ms", "lower", (Goal(500, "constant"),)),
            Metric("kill median", "ms", "lower"),
            Metric("upgrade", "ms", "lower"),
            Metric("upgrade median", "ms", "lower"),
        ),
        _takeover,
        verified=lambda _: (f"{dataset.SMALL}/00000.bin",),
        only=("d7yfs",),
        once=True,
    ),
)
