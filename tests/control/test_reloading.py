"""Reading the settings again: one at a time, to its end, and without harm when it goes wrong."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
import trio

from d7yfs.config.sources import Settings, load_settings
from d7yfs.control.reload import Changes
from d7yfs.control.reloading import Reloader
from d7yfs.host.launch import Readiness

TOML = 'source = "s3://b/p"\nmountpoint = "/m"\n'


class Told(Readiness):
    """What systemd hears."""

    def __init__(self) -> None:
        super().__init__({})
        self.heard: list[str] = []

    def notify(self, message: str) -> None:
        self.heard.append(message.replace("\n", " "))


class Mount:
    """A reloader of a mount that takes what it is given; `file` is its settings."""

    def __init__(self, directory: Path, nursery: trio.Nursery) -> None:
        self.file = directory / "c.toml"
        self.file.write_text(TOML)
        self.told = Told()
        self.heeded: list[Mapping[str, str]] = []
        self.refused: dict[str, str] = {}
        self.gate: trio.Event | None = None
        self.entered = trio.Event()
        self.at_once = self.most_at_once = 0
        self.reloader = Reloader(Path("/m"), self.read(), self.read, self.heed, self.told, nursery)

    def read(self) -> Settings:
        return load_settings({}, (), None, {}, self.file)

    async def heed(self, found: Changes) -> Mapping[str, str]:
        self.at_once += 1
        self.most_at_once = max(self.at_once, self.most_at_once)
        self.entered.set()
        if self.gate is not None:
            await self.gate.wait()
        self.at_once -= 1
        self.heeded.append(found.live)
        return self.refused

    async def reload(self) -> dict[str, Any]:
        async with aclosing(self.reloader.report({})) as replies:
            async for reply in replies:
                last = reply
        outcome = last["outcome"]
        assert isinstance(outcome, dict)
        assert (outcome.pop("mountpoint"), last["state"]) == ("/m", "done")
        return outcome


@pytest.fixture
def mount(tmp_path: Path, nursery: trio.Nursery) -> Mount:
    return Mount(tmp_path, nursery)


async def test_what_has_changed(mount: Mount) -> None:
    mount.file.write_text(TOML + 'cache_size = "1GiB"\nfile_mode = "0400"\n')
    outcome = await mount.reload()
    assert (outcome["changed"], outcome["later"], outcome["error"]) == ({"cache_size": "1GiB"}, ("file_mode",), "")
    assert outcome["at"] > 0
    assert mount.heeded == [{"cache_size": "1GiB"}]
    assert mount.reloader.settings.config.cache_size_bytes == 1 << 30
    assert mount.reloader.last == outcome
    begun, ready = mount.told.heard
    assert begun.startswith("RELOADING=1 MONOTONIC_USEC=")
    assert ready == "READY=1"


async def test_a_mistake_changes_nothing_and_is_told(mount: Mount) -> None:
    before = mount.reloader.settings
    mount.file.write_text("cash_size = 1\n")
    outcome = await mount.reload()
    assert "cash_size" in outcome["error"]
    assert (outcome["changed"], mount.heeded) == ({}, [])
    assert mount.reloader.settings is before
    assert mount.told.heard[1].startswith("READY=1 STATUS=settings stay as they are: ")
    assert "cash_size" in mount.told.heard[1]
    mount.file.write_text(TOML)
    assert (await mount.reload())["error"] == ""
    assert mount.told.heard[3] == "READY=1"


async def test_credentials_that_cannot_be_had_are_told_and_the_rest_counts(mount: Mount) -> None:
    mount.file.write_text(TOML + 'cache_size = "1GiB"\n')
    mount.refused = {"": "no keys"}
    outcome = await mount.reload()
    assert (outcome["changed"], outcome["refused"], outcome["error"]) == ({"cache_size": "1GiB"}, {"": "no keys"}, "")


def _bug() -> Settings:
    raise ZeroDivisionError("secret in an unexpected text")


async def test_a_bug_ends_nothing(mount: Mount, caplog: pytest.LogCaptureFixture) -> None:
    reloader: Any = mount.reloader
    reloader._read = _bug
    outcome = await mount.reload()
    assert outcome["error"] == "unexpected ZeroDivisionError; see the log"
    assert "Traceback" in caplog.text
    reloader._read = mount.read
    reloader._apply = _no_apply
    outcome = await mount.reload()
    assert outcome["error"].startswith("unexpected ZeroDivisionError while they took effect")


async def _no_apply(_found: Changes) -> Mapping[str, str]:
    raise ZeroDivisionError


async def test_one_at_a_time_and_to_its_end_though_its_client_leaves(
    mount: Mount, autojump_clock: trio.testing.MockClock
) -> None:
    mount.gate = trio.Event()
    async with aclosing(mount.reloader.report({})) as left:
        assert (await anext(left))["state"] == "running"
    seen: list[dict[str, Any]] = []

    async def another() -> None:
        seen.append(await mount.reload())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(another)
        await mount.entered.wait()
        await trio.testing.wait_all_tasks_blocked()
        assert (mount.heeded, mount.at_once) == ([], 1)
        mount.gate.set()
    assert (len(mount.heeded), mount.most_at_once, len(seen)) == (2, 1, 1)
