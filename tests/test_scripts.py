"""The maintainers' scripts: a profile runs, and stale references and stale mutants are noticed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from scripts import check_docs, mutants

ROOT = Path(__file__).resolve().parent.parent


def test_a_profile_of_cold_reads() -> None:
    command = [sys.executable, "-m", "scripts.profile", "--large-mib", "2", "--small-files", "3", "--top", "1"]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=60).stdout
    assert "== large.bin: 2 MiB in" in said
    assert "== 3 small files: 0 MiB in" in said


def test_a_promise_whose_test_is_gone_is_a_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "semantics.md"
    page.write_text(
        "# Promises\n\n- no promise\n\n## Files\n\nText.\n\n"
        "- One that is kept, in\n  two lines.\n  - Tests: `test_scripts.py` (all), `make test`,\n"
        "    `::test_a_profile_of_cold_reads`\n"
        "- One whose test is gone.\n  - Tests: `test_scripts.py::test_gone`, `gone/test_it.py`\n"
        "- One without a test.\n"
    )
    monkeypatch.setattr(check_docs, "PROMISES", page)
    assert list(check_docs.promised()) == [
        "semantics.md:13: tests/test_scripts.py has no test_gone",
        "semantics.md:13: tests/gone/test_it.py does not exist",
        "semantics.md:15: a promise without a test",
    ]


def test_links_cells_and_modules_that_are_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check_docs, "ROOT", tmp_path)
    monkeypatch.setattr(check_docs, "PACKAGE", tmp_path / "d7yfs")
    page = tmp_path / "page.md"
    page.write_text(
        "# A page\n\n[here](#a-page) [gone](gone.md) [no heading](page.md#other)\n\n`d7yfs/gone.py`\n\n| a | "
        + "b" * 121
    )
    assert list(check_docs.linked(page)) == ["page.md: gone.md does not exist", "page.md: page.md#other is no heading"]
    assert list(check_docs.named(page)) == ["page.md: there is no d7yfs/gone.py"]
    assert [fault.partition(" characters")[0] for fault in check_docs.wide(page)] == ["page.md:7: a cell of 121"]


def test_a_mutant_that_does_not_fit_is_named() -> None:
    fits = mutants.Mutant("fits", "errors", "class NotFound(", "class NotFound:", "test_scripts.py")
    stale = mutants.Mutant("stale", "fetch", "no such text in this room", "", "test_scripts.py gone.py")
    assert mutants.stale((fits, stale)) == [
        "stale: not found exactly once in d7yfs/fetch: 'no such text in this room'",
        "stale: tests/gone.py does not exist",
    ]
