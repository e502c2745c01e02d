"""Pages and systemd's line, from statuses that are made up; with a mount they are in tests/mount/test_monitoring.py."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from d7yfs.health import Probe
from d7yfs.monitoring import Monitoring, summary
from d7yfs.readiness import Readiness


def repository(state: str, name: str = "llm") -> dict[str, Any]:
    return {"name": name, "url": f"s3://b/{name}", "state": state}


def status(*repositories: dict[str, Any]) -> dict[str, Any]:
    return {
        "mountpoint": "/mnt/models",
        "repositories": repositories,
        "cache": {"used_bytes": 3 << 30, "limit_bytes": 50 << 30},
        "fuse": {"open_files": 2, "read_bytes": 1 << 29},
    }


class FakeProbe(Probe):
    """Says what it was told to."""

    def __init__(self, *, answers: bool, serves: bool) -> None:
        super().__init__(Path("/"))
        self._fixed = (answers, serves)

    async def answers(self) -> bool:
        return self._fixed[0]

    async def serves(self) -> bool:
        return self._fixed[1]


@pytest.mark.parametrize(
    ("states", "serves", "ready"),
    [
        (("reachable",), True, True),
        (("stale",), True, True),
        (("reachable", "unreachable"), True, True),
        (("unreachable", "unreachable"), True, False),
        (("reachable",), False, False),
    ],
)
async def test_ready(states: tuple[str, ...], serves: bool, ready: bool) -> None:
    shown = status(*(repository(state, f"r{number}") for number, state in enumerate(states)))
    page = await Monitoring(lambda: shown, FakeProbe(answers=True, serves=serves), Readiness({}))._readyz()
    assert page.status == (200 if ready else 503)
    told = json.loads(page.body)
    assert (told["ready"], told["mount_answers"]) == (ready, serves)
    assert tuple(told["repositories"].values()) == states


@pytest.mark.parametrize(("answers", "code"), [(True, 200), (False, 503)])
async def test_alive(answers: bool, code: int) -> None:
    page = await Monitoring(lambda: status(), FakeProbe(answers=answers, serves=False), Readiness({}))._healthz()
    assert page.status == code


def test_one_line_for_systemctl() -> None:
    assert summary(status(repository("reachable"), repository("stale", "vision"))) == (
        "s3://b/llm, s3://b/vision on /mnt/models: 2 files open, 0.5 GiB read, cache 3.0 GiB of 50.0 GiB; vision is stale"
    )
