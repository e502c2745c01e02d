"""Names that an attacker uploads: no command lets them drive a terminal or be markup of rich."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from rich.console import Console

from d7yfs.cli import main
from d7yfs.cli.status import _settings_table, _table
from d7yfs.cli.terminal import wrap
from d7yfs.stats.status import MountStatus, parse
from tests.cache.doubles import backing, directory, fill, version
from tests.servers.in_thread import InThread
from tests.servers.s3_faults import S3Faults

EVIL = "mo\x9b2Jdel\u202exe\u2028\x1b]0;owned\x07.bin"
ESCAPED = r"mo\x9b2Jdel\u202exe\u2028\x1b]0;owned\x07.bin"
MARKUP = "[/red][ab]*.bin"
NAME = "[red][ab]*.bin"
DRIVING = {"\x9b", "\u202e", "\u2028", "\x1b", "\x07"}
SNAPSHOT: dict[str, Any] = json.loads((Path(__file__).parents[1] / "control" / "snapshot.json").read_text())


@pytest.fixture
def store() -> Iterator[InThread[S3Faults]]:
    objects = {f"b/models/{EVIL}": b"m", f"b/models/{NAME}": b"m", "b/models/two\nlines": b"m"}
    with InThread(S3Faults(objects)) as running:
        yield running


def run(*arguments: str | Path) -> Result:
    done = CliRunner().invoke(main, [*map(str, arguments)])
    assert not DRIVING & set(done.output), "printed as it came"
    return done


@pytest.mark.parametrize("as_json", [False, True])
def test_ls(store: InThread[S3Faults], as_json: bool) -> None:
    url = f"s3://127.0.0.1:{store.server.port}/b/models"
    done = run("ls", url, "--anonymous", *(["--json"] if as_json else []))
    assert done.exit_code == 0
    if as_json:
        assert [each["name"] for each in json.loads(done.stdout)] == sorted([EVIL, NAME, "two\nlines"])
    else:
        assert [line.split(maxsplit=3)[3] for line in done.stdout.splitlines()] == [NAME, ESCAPED, r"two\nlines"]
        for option in ("-l", "-R"):
            assert ESCAPED in run("ls", option, url, "--anonymous").stdout


def test_check(store: InThread[S3Faults], tmp_path: Path) -> None:
    url = f"s3://127.0.0.1:{store.server.port}/b/models"
    done = run("check", url, "--anonymous", "--cache-dir", tmp_path / "cache", "--exclude", "[ab]*", "--settings")
    assert "[ab]*" in done.stdout


def test_lines_are_wrapped_and_paths_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    path = "/a" * 50
    lines = wrap(f"{'word ' * 20}{path} \x1b and more of it", "    ", "ok  ")
    assert [line[:4] for line in lines] == ["ok  ", *["    "] * (len(lines) - 1)]
    assert [line for line in lines if len(line) > 80] == [f"    {path}"]
    assert r"\x1b" in "".join(lines)
    monkeypatch.setenv("COLUMNS", "50")
    assert max(map(len, wrap("word " * 20, ""))) <= 50


def test_an_error_about_an_object(store: InThread[S3Faults]) -> None:
    done = run("ls", f"s3://127.0.0.1:{store.server.port}/b/none-{MARKUP}\u202e", "--anonymous")
    assert done.exit_code == 1
    assert rf"none-{MARKUP}\u202e" in done.stderr


def test_cache(tmp_path: Path) -> None:
    made = directory(tmp_path)
    with backing(version(5, f"llm/{EVIL}"), made) as file:
        fill(file)
        listed = run("cache", "ls", "--cache-dir", tmp_path)
        kept = run("cache", "drop", "--all", "--cache-dir", tmp_path)
    encoded = "mo%C2%9B2Jdel%E2%80%AExe%E2%80%A8%1B%5D0%3Bowned%07.bin"
    assert encoded in listed.stdout
    assert encoded in kept.stdout
    assert run("cache", "verify", "--cache-dir", tmp_path).exit_code == 0


def test_status_shows_markup_as_it_is() -> None:
    """A URL, a glob, a mount point and a warning that would end rich's markup, or vanish in it."""
    repository = SNAPSHOT["repositories"][0] | {"url": f"s3://b/{MARKUP}", "error": MARKUP, "warnings": [EVIL]}
    settings = {"exclude": {"value": "[ab]", "from": MARKUP}}
    answer = SNAPSHOT | {
        "mountpoint": f"/mnt/{MARKUP}",
        "repositories": [repository],
        "warnings": [MARKUP],
        "settings": settings,
        "cache": SNAPSHOT["cache"] | {"directory": MARKUP, "disk_stalled_s": 5.0},
    }
    console = Console(width=300)
    with console.capture() as captured:
        console.print(_table(parse(MountStatus, answer)))
        console.print(_settings_table(parse(MountStatus, answer)))
    shown = captured.get()
    assert f"/mnt/{MARKUP}" in shown
    assert f"s3://b/{MARKUP}" in shown
    assert f"{MARKUP}; it is an empty directory" in shown
    assert f"{MARKUP}: " in shown
    assert "its disk has not answered for 5 s" in shown
    assert "[ab]" in shown
    assert ESCAPED in shown
    assert not DRIVING & set(shown)
