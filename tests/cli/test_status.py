"""The table of `d7yfs status`, from what a daemon answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from d7yfs.cli.paths import summarize_warm_up, warn_of_size
from d7yfs.cli.status import (
    _table,
    describe_listing,
    describe_problems,
    describe_traffic,
    describe_waiting,
    describe_warm_up,
)
from d7yfs.stats.repository_status import ListingStatus, TrafficStatus
from d7yfs.stats.status import FuseStatus, MountStatus, WarmUpStatus, parse

GIB = 1 << 30
SNAPSHOT: dict[str, Any] = json.loads((Path(__file__).parents[1] / "control" / "snapshot.json").read_text())
LLM = SNAPSHOT["repositories"][0]
NOTHING: dict[str, Any] = {
    "cache_bytes": 0,
    "proxy_bytes": 0,
    "local_peer_bytes": 0,
    "remote_peer_bytes": 0,
    "back_to_source_bytes": 0,
    "direct_bytes": 0,
    "direct_bytes_by_reason": {},
}
REPORT: dict[str, Any] = SNAPSHOT["warm_ups"][0] | {
    "id": 3,
    "paths": ["llm", "vision/a"],
    "state": "running",
    "files": 10,
    "files_done": 4,
    "files_failed": 0,
    "files_left_out": 0,
    "size_bytes": 5 * GIB,
    "missing_bytes": 4 * GIB,
    "fetched_bytes": GIB,
    "rate_bytes_s": GIB // 4,
    "eta_s": 12.4,
    "elapsed_s": 70.2,
    "room_bytes": 4 * GIB,
}


@pytest.mark.parametrize(
    ("traffic", "said"),
    [
        ({}, "0 B from cache, 0 B direct"),
        (
            {"cache_bytes": GIB, "proxy_bytes": 2 * GIB, "direct_bytes": 10, "direct_bytes_by_reason": {"direct": 10}},
            "1 GiB from cache, 2 GiB by proxy, 10 B direct",
        ),
        (
            {
                "local_peer_bytes": 1,
                "remote_peer_bytes": 2,
                "back_to_source_bytes": 3,
                "direct_bytes": 9,
                "direct_bytes_by_reason": {"small file": 5, "fallback": 4, "never": 0},
            },
            "0 B from cache, 1 B from dfdaemon's cache, 2 B from other hosts, 3 B from the store by dfdaemon, "
            "9 B direct (small file 5 B, fallback 4 B)",
        ),
    ],
)
def test_where_bytes_came_from(traffic: dict[str, Any], said: str) -> None:
    assert describe_traffic(parse(TrafficStatus, NOTHING | traffic)) == said


def _shown(
    repository: dict[str, Any], warm_ups: list[dict[str, Any]], last_reload: dict[str, Any] | None = None
) -> str:
    answer = SNAPSHOT | {
        "mountpoint": "/mnt/models",
        "pid": 1,
        "uptime_s": 5.0,
        "rss_bytes": GIB,
        "log": "stderr",
        "metrics": {"listens_on": "127.0.0.1:7717", "error": ""},
        "warnings": [],
        "repositories": [LLM | repository] if repository else [],
        "last_reload": SNAPSHOT["last_reload"] | last_reload if last_reload else None,
        "warm_ups": warm_ups,
        "cache": SNAPSHOT["cache"] | {"used_bytes": 0, "limit_bytes": GIB, "directory": "/c", "hits": 0, "misses": 0},
        "tree": SNAPSHOT["tree"] | {"files": 1, "directories": 1},
        "fuse": SNAPSHOT["fuse"] | {"read_bytes": 0, "open_files": 0},
    }
    console = Console(width=300)
    with console.capture() as captured:
        console.print(_table(parse(MountStatus, answer)))
    return captured.get()


def test_the_problems_open_it_in_red_and_one_line_each() -> None:
    problem = {
        "code": "store-unreachable",
        "repository": "s3://b",
        "since": 1.0,
        "text": "store unreachable for 4 min (connection refused)",
        "served": "cached files are served, the listing is from 08:35; 4 reads failed",
        "hint": "check --endpoint-url",
        "blocks_reads": False,
    }
    mount = parse(MountStatus, SNAPSHOT | {"problems": [problem, problem | {"text": "odd \x1b[2J name"}]})
    said = (
        "/mnt/models: store unreachable for 4 min (connection refused): cached files are served, "
        "the listing is from 08:35; 4 reads failed; check --endpoint-url"
    )
    for is_terminal in (False, True):
        console = Console(
            width=80,
            soft_wrap=True,
            highlight=False,
            force_terminal=is_terminal,
            color_system="standard" if is_terminal else None,
        )
        with console.capture() as captured:
            for line in describe_problems(mount):
                console.print(line)
        first, second = captured.get().splitlines()
        assert first == (f"\x1b[1;31m{said}\x1b[0m" if is_terminal else said)
        assert "odd \\x1b[2J name" in second


def test_the_table() -> None:
    repository = {
        "name": "llm",
        "url": "s3://b/llm",
        "error": "",
        "proxy": "http://h:4001",
        "breaker": "open",
        "handover": None,
        "way": "origin",
        "hidden": {"name": 2, "excluded": 12, "unpublished": 0},
        "listing": LLM["listing"]
        | {
            "in_use": "directory",
            "reason": "it has more than 20000 objects",
            "scans": 1,
            "listings": 7,
            "exact_lookups": 0,
        },
        "warnings": ["s3://b/llm: P2P is configured but every byte comes from the source"],
        "traffic": NOTHING,
        "fetched": LLM["fetched"] | {"direct_requests": 7, "proxy_requests": 2, "retries": {"BadReply": 1}},
    }
    shown = _shown(repository, [REPORT, REPORT | {"id": 4, "state": "planning"}])
    assert "llm=s3://b/llm, through http://h:4001 (breaker open), for now direct" in shown
    assert "P2P is configured but" in shown
    assert (
        "directory by directory (it has more than 20000 objects); since start 1 listing of all, 7 of directories"
        in shown
    )
    assert "12 hidden by include or exclude, 2 with names that cannot be shown" in shown
    assert "7 direct, 2 by proxy, 1 retry" in shown
    assert "/llm, /vision/a: 4/10 files, 1 GiB of 4 GiB, 256 MiB/s, 0:00:12 left" in shown
    assert "warm-up 4" in shown
    assert "/llm, /vision/a: planning" in shown
    handover = LLM["handover"] | {"socket": "unix:///run/d.sock", "state": "dfdaemon's socket does not answer"}
    shown = _shown(repository | {"handover": handover, "breaker": "closed", "way": "proxy"}, [])
    assert "handed over at unix:///run/d.sock (dfdaemon's socket does not answer), through http://h:4001 " in shown
    shown = _shown(repository | {"breaker": "closed", "way": "proxy", "warnings": []}, [])
    assert "through http://h:4001 " in shown
    assert "warm-up" not in shown
    assert "warning" not in shown
    assert "error" not in shown


def test_requests_that_wait_and_the_oldest_by_its_path() -> None:
    oldest = [
        {"operation": "read", "path": "llm/w", "waited_s": 200.0},
        {"operation": "open", "path": "x", "waited_s": 2},
    ]
    waits = SNAPSHOT["fuse"] | {"in_flight": 3, "oldest_request_s": 200.0, "oldest_requests": oldest}
    assert describe_waiting(parse(FuseStatus, waits)) == "3 requests, the oldest for 3 min: read llm/w"
    assert describe_waiting(parse(FuseStatus, waits | {"oldest_request_s": 0.9})) == ""
    assert describe_waiting(parse(FuseStatus, waits | {"oldest_requests": []})) == "", "an older daemon"


def test_how_names_are_learnt_before_and_after_the_first_listing() -> None:
    one = {"objects": 1, "directories": 1, "pages": 1, "took_s": 0.5}
    listing = LLM["listing"] | {"in_use": "whole", "reason": "", "scans": 1, "listings": 0, "exact_lookups": 0}
    before = parse(ListingStatus, listing | {"last_scan": dict.fromkeys(one, 0)})
    assert (
        describe_listing(before)
        == "to be listed whole; no listing has come to its end yet; since start 1 listing of all"
    )
    after = parse(ListingStatus, listing | {"last_scan": one})
    assert describe_listing(after) == "listed whole, 1 object in 1 request (0.5 s); since start 1 listing of all"


@pytest.mark.parametrize(
    ("last", "said"),
    [
        ({"error": "", "later": []}, []),
        ({"error": "c.toml: unknown key", "later": []}, ["the settings could not be read again: c.toml: unknown key"]),
        ({"error": "", "later": ["proxy", "verify"]}, ["next mount", "changes proxy, verify"]),
    ],
)
def test_what_came_of_reading_the_settings_again(last: dict[str, Any], said: list[str]) -> None:
    shown = _shown({}, [], last)
    assert all(each in shown for each in said)
    assert ("error" in shown, "next mount" in shown) == (bool(last["error"]), bool(last["later"]))


# --- warm ---


def report(document: dict[str, Any]) -> WarmUpStatus:
    return parse(WarmUpStatus, document)


def test_how_far_a_warm_up_is() -> None:
    assert describe_warm_up(report(REPORT)) == "4/10 files, 1 GiB of 4 GiB, 256 MiB/s, 0:00:12 left"
    assert describe_warm_up(report(REPORT | {"eta_s": None, "rate_bytes_s": 0})) == "4/10 files, 1 GiB of 4 GiB, 0 B/s"


def test_what_came_of_a_warm_up() -> None:
    assert summarize_warm_up(report(REPORT)) == (
        "warming in the background: 10 files, 5 GiB, of which 1 GiB was cached; d7yfs status shows how far it is"
    )
    done = REPORT | {"state": "done", "files_done": 10, "fetched_bytes": 4 * GIB}
    assert (
        summarize_warm_up(report(done)) == "warm: 10 files, 5 GiB, of which 1 GiB was cached; 4 GiB fetched in 0:01:10"
    )
    cut = REPORT | {"state": "done", "files_failed": 2, "files_left_out": 4}
    assert summarize_warm_up(report(cut)).endswith("1 GiB fetched in 0:01:10; 2 failed, 4 left out")
    assert summarize_warm_up(report(cut)).startswith("4 of 10 files, 5 GiB")
    assert "5 GiB in 10 files is more than the cache keeps at once (4 GiB)" in warn_of_size(report(REPORT))
