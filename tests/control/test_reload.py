"""Reading the settings again: what takes effect now; one reading at a time, to its end, and without harm when it fails."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
import trio

from d7yfs.config.schema import Profile
from d7yfs.config.size_bound import SizeBound
from d7yfs.config.sources import Settings, load_settings
from d7yfs.control.reload import Reloader, compare
from d7yfs.control.server import reporting
from d7yfs.host.launch import Readiness
from d7yfs.stats.status import ReloadStatus, as_json


def settings(directory: Path, toml: str, **environ: str) -> Settings:
    (directory / "c.toml").write_text(toml)
    return load_settings({}, (), None, environ, Path("c.toml"), here=directory)


ONE = 'source = "s3://b/p"\nmountpoint = "m"\n'


def test_what_takes_effect_now_and_what_does_not(tmp_path: Path) -> None:
    old = settings(tmp_path, ONE + 'cache_size = "10GiB"\nproxy = "h:4001"\n')
    new = settings(
        tmp_path,
        ONE + 'cache_size = "20GiB"\nlog_level = "debug"\nproxy = "h:4002"\nread_timeout = "5s"\nfile_mode = "0400"\n',
    )
    now, found = compare(old, new)
    assert found.changed == {"cache_size": "20GiB", "log_level": "debug"}
    assert sorted(found.later) == ["file_mode", "proxy", "read_timeout"]
    assert found.credentials == ()
    config = now.config
    assert (config.cache_size, config.log_level) == (SizeBound(20 << 30), "debug")
    assert (config.read_timeout_s, config.file_mode) == (60.0, 0o444)
    assert config.repositories == old.config.repositories
    shown = now.explain()
    assert shown["cache_size"]["value"] == "20GiB"
    assert "c.toml" in shown["log_level"]["from"]
    assert shown["read_timeout"] == {"value": "60s", "from": "default"}


def test_nothing_has_changed(tmp_path: Path) -> None:
    old, new = settings(tmp_path, ONE), settings(tmp_path, ONE)
    now, found = compare(old, new)
    assert (found.changed, found.later, found.credentials) == ({}, (), ())
    assert now == old


def test_a_setting_that_went_back_to_its_default(tmp_path: Path) -> None:
    now, found = compare(settings(tmp_path, ONE + 'metadata_ttl = "5s"\n'), settings(tmp_path, ONE))
    assert found.changed == {"metadata_ttl": "60s"}
    assert now.explain()["metadata_ttl"] == {"value": "60s", "from": "default"}


def test_credentials_from_elsewhere(tmp_path: Path) -> None:
    two = '{}mountpoint = "m"\n[repositories.a]\nurl = "s3://b/p"\n{}[repositories.b]\nurl = "s3://c/p"\n'
    now, found = compare(
        settings(tmp_path, two.format("", "")), settings(tmp_path, two.format("", 'profile = "other"\n'))
    )
    assert (found.changed, found.later, found.credentials) == ({}, (), ("a",))
    assert now.credentials["a"] == Profile("other")


def test_other_repositories_and_another_place(tmp_path: Path) -> None:
    old = settings(tmp_path, ONE)
    assert compare(old, settings(tmp_path, ONE.replace('"m"', '"n"')))[1].later == ("mountpoint",)
    other = settings(tmp_path, 'mountpoint = "m"\n[repositories.a]\nurl = "s3://b/p"\n')
    assert compare(old, other)[1].later == ("repositories",)
    assert compare(old, settings(tmp_path, ONE.replace("b/p", "b/q")))[1].later == ("url",)


def test_what_a_repository_has_for_itself(tmp_path: Path) -> None:
    two = 'mountpoint = "m"\n[repositories.a]\nurl = "s3://b/p"\n{}[repositories.b]\nurl = "s3://c/p"\n'
    now, found = compare(
        settings(tmp_path, two.format("")), settings(tmp_path, two.format('listing_limit = 7\nregion = "r"\n'))
    )
    assert (found.changed, found.later) == ({"a.listing_limit": "7"}, ("a.region",))
    a, b = now.config.repositories
    assert (a.listing_limit, a.region, b.listing_limit) == (7, "", 20_000)
    shown = now.explain()["a.listing_limit"]
    assert shown["value"] == "7"
    assert "c.toml" in shown["from"]


# --- reading ---

TOML = 'source = "s3://b/p"\nmountpoint = "/m"\n'


class Told(Readiness):
    """A readiness that records the notices to systemd."""

    def __init__(self) -> None:
        super().__init__({})
        self.heard: list[str] = []

    def notify(self, message: str, fd: int | None = None) -> None:
        self.heard.append(message.replace("\n", " "))


class Mount:
    """A reloader of a mount that takes what it is given; `file` is its settings."""

    def __init__(self, directory: Path) -> None:
        self.file = directory / "c.toml"
        self.file.write_text(TOML)
        self.told = Told()
        self.heeded: list[Mapping[str, str]] = []
        self.refused: dict[str, str] = {}
        self.gate: trio.Event | None = None
        self.entered = trio.Event()
        self.at_once = self.most_at_once = 0
        self.reloader = Reloader(Path("/m"), self.read(), self.read, self.heed, self.told, self.describe)

    def read(self) -> Settings:
        return load_settings({}, (), None, {}, self.file)

    def describe(self) -> str:
        last = self.reloader.last
        return f"the mount: {last.error if last is not None else 'not read again'}"

    async def heed(self, _settings: Settings, found: ReloadStatus) -> Mapping[str, str]:
        self.at_once += 1
        self.most_at_once = max(self.at_once, self.most_at_once)
        self.entered.set()
        if self.gate is not None:
            await self.gate.wait()
        self.at_once -= 1
        self.heeded.append(found.changed)
        return self.refused

    async def reload(self) -> dict[str, Any]:
        outcome = await self.reloader.reload()
        assert outcome.pop("mountpoint") == "/m"
        return outcome


@pytest.fixture
def mount(tmp_path: Path) -> Mount:
    return Mount(tmp_path)


async def test_what_has_changed(mount: Mount) -> None:
    mount.file.write_text(TOML + 'cache_size = "1GiB"\nfile_mode = "0400"\n')
    outcome = await mount.reload()
    assert (outcome["changed"], outcome["later"], outcome["error"]) == ({"cache_size": "1GiB"}, ["file_mode"], "")
    assert outcome["at"] > 0
    assert mount.heeded == [{"cache_size": "1GiB"}]
    assert mount.reloader.settings.config.cache_size == SizeBound(1 << 30)
    assert as_json(mount.reloader.last) == outcome
    begun, ready = mount.told.heard
    assert begun.startswith("RELOADING=1 MONOTONIC_USEC=")
    assert ready == "READY=1 STATUS=the mount: "


async def test_a_mistake_changes_nothing_and_is_told(mount: Mount) -> None:
    before = mount.reloader.settings
    mount.file.write_text("cash_size = 1\n")
    outcome = await mount.reload()
    assert "cash_size" in outcome["error"]
    assert (outcome["changed"], mount.heeded) == ({}, [])
    assert mount.reloader.settings is before
    assert mount.told.heard[1] == f"READY=1 STATUS=the mount: {outcome['error']}"
    mount.file.write_text(TOML)
    assert (await mount.reload())["error"] == ""
    assert mount.told.heard[3] == "READY=1 STATUS=the mount: ", "systemd has forgotten the mistake"


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


async def _no_apply(_settings: Settings, _found: ReloadStatus) -> Mapping[str, str]:
    raise ZeroDivisionError


async def test_one_at_a_time_and_to_its_end_though_its_client_leaves(
    mount: Mount, nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    mount.gate = trio.Event()
    async with aclosing(reporting(nursery, mount.reloader.reload)) as left:
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
