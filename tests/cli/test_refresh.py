"""The output of `d7yfs refresh`. `tests/mount/test_freshness.py` tests it with a daemon."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from d7yfs.cli import main
from d7yfs.cli.paths import summarize_refresh
from d7yfs.host import mount_table


def found(**names: list[str]) -> dict[str, Any]:
    kinds: dict[str, list[str]] = {"added": [], "removed": [], "replaced": []} | names
    return {"directories": 3, "names": kinds} | {kind: len(each) for kind, each in kinds.items()}


def test_what_was_found() -> None:
    outcome = found(added=["llm/2"], replaced=["llm/config.pbtxt", "llm/1/weights"])
    assert summarize_refresh(Path("/mnt/m"), outcome).splitlines() == [
        "/mnt/m: 3 directories refreshed: 1 added, 0 removed, 2 replaced",
        "  added     llm/2",
        "  replaced  llm/config.pbtxt",
        "  replaced  llm/1/weights",
    ]


def test_much_is_not_named_one_by_one() -> None:
    outcome = found(removed=[f"f{number}" for number in range(100)])
    outcome["removed"] = 5000
    *_, last = lines = summarize_refresh(Path("/mnt/m"), outcome).splitlines()
    assert len(lines) == 22
    assert last == "  removed   4980 more"


def test_a_path_in_no_mount(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mount_table, "mount_table", list)
    done = CliRunner().invoke(main, ["refresh", "/nowhere"])
    assert done.exit_code == 1
    assert done.stderr.startswith("d7yfs: error: /nowhere is not in a d7yfs mount")
