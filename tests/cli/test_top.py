"""The picture of `d7yfs top`: its lines, and the room that they take."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from rich.console import Console

from d7yfs.cli import main
from d7yfs.cli.top import SeenMount, draw, sparkline
from d7yfs.cli.top import _lines as text_lines
from d7yfs.control import control_socket
from d7yfs.errors import MountError
from d7yfs.host import mount_table
from d7yfs.stats.status import MountStatus, parse

SNAPSHOT: dict[str, Any] = json.loads((Path(__file__).parents[1] / "control" / "snapshot.json").read_text())
GIB = 1 << 30
PROBLEM: dict[str, Any] = SNAPSHOT["problems"][0]


def account(uptime_s: float, *, more_bytes: int = 0, **changes: Any) -> MountStatus:
    """The account of a mount whose counters are `more_bytes` higher than at first."""
    llm = SNAPSHOT["repositories"][0]
    traffic = llm["traffic"] | {"cache_bytes": 4 * more_bytes, "direct_bytes": more_bytes, "proxy_bytes": 0}
    models = {f"m{number}": llm["models"]["a"] | {"read_bytes": number * more_bytes} for number in range(12)}
    first = {
        "problems": [],
        "uptime_s": uptime_s,
        "repositories": [llm | {"name": "", "traffic": traffic, "models": models}],
        "cache": SNAPSHOT["cache"] | {"used_bytes": GIB, "limit_bytes": 4 * GIB},
        "warm_ups": [],
    }
    return parse(MountStatus, SNAPSHOT | first | changes)


def seen(*accounts: MountStatus) -> SeenMount:
    mount = SeenMount("/mnt/models")
    for each in accounts:
        mount = mount.after(each)
    return mount


def shown(*mounts: SeenMount, width: int = 80, height: float = 1000) -> list[str]:
    return [each.text for each in draw(mounts, width, height)]


def fuse(**changes: Any) -> dict[str, Any]:
    found: dict[str, Any] = SNAPSHOT["fuse"] | {"passthrough": False} | changes
    return found


def test_what_is_wrong_comes_first_and_red() -> None:
    mount = seen(account(5.0, problems=[PROBLEM]), account(7.0, problems=[PROBLEM]))
    first, second, *_ = draw([mount], 80)
    assert first.text.startswith("/mnt/models: vision: store unreachable")
    assert first.style == "bold red"
    assert first.wraps, "the cure stands at its end"
    assert second.text.startswith("/mnt/models  s3://b/llm, up 0:00:07")
    assert all("red" not in each.style for each in draw([seen(account(5.0), account(7.0))], 80))


def test_rates_with_a_line_of_the_last_minute_in_one_scale() -> None:
    mount = seen(*(account(2.0 * number, more_bytes=size * GIB) for number, size in enumerate((0, 1, 3, 3))))
    cache, p2p, store = shown(mount)[1:4]
    assert cache == " cache        0 B/s  ▅█▁"
    assert p2p == " P2P          0 B/s  ▁▁▁"
    assert store == " store        0 B/s  ▂▃▁"


def test_the_line_has_the_newest_rates_that_find_room() -> None:
    mount = seen(*(account(0.5 * number, more_bytes=number) for number in range(500)))
    assert mount.looks[0].uptime_s >= 500 / 2 - 61, "the looks of a minute are kept"
    assert [len(each) for each in shown(mount)[1:4]] == [80] * 3


def test_before_there_are_two_looks_and_after_a_restart() -> None:
    assert shown(SeenMount("/mnt/models")) == ["/mnt/models: asked, and has not answered yet"]
    assert shown(seen(account(5.0)))[1:] == [" rates   with the next look"]
    restarted = seen(account(5.0), account(7.0), account(0.5, started_at=9.0))
    assert shown(restarted)[1:] == [" rates   with the next look"]
    assert shown() == ["nothing is mounted"]


def test_a_daemon_that_does_not_answer_costs_its_own_lines() -> None:
    failure = MountError("no daemon answers for /mnt/dead: timed out", hint="d7yfs umount --force frees its readers")
    dead = replace(seen(account(1.0), account(2.0)), failure=failure)
    mount = seen(account(5.0), account(7.0))
    alone = shown(mount)
    first, *rest = shown(dead, mount)
    assert first == f"/mnt/models: {failure.message}; {failure.hint}"
    assert rest == alone


def test_root_sees_that_other_users_have_mounts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    theirs = mount_table.Mount(Path("/home/u/m"), "0:1", mount_table.FSTYPE, "s3://b", 1000)
    monkeypatch.setattr(mount_table, "mount_table", lambda: [theirs])
    monkeypatch.setattr(control_socket, "find_sockets", list)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.delenv(control_socket.RUNTIME_VARIABLE, raising=False)
    done = CliRunner().invoke(main, ["top", "--once"])
    assert done.exit_code == 0
    assert "/home/u/m: a mount of uid 1000, whom alone it answers" in done.stdout
    assert json.loads(CliRunner().invoke(main, ["top", "--once", "--json"]).stdout) == []
    monkeypatch.setattr(os, "geteuid", lambda: 1)
    assert "uid 1000" not in CliRunner().invoke(main, ["top", "--once"]).stdout


def test_requests_that_wait_are_shown_the_slow_ones_one_by_one() -> None:
    oldest = [
        {"operation": "read", "path": "llm/w", "waited_s": 12.0},
        {"operation": "lookup", "path": "llm/x", "waited_s": 0.1},
    ]
    waits = fuse(in_flight=3, waiting_reads={"0": 1, "1000": 2}, oldest_requests=oldest)
    mount = seen(account(5.0), account(7.0, fuse=waits))
    lines = draw([mount], 80)
    texts = [each.text for each in lines]
    at = texts.index(" waiting 3 requests; reads: 2 of uid 1000, 1 of uid 0")
    assert texts[at + 1] == "           12.0 s    read llm/w"
    assert lines[at + 1].style == "yellow"
    assert not any("lookup" in each for each in texts)
    assert not any("waiting" in each for each in shown(seen(account(5.0), account(7.0, fuse=fuse()))))


def test_what_the_kernel_reads_by_itself_is_said_to_be_unknown() -> None:
    itself = fuse(passthrough=True, passthrough_opens=7)
    mount = seen(account(5.0, fuse=fuse(passthrough=True, passthrough_opens=3)), account(7.0, fuse=itself))
    (line,) = [each for each in shown(mount) if each.startswith(" kernel")]
    assert line == " kernel         2/s  opens of files that it reads by itself: bytes unknown"
    assert len(line) <= 80


def test_a_low_screen_has_fewer_models_and_never_less_of_the_rest() -> None:
    mount = seen(account(5.0), account(7.0, more_bytes=GIB))
    tall, low = shown(mount), shown(mount, height=9)
    assert sum("GiB/s" in each and " of " in each for each in tall) == 10
    assert len(low) <= 9
    assert [each for each in tall if each.startswith(" ") and each[1] != " " and "models" not in each] == [
        each for each in low if each[1] != " " and "models" not in each and each.startswith(" ")
    ]
    assert " disk    [#####---------------] 1 GiB of 4 GiB, 25%" in low


def test_where_many_mounts_find_no_room_trouble_comes_first_and_each_has_a_line() -> None:
    quiet = seen(account(5.0, mountpoint="/mnt/quiet"), account(7.0, more_bytes=GIB, mountpoint="/mnt/quiet"))
    wrong: dict[str, Any] = {"problems": [PROBLEM], "mountpoint": "/mnt/wrong"}
    begun = seen(account(5.0, mountpoint="/mnt/begun"))
    dead = replace(quiet, failure=MountError("no daemon answers for /mnt/dead"))
    lines = shown(quiet, begun, seen(account(5.0, **wrong), account(7.0, **wrong)), dead, width=200, height=8)
    assert lines[0].startswith("/mnt/wrong: vision: store unreachable")
    assert lines[1:] == [
        "/mnt/wrong  cache 0 B/s, P2P 0 B/s, store 0 B/s, 0 requests waiting",
        "/mnt/quiet: no daemon answers for /mnt/dead",
        "/mnt/quiet  cache 2 GiB/s, P2P 0 B/s, store 512 MiB/s, 0 requests waiting",
        "/mnt/begun  rates with the next look",
    ]


@pytest.mark.parametrize(
    ("values", "highest", "line"),
    [([], 0, ""), ([0, 0], 0, "▁▁"), ([0, 1, 50, 100], 100, "▁▂▅█"), ([3.3, 0.1 + 0.2], 3.3, "█▂")],
)
def test_sparkline(values: list[float], highest: float, line: str) -> None:
    assert sparkline(values, highest) == line


def test_no_value_is_beyond_the_highest_bar() -> None:
    for number in range(1, 2000):
        assert sparkline([number / 7], number / 7) == "█"


def test_names_drive_no_terminal_and_are_no_markup() -> None:
    evil = "a\x1b]0;owned\x07\u202e\n[red]b"
    waits = fuse(in_flight=1, oldest_requests=[{"operation": "read", "path": evil, "waited_s": 1.0}])
    mount = seen(account(5.0), account(7.0, fuse=waits, problems=[PROBLEM | {"text": evil}], mountpoint=f"/mnt/{evil}"))
    console = Console(width=200, force_terminal=True, color_system=None, soft_wrap=True)
    with console.capture() as captured:
        for line in text_lines(console, [mount], 2.0, 100):
            console.print(line)
    assert not {"\x1b", "\x07", "\u202e"} & set(captured.get())
    assert r"read a\x1b]0;owned\x07\u202e\n[red]b" in captured.get()


@pytest.mark.parametrize("interval", ["soon", "0.1s"])
def test_an_interval_that_cannot_be(interval: str) -> None:
    done = CliRunner().invoke(main, ["top", "--interval", interval])
    assert done.exit_code == 2
    assert f"--interval '{interval}'" in done.stderr
