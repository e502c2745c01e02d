"""The output of `d7yfs refresh`. `tests/mount/test_freshness.py` tests it with a daemon."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from d7yfs.cli import main
from d7yfs.cli.paths import summarize_refresh
from d7yfs.host import mount_table
from d7yfs.stats.status import RefreshStatus


def found(**names: list[str]) -> RefreshStatus:
    kinds = {"added": (), "removed": (), "replaced": ()} | {kind: tuple(each) for kind, each in names.items()}
    added, removed, replaced = map(len, kinds.values())
    return RefreshStatus(directories=3, added=added, removed=removed, replaced=replaced, names=kinds, elapsed_s=0.1)


def test_what_was_found() -> None:
    outcome = found(added=["llm/2"], replaced=["llm/config.pbtxt", "llm/1/weights"])
    assert summarize_refresh(Path("/mnt/m"), outcome).splitlines() == [
        "/mnt/m: 3 directories refreshed: 1 added, 0 removed, 2 replaced",
        "  added     llm/2",
        "  replaced  llm/config.pbtxt",
        "  replaced  llm/1/weights",
    ]


def test_much_is_not_named_one_by_one() -> None:
    outcome = replace(found(removed=[f"f{number}" for number in range(100)]), removed=5000)
    *_, last = lines = summarize_refresh(Path("/mnt/m"), outcome).splitlines()
    assert len(lines) == 22
    assert last == "  removed   4980 more"


def test_a_path_in_no_mount(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mount_table, "mount_table", list)
    done = CliRunner().invoke(main, ["refresh", "/nowhere"])
    assert done.exit_code == 1
    assert done.stderr.startswith("d7yfs: error: /nowhere is not in a d7yfs mount")
