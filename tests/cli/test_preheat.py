"""The words about a preheat."""

from __future__ import annotations

from pathlib import Path

from d7yfs.cli.preheat import describe_preheat, explain_preheat, summarize_preheat
from d7yfs.stats.preheat import PreheatStatus
from d7yfs.stats.status import blank

POINT = Path("/mnt/models")
MIB = 1 << 20


def test_progress_names_some_hosts() -> None:
    hosts = {f"seed-{number}": number for number in range(1, 7)}
    report = blank(PreheatStatus, files=30, files_done=21, size_bytes=8 * MIB, done_bytes=4 * MIB, hosts=hosts)
    assert describe_preheat(report) == (
        "21 of 30 files, 4 MiB of 8 MiB (seed-1: 1, seed-2: 2, seed-3: 3, seed-4: 4 and 2 more hosts)"
    )


def test_the_summary() -> None:
    report = blank(PreheatStatus, files=2, files_done=2, done_bytes=MIB, elapsed_s=33.2, jobs=(7, 8), hosts={"a": 2})
    assert list(summarize_preheat(report)) == [
        "preheated: 2 files, 1 MiB in 0:00:33 (a: 2); 2 jobs of the manager: 7, 8"
    ]
    some = blank(PreheatStatus, files=3, files_done=2, files_direct=1)
    first, second = summarize_preheat(some)
    assert first.startswith("preheated: 2 of 3 files")
    assert second == "1 file that mounts fetch from the store, as --p2p and their size have it"
    assert list(summarize_preheat(blank(PreheatStatus))) == ["preheated: nothing"]


def test_files_are_grouped_by_the_reason() -> None:
    left_out = {f"m/{number}": "no version" for number in range(5)} | {"odd\n": "a token"}
    report = blank(
        PreheatStatus, left_out=left_out, files_left_out=8, failures={"m/9": "seed-1: status 403"}, files_failed=2
    )
    assert list(explain_preheat(report, POINT)) == [
        "5 files cannot be preheated: no version: /mnt/models/m/0, /mnt/models/m/1, /mnt/models/m/2 and 2 more",
        "1 file cannot be preheated: a token: /mnt/models/odd\\n",
        "2 more files cannot be preheated",
        "/mnt/models/m/9 did not arrive: seed-1: status 403",
        "1 more file did not arrive; the log names them",
    ]
