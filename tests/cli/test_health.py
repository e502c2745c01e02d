"""`d7yfs health` between the real command and a daemon's control socket whose answers are made up."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path
from typing import Any

import pytest
import trio
from click.testing import CliRunner, Result

from d7yfs.cli import main
from d7yfs.control import control_socket, server

POINT = Path("/mnt/models")
WELL: dict[str, Any] = {
    "mountpoint": str(POINT),
    "alive": True,
    "ready": True,
    "mount_answers": True,
    "repositories": {"llm": "reachable", "vision": "stale"},
}
AWAY = WELL | {"ready": False, "repositories": {"llm": "unreachable"}}
LISTS_NOTHING = WELL | {"ready": False, "mount_answers": False}
HANGS = LISTS_NOTHING | {"alive": False}


@pytest.fixture(autouse=True)
def _runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_socket, "runtime_directory", lambda environ=None: tmp_path / "run")


async def health(nursery: trio.Nursery, answer: Mapping[str, Any], *arguments: str) -> Result:
    """The command's report on a mount whose daemon answers so."""

    async def report(_request: Mapping[str, Any]) -> AsyncGenerator[dict[str, Any], None]:
        yield dict(answer)

    await nursery.start(server.serve, control_socket.socket_path(POINT), {"health": report})
    return await trio.to_thread.run_sync(lambda: CliRunner().invoke(main, ["health", *arguments]))


@pytest.mark.parametrize(
    ("answer", "ready", "alive", "said"),
    [
        (WELL, 0, 0, "/mnt/models: ready"),
        (AWAY, 1, 0, "/mnt/models: alive, and not ready: llm is unreachable"),
        (LISTS_NOTHING, 1, 0, "/mnt/models: alive, and not ready: its root cannot be read, vision is stale"),
        (HANGS, 1, 1, "/mnt/models: its daemon does not answer reads"),
    ],
)
@pytest.mark.parametrize("arguments", [(), (str(POINT),)])
async def test_the_exit_status_tells(
    nursery: trio.Nursery, answer: dict[str, Any], ready: int, alive: int, said: str, arguments: tuple[str, ...]
) -> None:
    shown = await health(nursery, answer, *arguments)
    assert (shown.exit_code, shown.output) == (ready, f"{said}\n")
    asked = await trio.to_thread.run_sync(lambda: CliRunner().invoke(main, ["health", "--alive", *arguments]))
    assert asked.exit_code == alive


async def test_json(nursery: trio.Nursery) -> None:
    shown = await health(nursery, AWAY, "--json")
    assert shown.exit_code == 1
    assert json.loads(shown.output) == [{"schema": control_socket.SCHEMA} | AWAY]


def test_nobody_is_not_well(tmp_path: Path) -> None:
    for arguments in ([], ["--alive"], ["--json"], [str(tmp_path)]):
        shown = CliRunner().invoke(main, ["health", *arguments])
        assert shown.exit_code == 1, arguments
        assert "nothing is mounted" in shown.output or f"no daemon answers for {tmp_path}" in shown.output
