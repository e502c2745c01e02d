"""Pages and systemd's line, from statuses that are made up; with a mount they are in tests/mount/test_monitoring.py."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from d7yfs import logs
from d7yfs.host.launch import Readiness
from d7yfs.monitor.probe import Probe
from d7yfs.monitor.reporter import LISTEN_RETRY_S, Reporter, summarize
from d7yfs.stats.status import MountStatus, ReloadStatus, as_json, parse
from tests.monitor.test_metrics import SNAPSHOT


def repository(state: str, name: str = "llm") -> dict[str, Any]:
    shown: dict[str, Any] = SNAPSHOT["repositories"][0]
    return shown | {"name": name, "url": f"s3://b/{name}", "state": state}


def status(*repositories: dict[str, Any], error: str = "") -> MountStatus:
    changes = {
        "mountpoint": "/mnt/models",
        "problems": (),
        "repositories": repositories,
        "cache": SNAPSHOT["cache"] | {"used_bytes": 3 << 30, "limit_bytes": 50 << 30},
        "fuse": SNAPSHOT["fuse"] | {"open_files": 2, "read_bytes": 1 << 29},
        "last_reload": SNAPSHOT["last_reload"] | {"error": error} if error else None,
    }
    return parse(MountStatus, SNAPSHOT | changes)


class FakeProbe(Probe):
    """Says what it was told to."""

    def __init__(self, *, answers: bool | None, serves: bool | None) -> None:
        super().__init__(Path("/"))
        self._fixed = (answers, serves)

    async def answers(self) -> bool | None:
        return self._fixed[0]

    async def serves(self) -> bool | None:
        return self._fixed[1]


@pytest.mark.parametrize(
    ("states", "serves", "ready"),
    [
        (("reachable",), True, True),
        (("stale",), True, True),
        (("reachable", "unreachable"), True, True),
        (("unreachable", "unreachable"), True, False),
        (("reachable",), False, False),
        (("reachable",), None, True),
        (("unreachable",), None, False),
    ],
)
async def test_ready(states: tuple[str, ...], serves: bool | None, ready: bool) -> None:
    shown = status(*(repository(state, f"r{number}") for number, state in enumerate(states)))
    page = await Reporter(lambda: shown, FakeProbe(answers=True, serves=serves), Readiness({}))._readyz()
    assert page.status == (200 if ready else 503)
    told = json.loads(page.body)
    assert (told["ready"], told["mount_answers"]) == (ready, serves)
    assert tuple(told["repositories"].values()) == states


@pytest.mark.parametrize(("answers", "code"), [(True, 200), (None, 200), (False, 503)])
async def test_alive(answers: bool | None, code: int) -> None:
    page = await Reporter(lambda: status(), FakeProbe(answers=answers, serves=False), Readiness({}))._healthz()
    assert page.status == code
    assert json.loads(page.body) == {"alive": code == 200, "mount_answers": answers}


@pytest.mark.parametrize(
    ("answers", "serves", "alive", "ready"),
    [
        (True, True, True, True),
        (True, False, True, False),
        (False, False, False, False),
        (None, None, True, True),
    ],
)
async def test_health_is_what_the_pages_say(
    nursery: trio.Nursery, answers: bool | None, serves: bool | None, alive: bool, ready: bool
) -> None:
    shown = status(repository("stale"))
    one = Reporter(lambda: shown, FakeProbe(answers=answers, serves=serves), Readiness({}))
    said = {"repositories": {"llm": "stale"}, "problems": []}
    early = {"alive": False, "ready": False, "mount_answers": False, **said}
    assert as_json(await one.check_health()) == early, "there is no mount yet, but a directory that answers"
    nursery.start_soon(one.run, "")
    await trio.testing.wait_all_tasks_blocked()
    told = {"alive": alive, "ready": ready, "mount_answers": serves, **said}
    assert as_json(await one.check_health()) == told
    assert ((await one._healthz()).status, (await one._readyz()).status) == (
        200 if alive else 503,
        200 if ready else 503,
    )


@pytest.fixture
def taken() -> Iterator[socket.socket]:
    """A port that somebody listens on, until it is closed."""
    with socket.create_server(("127.0.0.1", 0)) as held:
        yield held


def _address(held: socket.socket) -> str:
    return f"127.0.0.1:{held.getsockname()[1]}"


async def test_a_port_that_becomes_free_is_listened_on(
    nursery: trio.Nursery,
    taken: socket.socket,
    autojump_clock: trio.testing.MockClock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    address = _address(taken)
    one = Reporter(lambda: status(), FakeProbe(answers=True, serves=True), Readiness({}))
    nursery.start_soon(one.run, address)
    await trio.sleep(3 * LISTEN_RETRY_S - 1)
    assert one.listens_on == ""
    assert one.trouble == f"no metrics: {address} cannot be listened on: Address already in use"
    assert caplog.text.count("no metrics") == 1, "said once"
    taken.close()
    assert one.listens_on == ""
    await trio.sleep(2)
    assert (one.listens_on, one.trouble) == (address, "")


async def test_a_reload_tries_the_port_at_once(nursery: trio.Nursery, taken: socket.socket) -> None:
    one = Reporter(lambda: status(), FakeProbe(answers=True, serves=True), Readiness({}))
    nursery.start_soon(one.run, address := _address(taken))
    await trio.testing.wait_all_tasks_blocked()
    assert one.trouble
    one.listen_now()
    await trio.testing.wait_all_tasks_blocked()
    assert one.trouble, "it is still taken"
    taken.close()
    one.listen_now()
    await trio.testing.wait_all_tasks_blocked()
    assert (one.listens_on, one.trouble) == (address, "")


async def test_the_log_says_every_minute_what_was_left_out(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[float] = []
    monkeypatch.setattr(logs, "tell_left_out", lambda: told.append(trio.current_time()))
    began_at = trio.current_time()
    nursery.start_soon(Reporter(lambda: status(), FakeProbe(answers=True, serves=True), Readiness({})).run, "")
    await trio.sleep(logs.PERIOD_S * 2.5)
    assert [at - began_at for at in told] == pytest.approx([60.0, 120.0])


def test_one_line_for_systemctl() -> None:
    assert summarize(status(repository("reachable"), repository("stale", "vision"))) == (
        "s3://b/llm, s3://b/vision on /mnt/models: 2 files open, 0.5 GiB read, cache 3.0 GiB of 50.0 GiB; vision is stale"
    )
    said = summarize(status(repository("reachable"), error="c.toml:\nunknown key"))
    assert said.endswith("of 50.0 GiB; settings stay as they are: c.toml: unknown key"), "one line"
    refused = ReloadStatus(at=1.0, refused={"vision": "the store refuses them"})
    said = summarize(replace(status(repository("reachable")), last_reload=refused))
    assert said.endswith("of 50.0 GiB; the credentials of vision: the store refuses them")
    assert summarize(replace(status(repository("reachable")), last_reload=ReloadStatus(at=2.0))).endswith("of 50.0 GiB")
